"""The solver `paper`: the paper's own method for one round, repaired where it cannot work as printed.

Legend: K clients, I subchannels. The paper divides a round into F (the main server's cycles) and P (subchannels and
powers), and prints one turn: F by a Lagrangian iteration for a given P, then P by branch and bound for that F. The paper does
not say which P comes first; here the even P does (`even_transmission`). P is found by our exact solver, or by SCIP as in the
paper. After an optimal P all clients finish together, so that no other F can shorten the round: further turns would gain
nothing. (So P must not come first: from even cycles the round would be that of ECFA.)

What is repaired in the iteration (`cycles_by_multipliers`):

    sign    lambda rises where more cycles are given than the server has; as printed, lambda falls, and f runs away
    scale   f is a fraction of the server's cycles, seconds are fractions of the first T, and the step of each multiplier
            is in proportion to the multiplier. Multipliers differ by orders of magnitude: an equal step for all would
            set the small ones to 0, where a client gets no cycles and never finishes
    mu      mu is rescaled to sum 1 after every step: T is the maximum, so that without this mu could only fall
    f       f is rescaled at the end to sum to the server's cycles, which the iteration meets only in the limit
    steps   alpha = beta = 0.01
    end     |T' - T| <= epsilon T, as printed, but not at the first step, where f is still the first f, and not before
            the cycles given are the cycles that the server has
"""

import math
from dataclasses import replace
from functools import cache, partial

import numpy as np

from hsfl.allocation import scip
from hsfl.allocation.answer import Allocation, SolveStatus
from hsfl.allocation.exact import DEFAULT_GAP, exact, solve_round
from hsfl.allocation.numba_cache import compiled
from hsfl.allocation.policies import PROOF_LIMIT_S
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.stage import exclusive
from hsfl.allocation.stage.client_prices import alone_s, shares_of
from hsfl.allocation.stage.fixed_shares import INSIDE, spend, uplink_powers, water_fill_downlink
from hsfl.allocation.stage.local_search import first_owner
from hsfl.allocation.stage.stage import Stage, training_stage
from hsfl.allocation.stage.stage_answer import StageAnswer, StageSolver, StopWhen, TimeLimit
from hsfl.errors import known_name
from hsfl.network.latency import duration_s

Array = np.ndarray
STEP = 0.01
EPSILON = 1e-7
MAX_STEPS = 100_000
SPENT = 1e-3  # how near the sum of f must be to the server's cycles at the end, relatively
P_STEPS: dict[str, StageSolver] = {"exact": exclusive.solve_exclusive, "scip": scip.solve_stage_by_scip}


def solve_as_paper(
    scenario: Scenario, cuts: Array, gap: float = DEFAULT_GAP, time_limit_s: float = 600.0, p_step: str = "exact"
) -> Allocation:
    """Allocate one round with cuts [K]: one F step from even transmission, then one P step.

    p_step: `exact` or `scip`. The lower bound is the exact solver's for these cuts.
    """
    scip.check_exclusive(scenario, "paper")
    transmit = P_STEPS[known_name("p_step", p_step, P_STEPS)]
    _compile()
    keeper = partial(solve_stage_as_paper, transmit=exclusive.solve_exclusive)  # who can keep tau_s is asked many times
    answer = solve_round(scenario, cuts, partial(solve_stage_as_paper, transmit=transmit), gap, time_limit_s, keeper)
    if not answer.kept.all():
        return answer
    best = exact(replace(scenario, tau_s=None), cuts, gap, min(time_limit_s, PROOF_LIMIT_S))
    bound_s = min(best.lower_bound_s, answer.round_s)
    reached = (answer.round_s - bound_s) / answer.round_s if answer.round_s > 0 else 0.0
    return replace(
        answer,
        status=SolveStatus.HEURISTIC,
        lower_bound_s=bound_s,
        gap=reached,
        seconds=answer.seconds + best.seconds,
    )


def solve_stage_as_paper(
    stage: Stage, goal: StopWhen, clock: TimeLimit, transmit: StageSolver = exclusive.solve_exclusive
) -> StageAnswer:
    """One F step, then one P step by the solver `transmit`. Distribution has no cycles, so that it has a P step alone."""
    hz, _, _ = cycles_by_multipliers(without_server_s(stage, *even_transmission(stage)), stage.cycles, stage.hz)
    return transmission(stage, hz, goal, clock, transmit)


def even_transmission(stage: Stage) -> tuple[Array, Array]:
    """The first P: shares and downlink watts, [K, I] each.

    Subchannels are dealt by turns, where every client takes the best that is left; the server's power is divided evenly.
    """
    clients, subs = stage.start_w.shape
    share, down_w = shares_of(first_owner(stage), clients), np.zeros((clients, subs))
    water_fill_downlink(stage, share, np.full(clients, stage.power_w / clients), down_w)
    return share, down_w


def without_server_s(stage: Stage, share: Array, down_w: Array) -> Array:
    """The seconds m_k [K] that each client takes apart from the server's seconds, for given shares and downlink watts [K, I]."""
    up_w, edge_w = np.zeros(share.shape), np.zeros(share.shape)
    uplink_powers(stage, share, up_w, edge_w)
    total_s = stage.fixed_s
    for bits, power_w, start_w in (
        (stage.up_bits, up_w, stage.start_w),
        (stage.edge_bits, edge_w, stage.edge_start_w),
        (stage.down_bits, down_w, stage.start_w),
    ):
        rate_bps = stage.subchannel_hz / np.log(2) * np.log1p(power_w / start_w).sum(axis=1)
        total_s = total_s + duration_s(bits, rate_bps)
    return total_s


def transmission(stage: Stage, hz: Array, goal: StopWhen, clock: TimeLimit, transmit: StageSolver) -> StageAnswer:
    """The P step: the best subchannels and powers for given cycles per second hz [K]."""
    given = stage._replace(fixed_s=stage.fixed_s + duration_s(stage.cycles, hz), cycles=np.zeros(len(hz)))
    answer = transmit(given, goal, clock)
    _, up_w, down_w, edge_w = spend(given, answer.share, answer.T_s, answer.rho)
    return replace(answer, lower_bound_s=min(alone_s(stage), answer.T_s), spent=(hz, up_w, down_w, edge_w))


def cycles_by_multipliers(
    m: Array, n: Array, hz: float, alpha: float = STEP, beta: float = STEP, epsilon: float = EPSILON
) -> tuple[Array, float, int]:
    """The F step, min over f of max_k m_k + n_k / f_k with sum f <= hz: (f [K] in cycles per second, T in seconds, steps).

    m [K] are seconds, n [K] cycles; alpha and beta are the steps of lambda and mu, epsilon ends the iteration.
    """
    busy = n > 0
    if not busy.any():
        return np.zeros(len(m)), float(m.max()), 0
    scale_s = float((m + n * busy.sum() / hz).max())  # T of even cycles
    f, steps = _iterate(m / scale_s, n / (hz * scale_s), alpha, beta, epsilon, MAX_STEPS)
    f = f * hz * INSIDE
    return f, float((m + duration_s(n, f)).max()), steps


@compiled
def _iterate(m: Array, n: Array, alpha: float, beta: float, epsilon: float, max_steps: int) -> tuple[Array, int]:
    """The iteration in fractions of the server and of the first T: (the last f [K], rescaled to sum 1, number of steps)."""
    clients, num_busy = len(m), (n > 0.0).sum()
    mu, f, finish = np.where(n > 0.0, 1.0 / num_busy, 0.0), np.zeros(clients), m.copy()
    lam = np.sqrt(mu * n).sum() ** 2  # so that f begins with sum 1
    T, steps = np.inf, 0
    while steps < max_steps:
        steps += 1
        before, T, sum_f, sum_mu = T, m.max(), 0.0, 0.0
        for k in range(clients):
            if n[k] > 0.0:
                f[k] = math.sqrt(mu[k] * n[k] / lam)
                finish[k] = m[k] + n[k] / f[k]
                T, sum_f = max(T, finish[k]), sum_f + f[k]
        lam *= 1.0 + alpha * (sum_f - 1.0)
        for k in range(clients):
            mu[k] *= 1.0 + beta * (finish[k] - T) / T
            sum_mu += mu[k]
        mu /= sum_mu
        if steps > 1 and abs(T - before) <= epsilon * before and abs(sum_f - 1.0) <= SPENT:
            break
    return f / f.sum(), steps


@cache
def _compile() -> None:
    """Compile what only this solver needs (or load it), before any clock runs."""
    stage = training_stage(random_scenario(np.random.default_rng(0), 2, 2), np.ones(2, int))
    cycles_by_multipliers(without_server_s(stage, *even_transmission(stage)), stage.cycles, stage.hz)
