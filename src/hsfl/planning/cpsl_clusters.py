"""CPSL's clusters and its one cut, as its authors choose them."""

import numpy as np

from hsfl.allocation.policy_table import PolicyRow, policy_row
from hsfl.config import RunConfig
from hsfl.framework_table import method
from hsfl.network.clock import timeline
from hsfl.network.clusters import gibbs_clusters, random_clusters
from hsfl.network.even_allocation import even_phases
from hsfl.planning.world import World, count_batches
from hsfl.rng import stream

Array = np.ndarray
TURNS = "cpsl"  # the policy for clusters that take turns


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
            config.framework, world.cost, cuts, config.train.batch_size, world.fleet, world.servers, world.links, draw,
            clusters=clusters,
        )  # fmt: skip
        return timeline(config.framework, phases, num_batches, clusters=clusters).round_s

    return gibbs_clusters(latency_s, num_clients, num_clusters, rng)[0]


def own_policy(name: str, framework: str) -> str:
    """The name of a policy, where `own` is replaced by the framework's own policy."""
    return method(framework).own_policy if name == "own" else name


def policy_of(config: RunConfig) -> PolicyRow:
    """The row of the config's policy, where `own` is replaced by the framework's own policy."""
    return policy_row(own_policy(config.allocation.policy, config.framework), config.options)


def takes_turns(config: RunConfig) -> bool:
    """Whether CPSL's policy allocates: the config chooses it, and the framework's clusters take turns."""
    policy = own_policy(config.allocation.policy, config.framework)
    return policy == TURNS and method(config.framework).timing.turns == "clusters"


def plans_one_cut(config: RunConfig) -> bool:
    """Whether CPSL chooses the best cut for all: it does under its own policy, unless the settings give a cut."""
    given = config.fleet.one_cut is not None or not isinstance(config.fleet.cuts, str)
    return takes_turns(config) and not given and config.options.cpsl.cut == "one"
