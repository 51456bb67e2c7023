"""Contenders of a comparison: a framework's name, which settings of its own may follow, and a name before it:
`fl,options.fl.needs_storage=true` or `Ours=hsfl,fleet.cuts=fastest`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from hsfl import plugins
from hsfl.config import RunConfig, with_changes
from hsfl.errors import InputError, known_name
from hsfl.framework_table import METHODS

SHARED = ("model", "data", "fleet", "network", "log")  # sections that all contenders share
OWN = ("cuts", "one_cut")  # fields of the fleet that a contender may change
LONGEST_NAME = 60  # letters


@dataclass(frozen=True)
class Contender:
    """A contender as it was asked for."""

    label: str  # the name that was given, else the whole text; what files of numbers call it
    framework: str
    changes: tuple[str, ...]  # its own settings, such as fleet.cuts=fastest
    is_named: bool

    @property
    def text(self) -> str:
        """What was asked for, without a name."""
        return ",".join((self.framework, *self.changes))


def read_contender(text: str) -> Contender:
    """The contender that a text names. The text before the first `=` is a name, which holds no comma and no dot."""
    first, *changes = split_label(text)
    if not all(changes):
        raise InputError(f"contender {text!r} has an empty setting; give NAME,section.field=value")
    name, equals, framework = (side.strip() for side in first.partition("="))
    if not equals:
        _check_comma(text, first, changes)
        _check_framework("framework", first)
        return Contender(text.strip(), first, tuple(changes), is_named=False)
    if "." in name:
        raise InputError(
            f"contender {text!r} begins with {name!r}, which has a dot as settings do; give FRAMEWORK,{first}, or a name "
            "without a dot: NAME=FRAMEWORK"
        )
    if name in METHODS and framework not in METHODS:
        raise InputError(f"contender {text!r} has no comma before its settings; give {name},section.field=value")
    if (last := framework.rpartition("=")[2].strip()) in METHODS and "=" in framework:
        both = f"{name} {framework.rpartition('=')[0].replace('=', ' ').strip()}"
        raise InputError(f"contender {text!r} has a name with =, which a name may not hold; give {both}={last}")
    _check_framework(f"contender {text!r}: framework", framework)
    return Contender(_checked_name(name, text, framework), framework, tuple(changes), is_named=True)


def _check_comma(text: str, first: str, changes: Sequence[str]) -> None:
    """Refuse a name with a comma, such as `Ours, even=hsfl`; its parts were taken for a framework and its settings."""
    for number, change in enumerate(changes, 1):
        name, _, framework = (side.strip() for side in change.partition("="))
        if framework in METHODS and "." not in name and first not in METHODS:
            parts = [first, *changes[: number - 1], name]
            raise InputError(
                f"contender {text!r} has a name with a comma, which a name may not hold; give "
                f"{parts[0]} ({' '.join(parts[1:])})={framework}"
            )


def _check_framework(kind: str, name: str) -> None:
    """Refuse a framework that nobody registered; an installed plugin of this name is loaded. kind: what the error calls it."""
    plugins.find_installed(name)
    known_name(kind, name, METHODS, plugins.WAY_OUT)


def _checked_name(name: str, text: str, framework: str) -> str:
    """The name before `=` with single blanks; an error where it cannot serve as a name."""
    name = " ".join(name.split())
    if not name:
        raise InputError(f"contender {text!r} has no name before its =; give NAME={framework}, or {framework} alone")
    if not name.isprintable() or len(name) > LONGEST_NAME:
        raise InputError(
            f"contender {text!r} has a name of {len(name)} letters; take up to {LONGEST_NAME} that can be printed"
        )
    if name in RunConfig.model_fields:
        raise InputError(
            f"contender {text!r}: {name} is a setting; give {framework} alone, or another NAME={framework}"
        )
    other_rows = [row for row in METHODS.values() if row.name != framework]
    other_titles = {title.casefold() for row in other_rows for title in (row.name, row.title, row.short_title)}
    if name.casefold() in other_titles:
        raise InputError(f"contender {text!r}: {name} is the name of another framework; choose another")
    return name


def labels_of(texts: Sequence[str]) -> list[str]:
    """The label of each contender; an error where two contenders have one label."""
    seen: dict[str, Contender] = {}
    for asked in map(read_contender, texts):
        twin = seen.setdefault(asked.label.casefold() if asked.is_named else asked.label, asked)
        if twin.text != asked.text:
            raise InputError(f"{twin.text} and {asked.text} are both called {asked.label}; give each a name of its own")
        if twin is not asked:
            raise InputError(f"the contender {asked.label} stands twice; name each once")
    return [asked.label for asked in seen.values()]


def contender(base: RunConfig, text: str) -> RunConfig:
    """The config of the contender that a text names, from the settings `base` that all contenders share."""
    asked = read_contender(text)
    config = with_changes(base, [f"framework={json.dumps(asked.framework)}", *asked.changes])
    if config.framework != asked.framework:
        raise InputError(f"{text} names two frameworks; give one contender for each")
    ours, theirs = _shared(config), _shared(base)
    if changed := [field for field in ours if ours[field] != theirs[field]]:
        raise InputError(f"{text} changes {changed[0]}, which all contenders share; change it with --set")
    return config


def _shared(config: RunConfig) -> dict[str, object]:
    """The settings that a contender may not change, by the field's full name."""
    fields: dict[str, object] = {"seed": config.seed, "device": config.device, "train.budget_s": config.train.budget_s}
    for section in SHARED:
        values = getattr(config, section)
        fields |= {f"{section}.{name}": getattr(values, name) for name in type(values).model_fields}
    return {name: value for name, value in fields.items() if name.removeprefix("fleet.") not in OWN}


def split_label(label: str) -> list[str]:
    """The parts of a label between commas; commas inside brackets do not count: `hsfl,fleet.cuts=[3,4]` has two parts."""
    texts, depth = [""], 0
    for letter in label:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            texts.append("")
        else:
            texts[-1] += letter
    return [text.strip() for text in texts]
