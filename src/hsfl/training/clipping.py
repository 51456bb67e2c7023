"""Clipping: an update that is longer than `train.clip_norm` is scaled down to it before it is summed.

A client's update is what it trained minus what it was sent. Its length is the L2 norm over the parameters of head and tail, wherever
the cut is; buffers (BatchNorm's) count nothing in it and stay as the client brings them. With clip norm C and length |u|, what is
summed is sent + min(1, C / |u|) * u.

The length is the same to the bit at every cut and on every server. Squares of a unit are summed in float64 in a fixed order; each
unit's sum is then rounded to whole multiples of C**2 * 2**-48, and whole numbers add up exactly in any order. So of the two servers
of a client each needs the other's sum alone, one whole number. That rounding changes the factor by less than 2**-49 for each unit.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hsfl.models.state import Layout, UnitState
from hsfl.models.units import SplitModel
from hsfl.training.aggregate import Diverged, device_of_doubles

GRID_BITS = 48
WHOLE = 1 << GRID_BITS  # the squared norm of an update that is exactly as long as it may be
CHUNK = 1 << 16  # numbers that are looked at at once

Stretches = tuple[tuple[tuple[int, int], ...], ...]  # for each unit, where in its floats its parameters begin and end


def parameter_stretches(model: SplitModel, layout: Layout) -> Stretches:
    """Where the parameters lie in the floats of each unit; the rest are buffers."""
    stretches = []
    for unit, prefix, slots in zip(model.units, model.prefixes, layout.units):
        names = {prefix + name for name, _ in unit.named_parameters(remove_duplicate=False)}
        places, begin = list[tuple[int, int]](), 0
        for slot in slots:
            if not slot.is_float:
                continue
            end = begin + slot.shape.numel()
            if slot.name in names and places and places[-1][1] == begin:
                places[-1] = (places[-1][0], end)
            elif slot.name in names:
                places.append((begin, end))
            begin = end
        stretches.append(tuple(places))
    return tuple(stretches)


def parameter_pairs(stretches: Stretches, sent: UnitState, trained: UnitState) -> Iterator[tuple[Tensor, Tensor]]:
    """The parameters of both states, unit by unit, in pieces of at most CHUNK numbers: views."""
    assert (sent.start, sent.stop) == (trained.start, trained.stop)
    for unit in range(sent.start, sent.stop):
        before, after = sent[unit : unit + 1].floats, trained[unit : unit + 1].floats
        for first, last in stretches[unit]:
            for begin in range(first, last, CHUNK):
                end = min(begin + CHUNK, last)
                yield before[begin:end], after[begin:end]


@dataclass(frozen=True)
class Clip:
    """How long an update may be, and which numbers of a unit are its parameters."""

    norm: float
    stretches: Stretches

    def squared_norm(self, sent: UnitState, trained: UnitState) -> int:
        """The squared length of these units' update, in multiples of `norm**2 * 2**-GRID_BITS`: of a head, a tail or both."""
        return sum(self._unit_norm(sent[unit : unit + 1], trained[unit : unit + 1]) for unit in _units(sent))

    def _unit_norm(self, sent: UnitState, trained: UnitState) -> int:
        squares = (_sum_of_squares(*pair) for pair in parameter_pairs(self.stretches, sent, trained))
        total = math.fsum(squares) / self.norm / self.norm
        if not math.isfinite(total):
            raise Diverged(f"a weight of unit {sent.start + 1} is no number; lower train.lr, or normalise the data")
        return round(math.ldexp(total, GRID_BITS))

    def factor(self, squared_norm: int) -> float:
        """What an update of this squared length is multiplied with; 1.0 where it is short enough."""
        return 1.0 if squared_norm <= WHOLE else math.sqrt(WHOLE / squared_norm)

    def scale(self, sent: UnitState, trained: UnitState, factor: float) -> None:
        """Put sent + factor * (trained - sent) into the parameters of `trained`. Every number is rounded by itself, so that it does not
        matter where a state lies in memory or is cut."""
        if factor != 1.0:
            scale_update(self.stretches, sent, trained, factor)

    def scaled(self, sent: UnitState, trained: UnitState, factor: float) -> UnitState:
        """As `scale`, but `trained` stays as it is."""
        if factor == 1.0:
            return trained
        copy = trained.clone()
        self.scale(sent, copy, factor)
        return copy


def clip_of(clip_norm: float | None, model: SplitModel, layout: Layout) -> Clip | None:
    """The clip of a run; None where updates are not clipped."""
    return None if clip_norm is None else Clip(clip_norm, parameter_stretches(model, layout))


def scale_update(stretches: Stretches, sent: UnitState, trained: UnitState, factor: float) -> None:
    """Multiply the update of the parameters by a factor; `trained` is changed."""
    for before, after in parameter_pairs(stretches, sent, trained):
        device = device_of_doubles(before)
        wide = before.to(device).double()
        after.copy_((after.to(device).double() - wide).mul_(factor).add_(wide))


def update_size(stretches: Stretches, sent: UnitState, trained: UnitState) -> float:
    """The root mean square of the parameters' update; 0 where there are no parameters."""
    pairs = list(parameter_pairs(stretches, sent, trained))
    count = sum(len(before) for before, _ in pairs)
    return math.sqrt(math.fsum(_sum_of_squares(*pair) for pair in pairs) / count) if count else 0.0


def _units(state: UnitState) -> range:
    return range(state.start, state.stop)


def _sum_of_squares(before: Tensor, after: Tensor) -> float:
    """The sum of squared differences, in an order that follows from their number alone: numpy adds pairs of neighbours, in one thread."""
    difference = (after.detach().to("cpu", torch.float64) - before.detach().to("cpu", torch.float64)).numpy()
    return float(np.add.reduce(np.square(difference)))
