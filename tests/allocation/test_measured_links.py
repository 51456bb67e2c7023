"""Measured links: cycles in closed form, cuts over samples; every claim against enumeration or a plain bisection."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.allocation.cuts.search import CutChoice, CutRequest, CutSettings, best_single_cut, search_cuts
from hsfl.allocation.measured_links import (
    MeasuredRounds,
    best_measured_round,
    keep_within_tau_measured,
    least_training,
    optimal_cycles,
    optimistic,
)
from hsfl.allocation.scenario import rows_between
from hsfl.errors import InputError

halves = st.integers(0, 8).map(lambda n: n / 2)  # so that ties and zeros happen


@st.composite
def fleets(draw, most_clients=3, most_samples=3, num_cuts=3):
    clients, count = draw(st.integers(1, most_clients)), draw(st.integers(1, most_samples))

    def table(*shape):
        size = int(np.prod(shape))
        return np.array(draw(st.lists(halves, min_size=size, max_size=size))).reshape(shape)

    max_cut = np.array(draw(st.lists(st.integers(0, num_cuts - 1), min_size=clients, max_size=clients)))
    shape = (count, clients, num_cuts)
    return MeasuredRounds(
        table(*shape), table(clients, num_cuts), table(*shape), rows_between(0, max_cut, num_cuts), 2.0
    )


def plain_least(own, work, hz):
    """min over f of max own + work / f with sum f = hz, by bisection."""
    low, high = own.max(), own.max() + work.sum() / hz + 1e-12
    for _ in range(200):
        middle = (low + high) / 2
        left = middle - own
        need = sum(w / t if t > 0 else np.inf for w, t in zip(work, left) if w > 0)
        low, high = (low, middle) if need <= hz and (left >= 0).all() else (middle, high)
    return high


def plain_mean(rounds, cuts):
    rows = np.arange(len(cuts))
    work = rounds.work_cycles[rows, cuts]
    each = [
        plain_least(own[rows, cuts], work, rounds.main_hz) + down[rows, cuts].max()
        for own, down in zip(rounds.own_s, rounds.down_s)
    ]
    return float(np.mean(each))


def every_cut(rounds):
    return [np.array(cuts) for cuts in product(*map(np.flatnonzero, rounds.rows))]


@given(st.lists(st.tuples(halves, halves), min_size=1, max_size=5), st.sampled_from([0.5, 2.0, 1e9]))
def test_cycles_end_everyone_at_the_least_time(clients, hz):
    own, work = np.array(clients).T
    training_s = float(least_training(own, work, hz))
    assert training_s == pytest.approx(plain_least(own, work, hz), rel=1e-9, abs=1e-9)
    cycles = optimal_cycles(own, work, hz)
    assert cycles.sum() <= hz
    assert ((cycles > 0) == (work > 0)).all()
    ends = own + np.divide(work, cycles, out=np.zeros(len(own)), where=work > 0)
    assert ends.max() == pytest.approx(training_s, rel=1e-9, abs=1e-12)


def test_two_clients_by_hand():
    """own 1 and 3, work 4 each, 4 cycles a second: 4/(T-1) + 4/(T-3) = 4 has T = 3 + sqrt(2)."""
    own, work = np.array([1.0, 3.0]), np.array([4.0, 4.0])
    assert least_training(own, work, 4.0) == pytest.approx(3 + np.sqrt(2), rel=1e-12)
    np.testing.assert_allclose(optimal_cycles(own, work, 4.0), [4 / (2 + np.sqrt(2)), 4 / np.sqrt(2)], rtol=1e-12)


def test_a_tiny_task_beside_a_long_one_is_no_division_by_zero():
    own, work = np.array([1e9, 0.0]), np.array([1e-9, 1.0])
    assert least_training(own, work, 1.0) == pytest.approx(1e9)
    cycles = optimal_cycles(own, work, 1.0)
    assert np.isfinite(cycles).all()
    assert (cycles > 0).all()


def test_who_is_kept_by_hand():
    """At tau = 4 the three need 1, 2 and 2 of 3 cycles; per sample 1, 2 and 0.2, so the third comes first."""
    own, work, samples = np.array([0.0, 2.0, 3.0]), np.array([4.0, 4.0, 2.0]), np.array([1.0, 1.0, 10.0])
    assert keep_within_tau_measured(own, work, samples, 3.0, 4.0, even=False).tolist() == [True, False, True]
    assert keep_within_tau_measured(own, work, samples, 5.0, 4.0, even=False).all()
    assert keep_within_tau_measured(own, work, samples, 3.0, 4.0, even=True).tolist() == [
        False,
        False,
        True,
    ]  # half each is 1.5 < 2
    assert keep_within_tau_measured(own, work, samples, 4.0, 4.0, even=True).tolist() == [True, False, True]
    assert not keep_within_tau_measured(own + 5, work, samples, 4.0, 4.0, even=False).any()


def deepest(rounds: MeasuredRounds) -> np.ndarray:
    return rounds.rows.sum(axis=1) - 1


def plan_of(rounds: MeasuredRounds, first: np.ndarray, how: CutSettings | None = None) -> CutChoice:
    return search_cuts(CutRequest(rounds.rows, rounds, how or CutSettings(), first))


@settings(max_examples=60, deadline=None)
@given(fleets())
def test_saa_equals_trying_everything(rounds):
    best = min(plain_mean(rounds, cuts) for cuts in every_cut(rounds))
    first = deepest(rounds)
    whole = plan_of(rounds, first, CutSettings(method="exhaustive"))
    assert whole.mean_s == pytest.approx(best, rel=1e-9, abs=1e-9)
    plan = plan_of(rounds, first)
    assert plan.lower_bound_s <= best * (1 + 1e-9) + 1e-12
    assert plan.mean_s == pytest.approx(plain_mean(rounds, plan.cuts), rel=1e-9, abs=1e-9)
    assert plan.mean_s <= plain_mean(rounds, first) * (1 + 1e-9) + 1e-12
    assert best <= plan.mean_s * (1 + 1e-9) + 1e-12
    assert plan.gap == pytest.approx(1 - plan.lower_bound_s / plan.mean_s if plan.mean_s else 0.0, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(fleets(), st.randoms())
def test_no_single_change_is_better_than_its_optimistic_value(rounds, random):
    cuts = np.array([random.randint(0, int(most)) for most in deepest(rounds)])
    bound = optimistic(rounds, cuts)
    for k, most in enumerate(deepest(rounds)):
        assert np.isinf(bound[k, most + 1 :]).all()
        for cut in range(most + 1):
            changed = cuts.copy()
            changed[k] = cut
            assert bound[k, cut] <= plain_mean(rounds, changed) * (1 + 1e-9) + 1e-9


def test_the_last_client_that_needs_the_server_may_leave_it():
    """Cut 1 has no work for the server: the round falls from 0.25 s to nothing, and the bound must say so."""
    zero = np.zeros((1, 1, 2))
    rounds = MeasuredRounds(zero, np.array([[0.5, 0.0]]), zero, np.ones((1, 2), bool), 2.0)
    np.testing.assert_allclose(optimistic(rounds, np.array([0])), [[0.25, 0.0]], atol=1e-15)


def random_fleet(seed, clients, count, num_cuts=6):
    """Heads that grow with the cut, tails that shrink, speeds that vary by a fifth."""
    rng = np.random.default_rng(seed)
    flops = np.cumsum(rng.random(num_cuts))
    speed = rng.uniform(1, 3, clients)
    varied = speed * np.maximum(1 + 0.2 * rng.standard_normal((count, clients)), 0.1)
    links = (2 * rng.random(num_cuts) + np.arange(num_cuts) / 10) / rng.uniform(1, 3, clients)[:, None]
    down = np.broadcast_to(0.1 * links, (count, clients, num_cuts))
    work = np.tile(flops[-1] - flops, (clients, 1))
    own = flops / varied[..., None] + links
    rounds = MeasuredRounds(
        own, work, down, rows_between(0, rng.integers(2, num_cuts, clients), num_cuts), 0.3 * clients
    )
    first = best_measured_round(flops / speed[:, None] + links, work, down[0], rounds.rows, rounds.main_hz).cuts
    return rounds, first


def test_descent_finds_what_enumeration_finds():
    worst = 0.0
    for seed in range(10):
        rounds, first = random_fleet(seed, 5, 10)
        best = plan_of(rounds, first, CutSettings(method="exhaustive"))
        plan = plan_of(rounds, first)
        worst = max(worst, plan.mean_s / best.mean_s - 1)
        assert plan.lower_bound_s <= best.mean_s * (1 + 1e-12)
        assert plan.mean_s <= rounds.round_s(first).mean() * (1 + 1e-12)
        assert plan.mean_s <= rounds.round_s(best_single_cut(CutRequest(rounds.rows, rounds)).cuts).mean() * (1 + 1e-9)
        assert (rounds.round_s(plan.cuts) <= rounds.even_round_s(plan.cuts) * (1 + 1e-12)).all()
    assert worst <= 1e-3


def test_samples_beat_the_mean_where_speeds_vary():
    """Somewhere the plan for mean speeds is not the best on the samples, and the search finds out."""
    gains = []
    for seed in range(10):
        rounds, first = random_fleet(seed, 30, 10)
        gains.append(1 - plan_of(rounds, first).mean_s / rounds.round_s(first).mean())
    assert min(gains) >= -1e-12
    assert max(gains) > 1e-4


def test_the_genetic_algorithm_takes_measured_links_too():
    rounds, first = random_fleet(3, 4, 5)
    plan = plan_of(rounds, first, CutSettings(method="ga", population=20))
    assert plan.mean_s <= rounds.round_s(first).mean() * (1 + 1e-12)
    assert plan.method == "ga"


def test_too_many_to_enumerate():
    rounds, first = random_fleet(0, 30, 2)
    with pytest.raises(InputError, match="choose descent"):
        plan_of(rounds, first, CutSettings(method="exhaustive"))
