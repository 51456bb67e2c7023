"""What a call from Python is given, as a config with changes, data and a model. Only a model needs torch.

A config is a preset's name, a file, a `RunConfig`, a dict of settings, or nothing (the defaults). Settings are changed as with `--set`, by a list of
`section.field=value`, by a dict, or by keywords: `framework="fl"`, `train={"rounds": 5}`. In a dict `{"train.rounds": 5}` will do, too.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsfl import plugins as plugin_files
from hsfl.config import OWN_DATA, OWN_MODEL, RunConfig, flatten, read_config, with_changes
from hsfl.data.from_python import dataset_digest, is_torch_dataset
from hsfl.data.registry import Dataset
from hsfl.errors import InputError, shown_value
from hsfl.runs.checks.unused_settings import refuse_unused, refuse_unused_by_contenders
from hsfl.runs.from_plan import PlannedCuts, as_planned, read_plan

if TYPE_CHECKING:
    from hsfl.models.units import SplitModel
    from hsfl.planning.plans.fleet_plan import Plan

Config = RunConfig | str | Path | Mapping[str, Any] | None
Settings = Iterable[str] | Mapping[str, Any]
Plugins = str | Path | Iterable[str | Path]
Frameworks = str | Iterable[str] | Mapping[str, str]

CONTENDERS_EXAMPLE = "such as frameworks=['hsfl,train.lr=0.1', 'Ours=hsfl', 'fl']"


@dataclass(frozen=True)
class CallArguments:
    """The config of a call from Python, and the data and the model where the call gave objects instead of names."""

    config: RunConfig
    data: Dataset | None  # None where the config names the data
    model: "SplitModel | None"
    source: str | Path | None = None  # where the config was read; None where it was given itself
    changes: tuple[str, ...] = ()  # such as train.rounds=5

    def check(self, planning: bool = False) -> None:
        """Refuse settings that do nothing in the config."""
        refuse_unused(self.source, self.changes, [self.config], planning)

    def check_contenders(self, texts: Sequence[str]) -> None:
        """Refuse settings that do nothing for any of the contenders, and those of a contender that do nothing for itself."""
        refuse_unused_by_contenders(self.source, self.changes, [self.config], texts)


def arguments_of_call(
    config: Config,
    settings: Settings,
    data: Any,
    model: Any,
    plugins: Plugins,
    sections: Mapping[str, Any],
    plan: "Plan | str | Path | None" = None,
) -> CallArguments:
    """The config after all changes.

    data, model: an object, or a name or a mapping that sets the config's `data` or `model`. settings: changes
    such as "train.rounds=5". sections: changes by keywords. plan: decides cuts and policy; where it was kept and no config is
    given, the config is the plan's.
    """
    plugins = [plugins] if isinstance(plugins, str | Path) else list(plugins)
    first_changes = _section_texts(config) if isinstance(config, Mapping) else []
    config = None if isinstance(config, Mapping) else config
    dataset = None if isinstance(data, str | Mapping | None) else given_dataset(data)
    split_model = None if isinstance(model, str | Mapping | None) else split_given(model)
    section_changes = dict(sections)
    if dataset is None and data is not None:
        section_changes["data"] = data
    if split_model is None and model is not None:
        section_changes["model"] = model
    changes = [*first_changes, *_setting_texts(settings), *_section_texts(section_changes)]
    if dataset is not None:
        name = OWN_DATA if dataset.name == OWN_DATA else f"{OWN_DATA}:{dataset.name}"
        changes += [f"data.name={json.dumps(name)}", f'data.sha256="{dataset_digest(dataset)}"']
    if split_model is not None:
        changes.append(f"model.name={OWN_MODEL}")
    planned, plan_config = (None, None) if plan is None else _planned_cuts(plan)
    base = plan_config if config is None else config
    if isinstance(base, RunConfig):
        plugin_files.load_plugins_of(plugins)
        run_config = with_changes(base, changes)
    else:
        run_config = read_config(base, changes, plugins)
    if planned is not None:
        run_config = as_planned(run_config, planned, changes)
    source = None if isinstance(config, RunConfig) else config
    return CallArguments(run_config, dataset, split_model, source, tuple(changes))


def _planned_cuts(plan: "Plan | str | Path") -> tuple[PlannedCuts, RunConfig | Mapping[str, Any] | None]:
    """The cuts and the policy of a plan that was kept, or that `hsfl.plan` gave, and its config."""
    if isinstance(plan, str | Path):
        kept_plan = read_plan(Path(plan))
        return kept_plan, kept_plan.config
    if not hasattr(plan, "policy") or not hasattr(
        plan, "cuts"
    ):  # its class would load the optimiser, which is an extra
        raise InputError(f"plan is a {type(plan).__name__}; give what hsfl.plan gives, or the folder where it was kept")
    return PlannedCuts(plan.policy, list(plan.cuts), codecs=getattr(plan, "codecs", None)), getattr(
        plan, "config", None
    )


def contender_texts(frameworks: Frameworks) -> list[str]:
    """The contenders of a call, each as one text; `{"Ours": "hsfl"}` names them."""
    if isinstance(frameworks, Mapping):
        for name, contender in frameworks.items():
            if not isinstance(contender, str):
                texts = [_contender_text(str(name), settings) for name, settings in frameworks.items()]
                raise InputError(
                    f"frameworks[{name!r}] is {shown_value(contender)}; give a list of texts, frameworks={json.dumps(texts)}"
                )
        return [f"{name}={contender}" for name, contender in frameworks.items()]
    if not isinstance(frameworks, str | Iterable):
        raise InputError(f"frameworks is {shown_value(frameworks)}; give a list of texts, {CONTENDERS_EXAMPLE}")
    texts = [frameworks] if isinstance(frameworks, str) else list(frameworks)
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"frameworks holds {shown_value(text)}; give a list of texts, {CONTENDERS_EXAMPLE}")
    return texts


def _contender_text(name: str, contender: Any) -> str:
    """What was probably meant by an item of a dict: a framework with settings, or a name with a contender."""
    if isinstance(contender, Mapping):
        return ",".join([name, *_section_texts(contender)])
    return f"{name}={contender}" if isinstance(contender, str) else name


def given_dataset(data: Any) -> Dataset:
    """The data that a call was given; an error where they are no data set."""
    if not isinstance(data, Dataset):
        made_of = f"{type(data).__name__}()" if is_torch_dataset(data) else "x, y"
        raise InputError(f"data is a {type(data).__name__}; make it with hsfl.dataset({made_of})")
    return data


def split_given(model: Any) -> "SplitModel":
    """The model that a call was given, split into its units."""
    from hsfl.models.split.graph_split import split  # here, because it loads torch

    return split(model)


def _setting_texts(settings: Settings) -> list[str]:
    if isinstance(settings, Mapping):
        return _section_texts(settings)
    texts = [settings] if isinstance(settings, str) else list(settings)
    if not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"settings are a {type(settings).__name__} of other things than text; give a list such as ['train.rounds=5'], or "
            "keywords such as train={'rounds': 5}"
        )
    return texts


def _section_texts(sections: Mapping[str, Any]) -> list[str]:
    """{"train": {"rounds": 5}} -> ["train.rounds=5"]; plain text for data or model is the name."""
    named = {
        section: {"name": value} if section in ("data", "model") and isinstance(value, str) else value
        for section, value in sections.items()
    }
    return [f"{name}={value_text(name, value)}" for name, value in flatten(named).items()]


def value_text(name: str, value: Any) -> str:
    """A value as `--set` reads it. name: of the setting, for the error where it is no plain value."""
    try:
        return json.dumps(value, ensure_ascii=False, default=_json_value)
    except TypeError:
        raise InputError(f"{name} is a {type(value).__name__}; give a number, text, true or false, or a list") from None


def _json_value(value: Any) -> Any:
    """Paths, and NumPy's numbers and arrays, as JSON has them."""
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError
