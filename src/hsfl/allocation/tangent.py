"""Tangents of a client's price: a lower bound on all sets of subchannels, exact at one of them.

Legend: I subchannels, S a set of them, phi_k(S) the price of client k (see `spectrum`).

A water-filled rate is R(S) = min over nu of nu P + sum_{i in S} h_i(nu), with h_i(nu) = max_p [b ln(1 + p / start_i)
- nu p] >= 0. Freeze the levels nu of the three rates (up, edge up, down) at those of a set S0: every rate is at most a
sum over subchannels, with equality at S0. And phi_k is convex and decreasing in the three rates (1 / R is convex, and
so is 1 over the positive concave time that is left), so its linearisation at the rates of S0 gives

    phi_k(S) >= phi_k(S0) + g(S0) - g(S)  for all S, equality at S0;  g_i = -sum over rates of dphi/dR h_i    (tangent)

The rents g_i say what subchannel i is worth to client k. The same holds for fractions s_i in place of sets, which is
why these are also the gradients of the bandwidth-sharing problem.
"""

import math

import numpy as np

from hsfl.allocation.compiled import compiled
from hsfl.allocation.curve import CURVE_ROWS, NATS, SHARE, START, fill_curve, filled, respond
from hsfl.allocation.stage import Stage, needs_subchannel

Array = np.ndarray
LAST_DIGIT = 4e-16
ROUNDING = 1e-13  # of what a tangent is made of: more than its sums of positive terms can be wrong by


@compiled
def surplus(start: float, depth: float) -> float:
    """ln(1 + y) - y / (1 + y), y = depth / start: the nats that a subchannel gains beyond what its power costs."""
    if depth > 0.1 * start:
        x = start / (start + depth)
        return x - 1.0 - math.log(x)
    y = depth / start
    if y > 1e-3:
        return math.log1p(y) - y / (1.0 + y)
    return y * y * (0.5 - y * (2.0 / 3.0 - y * (0.75 - y * (0.8 - y * (5.0 / 6.0)))))


@compiled
def _add_rents(rent: Array, weight: float, start: Array, last: float, above: float, b: float) -> None:
    """rent_i += weight h_i: what a subchannel adds to a rate whose water stands `above` the start `last`."""
    if weight == 0.0:
        return
    for i in range(rent.shape[0]):
        depth = (last - start[i]) + above
        if depth > 0.0:
            rent[i] += weight * b * surplus(start[i], depth)


@compiled
def linearise(
    stage: Stage, k: int, share: Array, T: float, rho: float, lam: float, curve: Array, spare: Array, rent: Array
) -> tuple[float, bool, float, float, float, float, float, float]:
    """(phi_k, feasible?, c_k, worth of a second, f, q, downlink seconds, seconds a watt saves); rents g [I] in `rent`.

    Where T is too short, or the client has no price, the rents are those of c_k.
    """
    b = stage.subchannel_hz / math.log(2.0)
    rent[:] = 0.0
    count = fill_curve(curve, stage.order[k], stage.start_w[k], stage.log_start[k], share)
    c = stage.fixed_s[k]
    up, up_last, up_above = 0.0, 1.0, 0.0
    edge, edge_last, edge_above = 0.0, 1.0, 0.0
    given, given_last, given_above = 0.0, 1.0, 0.0
    if stage.up_bits[k] > 0.0:
        nats, up_last, up_above = filled(curve, count, stage.up_power_w[k])
        up = stage.up_bits[k] / (b * nats * b * nats)
        c += stage.up_bits[k] / (b * nats)
    if stage.given_bits[k] > 0.0:
        nats, given_last, given_above = filled(curve, count, stage.given_power_w[k])
        given = stage.given_bits[k] / (b * nats * b * nats)
        c += stage.given_bits[k] / (b * nats)
    if stage.edge_bits[k] > 0.0:
        m = fill_curve(spare, stage.edge_order[k], stage.edge_start_w[k], stage.edge_log_start[k], share)
        nats, edge_last, edge_above = filled(spare, m, stage.up_power_w[k])
        edge = stage.edge_bits[k] / (b * nats * b * nats)
        c += stage.edge_bits[k] / (b * nats)
    n, d = stage.cycles[k], stage.down_bits[k]
    f, q, x, a = respond(curve, count, T - c, n, d, b, rho)
    if c >= T or math.isinf(f) or math.isinf(q) or (n == 0.0 and d == 0.0):
        _add_rents(rent, up, stage.start_w[k], up_last, up_above, b)
        _add_rents(rent, given, stage.start_w[k], given_last, given_above, b)
        _add_rents(rent, edge, stage.edge_start_w[k], edge_last, edge_above, b)
        return math.inf, False, c, 0.0, f, q, 0.0, 0.0
    phi, worth, rate, down_s, above, saves_s = 0.0, 0.0, 1.0, 0.0, 0.0, 0.0
    if d > 0.0:
        rate = b * (curve[NATS, a] + curve[SHARE, a] * x)
        down_s = d / rate
        above = curve[START, a] * math.expm1(x)
        saves_s = down_s * b / (rate * (curve[START, a] + above))
        phi += lam * q / stage.power_w
        worth = lam / (stage.power_w * saves_s)
    if n > 0.0:
        phi += (1.0 - lam) * f / stage.hz
        worth = (1.0 - lam) * f * f / (n * stage.hz)
    if d > 0.0:
        _add_rents(rent, worth * d / (rate * rate), stage.start_w[k], curve[START, a], above, b)
    _add_rents(rent, worth * up, stage.start_w[k], up_last, up_above, b)
    _add_rents(rent, worth * given, stage.start_w[k], given_last, given_above, b)
    _add_rents(rent, worth * edge, stage.edge_start_w[k], edge_last, edge_above, b)
    return phi, True, c, worth, f, q, down_s, saves_s


@compiled
def tangent(
    stage: Stage, k: int, share: Array, T: float, rho: float, lam: float, curve: Array, spare: Array, rent: Array
) -> tuple[float, bool]:
    """(phi_k, True) and its rents; (c_k, False) and the rents of c_k where T is too short or there is no price."""
    phi, feasible, c, _, _, _, _, _ = linearise(stage, k, share, T, rho, lam, curve, spare, rent)
    return (phi, True) if feasible else (c, False)


@compiled
def rents(stage: Stage, share: Array, T: float, rho: float, lam: float, H: Array, point: Array, weight: Array) -> None:
    """Every client's seconds, linearised where it keeps T at the price rho: they are convex in its shares, cycles, power.

    H [K, I] is what a share saves, in seconds; point [K, 6] holds c_k plus the downlink, n / f, f, q, and what a cycle per
    second and a watt save; weight [K] are the multipliers of the deadlines, not normalised. Where T is so near c_k that
    nothing is left in its digits, the last digit is given to the client: a tangent is one wherever it touches.
    """
    K, subs = share.shape
    curve, spare = np.empty((CURVE_ROWS, subs)), np.empty((CURVE_ROWS, subs))
    unit = stage.hz / stage.power_w
    rest = 1.0 - lam if rho == unit else unit / (rho + unit)  # of a price near 1 the difference has no digits
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
                weight[k] = rest * n / (t * t * stage.hz)
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
            weight[k] = 2.0 * worth * (rest if n > 0.0 else lam)
            point[k, 3], point[k, 5] = q, saves_s
            if n > 0.0:
                point[k, 1], point[k, 2], point[k, 4] = n / f, f, n / f / f
