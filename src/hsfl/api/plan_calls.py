"""`hsfl.plan`: cuts and an allocation for a fleet, without training. With a cost table it needs no torch."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsfl.allocation.cuts.search import OnProgress
from hsfl.api.arguments import CallArguments, Config, Plugins, Settings, arguments_of_call
from hsfl.api.notebook_figure import shown_in_notebooks
from hsfl.config import RunConfig, parse_stored
from hsfl.display import OnScreen, Rows, Screen
from hsfl.errors import InputError, in_arguments
from hsfl.files import read_record
from hsfl.formats import cut_words, percent, seconds
from hsfl.models.cost_table import CostTable
from hsfl.planning.fleet_from_file import with_fleet_file
from hsfl.planning.plans.fleet_plan import Plan, make_plan
from hsfl.planning.plans.single_cut import single_cut_sentence
from hsfl.planning.world import World, make_world, world_of
from hsfl.report.compared_runs import CheckedPlan
from hsfl.report.page.page import PAGE_NAME, write_page
from hsfl.report.page.page_words import describe_plan, plan_sentence
from hsfl.report.plan_figure import plan_figure
from hsfl.runs.client_data import expected_samples, expected_task
from hsfl.runs.from_plan import PLAN_FILE, check_plan_folder, keep_plan, read_plan
from hsfl.runs.planned_extras import planned_extras

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class PlanResult(OnScreen, Plan):
    """A plan, the config that it was made for, and where it was kept."""

    config: RunConfig | None = None  # None where a file of numbers alone was opened
    folder: Path | None = None

    def table(self) -> Rows:
        """A plain row for each client: its cut, what it gets, and the seconds of its phases; of a crowd, a row for each phase."""
        if self.crowd is not None:
            heads = [f"{per_cent}%" for per_cent in self.crowd.quantiles]
            return Rows({"phase": name} | dict(zip(heads, values)) for name, values in self.crowd.seconds.items())
        rows = [asdict(client) for client in self.clients]
        return Rows(row | {f"{phase}_s": value for phase, value in row.pop("seconds").items()} for row in rows)

    def plot(self) -> "Figure":
        """A bar for each client: what it spends its round on."""
        return shown_in_notebooks(plan_figure(self))

    def to_json(self) -> dict[str, Any]:
        """The plan as `hsfl plan --json` prints it."""
        whole = asdict(self)
        return {field.name: whole[field.name] for field in fields(Plan)}

    def screen(self) -> Screen:
        """The mean round and what is proven of it, what holds it up, and a row for each client: end s is when its training and upload are over."""
        bound = f"none can take less than {seconds(self.lower_bound_s, 4)} (gap {percent(self.gap)})"
        sentences = [f"{self.policy}: a round takes {seconds(self.round_s, 4)} on average; {bound}"]
        others = (plan_sentence(self), single_cut_sentence(self.single))
        sentences += [sentence for sentence in others if sentence is not None]
        sentences += [f"note: {note}" for note in self.notes]
        if self.crowd is not None:
            return Screen(sentences, ("cut", "clients"), list(self.crowd.cuts.items()))
        rows = [
            (
                client.name,
                client.cut if client.codec is None else cut_words(client.cut, client.codec),
                client.server_hz / 1e9,
                client.ends_s,
                client.bottleneck,
            )
            for client in self.clients
        ]
        return Screen(sentences, ("client", "cut", "server G/s", "end s", "longest phase"), rows)


def plan(
    config: Config = None,
    settings: Settings = (),
    *,
    out: str | Path | None = None,
    data: Any = None,
    model: Any = None,
    cost: CostTable | None = None,
    input_shape: tuple[int, ...] | None = None,
    num_classes: int | None = None,
    samples_per_client: int | None = None,
    progress: OnProgress | None = None,
    plugins: Plugins = (),
    **sections: Any,
) -> PlanResult:
    """Which cut each client has, what it is allocated, and how long a round takes, for the fleet and the data of a run.

    config, settings, sections, data, model, plugins: as in `hsfl.run`. out: a folder that keeps plan.json and a page.
    The shape of a sample, the number of classes and each client's
    samples are those of the data set; where `input_shape`, `num_classes` (or `cost`, a cost table) and `samples_per_client`
    say all of it, no data are read. progress: is called with what is searched, its step and the best round in seconds.
    The answer has `table()`, a row for each client, and `plot()`; `hsfl.run(plan=...)` takes it.
    """
    arguments = arguments_of_call(config, settings, data, model, plugins, sections)
    arguments.check(planning=True)
    if cost is not None and arguments.model is not None:
        raise InputError("a model and a cost table are given; leave one of them out")
    if out is not None:
        check_plan_folder(Path(out))
    survey = expected_samples(
        arguments.config,
        arguments.data,
        shape=input_shape,
        num_classes=num_classes,
        samples_per_client=samples_per_client,
        cost=cost is not None,
    )
    if cost is not None:
        world = world_of(arguments.config, cost)
    else:
        world = _measured_world(arguments, survey.shape, survey.num_classes)
    extras, extra_notes = planned_extras(arguments.config, survey, cost is not None, arguments.data, arguments.model)
    answer = make_plan(arguments.config, world.named(survey.client_names), survey.num_samples, progress, extras)
    notes = [*survey.notes, *extra_notes, *answer.notes]
    values = vars(answer) | {
        "notes": [in_arguments(note) for note in notes],
        "assumed": describe_plan(with_fleet_file(arguments.config), survey.num_samples.tolist(), survey.data),
    }
    result = PlanResult(**values, config=arguments.config, folder=None if out is None else Path(out))
    if out is not None:
        keep_plan(Path(out), result.to_json() | {"notes": notes}, arguments.config)
        write_page([out], Path(out) / PAGE_NAME)
    return result


def open_plan(folder: Path) -> PlanResult:
    """The plan that a folder keeps."""
    read_record(folder / PLAN_FILE, CheckedPlan)  # what a page needs of it is there
    stored: Plan = read_record(folder / PLAN_FILE, Plan)
    config = read_plan(folder).config
    values = vars(stored) | {"notes": [in_arguments(note) for note in stored.notes]}
    return PlanResult(
        **values, config=None if config is None else parse_stored(config, folder / PLAN_FILE), folder=folder
    )


def _measured_world(arguments: CallArguments, shape: tuple[int, ...], num_classes: int) -> World:
    if arguments.model is not None:
        from hsfl.models.model_checks import check_fits, example  # here, because they load torch

        targets = expected_task(arguments.config, arguments.data).targets
        check_fits(arguments.model, example(shape, arguments.model.input_dtype), num_classes, targets)
    return make_world(arguments.config, tuple(shape), num_classes, arguments.model)
