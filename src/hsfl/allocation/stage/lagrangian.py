"""Prices of subchannels (Lagrangian multipliers): a bound for many subchannels, where every client buys the set that is best for it alone.

Legend: K clients, I subchannels, S a set of subchannels; phi_k(S) the price of client k and g its rents (see `client_prices`); pi [I] the
prices of subchannels; T a deadline; rho the price of a watt in cycles per second, and lam the same price between 0 and 1.

At a deadline T and a price rho, for any subchannel prices pi >= 0

    sum_k min over S of [phi_k(S) + pi(S)] - sum_i pi_i  <=  the least sum of prices over all assignments,

so a value above 1 proves that no assignment keeps T.

*The inner minimum* (`cheapest_set`): the client pays its price phi_k(S) and the prices pi of the subchannels in its set S. The minimum is over
2^I sets, but phi_k has tangents: a set of m subchannels that holds the m smallest pi_i - g_i of its *own* tangent is proven to be
the best set of m, and the tangent also bounds all larger sets. `subchannel_order` sorts subchannels by pi_i - g_i.

*The outer maximum* (`ascend`): Polyak's subgradient steps in pi and lam.

Arguments that most functions take: share [I] a set, as 0 and 1; allowed [I] the subchannels that the client may buy, as 0 and 1;
work, scratch of `workspace`.
"""

import math
from typing import NamedTuple

import numpy as np

from hsfl.allocation.numba_cache import compiled
from hsfl.allocation.stage.client_prices import ROUNDING, price_without_bits, tangent
from hsfl.allocation.stage.fixed_shares import uplink_s
from hsfl.allocation.stage.stage import Stage, needs_subchannel
from hsfl.allocation.stage.subchannel_order import order_after_set, order_by_net_price, order_by_rent, take_first
from hsfl.allocation.stage.water_filling import CURVE_ROWS, fill_curve, respond

Array = np.ndarray
PROVEN = 1.0 + 1e-9  # a value above this ends an ascent
AIM = 1.0 + 1e-3  # Polyak's steps are as long as if this were the largest value
STALE = 12  # steps without progress, after which steps become shorter
SHORTEST = 0.02  # of Polyak's step


class Workspace(NamedTuple):
    """Scratch arrays for one client after the other."""

    curve: Array  # [4, I]
    spare: Array  # [4, I]
    rent: Array  # [I]
    key: Array  # [I] what the order is sorted by
    order: Array  # [I] of the last sort: the next begins from it


@compiled
def workspace(subs: int) -> Workspace:
    """Scratch for `subs` subchannels."""
    return Workspace(
        curve=np.empty((CURVE_ROWS, subs)),
        spare=np.empty((CURVE_ROWS, subs)),
        rent=np.empty(subs),
        key=np.empty(subs),
        order=np.arange(subs),
    )


# --- The inner minimum: what one client buys


@compiled
def cheapest_set(
    stage: Stage,
    k: int,
    pi: Array,
    T: float,
    rho: float,
    lam: float,
    limit: int,
    sets: Array,
    chosen: Array,
    work: Workspace,
    allowed: Array,
) -> float:
    """A lower bound on what client k pays, min over S of phi_k(S) + pi(S), for sets of at most `limit` subchannels.

    The best set found is written into chosen [I]. sets [limit + 1, I] holds a set of each size from an earlier call, where
    the search begins; it changes in place.
    """
    chosen[:] = 0.0
    if not needs_subchannel(stage, k):
        return price_without_bits(stage, k, T, lam)
    has_price = stage.cycles[k] > 0.0 or stage.down_bits[k] > 0.0
    lower, best = math.inf, math.inf
    for m in range(1, min(limit, int(allowed.sum())) + 1):
        _begin_with(sets[m], sets[m - 1], m, pi, work, allowed)
        reached, impossible = _reach(stage, k, m, sets[m], T, work, allowed)
        if impossible:
            continue
        if not reached or not has_price:  # of these sets only the prices pi are known, and phi is never below zero
            floor = _cheapest(pi, m, allowed)
            if floor < lower:
                lower = floor
                chosen[:] = sets[m]
            if not has_price:
                break  # larger sets cost more
            continue
        bound, value, larger = _best_of_size(stage, k, m, pi, T, rho, lam, sets[m], work, allowed)
        if value < best:
            best = value
            chosen[:] = sets[m]
        if bound < 0.0:  # c_k is so near T that tangents tell nothing, but a price is never below zero
            bound = _cheapest(pi, m, allowed)
        lower = min(lower, bound)
        if larger >= best:
            break
    return lower


@compiled
def _begin_with(share: Array, smaller: Array, m: int, pi: Array, work: Workspace, allowed: Array) -> None:
    """Make `share` an allowed set of m, unless it is one already: the set `smaller`, of m - 1, and the cheapest subchannel."""
    if share.sum() != m or (share * (1.0 - allowed)).sum() > 0.0:
        order_after_set(pi, smaller, work.key, work.order)
        take_first(work.order, m, share, allowed)


@compiled
def _reach(stage: Stage, k: int, m: int, share: Array, T: float, work: Workspace, allowed: Array) -> tuple[bool, bool]:
    """Change `share` into a set of m with own seconds c_k < T: (was such a set found?, is it proven that none exists?)."""
    rent, proven = work.rent, -math.inf
    for _ in range(12):
        c, _ = tangent(stage, k, share, 0.0, 1.0, 0.5, work.curve, work.spare, rent)
        if c < T:
            return True, False
        order_by_rent(rent, work.key, work.order)
        bound = c
        for i in range(share.shape[0]):
            bound += share[i] * rent[i]
        changed = take_first(work.order, m, share, allowed)
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
    work: Workspace,
    allowed: Array,
) -> tuple[float, float, float]:
    """The least phi + pi over sets of m, from the set in `share`: (lower bound, value found, a bound for larger sets)."""
    lower, value, larger = -math.inf, math.inf, -math.inf
    best = share.copy()
    for _ in range(8):
        phi, feasible = tangent(stage, k, share, T, rho, lam, work.curve, work.spare, work.rent)
        if not feasible:
            break
        paid, base = phi, phi
        for i in range(pi.shape[0]):
            paid += share[i] * pi[i]
            base += share[i] * work.rent[i]
        if paid < value:
            value = paid
            best[:] = share
        order_by_net_price(pi, work.rent, work.key, work.order)
        of_size, beyond = _tangent_minima(work, base * (1.0 - ROUNDING), m, allowed)
        lower, larger = max(lower, of_size), max(larger, beyond)
        if not take_first(work.order, m, share, allowed):
            break
    share[:] = best
    return min(lower, value), value, larger


@compiled
def _tangent_minima(work: Workspace, base: float, m: int, allowed: Array) -> tuple[float, float]:
    """The least values of a tangent, base + sum of net prices (work.key): over sets of m, and over sets of more than m.

    The first value is -infinity where fewer than m subchannels are allowed.
    """
    of_size, total, count = -math.inf, base, 0
    for i in work.order:
        if not allowed[i]:
            continue
        if count == m:
            of_size = total
        if count <= m or work.key[i] < 0.0:
            total += work.key[i]
        count += 1
    return total if count == m else of_size, total


@compiled
def _cheapest(pi: Array, m: int, allowed: Array) -> float:
    """The sum of the m smallest prices pi [I] of allowed subchannels."""
    smallest = np.empty(m)
    count = 0
    for i in range(pi.shape[0]):
        if not allowed[i]:
            continue
        at = count if count < m else m
        if at == m and pi[i] >= smallest[m - 1]:
            continue
        at = min(at, m - 1)
        while at > 0 and smallest[at - 1] > pi[i]:
            smallest[at] = smallest[at - 1]
            at -= 1
        smallest[at] = pi[i]
        count += 1
    return smallest.sum()


# --- The outer maximum: prices that prove the most


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
    trade: bool,
) -> tuple[float, float, Array]:
    """Polyak's subgradient steps from the prices pi [I] and lam towards a value of 1: (best value, its lam, its prices).

    steps: at most so many. trade: whether lam moves, too, as where a client can trade cycles for power. The other
    arguments are those of `_dual_value`.
    """
    K, subs = allowed.shape
    even_rho = stage.hz / stage.power_w
    chosen, picks = np.zeros((K, subs)), np.zeros(K, np.int64)
    best, best_lam, best_pi = -math.inf, lam, pi.copy()
    pi = pi.copy()
    relax, stale = 1.0, 0
    slope = np.empty(subs)
    metric = 0.02 if trade else 0.0  # lam is of the order of 1, pi of 1 / I
    for _ in range(steps):
        rho = even_rho * lam / (1.0 - lam) if trade else even_rho
        value = _dual_value(stage, group, pi, T, rho, lam, limit, sets, picks, chosen, allowed)
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
        pull = excess(stage, picks, chosen, T, rho) if trade else 0.0
        norm = (slope * slope).sum() + metric * pull * pull
        if norm < 1e-18:
            break
        lam = _follow(slope, pull, relax * (AIM - value) / norm, metric, pi, lam)
    return best, best_lam, best_pi


@compiled
def _dual_value(
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

    Rows group[k] to group[k + 1] of the stage are the options of client k (see `exclusive`). The row that each client takes is
    written into picks [K], the set that it buys into chosen [K, I]. sets [rows, limit + 1, I] as in `cheapest_set`; allowed [K, I].
    """
    K, subs = chosen.shape
    work = workspace(subs)
    buying = np.empty(subs)
    total = 0.0
    for k in range(K):
        least_pay = math.inf
        for row in range(group[k], group[k + 1]):
            value = cheapest_set(stage, row, pi, T, rho, lam, limit, sets[row], buying, work, allowed[k])
            if value < least_pay:
                least_pay = value
                picks[k] = row
                chosen[k] = buying
        total += least_pay
        if least_pay == math.inf:
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
