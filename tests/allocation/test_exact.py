"""The exact solver: its bound, its value and its allocation, against enumeration and against laws."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.allocation.answer import SolveStatus, evaluate_allocation, violation
from hsfl.allocation.cuts.search import rcls
from hsfl.allocation.exact import exact
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.stage import exclusive
from hsfl.allocation.stage.client_prices import shares_of, solve_shares
from hsfl.allocation.stage.exclusive import _prove_many, solve_exclusive
from hsfl.allocation.stage.local_search import first_owner, local_search
from hsfl.allocation.stage.stage import distribution_stage, training_stage
from hsfl.allocation.stage.stage_answer import StageAnswer, StopWhen, TimeLimit
from tests.allocation.allocation_instances import enumerate_stage, scenarios


def check(scenario, answer):
    """Feasible, valued by the equations, and bounded from below by its bound."""
    assert violation(scenario, answer) <= 1e-9
    _, round_s = evaluate_allocation(scenario, answer)
    assert answer.round_s == round_s
    assert answer.lower_bound_s <= answer.round_s
    assert np.isfinite(answer.round_s)


@settings(max_examples=80, deadline=None)
@given(scenarios(max_clients=3, max_subchannels=5), st.integers(0, 2))
def test_equals_enumeration_of_all_assignments(scenario, cut):
    cuts = np.full(scenario.num_clients, cut)
    answer = exact(scenario, cuts, gap=1e-6)
    check(scenario, answer)
    best = enumerate_stage(training_stage(scenario, cuts)) + enumerate_stage(distribution_stage(scenario, cuts))
    assert answer.status is SolveStatus.OPTIMAL
    assert answer.round_s <= best * (1 + 2e-6) + 1e-12
    assert answer.lower_bound_s <= best * (1 + 1e-9) + 1e-12


@settings(max_examples=30, deadline=None)
@given(scenarios(max_clients=3, max_subchannels=5), st.integers(0, 2))
def test_the_bound_for_many_subchannels_holds_on_few(scenario, cut):
    """Prices of subchannels, which serve where subsets are too many, never pass the enumerated optimum."""
    stage = training_stage(scenario, np.full(scenario.num_clients, cut))
    owner, T, rho, lam = local_search(stage, first_owner(stage), 0.0, 0.0)
    if T > 0:
        answer = _prove_many(
            stage, StageAnswer(shares_of(owner, scenario.num_clients), T, rho, lam), StopWhen(1e-4), TimeLimit(0.1)
        )
        best = enumerate_stage(stage)
        assert answer.lower_bound_s <= best * (1 + 1e-9)
        assert answer.T_s >= best * (1 - 1e-9)


def test_the_walk_through_assignments_proves_no_more_than_is_true(monkeypatch):
    """Where prices prove nothing all is walked through, here from a bad assignment and to a rough goal."""
    monkeypatch.setattr(exclusive, "_prove_by_prices", lambda stage, best, *_: (best, best.lam, False))
    for seed in range(10):
        rng = np.random.default_rng(seed)
        scenario = random_scenario(rng, 3, 5)
        stage = training_stage(scenario, rcls(scenario.rows, rng))
        owner = np.array([0, 1, 2, 0, 1])
        T, rho, lam = solve_shares(stage, shares_of(owner, 3), 0.0, 0.0)
        answer = exclusive._prove_few(
            stage, StageAnswer(shares_of(owner, 3), T, rho, lam), StopWhen(0.3), TimeLimit(60.0)
        )
        best = enumerate_stage(stage)
        assert answer.lower_bound_s <= best * (1 + 1e-9)
        assert answer.lower_bound_s >= answer.T_s * 0.7 * (1 - 1e-9)
        assert answer.T_s >= best * (1 - 1e-9)


@pytest.mark.parametrize(("clients", "subchannels"), [(1, 4), (5, 10), (10, 10), (4, 12), (20, 20), (8, 20)])
def test_random_rounds_reach_the_gap(clients, subchannels):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        scenario = random_scenario(rng, clients, subchannels)
        answer = exact(scenario, rcls(scenario.rows, rng), gap=1e-3 if clients != 8 else 0.05)
        check(scenario, answer)
        assert answer.status is SolveStatus.OPTIMAL


BETTER = {
    "main_hz": lambda s: replace(s, main_hz=2 * s.main_hz),
    "main_power_w": lambda s: replace(s, main_power_w=2 * s.main_power_w),
    "edge_power_w": lambda s: replace(s, edge_power_w=2 * s.edge_power_w),
    "subchannel_hz": lambda s: replace(s, subchannel_hz=1.5 * s.subchannel_hz),
    "noise_w": lambda s: replace(s, noise_w=0.5 * s.noise_w),
    "max_power_w": lambda s: replace(s, max_power_w=2 * s.max_power_w),
    "cpu_hz": lambda s: replace(s, cpu_hz=2 * s.cpu_hz),
    "main_gain": lambda s: replace(s, main_gain=1.5 * s.main_gain),
    "one more subchannel": lambda s: replace(
        s,
        main_gain=np.hstack([s.main_gain, s.main_gain[:, :1]]),
        edge_gain=np.hstack([s.edge_gain, s.edge_gain[:, :1]]),
    ),
}


@pytest.mark.parametrize("change", BETTER)
@pytest.mark.parametrize("sharing", ["exclusive", "bandwidth"])
def test_more_resources_never_hurt(change, sharing):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        scenario = random_scenario(rng, 4, 7, sharing=sharing)
        cuts = rcls(scenario.rows, rng)
        better = exact(BETTER[change](scenario), cuts)
        assert better.lower_bound_s <= exact(scenario, cuts).round_s


def test_time_limit_returns_the_best_with_its_gap():
    rng = np.random.default_rng(3)
    scenario = random_scenario(rng, 20, 40)
    answer = exact(scenario, rcls(scenario.rows, rng), gap=0.0, time_limit_s=0.3)
    check(scenario, answer)
    assert answer.status is SolveStatus.TIME_LIMIT
    assert 0 < answer.gap < 0.2
    assert answer.seconds < 2


def test_equal_clients_and_equal_subchannels_are_no_trap():
    """All assignments tie: the proof must not walk through them."""
    scenario = random_scenario(np.random.default_rng(0), 5, 12)
    same = replace(
        scenario,
        cpu_hz=np.full(5, 1e10),
        max_power_w=np.ones(5),
        num_batches=np.full(5, 10.0),
        main_gain=np.ones((5, 12)),
        edge_gain=np.ones((5, 12)),
    )
    answer = exact(same, np.full(5, 3), time_limit_s=5)
    check(same, answer)
    assert answer.status is SolveStatus.OPTIMAL
    assert sorted(np.bincount(answer.owner)) == [2, 2, 2, 3, 3]


def test_solve_stage_decides_a_deadline_early():
    rng = np.random.default_rng(1)
    scenario = random_scenario(rng, 5, 10)
    stage = training_stage(scenario, rcls(scenario.rows, rng))
    best = solve_exclusive(stage, StopWhen(1e-4), TimeLimit(5))
    easy = solve_exclusive(stage, StopWhen(1e-4, tau_s=2 * best.T_s), TimeLimit(5))
    hard = solve_exclusive(stage, StopWhen(1e-4, tau_s=0.5 * best.T_s), TimeLimit(5))
    assert easy.T_s <= 2 * best.T_s
    assert hard.lower_bound_s >= 0.5 * best.T_s * (1 - 1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_no_gap_at_all_is_asked_for(seed):
    """To the last bit there is nothing to prove; the solver stops all the same, long before its limit."""
    scenario = random_scenario(np.random.default_rng(seed), 4, 5 + seed % 3)
    answer = exact(scenario, np.full(4, 2), gap=0.0, time_limit_s=20.0)
    assert answer.seconds < 15.0
    assert answer.gap < 1e-6
