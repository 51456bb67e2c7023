"""Baselines: each changes what it says, stays feasible, and never beats the exact solver on its own sample."""

from dataclasses import replace

import numpy as np
import pytest

from hsfl.allocation.answer import SolveStatus, evaluate_allocation, violation
from hsfl.allocation.cuts.radio import radio_request
from hsfl.allocation.cuts.search import CutSettings, rcls
from hsfl.allocation.drop_at_tau import client_prices
from hsfl.allocation.exact import exact
from hsfl.allocation.policies import Policy, policy
from hsfl.allocation.policy_table import POLICIES
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.stage.exclusive import solve_exclusive
from hsfl.allocation.stage.stage import stage_of_clients, training_stage
from hsfl.allocation.stage.stage_answer import StopWhen, TimeLimit
from hsfl.errors import InputError
from tests.naming import raises


@pytest.mark.parametrize("name", [*POLICIES, "ecfa+etra", "gtra+ecfa+etra", "scls+ecfa"])
@pytest.mark.parametrize("sharing", ["exclusive", "bandwidth"])
def test_no_baseline_beats_exact(name, sharing):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        scenario = random_scenario(rng, 4, 6, sharing=sharing)
        cuts = rcls(scenario.rows, rng)
        if sharing == "bandwidth" and policy(name).subchannels == "greedy":
            with raises(InputError, "whole subchannels"):
                policy(name).allocate(scenario, cuts)
            continue
        answer = policy(name).allocate(scenario, cuts)
        assert violation(scenario, answer) <= 1e-9
        assert evaluate_allocation(scenario, answer)[1] == answer.round_s
        best = exact(scenario, cuts)
        assert best.lower_bound_s <= answer.round_s * (1 + 1e-12)
        assert answer.lower_bound_s <= best.round_s * (1 + 1e-12)


def test_each_changes_one_decision():
    rng = np.random.default_rng(0)
    scenario = random_scenario(rng, 4, 6)
    cuts = rcls(scenario.rows, rng)
    np.testing.assert_allclose(policy("ecfa").allocate(scenario, cuts).server_hz, scenario.main_hz / 4)
    etra = policy("etra").allocate(scenario, cuts)
    np.testing.assert_allclose(etra.main_down_power_w.sum(axis=1), scenario.main_power_w / 4)
    np.testing.assert_allclose(etra.edge_down_power_w.sum(axis=1), scenario.edge_power_w / 4)
    assert np.ptp(etra.server_hz) > 0
    both = policy("etra_even").allocate(scenario, cuts)
    np.testing.assert_allclose(both.main_down_power_w.sum(axis=1), scenario.main_power_w / 4)
    assert both.owner.tolist() == both.edge_down_owner.tolist() == [0, 1, 2, 3, 0, 1]
    assert np.ptp(both.server_hz) > 0  # cycles stay optimal
    assert policy("ecfa+etra_even").allocate(scenario, cuts).round_s == policy("even").allocate(scenario, cuts).round_s
    even = policy("even").allocate(scenario, cuts)
    assert sorted(np.bincount(even.owner)) == [1, 1, 2, 2]
    assert etra.status is SolveStatus.HEURISTIC
    assert (policy("scls").choose(radio_request([scenario])).cuts == scenario.max_cut.min()).all()
    request = radio_request([scenario], CutSettings(seed=3))
    random = policy("rcls").choose(request).cuts
    assert ((random >= scenario.min_cut) & (random <= scenario.max_cut)).all()
    assert (random == policy("rcls").choose(request).cuts).all()
    assert np.ptp(policy("cpsl").choose(request).cuts) == 0


def test_policies_drop_clients_at_tau():
    rng = np.random.default_rng(2)
    scenario = random_scenario(rng, 4, 6)
    cuts = scenario.max_cut
    tau = replace(scenario, tau_s=0.6 * exact(scenario, cuts).round_s)
    for name in ("proposed", "ecfa", "gtra", "etra", "even"):
        answer = policy(name).allocate(tau, cuts)
        assert answer.status is SolveStatus.DROPPED
        assert violation(tau, answer) <= 1e-9
        finish = answer.round_s - answer.phases["model_down_s"].max()
        assert finish <= tau.tau_s * (1 + 1e-9)


def test_the_cheapest_samples_are_kept_first():
    """The plain version: by price per sample, everyone who still fits by an exact round of the set alone."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        scenario = random_scenario(rng, 4, 6)
        scenario = replace(scenario, num_batches=rng.integers(1, 40, 4).astype(float))
        cuts = rcls(scenario.rows, rng)
        stage = training_stage(scenario, cuts)
        tau_s = 0.7 * solve_exclusive(stage, StopWhen(1e-4), TimeLimit(10.0)).T_s
        per_sample = client_prices(stage, tau_s) / scenario.num_batches
        kept: list[int] = []
        for k in sorted(range(4), key=lambda k: per_sample[k]):
            together = sorted([*kept, k])
            if (
                solve_exclusive(stage_of_clients(stage, np.array(together)), StopWhen(1e-4), TimeLimit(10.0)).T_s
                <= tau_s
            ):
                kept = together
        answer = exact(replace(scenario, tau_s=tau_s), cuts)
        assert np.flatnonzero(answer.kept).tolist() == kept
        assert 0 < len(kept) < 4


def test_nobody_can_keep_a_tiny_tau():
    scenario = replace(random_scenario(np.random.default_rng(2), 3, 4), tau_s=1e-6)
    answer = exact(scenario, scenario.max_cut)
    assert not answer.kept.any()
    assert answer.round_s == answer.phases["model_down_s"].max()


def test_unknown_policy():
    with raises(InputError, "policy 'best'", "choose one of proposed"):
        policy("best")


@pytest.mark.parametrize(
    ("rules", "parts"),
    [
        ({"cycles": "proportional"}, ("policy mine", "cycles 'proportional'")),
        ({"subchannels": "gready"}, ("subchannels 'gready'", "did you mean greedy")),
        ({"power": "evenly"}, ("power 'evenly'", "did you mean even?")),
        ({"cuts": "smalest"}, ("cuts 'smalest'", "did you mean smallest")),
    ],
)
def test_a_policy_with_an_unknown_rule_is_an_error(rules, parts: tuple[str, ...]):
    """Such a rule used to mean optimal, silently."""
    with raises(InputError, "is unknown", *parts) as error:
        Policy("mine", **rules)
    assert "\n" not in str(error.value)


def test_a_policy_says_what_it_does_by_rule() -> None:
    said = {name: row.words for name, row in POLICIES.items()}
    assert said["proposed"] == "everything optimised"
    assert said["rcls"] == "random cuts"
    assert said["even"] == "even server cycles, even subchannels, even server power"
    assert len(set(said.values())) == len(said)
    assert policy("scls+gtra").words == "the smallest max_cut for all, greedy subchannels"
