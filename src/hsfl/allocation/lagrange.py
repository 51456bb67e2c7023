"""A bound for many subchannels: each subchannel gets a price, and every client buys the set that is best for it alone.

Legend: K clients, I subchannels. At a deadline T and a price rho of a watt, for any subchannel prices pi >= 0

    sum_k min over S of [phi_k(S) + pi(S)] - sum_i pi_i  <=  the least sum of prices over all assignments,

so a value above 1 proves that no assignment keeps T. `buying` finds the inner minimum for one client.
"""

import math

import numpy as np

from hsfl.allocation.buying import buy, workspace
from hsfl.allocation.compiled import compiled
from hsfl.allocation.curve import CURVE_ROWS, fill_curve, respond
from hsfl.allocation.frequency import uplink_s
from hsfl.allocation.stage import Stage
from hsfl.allocation.tangent import ROUNDING

Array = np.ndarray
PROVEN = 1.0 + 1e-9  # a value above this ends an ascent
AIM = 1.0 + 1e-3  # Polyak's steps are as long as if this were the largest value
STALE = 12  # steps without progress, after which steps become shorter
SHORTEST = 0.02  # of Polyak's step


@compiled
def dual_value(
    stage: Stage,
    group: Array,
    pi: Array,
    T: float,
    rho: float,
    lam: float,
    limit: int,
    sets: Array,
    picks: Array,
    chosen: Array,
    allowed: Array,
) -> float:
    """The left side of the bound; above 1, no assignment keeps T.

    Rows group[k] to group[k + 1] of the stage are the options of client k (see `oracles`). The row that each client takes is
    written into picks [K], the set that it buys into chosen [K, I]. sets [rows, limit + 1, I] as in `buy`; allowed [K, I].
    """
    K, subs = chosen.shape
    work = workspace(subs)
    buying = np.empty(subs)
    total = 0.0
    for k in range(K):
        least = math.inf
        for row in range(group[k], group[k + 1]):
            value = buy(stage, row, pi, T, rho, lam, limit, sets[row], buying, work, allowed[k])
            if value < least:
                least = value
                picks[k] = row
                chosen[k] = buying
        total += least
        if least == math.inf:
            return math.inf
    return total * (1.0 - ROUNDING) - pi.sum()


@compiled
def excess(stage: Stage, picks: Array, chosen: Array, T: float, rho: float) -> float:
    """The slope of the bound in lam: sum q / power - sum f / hz of the sets chosen [K, I] by the rows picks [K]."""
    K, subs = chosen.shape
    b = stage.subchannel_hz / math.log(2.0)
    curve, spare = np.empty((CURVE_ROWS, subs)), np.empty((CURVE_ROWS, subs))
    F, Q = 0.0, 0.0
    for k in range(K):
        row = picks[k]
        if stage.cycles[row] == 0.0 and stage.down_bits[row] == 0.0:
            continue
        count = fill_curve(curve, stage.order[row], stage.start_w[row], stage.log_start[row], chosen[k])
        c = uplink_s(stage, row, curve, count, spare, chosen[k], b)
        f, q, _, _ = respond(curve, count, T - c, stage.cycles[row], stage.down_bits[row], b, rho)
        if math.isfinite(f) and math.isfinite(q):
            F += f / stage.hz
            Q += q / stage.power_w
    return Q - F


@compiled
def _follow(slope: Array, pull: float, length: float, metric: float, pi: Array, lam: float) -> float:
    """One step of this length along the slope of pi [I], in place, and along the pull on lam; returns the new lam."""
    for i in range(pi.shape[0]):
        pi[i] = max(0.0, pi[i] + length * slope[i])
    return min(1.0 - 1e-9, max(1e-9, lam + length * metric * pull)) if metric > 0.0 else lam


@compiled
def ascend(
    stage: Stage,
    group: Array,
    pi: Array,
    lam: float,
    T: float,
    limit: int,
    sets: Array,
    allowed: Array,
    steps: int,
    both: bool,
) -> tuple[float, float, Array]:
    """Polyak's subgradient steps from the prices pi [I] and lam towards a value of 1: (best value, its lam, its prices).

    steps: at most so many. both: whether lam moves, too, as where a client can trade cycles for power. The other
    arguments are those of `dual_value`.
    """
    K, subs = allowed.shape
    unit = stage.hz / stage.power_w
    chosen, picks = np.zeros((K, subs)), np.zeros(K, np.int64)
    best, best_lam, best_pi = -math.inf, lam, pi.copy()
    pi = pi.copy()
    relax, stale = 1.0, 0
    slope = np.empty(subs)
    metric = 0.02 if both else 0.0  # lam is of the order of 1, pi of 1 / I
    for _ in range(steps):
        rho = unit * lam / (1.0 - lam) if both else unit
        value = dual_value(stage, group, pi, T, rho, lam, limit, sets, picks, chosen, allowed)
        stale = 0 if value > best and value > best + 1e-4 * abs(1.0 - best) else stale + 1
        if value > best:
            best, best_lam = value, lam
            best_pi[:] = pi
        if value > PROVEN or value == -math.inf:
            break
        if stale >= STALE:
            relax, stale, lam = 0.6 * relax, 0, best_lam
            pi[:] = best_pi
            if relax < SHORTEST:
                break
            continue
        slope[:] = -1.0
        for k in range(K):
            slope += chosen[k]
        pull = excess(stage, picks, chosen, T, rho) if both else 0.0
        norm = (slope * slope).sum() + metric * pull * pull
        if norm < 1e-18:
            break
        lam = _follow(slope, pull, relax * (AIM - value) / norm, metric, pi, lam)
    return best, best_lam, best_pi
