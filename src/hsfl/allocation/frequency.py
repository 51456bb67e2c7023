"""Server cycles and downlink power, jointly optimal for a fixed assignment of subchannels.

Legend: K clients, I subchannels. All prices and times are for one stage of a round (see `stage.Stage`).

For client k with its subchannels fixed, uplink times are constants (water-filling at full power), so

    minimise T  s.t.  c_k + n_k / f_k + d_k / R_k(q_k) <= T,   sum f_k <= hz,   sum q_k <= power        (P)

is convex. Price a watt at rho cycles. At the price, client k minimises f + rho q subject to its deadline, and the
optimality condition is an equation in its water level w alone (Lagrange on f and q, R' = b / w with b = B / ln 2):

    (T - c_k) R(w) = d_k + sqrt(n_k d_k b / (rho w))                                                    (KKT)

with R linear and the right side convex in u = ln w, so Newton's method from the left is monotone. Two outer equations
(sum f = hz, sum q = power) fix T and rho. The price also proves the bound: for every rho the T at which the priced sum
(1 - lam) sum f / hz + lam sum q / power equals 1, rho = lam hz / ((1 - lam) power), is a lower bound on (P).
"""

import math

import numpy as np

from hsfl.allocation.compiled import compiled
from hsfl.allocation.stage import Stage

Array = np.ndarray

# Rows of a rate curve: the water-filled rate of a client on its subchannels, sorted from the best, as a function of
# u = ln(w / w0) where w0 is the level at which the best one starts. START is the level of each; SHARE, FLOOR (of
# start - w0) and LOG_FLOOR (of ln(start / w0)) are sums over the first a subchannels, weighted by their shares.
START, LOG_RATIO, SHARE, FLOOR, LOG_FLOOR = 0, 1, 2, 3, 4
CURVE_ROWS = 5


@compiled
def fill_curve(curve: Array, order: Array, start: Array, log_start: Array, share: Array) -> tuple[int, float]:
    """Sorted sums over subchannels with share > 0; returns (how many, w0). `order` lists the best first."""
    count = 0
    w0, log0 = math.inf, 0.0
    width, floor, log_floor = 0.0, 0.0, 0.0
    for i in order:
        s = share[i]
        if s <= 0.0:
            continue
        if count == 0:
            w0, log0 = start[i], log_start[i]
        log_ratio = log_start[i] - log0
        width += s
        floor += s * (start[i] - w0)
        log_floor += s * log_ratio
        curve[START, count] = start[i]
        curve[LOG_RATIO, count] = log_ratio
        curve[SHARE, count] = width
        curve[FLOOR, count] = floor
        curve[LOG_FLOOR, count] = log_floor
        count += 1
    return count, w0


@compiled
def filled_nats(curve: Array, count: int, w0: float, power: float) -> tuple[float, float]:
    """Water-filling: (sum of s ln(1 + p / (s start)) at total `power`, u). Rates are b times the first."""
    a = count - 1
    while a > 0 and power + curve[FLOOR, a] <= (curve[START, a] - w0) * curve[SHARE, a]:
        a -= 1
    u = math.log1p((power + curve[FLOOR, a]) / (curve[SHARE, a] * w0))
    return curve[SHARE, a] * u - curve[LOG_FLOOR, a], u


@compiled
def respond(
    curve: Array, count: int, w0: float, t: float, n: float, d: float, b: float, rho: float
) -> tuple[float, float, float, int]:
    """(KKT): the cheapest (f, q, u) with n / f + d / R(q) = t when a watt costs rho cycles; and how many are active."""
    if t <= 0.0:
        return math.inf if n > 0.0 else 0.0, math.inf if d > 0.0 else 0.0, 0.0, 0
    if d == 0.0:
        return n / t, 0.0, 0.0, 0
    kappa = math.sqrt(n * d * b / (rho * w0))
    active = 1
    while active < count and (
        t * b * (curve[SHARE, active - 1] * curve[LOG_RATIO, active] - curve[LOG_FLOOR, active - 1])
        < d + kappa * math.sqrt(w0 / curve[START, active])
    ):
        active += 1
    width, log_floor = curve[SHARE, active - 1], curve[LOG_FLOOR, active - 1]
    u = 0.0 if active == 1 else curve[LOG_RATIO, active - 1]
    slope = t * b * width
    for _ in range(100):
        pull = kappa * math.exp(-0.5 * u)
        step = (d + pull - slope * u + t * b * log_floor) / (slope + 0.5 * pull)
        u += step
        if step <= 1e-14 * u:
            break
    if u > 690.0:
        return math.inf if n > 0.0 else 0.0, math.inf, u, active
    q = width * w0 * math.expm1(u) - curve[FLOOR, active - 1]
    f = 0.0 if n == 0.0 else n * b * (width * u - log_floor) / (kappa * math.exp(-0.5 * u))
    return f, q, u, active


@compiled
def client_curves(
    curves: Array, counts: Array, w0s: Array, fixed_s: Array, stage: Stage, share: Array, chosen: Array
) -> None:
    """Curves [K, 5, I] and uplink constants c_k of the chosen clients, for shares [K, I] of the subchannels."""
    b = stage.subchannel_hz / math.log(2.0)
    spare = np.empty((CURVE_ROWS, share.shape[1]))
    for k in range(share.shape[0]):
        if not chosen[k]:
            continue
        counts[k], w0s[k] = fill_curve(curves[k], stage.order[k], stage.start_w[k], stage.log_start[k], share[k])
        fixed_s[k] = uplink_s(stage, k, curves[k], counts[k], w0s[k], spare, share[k], b)


@compiled
def uplink_s(stage: Stage, k: int, curve: Array, count: int, w0: float, spare: Array, share: Array, b: float) -> float:
    """c_k: own computation plus transfers of given power, water-filled; infinite where bits have no subchannel."""
    total = stage.fixed_s[k]
    if count == 0:
        bits = stage.up_bits[k] + stage.edge_bits[k] + stage.down_bits[k] + stage.given_bits[k]
        return total if bits == 0.0 else math.inf
    if stage.up_bits[k] > 0.0:
        nats, _ = filled_nats(curve, count, w0, stage.up_power_w[k])
        total += stage.up_bits[k] / (b * nats)
    if stage.given_bits[k] > 0.0:
        nats, _ = filled_nats(curve, count, w0, stage.given_power_w[k])
        total += stage.given_bits[k] / (b * nats)
    if stage.edge_bits[k] > 0.0:
        m, e0 = fill_curve(spare, stage.edge_order[k], stage.edge_start_w[k], stage.edge_log_start[k], share)
        nats, _ = filled_nats(spare, m, e0, stage.up_power_w[k])
        total += stage.edge_bits[k] / (b * nats)
    return total


@compiled
def usage(
    stage: Stage, curves: Array, counts: Array, w0s: Array, c: Array, chosen: Array, T: float, rho: float
) -> tuple[float, float, float, float, float, float]:
    """Fractions of both budgets at (T, rho) and their derivatives: F, Q, dF/dT, dF/dln rho, dQ/dT, dQ/dln rho."""
    b = stage.subchannel_hz / math.log(2.0)
    F, Q, FT, FR, QT, QR = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(c.shape[0]):
        n, d = stage.cycles[k], stage.down_bits[k]
        if not chosen[k] or (n == 0.0 and d == 0.0):
            continue
        t = T - c[k]
        f, q, u, a = respond(curves[k], counts[k], w0s[k], t, n, d, b, rho)
        F += f
        Q += q
        if math.isinf(f) or math.isinf(q):
            continue
        if d == 0.0:
            FT -= f / t
            continue
        width = curves[k, SHARE, a - 1]
        nats = width * u - curves[k, LOG_FLOOR, a - 1]
        pull = max(t * b * nats - d, 0.0) if n > 0.0 else 0.0
        slope = t * b * width + 0.5 * pull
        u_t, u_r = -b * nats / slope, -0.5 * pull / slope
        q_u = w0s[k] * width * math.exp(u)
        f_u = f * (width / nats + 0.5)
        FT += f_u * u_t
        FR += f * 0.5 + f_u * u_r
        QT += q_u * u_t
        QR += q_u * u_r
    return F / stage.hz, Q / stage.power_w, FT / stage.hz, FR / stage.hz, QT / stage.power_w, QR / stage.power_w


@compiled
def _needs(stage: Stage, c: Array, chosen: Array) -> tuple[float, float, bool, bool, bool]:
    """(largest c of clients with an own deadline only, largest c of the others, any cycles, any power, any both)."""
    idle, busy, cycles, power, both = -math.inf, -math.inf, False, False, False
    for k in range(c.shape[0]):
        if not chosen[k]:
            continue
        n, d = stage.cycles[k] > 0.0, stage.down_bits[k] > 0.0
        cycles, power, both = cycles or n, power or d, both or (n and d)
        if n or d:
            busy = max(busy, c[k])
        else:
            idle = max(idle, c[k])
    return idle, busy, cycles, power, both


@compiled
def _one_budget(
    stage: Stage,
    curves: Array,
    counts: Array,
    w0s: Array,
    c: Array,
    chosen: Array,
    rho: float,
    start: float,
    lam: float,
) -> float:
    """T where the priced sum (1 - lam) F + lam Q is 1: Newton's method on its logarithm, then bisection."""
    low, high = 0.0, math.inf
    T = start
    for step in range(2000):
        F, Q, FT, _, QT, _ = usage(stage, curves, counts, w0s, c, chosen, T, rho)
        value, slope = 0.0, 0.0
        if lam < 1.0:
            value += (1.0 - lam) * F
            slope += (1.0 - lam) * FT
        if lam > 0.0:
            value += lam * Q
            slope += lam * QT
        if value > 1.0:
            low = T
        else:
            high = T
        if abs(value - 1.0) < 1e-13 or high - low < 1e-15 * high:
            break
        new = math.inf
        if step < 60 and math.isfinite(value) and slope < 0.0 and value > 0.0:
            new = T - value * math.log(value) / slope
        if not (low < new < high):
            new = 0.5 * (low + high) if math.isfinite(high) else 4.0 * T
        T = new
    return T


@compiled
def _nested(
    stage: Stage, curves: Array, counts: Array, w0s: Array, c: Array, chosen: Array, start: float
) -> tuple[float, float]:
    """The robust way: bisection on ln rho around the T of each price. Slow, and only where Newton's method fails."""
    unit = stage.hz / stage.power_w
    low, high = -80.0, 80.0
    best_T, best = -math.inf, 0.0
    T = start
    for _ in range(120):
        r = 0.5 * (low + high)
        rho = unit * math.exp(r)
        T = _one_budget(stage, curves, counts, w0s, c, chosen, rho, T, 1.0 / (1.0 + math.exp(-r)))
        F, Q, _, _, _, _ = usage(stage, curves, counts, w0s, c, chosen, T, rho)
        if best_T < T:
            best_T, best = T, rho
        if abs(F - Q) < 1e-13:
            break
        if Q > F:
            low = r
        else:
            high = r
    return best_T, best


@compiled
def _joint_newton(
    stage: Stage, curves: Array, counts: Array, w0s: Array, c: Array, chosen: Array, T: float, rho: float
) -> tuple[float, float, bool]:
    """sum f = hz and sum q = power by Newton's method in (ln T, ln rho); False where it does not settle."""
    z, r = math.log(T), math.log(rho)
    for _ in range(40):
        T, rho = math.exp(z), math.exp(r)
        F, Q, FT, FR, QT, QR = usage(stage, curves, counts, w0s, c, chosen, T, rho)
        if not (math.isfinite(F) and math.isfinite(Q)) or F <= 0.0 or Q <= 0.0:
            z += 1.0
            continue
        a1, a2 = math.log(F), math.log(Q)
        if abs(a1) < 1e-13 and abs(a2) < 1e-13:
            return T, rho, True
        j11, j12, j21, j22 = FT * T / F, FR / F, QT * T / Q, QR / Q
        det = j11 * j22 - j12 * j21
        if det == 0.0 or not math.isfinite(det):
            return T, rho, False
        dz, dr = (-a1 * j22 + a2 * j12) / det, (-a2 * j11 + a1 * j21) / det
        scale = min(1.0, 2.0 / max(abs(dz), 1e-300), 6.0 / max(abs(dr), 1e-300))
        z += scale * dz
        r += scale * dr
        if abs(dz) < 1e-14 * max(1.0, abs(z)) and abs(dr) < 1e-13 * max(1.0, abs(r)):
            return math.exp(z), math.exp(r), abs(a1) < 1e-10 and abs(a2) < 1e-10
    return T, rho, False


@compiled
def solve_fixed(
    stage: Stage, curves: Array, counts: Array, w0s: Array, c: Array, chosen: Array, start: float, rho: float
) -> tuple[float, float, float]:
    """(P) for given curves: (T, rho, lam). `start` and `rho` warm the search; pass 0 for none.

    Inside, time counts from the largest c of a client that shares a budget: T - c_k keeps its digits where T is near c.
    """
    idle, busy, cycles, power, both = _needs(stage, c, chosen)
    unit = stage.hz / stage.power_w
    if math.isinf(max(idle, busy)):
        return math.inf if max(idle, busy) > 0.0 else 0.0, unit, 0.5
    if not cycles and not power:
        return idle, unit, 0.5
    c = c - busy
    start = start - busy if start > busy else stage.cycles.sum() / stage.hz + 1e-3 * abs(busy) + 1e-12
    if not both:
        T, lam = -math.inf, 0.0
        if cycles:
            T = _one_budget(stage, curves, counts, w0s, c, chosen, unit, start, 0.0)
        if power:
            other = _one_budget(stage, curves, counts, w0s, c, chosen, unit, start, 1.0)
            if other > T:
                T, lam = other, 1.0
        return max(busy + T, idle), unit, lam
    if rho <= 0.0:
        rho = unit
    T, rho, settled = _joint_newton(stage, curves, counts, w0s, c, chosen, start, rho)
    if not settled:
        T, rho = _nested(stage, curves, counts, w0s, c, chosen, start)
    return max(busy + T, idle), rho, rho / (rho + unit)
