"""A trace under a fleet's clock: how far a column comes within a budget of simulated seconds, and when it reaches a target.

With nobody dropped and a constant learning rate, what is learned after a round does not depend on how long the round took.
So one training serves every fleet, and only the seconds differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hsfl.experiments.traces import Trace

Array = np.ndarray


@dataclass(frozen=True)
class Reached:
    """Where a column stands when the budget is spent."""

    rounds: int  # made within the budget
    short: bool  # the trace ends before the budget: the column could have gone on
    value: (
        float | None
    )  # of the quantity after the last of these rounds that was tested; None where no tested round fits


def ends_s(round_s: Sequence[float], num_rounds: int) -> Array:
    """When each of the first rounds ends, [num_rounds]."""
    return np.cumsum(np.asarray(round_s, float)[:num_rounds])


def at_budget(trace: Trace, round_s: Sequence[float], budget_s: float, quantity: str = "test_accuracy") -> Reached:
    """The last round that ends within the budget (up to rounding), and the quantity after that round, or after the last round
    before it that was tested."""
    ends = ends_s(round_s, len(trace.rounds))
    rounds = int(np.searchsorted(ends, budget_s * (1 + 1e-9), side="right"))
    tested = [value for value in trace.values(quantity)[:rounds] if value is not None]
    value = tested[-1] if tested else None
    whole = rounds == len(ends)
    return Reached(rounds, whole and ends[-1] + round_s[min(rounds, len(round_s) - 1)] <= budget_s, value)


def time_to_s(trace: Trace, round_s: Sequence[float], target: float, quantity: str = "test_accuracy") -> float | None:
    """Seconds to the end of the first round whose value is at least the target; None if the trace never gets there."""
    ends = ends_s(round_s, len(trace.rounds))
    for end_s, value in zip(ends, trace.values(quantity)):
        if value is not None and value >= target:
            return float(end_s)
    return None


def budget_s(published_s: Sequence[float], num_rounds: int) -> float:
    """What SplitFed V1 as published needs for so many rounds on the fleet."""
    return float(np.sum(np.asarray(published_s, float)[:num_rounds]))
