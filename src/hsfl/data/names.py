"""Looking a word up in a registry."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

from hsfl.errors import InputError

T = TypeVar("T")


def lookup(registry: Mapping[str, T], name: str, what: str) -> T:
    """The entry of that name; an unknown name is an error that suggests the nearest one."""
    if name in registry:
        return registry[name]
    near = difflib.get_close_matches(name, registry, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"choose one of: {', '.join(sorted(registry))}"
    raise InputError(f"unknown {what} '{name}'; {hint}")
