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
from hsfl.allocation.curve import CURVE_ROWS
from hsfl.allocation.partition import PROOF, best_owner, complete, popcount
from hsfl.allocation.stage import Stage, needs_subchannel
from hsfl.allocation.tangent import ROUNDING, tangent

Array = np.ndarray


@compiled
def _cut(row: Array, sums: Array, base: float, rent: Array, limit: float) -> None:
    """row[mask] = max(row[mask], base - rent(mask)); infinite where that passes `limit` (a deadline of c_k)."""
    sums[0] = base * (1.0 - ROUNDING)
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
    stage: Stage,
    k: int,
    share: Array,
    T: float,
    rho: float,
    lam: float,
    row: Array,
    sums: Array,
    work: tuple[Array, ...],
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
def start_row(subs: int, limit: int) -> Array:
    """Prices are at least zero; the empty set, and sets that leave too few for others, are excluded. [2^I]"""
    row = np.zeros(1 << subs)
    row[0] = math.inf
    for mask in range(1, 1 << subs):
        if popcount(mask) > limit:
            row[mask] = math.inf
    return row


@compiled
def _price_mask(
    stage: Stage,
    first: int,
    last: int,
    mask: int,
    T: float,
    rho: float,
    lam: float,
    rows: Array,
    table: Array,
    sums: Array,
    work: tuple[Array, ...],
    share: Array,
) -> tuple[float, int]:
    """A set priced for all options of a client (rows first to last): (the least price, its row); tangents join."""
    for i in range(share.shape[0]):
        share[i] = (mask >> i) & 1
    least, pick = math.inf, first
    for row in range(first, last):
        price = _price_set(stage, row, share, T, rho, lam, rows[row], sums, work)
        rows[row, mask] = max(rows[row, mask], price)
        if price < least:
            least, pick = price, row
    for m in range(table.shape[0]):
        table[m] = rows[first, m]
        for row in range(first + 1, last):
            table[m] = min(table[m], rows[row, m])
    return least, pick


@compiled
def least_sum(
    stage: Stage, group: Array, limit: int, pool: Array, used: Array, T: float, rho: float, lam: float, rounds: int
) -> tuple[float, Array, Array, bool]:
    """(a lower bound of the least sum of prices, its owners, the rows they take, whether it is the minimum itself).

    Rows group[k] to group[k + 1] of the stage are the options of client k (its cuts, or only itself). pool [K, P] holds
    masks priced before, used [K] how many; both grow. The sets of the incumbent are a good start.
    """
    K, subs = group.shape[0] - 1, stage.start_w.shape[1]
    work = (np.empty((CURVE_ROWS, subs)), np.empty((CURVE_ROWS, subs)), np.empty(subs))
    sums, share, needy = np.empty(1 << subs), np.empty(subs), np.empty(K, np.bool_)
    rows, table = np.empty((group[K], 1 << subs)), np.empty((K, 1 << subs))
    picks = group[:K].copy()
    rows[:] = start_row(subs, limit)
    for k in range(K):
        needy[k] = needs_subchannel(stage, group[k])
        table[k] = rows[group[k]]
        if not needy[k]:
            table[k, 0] = _price_alone(stage, group[k], T, lam)
            continue
        for p in range(used[k]):
            _price_mask(stage, group[k], group[k + 1], pool[k, p], T, rho, lam, rows, table[k], sums, work, share)
    value, owner = 0.0, np.full(subs, -1)
    for _ in range(rounds):
        after = complete(needy, table)
        value = after[0, (1 << subs) - 1]
        if value > PROOF:
            return value, owner, picks, False
        owner = best_owner(needy, table, after)
        exact = True
        for k in range(K):
            if not needy[k]:
                continue
            mask = 0
            for i in range(subs):
                mask |= (1 << i) if owner[i] == k else 0
            known = table[k, mask]
            price, picks[k] = _price_mask(
                stage, group[k], group[k + 1], mask, T, rho, lam, rows, table[k], sums, work, share
            )
            if price > known + 1e-12:
                exact = False
                if used[k] < pool.shape[1]:
                    pool[k, used[k]] = mask
                    used[k] += 1
        if exact:
            return value, owner, picks, True
    return value, owner, picks, False


@compiled
def _price_alone(stage: Stage, k: int, T: float, lam: float) -> float:
    """phi_k of a client without bits."""
    t = T - stage.fixed_s[k]
    if t < 0.0 or (t == 0.0 and stage.cycles[k] > 0.0):
        return math.inf
    return (1.0 - lam) * stage.cycles[k] / t / stage.hz if stage.cycles[k] > 0.0 else 0.0
