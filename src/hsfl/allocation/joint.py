"""One round, allocated: both stages solved, clients dropped where tau_s asks for it, the answer re-evaluated.

Legend: K clients, I subchannels.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from hsfl.allocation.answer import Allocation, SolveStatus, evaluate, holds, violation, with_gap
from hsfl.allocation.draw import random_scenario
from hsfl.allocation.lagrange import excess
from hsfl.allocation.partition import complete, few, price_table, search_leaves, uplink_table, who_needs
from hsfl.allocation.plain import alone_bound_s, even_allocation
from hsfl.allocation.powers import spend
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.search import Goal, Spent, StageAnswer, TimeLimit, improve, solve_stage
from hsfl.allocation.spectrum import shares_of
from hsfl.allocation.stage import Stage, distribution_stage, only, training_stage
from hsfl.allocation.tau import DECIDED, keep_within, prices
from hsfl.allocation.units import solve_in_own_units

Array = np.ndarray
StageSolver = Callable[[Stage, Goal, TimeLimit], Any]
DEFAULT_GAP = 1e-3
DEFAULT_TIME_LIMIT_S = 10.0


def exact(
    scenario: Scenario, cuts: Array, gap: float = DEFAULT_GAP, time_limit_s: float = DEFAULT_TIME_LIMIT_S
) -> Allocation:
    """The default solver: `bandwidth` sharing is convex, `exclusive` is searched with a proof."""
    return solve_round(scenario, cuts, stage_solver(scenario), gap, time_limit_s)


def solve_round(
    scenario: Scenario,
    cuts: Array,
    solve: StageSolver,
    gap: float = DEFAULT_GAP,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    keeper: StageSolver | None = None,
) -> Allocation:
    """Both stages by one stage solver; `keeper` decides who can keep tau_s, where that takes a faster one.
    What training leaves of its gap belongs to distribution, the far shorter stage.
    """
    cuts = scenario.check_cuts(cuts)
    solve = in_own_units(solve)
    training, distribution = training_stage(scenario, cuts), distribution_stage(scenario, cuts)
    warm_up(scenario)
    clock = TimeLimit(time_limit_s)
    kept = np.ones(scenario.num_clients, bool)
    first = solve(training, Goal(0.9 * gap), clock.part(0.7))
    if scenario.tau_s is not None and first.lower_bound_s <= scenario.tau_s < first.T_s:
        first = min(
            first, solve(training, Goal(min(gap, DECIDED), tau_s=scenario.tau_s), clock.part(0.5)), key=lambda a: a.T_s
        )
    if scenario.tau_s is not None and first.T_s > scenario.tau_s:
        kept = keep_within(scenario, training, in_own_units(keeper) if keeper else solve, clock)
        first = solve(only(training, kept), Goal(0.9 * gap), clock.part(0.9)) if kept.any() else first
    if not kept.any():
        first = replace(first, T_s=0.0, lower_bound_s=0.0)
    spare_s = max(0.0, gap * first.T_s - (first.T_s - first.lower_bound_s))
    second = solve(distribution, Goal(gap, spare_s), clock.part(1.0))
    return assemble(scenario, cuts, kept, first, second, gap, clock)


def in_own_units(solve: StageSolver) -> StageSolver:
    """The stage solver, working in units of each stage's own; its answers say what is spent."""

    def spend_open(stage: Stage, answer: Any) -> Spent:
        return spend(stage, answer.shares(len(stage.cycles)), answer.T_s, answer.rho)

    return partial(solve_in_own_units, solve, spend_open)


def warm_up(scenario: Scenario) -> None:
    """Compile (or load) what this scenario needs, so that `seconds` and time limits count solving alone."""
    clients, subs = scenario.num_clients, scenario.num_subchannels
    size = "few" if few(clients, subs) else "each" if subs == clients else "many"
    _compile(scenario.sharing, size, scenario.tau_s is not None)


@cache
def _compile(sharing: str, size: str, drops: bool) -> None:
    clients, subs = {"few": (2, 3), "each": (19, 19), "many": (2, 19)}[size if sharing == "exclusive" else "few"]
    tiny = random_scenario(np.random.default_rng(0), clients, subs, sharing)
    cuts, goal = np.full(clients, 3), Goal(1e-12)
    training, distribution = training_stage(tiny, cuts), distribution_stage(tiny, cuts)
    for stage in (training, distribution):
        answer = stage_solver(tiny)(stage, goal, TimeLimit(0.02))
        spend(stage, answer.shares(clients), answer.T_s, answer.rho)
        if sharing == "exclusive" and size == "few":
            rho = stage.hz / stage.power_w
            phi = price_table(stage, uplink_table(stage), answer.T_s, rho, 0.5)
            search_leaves(stage, phi, complete(who_needs(stage), phi), answer.T_s, rho, 1)
            excess(stage, np.arange(clients), shares_of(answer.owner, clients), answer.T_s, rho)
        elif sharing == "exclusive":
            improve(stage, answer, np.random.default_rng(0), TimeLimit(0.02), 0.01)
    if drops:
        prices(training, 1e9)


def stage_solver(scenario: Scenario) -> StageSolver:
    if scenario.sharing == "exclusive":
        return solve_stage
    from hsfl.allocation.bandwidth import solve_stage as solve_shared

    return solve_shared


def assemble(
    scenario: Scenario,
    cuts: Array,
    kept: Array,
    first: StageAnswer,
    second: StageAnswer,
    gap: float,
    clock: TimeLimit,
) -> Allocation:
    """Both stage answers as one allocation, with round_s from the latency equations."""
    K, subs = scenario.num_clients, scenario.num_subchannels
    hz, up, down, edge_up = np.zeros(K), np.zeros((K, subs)), np.zeros((K, subs)), np.zeros((K, subs))
    share = np.zeros((K, subs))
    if kept.any():
        share[kept] = first.shares(int(kept.sum()))
        assert first.spent is not None
        hz[kept], up[kept], down[kept], edge_up[kept] = first.spent
    edge_share = second.shares(K)
    assert second.spent is not None
    exclusive = scenario.sharing == "exclusive"
    draft = Allocation(
        status=SolveStatus.OPTIMAL,
        cuts=cuts,
        kept=kept,
        server_hz=hz,
        owner=_owner(share) if exclusive else None,
        edge_down_owner=_owner(edge_share) if exclusive else None,
        share=None if exclusive else share,
        edge_down_share=None if exclusive else edge_share,
        main_up_power_w=up,
        main_down_power_w=down,
        edge_up_power_w=edge_up,
        edge_down_power_w=second.spent[2],
        phases={},
        round_s=0.0,
        lower_bound_s=0.0,
        gap=0.0,
        seconds=0.0,
    )
    return finish(scenario, draft, first.lower_bound_s + second.lower_bound_s, gap, clock.seconds())


def finish(scenario: Scenario, draft: Allocation, lower_bound_s: float, gap: float, seconds: float) -> Allocation:
    """Phases, round_s, gap and status from the equations. Where the numbers were too much for the solver, so that it broke
    a constraint or its bound lies above its own round, nothing of it leaves: the even allocation, or no proof."""
    phases, round_s = evaluate(scenario, draft) if violation(scenario, draft) <= 1e-9 else ({}, np.inf)
    failed = not np.isfinite(round_s)
    if failed:
        draft = even_allocation(scenario, draft)
        phases, round_s = evaluate(scenario, draft)
    if failed or not holds(lower_bound_s, round_s):
        failed, lower_bound_s = True, alone_bound_s(scenario, draft)
    lower_bound_s, reached = with_gap(lower_bound_s, round_s)
    status = SolveStatus.OPTIMAL if reached <= gap * (1 + 1e-6) + 1e-9 else SolveStatus.TIME_LIMIT
    if failed:
        status = SolveStatus.HEURISTIC
    if not draft.kept.all():
        status = SolveStatus.DROPPED
    return replace(
        draft,
        status=status,
        phases=phases,
        round_s=round_s,
        lower_bound_s=lower_bound_s,
        gap=reached,
        seconds=seconds,
    )


def _owner(share: Array) -> Array:
    return np.where(share.any(axis=0), share.argmax(axis=0), -1)
