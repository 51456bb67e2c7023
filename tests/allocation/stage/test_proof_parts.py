"""The parts of the proof, each against enumeration: tangents, matching, dynamic programme, the walk through leaves."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.allocation import numba_cache
from hsfl.allocation.stage import lagrangian, subset_dp
from hsfl.allocation.stage.assignment import match
from hsfl.allocation.stage.client_prices import price, shares_of, solve_shares, tangent
from hsfl.allocation.stage.local_search import first_owner
from hsfl.allocation.stage.stage import needs_subchannel, training_stage
from hsfl.allocation.stage.water_filling import CURVE_ROWS
from tests.allocation.allocation_instances import enumerate_stage, scenarios


def prepared(scenario, cut, longer=1.02):
    """A stage with a deadline a little longer than some assignment needs, and its price."""
    stage = training_stage(scenario, np.full(scenario.num_clients, cut))
    T, rho, lam = solve_shares(stage, shares_of(first_owner(stage), scenario.num_clients), 0.0, 0.0)
    return stage, longer * T + 1e-9, rho, lam


def prices(stage, k, T, rho, lam):
    """phi_k of every set, by mask."""
    subs = stage.start_w.shape[1]
    work = np.empty((2, CURVE_ROWS, subs))
    shares = [np.array([(mask >> i) & 1 for i in range(subs)], float) for mask in range(1 << subs)]
    return shares, np.array([price(stage, k, share, work[0], work[1], T, rho, lam) for share in shares])


@settings(max_examples=40, deadline=None)
@given(scenarios(max_clients=2, max_subchannels=4), st.integers(0, 2))
def test_tangents_lie_below_prices_and_touch(scenario, cut):
    stage, T, rho, lam = prepared(scenario, cut)
    rent, work = np.empty(scenario.num_subchannels), np.empty((2, CURVE_ROWS, scenario.num_subchannels))
    for k in range(scenario.num_clients):
        shares, phi = prices(stage, k, T, rho, lam)
        for share, value in zip(shares[1:], phi[1:], strict=True):
            at, feasible = tangent(stage, k, share, T, rho, lam, work[0], work[1], rent)
            if not feasible:
                continue
            assert (rent >= 0).all()
            assert at == pytest.approx(value, rel=1e-9, abs=1e-12)
            bounds = np.array([at + rent @ share - rent @ other for other in shares])
            assert (bounds[1:] <= phi[1:] + 1e-9 * (1 + abs(at))).all()


@settings(max_examples=40, deadline=None)
@given(scenarios(max_clients=2, max_subchannels=4), st.integers(0, 2), st.sampled_from([0.0, 0.01, 0.1, 1.0]))
def test_what_a_client_buys_is_a_lower_bound(scenario, cut, level):
    stage, T, rho, lam = prepared(scenario, cut)
    subs = scenario.num_subchannels
    pi = level * np.arange(1, subs + 1) / subs
    for k in range(scenario.num_clients):
        shares, phi = prices(stage, k, T, rho, lam)
        least = min(p + pi @ s for p, s in zip(phi, shares, strict=True))
        sets, chosen = np.zeros((subs + 1, subs)), np.zeros(subs)
        bound = lagrangian.cheapest_set(
            stage, k, pi, T, rho, lam, subs, sets, chosen, lagrangian.workspace(subs), np.ones(subs)
        )
        assert bound <= least * (1 + 1e-9) + 1e-12


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(0, 1), st.data())
def test_matching_equals_all_permutations(rows, more, data):
    columns = rows + more
    entry = st.sampled_from([0.0, 0.5, 0.5, 1.0, 2.0, np.inf])
    cost = np.array(data.draw(st.lists(entry, min_size=rows * columns, max_size=rows * columns))).reshape(rows, columns)
    best = min(sum(cost[r, c] for r, c in enumerate(order)) for order in permutations(range(columns), rows))
    value, column = match(cost)
    assert value == best
    if np.isfinite(best):
        assert sum(cost[r, c] for r, c in enumerate(column)) == best
        assert len(set(column)) == rows


@settings(max_examples=40, deadline=None)
@given(scenarios(max_clients=3, max_subchannels=4), st.integers(0, 2))
def test_least_sum_equals_all_partitions(scenario, cut):
    stage, T, rho, lam = prepared(scenario, cut)
    clients, subs = stage.start_w.shape
    tables = [prices(stage, k, T, rho, lam)[1] for k in range(clients)]
    best = np.inf
    for owner in product(range(clients), repeat=subs):
        masks = [sum(1 << i for i, o in enumerate(owner) if o == k) for k in range(clients)]
        best = min(best, sum(tables[k][mask] for k, mask in enumerate(masks)))
    pool, used = np.zeros((clients, 64), np.int64), np.zeros(clients, np.int64)
    limit = subset_dp.largest_set(stage)
    value, _, _, exact = subset_dp.least_sum(stage, np.arange(clients + 1), limit, pool, used, T, rho, lam, 1000)
    assert value <= best * (1 + 1e-9) + 1e-12
    if exact:
        assert value == pytest.approx(best, rel=1e-9, abs=1e-12)
    else:
        assert min(value, best) > 1


@settings(max_examples=40, deadline=None)
@given(scenarios(max_clients=3, max_subchannels=4), st.integers(0, 2))
def test_the_walk_finds_what_exists_and_nothing_else(scenario, cut):
    stage, _, rho, lam = prepared(scenario, cut)
    if not any(needs_subchannel(stage, k) for k in range(scenario.num_clients)):
        return
    best = enumerate_stage(stage)
    c, needy = subset_dp.uplink_table(stage), subset_dp.needs_subchannels(stage)
    for T, exists in ((best * (1 + 1e-7), True), (best * (1 - 1e-7), False)):
        phi = subset_dp.price_table(stage, c, T, rho, lam)
        after = subset_dp.complete(needy, phi)
        _, value, exhausted = subset_dp.walk_assignments(stage, phi, after, T, rho, 10**6)
        assert np.isfinite(value) == exists
        assert exhausted != exists


def test_no_place_for_a_cache_is_no_error(monkeypatch):
    monkeypatch.setattr(numba_cache, "_HERE", numba_cache.Path("/dev/null/nowhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    numba_cache.cache_dir.cache_clear()
    try:
        assert numba_cache.cache_dir() == ""

        @numba_cache.compiled
        def twice(x):
            return 2 * x

        assert twice(3) == 6
    finally:
        numba_cache.cache_dir.cache_clear()
