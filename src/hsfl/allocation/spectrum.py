"""Who owns which subchannel: prices of clients, and a descent that moves and swaps subchannels.

Legend: K clients, I subchannels; share [K, I] is 1 where k owns i (or a fraction under bandwidth sharing).

At a deadline T and a price rho of a watt in cycles, a client's price is the least part of the two budgets it needs,
phi_k(S; T) = min over q of (1 - lam) f / hz + lam q / power. An assignment can keep T only if its prices sum to at most
1 for every rho; the sum is separable, so a move of one subchannel changes two terms.
"""

import math

import numpy as np

from hsfl.allocation.compiled import compiled
from hsfl.allocation.curve import CURVE_ROWS, fill_curve, respond
from hsfl.allocation.frequency import client_curves, solve_fixed, uplink_s
from hsfl.allocation.stage import Stage, needs_subchannel
from hsfl.allocation.tangent import tangent

Array = np.ndarray


@compiled
def price(stage: Stage, k: int, share: Array, curve: Array, spare: Array, T: float, rho: float, lam: float) -> float:
    """phi_k for the shares [I] of one client."""
    b = stage.subchannel_hz / math.log(2.0)
    count = fill_curve(curve, stage.order[k], stage.start_w[k], stage.log_start[k], share)
    c = uplink_s(stage, k, curve, count, spare, share, b)
    return price_after_uplink(stage, k, curve, count, c, T, rho, lam, b)


@compiled
def price_after_uplink(
    stage: Stage, k: int, curve: Array, count: int, c: float, T: float, rho: float, lam: float, b: float
) -> float:
    """phi_k where c_k is known; infinite where T leaves no time."""
    n, d = stage.cycles[k], stage.down_bits[k]
    if n == 0.0 and d == 0.0:
        return 0.0 if c <= T else math.inf
    f, q, _, _ = respond(curve, count, T - c, n, d, b, rho)
    if math.isinf(f) or math.isinf(q):
        return math.inf
    total = 0.0
    if n > 0.0:
        total += (1.0 - lam) * f / stage.hz
    if d > 0.0:
        total += lam * q / stage.power_w
    return total


@compiled
def solve_shares(stage: Stage, share: Array, start: float, rho: float) -> tuple[float, float, float]:
    """(P) of `frequency` for these shares: (T, rho, lam)."""
    K, subs = share.shape
    curves = np.empty((K, CURVE_ROWS, subs))
    counts, c = np.zeros(K, np.int64), np.empty(K)
    client_curves(curves, counts, c, stage, share)
    return solve_fixed(stage, curves, counts, c, start, rho)


@compiled
def shares_of(owner: Array, K: int) -> Array:
    """Owners [I] as shares [K, I]."""
    share = np.zeros((K, owner.shape[0]))
    for i in range(owner.shape[0]):
        if owner[i] >= 0:
            share[owner[i], i] = 1.0
    return share


@compiled
def sort_by(values: Array, order: Array) -> None:
    """The order [I] of values from the smallest; an order that is nearly right costs little. Ours compiles fast."""
    for j in range(1, order.shape[0]):
        item = int(order[j])
        value = values[item]
        at = j
        while at > 0 and values[order[at - 1]] > value:
            order[at] = order[at - 1]
            at -= 1
        order[at] = item


@compiled
def first_owner(stage: Stage) -> Array:
    """A feasible start: in the order of their loads everyone takes its best free subchannel, then round again."""
    K, subs = stage.start_w.shape
    owner = np.full(subs, -1)
    load = np.empty(K)
    for k in range(K):
        load[k] = -(stage.up_bits[k] + stage.down_bits[k] + stage.edge_bits[k] + stage.given_bits[k])
    queue = np.arange(K)
    sort_by(load, queue)
    left = subs
    while left > 0:
        for position in range(min(K, left)):
            k = int(queue[position])
            best, best_merit = -1, -math.inf
            for i in range(subs):
                merit = -stage.log_start[k, i] - stage.edge_log_start[k, i]
                if owner[i] < 0 and merit > best_merit:
                    best, best_merit = i, merit
            owner[best] = k
        left -= min(K, left)
    return owner


@compiled
def _refresh(
    stage: Stage,
    k: int,
    share: Array,
    phi: Array,
    rent: Array,
    work: tuple[Array, ...],
    T: float,
    rho: float,
    lam: float,
) -> None:
    """phi_k and the rents of its tangent, for the client's present set."""
    value, feasible = tangent(stage, k, share[k], T, rho, lam, work[0], work[1], rent[k])
    phi[k] = value
    if not feasible:
        rent[k] = 0.0
        phi[k] = price(stage, k, share[k], work[0], work[1], T, rho, lam)


@compiled
def _try_move(
    stage: Stage,
    i: int,
    k: int,
    j: int,
    share: Array,
    phi: Array,
    work: tuple[Array, ...],
    T: float,
    rho: float,
    lam: float,
) -> bool:
    """Subchannel i goes from k to j, if that lowers the sum of prices."""
    share[k, i], share[j, i] = 0.0, 1.0
    one = price(stage, j, share[j], work[0], work[1], T, rho, lam)
    if one < phi[k] + phi[j]:
        two = price(stage, k, share[k], work[0], work[1], T, rho, lam)
        if one + two - phi[k] - phi[j] < -1e-13:
            return True
    share[k, i], share[j, i] = 1.0, 0.0
    return False


@compiled
def _try_swap(
    stage: Stage,
    i: int,
    k: int,
    j: int,
    m: int,
    share: Array,
    phi: Array,
    work: tuple[Array, ...],
    T: float,
    rho: float,
    lam: float,
) -> bool:
    """Client k gives i to m and takes j, if that lowers the sum of prices."""
    share[k, i], share[k, j], share[m, j], share[m, i] = 0.0, 1.0, 0.0, 1.0
    one = price(stage, k, share[k], work[0], work[1], T, rho, lam)
    if one < phi[k] + phi[m]:
        two = price(stage, m, share[m], work[0], work[1], T, rho, lam)
        if one + two - phi[k] - phi[m] < -1e-13:
            return True
    share[k, i], share[k, j], share[m, j], share[m, i] = 1.0, 0.0, 1.0, 0.0
    return False


@compiled
def _descend(
    stage: Stage,
    owner: Array,
    share: Array,
    phi: Array,
    rent: Array,
    work: tuple[Array, ...],
    T: float,
    rho: float,
    lam: float,
) -> bool:
    """Moves and swaps that lower the sum of prices at (T, rho), until none does. Returns whether any did.

    Tangents bound what a move can gain before it is priced, so most are never priced, and none is missed.
    """
    K, subs = share.shape
    changed, again = False, True
    counts = np.zeros(K, np.int64)
    for i in range(subs):
        counts[owner[i]] += 1
    while again:
        again = False
        for i in range(subs):
            k = owner[i]
            if counts[k] > 1 or not needs_subchannel(stage, k):
                for j in range(K):
                    if j == k or rent[k, i] - rent[j, i] >= -1e-13:
                        continue
                    if _try_move(stage, i, k, j, share, phi, work, T, rho, lam):
                        counts[k] -= 1
                        counts[j] += 1
                        owner[i] = j
                        _refresh(stage, k, share, phi, rent, work, T, rho, lam)
                        _refresh(stage, j, share, phi, rent, work, T, rho, lam)
                        changed = again = True
                        k = j
                        if counts[k] == 1:
                            break
            for j in range(i + 1, subs):
                m = owner[j]
                if m == k or rent[k, i] - rent[k, j] + rent[m, j] - rent[m, i] >= -1e-13:
                    continue
                if _try_swap(stage, i, k, j, m, share, phi, work, T, rho, lam):
                    owner[i], owner[j] = m, k
                    _refresh(stage, k, share, phi, rent, work, T, rho, lam)
                    _refresh(stage, m, share, phi, rent, work, T, rho, lam)
                    changed = again = True
                    k = m
    return changed


@compiled
def smoothed(stage: Stage, load_s: float) -> Stage:
    """The stage with a tiny load of cycles for clients that have bits and a deadline but no price.

    Alone they would only say yes or no to T; with the load their prices rise as they come near it. load_s is what the
    server would take for all these loads together.
    """
    K = stage.cycles.shape[0]
    cycles = stage.cycles.copy()
    idle = 0
    for k in range(K):
        idle += stage.cycles[k] == 0.0 and stage.down_bits[k] == 0.0 and needs_subchannel(stage, k)
    for k in range(K):
        if stage.cycles[k] == 0.0 and stage.down_bits[k] == 0.0 and needs_subchannel(stage, k):
            cycles[k] = load_s * stage.hz / idle
    return Stage(
        stage.fixed_s, stage.up_bits, stage.edge_bits, stage.up_power_w, cycles, stage.down_bits, stage.given_bits,
        stage.given_power_w, stage.start_w, stage.log_start, stage.order, stage.edge_start_w, stage.edge_log_start,
        stage.edge_order, stage.hz, stage.power_w, stage.subchannel_hz,
    )  # fmt: skip


@compiled
def local_search(stage: Stage, owner: Array, T: float, rho: float) -> tuple[Array, float, float, float]:
    """Descent at the current (T, rho), then a new (T, rho), until T stops falling. Returns (owner, T, rho, lam)."""
    K, subs = stage.start_w.shape
    work = (np.empty((CURVE_ROWS, subs)), np.empty((CURVE_ROWS, subs)))
    phi, rent = np.empty(K), np.empty((K, subs))
    owner = owner.copy()
    share = shares_of(owner, K)
    T, rho, lam = solve_shares(stage, share, T, rho)
    best, best_T, best_rho, best_lam = owner.copy(), T, rho, lam
    smooth = smoothed(stage, 1e-3 * T)
    T, rho, lam = solve_shares(smooth, share, T, rho)
    for _ in range(100):
        for k in range(K):
            _refresh(smooth, k, share, phi, rent, work, T, rho, lam)
        if not _descend(smooth, owner, share, phi, rent, work, T, rho, lam):
            break
        new_T, rho, lam = solve_shares(smooth, share, T, rho)
        true_T, true_rho, true_lam = solve_shares(stage, share, T, rho)
        if true_T < best_T:
            best, best_T, best_rho, best_lam = owner.copy(), true_T, true_rho, true_lam
        if not new_T < T * (1.0 - 1e-12):
            break
        T = new_T
    return best, best_T, best_rho, best_lam
