"""The price of a client: the least part of the server's two budgets that it needs to keep a deadline.

Legend: K clients, I subchannels; share [K, I] is the part of subchannel i that client k has, 0 or 1 where subchannels are
exclusive.

At a deadline T and a price rho of a watt in cycles per second, the price of client k with the subchannels S is

    phi_k(S; T) = min over f, q of (1 - lam) f / hz + lam q / power,   rho = lam hz / ((1 - lam) power).

An assignment can keep T only if its prices sum to at most 1 for every rho. The sum has a term for each client alone, so a
move of one subchannel changes two terms.
"""

import math

import numpy as np

from hsfl.allocation.compiled import compiled
from hsfl.allocation.curve import CURVE_ROWS, fill_curve, respond
from hsfl.allocation.frequency import client_curves, solve_fixed, uplink_s
from hsfl.allocation.stage import Stage

Array = np.ndarray


@compiled
def price(stage: Stage, k: int, share: Array, curve: Array, spare: Array, T: float, rho: float, lam: float) -> float:
    """phi_k for the shares [I] of one client; infinite where T is too short. `curve` and `spare` are scratch."""
    b = stage.subchannel_hz / math.log(2.0)
    count = fill_curve(curve, stage.order[k], stage.start_w[k], stage.log_start[k], share)
    c = uplink_s(stage, k, curve, count, spare, share, b)
    return price_after_uplink(stage, k, curve, count, c, T, rho, lam, b)


@compiled
def price_after_uplink(
    stage: Stage, k: int, curve: Array, count: int, c: float, T: float, rho: float, lam: float, b: float
) -> float:
    """phi_k where the client's own seconds c_k are known; infinite where T leaves no time."""
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
def price_without_bits(stage: Stage, k: int, T: float, lam: float) -> float:
    """phi_k of a client that sends and receives nothing: only its cycles have a price."""
    t = T - stage.fixed_s[k]
    if t < 0.0 or (t == 0.0 and stage.cycles[k] > 0.0):
        return math.inf
    return (1.0 - lam) * stage.cycles[k] / t / stage.hz if stage.cycles[k] > 0.0 else 0.0


@compiled
def single_prices(stage: Stage, T: float, rho: float, lam: float) -> Array:
    """phi_k({i}) [K, I]: the price of every client with every subchannel as its only one."""
    K, subs = stage.start_w.shape
    curve, spare, share = np.empty((CURVE_ROWS, subs)), np.empty((CURVE_ROWS, subs)), np.zeros(subs)
    phi = np.empty((K, subs))
    for k in range(K):
        for i in range(subs):
            share[i] = 1.0
            phi[k, i] = price(stage, k, share, curve, spare, T, rho, lam)
            share[i] = 0.0
    return phi


@compiled
def solve_shares(stage: Stage, share: Array, start: float, rho: float) -> tuple[float, float, float]:
    """The least T for fixed shares [K, I], problem (P) of `frequency`: (T, rho, lam).

    `start`, a guess of T in seconds, and `rho` shorten the iteration; pass 0 where there is no guess.
    """
    K, subs = share.shape
    curves = np.empty((K, CURVE_ROWS, subs))
    counts, c = np.zeros(K, np.int64), np.empty(K)
    client_curves(curves, counts, c, stage, share)
    return solve_fixed(stage, curves, counts, c, start, rho)


@compiled
def shares_of(owner: Array, K: int) -> Array:
    """Owners [I] as shares [K, I]; an owner of -1 is nobody."""
    share = np.zeros((K, owner.shape[0]))
    for i in range(owner.shape[0]):
        if owner[i] >= 0:
            share[owner[i], i] = 1.0
    return share


@compiled
def sort_by(values: Array, order: Array) -> None:
    """Sort order [I] in place, so that values[order] rises. An order that is nearly right costs little.

    numba's own sort would take far longer to compile.
    """
    for j in range(1, order.shape[0]):
        item = int(order[j])
        value = values[item]
        at = j
        while at > 0 and values[order[at - 1]] > value:
            order[at] = order[at - 1]
            at -= 1
        order[at] = item


def alone_s(stage: Stage) -> float:
    """A first lower bound on T: every client has all subchannels for itself and a server of endless speed and power."""
    return float(alone_each_s(stage).max())


@compiled
def alone_each_s(stage: Stage) -> Array:
    """The own seconds c_k of every client, if it had all subchannels, [K]."""
    K, subs = stage.start_w.shape
    b = stage.subchannel_hz / math.log(2.0)
    curve, spare, share, c = np.empty((CURVE_ROWS, subs)), np.empty((CURVE_ROWS, subs)), np.ones(subs), np.empty(K)
    for k in range(K):
        count = fill_curve(curve, stage.order[k], stage.start_w[k], stage.log_start[k], share)
        c[k] = uplink_s(stage, k, curve, count, spare, share, b)
    return c
