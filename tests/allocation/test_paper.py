"""The paper's solver: its F step against the closed form, its P step against SCIP, and why it makes one turn only."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.allocation import paper
from hsfl.allocation.answer import SolveStatus, evaluate_allocation, violation
from hsfl.allocation.cuts.search import rcls
from hsfl.allocation.exact import exact
from hsfl.allocation.paper import (
    cycles_by_multipliers,
    even_transmission,
    solve_stage_as_paper,
    transmission,
    without_server_s,
)
from hsfl.allocation.policies import policy
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.solvers import allocate
from hsfl.allocation.stage.client_prices import shares_of, solve_shares
from hsfl.allocation.stage.exclusive import solve_exclusive as best_transmission
from hsfl.allocation.stage.stage import training_stage
from hsfl.allocation.stage.stage_answer import StopWhen, TimeLimit
from hsfl.errors import InputError
from tests.allocation.allocation_instances import all_cuts, scenarios
from tests.naming import raises

SIZES = [(2, 3), (5, 10), (10, 10)]
ACCURATE = 3e-3  # what the iteration may miss of the optimal T; measured: 0.2 % at most


def an_instance(clients, subchannels, seed):
    """A scenario, random cuts for it, and its training stage."""
    rng = np.random.default_rng(seed)
    scenario = random_scenario(rng, clients, subchannels)
    cuts = rcls(scenario.rows, rng)
    return scenario, cuts, training_stage(scenario, cuts)


def closed_form(m, n, hz):
    """The truth: T with sum n / (T - m) = hz by bisection, or the largest m of a client without work for the server."""
    busy = n > 0
    low, high = m[busy].max(), (m[busy] + n[busy] * busy.sum() / hz).max()
    for _ in range(200):
        middle = (low + high) / 2
        late = middle <= m[busy].max() or (n[busy] / (middle - m[busy])).sum() > hz
        low, high = (middle, high) if late else (low, middle)
    return max(high, m.max())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1e-3, 0.1, 0.5, 1.0, 1.5]), st.sampled_from([0.0, 1e-6, 1e-3, 0.1, 0.5, 1.0])),
        min_size=1,
        max_size=12,
    )
)
def test_multipliers_end_at_the_closed_form(loads):
    m, n = (np.array(column) for column in zip(*loads))
    hz, T, steps = cycles_by_multipliers(m, n, 2.0)
    assert hz.sum() <= 2.0
    assert (hz[n == 0] == 0).all()
    assert steps < paper.MAX_STEPS
    if (n > 0).any():
        truth = closed_form(m, n, 2.0)
        assert truth * (1 - 1e-12) <= T <= truth * (1 + ACCURATE)


def test_the_first_step_is_not_the_last():
    """With equal loads the first f is the even one it began with, so that T stands still once; as printed, it ends there."""
    m, n = np.array([0.0, 0.5, 1.0]), np.ones(3)
    _, T_s, steps = cycles_by_multipliers(m, n, 1.0)
    assert steps > 2
    assert T_s == pytest.approx(closed_form(m, n, 1.0), rel=ACCURATE)
    assert T_s < 0.99 * (m + 3 * n).max()


def test_the_printed_sign_runs_away():
    m, n = np.array([0.0, 0.5, 1.0]), np.array([1.0, 2.0, 1.0])
    assert cycles_by_multipliers(m, n, 1.0, alpha=-paper.STEP)[2] == paper.MAX_STEPS


@pytest.mark.parametrize(("clients", "subchannels"), SIZES)
def test_the_first_p_is_even_and_its_f_optimal(clients, subchannels):
    _, _, stage = an_instance(clients, subchannels, 1)
    share, down_w = even_transmission(stage)
    assert np.ptp(share.sum(axis=1)) <= 1  # equally many subchannels, or one more
    needs = stage.down_bits > 0
    np.testing.assert_allclose(down_w.sum(axis=1)[needs], stage.power_w / clients)
    each_w = np.full(clients, stage.power_w / clients)
    given = stage._replace(given_bits=stage.down_bits, given_power_w=each_w, down_bits=np.zeros(clients))
    best_s = solve_shares(given, share, 0.0, 0.0)[0]
    hz, T, _ = cycles_by_multipliers(without_server_s(stage, share, down_w), stage.cycles, stage.hz)
    assert best_s * (1 - 1e-9) <= T <= best_s * (1 + ACCURATE)
    assert hz.sum() == pytest.approx(stage.hz)


def optimal_cycles(stage, share, down_w):
    """An F step in closed form for a given P: (T, cycles)."""
    given = stage._replace(
        given_bits=stage.down_bits, given_power_w=down_w.sum(axis=1), down_bits=np.zeros(len(stage.cycles))
    )
    T_s = solve_shares(given, share, 0.0, 0.0)[0]
    left_s = T_s - without_server_s(stage, share, down_w)
    return T_s, np.divide(stage.cycles, left_s, out=np.zeros(len(left_s)), where=stage.cycles > 0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("clients", "subchannels"), SIZES)
def test_further_turns_gain_nothing(clients, subchannels, seed):
    """After the P step everyone with work for the server ends at T, so that another F, and another P for it, is no better."""
    _, _, stage = an_instance(clients, subchannels, seed)
    goal = StopWhen(1e-3)
    answer = solve_stage_as_paper(stage, goal, TimeLimit(10.0))
    share = shares_of(answer.owner, clients)
    hz, _, down_w, _ = answer.spent
    busy = stage.cycles > 0
    finish_s = without_server_s(stage, share, down_w)[busy] + stage.cycles[busy] / hz[busy]
    np.testing.assert_allclose(finish_s, answer.T_s, rtol=1e-6)
    again_s, again_hz = optimal_cycles(stage, share, down_w)
    assert again_s >= answer.T_s * (1 - 1e-6)
    turn = transmission(stage, again_hz, goal, TimeLimit(10.0), best_transmission)
    assert turn.T_s >= answer.T_s * (1 - 2 * goal.gap)


@pytest.mark.parametrize("seed", range(4))
def test_p_before_f_would_be_ecfa(seed):
    scenario, cuts, stage = an_instance(10, 10, seed)
    even_hz = np.full(10, stage.hz / 10)
    first = transmission(stage, even_hz, StopWhen(1e-3), TimeLimit(10.0), best_transmission)
    ecfa = policy("ecfa").allocate(scenario, cuts)
    assert first.T_s == pytest.approx(ecfa.round_s - ecfa.phases["model_down_s"].max(), rel=2e-3)
    then_s, _ = optimal_cycles(stage, shares_of(first.owner, 10), first.spent[2])
    assert then_s >= first.T_s * (1 - 1e-6)


@pytest.mark.parametrize(("clients", "subchannels"), SIZES)
def test_feasible_and_no_better_than_the_bound(clients, subchannels):
    scenario, cuts, stage = an_instance(clients, subchannels, 2)
    answer = allocate(scenario, cuts, "paper")
    of_even_p, _, _ = cycles_by_multipliers(without_server_s(stage, *even_transmission(stage)), stage.cycles, stage.hz)
    np.testing.assert_allclose(answer.server_hz, of_even_p)
    best = exact(scenario, cuts)
    assert violation(scenario, answer) <= 1e-9
    assert evaluate_allocation(scenario, answer)[1] == answer.round_s
    assert answer.status is SolveStatus.HEURISTIC
    assert answer.lower_bound_s == best.lower_bound_s
    assert best.lower_bound_s <= answer.round_s * (1 + 1e-9)
    assert answer.gap == pytest.approx(1 - best.lower_bound_s / answer.round_s)


@settings(max_examples=40, deadline=None)
@given(scenarios(), st.randoms(use_true_random=False))
def test_zeros_and_ties(scenario, random):
    """Clients without work for the server, without bits, or equal in everything."""
    cuts = random.choice(all_cuts(scenario))
    answer = paper.solve_as_paper(scenario, cuts)
    assert violation(scenario, answer) <= 1e-9
    assert exact(scenario, cuts).lower_bound_s <= answer.round_s * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_exact_p_step_agrees_with_scip(seed):
    pytest.importorskip("pyscipopt")
    scenario, cuts, _ = an_instance(2, 3, seed)
    ours, theirs = (paper.solve_as_paper(scenario, cuts, time_limit_s=30, p_step=name) for name in ("exact", "scip"))
    np.testing.assert_allclose(ours.server_hz, theirs.server_hz)
    assert ours.round_s == pytest.approx(theirs.round_s, rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_the_exact_p_step_agrees_with_scip_on_larger_rounds(seed):
    pytest.importorskip("pyscipopt")
    scenario, cuts, _ = an_instance(*[(3, 6), (4, 6)][seed % 2], 200 + seed)
    ours, theirs = (paper.solve_as_paper(scenario, cuts, time_limit_s=120, p_step=name) for name in ("exact", "scip"))
    assert ours.round_s == pytest.approx(theirs.round_s, rel=2e-3)


def test_those_who_are_kept_keep_tau():
    scenario, cuts, stage = an_instance(5, 10, 3)
    tau_s = 0.8 * solve_stage_as_paper(stage, StopWhen(1e-3), TimeLimit(10.0)).T_s
    answer = allocate(replace(scenario, tau_s=tau_s), cuts, "paper")
    assert answer.status is SolveStatus.DROPPED
    assert answer.kept.any()
    assert not answer.kept.all()
    assert answer.round_s - answer.phases["model_down_s"].max() <= tau_s * (1 + 1e-9)


def test_wrong_words_are_refused():
    scenario, cuts, _ = an_instance(2, 3, 0)
    with raises(InputError, "solver exact"):
        allocate(replace(scenario, sharing="bandwidth"), cuts, "paper")
    with raises(InputError, "p_step", "'scpi'", "did you mean scip"):
        paper.solve_as_paper(scenario, cuts, p_step="scpi")
