"""Shared bands: the certificate, and what must hold between sharing and owning."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.allocation.answer import SolveStatus, evaluate_allocation, violation
from hsfl.allocation.cuts.search import rcls
from hsfl.allocation.exact import exact
from hsfl.allocation.random_scenarios import random_scenario
from tests.allocation.allocation_instances import scenarios


@settings(max_examples=15, deadline=None)
@given(scenarios(max_clients=3, max_subchannels=3), st.integers(0, 2))
def test_sharing_is_a_relaxation_of_owning(scenario, cut):
    cuts = np.full(scenario.num_clients, cut)
    owned = exact(scenario, cuts)
    shared = exact(replace(scenario, sharing="bandwidth"), cuts, gap=1e-2)
    assert shared.status is SolveStatus.OPTIMAL
    assert violation(replace(scenario, sharing="bandwidth"), shared) <= 1e-9
    assert shared.lower_bound_s <= owned.round_s * (1 + 1e-9)
    assert shared.lower_bound_s <= shared.round_s


@pytest.mark.parametrize(("clients", "subchannels"), [(1, 1), (3, 2), (5, 10), (40, 10)])
def test_proven_gap_for_any_number_of_clients(clients, subchannels):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        scenario = random_scenario(rng, clients, subchannels, sharing="bandwidth")
        answer = exact(scenario, rcls(scenario.rows, rng))
        assert answer.status is SolveStatus.OPTIMAL
        assert violation(scenario, answer) <= 1e-9
        assert evaluate_allocation(scenario, answer)[1] == answer.round_s


def test_one_subchannel_two_equal_clients_share_it_equally():
    base = random_scenario(np.random.default_rng(0), 2, 1, sharing="bandwidth")
    same = replace(
        base,
        cpu_hz=np.full(2, 1e10),
        max_power_w=np.ones(2),
        num_batches=np.full(2, 5.0),
        main_gain=np.ones((2, 1)),
        edge_gain=np.ones((2, 1)),
    )
    answer = exact(same, np.array([2, 2]), gap=1e-6)
    np.testing.assert_allclose(answer.share, 0.5, atol=1e-3)
    np.testing.assert_allclose(answer.server_hz, same.main_hz / 2, rtol=1e-2)


def test_random_shares_never_beat_the_bound():
    """The certificate against direct search: no random shares come below it."""
    from hsfl.allocation.stage.prices import solve_shares
    from hsfl.allocation.stage.stage import training_stage

    rng = np.random.default_rng(5)
    scenario = random_scenario(rng, 4, 3, sharing="bandwidth")
    cuts = rcls(scenario.rows, rng)
    stage = training_stage(scenario, cuts)
    answer = exact(scenario, cuts, gap=1e-5)
    bound = answer.lower_bound_s - answer.phases["model_down_s"].max()
    for _ in range(2000):
        noise = np.exp(0.3 * rng.standard_normal((4, 3)))
        share = np.maximum(answer.share * noise, 1e-6)
        assert solve_shares(stage, share / share.sum(axis=0), 0.0, 0.0)[0] >= bound * (1 - 1e-9)


def test_many_subchannels_are_no_overflow():
    """3^1000 has no float: the choice of a method must not compute it."""
    rng = np.random.default_rng(0)
    scenario = random_scenario(rng, 3, 700, sharing="bandwidth")
    answer = exact(scenario, rcls(scenario.rows, rng), gap=1e-2)
    assert answer.gap <= 1e-2 * (1 + 1e-6)
