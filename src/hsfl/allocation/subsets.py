"""Few subchannels: the least sum of prices over all assignments, exactly, by dynamic programming over subsets.

Legend: K clients, I subchannels; a mask is a subset of the subchannels as bits; tables are [K, 2^I].

At (T, rho) a table holds the price phi_k(S) of every client with every subset. `after[k, m]` is the least sum of prices of the
clients k..K-1 if they divide the subset m among them, so after[0, all] > 1 proves that no assignment keeps T: the price
bound. Prices cannot prove it where their sum is at most 1 at every rho although no assignment keeps both budgets. Then
`walk_assignments` walks through exactly those assignments whose prices sum to at most 1, with `after` as a perfect
estimate, and solves each.
"""

import math

import numpy as np

from hsfl.allocation.compiled import compiled
from hsfl.allocation.curve import CURVE_ROWS, fill_curve
from hsfl.allocation.frequency import uplink_s
from hsfl.allocation.prices import price_after_uplink, shares_of, solve_shares
from hsfl.allocation.stage import Stage, needs_subchannel

Array = np.ndarray

PROOF = 1.0 + 1e-11  # a sum of prices above this is above 1 in spite of rounding
MAX_WORK = 5e7  # steps of one dynamic programme, about a tenth of a second
MAX_SUBCHANNELS = 18  # tables [K, 2^I]


def few(num_clients: int, num_subchannels: int) -> bool:
    """Whether there is time for all subsets.

    The programme takes a step for every pair of a subset and a part of it, 3^I in all, for each client but two: the first
    has all subchannels to divide, and the last takes what is left.
    """
    if num_subchannels > MAX_SUBCHANNELS:
        return False
    return max(num_clients - 2, 0) * 3.0**num_subchannels + 2.0**num_subchannels <= MAX_WORK


@compiled
def popcount(mask: int) -> int:
    """The number of subchannels in a mask."""
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@compiled
def expand(mask: int, share: Array) -> None:
    """Write the subset into share [I], as 0 and 1."""
    for i in range(share.shape[0]):
        share[i] = (mask >> i) & 1


@compiled
def who_needs(stage: Stage) -> Array:
    """Which clients send or receive anything, [K] bool."""
    needy = np.empty(stage.cycles.shape[0], np.bool_)
    for k in range(needy.shape[0]):
        needy[k] = needs_subchannel(stage, k)
    return needy


@compiled
def largest_set(stage: Stage) -> int:
    """The most subchannels that one client can own, since every other client with bits needs one, too."""
    return stage.start_w.shape[1] - max(who_needs(stage).sum() - 1, 0)


@compiled
def uplink_table(stage: Stage) -> Array:
    """The own seconds c_k(S) [K, 2^I], which depend on no deadline and no price; infinite for sets that are too large."""
    K, subs = stage.start_w.shape
    b = stage.subchannel_hz / math.log(2.0)
    size = 1 << subs
    limit = largest_set(stage)
    c = np.full((K, size), math.inf)
    curve, spare, share = np.empty((CURVE_ROWS, subs)), np.empty((CURVE_ROWS, subs)), np.empty(subs)
    for k in range(K):
        if not needs_subchannel(stage, k):
            c[k, 0] = stage.fixed_s[k]
            continue
        for mask in range(1, size):
            if popcount(mask) > limit:
                continue
            expand(mask, share)
            count = fill_curve(curve, stage.order[k], stage.start_w[k], stage.log_start[k], share)
            c[k, mask] = uplink_s(stage, k, curve, count, spare, share, b)
    return c


@compiled
def price_table(stage: Stage, c: Array, T: float, rho: float, lam: float) -> Array:
    """The prices phi_k(S) [K, 2^I] at a deadline, where c [K, 2^I] is the table of own seconds."""
    K, subs = stage.start_w.shape
    b = stage.subchannel_hz / math.log(2.0)
    curve, share = np.empty((CURVE_ROWS, subs)), np.empty(subs)
    phi = np.full(c.shape, math.inf)
    for k in range(K):
        for mask in range(c.shape[1]):
            if not c[k, mask] <= T:
                continue
            expand(mask, share)
            count = fill_curve(curve, stage.order[k], stage.start_w[k], stage.log_start[k], share)
            phi[k, mask] = price_after_uplink(stage, k, curve, count, c[k, mask], T, rho, lam, b)
    return phi


@compiled
def _least_of_parts(phi: Array, rest: Array, mask: int) -> float:
    """The least phi[part] + rest[mask without part] over all parts of a mask but the empty one; both arrays [2^I]."""
    best = math.inf
    part = mask
    while part:
        value = phi[part] + rest[mask ^ part]
        if value < best:
            best = value
        part = (part - 1) & mask
    return best


@compiled
def complete(needy: Array, phi: Array) -> Array:
    """after [K + 1, 2^I]: the least sum of prices of the clients from k on, if they divide exactly the mask among them.

    needy [K] says which clients need a subchannel; the others get none. phi [K, 2^I] are the prices.
    """
    K, size = phi.shape
    subs = popcount(size - 1)
    after = np.full((K + 1, size), math.inf)
    after[K, 0] = 0.0
    num_needy, needy_after = needy.sum(), 0
    for k in range(K - 1, -1, -1):
        here = 1 if needy[k] else 0
        needy_before = num_needy - needy_after - here
        for mask in range(size):
            if k == 0 and mask != size - 1 and num_needy > 0:
                continue  # the first client divides all subchannels
            bits = popcount(mask)
            if bits < needy_after + here or bits > subs - needy_before:
                continue
            if here == 0:
                after[k, mask] = phi[k, 0] + after[k + 1, mask]
            elif needy_after == 0:
                after[k, mask] = phi[k, mask] + after[k + 1, 0]
            else:
                after[k, mask] = _least_of_parts(phi[k], after[k + 1], mask)
        needy_after += here
    if num_needy == 0:
        after[0, size - 1] = after[0, 0]
    return after


@compiled
def _give(part: int, k: int, owner: Array) -> None:
    """Client k becomes the owner of a subset, in owner [I]."""
    for i in range(owner.shape[0]):
        if (part >> i) & 1:
            owner[i] = k


@compiled
def best_owner(needy: Array, phi: Array, after: Array) -> Array:
    """The assignment behind after[0, all], as owners [I]."""
    K, size = phi.shape
    owner = np.full(popcount(size - 1), -1)
    mask = size - 1
    for k in range(K):
        if not needy[k]:
            continue
        part = mask
        while part and phi[k, part] + after[k + 1, mask ^ part] != after[k, mask]:
            part = (part - 1) & mask
        _give(part, k, owner)
        mask ^= part
    return owner


@compiled
def _next_part(phi: Array, rest: Array, mask: int, part: int, cost: float) -> int:
    """The next part of a mask, from `part` on downwards, that can be completed within 1; 0 where there is none.

    phi and rest [2^I] are the client's prices and the least sums of the clients after it; cost is the sum before it.
    """
    while part:
        if cost + phi[part] + rest[mask ^ part] <= PROOF:
            return part
        part = (part - 1) & mask
    return 0


@compiled
def walk_assignments(
    stage: Stage, phi: Array, after: Array, T: float, rho: float, limit: int
) -> tuple[Array, float, bool]:
    """Solve all assignments with prices that sum to at most 1: (owners [I], their T, were all of them seen?).

    The walk goes depth first over clients; it enters a branch only if the best completion of the branch stays within 1.
    It returns at the first assignment that keeps T. After `limit` assignments it gives up, with an infinite T.
    """
    K, size = phi.shape
    owner = np.full(stage.start_w.shape[1], -1)
    free = np.zeros(K + 1, np.int64)  # the subchannels that are free before client k
    parts = np.full(K + 1, size)  # what client k has; `size` where nothing has been tried yet
    costs = np.zeros(K + 1)  # the sum of prices before client k
    free[0] = size - 1
    k, visited = 0, 0
    while k >= 0:
        if k == K:
            visited += 1
            for j in range(K):
                _give(parts[j], j, owner)
            value, _, _ = solve_shares(stage, shares_of(owner, K), T, rho)
            if value <= T:
                return owner, value, False
            if visited >= limit:
                return owner, math.inf, False
            k -= 1
            continue
        fresh = parts[k] == size
        if needs_subchannel(stage, k):
            first = free[k] if fresh else (parts[k] - 1) & free[k]
            parts[k] = _next_part(phi[k], after[k + 1], free[k], first, costs[k])
            entered = parts[k] > 0
        else:
            parts[k] = 0
            entered = fresh
        if not entered:
            parts[k] = size
            k -= 1
            continue
        costs[k + 1] = costs[k] + phi[k, parts[k]]
        free[k + 1] = free[k] ^ parts[k]
        k += 1
    return owner, math.inf, True
