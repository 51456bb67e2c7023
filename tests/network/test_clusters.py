"""CPSL's clusters: sizes, seeds, and that Gibbs sampling finds what brute force finds."""

from itertools import permutations

import numpy as np
import pytest

from hsfl.errors import InputError
from hsfl.models.cost_table import CostTable
from hsfl.network import devices
from hsfl.network.channel import Ofdma, draw_round
from hsfl.network.clock import timeline
from hsfl.network.clusters import gibbs_clusters, random_clusters
from hsfl.network.even_allocation import even_phases
from tests.naming import raises

ONE_CUT = CostTable(  # cut 1 of a model of two units
    client_forward_flops=[0, 1e9, 4e9],
    client_backward_flops=[0, 1e9, 9e9],
    server_forward_flops=[4e9, 3e9, 0],
    server_backward_flops=[9e9, 7e9, 0],
    smashed_bits=[3e5, 2e6, 0],
    gradient_bits=[0, 2e6, 0],
    model_bits=[0, 1e6, 9e7],
)


def cpsl_latency(num_clients, seed=0):
    fleet = devices.draw_fleet(num_clients, np.random.default_rng(seed), num_units=2, max_cut=(1, 2))
    links, servers = Ofdma(num_subchannels=4), devices.Servers()
    draw = draw_round(fleet, links, seed, 0)
    cuts = np.ones(num_clients, int)

    def latency_s(clusters):
        phases = even_phases("cpsl", ONE_CUT, cuts, 8, fleet, servers, links, draw, clusters=clusters)
        return timeline("cpsl", phases, 2.0, clusters=clusters).round_s

    return latency_s


def test_random_clusters_have_equal_sizes():
    clusters = random_clusters(10, 3, np.random.default_rng(0))
    assert sorted(np.bincount(clusters)) == [3, 3, 4]
    with raises(InputError, "4 clusters", "3 clients", "choose 1..3"):
        random_clusters(3, 4, np.random.default_rng(0))


def test_gibbs_finds_the_best_clusters_of_six_clients():
    latency_s = cpsl_latency(6)
    best_s = min(latency_s(np.array(c)) for c in set(permutations([0, 0, 0, 1, 1, 1])))
    clusters, found_s = gibbs_clusters(latency_s, 6, 2, np.random.default_rng(1), num_swaps=200)
    assert found_s == pytest.approx(best_s)
    assert latency_s(clusters) == found_s
    assert sorted(np.bincount(clusters)) == [3, 3]


def test_gibbs_is_seeded_and_never_worse_than_its_start():
    latency_s = cpsl_latency(9, seed=4)
    one, other = (gibbs_clusters(latency_s, 9, 3, np.random.default_rng(7), num_swaps=100) for _ in range(2))
    assert (one[0] == other[0]).all()
    assert one[1] <= latency_s(random_clusters(9, 3, np.random.default_rng(7)))


def test_one_cluster_has_nothing_to_swap():
    clusters, found_s = gibbs_clusters(cpsl_latency(3), 3, 1, np.random.default_rng(0))
    assert clusters.tolist() == [0, 0, 0]
    assert found_s > 0
