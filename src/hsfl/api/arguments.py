"""What a call from Python chooses: a config with changes, and data and a model of one's own. Only a model needs torch.

A config is a preset's name, a file, a `RunConfig`, or nothing (the defaults). Settings are changed as with `--set`, by a list of
`section.field=value`, or by keywords: `framework="fl"`, `train={"rounds": 5}`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsfl import plugins as plugin_files
from hsfl.config import OWN_DATA, OWN_MODEL, RunConfig, flatten, read_config, with_changes
from hsfl.data.from_python import digest
from hsfl.data.registry import Dataset
from hsfl.errors import InputError
from hsfl.runs.unused_settings import refuse_unused, refuse_unused_by_contenders

if TYPE_CHECKING:
    from hsfl.models.units import SplitModel

Config = RunConfig | str | Path | None


@dataclass(frozen=True)
class Chosen:
    """What a call from Python chose: the config, and the data and the model where they were given themselves."""

    config: RunConfig
    data: Dataset | None  # where the data are given themselves, not named
    model: "SplitModel | None"
    source: str | Path | None = None  # where the config was read; None where it was given itself
    words: tuple[str, ...] = ()  # the settings that were changed

    def check(self, planning: bool = False) -> None:
        """Refuse settings that do nothing in the config."""
        refuse_unused(self.source, self.words, [self.config], planning)

    def check_contenders(self, labels: Sequence[str]) -> None:
        """Refuse settings that do nothing for any of the contenders, and those of a contender that do nothing for itself."""
        refuse_unused_by_contenders(self.source, self.words, [self.config], labels)


def config_of_call(
    config: Config,
    settings: Iterable[str],
    data: Any,
    model: Any,
    plugins: Iterable[str | Path],
    sections: Mapping[str, Any],
) -> Chosen:
    """The config after all changes.

    data, model: given themselves, or a name or a mapping that sets the config's `data` or `model`. settings: changes
    such as "train.rounds=5". sections: changes by keywords.
    """
    given = data if isinstance(data, Dataset) else None
    own_model = None if isinstance(model, str | Mapping | None) else _split(model)
    changes = dict(sections)
    if given is None and data is not None:
        if not isinstance(data, str | Mapping):
            raise InputError(f"data is a {type(data).__name__}; make it with hsfl.dataset(x, y)")
        changes["data"] = data
    if own_model is None and model is not None:
        changes["model"] = model
    words = [*_listed(settings), *_words(changes)]
    if given is not None:
        name = OWN_DATA if given.name == OWN_DATA else f"{OWN_DATA}:{given.name}"
        words += [f"data.name={json.dumps(name)}", f'data.sha256="{digest(given)}"']
    if own_model is not None:
        words.append(f"model.name={OWN_MODEL}")
    if not isinstance(config, RunConfig):
        return Chosen(read_config(config, words, plugins), given, own_model, config, tuple(words))
    plugin_files.load_plugins_of(plugins)
    return Chosen(with_changes(config, words), given, own_model, None, tuple(words))


def _split(model: Any) -> "SplitModel":
    from hsfl.models.split.graph_split import split  # here, because it loads torch

    return split(model)


def _listed(settings: Iterable[str]) -> list[str]:
    words = [settings] if isinstance(settings, str) else list(settings)
    if isinstance(settings, Mapping) or not all(isinstance(word, str) for word in words):
        raise InputError(
            f"settings are a {type(settings).__name__} of other things than text; give a list such as ['train.rounds=5'], or "
            "keywords such as train={'rounds': 5}"
        )
    return words


def _words(sections: Mapping[str, Any]) -> list[str]:
    """{"train": {"rounds": 5}} -> ["train.rounds=5"]; plain text for data or model is the name."""
    named = {
        section: {"name": part} if section in ("data", "model") and isinstance(part, str) else part
        for section, part in sections.items()
    }
    return [f"{name}={_text(name, value)}" for name, value in flatten(named).items()]


def _text(name: str, value: Any) -> str:
    """A value as `--set` reads it."""
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain)
    except TypeError:
        raise InputError(f"{name} is a {type(value).__name__}; give a number, text, true or false, or a list") from None


def _plain(value: Any) -> Any:
    """Paths, and NumPy's numbers and arrays, as JSON has them."""
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError
