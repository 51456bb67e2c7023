"""What the framework for which a plan is made sends and trains besides HSFL's round. Torch is loaded only where it has hooks that the
clock charges."""

from typing import TYPE_CHECKING

from hsfl.config import RunConfig
from hsfl.data.registry import Dataset
from hsfl.errors import DataMissing
from hsfl.formats import size
from hsfl.framework_table import method
from hsfl.planning.cuts import planned_framework
from hsfl.planning.rounds.round_clock import Extras
from hsfl.runs.client_data import Survey
from hsfl.runs.method_extras import charged_hooks, method_extras

if TYPE_CHECKING:
    from hsfl.models.units import SplitModel


def planned_extras(
    config: RunConfig,
    survey: Survey,
    has_costs: bool,
    dataset: Dataset | None = None,
    model: "SplitModel | None" = None,
) -> tuple[Extras, list[str]]:
    """What the framework for which a plan is made sends and trains besides, and what a person should know of it.

    survey: what the plan takes the data for. has_costs: whether the plan rests on a saved cost table. dataset, model: given from
    Python instead of those that the config names.
    """
    framework = planned_framework(config)
    hooks, row = charged_hooks(framework), method(framework)
    if not hooks:
        return Extras(), []
    extras = None if has_costs else _asked_extras(config, survey, dataset, model)
    if extras is None:
        unknown = (
            f"what {row.title} sends besides a head (extra_bytes) is not known without its data and its model, so cuts and seconds "
            "leave it out; the clock of a run charges it"
        )
        return Extras(passes=_passes(framework)), [unknown] if "extra_bytes" in hooks else []
    up, down = (size(max(bits, default=0.0) / 8) for bits in (extras.up_bits, extras.down_bits))
    parts = [f"sends up to {up} up and {down} down besides a head"] if extras.up_bits else []
    parts += [f"makes {extras.passes} passes over a client's samples"] if extras.passes > 1 else []
    return extras, [f"{row.title} {' and '.join(parts)} in a round, and cuts and seconds count it"] if parts else []


def _passes(framework: str) -> int:
    from hsfl.frameworks import find_framework  # here, because it loads torch

    return int(getattr(find_framework(framework), "passes", 1))


def _asked_extras(
    config: RunConfig, survey: Survey, dataset: Dataset | None, model: "SplitModel | None"
) -> Extras | None:
    """The extras of the run that the plan is for; None where its data are not here or are not those of the plan."""
    from hsfl.runs.prepare import prepare  # here, because it loads torch

    fleet = config.fleet.model_copy(update={"cuts": "max_cut"})
    allocation = config.allocation.model_copy(update={"policy": "even"})
    try:
        task = prepare(config.model_copy(update={"fleet": fleet, "allocation": allocation}), dataset, model).task
    except DataMissing:
        return None
    return method_extras(task) if tuple(task.feed.images.shape) == tuple(survey.shape) else None
