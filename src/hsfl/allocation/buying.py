"""What one client buys where every subchannel has a price: the set that is best for this client alone.

Legend: I subchannels. The client pays its price phi_k(S) (see `prices`) and the prices pi of the subchannels in its set S. The
minimum is over 2^I sets, but phi_k has tangents (`tangent`): a set of m subchannels that holds the m smallest pi_i - g_i
of its *own* tangent is proven to be the best set of m, and the tangent also bounds all larger sets.

Arguments that most functions take: pi [I] subchannel prices; share [I] a set, as 0 and 1; allowed [I] the subchannels that
the client may buy, as 0 and 1; work, scratch of `workspace`.
"""

import math
from typing import NamedTuple

import numpy as np

from hsfl.allocation.compiled import compiled
from hsfl.allocation.curve import CURVE_ROWS
from hsfl.allocation.prices import price_without_bits, sort_by
from hsfl.allocation.stage import Stage, needs_subchannel
from hsfl.allocation.tangent import ROUNDING, tangent

Array = np.ndarray


class Workspace(NamedTuple):
    """Scratch arrays for one client after the other."""

    curve: Array  # [4, I]
    spare: Array  # [4, I]
    rent: Array  # [I]
    key: Array  # [I]
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


@compiled
def _take(order: Array, m: int, share: Array, allowed: Array) -> bool:
    """Make the first m allowed subchannels of an order the set; returns whether the set changed."""
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
def _reach(stage: Stage, k: int, m: int, share: Array, T: float, work: Workspace, allowed: Array) -> tuple[bool, bool]:
    """Change `share` into a set of m with own seconds c_k < T: (was such a set found?, is it proven that none exists?)."""
    rent, proven = work.rent, -math.inf
    for _ in range(12):
        c, _ = tangent(stage, k, share, 0.0, 1.0, 0.5, work.curve, work.spare, rent)
        if c < T:
            return True, False
        work.key[:] = -rent
        sort_by(work.key, work.order)
        bound = c
        for i in range(share.shape[0]):
            bound += share[i] * rent[i]
        changed = _take(work.order, m, share, allowed)
        bound *= 1.0 - ROUNDING
        for i in range(share.shape[0]):
            bound -= share[i] * rent[i]
        proven = max(proven, bound)
        if not changed or proven >= T:
            break
    return False, proven >= T


@compiled
def _tangent_minima(work: Workspace, base: float, m: int, allowed: Array) -> tuple[float, float]:
    """The least values of a tangent, base + sum of keys: over sets of m, and over sets of more than m.

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
        here, base = phi, phi
        for i in range(pi.shape[0]):
            here += share[i] * pi[i]
            base += share[i] * work.rent[i]
            work.key[i] = pi[i] - work.rent[i]
        if here < value:
            value = here
            best[:] = share
        sort_by(work.key, work.order)
        of_size, beyond = _tangent_minima(work, base * (1.0 - ROUNDING), m, allowed)
        lower, larger = max(lower, of_size), max(larger, beyond)
        if not _take(work.order, m, share, allowed):
            break
    share[:] = best
    return min(lower, value), value, larger


@compiled
def _cheapest(pi: Array, m: int, allowed: Array) -> float:
    """The sum of the m smallest prices pi [I] of allowed subchannels."""
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
def _begin_with(share: Array, smaller: Array, m: int, pi: Array, work: Workspace, allowed: Array) -> None:
    """Make `share` an allowed set of m, unless it is one already: the set `smaller`, of m - 1, and the cheapest subchannel."""
    if share.sum() != m or (share * (1.0 - allowed)).sum() > 0.0:
        work.key[:] = pi - 1e9 * smaller
        sort_by(work.key, work.order)
        _take(work.order, m, share, allowed)


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
        found, impossible = _reach(stage, k, m, sets[m], T, work, allowed)
        if impossible:
            continue
        if not found or not has_price:  # of these sets only the prices pi are known, and phi is never below zero
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
