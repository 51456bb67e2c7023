"""Exact assignment for few subchannels: the least sum of prices over all partitions, by dynamic programming on subsets.

Legend: K clients, I subchannels, masks are subsets of subchannels as bits, tables are [K, 2^I].

At (T, rho) the table holds phi_k(S). `after[k, m]` is the least sum of prices of clients k..K-1 that divide m among
them, so after[0, all] > 1 proves that no partition keeps T: the price bound. Where prices cannot prove it (their sum
is at most 1 at every rho but no partition keeps both budgets), `search_leaves` walks through exactly the partitions
whose prices sum to at most 1, with `after` as a perfect estimate, and solves each.
"""

import math

import numpy as np

from hsfl.allocation.compiled import compiled
from hsfl.allocation.curve import CURVE_ROWS, fill_curve
from hsfl.allocation.frequency import uplink_s
from hsfl.allocation.spectrum import price_after_uplink, shares_of, solve_shares
from hsfl.allocation.stage import Stage, needs_subchannel

Array = np.ndarray

PROOF = 1.0 + 1e-11  # a sum of prices above this is above 1 in spite of rounding
MAX_WORK = 5e7  # steps of one dynamic programme, about a tenth of a second
MAX_SUBCHANNELS = 18  # tables [K, 2^I]


def few(num_clients: int, num_subchannels: int) -> bool:
    """Whether subsets can be gone through: 3^I pairs of a set and its part for all clients but the first and last."""
    if num_subchannels > MAX_SUBCHANNELS:
        return False
    return max(num_clients - 2, 0) * 3.0**num_subchannels + 2.0**num_subchannels <= MAX_WORK


@compiled
def popcount(mask: int) -> int:
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@compiled
def _expand(mask: int, share: Array) -> None:
    for i in range(share.shape[0]):
        share[i] = (mask >> i) & 1


@compiled
def who_needs(stage: Stage) -> Array:
    """needy [K]."""
    needy = np.empty(stage.cycles.shape[0], np.bool_)
    for k in range(needy.shape[0]):
        needy[k] = needs_subchannel(stage, k)
    return needy


@compiled
def largest_set(stage: Stage) -> int:
    """How many subchannels one client may own at most, since every other one with bits needs one."""
    return stage.start_w.shape[1] - max(who_needs(stage).sum() - 1, 0)


@compiled
def uplink_table(stage: Stage) -> Array:
    """c_k(S) [K, 2^I]: independent of T and prices, so made once. Infinite for sets that are too large."""
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
            _expand(mask, share)
            count = fill_curve(curve, stage.order[k], stage.start_w[k], stage.log_start[k], share)
            c[k, mask] = uplink_s(stage, k, curve, count, spare, share, b)
    return c


@compiled
def price_table(stage: Stage, c: Array, T: float, rho: float, lam: float) -> Array:
    """phi_k(S) [K, 2^I] at a deadline and a price."""
    K, subs = stage.start_w.shape
    b = stage.subchannel_hz / math.log(2.0)
    curve, share = np.empty((CURVE_ROWS, subs)), np.empty(subs)
    phi = np.full(c.shape, math.inf)
    for k in range(K):
        for mask in range(c.shape[1]):
            if not c[k, mask] <= T:
                continue
            _expand(mask, share)
            count = fill_curve(curve, stage.order[k], stage.start_w[k], stage.log_start[k], share)
            phi[k, mask] = price_after_uplink(stage, k, curve, count, c[k, mask], T, rho, lam, b)
    return phi


@compiled
def complete(needy: Array, phi: Array) -> Array:
    """after [K + 1, 2^I]: least sum of prices of clients k.. that divide exactly the mask among them.

    needy [K] says who needs a subchannel; the others get none.
    """
    K, size = phi.shape
    subs = popcount(size - 1)
    after = np.full((K + 1, size), math.inf)
    after[K, 0] = 0.0
    needy_after = 0
    in_all = 0
    for k in range(K):
        in_all += 1 if needy[k] else 0
    for k in range(K - 1, -1, -1):
        here = 1 if needy[k] else 0
        before = in_all - needy_after - here
        for mask in range(size):
            bits = popcount(mask)
            if k == 0 and mask != size - 1 and in_all > 0:
                continue
            if bits < needy_after + here or bits > subs - before:
                continue
            if here == 0:
                after[k, mask] = phi[k, 0] + after[k + 1, mask]
                continue
            best = math.inf
            if needy_after == 0:
                best = phi[k, mask] + after[k + 1, 0]
            else:
                part = mask
                while part:
                    value = phi[k, part] + after[k + 1, mask ^ part]
                    if value < best:
                        best = value
                    part = (part - 1) & mask
            after[k, mask] = best
        needy_after += here
    if in_all == 0:
        after[0, size - 1] = after[0, 0]
    return after


@compiled
def best_owner(needy: Array, phi: Array, after: Array) -> Array:
    """The partition behind after[0, all], as owners [I]."""
    K, size = phi.shape
    owner = np.full(popcount(size - 1), -1)
    mask = size - 1
    for k in range(K):
        if not needy[k]:
            continue
        part = mask
        while part:
            if phi[k, part] + after[k + 1, mask ^ part] == after[k, mask]:
                break
            part = (part - 1) & mask
        for i in range(owner.shape[0]):
            if (part >> i) & 1:
                owner[i] = k
        mask ^= part
    return owner


@compiled
def search_leaves(
    stage: Stage, phi: Array, after: Array, T: float, rho: float, limit: int
) -> tuple[Array, float, bool]:
    """All partitions with prices summing to at most 1, each solved: (owner, its T, walked through all of them?).

    Depth first over clients; a branch is entered only if the best completion stays within 1. Returns at the first
    partition that keeps T.
    """
    K, size = phi.shape
    subs = stage.start_w.shape[1]
    owner = np.full(subs, -1)
    masks = np.zeros(K + 1, np.int64)  # free subchannels before client k
    parts = np.zeros(K, np.int64)  # what client k has, or its next candidate
    costs = np.zeros(K + 1)
    masks[0] = size - 1
    parts[0] = size
    k, visited = 0, 0
    while k >= 0:
        if k == K:
            visited += 1
            for j in range(K):
                for i in range(subs):
                    if (parts[j] >> i) & 1:
                        owner[i] = j
            value, _, _ = solve_shares(stage, shares_of(owner, K), T, rho)
            if value <= T:
                return owner, value, False
            if visited >= limit:
                return owner, math.inf, False
            k -= 1
            continue
        mask, found = masks[k], False
        if not needs_subchannel(stage, k):
            found = parts[k] == size
            parts[k] = 0 if found else -1
        else:
            part = mask if parts[k] == size else (parts[k] - 1) & mask
            while part:
                if costs[k] + phi[k, part] + after[k + 1, mask ^ part] <= PROOF:
                    found = True
                    break
                part = (part - 1) & mask
            parts[k] = part
        if not found:
            k -= 1
            continue
        costs[k + 1] = costs[k] + phi[k, parts[k]]
        masks[k + 1] = mask ^ parts[k]
        k += 1
        if k < K:
            parts[k] = size
    return owner, math.inf, True
