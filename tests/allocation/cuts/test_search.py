"""Cuts: every method against enumeration, the bound below the best, and a seed that repeats."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from hsfl.allocation.cuts.bound import bound_over_cuts
from hsfl.allocation.cuts.packed_samples import evaluate_all
from hsfl.allocation.cuts.radio import Fitness, first_candidates, radio_request
from hsfl.allocation.cuts.search import CutSettings, place_of, row_at, scls, search_cuts
from hsfl.allocation.random_scenarios import gains, random_scenario
from hsfl.allocation.stage.stage_answer import TimeLimit
from hsfl.errors import InputError
from tests.allocation.allocation_instances import all_cuts, exact_rounds, with_draws
from tests.naming import raises


def small(seed, clients=3, subchannels=4, num_samples=3, sharing="exclusive"):
    """S samples of a fleet with at most four cuts a client."""
    rng = np.random.default_rng(seed)
    scenario = random_scenario(rng, clients, subchannels, sharing=sharing)
    scenario = replace(scenario, max_cut=rng.integers(2, 5, clients))
    shape = (num_samples, clients, subchannels)
    speeds = scenario.cpu_hz * rng.uniform(0.8, 1.2, (num_samples, clients))
    return with_draws(scenario, gains(rng, *shape), gains(rng, *shape), speeds)


@cache
def enumerated(seed):
    """The least exact mean round over every cut vector."""
    samples = small(seed, num_samples=2)
    return min(exact_rounds(samples, cuts).mean() for cuts in all_cuts(samples[0]))


@pytest.mark.parametrize("method", ["ga", "descent", "exhaustive"])
def test_within_half_a_percent_of_enumeration(method):
    """20 small cases; every cut vector is allocated exactly on every sample."""
    for seed in range(20):
        samples, best = small(seed, num_samples=2), enumerated(seed)
        settings = CutSettings(method=method, seed=seed, population=12, patience=6, bound=method == "descent")
        plan = search_cuts(radio_request(samples, settings))
        assert plan.mean_s <= best * 1.005
        assert plan.lower_bound_s <= best * (1 + 1e-9)
        assert plan.mean_s == pytest.approx(exact_rounds(samples, plan.cuts).mean(), rel=1e-9)


@pytest.mark.parametrize(("clients", "subchannels"), [(3, 3), (3, 5), (2, 7)])
def test_the_bound_holds_for_all_cuts(clients, subchannels):
    for seed in range(3):
        samples = small(seed, clients, subchannels, num_samples=1)
        plan = search_cuts(radio_request(samples, CutSettings(seed=seed, time_limit_s=3)))
        for cuts in all_cuts(samples[0]):
            assert plan.lower_bound_s <= exact_rounds(samples, cuts)[0] * (1 + 1e-9)


@pytest.mark.parametrize(("clients", "subchannels"), [(3, 3), (3, 5), (2, 7)])
def test_the_bound_holds_from_bad_cuts(clients, subchannels):
    """A bound is never above what it starts from, so it starts here from the worst cuts of all."""
    for seed in range(3):
        samples = small(seed, clients, subchannels, num_samples=1)
        rounds = {tuple(cuts): exact_rounds(samples, cuts)[0] for cuts in all_cuts(samples[0])}
        worst = np.array(max(rounds, key=rounds.__getitem__))
        assert bound_over_cuts(samples, worst, TimeLimit(3.0)) <= min(rounds.values()) * (1 + 1e-9)


def test_a_seed_repeats_and_progress_is_told():
    samples, seen = small(1), []
    settings = CutSettings(method="ga", seed=5, population=12, bound=False)
    one = search_cuts(radio_request(samples, settings, lambda what, step, best: seen.append((what, best))))
    two = search_cuts(radio_request(samples, settings))
    assert (one.cuts == two.cuts).all()
    assert one.evaluations == two.evaluations
    assert seen[0][0] == "generation"
    assert all(b <= a for (_, a), (_, b) in pairwise(seen))


def test_first_population_has_scls():
    request = radio_request(small(2))
    starts = first_candidates(request, 10)
    assert (starts == scls(request.rows)).all(axis=1).any()
    assert len(starts) == 10


def test_threads_change_nothing():
    fitness = Fitness(small(3))
    cuts = np.array(all_cuts(fitness.scenario))
    one, two = (evaluate_all(fitness.samples, cuts, fitness.owners, threads) for threads in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_shared_bands_choose_cuts_too():
    samples = small(4, clients=4, subchannels=2, num_samples=1, sharing="bandwidth")
    plan = search_cuts(radio_request(samples, CutSettings(patience=2)))
    best = min(exact_rounds(samples, cuts).mean() for cuts in all_cuts(samples[0]))
    assert plan.mean_s <= best * 1.01
    assert plan.lower_bound_s <= best


def test_samples_must_be_of_one_fleet():
    one = small(0)
    with pytest.raises(InputError, match=r"samples\[1\].main_hz differs"):
        search_cuts(radio_request([one[0], replace(one[1], main_hz=1.0)]))
    with raises(InputError, "samples", "empty"):
        radio_request([])
    with raises(InputError, "method is 'luck'"):
        search_cuts(radio_request(one, CutSettings(method="luck")))


@pytest.mark.parametrize("method", ["ga", "descent", "exhaustive"])
def test_a_method_takes_only_rows_that_clients_may_take(method):
    """Rows with gaps, which are no range of cuts: the best of them is found, and no other is valued."""
    for seed in range(5):
        samples = small(seed, num_samples=1)
        rows = samples[0].rows
        rows[1:, 2] = False
        settings = CutSettings(method=method, seed=seed, population=12, patience=6)
        plan = search_cuts(replace(radio_request(samples, settings), rows=rows))
        assert rows[np.arange(3), plan.cuts].all()
        allowed = [cuts for cuts in all_cuts(samples[0]) if rows[np.arange(3), cuts].all()]
        best_s = min(exact_rounds(samples, cuts).mean() for cuts in allowed)
        assert plan.lower_bound_s * (1 - 1e-9) <= best_s
        assert plan.mean_s <= best_s * 1.005


def test_places_among_rows():
    rows = np.array([[False, True, True, False, True], [True, False, True, True, False]])
    np.testing.assert_array_equal(row_at(rows, np.array([[0, 0], [2, 1]])), [[1, 0], [4, 2]])
    np.testing.assert_array_equal(place_of(rows, np.array([[1, 0], [4, 2]])), [[0, 0], [2, 1]])
    assert scls(rows).tolist() == [2, 2]
