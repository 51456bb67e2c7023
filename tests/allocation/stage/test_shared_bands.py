"""Shared bands: the certificate, and what must hold between sharing and owning."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.allocation.answer import SolveStatus, evaluate_allocation, violation
from hsfl.allocation.cuts.search import rcls
from hsfl.allocation.exact import exact
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.stage import shared_bands
from hsfl.allocation.stage.client_prices import rents, solve_shares
from hsfl.allocation.stage.stage import even_cycles, training_stage
from hsfl.allocation.stage.stage_answer import StopWhen, TimeLimit
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
    from hsfl.allocation.stage.client_prices import solve_shares
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


# Shared bands with kinks: phases that carry nothing, clients that only upload a model. Planes prove what descent cannot.


WHOLE = 10  # a cut that leaves the server nothing


def kinked(seed, clients=6, subchannels=4):
    """A third of the clients hold the whole model and are fast, so that their uploads decide."""
    rng = np.random.default_rng(seed)
    scenario = random_scenario(rng, clients, subchannels, sharing="bandwidth")
    scenario = replace(scenario, max_cut=np.full(clients, WHOLE), cpu_hz=rng.uniform(5e10, 1e11, clients))
    cuts = np.minimum(rcls(scenario.rows, rng), WHOLE - 1)
    cuts[: max(1, clients // 3)] = WHOLE
    return scenario, cuts


def with_nothing_in(pattern):
    """Two clients on one subchannel, cuts 0 and 1, where some of (smashed, gradient, server, model) are nothing."""
    loads = np.array([[3e6, 2e6, 2e9, 4e6], [5e6, 3e6, 3e9, 7e6]]) * np.reshape(pattern, (2, 4))
    base = random_scenario(np.random.default_rng(0), 2, 1, sharing="bandwidth")
    return replace(
        base, batch_size=1, client_flops=np.full(2, 1e9), server_flops=loads[:, 2], smashed_bits=loads[:, 0],
        gradient_bits=loads[:, 1], model_bits=loads[:, 3], cpu_hz=np.full(2, 1e9), max_cut=np.ones(2, int),
        num_batches=np.ones(2), main_hz=1e9, min_cut=0,
    ).checked()  # fmt: skip


@pytest.mark.parametrize("pattern", list(product([0, 1], repeat=8))[::3])
def test_whatever_is_nothing(pattern):
    scenario = with_nothing_in(pattern)
    answer = exact(scenario, np.array([0, 1]))
    assert answer.status is SolveStatus.OPTIMAL
    assert violation(scenario, answer) <= 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_clients_that_only_upload(seed):
    scenario, cuts = kinked(seed)
    for gap in (1e-3, 1e-5):
        answer = exact(scenario, cuts, gap=gap)
        assert answer.status is SolveStatus.OPTIMAL
        assert answer.gap <= gap * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_even_cycles_leave_one_budget_and_deadlines(seed):
    scenario, cuts = kinked(seed, 3, 2)
    answer = shared_bands.solve_shared(even_cycles(training_stage(scenario, cuts)), StopWhen(1e-3), TimeLimit(60.0))
    assert answer.gap <= 1e-3 * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_planes_alone_agree_with_descent(seed, monkeypatch):
    """Where there are no kinks both prove the same optimum, each by its own certificate."""
    monkeypatch.setattr(shared_bands, "FEW_STEPS", 10**6)
    rng = np.random.default_rng(seed)
    scenario = random_scenario(rng, 5, 3, sharing="bandwidth")
    stage = training_stage(scenario, rcls(scenario.rows, rng))
    by_descent = shared_bands.descend(stage, StopWhen(1e-4), TimeLimit(60.0))
    share = shared_bands.first_shares(stage)
    T, rho, _ = solve_shares(stage, share, 0.0, 0.0)
    _, T, bound_s = shared_bands.solve_planes(stage, share, T, rho, 0.0, StopWhen(1e-4), TimeLimit(60.0))
    assert by_descent.gap <= 1e-4 * (1 + 1e-9)
    assert (T - bound_s) / T <= 1e-4 * (1 + 1e-9)
    assert bound_s <= by_descent.T_s
    assert by_descent.lower_bound_s <= T


@pytest.mark.parametrize("seed", range(3))
def test_planes_lie_below_the_seconds_they_touch(seed):
    """A plane of one point is at most the true seconds at another, and equal at its own."""
    scenario, cuts = kinked(seed)
    stage = training_stage(scenario, cuts)
    rng = np.random.default_rng(seed)
    points = []
    for _ in range(4):
        share = rng.dirichlet(np.ones(scenario.num_clients), scenario.num_subchannels).T.copy()
        T, rho, _ = solve_shares(stage, share, 0.0, 0.0)
        K = len(share)
        point = np.empty((K, 6))
        rents(stage, share, T, rho, 0.5, np.empty(share.shape), point, np.empty(K))
        own_s, server_s, f, q = point[:, :4].T
        points.append((share, T, rho, f / stage.hz, q / stage.power_w, own_s + server_s))
    laid = shared_bands.Planes(1.0)
    for share, T, rho, *_ in points:
        laid.lay(stage, share, T, rho)
    for mine, _ in enumerate(points):
        for yours, (share, _, _, f, q, true_s) in enumerate(points):
            low_s = (
                laid.base[mine]
                - (laid.slope_s[mine] * share).sum(axis=1)
                - laid.slope_f[mine] * f
                - laid.slope_q[mine] * q
            )
            assert (low_s <= true_s * (1 + 1e-9)).all()
            if mine == yours:
                np.testing.assert_allclose(low_s, true_s, rtol=1e-9)


@pytest.mark.parametrize("seed", [0, 5, 27, 39, 58, 67])
def test_an_answer_has_the_shares_of_its_time(seed):
    """Descent changes shares in place; what it returns must be what it valued."""
    for gap in (0.2, 0.05):
        scenario, cuts = kinked(seed, 3, 1)
        for stage in (training_stage(scenario, cuts), even_cycles(training_stage(scenario, cuts))):
            answer = shared_bands.solve_shared(stage, StopWhen(gap), TimeLimit(60.0))
            assert answer.T_s == pytest.approx(solve_shares(stage, answer.share, 0.0, 0.0)[0], rel=1e-9)
