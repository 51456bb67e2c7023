"""Links whose rates are given: only the main server's cycles and the cuts are to choose, and both are solved exactly.

Legend: K clients, C cuts. With rates fixed, client k at cut l needs own[k, l] seconds apart from the server, work[k, l]
cycles of it, and down[k, l] seconds to receive its model. For a bound T on training and M on distribution, client k
takes the cut with down <= M that needs the fewest cycles per second, work / (T - own); T is feasible when these sum to
at most main_hz. The sum falls in T, so bisection finds the least T for each M, and M is one of the K C values of down.
"""

from dataclasses import dataclass

import numpy as np

from hsfl.errors import InputError

Array = np.ndarray
STEPS = 200  # of bisection: to the last bit


@dataclass(frozen=True)
class MeasuredPlan:
    """The optimal cuts and cycles; `round_s` is the optimum to rounding."""

    cuts: Array  # [K]
    server_hz: Array  # [K]
    round_s: float


def best_plan(own_s: Array, work_cycles: Array, down_s: Array, feasible: Array, main_hz: float) -> MeasuredPlan:
    """Cuts and cycles that minimise max_k (own + work / hz) + max_k down, all arrays [K, C]."""
    has_cut = np.asarray(feasible.any(axis=1))
    if not has_cut.all():
        raise InputError(f"client {int(has_cut.argmin())} has no feasible cut; give it more storage, or leave it out")
    best: MeasuredPlan | None = None
    least_s = np.where(feasible, down_s, np.inf).min(axis=1).max()  # everyone must receive some model
    for limit_s in np.unique(down_s[feasible]):
        if limit_s < least_s or (best is not None and limit_s >= best.round_s):
            continue
        plan = _given_limit(own_s, work_cycles, down_s, feasible & (down_s <= limit_s), main_hz)
        if best is None or plan.round_s < best.round_s:
            best = plan
    assert best is not None
    return best


def _given_limit(own_s: Array, work: Array, down_s: Array, feasible: Array, main_hz: float) -> MeasuredPlan:
    def need(training_s: float) -> tuple[Array, Array]:
        """Cycles per second that each client needs at least, and the cut that needs them."""
        left = training_s - own_s
        with np.errstate(divide="ignore", invalid="ignore"):
            hz = np.where(work > 0, np.where(left > 0, work / left, np.inf), np.where(left >= 0, 0.0, np.inf))
        hz = np.where(feasible, hz, np.inf)
        cuts = hz.argmin(axis=1)
        return hz[np.arange(len(hz)), cuts], cuts

    low = float(np.where(feasible, own_s, np.inf).min(axis=1).max())  # with a server of endless speed
    high = float(np.where(feasible, own_s + work * len(own_s) / main_hz, np.inf).min(axis=1).max())  # with even shares
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (low, middle) if need(middle)[0].sum() <= main_hz else (middle, high)
    hz, cuts = need(high)
    rows = np.arange(len(cuts))
    with np.errstate(divide="ignore", invalid="ignore"):
        server_s = np.where(work[rows, cuts] > 0, work[rows, cuts] / hz, 0.0)
    return MeasuredPlan(cuts, hz, float((own_s[rows, cuts] + server_s).max() + down_s[rows, cuts].max()))
