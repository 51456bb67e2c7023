"""A bound for many subchannels: each subchannel gets a price, and every client buys the set that is best for it alone.

Legend: K clients, I subchannels. At a deadline T and a price rho of a watt, for any subchannel prices pi >= 0

    sum_k min over S of [phi_k(S) + pi(S)] - sum_i pi_i  <=  the least sum of prices over all partitions,

so a value above 1 proves that no assignment keeps T. The inner minimum is over 2^I sets, but phi_k has tangents, and
a set of m subchannels that holds the m smallest pi_i - g_i of its *own* tangent is the best of its size, proven.
"""

import math

import numpy as np

from hsfl.allocation.compiled import compiled
from hsfl.allocation.curve import CURVE_ROWS, fill_curve, respond
from hsfl.allocation.frequency import uplink_s
from hsfl.allocation.spectrum import sort_by
from hsfl.allocation.stage import Stage, needs_subchannel
from hsfl.allocation.tangent import ROUNDING, tangent

Array = np.ndarray


@compiled
def _take(order: Array, m: int, share: Array, allowed: Array) -> bool:
    """The first m allowed of an order become the set; returns whether it changed."""
    changed, count = False, 0
    for i in order:
        want = 0.0
        if count < m and allowed[i]:
            want = 1.0
            count += 1
        if share[i] != want:
            share[i] = want
            changed = True
    return changed


@compiled
def _reach(
    stage: Stage, k: int, m: int, share: Array, T: float, work: tuple[Array, ...], allowed: Array
) -> tuple[bool, bool]:
    """Bring `share` to a set of m with c_k < T. Returns (found, proven that none exists)."""
    curve, spare, rent, key, order = work
    proven = -math.inf
    for _ in range(12):
        c, _ = tangent(stage, k, share, 0.0, 1.0, 0.5, curve, spare, rent)
        if c < T:
            return True, False
        key[:] = -rent
        sort_by(key, order)
        bound = c
        for i in range(share.shape[0]):
            bound += share[i] * rent[i]
        changed = _take(order, m, share, allowed)
        bound *= 1.0 - ROUNDING
        for i in range(share.shape[0]):
            bound -= share[i] * rent[i]
        proven = max(proven, bound)
        if not changed or proven >= T:
            break
    return False, proven >= T


@compiled
def _best_of_size(
    stage: Stage,
    k: int,
    m: int,
    pi: Array,
    T: float,
    rho: float,
    lam: float,
    share: Array,
    work: tuple[Array, ...],
    allowed: Array,
) -> tuple[float, float, float]:
    """(lower bound, value) of min phi + pi over sets of m, from the set in `share`; and a bound for larger sets."""
    curve, spare, rent, key, order = work
    lower, value, larger = -math.inf, math.inf, -math.inf
    best = share.copy()
    for _ in range(8):
        phi, feasible = tangent(stage, k, share, T, rho, lam, curve, spare, rent)
        if not feasible:
            break
        here, base = phi, phi
        for i in range(pi.shape[0]):
            here += share[i] * pi[i]
            base += share[i] * rent[i]
            key[i] = pi[i] - rent[i]
        if here < value:
            value = here
            best[:] = share
        sort_by(key, order)
        beyond, count = base * (1.0 - ROUNDING), 0
        for i in order:
            if not allowed[i]:
                continue
            if count == m:
                lower = max(lower, beyond)
            if count <= m or key[i] < 0.0:
                beyond += key[i]
            count += 1
        if count == m:
            lower = max(lower, beyond)
        larger = max(larger, beyond)
        if not _take(order, m, share, allowed):
            break
    share[:] = best
    return min(lower, value), value, larger


@compiled
def _cheapest(pi: Array, m: int, allowed: Array) -> float:
    """The sum of the m smallest prices."""
    kept = np.empty(m)
    count = 0
    for i in range(pi.shape[0]):
        if not allowed[i]:
            continue
        at = count if count < m else m
        if at == m and pi[i] >= kept[m - 1]:
            continue
        at = min(at, m - 1)
        while at > 0 and kept[at - 1] > pi[i]:
            kept[at] = kept[at - 1]
            at -= 1
        kept[at] = pi[i]
        count += 1
    return kept.sum()


@compiled
def buy(
    stage: Stage,
    k: int,
    pi: Array,
    T: float,
    rho: float,
    lam: float,
    limit: int,
    sets: Array,
    chosen: Array,
    work: tuple[Array, ...],
    allowed: Array,
) -> float:
    """min over S of phi_k(S) + pi(S): a lower bound, and the best set found in `chosen`; sets [limit + 1, I] warm."""
    chosen[:] = 0.0
    if not needs_subchannel(stage, k):
        if stage.fixed_s[k] >= T:
            return math.inf
        return (1.0 - lam) * stage.cycles[k] / (T - stage.fixed_s[k]) / stage.hz
    only_deadline = stage.cycles[k] == 0.0 and stage.down_bits[k] == 0.0
    lower, best = math.inf, math.inf
    order = work[4]
    for m in range(1, min(limit, int(allowed.sum())) + 1):
        share = sets[m]
        if share.sum() != m or (share * (1.0 - allowed)).sum() > 0.0:
            key = work[3]
            key[:] = pi - 1e9 * sets[m - 1]
            sort_by(key, order)
            _take(order, m, share, allowed)
        found, impossible = _reach(stage, k, m, share, T, work, allowed)
        if impossible:
            continue
        if only_deadline or not found:
            floor = _cheapest(pi, m, allowed)
            if floor < lower:
                lower = floor
                chosen[:] = share
            if only_deadline:
                break
            continue
        bound, value, larger = _best_of_size(stage, k, m, pi, T, rho, lam, share, work, allowed)
        if value < best:
            best = value
            chosen[:] = share
        if bound < 0.0:  # c_k is so near T that tangents tell nothing, but a price is never below zero
            bound = _cheapest(pi, m, allowed)
        lower = min(lower, bound)
        if larger >= best:
            break
    return lower


@compiled
def workspace(subs: int) -> tuple[Array, ...]:
    return np.empty((CURVE_ROWS, subs)), np.empty((CURVE_ROWS, subs)), np.empty(subs), np.empty(subs), np.arange(subs)


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
    """The bound's left side; above 1, no assignment keeps T. Rows group[k] to group[k + 1] of the stage are the options
    of client k (its cuts, or only itself): picks [K] is the row it takes, chosen [K, I] the set it buys.
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
    """sum q / power - sum f / hz of the bought sets: the bound's slope in lam."""
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
    """Polyak's subgradient steps towards 1 at T. Returns (best value, its lam, its prices)."""
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
        if value > best:
            stale = 0 if value > best + 1e-4 * abs(1.0 - best) else stale + 1
            best, best_lam = value, lam
            best_pi[:] = pi
        else:
            stale += 1
        if value > 1.0 + 1e-9 or value == -math.inf:
            break
        if stale >= 12:
            relax *= 0.6
            stale = 0
            pi[:] = best_pi
            lam = best_lam
            if relax < 0.02:
                break
            continue
        slope[:] = -1.0
        for k in range(K):
            slope += chosen[k]
        pull = excess(stage, picks, chosen, T, rho) if both else 0.0
        norm = (slope * slope).sum() + metric * pull * pull
        if norm < 1e-18:
            break
        length = relax * (1.0 + 1e-3 - value) / norm
        for i in range(subs):
            pi[i] = max(0.0, pi[i] + length * slope[i])
        if both:
            lam = min(1.0 - 1e-9, max(1e-9, lam + length * metric * pull))
    return best, best_lam, best_pi
