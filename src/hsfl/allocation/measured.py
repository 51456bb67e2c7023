"""Links whose rates are given: only the main server's cycles and the cuts can be chosen. One round, solved exactly.

Legend: K clients, C cuts, and leading axes of any kind (samples, candidates). As rates are fixed, client k with cut l needs
own[k, l] seconds without the server, work[k, l] cycles of the server, and down[k, l] seconds to receive its model.

Where cuts are given, T is least when sum_k work / (T - own) = main_hz. The reciprocal of that sum is concave in T (a harmonic
mean of linear functions), so Newton's method on it from the left never passes the root.
Where cuts are free and no download may take more than M seconds, each client takes the cut that needs the fewest cycles per
second at T. These cuts have a least T of their own, which is not longer. Where they no longer save anything, T is optimal,
since the least need falls in T. M is one of the K C values of down; training only shrinks as M grows, which excludes most
of these values.
"""

from dataclasses import dataclass
from itertools import count

import numpy as np

from hsfl.allocation.answer import with_gap
from hsfl.errors import InputError

Array = np.ndarray
STEPS = 100  # of Newton's method; ten are enough
HALVINGS = 12  # of the interval for T, before passes that must each shorten T
ROUNDING = 1e-13  # a sum of cycles this near to the budget meets it
INSIDE = 1.0 - 4e-16  # a sum of rounded parts must not pass the budget


@dataclass(frozen=True)
class MeasuredAnswer:
    """Cuts and cycles of one round, and a lower bound over all cuts; the bound is `round_s` where no gap was allowed."""

    cuts: Array  # [K]
    server_hz: Array  # [K]
    round_s: float
    lower_bound_s: float


def least_training(own_s: Array, work_cycles: Array, main_hz: float) -> Array:
    """The least training time in seconds, min over cycles of max_k own + work / hz, [..., K] -> [...]; rounded down."""
    return _newton(own_s, work_cycles, main_hz)[0]


def optimal_cycles(own_s: Array, work_cycles: Array, main_hz: float) -> Array:
    """The cycles per second [K] with which all clients that need the server end together, at the least T."""
    hz = _newton(own_s, work_cycles, main_hz)[1]
    return hz * (main_hz / hz.sum() * INSIDE) if hz.any() else hz


def _newton(own_s: Array, work_cycles: Array, main_hz: float) -> tuple[Array, Array]:
    """The least T [...] and the cycles per second that T takes [..., K], from differences that keep their digits."""
    alone_s = work_cycles / main_hz
    first_s = (own_s + alone_s).max(axis=-1, initial=0.0)
    left_s = np.maximum(first_s[..., None] - own_s, alone_s)  # own + alone may round down to own
    left_s = np.where(work_cycles > 0, left_s, 1.0)
    later_s, need_hz = np.zeros(first_s.shape), work_cycles / left_s
    for _ in range(STEPS):
        total_hz = need_hz.sum(axis=-1)
        excess = np.maximum(total_hz / main_hz - 1.0, 0.0)
        if not (excess > ROUNDING).any():
            break
        slope = (need_hz / (left_s + later_s[..., None])).sum(axis=-1)
        later_s = later_s + excess * total_hz / np.where(slope > 0, slope, 1.0)
        need_hz = work_cycles / (left_s + later_s[..., None])
    return first_s + later_s, need_hz


def keep_within(
    own_s: Array, work_cycles: Array, num_samples: Array, main_hz: float, tau_s: float, even: bool
) -> Array:
    """Which clients take part where not all can end training by tau_s, [K] bool.

    The price of a client is what it needs at tau_s in cycles per second. Clients are added, the cheapest price per sample
    first, while all that are kept end in time; a client that no longer fits is passed over. num_samples [K]: data samples
    of a round. even: the server's cycles are divided evenly among the kept clients.
    """
    left_s = tau_s - own_s
    price_hz = np.divide(work_cycles, left_s, out=np.full(len(own_s), np.inf), where=left_s > 0)
    price_hz[(work_cycles == 0) & (left_s >= 0)] = 0.0
    kept = np.zeros(len(own_s), bool)
    for k in np.argsort(price_hz / num_samples, kind="stable"):
        if np.isfinite(price_hz[k]):
            kept[k] = True
            needed_hz = price_hz[kept].max() * kept.sum() if even else price_hz[kept].sum()
            kept[k] = needed_hz <= main_hz
    return kept


def best_round(
    own_s: Array, work_cycles: Array, down_s: Array, feasible: Array, main_hz: float, gap: float = 0.0
) -> MeasuredAnswer:
    """Cuts and cycles that minimise max_k (own + work / hz) + max_k down, to a relative gap; all arrays are [K, C].

    feasible: whether a client can take a cut. main_hz: the server's cycles per second.
    """
    has_cut = np.asarray(feasible.any(axis=1))
    if not has_cut.all():
        raise InputError(f"client {int(has_cut.argmin())} has no feasible cut; give it more storage, or leave it out")
    rows = np.arange(len(own_s))
    least_s = np.where(feasible, down_s, np.inf).min(axis=1).max()  # everyone must receive some model
    limits = np.unique(down_s[feasible & (down_s >= least_s)])
    best_s, best_cuts, bound_s = np.inf, np.zeros(len(rows), int), np.inf

    def training(index: int) -> float:
        """The least training time if downloads take up to limits[index]; remembers the best round."""
        nonlocal best_s, best_cuts
        cuts, training_s = _free_cuts(own_s, work_cycles, feasible & (down_s <= limits[index]), main_hz)
        round_s = training_s + float(down_s[rows, cuts].max())
        if round_s < best_s:
            best_s, best_cuts = round_s, cuts
        return training_s

    last = len(limits) - 1
    stretches = [(0, last, training(last))]  # (from, to, least training) of limits not yet excluded
    while stretches:
        start, end, least_training_s = stretches.pop()
        if start >= end:
            continue
        stretch_bound_s = float(limits[start]) + least_training_s
        if stretch_bound_s >= best_s * (1.0 - gap):
            bound_s = min(bound_s, stretch_bound_s)
            continue
        middle = (start + end - 1) // 2
        middle_s = training(middle)
        stretches += [(start, middle, middle_s), (middle + 1, end, least_training_s)]
    own, work = own_s[rows, best_cuts], work_cycles[rows, best_cuts]
    hz = optimal_cycles(own, work, main_hz)
    server_s = np.divide(work, hz, out=np.zeros(len(rows)), where=work > 0)
    round_s = float((own + server_s).max() + down_s[rows, best_cuts].max())
    return MeasuredAnswer(best_cuts, hz, round_s, with_gap(min(bound_s, best_s), round_s)[0])


def _free_cuts(own_s: Array, work_cycles: Array, feasible: Array, main_hz: float) -> tuple[Array, float]:
    """The cuts with the least training time, and that time: first by halvings, then by passes that each shorten it."""
    rows = np.arange(len(own_s))
    own_s = np.where(feasible, own_s, np.inf)
    low_s = float(own_s.min(axis=1).max())  # if the server had endless speed
    cuts = (own_s + work_cycles * len(rows) / main_hz).argmin(axis=1)
    training_s = float(least_training(own_s[rows, cuts], work_cycles[rows, cuts], main_hz))
    for step in count():
        trial_s = 0.5 * (low_s + training_s) if step < HALVINGS else training_s
        left_s = trial_s - own_s
        need_hz = np.divide(work_cycles, left_s, out=np.full(own_s.shape, np.inf), where=left_s > 0)
        cheapest = need_hz.argmin(axis=1)
        if need_hz[rows, cheapest].sum() <= main_hz:
            shorter_s = float(least_training(own_s[rows, cheapest], work_cycles[rows, cheapest], main_hz))
            if shorter_s < training_s:
                cuts, training_s = cheapest, shorter_s
                continue
        if step >= HALVINGS:
            break
        low_s = trial_s
    return cuts, training_s
