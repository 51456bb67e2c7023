"""Cycles and power, up and down, where the subchannels of every client (their shares) are fixed: server cycles and downlink power jointly
optimal, uplink power by water-filling (`uplink_powers`).

Legend: K clients, I subchannels; T the seconds of the stage (see `stage.Stage`); c_k the seconds of client k without the server and
the downlink; n_k cycles and d_k bits that it needs, f_k cycles per second and q_k watts that it gets; R_k its downlink rate, w its
water level; rho the price of a watt in cycles per second, and lam the same price between 0 and 1.

Where the subchannels of client k are fixed, its uplink times are constants (water-filling at full power), so

    minimise T  s.t.  c_k + n_k / f_k + d_k / R_k(q_k) <= T,   sum f_k <= hz,   sum q_k <= power        (P)

is convex. Let a watt cost rho cycles per second. At this price client k minimises f + rho q subject to its deadline, and
the optimality condition is an equation in the client's water level w alone (Lagrange on f and q, R' = b / w with b = B / ln 2):

    (T - c_k) R(w) = d_k + sqrt(n_k d_k b / (rho w))                                                    (KKT)

R is linear and the right side is convex in u = ln w, so Newton's method from the left is monotone (`water_filling.respond`). Two
outer equations (sum f = hz, sum q = power) fix T and rho (`solve_fixed`). The price also proves a bound: with
rho = lam hz / ((1 - lam) power), the T at which the priced sum (1 - lam) sum f / hz + lam sum q / power equals 1 is a lower bound on
(P), for every lam.

`spend` turns shares and a deadline into cycles per second and into watts on every subchannel, inside the budgets.
"""

import math

import numpy as np

from hsfl.allocation.numba_cache import compiled
from hsfl.allocation.stage.stage import Stage, needs_subchannel
from hsfl.allocation.stage.water_filling import CURVE_ROWS, NATS, START, WIDTH, fill_curve, filled, filled_nats, respond

Array = np.ndarray
WIDEST = 230.0  # of ln rho around hz / power
INSIDE = 1.0 - 4e-16  # sums of rounded parts must not pass the budget


@compiled
def client_curves(curves: Array, counts: Array, fixed_s: Array, stage: Stage, share: Array) -> None:
    """Fill curves [K, 4, I], their counts [K] and the own seconds c_k [K] (in fixed_s) for shares [K, I]."""
    b = stage.subchannel_hz / math.log(2.0)
    spare = np.empty((CURVE_ROWS, share.shape[1]))
    for k in range(share.shape[0]):
        counts[k] = fill_curve(curves[k], stage.order[k], stage.start_w[k], stage.log_start[k], share[k])
        fixed_s[k] = uplink_s(stage, k, curves[k], counts[k], spare, share[k], b)


@compiled
def uplink_s(stage: Stage, k: int, curve: Array, count: int, spare: Array, share: Array, b: float) -> float:
    """The own seconds c_k of client k: its computation and its transfers of given power, water-filled.

    `curve` and `count` are of the shares [I] towards the main server; `spare` is scratch. Infinite where bits have no
    subchannel.
    """
    total = stage.fixed_s[k]
    if count == 0:
        return math.inf if needs_subchannel(stage, k) else total
    if stage.up_bits[k] > 0.0:
        total += stage.up_bits[k] / (b * filled_nats(curve, count, stage.up_power_w[k]))
    if stage.given_bits[k] > 0.0:
        total += stage.given_bits[k] / (b * filled_nats(curve, count, stage.given_power_w[k]))
    if stage.edge_bits[k] > 0.0:
        m = fill_curve(spare, stage.edge_order[k], stage.edge_start_w[k], stage.edge_log_start[k], share)
        total += stage.edge_bits[k] / (b * filled_nats(spare, m, stage.up_power_w[k]))
    return total


@compiled
def usage(
    stage: Stage, curves: Array, counts: Array, c: Array, T: float, rho: float
) -> tuple[float, float, float, float, float, float]:
    """The fractions F, Q of both budgets that are used at (T, rho): F, Q, dF/dT, dF/dln rho, dQ/dT, dQ/dln rho."""
    b = stage.subchannel_hz / math.log(2.0)
    F, Q, FT, FR, QT, QR = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(c.shape[0]):
        n, d = stage.cycles[k], stage.down_bits[k]
        if n == 0.0 and d == 0.0:
            continue
        t = T - c[k]
        f, q, x, a = respond(curves[k], counts[k], t, n, d, b, rho)
        F += f
        Q += q
        if math.isinf(f) or math.isinf(q):
            continue
        if d == 0.0:
            FT -= f / t
            continue
        width = curves[k, WIDTH, a]
        nats = curves[k, NATS, a] + width * x
        pull = n * b * nats / f if n > 0.0 else 0.0
        slope = t * b * width + 0.5 * pull
        x_t, x_r = -b * nats / slope, -0.5 * pull / slope
        q_x = curves[k, START, a] * width * math.exp(x)
        f_x = f * (width / nats + 0.5)
        FT += f_x * x_t
        FR += f * 0.5 + f_x * x_r
        QT += q_x * x_t
        QR += q_x * x_r
    return F / stage.hz, Q / stage.power_w, FT / stage.hz, FR / stage.hz, QT / stage.power_w, QR / stage.power_w


@compiled
def client_needs(stage: Stage, c: Array) -> tuple[float, float, bool, bool, bool]:
    """What the clients need: (idle, busy, some need cycles, some need power, some need both).

    busy is the largest c of the clients that need cycles or power, idle the largest c of the others.
    """
    idle, busy, cycles, power, both = -math.inf, -math.inf, False, False, False
    for k in range(c.shape[0]):
        n, d = stage.cycles[k] > 0.0, stage.down_bits[k] > 0.0
        cycles, power, both = cycles or n, power or d, both or (n and d)
        if n or d:
            busy = max(busy, c[k])
        else:
            idle = max(idle, c[k])
    return idle, busy, cycles, power, both


# --- The least T and its price


@compiled
def solve_fixed(
    stage: Stage, curves: Array, counts: Array, c: Array, start: float, rho: float
) -> tuple[float, float, float]:
    """Solve (P) for given curves, as `_solve_later` does: (T, rho, lam)."""
    busy, later, idle, rho, lam = _solve_later(stage, curves, counts, c, start, rho)
    return max(busy + later, idle, 0.0), rho, lam


@compiled
def _solve_later(
    stage: Stage, curves: Array, counts: Array, c: Array, start: float, rho: float
) -> tuple[float, float, float, float, float]:
    """Solve (P) for given curves: (busy, later, idle, rho, lam).

    busy is the largest c of the clients that need cycles or power, and later the seconds from busy to the end of these
    clients; idle is the largest c of the others. So T is the larger of busy + later and idle. Time counts from busy,
    because T - c_k has no digits where T is near c_k. `start`, a guess of T, and `rho` shorten the iteration; pass 0 where
    there is no guess.
    """
    idle, busy, cycles, power, both = client_needs(stage, c)
    unit = stage.hz / stage.power_w
    if math.isinf(max(idle, busy)) or not (cycles or power):
        return busy, 0.0, idle, unit, 0.5
    c = c - busy
    start = start - busy if start > busy else stage.cycles.sum() / stage.hz + 1e-3 * abs(busy)
    if not start > 0.0:
        start = _even_deadline(stage, curves, counts, c)
    if not both:
        T, lam = -math.inf, 0.0
        if cycles:
            T = _one_budget(stage, curves, counts, c, unit, start, 0.0, 1.0)
        if power:
            other = _one_budget(stage, curves, counts, c, unit, start, 1.0, 0.0)
            if other > T:
                T, lam = other, 1.0
        return busy, T, idle, unit, lam
    if rho <= 0.0:
        rho = unit
    T, price, settled = _joint_newton(stage, curves, counts, c, start, rho)
    if not settled:
        T, price = _nested(stage, curves, counts, c, start, rho)
    return busy, T, idle, price, price / (price + unit)


@compiled
def _even_deadline(stage: Stage, curves: Array, counts: Array, c: Array) -> float:
    """A T that both budgets allow: every client that needs cycles or power gets an even part."""
    b = stage.subchannel_hz / math.log(2.0)
    num_busy, longest = 0, 0.0
    for k in range(c.shape[0]):
        num_busy += stage.cycles[k] > 0.0 or stage.down_bits[k] > 0.0
    for k in range(c.shape[0]):
        n, d, T = stage.cycles[k], stage.down_bits[k], c[k]
        if n > 0.0:
            T += num_busy * n / stage.hz
        if d > 0.0:
            T += d / (b * filled_nats(curves[k], counts[k], stage.power_w / num_busy))
        if n > 0.0 or d > 0.0:
            longest = max(longest, T)
    return longest * (1.0 + 1e-9)


@compiled
def _one_budget(
    stage: Stage, curves: Array, counts: Array, c: Array, rho: float, start: float, lam: float, rest: float
) -> float:
    """The T where the priced sum (1 - lam) F + lam Q is 1: Newton's method on its logarithm, else halving ln T.

    start: a guess of T. rest: 1 - lam, whose digits the difference would lose near 1.
    """
    low, high = 0.0, math.inf
    T = start
    for step in range(200):
        F, Q, FT, _, QT, _ = usage(stage, curves, counts, c, T, rho)
        value, slope = 0.0, 0.0
        if rest > 0.0:
            value += rest * F
            slope += rest * FT
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
            if math.isinf(high):
                high = max(_even_deadline(stage, curves, counts, c), low)
            new = math.sqrt(low) * math.sqrt(high) if low > 0.0 else high / 64.0
        T = new
    return T


@compiled
def _nested(stage: Stage, curves: Array, counts: Array, c: Array, start: float, rho: float) -> tuple[float, float]:
    """(T, rho) by false position on ln rho, with the T of each price inside: robust, for where Newton's method fails.

    Every price gives a lower bound on T; the largest of these bounds is the answer.
    """
    unit = stage.hz / stage.power_w
    r = min(max(math.log(rho / unit), -WIDEST), WIDEST) if rho > 0.0 else 0.0
    low, high, at_low, at_high = -WIDEST, WIDEST, 0.0, 0.0  # at: ln F - ln Q there; 0 where not known
    best_T, best, T, stride, last = -math.inf, unit, start, 2.0, 0.0
    for _ in range(100):
        odds = math.exp(-abs(r))
        lam, rest = (odds, 1.0) if r < 0.0 else (1.0, odds)
        T = _one_budget(stage, curves, counts, c, unit * math.exp(r), T, lam / (1.0 + odds), rest / (1.0 + odds))
        F, Q, _, _, _, _ = usage(stage, curves, counts, c, T, unit * math.exp(r))
        if best_T < T:
            best_T, best = T, unit * math.exp(r)
        if not (F > 0.0 and Q > 0.0 and math.isfinite(F) and math.isfinite(Q)):
            difference = 1.0 if Q < F else -1.0
        else:
            difference = math.log(F) - math.log(Q)
        if abs(difference) < 1e-13:
            break
        again = 0.5 if difference * last > 0.0 else 1.0  # the same side twice: the other end counts half (Illinois)
        if difference < 0.0:
            low, at_low, at_high = r, difference, again * at_high
        else:
            high, at_high, at_low = r, difference, again * at_low
        last = difference
        if high - low < 1e-14 * max(1.0, abs(r)):
            break
        if at_low < 0.0 and at_high > 0.0:
            r = low + (high - low) * at_low / (at_low - at_high)
            if not low < r < high:
                r = 0.5 * (low + high)
        else:  # only one side is known yet
            r = min(r + stride, high) if difference < 0.0 else max(r - stride, low)
            stride *= 2.0
    return best_T, best


@compiled
def _joint_newton(
    stage: Stage, curves: Array, counts: Array, c: Array, T: float, rho: float
) -> tuple[float, float, bool]:
    """Solve sum f = hz and sum q = power by Newton's method in (ln T, ln rho): (T, rho, did it settle?)."""
    z, r = math.log(T), math.log(rho)
    for _ in range(40):
        T, rho = math.exp(z), math.exp(r)
        F, Q, FT, FR, QT, QR = usage(stage, curves, counts, c, T, rho)
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


# --- Cycles and watts at that T, inside the budgets


@compiled
def water_fill(
    power_w: float, row: Array, curve: Array, order: Array, start: Array, log_start: Array, share: Array
) -> None:
    """Water-filling of power_w watts into row [I]: p_i = s_i (w - start_i) where positive, with a sum of power_w.

    order, start, log_start and share are [I], as in `water_filling.fill_curve`; curve is scratch.
    """
    row[:] = 0.0
    count = fill_curve(curve, order, start, log_start, share)
    if count == 0 or power_w <= 0.0:
        return
    _, last, above = filled(curve, count, power_w)
    total = 0.0
    for i in order:
        if share[i] > 0.0:
            row[i] = share[i] * max(0.0, (last - start[i]) + above)
            total += row[i]
    row *= power_w / total * INSIDE


@compiled
def water_fill_downlink(stage: Stage, share: Array, power_w: Array, down: Array) -> None:
    """Water-filling of each client's downlink power power_w [K] on its subchannels, into down [K, I]."""
    curve = np.empty((CURVE_ROWS, share.shape[1]))
    for k in range(share.shape[0]):
        bits = stage.down_bits[k] + stage.given_bits[k]
        p = power_w[k] if bits > 0.0 else 0.0
        water_fill(p, down[k], curve, stage.order[k], stage.start_w[k], stage.log_start[k], share[k])


@compiled
def uplink_powers(stage: Stage, share: Array, main: Array, edge: Array) -> None:
    """Water-filling of every client's full power on its subchannels, towards both servers, into main and edge [K, I]."""
    curve = np.empty((CURVE_ROWS, share.shape[1]))
    for k in range(share.shape[0]):
        p = stage.up_power_w[k]
        water_fill(p, main[k], curve, stage.order[k], stage.start_w[k], stage.log_start[k], share[k])
        water_fill(p, edge[k], curve, stage.edge_order[k], stage.edge_start_w[k], stage.edge_log_start[k], share[k])


@compiled
def _downlink(stage: Stage, share: Array, T: float, rho: float, hz: Array, down: Array) -> None:
    """The optimal cycles per second hz [K] and downlink power down [K, I] for the shares; both budgets are spent.

    T and rho shorten the iteration. The seconds that each client has left after its own seconds are solved for again,
    because the difference T - c_k may have lost its digits.
    """
    K, subs = share.shape
    b = stage.subchannel_hz / math.log(2.0)
    curves, counts, c = np.empty((K, CURVE_ROWS, subs)), np.zeros(K, np.int64), np.empty(K)
    client_curves(curves, counts, c, stage, share)
    busy, later, idle, rho, _ = _solve_later(stage, curves, counts, c, T, rho)
    later = max(later, idle - busy)
    q = np.zeros(K)
    for k in range(K):
        n, d = stage.cycles[k], stage.down_bits[k]
        hz[k] = 0.0
        if n > 0.0 or d > 0.0:
            hz[k], q[k], _, _ = respond(curves[k], counts[k], later + (busy - c[k]), n, d, b, rho)
    if hz.sum() > 0.0:
        hz *= stage.hz / hz.sum() * INSIDE
    if q.sum() > 0.0:
        q *= stage.power_w / q.sum() * INSIDE
    for k in range(K):
        water_fill(q[k], down[k], curves[k], stage.order[k], stage.start_w[k], stage.log_start[k], share[k])


def spend(stage: Stage, share: Array, T_s: float, rho: float) -> tuple[Array, Array, Array, Array]:
    """What the shares [K, I] spend at best: (server_hz [K], watts to and from the main server, to the edge server [K, I]).

    T_s and rho, the least T and its price for these shares, shorten the iteration.
    """
    hz, shape = np.zeros(len(stage.cycles)), share.shape
    up, down, edge = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    uplink_powers(stage, share, up, edge)
    _downlink(stage, share, T_s, rho, hz, down)
    return hz, up, down, edge
