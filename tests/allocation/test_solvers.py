"""`allocate` without cuts: tau_s left aside while choosing, baselines' own rules, proofs beside rules, cells that were hard."""

import json
from dataclasses import replace

import numpy as np
import pytest

import hsfl
from hsfl.allocation.cuts.bound import bound_over_cuts
from hsfl.allocation.cuts.search import rcls, scls
from hsfl.allocation.exact import exact
from hsfl.allocation.policies import policy
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.solvers import allocate
from hsfl.allocation.stage.exclusive import solve_exclusive
from hsfl.allocation.stage.stage import training_stage
from hsfl.allocation.stage.stage_answer import StopWhen, TimeLimit
from hsfl.errors import InputError
from tests.naming import raises


@pytest.mark.parametrize("sharing", ["exclusive", "bandwidth"])
def test_cuts_are_those_without_tau(sharing):
    """A tau that everyone can keep drops nobody, and a shorter one does not change the cuts."""
    for seed in range(4):
        scenario = random_scenario(np.random.default_rng(seed), 3, 4, sharing=sharing)
        free = allocate(scenario)
        generous = allocate(replace(scenario, tau_s=1.01 * free.round_s))
        assert generous.kept.all()
        assert generous.round_s == pytest.approx(free.round_s, rel=2e-3)
        short = allocate(replace(scenario, tau_s=0.7 * (free.round_s - np.max(free.phases["model_down_s"]))))
        assert (short.cuts == free.cuts).all()
        assert not short.kept.all()
        assert short.cuts_lower_bound_s is None  # a bound of rounds with everyone


def test_a_tau_just_long_enough_drops_nobody():
    for seed in range(6):
        rng = np.random.default_rng(seed)
        scenario = random_scenario(rng, 3, 2, sharing="bandwidth")
        cuts = rcls(scenario.rows, rng)
        answer = exact(scenario, cuts, gap=1e-7)
        training_s = answer.round_s - answer.phases["model_down_s"].max()
        assert exact(replace(scenario, tau_s=training_s * (1 + 1e-5)), cuts).kept.all()


def test_baselines_follow_their_own_rule_for_cuts():
    scenario = random_scenario(np.random.default_rng(1), 3, 4)
    best = allocate(scenario)
    assert (allocate(scenario, solver="scls").cuts == scls(scenario.rows)).all()
    assert np.ptp(allocate(scenario, solver="cpsl").cuts) == 0
    assert (allocate(scenario, solver="rcls", seed=5).cuts == allocate(scenario, solver="rcls", seed=5).cuts).all()
    assert (allocate(scenario, solver="ecfa").cuts == best.cuts).all()
    for name in ("scls", "rcls", "cpsl", "splitfed"):
        assert allocate(scenario, solver=name).round_s >= best.cuts_lower_bound_s


@pytest.mark.parametrize("name", ["ecfa", "gtra", "etra", "even"])
def test_a_rule_s_gap_is_its_distance_to_the_optimum(name):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        scenario = random_scenario(rng, 4, 6)
        cuts = rcls(scenario.rows, rng)
        best, answer = exact(scenario, cuts), policy(name).allocate(scenario, cuts)
        assert answer.lower_bound_s <= best.round_s
        assert answer.gap <= 1 - best.round_s / answer.round_s + 2e-3


def test_rules_that_contradict_each_other_are_an_error():
    assert policy("scls+ecfa+etra").cuts == "smallest"
    assert policy("etra+etra_even").subchannels == "even"
    for name in ("rcls+scls", "gtra+etra_even", "splitfed+cpsl"):
        with raises(InputError, "one rule"):
            policy(name)


def test_a_file_is_as_good_as_a_scenario(tmp_path):
    scenario = random_scenario(np.random.default_rng(2), 2, 3)
    path = tmp_path / "s.json"
    path.write_text(json.dumps(scenario.to_dict()))
    assert hsfl.allocate(path, [2, 2]).round_s == hsfl.allocate(scenario, [2, 2]).round_s


def test_a_level_near_a_client_s_own_time_does_not_stop_the_proof():
    """Prices near a deadline have tangents without number; the bound used to stay at each client alone (48 %)."""
    rng = np.random.default_rng(1)
    rcls(random_scenario(rng, 10, 10).rows, rng)
    scenario = random_scenario(rng, 32, 64)
    cuts = [5, 1, 4, 5, 1, 5, 4, 5, 4, 1, 4, 5, 4, 1, 4, 3, 4, 4, 1, 4, 4, 4, 5, 5, 4, 1, 8, 1, 1, 5, 4, 5]
    answer = solve_exclusive(training_stage(scenario, np.array(cuts)), StopWhen(0.05), TimeLimit(120.0))
    assert answer.gap <= 0.05 * (1 + 1e-9)


def test_without_time_the_bound_is_each_client_alone():
    scenario = random_scenario(np.random.default_rng(0), 20, 30)
    bound_s = bound_over_cuts([scenario], scenario.max_cut, TimeLimit(0.0))
    assert 0 < bound_s <= exact(scenario, scenario.max_cut, time_limit_s=0.2).round_s
