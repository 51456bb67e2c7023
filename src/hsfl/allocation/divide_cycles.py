"""The main server's cycles divided between cells: what a cell needs to keep a deadline, and the deadline that all cells can keep.

Legend: N cells, K clients of a cell, I subchannels. Every cell has a radio of its own: its subchannels, and servers' power. Only the
main server's cycles are common, so cells meet in one number, the deadline T. For fixed shares the cycles that a cell needs fall as T
grows. Bisection finds the T at which all cells together need exactly the cycles that there are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hsfl.allocation.numba_cache import compiled
from hsfl.allocation.stage.fixed_shares import WIDEST, client_curves, client_needs, usage
from hsfl.allocation.stage.scaling import Units, in_units, own_units
from hsfl.allocation.stage.stage import Stage
from hsfl.allocation.stage.water_filling import CURVE_ROWS

Array = np.ndarray
CLOSE = 1e-12  # relative width at which the bisection ends
STEPS = 200  # of the bisection, at most


@compiled
def _cycles_needed(stage: Stage, curves: Array, counts: Array, c: Array, T: float, rho: float) -> tuple[float, float]:
    """(the least cycles per second with which the cell keeps T for fixed shares, the price of a watt there).

    Infinite where T cannot be kept. curves [K, 4, I], counts [K] and own seconds c [K]: of `fixed_shares.client_curves`. At the least
    cycles the cell spends all its power, so the price solves Q(T, rho) = 1: Newton's method on ln Q over ln rho, else halving.
    rho: a guess; 0 where there is none.
    """
    unit = stage.hz / stage.power_w
    idle, busy, cycles, power, both = client_needs(stage, c)
    if idle > T or ((cycles or power) and busy >= T):
        return math.inf, unit
    if not both:
        F, Q, _, _, _, _ = usage(stage, curves, counts, c, T, unit)
        return (F * stage.hz if Q <= 1.0 else math.inf), unit
    low, high = -WIDEST, WIDEST
    r = min(max(math.log(rho / unit), low), high) if rho > 0.0 else 0.0
    F, Q = math.inf, math.inf
    for _ in range(200):
        F, Q, _, _, _, QR = usage(stage, curves, counts, c, T, unit * math.exp(r))
        if Q > 1.0:
            low = r
        else:
            high = r
        if abs(Q - 1.0) < 1e-13 or high - low < 1e-13:
            break
        new = math.inf
        if math.isfinite(Q) and Q > 0.0 and QR < 0.0:
            new = r - Q * math.log(Q) / QR
        r = new if low < new < high else 0.5 * (low + high)
    if Q > 1.0 + 1e-9:
        return math.inf, unit  # T cannot be kept, even with endless cycles
    return F * stage.hz, unit * math.exp(r)


@dataclass
class Cell:
    """A cell with fixed shares, in units of its own. It tells how many cycles it needs at a deadline, and remembers its price."""

    stage: Stage
    units: Units
    curves: Array  # [K, 4, I]
    counts: Array  # [K]
    own_s: Array  # [K]
    rho: float = 0.0

    @classmethod
    def of(cls, stage: Stage, share: Array) -> "Cell":
        """The cell of a stage for shares [K, I]."""
        clients, subs = share.shape
        units = own_units(stage)
        scaled = in_units(stage, units)
        curves, counts, own_s = np.empty((clients, CURVE_ROWS, subs)), np.zeros(clients, np.int64), np.empty(clients)
        client_curves(curves, counts, own_s, scaled, share)
        return cls(scaled, units, curves, counts, own_s)

    def needs_hz(self, T_s: float) -> float:
        """The least cycles per second with which the cell keeps T_s; infinite where it cannot."""
        T = T_s / self.units.second_s
        hz, rho = _cycles_needed(self.stage, self.curves, self.counts, self.own_s, T, self.rho)
        if math.isfinite(hz):
            self.rho = rho
        return hz * self.units.hz


def divide_cycles(cells: Sequence[Cell], main_hz: float, low_s: float, high_s: float) -> tuple[float, Array]:
    """(the least T in seconds that all cells can keep with main_hz cycles per second in all, the cycles of each cell [N]).

    low_s, high_s: where to look first; the range is widened where T lies outside. What no cell needs at T goes to the cell that
    cannot be faster, so that no other division helps any cell that ends last.
    """
    demand = _Demand(cells, main_hz)
    for _ in range(STEPS):
        if demand.is_met(high_s):
            break
        low_s, high_s = high_s, 2.0 * high_s
    while low_s > 0.0 and demand.is_met(low_s):
        low_s, high_s = (0.5 * low_s if low_s > 1e-300 else 0.0), low_s
    for _ in range(STEPS):
        if high_s - low_s <= CLOSE * high_s:
            break
        middle_s = 0.5 * (low_s + high_s)
        low_s, high_s = (low_s, middle_s) if demand.is_met(middle_s) else (middle_s, high_s)
    cell_hz = demand.at(high_s)
    spare_hz = main_hz - float(cell_hz.sum())
    if spare_hz > 0.0:
        cell_hz[int(demand.at(low_s).argmax())] += spare_hz  # this cell cannot keep a shorter T
    return high_s, cell_hz


class _Demand:
    """What the cells need at a deadline, in cycles per second."""

    def __init__(self, cells: Sequence[Cell], main_hz: float) -> None:
        self.cells, self.main_hz = cells, main_hz

    def at(self, T_s: float) -> Array:
        """What each cell needs, [N]."""
        return np.array([cell.needs_hz(T_s) for cell in self.cells])

    def is_met(self, T_s: float) -> bool:
        """Whether there is enough for all cells."""
        total_hz = 0.0
        for cell in self.cells:
            total_hz += cell.needs_hz(T_s)
            if total_hz > self.main_hz:
                return False
        return True
