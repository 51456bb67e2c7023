"""Small scenarios on coarse grids, so that ties, zeros and equal clients happen."""

from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import strategies as st

from hsfl.allocation.exact import exact
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.stage.client_prices import shares_of, solve_shares


@st.composite
def scenarios(draw, max_clients=3, max_subchannels=4, sharing="exclusive", num_cuts=3):
    """K <= max_clients, I <= max_subchannels; every number from a handful of values, zeros among the costs."""
    clients = draw(st.integers(1, max_clients))
    subchannels = draw(st.integers(clients if sharing == "exclusive" else 1, max_subchannels))
    pick = lambda values, size: np.array(draw(st.lists(st.sampled_from(values), min_size=size, max_size=size)))  # noqa: E731
    gain = lambda: pick([0.01, 0.5, 0.5, 1.0, 2.0], clients * subchannels).reshape(clients, subchannels)  # noqa: E731
    return Scenario(
        batch_size=draw(st.sampled_from([1, 4])),
        tau_s=None,
        sharing=sharing,
        client_flops=pick([0.0, 1e9, 2e9], num_cuts),
        server_flops=pick([0.0, 1e9, 2e9], num_cuts),
        smashed_bits=pick([0.0, 1e6, 2e6], num_cuts),
        gradient_bits=pick([0.0, 1e6, 2e6], num_cuts),
        model_bits=pick([0.0, 1e6, 1e7], num_cuts),
        cpu_hz=pick([1e9, 2e9], clients),
        client_flops_per_cycle=pick([1.0, 2.0], clients),
        max_power_w=pick([0.5, 1.0], clients),
        max_cut=np.full(clients, num_cuts - 1),
        num_batches=pick([0.5, 1.0, 2.0], clients),
        min_cut=0,
        main_hz=draw(st.sampled_from([1e9, 1e10])),
        server_flops_per_cycle=1.0,
        main_power_w=draw(st.sampled_from([1.0, 10.0])),
        edge_power_w=draw(st.sampled_from([1.0, 10.0])),
        subchannel_hz=1e6,
        noise_w=draw(st.sampled_from([1e-3, 1.0])),
        main_gain=gain(),
        edge_gain=gain(),
    ).checked()


def all_cuts(scenario):
    """Every vector of feasible cuts."""
    return [np.array(c) for c in product(*map(np.flatnonzero, scenario.rows))]


def with_draws(scenario, main_gain, edge_gain, cpu_hz):
    """One scenario for each of S draws: gains [S, K, I] and the clients' speeds in hertz [S, K]."""
    return [
        replace(scenario, main_gain=main, edge_gain=edge, cpu_hz=hz).checked()
        for main, edge, hz in zip(main_gain, edge_gain, cpu_hz, strict=True)
    ]


def exact_rounds(samples, cuts):
    """The optimal round of every sample in seconds, [S]."""
    return np.array([exact(sample, cuts, gap=1e-3, time_limit_s=1.0).round_s for sample in samples])


def enumerate_stage(stage):
    """The plain version: the least T over every assignment of subchannels, one convex problem each."""
    clients, subchannels = stage.start_w.shape
    owners = product(range(clients), repeat=subchannels)
    return min(solve_shares(stage, shares_of(np.array(owner), clients), 0.0, 0.0)[0] for owner in owners)
