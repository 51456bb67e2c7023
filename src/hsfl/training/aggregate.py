"""Aggregation is partial sums per unit, and the sums do not depend on the order in which clients are counted.

Each server sums, weighted by samples, the states of the units it holds over the clients that were kept. The servers
exchange the sums of the units that both hold and divide: with different cuts this is FedAvg of the joined models.

Floating-point sums change with their order, and so would a model trained by several workers. Here each product of
weight and value is rounded once, to the grid of its unit, and counted in whole multiples of the grid as a 64-bit
integer: integer sums are exact. The grid is a power of two that follows from the model at the start of the round, so
all workers and servers have the same.

Integer buffers (BatchNorm's counters) are rounded twice: `_add_rounded_integer_buffers` rounds weight times value where the weight is a
fraction, and `_write_rounded_integer_mean` rounds the mean to whole numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hsfl.errors import InputError
from hsfl.models.state import UnitState

CHUNK = 1 << 18  # numbers that are added at once; adding whole vectors takes four to seven times as long
GROWTH_BITS = 12  # a round may multiply a unit's largest number by 2 to this power
SUM_BITS = 62  # of a sum; an int64 holds 63 and a sign
WEIGHT_BITS = 20  # weights are multiples of 2 ** -20, so that their sums are exact, too
EXACT_INTEGERS = 2**53  # up to here a sum of integers (BatchNorm's counters) is divided exactly
ROUNDER = 1.5 * 2.0**52  # doubles near it are whole numbers: what is added to it is rounded, into its lowest bits
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
        """An empty sum for clients that start from the state `before` and together weigh at most `most_weight`.

        after: states of the units that follow, where these are separate in memory. memory: what `sum_memory` gave, to be
        used again; by default the sum gets new memory.
        """
        stop = after[-1].stop if after else before.stop
        if memory is None:
            total = sum_memory(before, before.start, stop)
        else:
            total = memory[before.start : stop]
            total.floats.zero_()
            total.ints.zero_()
        largest = tuple(number for state in (before, *after) for number in largest_allowed(state))
        bits = tuple(SUM_BITS - math.ceil(math.log2(number * max(most_weight, 1.0))) for number in largest)
        return cls(total, torch.zeros(stop - before.start, dtype=torch.float64), bits, largest)

    def __getitem__(self, units: slice) -> "PartialSum":
        first = self.total.start
        if (units.start, units.stop) == (first, self.total.stop):
            return self
        positions = slice(units.start - first, units.stop - first)
        return PartialSum(self.total[units], self.weight[positions], self.bits[positions], self.largest[positions])

    def add(self, state: UnitState, weight: float) -> None:
        """Add one client's state, whose units are some of this sum's. weight: the client's number of samples."""
        section = self[state.start : state.stop]
        weight = math.ldexp(round(math.ldexp(weight, WEIGHT_BITS)), -WEIGHT_BITS)
        peak = check_growth(state, section.largest)
        starts = state.layout.float_starts
        ends = [starts[unit + 1] - starts[state.start] for unit in range(state.start, state.stop)]
        scales = [math.ldexp(weight, bits) for bits in section.bits]
        _add_rounded_floats(section.total.floats, state.floats, scales, ends, peak)
        if len(state.ints):
            # The weight of all clients of the round, or up to twice that.
            most_weight = math.ldexp(1.0, SUM_BITS - section.bits[0]) / section.largest[0]
            _add_rounded_integer_buffers(section.total.ints, state.ints, weight, EXACT_INTEGERS / most_weight)
        section.weight.add_(weight)

    def merge(self, other: "PartialSum") -> None:
        """Add the sum of another server, or of another part of the round, over some of our units."""
        section = self[other.total.start : other.total.stop]
        assert section.bits == other.bits, "sums of rounds that began differently"
        section.total.floats.add_(other.total.floats)
        section.total.ints.add_(other.total.ints)
        section.weight.add_(other.weight)

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
                unit_sum, unit_mean = self.total[unit : unit + 1], after[unit : unit + 1]
                for chunk, numbers in zip(unit_mean.floats.split(CHUNK), unit_sum.floats.split(CHUNK)):
                    chunk.copy_(numbers.double() / math.ldexp(weight, bits))
                _write_rounded_integer_mean(unit_mean.ints, unit_sum.ints, weight)

    @property
    def num_bytes(self) -> int:
        """The bytes of the sum on the link between the servers: 8 for each number, and 8 for the weight of each unit."""
        return self.total.num_bytes + self.weight.nbytes


def sum_memory(like: UnitState, start: int, stop: int) -> UnitState:
    """Zeros for a sum over the units `[start, stop)` of the model that `like` is a part of."""
    return UnitState.empty(like.layout, start, stop, torch.int64, device_of_doubles(like.floats))


def device_of_doubles(tensor: Tensor) -> torch.device:
    """Where float64 numbers are computed that belong to a tensor: on the tensor's device, unless the device has none (mps)."""
    return torch.device("cpu") if tensor.device.type == "mps" else tensor.device


def largest_allowed(before: UnitState) -> tuple[float, ...]:
    """The largest number that each unit may hold after a round that starts from `before`."""
    numbers = _largest(before)
    if math.inf in numbers:
        raise Diverged(
            f"a weight of unit {before.start + numbers.index(math.inf) + 1} is infinite where a round begins"
        )
    return tuple(max(1.0, number) * 2.0**GROWTH_BITS for number in numbers)


def check_growth(state: UnitState, bounds: Sequence[float]) -> float:
    """Refuse a state that holds NaN or a number too large for a sum, so that no sum ever overflows; returns its largest absolute
    value.

    bounds: the largest number that each unit of the state may hold.
    """
    if not len(state.floats):
        return 0.0
    low, high = torch.aminmax(state.floats)
    peak = max(-low.item(), high.item())
    if peak <= min(bounds):
        return peak  # one look at all units together; NaN is not less than anything
    for unit, bound, largest in zip(range(state.start, state.stop), bounds, _largest(state)):
        if not largest <= bound:
            growth_note = "is no number" if math.isnan(largest) else f"has grown to {largest:.3g} within a round"
            raise Diverged(f"a weight of unit {unit + 1} {growth_note}; lower train.lr, or normalise the data")
    return peak


def _largest(state: UnitState) -> list[float]:
    """The largest absolute value of each unit; NaN where a unit holds one."""
    units = [state[unit : unit + 1].floats for unit in range(state.start, state.stop)]
    ranges = [torch.aminmax(floats) if len(floats) else (floats.sum(), floats.sum()) for floats in units]
    return torch.stack([torch.maximum(-low, high) for low, high in ranges]).tolist() if ranges else []


def _add_rounded_floats(
    total: Tensor, numbers: Tensor, scales: Sequence[float], ends: Sequence[int], peak: float
) -> None:
    """total += numbers times the scale of their unit, rounded, in chunks that stay in the cache. ends: where each unit ends. peak: the
    largest absolute value of the numbers."""
    stretches, numbers = _stretches(scales, ends), numbers.detach()
    near = total.device.type == "cpu" and peak * max(scales, default=0.0) < NEAR
    for begin in range(0, len(total), CHUNK):
        end = min(begin + CHUNK, len(total))
        wide = numbers[begin:end].to(total.device, torch.float64, copy=True)
        for first, last, scale in stretches:
            if max(first, begin) < min(last, end):
                wide[max(first - begin, 0) : last - begin].mul_(scale)
        if near:
            _add_rounded_floats_fast(total[begin:end], wide)
        else:
            total[begin:end].add_(wide.round_().long())


def _add_rounded_floats_fast(total: Tensor, wide: Tensor) -> None:
    """total += wide, rounded, for numbers up to NEAR: twice as fast as torch's rounding, conversion and sum, to the same bits."""
    whole, sums = wide.add_(ROUNDER).numpy().view(np.int64), total.numpy()
    whole -= ROUNDER_BITS
    sums += whole


def _stretches(scales: Sequence[float], ends: Sequence[int]) -> list[tuple[int, int, float]]:
    """(begin, end, scale) of neighbouring units that have one scale, as most have."""
    stretches: list[tuple[int, int, float]] = []
    for first, last, scale in zip([0, *ends], ends, scales):
        if stretches and stretches[-1][2] == scale:
            first = stretches.pop()[0]
        stretches.append((first, last, scale))
    return stretches


def _add_rounded_integer_buffers(total: Tensor, integers: Tensor, weight: float, bound: float) -> None:
    """total += weight times integers, rounded. bound: the largest integer whose sum over the round is still divided exactly."""
    largest = max(abs(int(end)) for end in torch.aminmax(integers))
    if largest > bound:
        raise InputError(
            f"the model has integers of up to {largest:,}, which cannot be averaged to the digit; register a buffer that need not "
            "travel with persistent=False"
        )
    integers = integers.to(total.device)
    if weight.is_integer():
        total.add_(integers, alpha=int(weight))
    else:
        total.add_((integers.double() * weight).round_().long())


def _write_rounded_integer_mean(mean: Tensor, total: Tensor, weight: float) -> None:
    """mean = total / weight, rounded to whole numbers."""
    mean.copy_((total.double() / weight).round())
