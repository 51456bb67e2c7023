"""The price of a client: the least part of the server's two budgets that it needs to keep a deadline, and the tangents of that price.

Legend: K clients, I subchannels; share [K, I] is the part of subchannel i that client k has, 0 or 1 where subchannels are exclusive; S
a set of subchannels; T a deadline; f cycles per second and q watts of a client; rho the price of a watt in cycles per second, and lam
the same price between 0 and 1.

*Prices.* At a deadline T and a price rho, the price of client k with the subchannels S is

    phi_k(S; T) = min over f, q of (1 - lam) f / hz + lam q / power,   rho = lam hz / ((1 - lam) power).

An assignment can keep T only if its prices sum to at most 1 for every rho. The sum has a term for each client alone, so a move of one
subchannel changes two terms.

*Tangents.* A tangent bounds phi_k from below for all sets, and is exact at one set. A water-filled rate is R(S) = min over nu of
nu P + sum_{i in S} h_i(nu), with h_i(nu) = max_p [b ln(1 + p / start_i) - nu p] >= 0. Freeze the levels nu of the three rates (up,
edge up, down) at the levels of one set S0: then every rate is at most a sum over subchannels, with equality at S0. And phi_k is
convex and decreasing in the three rates (1 / R is convex, and so is 1 over the positive concave time that is left), so its
linearisation at the rates of S0 gives

    phi_k(S) >= phi_k(S0) + g(S0) - g(S)  for all S, equality at S0;  g_i = -sum over rates of dphi/dR h_i    (tangent)

The rents g_i say what subchannel i is worth to client k. The same holds for shares s_i in place of sets, which is why the rents are
also the gradients of the problem with shared bandwidth (`shared_bands`).
"""

import math

import numpy as np

from hsfl.allocation.numba_cache import compiled
from hsfl.allocation.stage.fixed_shares import client_curves, solve_fixed, uplink_s
from hsfl.allocation.stage.stage import Stage, needs_subchannel
from hsfl.allocation.stage.water_filling import CURVE_ROWS, NATS, START, WIDTH, fill_curve, filled, respond

Array = np.ndarray
LAST_DIGIT = 4e-16
ROUNDING = 1e-13  # of what a tangent is made of: more than its sums of positive terms can be wrong by


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
    """The least T for fixed shares [K, I], problem (P) of `fixed_shares`: (T, rho, lam).

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


# --- Tangents: rents of subchannels


@compiled
def surplus(start: float, depth: float) -> float:
    """The nats that a subchannel gains beyond what its power costs: ln(1 + y) - y / (1 + y), y = depth / start."""
    if depth > 0.1 * start:
        x = start / (start + depth)
        return x - 1.0 - math.log(x)
    y = depth / start
    if y > 1e-3:
        return math.log1p(y) - y / (1.0 + y)
    return y * y * (0.5 - y * (2.0 / 3.0 - y * (0.75 - y * (0.8 - y * (5.0 / 6.0)))))


@compiled
def _add_rents(rent: Array, weight: float, start: Array, last: float, above: float, b: float) -> None:
    """Add weight h_i to rent [I]: h_i is what subchannel i adds to a rate whose water stands `above` the start `last`."""
    if weight == 0.0:
        return
    for i in range(rent.shape[0]):
        depth = (last - start[i]) + above
        if depth > 0.0:
            rent[i] += weight * b * surplus(start[i], depth)


@compiled
def _send(curve: Array, count: int, bits: float, power_w: float, b: float) -> tuple[float, float, float, float]:
    """Bits sent with given power: (seconds, -d seconds / dR, the last start below the water, the water above it)."""
    if bits == 0.0:
        return 0.0, 0.0, 1.0, 0.0
    nats, last, above = filled(curve, count, power_w)
    return bits / (b * nats), bits / (b * nats * b * nats), last, above


@compiled
def linearise(
    stage: Stage, k: int, share: Array, T: float, rho: float, lam: float, curve: Array, spare: Array, rent: Array
) -> tuple[float, bool, float, float, float, float, float, float]:
    """The price of client k with share [I], and the rents g of its tangent, written into rent [I].

    Returns (phi_k, is T long enough?, c_k, the worth of a second, f, q, downlink seconds, seconds that a watt saves). Where T
    is too short, or the client has no price, the rents are those of c_k. `curve` and `spare` are scratch.
    """
    b = stage.subchannel_hz / math.log(2.0)
    rent[:] = 0.0
    count = fill_curve(curve, stage.order[k], stage.start_w[k], stage.log_start[k], share)
    up_s, up, up_last, up_above = _send(curve, count, stage.up_bits[k], stage.up_power_w[k], b)
    given_s, given, given_last, given_above = _send(curve, count, stage.given_bits[k], stage.given_power_w[k], b)
    c = stage.fixed_s[k] + up_s + given_s
    edge, edge_last, edge_above = 0.0, 1.0, 0.0
    if stage.edge_bits[k] > 0.0:
        m = fill_curve(spare, stage.edge_order[k], stage.edge_start_w[k], stage.edge_log_start[k], share)
        edge_s, edge, edge_last, edge_above = _send(spare, m, stage.edge_bits[k], stage.up_power_w[k], b)
        c += edge_s
    n, d = stage.cycles[k], stage.down_bits[k]
    f, q, x, a = respond(curve, count, T - c, n, d, b, rho)
    feasible = not (c >= T or math.isinf(f) or math.isinf(q) or (n == 0.0 and d == 0.0))
    phi, worth, down_s, saves_s = (0.0, 0.0, 0.0, 0.0) if feasible else (math.inf, 0.0, 0.0, 0.0)
    if feasible and d > 0.0:
        rate = b * (curve[NATS, a] + curve[WIDTH, a] * x)
        down_s = d / rate
        above = curve[START, a] * math.expm1(x)
        saves_s = down_s * b / (rate * (curve[START, a] + above))
        phi += lam * q / stage.power_w
        worth = (1.0 - lam) * f * f / (n * stage.hz) if n > 0.0 else lam / (stage.power_w * saves_s)
        _add_rents(rent, worth * d / (rate * rate), stage.start_w[k], curve[START, a], above, b)
    if feasible and n > 0.0:
        phi += (1.0 - lam) * f / stage.hz
        worth = (1.0 - lam) * f * f / (n * stage.hz)
    scale = worth if feasible else 1.0
    _add_rents(rent, scale * up, stage.start_w[k], up_last, up_above, b)
    _add_rents(rent, scale * given, stage.start_w[k], given_last, given_above, b)
    _add_rents(rent, scale * edge, stage.edge_start_w[k], edge_last, edge_above, b)
    return phi, feasible, c, worth, f, q, down_s, saves_s


@compiled
def tangent(
    stage: Stage, k: int, share: Array, T: float, rho: float, lam: float, curve: Array, spare: Array, rent: Array
) -> tuple[float, bool]:
    """(phi_k, True) and the rents of phi_k; (c_k, False) and the rents of c_k where T is too short or there is no price.

    The arguments are those of `linearise`.
    """
    phi, feasible, c, _, _, _, _, _ = linearise(stage, k, share, T, rho, lam, curve, spare, rent)
    return (phi, True) if feasible else (c, False)


@compiled
def rents(stage: Stage, share: Array, T: float, rho: float, lam: float, H: Array, point: Array, weight: Array) -> None:
    """Linearise every client's seconds, which are convex in its shares, cycles and power, where it keeps T at the price rho.

    Fills three arrays. H [K, I]: the seconds that a share saves. point [K, 6]: c_k plus the downlink, n / f, f, q, and the
    seconds that a cycle per second and a watt save. weight [K]: the multipliers of the deadlines, not normalised. Where T is
    so near c_k that no digit of T - c_k is left, the client gets the last digit: a tangent may touch anywhere.
    """
    K, subs = share.shape
    curve, spare = np.empty((CURVE_ROWS, subs)), np.empty((CURVE_ROWS, subs))
    unit = stage.hz / stage.power_w
    cycle_price = 1.0 - lam if rho == unit else unit / (rho + unit)  # of a price near 1 the difference has no digits
    for k in range(K):
        n, d = stage.cycles[k], stage.down_bits[k]
        if not needs_subchannel(stage, k):
            t = max(T - stage.fixed_s[k], LAST_DIGIT * T)
            H[k] = 0.0
            point[k] = 0.0
            point[k, 0] = stage.fixed_s[k]
            weight[k] = 0.0
            if n > 0.0:
                point[k, 1], point[k, 2], point[k, 4] = t, n / t, t * t / n
                weight[k] = cycle_price * n / (t * t * stage.hz)
            continue
        _, feasible, c, worth, f, q, down_s, saves_s = linearise(stage, k, share[k], T, rho, 0.5, curve, spare, H[k])
        if not feasible and math.isfinite(c) and (n > 0.0 or d > 0.0):
            _, feasible, c, worth, f, q, down_s, saves_s = linearise(
                stage, k, share[k], c * (1.0 + LAST_DIGIT), rho, 0.5, curve, spare, H[k]
            )
        point[k] = 0.0
        point[k, 0] = c + down_s
        weight[k] = 0.0
        if feasible:
            H[k] /= worth
            weight[k] = 2.0 * worth * (cycle_price if n > 0.0 else lam)
            point[k, 3], point[k, 5] = q, saves_s
            if n > 0.0:
                point[k, 1], point[k, 2], point[k, 4] = n / f, f, n / f / f
