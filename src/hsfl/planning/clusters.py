"""CPSL's clusters and its one cut, as its authors choose them."""

import numpy as np

from hsfl.config import RunConfig
from hsfl.network.clock import even_phases, timeline
from hsfl.network.clusters import gibbs_clusters, random_clusters
from hsfl.planning.world import World, count_batches
from hsfl.rng import stream

Array = np.ndarray


def choose_clusters(config: RunConfig, world: World, cut: int, num_samples: Array) -> Array:
    """CPSL's cluster of each client [K]: random, or by Gibbs sampling over the first round's latency."""
    num_clients = len(num_samples)
    num_clusters = min(config.options.cpsl.clusters, num_clients)
    rng = stream(config.seed, "clusters")
    if config.options.cpsl.clustering == "random":
        return random_clusters(num_clients, num_clusters, rng)
    num_batches = count_batches(config, num_samples)
    cuts, draw = np.full(num_clients, cut), world.draw(0)

    def latency_s(clusters: Array) -> float:
        phases = even_phases(
            "cpsl", world.cost, cuts, config.train.batch_size, world.fleet, world.servers, world.links, draw,
            clusters=clusters,
        )  # fmt: skip
        return timeline("cpsl", phases, num_batches, clusters=clusters).round_s

    return gibbs_clusters(latency_s, num_clients, num_clusters, rng)[0]


def plans_one_cut(config: RunConfig) -> bool:
    """Whether CPSL chooses the best cut for all: it does under its own policy, unless the settings give a cut."""
    fleet, own = config.fleet, config.framework == "cpsl" and config.allocation.policy in ("cpsl", "own")
    return own and fleet.one_cut is None and isinstance(fleet.cuts, str) and config.options.cpsl.cut == "one"


def plan_one_cut(config: RunConfig, world: World, deepest: int, num_samples: Array) -> int:
    """The best cut for all up to `deepest`; clusters are those that CPSL forms at the cut `deepest`."""
    from hsfl.planning.turns import best_cut

    clusters = choose_clusters(config, world, deepest, num_samples)
    return best_cut(config, world, count_batches(config, num_samples), clusters, deepest)
