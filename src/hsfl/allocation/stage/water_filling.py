"""The water-filled rate of one client on its subchannels, as a curve of sorted sums that keeps its digits.

Legend: I subchannels, w the water level, a_i = noise / gain the level at which subchannel i starts to carry bits, s_i the
client's share of subchannel i.

Power and rate are P(w) = sum s_i (w - a_i)+ and R(w) = b sum s_i ln(w / a_i)+. Between two starts both grow with the width, the
sum of the shares that have started. So the curve holds power and rate at every start, and each is the value at the start
before plus a positive step. No term is ever subtracted: a rate is right to a few units in its last place at any signal,
also where a share is tiny.
"""

import math

import numpy as np

from hsfl.allocation.numba_cache import compiled

Array = np.ndarray

# Rows of a curve. It has a column for each subchannel that the client has, from the best: the start of the subchannel, the
# width up to it, and the power and the nats per second and hertz (R / b) when the water level reaches its start.
START, WIDTH, POWER, NATS = 0, 1, 2, 3
CURVE_ROWS = 4
NEAR = 1e-2  # below this difference of logarithms, log1p of the starts has more digits


@compiled
def fill_curve(curve: Array, order: Array, start: Array, log_start: Array, share: Array) -> int:
    """Fill curve [4, I] for the subchannels with share > 0; returns how many there are.

    start (watts), log_start and share are [I]; order [I] lists the subchannels from the best.
    """
    count = 0
    last, log_last = 0.0, 0.0
    width, power, nats = 0.0, 0.0, 0.0
    for i in order:
        s = share[i]
        if s <= 0.0:
            continue
        if count > 0:
            rise = log_start[i] - log_last
            if rise < NEAR:
                rise = math.log1p((start[i] - last) / last)
            power += width * (start[i] - last)
            nats += width * rise
        last, log_last = start[i], log_start[i]
        width += s
        curve[START, count] = last
        curve[WIDTH, count] = width
        curve[POWER, count] = power
        curve[NATS, count] = nats
        count += 1
    return count


@compiled
def filled(curve: Array, count: int, power: float) -> tuple[float, float, float]:
    """Water-filling of `power` watts: (nats, the last start below the level, how far the level is above that start)."""
    a = count - 1
    while a > 0 and power <= curve[POWER, a]:
        a -= 1
    above = (power - curve[POWER, a]) / curve[WIDTH, a]
    return curve[NATS, a] + curve[WIDTH, a] * math.log1p(above / curve[START, a]), curve[START, a], above


@compiled
def filled_nats(curve: Array, count: int, power: float) -> float:
    """Nats per second and hertz of `power` watts, water-filled: sum of s ln(1 + p / (s start)). The rate is b times this."""
    return filled(curve, count, power)[0]


@compiled
def respond(
    curve: Array, count: int, t: float, n: float, d: float, b: float, rho: float
) -> tuple[float, float, float, int]:
    """The cheapest (f, q) with n / f + d / R(q) = t, when a watt costs rho cycles per second: (KKT) of `fixed_shares`.

    t seconds are left for n cycles and d bits. Returns cycles per second, watts, and where the water level is:
    x = ln(w / start) above the start of column a.
    """
    if t <= 0.0:
        return math.inf if n > 0.0 else 0.0, math.inf if d > 0.0 else 0.0, 0.0, 0
    if d == 0.0:
        return n / t, 0.0, 0.0, 0
    both = n * d * b / rho
    a = 0
    while a + 1 < count and t * b * curve[NATS, a + 1] < d + math.sqrt(both / curve[START, a + 1]):
        a += 1
    width, kappa = curve[WIDTH, a], math.sqrt(both / curve[START, a])
    slope, need = t * b * width, d - t * b * curve[NATS, a]
    x = 0.0
    if kappa > 1e3 * slope:  # far left of the root each of Newton's steps is 2: begin nearer, but still left of it
        x = 2.0 * math.log(kappa / slope)
        while x > 0.0 and need + kappa * math.exp(-0.5 * x) < slope * x:
            x *= 0.5 if x > 1.0 else 0.0
    for _ in range(100):
        pull = kappa * math.exp(-0.5 * x)
        step = (need + pull - slope * x) / (slope + 0.5 * pull)
        x += step
        if step * width <= 1e-14 * (curve[NATS, a] + width * x):
            break
    if x > 600.0:
        return math.inf if n > 0.0 else 0.0, math.inf, x, a
    x = max(x, 0.0)
    q = curve[POWER, a] + width * curve[START, a] * math.expm1(x)
    f = 0.0 if n == 0.0 else n * b * (curve[NATS, a] + width * x) / (kappa * math.exp(-0.5 * x))
    return f, q, x, a
