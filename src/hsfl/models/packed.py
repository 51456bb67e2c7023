"""Many states of units in two vectors, which cross a process border as two tensors, however many states there are.

A tensor that crosses takes a file descriptor in both processes, and clients that keep heads of their own are many.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from hsfl.models.state import Layout, UnitState

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Packed(Generic[Key]):
    """States of units by key, one after another in two vectors."""

    floats: Tensor
    ints: Tensor
    places: tuple[tuple[Key, Layout, int, int], ...]  # key, layout, first unit, unit after the last

    @classmethod
    def of(cls, states: Mapping[Key, UnitState]) -> "Packed[Key]":
        """A copy of these states."""
        every = list(states.values())
        floats = torch.cat([state.floats for state in every]) if every else torch.zeros(0)
        ints = torch.cat([state.ints for state in every]) if every else torch.zeros(0, dtype=torch.int64)
        return cls(floats, ints, tuple((key, each.layout, each.start, each.stop) for key, each in states.items()))

    def states(self) -> dict[Key, UnitState]:
        """The states by key: views of the two vectors."""
        found: dict[Key, UnitState] = {}
        at, at_int = 0, 0
        for key, layout, start, stop in self.places:
            end = at + layout.float_starts[stop] - layout.float_starts[start]
            end_int = at_int + layout.int_starts[stop] - layout.int_starts[start]
            found[key] = UnitState(layout, start, stop, self.floats[at:end], self.ints[at_int:end_int])
            at, at_int = end, end_int
        return found
