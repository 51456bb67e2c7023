"""A good assignment of exclusive subchannels: moves and swaps of subchannels that lower the sum of prices.

Legend: K clients, I subchannels. An assignment is an owner [I] for each subchannel, or the same as shares [K, I] of 0 and 1.

The descent works at one deadline T and one price rho. When no move and no swap lowers the sum of prices (see `prices`), the
assignment has a shorter T of its own, and the descent begins again there.
"""

import math
from typing import NamedTuple

import numpy as np

from hsfl.allocation.compiled import compiled
from hsfl.allocation.curve import CURVE_ROWS
from hsfl.allocation.prices import price, shares_of, solve_shares, sort_by
from hsfl.allocation.stage import Stage, needs_subchannel, with_cycles
from hsfl.allocation.tangent import tangent

Array = np.ndarray
LEAST_GAIN = 1e-13  # by which a change must lower the sum of prices
ROUNDS = 100  # of descents; a handful is enough


class _Search(NamedTuple):
    """The assignment that is being improved, and what is known about it. Every array changes in place."""

    owner: Array  # [I]
    counts: Array  # [K] subchannels of each client
    share: Array  # [K, I] the owners as shares
    phi: Array  # [K] the price of each client
    rent: Array  # [K, I] what each subchannel is worth to each client (see `tangent`)
    curve: Array  # scratch
    spare: Array  # scratch


@compiled
def first_owner(stage: Stage) -> Array:
    """Owners [I] to begin with: by turns, the client with the most bits first, everyone takes its best free subchannel."""
    K, subs = stage.start_w.shape
    owner = np.full(subs, -1)
    load = np.empty(K)
    for k in range(K):
        load[k] = -(stage.up_bits[k] + stage.down_bits[k] + stage.edge_bits[k] + stage.given_bits[k])
    queue = np.arange(K)
    sort_by(load, queue)
    for turn in range(subs):
        k = int(queue[turn % K])
        best, best_merit = -1, -math.inf
        for i in range(subs):
            merit = -stage.log_start[k, i] - stage.edge_log_start[k, i]
            if owner[i] < 0 and merit > best_merit:
                best, best_merit = i, merit
        owner[best] = k
    return owner


@compiled
def _refresh(stage: Stage, at: _Search, k: int, T: float, rho: float, lam: float) -> None:
    """The price of client k and the rents of its tangent, for the subchannels that it has now."""
    value, feasible = tangent(stage, k, at.share[k], T, rho, lam, at.curve, at.spare, at.rent[k])
    at.phi[k] = value
    if not feasible:
        at.rent[k] = 0.0
        at.phi[k] = price(stage, k, at.share[k], at.curve, at.spare, T, rho, lam)


@compiled
def _lowers(stage: Stage, at: _Search, k: int, j: int, T: float, rho: float, lam: float) -> bool:
    """Whether the shares as they are now lower the sum of the prices of clients k and j."""
    new = price(stage, j, at.share[j], at.curve, at.spare, T, rho, lam)
    if not new < at.phi[k] + at.phi[j]:
        return False
    new += price(stage, k, at.share[k], at.curve, at.spare, T, rho, lam)
    return new - at.phi[k] - at.phi[j] < -LEAST_GAIN


@compiled
def _move(stage: Stage, at: _Search, i: int, T: float, rho: float, lam: float) -> bool:
    """Give subchannel i to another client wherever that lowers the sum of prices; returns whether it did."""
    k, moved = at.owner[i], False
    if at.counts[k] == 1 and needs_subchannel(stage, k):
        return False
    for j in range(at.share.shape[0]):
        if j == k or at.rent[k, i] - at.rent[j, i] >= -LEAST_GAIN:
            continue
        at.share[k, i], at.share[j, i] = 0.0, 1.0
        if not _lowers(stage, at, k, j, T, rho, lam):
            at.share[k, i], at.share[j, i] = 1.0, 0.0
            continue
        at.counts[k] -= 1
        at.counts[j] += 1
        at.owner[i] = j
        _refresh(stage, at, k, T, rho, lam)
        _refresh(stage, at, j, T, rho, lam)
        k, moved = j, True
        if at.counts[k] == 1:
            break
    return moved


@compiled
def _swap(stage: Stage, at: _Search, i: int, T: float, rho: float, lam: float) -> bool:
    """Swap subchannel i for a later one of another client wherever that lowers the sum; returns whether it did."""
    k, swapped = at.owner[i], False
    for j in range(i + 1, at.share.shape[1]):
        m = at.owner[j]
        if m == k or at.rent[k, i] - at.rent[k, j] + at.rent[m, j] - at.rent[m, i] >= -LEAST_GAIN:
            continue
        at.share[k, i], at.share[k, j], at.share[m, j], at.share[m, i] = 0.0, 1.0, 0.0, 1.0
        if not _lowers(stage, at, k, m, T, rho, lam):
            at.share[k, i], at.share[k, j], at.share[m, j], at.share[m, i] = 1.0, 0.0, 1.0, 0.0
            continue
        at.owner[i], at.owner[j] = m, k
        _refresh(stage, at, k, T, rho, lam)
        _refresh(stage, at, m, T, rho, lam)
        k, swapped = m, True
    return swapped


@compiled
def _descend(stage: Stage, at: _Search, T: float, rho: float, lam: float) -> bool:
    """Move and swap at (T, rho) until no change lowers the sum of prices. Returns whether any did.

    Rents bound what a change can gain before it is priced. So most changes are never priced, and none is missed.
    """
    for k in range(at.share.shape[0]):
        _refresh(stage, at, k, T, rho, lam)
    changed, again = False, True
    while again:
        again = False
        for i in range(at.share.shape[1]):
            moved = _move(stage, at, i, T, rho, lam)
            swapped = _swap(stage, at, i, T, rho, lam)
            again = again or moved or swapped
        changed = changed or again
    return changed


@compiled
def smoothed(stage: Stage, load_s: float) -> Stage:
    """The stage with a tiny load of cycles for every client that has bits and a deadline but no price.

    Without the load such a client would only say yes or no to T; with it, its price rises as T comes near to what the
    client needs. load_s: the seconds that the server would take for all these loads together.
    """
    K = stage.cycles.shape[0]
    cycles = stage.cycles.copy()
    idle = 0
    for k in range(K):
        idle += stage.cycles[k] == 0.0 and stage.down_bits[k] == 0.0 and needs_subchannel(stage, k)
    for k in range(K):
        if stage.cycles[k] == 0.0 and stage.down_bits[k] == 0.0 and needs_subchannel(stage, k):
            cycles[k] = load_s * stage.hz / idle
    return with_cycles(stage, cycles)


@compiled
def _begin(owner: Array, K: int) -> _Search:
    """A search that starts at these owners [I], which are copied."""
    subs = owner.shape[0]
    counts = np.zeros(K, np.int64)
    for i in range(subs):
        counts[owner[i]] += 1
    return _Search(
        owner=owner.copy(),
        counts=counts,
        share=shares_of(owner, K),
        phi=np.empty(K),
        rent=np.empty((K, subs)),
        curve=np.empty((CURVE_ROWS, subs)),
        spare=np.empty((CURVE_ROWS, subs)),
    )


@compiled
def local_search(stage: Stage, owner: Array, T: float, rho: float) -> tuple[Array, float, float, float]:
    """Descend at the current (T, rho), then take the new (T, rho), until T stops falling.

    owner [I] is where the search starts; T (seconds) and rho are guesses for it, 0 where there are none. Returns the best
    owners [I] with their T, rho and lam.
    """
    at = _begin(owner, stage.start_w.shape[0])
    T, rho, lam = solve_shares(stage, at.share, T, rho)
    best, best_T, best_rho, best_lam = at.owner.copy(), T, rho, lam
    smooth = smoothed(stage, 1e-3 * T)
    T, rho, lam = solve_shares(smooth, at.share, T, rho)
    for _ in range(ROUNDS):
        if not _descend(smooth, at, T, rho, lam):
            break
        new_T, rho, lam = solve_shares(smooth, at.share, T, rho)
        true_T, true_rho, true_lam = solve_shares(stage, at.share, T, rho)
        if true_T < best_T:
            best, best_T, best_rho, best_lam = at.owner.copy(), true_T, true_rho, true_lam
        if not new_T < T * (1.0 - 1e-12):
            break
        T = new_T
    return best, best_T, best_rho, best_lam
