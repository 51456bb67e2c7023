"""Trimmed mean and median: averages of clients' weights, number by number, that a few wild clients cannot move far.

Yin, Chen, Kannan, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (2018). Every client counts the
same, whatever its samples. Each number is sorted over the clients that brought its unit; sorting needs all values at once, so that all
updates of a round are kept until its end, where a sum needs one. What comes out does not depend on the order of clients.
"""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from hsfl.models.state import UnitState
from hsfl.training.aggregate import device_of_doubles

CHUNK = 1 << 16  # numbers of each client that are sorted at once
MEAN, TRIMMED_MEAN, MEDIAN = "mean", "trimmed_mean", "median"


def num_trimmed(num_clients: int, rule: str, trim: float) -> int:
    """How many values are left out at either end: all but the one or two in the middle for a median."""
    return (num_clients - 1) // 2 if rule == MEDIAN else int(num_clients * trim)


def write_average(after: UnitState, updates: Sequence[UnitState], rule: str, trim: float) -> None:
    """Put the trimmed mean or median of the updates into the units of `after`; units that nobody brought stay as they are."""
    units = range(after.start, after.stop)
    for holders, stretch in groupby(units, key=lambda unit: _holders(updates, unit)):
        numbers = list(stretch)
        if holders:
            place = slice(numbers[0], numbers[-1] + 1)
            states = [updates[client][place] for client in holders]
            num_out, averaged = num_trimmed(len(states), rule, trim), after[place]
            _write_middle(averaged.floats, [state.floats for state in states], num_out)
            _write_middle(averaged.ints, [state.ints for state in states], num_out)


def _holders(updates: Sequence[UnitState], unit: int) -> tuple[int, ...]:
    """Which of the updates have the unit."""
    return tuple(place for place, state in enumerate(updates) if state.start <= unit < state.stop)


def _write_middle(after: Tensor, vectors: Sequence[Tensor], num_out: int) -> None:
    """The mean of each number's values without `num_out` at either end, rounded where the numbers are whole."""
    for begin in range(0, len(after), CHUNK):
        place = slice(begin, min(begin + CHUNK, len(after)))
        values = torch.stack([vector[place] for vector in vectors]).sort(dim=0).values
        middle = values[num_out : len(vectors) - num_out]
        total = torch.zeros(values.shape[1], dtype=torch.float64, device=device_of_doubles(after))
        for row in middle:  # one by one: a sum over a dimension may add in another order elsewhere
            total += row.to(total.device, torch.float64)
        mean = total / len(middle)
        after[place] = (mean if after.is_floating_point() else mean.round()).to(after.device, after.dtype)
