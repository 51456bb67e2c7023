"""The error that people see, and names looked up with a hint."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Wrong input. The message names the thing, shows the value and offers the way out; commands print it alone."""


class DataMissing(InputError):
    """A data set is not on this machine."""


def known(what: str, name: str, choices: Iterable[str], way_out: str = "") -> str:
    """The name, if it is among the choices; else an error that suggests the nearest, and another way out."""
    choices = list(choices)
    if name not in choices:
        near = get_close_matches(str(name).lower(), choices, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"{what} {name!r} is unknown; {hint}choose one of {', '.join(choices)}{way_out}")
    return name
