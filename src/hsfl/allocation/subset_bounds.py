"""The least sum of prices over all assignments without a full table: tangents stand in for prices until they are exact.

Legend: K clients, I subchannels; a mask is a subset of the subchannels as bits; tables are [K, 2^I].

A tangent of phi_k at one set bounds phi_k from below on all sets by a sum over subchannels (see `tangent`). So the table of
the largest tangents is a lower bound, and so is the dynamic programme (`subsets`) on that table. The programme's best
assignment names K sets. Their prices are worked out exactly, their tangents join the table, and so on, until the sum
passes 1 (a proof) or the best assignment is priced exactly (the minimum).
"""

import math
from typing import NamedTuple

import numpy as np

from hsfl.allocation.compiled import compiled
from hsfl.allocation.curve import CURVE_ROWS
from hsfl.allocation.prices import price_without_bits
from hsfl.allocation.stage import Stage, needs_subchannel
from hsfl.allocation.subsets import PROOF, best_owner, complete, expand, popcount
from hsfl.allocation.tangent import ROUNDING, tangent

Array = np.ndarray


class _Tables(NamedTuple):
    """Lower bounds of prices; every array changes in place. A row is a client with one of its options (see `oracles`)."""

    rows: Array  # [rows, 2^I] of each row
    least: Array  # [K, 2^I] of each client: the least of its rows
    needy: Array  # [K] bool: the client needs a subchannel
    picks: Array  # [K] the row that the client takes
    sums: Array  # [2^I] scratch
    share: Array  # [I] scratch
    rent: Array  # [I] scratch
    curve: Array  # scratch
    spare: Array  # scratch


@compiled
def _lift(row: Array, sums: Array, base: float, rent: Array, limit: float) -> None:
    """Lift the bounds row [2^I] to the tangent base - rent(mask) where the tangent is higher.

    With a finite limit the tangent is one of the client's own seconds, and the limit is the deadline: a set whose tangent
    reaches the limit has an infinite price.
    """
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
def _price_row(stage: Stage, tables: _Tables, row: int, T: float, rho: float, lam: float) -> float:
    """The exact price of a row with the set in tables.share; the tangent of the price joins the row's bounds."""
    value, feasible = tangent(stage, row, tables.share, T, rho, lam, tables.curve, tables.spare, tables.rent)
    held = (tables.share * tables.rent).sum()
    if feasible:
        _lift(tables.rows[row], tables.sums, value + held, tables.rent, math.inf)
        return value
    if value >= T:  # then the value is the row's own seconds, and the rents are theirs
        _lift(tables.rows[row], tables.sums, value + held, tables.rent, T)
        return math.inf
    return 0.0 if stage.cycles[row] == 0.0 and stage.down_bits[row] == 0.0 else math.inf


@compiled
def _price_set(
    stage: Stage, group: Array, tables: _Tables, k: int, mask: int, T: float, rho: float, lam: float
) -> float:
    """The least price of a set over all options of client k; the option joins tables.picks, and tangents join the bounds."""
    expand(mask, tables.share)
    first, last = group[k], group[k + 1]
    least = math.inf
    tables.picks[k] = first
    for row in range(first, last):
        price = _price_row(stage, tables, row, T, rho, lam)
        tables.rows[row, mask] = max(tables.rows[row, mask], price)
        if price < least:
            least = price
            tables.picks[k] = row
    for m in range(tables.least.shape[1]):
        tables.least[k, m] = tables.rows[first, m]
        for row in range(first + 1, last):
            tables.least[k, m] = min(tables.least[k, m], tables.rows[row, m])
    return least


@compiled
def start_row(subs: int, limit: int) -> Array:
    """The first bounds [2^I]: prices are at least zero; infinite are the empty set and sets of more than `limit`."""
    row = np.zeros(1 << subs)
    row[0] = math.inf
    for mask in range(1, 1 << subs):
        if popcount(mask) > limit:
            row[mask] = math.inf
    return row


@compiled
def _begin(stage: Stage, group: Array, limit: int, T: float, lam: float) -> _Tables:
    """Tables without tangents: only clients that need no subchannel have a price."""
    K, subs = group.shape[0] - 1, stage.start_w.shape[1]
    tables = _Tables(
        rows=np.empty((group[K], 1 << subs)),
        least=np.empty((K, 1 << subs)),
        needy=np.empty(K, np.bool_),
        picks=group[:K].copy(),
        sums=np.empty(1 << subs),
        share=np.empty(subs),
        rent=np.empty(subs),
        curve=np.empty((CURVE_ROWS, subs)),
        spare=np.empty((CURVE_ROWS, subs)),
    )
    tables.rows[:] = start_row(subs, limit)
    for k in range(K):
        tables.needy[k] = needs_subchannel(stage, group[k])
        tables.least[k] = tables.rows[group[k]]
        if not tables.needy[k]:
            tables.least[k, 0] = price_without_bits(stage, group[k], T, lam)
    return tables


@compiled
def _price_owned(
    stage: Stage, group: Array, tables: _Tables, owner: Array, known: Array, num_known: Array, T: float, rho: float,
    lam: float,
) -> bool:  # fmt: skip
    """Price the sets of an assignment; returns whether the bounds had been exact. Sets with other prices become known."""
    exact = True
    for k in range(num_known.shape[0]):
        if not tables.needy[k]:
            continue
        mask = 0
        for i in range(owner.shape[0]):
            mask |= (1 << i) if owner[i] == k else 0
        mask = int(np.int64(mask))  # else numba would compile for unsigned masks, too
        bound = tables.least[k, mask]
        if _price_set(stage, group, tables, k, mask, T, rho, lam) > bound + 1e-12:
            exact = False
            if num_known[k] < known.shape[1]:
                known[k, num_known[k]] = mask
                num_known[k] += 1
    return exact


@compiled
def least_sum(
    stage: Stage,
    group: Array,
    limit: int,
    known: Array,
    num_known: Array,
    T: float,
    rho: float,
    lam: float,
    rounds: int,
) -> tuple[float, Array, Array, bool]:
    """(a lower bound of the least sum of prices, its owners [I], the rows [K] they take, is it the minimum itself?).

    Rows group[k] to group[k + 1] of the stage are the options of client k. limit: the most subchannels that one client can
    own. known [K, P] holds masks that were priced before, num_known [K] how many; both grow. The sets of a good
    assignment are a good start. rounds: how often tangents may join.
    """
    all_subchannels = (1 << stage.start_w.shape[1]) - 1
    tables = _begin(stage, group, limit, T, lam)
    for k in range(num_known.shape[0]):
        for p in range(num_known[k] if tables.needy[k] else 0):
            _price_set(stage, group, tables, k, known[k, p], T, rho, lam)
        tables.picks[k] = group[k]
    value, owner = 0.0, np.full(stage.start_w.shape[1], -1)
    for _ in range(rounds):
        after = complete(tables.needy, tables.least)
        value = after[0, all_subchannels]
        if value > PROOF:
            return value, owner, tables.picks, False
        owner = best_owner(tables.needy, tables.least, after)
        if _price_owned(stage, group, tables, owner, known, num_known, T, rho, lam):
            return value, owner, tables.picks, True
    return value, owner, tables.picks, False
