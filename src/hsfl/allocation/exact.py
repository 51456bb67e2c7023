"""One round, allocated to a proven gap: `exact` is the default solver.

Legend: K clients, I subchannels, T the seconds of a stage. A round is training (with the model's upload) and then the model's
distribution. The two stages use nothing in common, so each is solved by itself (`stage/`), and their lower bounds add up. Where
training cannot end by tau_s, clients are dropped (`drop_at_tau`). The answer is valued anew by the latency equations and checked
against every constraint.
"""

from dataclasses import replace
from functools import cache, partial

import numpy as np

from hsfl.allocation.answer import (
    Allocation,
    SolveStatus,
    alone_bound_s,
    evaluate_allocation,
    even_allocation,
    holds,
    violation,
    who_has,
    with_gap,
    within_gap,
)
from hsfl.allocation.drop_at_tau import DECIDED, client_prices, keep_within_tau
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.stage import exclusive, shared_bands
from hsfl.allocation.stage.fixed_shares import spend
from hsfl.allocation.stage.lagrangian import excess
from hsfl.allocation.stage.scaling import solve_in_own_units
from hsfl.allocation.stage.stage import distribution_stage, stage_of_clients, training_stage
from hsfl.allocation.stage.stage_answer import StageAnswer, StageSolver, StopWhen, TimeLimit
from hsfl.allocation.stage.subset_dp import (
    complete,
    few_subchannels,
    needs_subchannels,
    price_table,
    uplink_table,
    walk_assignments,
)

Array = np.ndarray
DEFAULT_GAP = 1e-3
DEFAULT_TIME_LIMIT_S = 10.0


def exact(
    scenario: Scenario, cuts: Array, gap: float = DEFAULT_GAP, time_limit_s: float = DEFAULT_TIME_LIMIT_S
) -> Allocation:
    """The default solver: allocate one round with cuts [K] to a relative gap, or to the time limit.

    Shared bands are a convex problem (`stage.shared_bands`); exclusive subchannels are searched with a proof (`stage.exclusive`).
    """
    return solve_round(scenario, cuts, stage_solver(scenario), gap, time_limit_s)


def solve_round(
    scenario: Scenario,
    cuts: Array,
    solve: StageSolver,
    gap: float = DEFAULT_GAP,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    keeper: StageSolver | None = None,
) -> Allocation:
    """Allocate one round by one solver for both stages.

    keeper: a faster stage solver that decides which clients can keep tau_s; without it, `solve` decides. Distribution, the
    far shorter stage, gets the part of the gap that training does not need.
    """
    cuts = scenario.check_cuts(cuts)
    solve = _in_own_units(solve)
    training, distribution = training_stage(scenario, cuts), distribution_stage(scenario, cuts)
    warm_up(scenario)
    clock = TimeLimit(time_limit_s)
    kept = np.ones(scenario.num_clients, bool)
    first = solve(training, StopWhen(0.9 * gap), clock.part(0.7))
    if scenario.tau_s is not None and first.lower_bound_s <= scenario.tau_s < first.T_s:
        first = min(
            first,
            solve(training, StopWhen(min(gap, DECIDED), tau_s=scenario.tau_s), clock.part(0.5)),
            key=lambda a: a.T_s,
        )
    if scenario.tau_s is not None and first.T_s > scenario.tau_s:
        kept = keep_within_tau(scenario, training, _in_own_units(keeper) if keeper else solve, clock)
        first = solve(stage_of_clients(training, kept), StopWhen(0.9 * gap), clock.part(0.9)) if kept.any() else first
    if not kept.any():
        first = replace(first, T_s=0.0, lower_bound_s=0.0)
    spare_s = max(0.0, gap * first.T_s - (first.T_s - first.lower_bound_s))
    second = solve(distribution, StopWhen(gap, spare_s), clock.part(1.0))
    return assemble(scenario, cuts, kept, first, second, gap, clock)


def distribute_model(
    scenario: Scenario, cuts: Array, solve: StageSolver, gap: float, time_limit_s: float
) -> Allocation:
    """The model's distribution alone, to all clients of the scenario: nobody trains."""
    cuts = scenario.check_cuts(cuts)
    warm_up(scenario)
    clock = TimeLimit(time_limit_s)
    second = _in_own_units(solve)(distribution_stage(scenario, cuts), StopWhen(gap), clock)
    return distribution_alone(scenario, cuts, second, gap, clock)


def distribution_alone(
    scenario: Scenario, cuts: Array, second: StageAnswer, gap: float, clock: TimeLimit
) -> Allocation:
    """The answer of distribution as an allocation that keeps nobody for training."""
    nobody = np.zeros(scenario.num_clients, bool)
    nothing = StageAnswer(np.zeros((0, scenario.num_subchannels)), 0.0, 0.0, 0.5)
    return assemble(scenario, cuts, nobody, nothing, second, gap, clock)


def _in_own_units(solve: StageSolver) -> StageSolver:
    """The same stage solver, but it works in the units of each stage (`stage.scaling`), and its answers say what is spent."""
    return partial(solve_in_own_units, solve)


def warm_up(scenario: Scenario) -> None:
    """Compile what this scenario needs (or load it), so that `seconds` and time limits count solving alone."""
    clients, subs = scenario.num_clients, scenario.num_subchannels
    size = "few" if few_subchannels(clients, subs) else "each" if subs == clients else "many"
    _compile(scenario.sharing, size, scenario.tau_s is not None)


@cache
def _compile(sharing: str, size: str, drops: bool) -> None:
    """Solve tiny stages of this kind. drops: also what chooses the clients that keep tau_s."""
    clients, subs = {"few": (2, 3), "each": (19, 19), "many": (2, 19)}[size if sharing == "exclusive" else "few"]
    tiny = random_scenario(np.random.default_rng(0), clients, subs, sharing)
    cuts, goal = np.full(clients, 3), StopWhen(1e-12)
    training, distribution = training_stage(tiny, cuts), distribution_stage(tiny, cuts)
    for stage in (training, distribution):
        answer = stage_solver(tiny)(stage, goal, TimeLimit(0.02))
        spend(stage, answer.share, answer.T_s, answer.rho)
        if sharing == "exclusive" and size == "few":
            rho = stage.hz / stage.power_w
            phi = price_table(stage, uplink_table(stage), answer.T_s, rho, 0.5)
            walk_assignments(stage, phi, complete(needs_subchannels(stage), phi), answer.T_s, rho, 1)
            excess(stage, np.arange(clients), answer.share, answer.T_s, rho)
        elif sharing == "exclusive":
            exclusive.improve(stage, answer, np.random.default_rng(0), TimeLimit(0.02), 0.01)
    if drops:
        client_prices(training, 1e9)


def stage_solver(scenario: Scenario) -> StageSolver:
    """The exact stage solver for the scenario's sharing."""
    return exclusive.solve_exclusive if scenario.sharing == "exclusive" else shared_bands.solve_shared


def assemble(
    scenario: Scenario,
    cuts: Array,
    kept: Array,
    first: StageAnswer,
    second: StageAnswer,
    gap: float,
    clock: TimeLimit,
) -> Allocation:
    """Both stage answers as one allocation, with round_s from the latency equations.

    `first` is of training, for the kept clients [K] bool alone; `second` is of distribution, for all clients.
    """
    K, subs = scenario.num_clients, scenario.num_subchannels
    hz, up, down, edge_up = np.zeros(K), np.zeros((K, subs)), np.zeros((K, subs)), np.zeros((K, subs))
    share = np.zeros((K, subs))
    if kept.any():
        share[kept] = first.share
        assert first.spent is not None
        hz[kept], up[kept], down[kept], edge_up[kept] = first.spent
    assert second.spent is not None
    draft = Allocation(
        status=SolveStatus.OPTIMAL,
        cuts=cuts,
        kept=kept,
        server_hz=hz,
        **who_has(scenario.sharing, share, second.share),
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
    bound_s = first.lower_bound_s + second.lower_bound_s
    answer = _finish_answer(scenario, draft, bound_s, gap, clock.seconds())
    proven = answer.lower_bound_s == min(bound_s, answer.round_s)
    return replace(answer, training_bound_s=first.lower_bound_s) if proven else answer


def _finish_answer(
    scenario: Scenario, draft: Allocation, lower_bound_s: float, gap: float, seconds: float
) -> Allocation:
    """The draft with phases, round_s, gap and status from the latency equations.

    A solver that meets numbers beyond its digits may break a constraint; then the even allocation is the answer. Or its
    lower bound lies above its own round; then the bound is that of each client alone with everything.
    """
    phases, round_s = evaluate_allocation(scenario, draft) if violation(scenario, draft) <= 1e-9 else ({}, np.inf)
    failed = not np.isfinite(round_s)
    if failed:
        draft = even_allocation(scenario, draft)
        phases, round_s = evaluate_allocation(scenario, draft)
    if failed or not holds(lower_bound_s, round_s):
        failed, lower_bound_s = True, alone_bound_s(scenario, draft)
    lower_bound_s, reached = with_gap(lower_bound_s, round_s)
    status = SolveStatus.OPTIMAL if within_gap(reached, gap) else SolveStatus.TIME_LIMIT
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
