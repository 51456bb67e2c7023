"""CPSL's clusters: random, or by Gibbs sampling over the round's latency (Wu et al., arXiv:2204.08119).

Legend: K clients, C clusters of sizes that differ by one at most. Two clients of different clusters swap places; the
swap is taken with probability 1 / (1 + exp(change of latency / temperature)), so that a worse swap is taken now and then.
"""

import math
from collections.abc import Callable

import numpy as np

from hsfl.errors import InputError

Array = np.ndarray


def check_clusters(clusters: Array | None, num_clients: int) -> Array:
    """The clusters as an array [K]; an error where there is not one number for each client."""
    if clusters is None or np.shape(clusters) != (num_clients,):
        raise InputError(
            f"clusters that take turns need one number for each of the {num_clients} clients; got {clusters!r}"
        )
    return np.asarray(clusters)


def random_clusters(num_clients: int, num_clusters: int, rng: np.random.Generator) -> Array:
    """A cluster number for each client, [K]; sizes differ by one at most."""
    if not 1 <= num_clusters <= num_clients:
        raise InputError(f"{num_clusters} clusters for {num_clients} clients; choose 1..{num_clients}")
    clusters = np.empty(num_clients, int)
    for number, members in enumerate(np.array_split(rng.permutation(num_clients), num_clusters)):
        clusters[members] = number
    return clusters


def gibbs_clusters(
    latency_s: Callable[[Array], float],
    num_clients: int,
    num_clusters: int,
    rng: np.random.Generator,
    *,
    num_swaps: int = 1000,
    temperature: float = 0.01,
) -> tuple[Array, float]:
    """The best clusters seen and their latency. `latency_s` takes clusters [K], for example

        lambda c: timeline("cpsl", even_phases("cpsl", ..., clusters=c), num_batches, clusters=c).round_s

    `temperature` is relative to the latency of the random start.
    """
    clusters = random_clusters(num_clients, num_clusters, rng)
    now_s = latency_s(clusters)
    best, best_s = clusters.copy(), now_s
    scale_s = temperature * now_s
    if num_clusters == 1 or scale_s == 0:
        return best, best_s
    for _ in range(num_swaps):
        client, other = rng.choice(num_clients, 2, replace=False)
        threshold = rng.random()
        if clusters[client] == clusters[other]:
            continue
        swapped = clusters.copy()
        swapped[[client, other]] = swapped[[other, client]]
        new_s = latency_s(swapped)
        if threshold < _chance((new_s - now_s) / scale_s):
            clusters, now_s = swapped, new_s
        if now_s < best_s:
            best, best_s = clusters.copy(), now_s
    return best, best_s


def _chance(change: float) -> float:
    """1 / (1 + exp(change)), without overflow."""
    return 1 / (1 + math.exp(min(change, 700.0)))
