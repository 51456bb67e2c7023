"""Cycles and downlink power for a fixed assignment: the answer is proven optimal by its own KKT conditions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.allocation.cuts.search import rcls
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.stage.client_prices import shares_of, solve_shares
from hsfl.allocation.stage.fixed_shares import spend, water_fill
from hsfl.allocation.stage.local_search import first_owner
from hsfl.allocation.stage.stage import distribution_stage, training_stage
from hsfl.allocation.stage.water_filling import CURVE_ROWS, fill_curve, filled_nats
from tests.allocation.allocation_instances import scenarios


def kkt_residual(stage, share):
    """Largest relative breach of the conditions that make (f, q) optimal for min T; 0 at the optimum.

    With multipliers mu_k of the deadlines, alpha of the cycles and beta of the power, stationarity is
    mu n / f^2 = alpha and mu d R' / R^2 = beta (R' = b / w, w the water level), complementarity says that a budget with
    a positive price is spent and a client with mu > 0 finishes exactly at T. For given mu = alpha f^2 / n the second
    equation must hold with one beta for all clients that trade cycles for power.
    """
    T, rho, _ = solve_shares(stage, share, 0.0, 0.0)
    hz, up, down, edge = spend(stage, share, T, rho)
    b = stage.subchannel_hz / np.log(2)
    own = share > 0

    def seconds(bits, power, start):
        rate = b * np.log1p(np.where(own, power, 0) / start).sum(axis=1)
        return np.divide(bits, rate, out=np.zeros(len(bits)), where=bits > 0), rate

    up_s, _ = seconds(stage.up_bits, up, stage.start_w)
    edge_s, _ = seconds(stage.edge_bits, edge, stage.edge_start_w)
    down_s, rate = seconds(stage.down_bits, down, stage.start_w)
    server_s = np.divide(stage.cycles, hz, out=np.zeros(len(hz)), where=stage.cycles > 0)
    finish = stage.fixed_s + up_s + edge_s + down_s + server_s
    busy = (stage.cycles > 0) | (stage.down_bits > 0)
    both = (stage.cycles > 0) & (stage.down_bits > 0)
    residuals = [abs(finish.max() - T) / T if T > 0 else 0.0]
    idle_s = finish[~busy].max() if (~busy).any() else 0.0
    trade = both.any()
    if trade and idle_s < T * (1 - 1e-9):
        residuals.append(np.abs(finish[busy] / T - 1).max())
        residuals.append(abs(hz.sum() / stage.hz - 1))
        residuals.append(abs(down.sum() / stage.power_w - 1))
        level = np.where(down > 0, down + stage.start_w, 0).max(axis=1)
        slope = stage.cycles[both] / hz[both] ** 2 * rate[both] ** 2 * level[both] / (stage.down_bits[both] * b)
        residuals.append(np.ptp(slope) / slope.max())  # alpha / beta, the same for everyone
    return max(residuals)


@settings(max_examples=60, deadline=None)
@given(scenarios(max_clients=3, max_subchannels=4), st.integers(0, 2))
def test_kkt_on_grids_with_ties(scenario, cut):
    cuts = np.full(scenario.num_clients, cut)
    for stage in (training_stage(scenario, cuts), distribution_stage(scenario, cuts)):
        assert kkt_residual(stage, shares_of(first_owner(stage), scenario.num_clients)) < 1e-8


@pytest.mark.parametrize(("clients", "subchannels"), [(1, 1), (5, 10), (10, 10), (20, 40)])
def test_kkt_on_random_rounds(clients, subchannels):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        scenario = random_scenario(rng, clients, subchannels)
        stage = training_stage(scenario, rcls(scenario.rows, rng))
        assert kkt_residual(stage, shares_of(first_owner(stage), clients)) < 1e-8


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([1e-6, 0.5, 0.5, 1.0, 3.0]), min_size=1, max_size=6),
    st.sampled_from([1e-9, 0.1, 1.0, 50.0]),
)
def test_water_filling_levels_agree(start, power):
    """Every subchannel in use has the same level p + start, every other one starts above it, and the power is spent."""
    start = np.array(start)
    order, share, row = np.argsort(start, kind="stable"), np.ones(len(start)), np.empty(len(start))
    curve = np.empty((CURVE_ROWS, len(start)))
    water_fill(power, row, curve, order, start, np.log(start), share)
    level = (row + start)[row > 0]
    assert np.ptp(level) <= 1e-12 * level.max()
    assert (start[row == 0] >= level.max() * (1 - 1e-12)).all()
    assert row.sum() == pytest.approx(power, rel=1e-12)
    count = fill_curve(curve, order, start, np.log(start), share)
    nats = filled_nats(curve, count, power)
    assert nats == pytest.approx(np.log1p(row / start).sum(), rel=1e-9)
