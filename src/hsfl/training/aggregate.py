"""Aggregation is partial sums per unit, and the sums do not depend on the order in which clients are counted.

Each server sums, weighted by samples, the states of the units it holds over the clients that were kept. The servers
exchange the sums of the units that both hold and divide: with different cuts this is FedAvg of the joined models.

Floating-point sums change with their order, and so would a model trained by several workers. Here each product of
weight and value is rounded once, to the grid of its unit, and counted in whole multiples of the grid as a 64-bit
integer: integer sums are exact. The grid is a power of two that follows from the model at the start of the round, so
all workers and servers have the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hsfl.errors import InputError
from hsfl.models.state import UnitState

CHUNK = 1 << 18  # numbers that are added at once; whole vectors take four to seven times as long
GROWTH_BITS = 12  # a round may multiply a unit's largest number by 2 to this power
SUM_BITS = 62  # of a sum; an int64 holds 63 and a sign
WEIGHT_BITS = 20  # weights are multiples of 2 ** -20, so that their sums are exact, too
COUNTED = 2**53  # up to here a sum of integers (BatchNorm's counters) is divided exactly
ROUNDER = 1.5 * 2.0**52  # a double near it counts in ones: what is added is rounded, and lies in the lowest bits
ROUNDER_BITS = np.float64(ROUNDER).view(np.int64)
NEAR = 0.99 * 2.0**51  # how far from ROUNDER that holds


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
    def zero(
        cls, before: UnitState, most_weight: float, *after: UnitState, memory: UnitState | None = None
    ) -> "PartialSum":
        """An empty sum for clients that start from `before` and weigh at most `most_weight` together.

        after: states of the units that follow, where they lie in memory of their own. memory: what `sum_memory` gave, to be
        used again; by default the sum gets memory of its own.
        """
        stop = after[-1].stop if after else before.stop
        if memory is None:
            total = sum_memory(before, before.start, stop)
        else:
            total = memory[before.start : stop]
            total.floats.zero_()
            total.ints.zero_()
        largest = tuple(most for state in (before, *after) for most in most_after(state))
        bits = tuple(SUM_BITS - math.ceil(math.log2(most * max(most_weight, 1.0))) for most in largest)
        return cls(total, torch.zeros(stop - before.start, dtype=torch.float64), bits, largest)

    def __getitem__(self, units: slice) -> "PartialSum":
        first = self.total.start
        if (units.start, units.stop) == (first, self.total.stop):
            return self
        mine = slice(units.start - first, units.stop - first)
        return PartialSum(self.total[units], self.weight[mine], self.bits[mine], self.largest[mine])

    def add(self, state: UnitState, weight: float) -> None:
        """Add one client's state, whose units are some of this sum's. weight: the client's number of samples."""
        mine, weight = self[state.start : state.stop], math.ldexp(round(math.ldexp(weight, WEIGHT_BITS)), -WEIGHT_BITS)
        peak = check_growth(state, mine.largest)
        starts = state.layout.float_starts
        ends = [starts[unit + 1] - starts[state.start] for unit in range(state.start, state.stop)]
        _add(mine.total.floats, state.floats, [math.ldexp(weight, bits) for bits in mine.bits], ends, peak)
        if len(state.ints):
            most_weight = (
                math.ldexp(1.0, SUM_BITS - mine.bits[0]) / mine.largest[0]
            )  # the weight of all clients of the round, or up to twice that
            _add_ints(mine.total.ints, state.ints, weight, COUNTED / most_weight)
        mine.weight.add_(weight)

    def merge(self, other: "PartialSum") -> None:
        """Add the sum of another server, or of another part of the round, over some of our units."""
        mine = self[other.total.start : other.total.stop]
        assert mine.bits == other.bits, "sums of rounds that began differently"
        mine.total.floats.add_(other.total.floats)
        mine.total.ints.add_(other.total.ints)
        mine.weight.add_(other.weight)

    def copy_(self, other: "PartialSum") -> None:
        """Take over the numbers of another sum over the same units."""
        self.total.copy_(other.total)
        self.weight.copy_(other.weight)

    def clone(self) -> "PartialSum":
        return PartialSum(self.total.clone(), self.weight.clone(), self.bits, self.largest)

    def mean(self, before: UnitState) -> UnitState:
        """The weighted mean in the type of `before`; units that nobody trained stay as they were."""
        after = before.clone()
        self.write_mean(after)
        return after

    def write_mean(self, after: UnitState) -> None:
        """Put the weighted mean into our units of `after`; units that nobody trained stay as they are."""
        units = range(self.total.start, self.total.stop)
        for unit, bits, largest, weight in zip(units, self.bits, self.largest, self.weight.tolist()):
            assert math.ldexp(weight * largest, bits) < 2.0**63, "clients weigh more than the sum was made for"
            if weight > 0:
                mine, out = self.total[unit : unit + 1], after[unit : unit + 1]
                for theirs, numbers in zip(out.floats.split(CHUNK), mine.floats.split(CHUNK)):
                    theirs.copy_(numbers.double() / math.ldexp(weight, bits))
                out.ints.copy_((mine.ints.double() / weight).round())

    @property
    def num_bytes(self) -> int:
        """The bytes of the sum on the link between the servers: 8 for each number, and 8 for the weight of each unit."""
        return self.total.num_bytes + self.weight.nbytes


def sum_memory(like: UnitState, start: int, stop: int) -> UnitState:
    """Zeros for a sum over the units `[start, stop)` of the model that `like` is a part of."""
    device = "cpu" if like.floats.device.type == "mps" else like.floats.device  # mps has no float64
    return UnitState.empty(like.layout, start, stop, torch.int64, device)


def most_after(before: UnitState) -> tuple[float, ...]:
    """The largest number that each unit may hold after a round that starts from `before`."""
    numbers = _largest(before)
    if math.inf in numbers:
        raise Diverged(
            f"a weight of unit {before.start + numbers.index(math.inf) + 1} is infinite where a round begins"
        )
    return tuple(max(1.0, number) * 2.0**GROWTH_BITS for number in numbers)


def check_growth(state: UnitState, most: Sequence[float]) -> float:
    """Refuse a state that holds NaN or a number too large for a sum, so that no sum ever overflows; returns its largest absolute
    value.

    most: the largest number that each unit of the state may hold.
    """
    if not len(state.floats):
        return 0.0
    low, high = torch.aminmax(state.floats)
    peak = max(-low.item(), high.item())
    if peak <= min(most):
        return peak  # one look at all units together; NaN is not less than anything
    for unit, largest, found in zip(range(state.start, state.stop), most, _largest(state)):
        if not found <= largest:
            grown = "is no number" if math.isnan(found) else f"has grown to {found:.3g} within a round"
            raise Diverged(f"a weight of unit {unit + 1} {grown}; lower train.lr, or normalise the data")
    return peak


def _largest(state: UnitState) -> list[float]:
    """The largest absolute value of each unit; NaN where a unit holds one."""
    units = [state[unit : unit + 1].floats for unit in range(state.start, state.stop)]
    ranges = [torch.aminmax(floats) if len(floats) else (floats.sum(), floats.sum()) for floats in units]
    return torch.stack([torch.maximum(-low, high) for low, high in ranges]).tolist() if ranges else []


def _add(total: Tensor, part: Tensor, scales: Sequence[float], ends: Sequence[int], peak: float) -> None:
    """total += part times the scale of its unit, rounded, in pieces that stay in the cache. ends: where each unit ends. peak: the
    largest absolute value of the part."""
    stretches, part = _stretches(scales, ends), part.detach()
    near = total.device.type == "cpu" and peak * max(scales, default=0.0) < NEAR
    for begin in range(0, len(total), CHUNK):
        end = min(begin + CHUNK, len(total))
        wide = part[begin:end].to(total.device, torch.float64, copy=True)
        for first, last, scale in stretches:
            if max(first, begin) < min(last, end):
                wide[max(first - begin, 0) : last - begin].mul_(scale)
        if near:
            _count(total[begin:end], wide)
        else:
            total[begin:end].add_(wide.round_().long())


def _count(total: Tensor, wide: Tensor) -> None:
    """total += wide, rounded, for numbers up to NEAR: twice as fast as torch's rounding, conversion and sum, to the same bits."""
    whole, mine = wide.add_(ROUNDER).numpy().view(np.int64), total.numpy()
    whole -= ROUNDER_BITS
    mine += whole


def _stretches(scales: Sequence[float], ends: Sequence[int]) -> list[tuple[int, int, float]]:
    """(begin, end, scale) of neighbouring units that have one scale, as most have."""
    found: list[tuple[int, int, float]] = []
    for first, last, scale in zip([0, *ends], ends, scales):
        if found and found[-1][2] == scale:
            first = found.pop()[0]
        found.append((first, last, scale))
    return found


def _add_ints(total: Tensor, part: Tensor, weight: float, most: float) -> None:
    """total += weight times part, rounded. most: the largest integer whose sum over the round is still divided exactly."""
    largest = max(abs(int(end)) for end in torch.aminmax(part))
    if largest > most:
        raise InputError(
            f"the model has integers of up to {largest:,}, which cannot be averaged to the digit; register a buffer that need not "
            "travel with persistent=False"
        )
    part = part.to(total.device)
    if weight.is_integer():
        total.add_(part, alpha=int(weight))
    else:
        total.add_((part.double() * weight).round_().long())
