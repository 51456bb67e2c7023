"""Aggregation is partial sums per unit, and the sums do not depend on the order in which clients are counted.

Each server sums, weighted by samples, the states of the units it holds over the clients that were kept. The servers
exchange the sums of the units that both hold and divide: with different cuts this is FedAvg of the joined models.

Floating-point sums change with their order, and so would a model trained by several workers. Here a number is rounded once,
weight times value, to a grid of its unit, and counted in whole multiples of the grid as a 64-bit integer; integer sums are
exact. The grid is a power of two that follows from the model at the start of the round, so everyone has the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hsfl.models.state import UnitState

CHUNK = 1 << 18  # numbers that are added at once; whole vectors take four to seven times as long
GROWTH_BITS = 12  # a round may multiply a unit's largest number by 2 to this power
SUM_BITS = 62  # of a sum; an int64 holds 63 and a sign
WEIGHT_BITS = 20  # weights are multiples of 2 ** -20, so that their sums are exact, too


class Diverged(ArithmeticError):
    """A loss or a weight is no longer a number, or has grown beyond all sense."""


@dataclass(frozen=True)
class PartialSum:
    """The sum over clients of weight times state, for the units `[start, stop)`, and the weight of each unit."""

    total: UnitState  # int64; floats are multiples of the unit's grid, 2 ** -bits
    weight: Tensor  # float64 [stop - start]
    bits: tuple[int, ...]  # [stop - start]
    largest: tuple[float, ...]  # [stop - start] the largest number that a client may bring

    @classmethod
    def zero(cls, before: UnitState, most_weight: float) -> "PartialSum":
        """An empty sum for clients that start from `before` and weigh at most `most_weight` together."""
        device = "cpu" if before.floats.device.type == "mps" else before.floats.device  # mps has no float64
        total = UnitState.empty(before.layout, before.start, before.stop, torch.int64, device)
        largest = most_after(before)
        bits = tuple(SUM_BITS - math.ceil(math.log2(most * max(most_weight, 1.0))) for most in largest)
        return cls(total, torch.zeros(before.stop - before.start, dtype=torch.float64), bits, largest)

    def __getitem__(self, units: slice) -> "PartialSum":
        first = self.total.start
        mine = slice(units.start - first, units.stop - first)
        return PartialSum(self.total[units], self.weight[mine], self.bits[mine], self.largest[mine])

    def add(self, state: UnitState, weight: float) -> None:
        """Add the units of one client, which are some of ours; its weight is its number of samples."""
        mine, weight = self[state.start : state.stop], math.ldexp(round(math.ldexp(weight, WEIGHT_BITS)), -WEIGHT_BITS)
        check_growth(state, mine.largest)
        for unit, bits in zip(range(state.start, state.stop), mine.bits):
            _add(mine.total[unit : unit + 1].floats, state[unit : unit + 1].floats, weight, bits)
        _add(mine.total.ints, state.ints, weight, 0)
        mine.weight.add_(weight)

    def merge(self, other: "PartialSum") -> None:
        """Add the sum of another server, or of another part of the round, over some of our units."""
        mine = self[other.total.start : other.total.stop]
        assert mine.bits == other.bits, "sums of rounds that began differently"
        mine.total.floats.add_(other.total.floats)
        mine.total.ints.add_(other.total.ints)
        mine.weight.add_(other.weight)

    def clone(self) -> "PartialSum":
        return PartialSum(self.total.clone(), self.weight.clone(), self.bits, self.largest)

    def mean(self, before: UnitState) -> UnitState:
        """The weighted mean in the type of `before`; units that nobody trained stay as they were."""
        after = before.clone()
        for unit in range(self.total.start, self.total.stop):
            weight = float(self.weight[unit - self.total.start])
            if weight > 0:
                mine, out = self.total[unit : unit + 1], after[unit : unit + 1]
                out.floats.copy_(mine.floats.double() / math.ldexp(weight, self.bits[unit - self.total.start]))
                out.ints.copy_((mine.ints.double() / weight).round())
        return after

    @property
    def num_bytes(self) -> int:
        """The bytes of the sum on the link between the servers: 8 for each number, and 8 for the weight of each unit."""
        return self.total.num_bytes + self.weight.nbytes


def most_after(before: UnitState) -> tuple[float, ...]:
    """The largest number that each unit may hold after a round that starts from `before`."""
    return tuple(max(1.0, number) * 2.0**GROWTH_BITS for number in _largest(before))


def check_growth(state: UnitState, most: Sequence[float]) -> None:
    """Refuse what is no number or too large for a sum: no sum ever overflows. most: of each unit of the state."""
    for unit, largest, found in zip(range(state.start, state.stop), most, _largest(state)):
        if not found <= largest:
            grown = "is no number" if math.isnan(found) else f"has grown to {found:.3g} within a round"
            raise Diverged(f"a weight of unit {unit + 1} {grown}; lower train.lr, or normalise the data")


def _largest(state: UnitState) -> list[float]:
    """The largest absolute value of each unit; NaN where a unit holds one."""
    units = [state[unit : unit + 1].floats for unit in range(state.start, state.stop)]
    ranges = [torch.aminmax(floats) if len(floats) else (floats.sum(), floats.sum()) for floats in units]
    return torch.stack([torch.maximum(-low, high) for low, high in ranges]).tolist() if ranges else []


def _add(total: Tensor, part: Tensor, weight: float, bits: int) -> None:
    """total += weight * part in multiples of 2 ** -bits, in pieces that stay in the cache."""
    part, scale = part.to(total.device), math.ldexp(weight, bits)
    for mine, theirs in zip(total.split(CHUNK), part.split(CHUNK)):
        mine.add_(theirs.to(torch.float64, copy=True).mul_(scale).round_().long())
