"""The points of a sweep: every combination of the values that its words give. No torch, so that a typo is told at once.

A word is `section.field=value,value,...`; commas inside brackets belong to a value (`fleet.cuts=[1,2],[3,4]`).
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hsfl.config import RunConfig, flatten, set_name, with_changes
from hsfl.errors import InputError
from hsfl.runs.run_folder.folder import path_name
from hsfl.runs.studies.contenders import contender, labels_of, read_contender, split_label

EXAMPLE = "network.subchannel_hz=0.5e6,1e6,2e6"
NOT_SWEPT = {"seed": "repeat with other seeds by --seeds", "framework": "give several frameworks with -f"}


@dataclass(frozen=True)
class GridPoint:
    """One combination of values, and the settings that it makes."""

    values: tuple[Any, ...]  # one for each field, as the config holds them
    name: str  # `network.subchannel_hz=500000`, as people read it
    config: RunConfig

    @property
    def folder(self) -> str:
        """The name of the folder that holds the point's runs."""
        return path_name(self.name)


@dataclass(frozen=True)
class Grid:
    fields: tuple[str, ...]
    points: tuple[GridPoint, ...]


def read_grid(base: RunConfig, sweep_words: Sequence[str]) -> Grid:
    """All points of a sweep, each a checked config; the last field varies fastest. sweep_words: one for each field."""
    if not sweep_words:
        raise InputError(f"a sweep needs values; give a field and its values, such as {EXAMPLE}")
    axes: dict[str, dict[str, Any]] = {}  # by field, its values by their text
    for word in sweep_words:
        field, values = _axis(base, word)
        if field in axes:
            raise InputError(f"{field} stands twice; give all its values in one word: {field}=VALUE,VALUE")
        axes[field] = values
    points = [_point(base, dict(zip(axes, texts)), axes) for texts in itertools.product(*axes.values())]
    return Grid(tuple(axes), tuple(points))


def _axis(base: RunConfig, word: str) -> tuple[str, dict[str, Any]]:
    """A field and its values by their text, each checked alone."""
    field, equals, values_text = (side.strip() for side in word.partition("="))
    if not equals or not field or not values_text:
        raise InputError(f"{word!r} gives no values; write a field and its values, such as {EXAMPLE}")
    if field in NOT_SWEPT:
        raise InputError(f"{field} is not swept; {NOT_SWEPT[field]}")
    values: dict[str, Any] = {}
    for value_text in split_label(values_text):
        if not value_text:
            raise InputError(f"{word!r} has an empty value; remove a comma")
        value = _value(with_changes(base, [f"{field}={value_text}"]), field, value_text)
        if value in values.values():
            raise InputError(f"{field} has the value {value_text} twice; give each once")
        values[value_text] = value
    return field, values


def _value(config: RunConfig, field: str, text: str) -> Any:
    """The value as the config holds it (1e6 and 1000000 are one); a whole section has its text alone."""
    return flatten(config.model_dump(mode="json")).get(field, text)


def _point(base: RunConfig, texts: dict[str, str], axes: dict[str, dict[str, Any]]) -> GridPoint:
    values = {field: axes[field][text] for field, text in texts.items()}
    name = ",".join(f"{field}={say_value(value)}" for field, value in values.items())
    try:
        config = with_changes(base, [f"{field}={text}" for field, text in texts.items()])
    except InputError as error:  # each value is right, but they do not go together
        raise InputError(f"{name}: {error}") from None
    return GridPoint(tuple(values.values()), name, config)


def say_value(value: Any) -> str:
    """A value as short text, different for different values: 0.5e6 is 500000."""
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def check_contenders(grid: Grid, texts: Sequence[str]) -> None:
    """Refuse a contender that sets a field that the sweep varies, or whose settings make no config at some point."""
    labels_of(texts)
    for text in texts:
        own_fields = {set_name(change) for change in read_contender(text).changes}
        if both := [field for field in grid.fields if field in own_fields]:
            raise InputError(f"{text} sets {both[0]}, which the sweep varies; leave it out of one of them")
        for point in grid.points:
            contender(point.config, text)
