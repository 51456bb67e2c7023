"""The solver `paper`: the paper's own method, repaired where it cannot work as printed.

Legend: K clients, I subchannels. F (server cycles) by a Lagrangian iteration for given P, P (subchannels and powers) by
SCIP's branch and bound for given F, in turn until T settles. What is repaired in the iteration: the sign of the step
in lambda (dual ascent), variables scaled to fractions, mu renormalised to sum 1 (T is the maximum, so mu alone only
falls), f rescaled to the budget. It stops where |T' - T| <= epsilon T, as printed.
"""

from dataclasses import dataclass, replace

import numpy as np

from hsfl.allocation import scip
from hsfl.allocation.answer import Allocation, SolveStatus
from hsfl.allocation.joint import DEFAULT_GAP, solve_round, stage_solver
from hsfl.allocation.powers import INSIDE, uplink_powers
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.search import Clock, Goal, Spent, StageAnswer, alone_s
from hsfl.allocation.spectrum import first_owner, shares_of
from hsfl.allocation.stage import Stage
from hsfl.network.latency import seconds

Array = np.ndarray
EPSILON = 1e-6
MAX_STEPS = 20_000


def solve(scenario: Scenario, cuts: Array, gap: float = DEFAULT_GAP, time_limit_s: float = 600.0) -> Allocation:
    """One round by the paper's alternation. No bound comes with it; the one reported is every client alone."""
    scip.check_exclusive(scenario, "paper")
    answer = solve_round(scenario, cuts, solve_stage, gap, time_limit_s, keeper=stage_solver(scenario))
    return replace(answer, status=SolveStatus.HEURISTIC) if answer.kept.all() else answer


def cycles_by_multipliers(
    m: Array, n: Array, hz: float, alpha: float = 0.1, beta: float = 0.1, epsilon: float = EPSILON
) -> tuple[Array, float, int]:
    """min over f of max_k m_k + n_k / f_k, sum f <= hz: (f [K], T, steps) by the paper's iteration, repaired."""
    busy = n > 0
    if not busy.any():
        return np.zeros(len(m)), float(m.max()), 0
    f = np.where(busy, 1.0 / busy.sum(), 0.0)
    mu, lam = f.copy(), 1.0

    def finish(f: Array) -> Array:
        return m + np.divide(n, f * hz, out=np.zeros(len(m)), where=busy)

    T = finish(f).max()
    best_f, best_T, steps = f, T, 0
    scale = T  # seconds become fractions of the first T
    while steps < MAX_STEPS:
        steps += 1
        f = np.where(busy, np.sqrt(mu * n / (hz * scale) / lam), 0.0)
        lam = max(lam + alpha * (f.sum() - 1.0), 1e-9)
        f = f / f.sum()
        new = finish(f).max()
        mu = np.where(busy, np.maximum(mu + beta * mu.max() * (finish(f) - new) / scale, 1e-9), 0.0)
        mu /= mu.sum()
        if new < best_T:
            best_f, best_T = f, new
        if abs(new - T) <= epsilon * T:
            break
        T = new
    return best_f * hz, float(best_T), steps


@dataclass(frozen=True)
class _Point:
    """An assignment with cycles and powers, and when each client finishes with them."""

    owner: Array  # [I]
    spent: Spent
    finish_s: Array  # [K]
    server_s: Array  # [K] the part of it at the server

    @property
    def T_s(self) -> float:
        return float(self.finish_s.max())


def _point(stage: Stage, owner: Array, hz: Array, down_w: Array) -> _Point:
    share = shares_of(owner, len(hz))
    up, edge = np.zeros(share.shape), np.zeros(share.shape)
    uplink_powers(stage, share, up, edge)
    b = stage.subchannel_hz / np.log(2)

    def link_s(bits: Array, power_w: Array, start_w: Array) -> Array:
        return seconds(bits, b * np.log1p(power_w / start_w).sum(axis=1))

    server_s = seconds(stage.cycles, hz)
    finish_s = stage.fixed_s + server_s + link_s(stage.up_bits, up, stage.start_w)
    finish_s = finish_s + link_s(stage.edge_bits, edge, stage.edge_start_w)
    finish_s = finish_s + link_s(stage.down_bits, down_w, stage.start_w)
    return _Point(owner, (hz, up, down_w, edge), finish_s, server_s)


def solve_stage(stage: Stage, goal: Goal, clock: Clock) -> StageAnswer:
    """Alternation from even cycles. The distribution stage has no cycles, so one pass is all of it."""
    clients, owner = len(stage.cycles), first_owner(stage)
    share = shares_of(owner, clients)
    even = np.full(clients, stage.power_w / clients)[:, None] * share / np.maximum(share.sum(axis=1, keepdims=True), 1)
    best = _point(stage, owner, np.full(clients, stage.hz / clients), even * INSIDE)
    while not clock.over() and best.T_s > 0.0:
        before_s, hz = best.T_s, best.spent[0]
        limit_s = (clock.limit_s - clock.seconds()) * (0.5 if stage.cycles.any() else 1.0)
        result = scip.run(stage, best.T_s, goal.gap, limit_s, cycles_s=best.server_s)
        if result.owner is None:
            break
        down_w = result.down_w * INSIDE / max(1.0, result.down_w.sum() / stage.power_w)
        for_power = _point(stage, result.owner, hz, down_w)
        new_hz, _, _ = cycles_by_multipliers(for_power.finish_s - for_power.server_s, stage.cycles, stage.hz)
        for_cycles = _point(stage, result.owner, new_hz * INSIDE, down_w)
        best = min(best, for_power, for_cycles, key=lambda point: point.T_s)
        if not stage.cycles.any() or before_s - best.T_s <= max(goal.gap, EPSILON) * before_s:
            break
    return StageAnswer(best.owner, best.T_s, 1.0, 0.5, min(alone_s(stage), best.T_s), best.spent)
