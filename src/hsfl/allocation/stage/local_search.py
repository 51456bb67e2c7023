"""A good assignment of exclusive subchannels: moves and swaps of subchannels that lower the sum of prices.

Legend: K clients, I subchannels. An assignment is an owner [I] for each subchannel, or the same as shares [K, I] of 0 and 1.

The descent works at one deadline T and one price rho. When no move and no swap lowers the sum of prices (see `client_prices`), the
assignment has a shorter T of its own, and the descent begins again there.

Arguments that most functions take, all changed in place: owner [I]; counts [K], how many subchannels each client has; share
[K, I], the owners as shares; phi [K], the price of each client; rent [K, I], what each subchannel is worth to each client
(`prices.tangent`); curve and spare, scratch. (A record of these arrays, and a function for each subchannel, would be a tenth slower:
compiled code counts a reference to every array at every call.)
"""

import math

import numpy as np

from hsfl.allocation.numba_cache import compiled
from hsfl.allocation.stage.client_prices import price, shares_of, solve_shares, tangent
from hsfl.allocation.stage.stage import Stage, needs_subchannel, with_cycles
from hsfl.allocation.stage.subchannel_order import sort_by
from hsfl.allocation.stage.water_filling import CURVE_ROWS

Array = np.ndarray
LEAST_GAIN = 1e-13  # by which a change must lower the sum of prices
ROUNDS = 100  # of descents; a handful is enough


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
def _refresh(
    stage: Stage, k: int, share: Array, phi: Array, rent: Array, curve: Array, spare: Array, T: float, rho: float,
    lam: float,
) -> None:  # fmt: skip
    """The price of client k and the rents of its tangent, for the subchannels that it has now."""
    value, feasible = tangent(stage, k, share[k], T, rho, lam, curve, spare, rent[k])
    phi[k] = value
    if not feasible:
        rent[k] = 0.0
        phi[k] = price(stage, k, share[k], curve, spare, T, rho, lam)


@compiled
def _lowers(
    stage: Stage, first: int, other: int, share: Array, phi: Array, curve: Array, spare: Array, T: float, rho: float,
    lam: float,
) -> bool:  # fmt: skip
    """Whether the shares as they are now lower the sum of two clients' prices; the first is priced first."""
    before = phi[first] + phi[other]
    new = price(stage, first, share[first], curve, spare, T, rho, lam)
    if not new < before:
        return False
    new += price(stage, other, share[other], curve, spare, T, rho, lam)
    return new - before < -LEAST_GAIN


@compiled
def _move(
    stage: Stage, i: int, k: int, j: int, owner: Array, counts: Array, share: Array, phi: Array, rent: Array,
    curve: Array, spare: Array, T: float, rho: float, lam: float,
) -> bool:  # fmt: skip
    """Move subchannel i from client k to client j, if that lowers the sum of prices; returns whether it did."""
    share[k, i], share[j, i] = 0.0, 1.0
    if not _lowers(stage, j, k, share, phi, curve, spare, T, rho, lam):
        share[k, i], share[j, i] = 1.0, 0.0
        return False
    owner[i] = j
    counts[k] -= 1
    counts[j] += 1
    _refresh(stage, k, share, phi, rent, curve, spare, T, rho, lam)
    _refresh(stage, j, share, phi, rent, curve, spare, T, rho, lam)
    return True


@compiled
def _swap(
    stage: Stage, i: int, k: int, j: int, m: int, owner: Array, share: Array, phi: Array, rent: Array, curve: Array,
    spare: Array, T: float, rho: float, lam: float,
) -> bool:  # fmt: skip
    """Swap subchannel i of client k for subchannel j of client m, if that lowers the sum; returns whether it did."""
    share[k, i], share[k, j], share[m, j], share[m, i] = 0.0, 1.0, 0.0, 1.0
    if not _lowers(stage, k, m, share, phi, curve, spare, T, rho, lam):
        share[k, i], share[k, j], share[m, j], share[m, i] = 1.0, 0.0, 1.0, 0.0
        return False
    owner[i], owner[j] = m, k
    _refresh(stage, k, share, phi, rent, curve, spare, T, rho, lam)
    _refresh(stage, m, share, phi, rent, curve, spare, T, rho, lam)
    return True


@compiled
def _descend(
    stage: Stage, owner: Array, counts: Array, share: Array, phi: Array, rent: Array, curve: Array, spare: Array,
    T: float, rho: float, lam: float,
) -> bool:  # fmt: skip
    """Move and swap at (T, rho) until no change lowers the sum of prices. Returns whether any did.

    Rents bound what a change can gain before it is priced. So most changes are never priced, and none is missed.
    """
    K, subs = share.shape
    for k in range(K):
        _refresh(stage, k, share, phi, rent, curve, spare, T, rho, lam)
    changed, improving = False, True
    while improving:
        improving = False
        for i in range(subs):
            k = owner[i]
            free = counts[k] > 1 or not needs_subchannel(stage, k)
            for j in range(K if free else 0):
                if j == k or rent[k, i] - rent[j, i] >= -LEAST_GAIN:
                    continue
                if _move(stage, i, k, j, owner, counts, share, phi, rent, curve, spare, T, rho, lam):
                    improving, k = True, j
                    if counts[k] == 1:
                        break
            for j in range(i + 1, subs):
                m = owner[j]
                if m == k or rent[k, i] - rent[k, j] + rent[m, j] - rent[m, i] >= -LEAST_GAIN:
                    continue
                if _swap(stage, i, k, j, m, owner, share, phi, rent, curve, spare, T, rho, lam):
                    improving, k = True, m
        changed = changed or improving
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
def local_search(stage: Stage, owner: Array, T: float, rho: float) -> tuple[Array, float, float, float]:
    """Descend at the current (T, rho), then take the new (T, rho), until T stops falling.

    owner [I] is where the search starts; T (seconds) and rho are guesses for it, 0 where there are none. Returns the best
    owners [I] with their T, rho and lam.
    """
    K, subs = stage.start_w.shape
    owner, share, counts = owner.copy(), shares_of(owner, K), np.zeros(K, np.int64)
    for i in range(subs):
        counts[owner[i]] += 1
    phi, rent = np.empty(K), np.empty((K, subs))
    curve, spare = np.empty((CURVE_ROWS, subs)), np.empty((CURVE_ROWS, subs))
    T, rho, lam = solve_shares(stage, share, T, rho)
    best, best_T, best_rho, best_lam = owner.copy(), T, rho, lam
    smooth = smoothed(stage, 1e-3 * T)
    T, rho, lam = solve_shares(smooth, share, T, rho)
    for _ in range(ROUNDS):
        if not _descend(smooth, owner, counts, share, phi, rent, curve, spare, T, rho, lam):
            break
        new_T, rho, lam = solve_shares(smooth, share, T, rho)
        true_T, true_rho, true_lam = solve_shares(stage, share, T, rho)
        if true_T < best_T:
            best, best_T, best_rho, best_lam = owner.copy(), true_T, true_rho, true_lam
        if not new_T < T * (1.0 - 1e-12):
            break
        T = new_T
    return best, best_T, best_rho, best_lam
