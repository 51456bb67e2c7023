"""From shares and a deadline to cycles per second and to watts on every subchannel, inside the budgets.

Legend: K clients, I subchannels.
"""

import math

import numpy as np

from hsfl.allocation.compiled import compiled
from hsfl.allocation.curve import CURVE_ROWS, fill_curve, filled, respond
from hsfl.allocation.frequency import client_curves, solve_later
from hsfl.allocation.stage import Stage

Array = np.ndarray
INSIDE = 1.0 - 4e-16  # sums of rounded parts must not pass the budget


@compiled
def pour(power_w: float, row: Array, curve: Array, order: Array, start: Array, log_start: Array, share: Array) -> None:
    """Water-filling of power_w watts into row [I]: p_i = s_i (w - start_i) where positive, with a sum of power_w.

    order, start, log_start and share are [I], as in `curve.fill_curve`; curve is scratch.
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
def pour_rows(stage: Stage, share: Array, power_w: Array, down: Array) -> None:
    """Water-filling of each client's downlink power power_w [K] on its subchannels, into down [K, I]."""
    curve = np.empty((CURVE_ROWS, share.shape[1]))
    for k in range(share.shape[0]):
        bits = stage.down_bits[k] + stage.given_bits[k]
        p = power_w[k] if bits > 0.0 else 0.0
        pour(p, down[k], curve, stage.order[k], stage.start_w[k], stage.log_start[k], share[k])


@compiled
def uplink_powers(stage: Stage, share: Array, main: Array, edge: Array) -> None:
    """Water-filling of every client's full power on its subchannels, towards both servers, into main and edge [K, I]."""
    curve = np.empty((CURVE_ROWS, share.shape[1]))
    for k in range(share.shape[0]):
        p = stage.up_power_w[k]
        pour(p, main[k], curve, stage.order[k], stage.start_w[k], stage.log_start[k], share[k])
        pour(p, edge[k], curve, stage.edge_order[k], stage.edge_start_w[k], stage.edge_log_start[k], share[k])


@compiled
def downlink(stage: Stage, share: Array, T: float, rho: float, hz: Array, down: Array) -> None:
    """The optimal cycles per second hz [K] and downlink power down [K, I] for the shares; both budgets are spent.

    T and rho shorten the iteration. The seconds that each client has left after its own seconds are solved for again,
    because the difference T - c_k may have lost its digits.
    """
    K, subs = share.shape
    b = stage.subchannel_hz / math.log(2.0)
    curves, counts, c = np.empty((K, CURVE_ROWS, subs)), np.zeros(K, np.int64), np.empty(K)
    client_curves(curves, counts, c, stage, share)
    busy, later, idle, rho, _ = solve_later(stage, curves, counts, c, T, rho)
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
        pour(q[k], down[k], curves[k], stage.order[k], stage.start_w[k], stage.log_start[k], share[k])


def spend(stage: Stage, share: Array, T_s: float, rho: float) -> tuple[Array, Array, Array, Array]:
    """What the shares [K, I] spend at best: (server_hz [K], watts to and from the main server, to the edge server [K, I]).

    T_s and rho, the least T and its price for these shares, shorten the iteration.
    """
    hz, shape = np.zeros(len(stage.cycles)), share.shape
    up, down, edge = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    uplink_powers(stage, share, up, edge)
    downlink(stage, share, T_s, rho, hz, down)
    return hz, up, down, edge
