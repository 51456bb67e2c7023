"""Few subchannels: the least sum of prices over all assignments, exactly, by dynamic programming over subsets.

Legend: K clients, I subchannels; a mask is a subset of the subchannels as bits; tables are [K, 2^I]; phi_k(S) is the price of client k
with the subset S at a deadline T and a price rho of a watt (see `client_prices`).

*The programme.* A table holds the price phi_k(S) of every client with every subset. `after[k, m]` is the least sum of prices of the
clients k..K-1 if they divide the subset m among them (`complete`), so after[0, all] > 1 proves that no assignment keeps T: the price
bound. Prices cannot prove it where their sum is at most 1 at every rho although no assignment keeps both budgets. Then
`walk_assignments` walks through exactly those assignments whose prices sum to at most 1, with `after` as a perfect estimate, and
solves each.

*Without a full table* (`least_sum`). A tangent of phi_k at one set bounds phi_k from below on all sets by a sum over subchannels. So the
table of the largest tangents is a lower bound, and so is the dynamic programme on that table. The programme's best assignment names K
sets. Their prices are worked out exactly, their tangents join the table, and so on, until the sum passes 1 (a proof) or the best
assignment is priced exactly (the minimum).
"""

import math
from typing import NamedTuple

import numpy as np

from hsfl.allocation.numba_cache import compiled
from hsfl.allocation.stage.client_prices import (
    ROUNDING,
    price_after_uplink,
    price_without_bits,
    shares_of,
    solve_shares,
    tangent,
)
from hsfl.allocation.stage.fixed_shares import uplink_s
from hsfl.allocation.stage.stage import Stage, needs_subchannel
from hsfl.allocation.stage.water_filling import CURVE_ROWS, fill_curve

Array = np.ndarray

PROOF = 1.0 + 1e-11  # a sum of prices above this is above 1 in spite of rounding
MAX_WORK = 5e7  # steps of one dynamic programme, about a tenth of a second
MAX_SUBCHANNELS = 18  # tables [K, 2^I]


def few_subchannels(num_clients: int, num_subchannels: int) -> bool:
    """Whether there is time for all subsets.

    The programme takes a step for every pair of a subset and a subset of it, 3^I in all, for each client but two: the first
    has all subchannels to divide, and the last takes what is left.
    """
    if num_subchannels > MAX_SUBCHANNELS:
        return False
    return max(num_clients - 2, 0) * 3.0**num_subchannels + 2.0**num_subchannels <= MAX_WORK


@compiled
def _popcount(mask: int) -> int:
    """The number of subchannels in a mask."""
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@compiled
def _expand(mask: int, share: Array) -> None:
    """Write the subset into share [I], as 0 and 1."""
    for i in range(share.shape[0]):
        share[i] = (mask >> i) & 1


@compiled
def needs_subchannels(stage: Stage) -> Array:
    """Which clients send or receive anything, [K] bool."""
    needy = np.empty(stage.cycles.shape[0], np.bool_)
    for k in range(needy.shape[0]):
        needy[k] = needs_subchannel(stage, k)
    return needy


@compiled
def largest_set(stage: Stage) -> int:
    """The most subchannels that one client can own, since every other client with bits needs one, too."""
    return stage.start_w.shape[1] - max(needs_subchannels(stage).sum() - 1, 0)


# --- The full table


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
            if _popcount(mask) > limit:
                continue
            _expand(mask, share)
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
            _expand(mask, share)
            count = fill_curve(curve, stage.order[k], stage.start_w[k], stage.log_start[k], share)
            phi[k, mask] = price_after_uplink(stage, k, curve, count, c[k, mask], T, rho, lam, b)
    return phi


@compiled
def complete(needy: Array, phi: Array) -> Array:
    """after [K + 1, 2^I]: the least sum of prices of the clients from k on, if they divide exactly the mask among them.

    needy [K] says which clients need a subchannel; the others get none. phi [K, 2^I] are the prices.
    """
    K, size = phi.shape
    subs = _popcount(size - 1)
    after = np.full((K + 1, size), math.inf)
    after[K, 0] = 0.0
    num_needy, needy_after = needy.sum(), 0
    for k in range(K - 1, -1, -1):
        num_own = 1 if needy[k] else 0
        needy_before = num_needy - needy_after - num_own
        for mask in range(size):
            if k == 0 and mask != size - 1 and num_needy > 0:
                continue  # the first client divides all subchannels
            bits = _popcount(mask)
            if bits < needy_after + num_own or bits > subs - needy_before:
                continue
            if num_own == 0:
                after[k, mask] = phi[k, 0] + after[k + 1, mask]
            elif needy_after == 0:
                after[k, mask] = phi[k, mask] + after[k + 1, 0]
            else:
                after[k, mask] = _least_of_subsets(phi[k], after[k + 1], mask)
        needy_after += num_own
    if num_needy == 0:
        after[0, size - 1] = after[0, 0]
    return after


@compiled
def _least_of_subsets(phi: Array, rest: Array, mask: int) -> float:
    """The least phi[subset] + rest[mask without subset] over all subsets of a mask but the empty set; both arrays [2^I]."""
    best = math.inf
    subset = mask
    while subset:
        value = phi[subset] + rest[mask ^ subset]
        if value < best:
            best = value
        subset = (subset - 1) & mask
    return best


@compiled
def _best_owner(needy: Array, phi: Array, after: Array) -> Array:
    """The assignment behind after[0, all], as owners [I]."""
    K, size = phi.shape
    owner = np.full(_popcount(size - 1), -1)
    mask = size - 1
    for k in range(K):
        if not needy[k]:
            continue
        subset = mask
        while subset and phi[k, subset] + after[k + 1, mask ^ subset] != after[k, mask]:
            subset = (subset - 1) & mask
        _give(subset, k, owner)
        mask ^= subset
    return owner


@compiled
def _give(subset: int, k: int, owner: Array) -> None:
    """Client k becomes the owner of a subset, in owner [I]."""
    for i in range(owner.shape[0]):
        if (subset >> i) & 1:
            owner[i] = k


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
    subsets = np.full(K + 1, size)  # what client k has; `size` where nothing has been tried yet
    costs = np.zeros(K + 1)  # the sum of prices before client k
    free[0] = size - 1
    k, visited = 0, 0
    while k >= 0:
        if k == K:
            visited += 1
            for j in range(K):
                _give(subsets[j], j, owner)
            value, _, _ = solve_shares(stage, shares_of(owner, K), T, rho)
            if value <= T:
                return owner, value, False
            if visited >= limit:
                return owner, math.inf, False
            k -= 1
            continue
        fresh = subsets[k] == size
        if needs_subchannel(stage, k):
            first = free[k] if fresh else (subsets[k] - 1) & free[k]
            subsets[k] = _next_subset(phi[k], after[k + 1], free[k], first, costs[k])
            entered = subsets[k] > 0
        else:
            subsets[k] = 0
            entered = fresh
        if not entered:
            subsets[k] = size
            k -= 1
            continue
        costs[k + 1] = costs[k] + phi[k, subsets[k]]
        free[k + 1] = free[k] ^ subsets[k]
        k += 1
    return owner, math.inf, True


@compiled
def _next_subset(phi: Array, rest: Array, mask: int, subset: int, cost: float) -> int:
    """The next subset of a mask, from `subset` on downwards, that can be completed within 1; 0 where there is none.

    phi and rest [2^I] are the client's prices and the least sums of the clients after it; cost is the sum before it.
    """
    while subset:
        if cost + phi[subset] + rest[mask ^ subset] <= PROOF:
            return subset
        subset = (subset - 1) & mask
    return 0


# --- Without a full table: tangents stand in for prices


class _Tables(NamedTuple):
    """Lower bounds of prices; every array changes in place. A row is a client with one of its options (see `exclusive`)."""

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
        owner = _best_owner(tables.needy, tables.least, after)
        if _price_owned(stage, group, tables, owner, known, num_known, T, rho, lam):
            return value, owner, tables.picks, True
    return value, owner, tables.picks, False


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
    tables.rows[:] = _start_row(subs, limit)
    for k in range(K):
        tables.needy[k] = needs_subchannel(stage, group[k])
        tables.least[k] = tables.rows[group[k]]
        if not tables.needy[k]:
            tables.least[k, 0] = price_without_bits(stage, group[k], T, lam)
    return tables


@compiled
def _start_row(subs: int, limit: int) -> Array:
    """The first bounds [2^I]: prices are at least zero; infinite are the empty set and sets of more than `limit`."""
    row = np.zeros(1 << subs)
    row[0] = math.inf
    for mask in range(1, 1 << subs):
        if _popcount(mask) > limit:
            row[mask] = math.inf
    return row


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
def _price_set(
    stage: Stage, group: Array, tables: _Tables, k: int, mask: int, T: float, rho: float, lam: float
) -> float:
    """The least price of a set over all options of client k; the option joins tables.picks, and tangents join the bounds."""
    _expand(mask, tables.share)
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
