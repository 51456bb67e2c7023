"""The least sum of prices over all partitions without a full table: tangents stand in for prices until they are exact.

Legend: K clients, I subchannels, masks are subsets of subchannels as bits, tables are [K, 2^I].

A tangent of phi_k at one set bounds phi_k from below on all sets (see `lagrange`), by a sum over subchannels. The table
of the largest tangents is a valid lower bound, so the dynamic programme on it is one too; its best partition names K
sets, their prices are worked out exactly, their tangents join, and so on until the sum passes 1 (the proof) or the
best partition is priced exactly (the minimum).
"""

import math

import numpy as np

from hsfl.allocation.compiled import compiled
from hsfl.allocation.frequency import CURVE_ROWS
from hsfl.allocation.partition import best_owner, complete, largest_set, popcount
from hsfl.allocation.spectrum import needs_subchannel
from hsfl.allocation.stage import Stage
from hsfl.allocation.tangent import tangent

Array = np.ndarray


@compiled
def _cut(row: Array, sums: Array, base: float, rent: Array, limit: float) -> None:
    """row[mask] = max(row[mask], base - rent(mask)); infinite where that passes `limit` (a deadline of c_k)."""
    sums[0] = base
    for mask in range(1, row.shape[0]):
        rest = mask & (mask - 1)
        low, bit = mask ^ rest, 0
        while low > 1:
            low >>= 1
            bit += 1
        sums[mask] = sums[rest] - rent[bit]
    for mask in range(1, row.shape[0]):
        if limit < math.inf:
            if sums[mask] >= limit:
                row[mask] = math.inf
        elif sums[mask] > row[mask]:
            row[mask] = sums[mask]


@compiled
def _price_set(
    stage: Stage, k: int, share: Array, T: float, rho: float, lam: float, row: Array, sums: Array, work: tuple
) -> float:
    """phi_k of one set, exactly; its tangent joins the row."""
    curve, spare, rent = work
    value, feasible = tangent(stage, k, share, T, rho, lam, curve, spare, rent)
    held = (share * rent).sum()
    if feasible:
        _cut(row, sums, value + held, rent, math.inf)
        return value
    if value >= T:  # here the value is c_k and the rents are its own
        _cut(row, sums, value + held, rent, T)
        return math.inf
    return 0.0 if stage.cycles[k] == 0.0 and stage.down_bits[k] == 0.0 else math.inf


@compiled
def start_table(stage: Stage) -> Array:
    """Prices are at least zero; sets that are too large, or empty where bits must travel, are excluded."""
    K, subs = stage.start_w.shape
    limit = largest_set(stage)
    row = np.zeros(1 << subs)
    row[0] = math.inf
    for mask in range(1, 1 << subs):
        if popcount(mask) > limit:
            row[mask] = math.inf
    phi = np.empty((K, 1 << subs))
    for k in range(K):
        phi[k] = row
    return phi


@compiled
def least_sum(
    stage: Stage, pool: Array, used: Array, T: float, rho: float, lam: float, rounds: int
) -> tuple[float, Array, bool]:
    """(a lower bound of the least sum of prices, its partition, whether it is the minimum itself).

    pool [K, P] holds masks priced before, used [K] how many; both grow. The sets of the incumbent are a good start.
    """
    K, subs = stage.start_w.shape
    work = (np.empty((CURVE_ROWS, subs)), np.empty((CURVE_ROWS, subs)), np.empty(subs))
    phi, sums, share = start_table(stage), np.empty(1 << subs), np.empty(subs)
    for k in range(K):
        if not needs_subchannel(stage, k):
            t = T - stage.fixed_s[k]
            if t <= 0.0:
                phi[k, 0] = math.inf if stage.cycles[k] > 0.0 or t < 0.0 else 0.0
            else:
                phi[k, 0] = (1.0 - lam) * stage.cycles[k] / t / stage.hz
            continue
        for p in range(used[k]):
            for i in range(subs):
                share[i] = (pool[k, p] >> i) & 1
            _price_set(stage, k, share, T, rho, lam, phi[k], sums, work)
    value, owner = 0.0, np.full(subs, -1)
    for _ in range(rounds):
        after = complete(stage, phi)
        value = after[0, (1 << subs) - 1]
        if value > 1.0 + 1e-11:
            return value, owner, False
        owner = best_owner(stage, phi, after)
        exact = True
        for k in range(K):
            if not needs_subchannel(stage, k):
                continue
            mask = 0
            for i in range(subs):
                share[i] = 1.0 if owner[i] == k else 0.0
                mask |= (1 << i) if owner[i] == k else 0
            known = phi[k, mask]
            price = _price_set(stage, k, share, T, rho, lam, phi[k], sums, work)
            if price > known + 1e-12:
                phi[k, mask] = price
                exact = False
                if used[k] < pool.shape[1]:
                    pool[k, used[k]] = mask
                    used[k] += 1
        if exact:
            return value, owner, True
    return value, owner, False
