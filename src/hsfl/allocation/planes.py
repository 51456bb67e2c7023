"""Shared bands where descent creeps: a linear programme over tangent planes, one plane for every client at every point.

Legend: K clients, I subchannels; a point is shares s [K, I], cycles f [K] and powers q [K], as fractions of their budgets.

A client's seconds t_k(s_k, f_k, q_k) are convex, so that tangent planes lie below them. The least T above all planes, for shares,
cycles and powers within their budgets, is a lower bound on the stage. New planes are laid half-way between the best point and
the programme's point. T has kinks where a deadline has no price (a client only uploads a model) or where no client can trade
cycles for power. Kinks do not disturb planes: ten to forty programmes prove 0.1 %.
"""

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, vstack

from hsfl.allocation.prices import solve_shares
from hsfl.allocation.solving import StopWhen, TimeLimit
from hsfl.allocation.stage import Stage
from hsfl.allocation.tangent import ROUNDING, rents

Array = np.ndarray
HALF = 0.5  # of the way to the programme's point; also lam in `rents`, where any value would do
STALLED = 30  # programmes in a row without progress
STEEPEST = 1e6  # slope of a row: steeper rows are divided by a number, since the programme refuses them
TOLERANCE = 1e-10  # of the programme; the bound does not depend on it


@dataclass
class Planes:
    """The planes t_k >= base - slope_s s - slope_f f - slope_q q, in units of scale_s seconds; K planes for each point."""

    scale_s: float
    base: list[Array] = field(default_factory=list)  # [K] each
    slope_s: list[Array] = field(default_factory=list)  # [K, I] each
    slope_f: list[Array] = field(default_factory=list)  # [K] each
    slope_q: list[Array] = field(default_factory=list)  # [K] each
    unit: list[Array] = field(default_factory=list)  # [K] each: the number by which a row is divided for the programme

    def lay(self, stage: Stage, share: Array, T_s: float, rho: float) -> None:
        """Lay planes at shares [K, I], with the cycles and powers that keep T_s at the price rho."""
        K = len(share)
        slope_s, point = np.empty(share.shape), np.empty((K, 6))
        rents(stage, share, T_s, rho, HALF, slope_s, point, np.empty(K))
        own_s, server_s, _, q = point[:, :4].T
        slope_f, slope_q = point[:, 4] * stage.hz, point[:, 5] * stage.power_w
        base = own_s + 2.0 * server_s + (slope_s * share).sum(axis=1) + point[:, 5] * q
        for parts, part in (
            (self.base, base),
            (self.slope_s, slope_s),
            (self.slope_f, slope_f),
            (self.slope_q, slope_q),
        ):
            parts.append(part / self.scale_s)
        steepest = np.maximum(self.slope_s[-1].max(axis=1), np.maximum(self.slope_f[-1], self.slope_q[-1]))
        self.unit.append(np.maximum(steepest / STEEPEST, 1.0))

    def rows(self) -> csr_array:
        """The last point's planes as rows over (s, f, q, T): -slopes x - T <= -base."""
        K, subs = self.slope_s[-1].shape
        k = np.arange(K)
        columns = np.concatenate([np.arange(K * subs), K * subs + k, K * subs + K + k, np.full(K, K * subs + 2 * K)])
        values = np.concatenate([-self.slope_s[-1].ravel(), -self.slope_f[-1], -self.slope_q[-1], np.full(K, -1.0)])
        rows = np.concatenate([np.repeat(k, subs), k, k, k])
        values = values / self.unit[-1][rows]
        return csr_array(coo_array((values, (rows, columns)), shape=(K, K * subs + 2 * K + 1)))

    def limits(self) -> Array:
        """The right sides of all rows so far."""
        return np.concatenate([-base / unit for base, unit in zip(self.base, self.unit)])

    def bound_s(self, weight: Array) -> float:
        """The lower bound in seconds that weights [points, K] of the planes prove.

        Every budget has the price of the client that would pay most for it.
        """
        weight = np.maximum(weight, 0.0)
        if not weight.sum() > 0.0:
            return 0.0
        weight = weight / weight.sum()
        paid = np.zeros(self.slope_s[0].shape)
        for one, slopes in zip(weight, self.slope_s):
            paid += one[:, None] * slopes
        cycles, power = (weight * self.slope_f).sum(axis=0), (weight * self.slope_q).sum(axis=0)
        seconds = float((weight * self.base).sum()) * (1.0 - ROUNDING)
        return self.scale_s * (seconds - float(paid.max(axis=0).sum() + cycles.max() + power.max()))


def budgets(K: int, subs: int) -> csr_array:
    """The budgets as rows over (s, f, q, T): the shares of each subchannel, all cycles, all power."""
    k = np.arange(K)
    columns = np.concatenate([np.arange(K * subs), K * subs + k, K * subs + K + k])
    rows = np.concatenate([np.tile(np.arange(subs), K), np.full(K, subs), np.full(K, subs + 1)])
    return csr_array(coo_array((np.ones(len(columns)), (rows, columns)), shape=(subs + 2, K * subs + 2 * K + 1)))


def solve(
    stage: Stage, share: Array, T_s: float, rho: float, lower_bound_s: float, goal: StopWhen, clock: TimeLimit
) -> tuple[Array, float, float]:
    """Improve shares [K, I] and the lower bound until the goal, the end of the time, or no progress.

    T_s and rho belong to the shares. Returns (shares, their T in seconds, the lower bound in seconds).
    """
    K, subs = share.shape
    cost = np.zeros(K * subs + 2 * K + 1)
    cost[-1] = 1.0
    best, best_T, bound_s, idle = share, T_s, lower_bound_s, 0
    planes, rows = Planes(T_s), budgets(K, subs)
    while not (goal.reached(best_T, bound_s) or clock.over() or idle == STALLED):
        planes.lay(stage, share, T_s, rho)
        rows = vstack([rows, planes.rows()], format="csr")
        if not (np.isfinite(rows.data).all() and np.isfinite(planes.base[-1]).all()):
            break
        answer = linprog(
            cost,
            A_ub=rows,
            b_ub=np.concatenate([np.ones(subs + 2), planes.limits()]),
            options={
                "primal_feasibility_tolerance": TOLERANCE,
                "dual_feasibility_tolerance": TOLERANCE,
                "time_limit": max(0.05, clock.limit_s - clock.seconds()),
            },
        )
        if answer.x is None or answer.status != 0:
            break
        idle += 1
        proven_s = planes.bound_s(-answer.ineqlin.marginals[subs + 2 :].reshape(-1, K) / np.array(planes.unit))
        if proven_s > bound_s * (1.0 + 1e-9):
            bound_s, idle = proven_s, 0
        share = HALF * best + HALF * np.maximum(answer.x[: K * subs].reshape(K, subs), 0.0)
        share /= np.maximum(share.sum(axis=0), 1.0) * (1.0 + 1e-15)
        T_s, rho, _ = solve_shares(stage, share, best_T, 0.0)
        if best_T > T_s:
            idle = 0 if T_s < best_T * (1.0 - 1e-9) else idle
            best, best_T = share, T_s
    return best, best_T, bound_s
