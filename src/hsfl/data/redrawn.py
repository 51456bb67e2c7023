"""Data for more clients than the samples suffice for: every client's samples are drawn with replacement.

Two clients may hold the same sample, and a client may hold a sample twice. What the kinds of partition promise still holds: `iid` has the classes
of the whole, `dirichlet` a mix of classes for each client, `shards` a few classes for each, `quantity_skew` unequal sizes. Nothing here
loops over clients. Legend: K clients, C classes, n samples in all.
"""

import numpy as np

from hsfl.data.holdings import Holdings

Array = np.ndarray


def iid(labels: Array, num_clients: int, rng: np.random.Generator, *, min_samples: int) -> Holdings:
    """`min_samples` random samples for each client."""
    return _any(labels, np.full(num_clients, min_samples), rng)


def quantity_skew(
    labels: Array, num_clients: int, rng: np.random.Generator, *, alpha: float, min_samples: int
) -> Holdings:
    """`min_samples` each, and as many more in all as there are samples, divided by Dirichlet(alpha)."""
    more = rng.multinomial(len(labels), rng.dirichlet(np.full(num_clients, alpha)))
    return _any(labels, min_samples + more, rng)


def dirichlet(labels: Array, num_clients: int, rng: np.random.Generator, *, alpha: float, min_samples: int) -> Holdings:
    """`min_samples` each, of classes mixed by the client's own draw from Dirichlet(alpha), times how frequent the classes are."""
    classes, counts = np.unique(labels, return_counts=True)
    # ln of a gamma draw with a small alpha: that of alpha + 1, plus ln(uniform) / alpha, which does not underflow
    log_mix = np.log(rng.standard_gamma(alpha + 1, (num_clients, len(classes))))
    log_mix += np.log1p(-rng.random(log_mix.shape)) / alpha + np.log(counts)
    mix = np.exp(log_mix - log_mix.max(axis=1, keepdims=True))
    return _of_mix(labels, mix, min_samples, rng)


def shards(
    labels: Array, num_clients: int, rng: np.random.Generator, *, classes_per_client: int, min_samples: int
) -> Holdings:
    """`min_samples` each, of `classes_per_client` different classes."""
    num_classes = len(np.unique(labels))
    rank = rng.random((num_clients, num_classes)).argsort(axis=1).argsort(axis=1)
    return _of_mix(labels, (rank < classes_per_client).astype(float), min_samples, rng)


def _any(labels: Array, sizes: Array, rng: np.random.Generator) -> Holdings:
    return Holdings.of_draws(rng.integers(0, len(labels), int(sizes.sum())), sizes)


def _of_mix(labels: Array, mix: Array, size: int, rng: np.random.Generator) -> Holdings:
    """`size` samples for each client: first a class by the client's mix [K, C], then any sample of the class."""
    _, counts = np.unique(labels, return_counts=True)
    first = np.cumsum(counts) - counts
    edges = np.cumsum(mix, axis=1)
    point = rng.random((len(mix), size)) * edges[:, -1:]
    chosen = (point[:, :, None] >= edges[:, None, :-1]).sum(axis=2)  # [K, size] the class's place
    within = (rng.random(chosen.shape) * counts[chosen]).astype(np.int64)
    by_class = np.argsort(labels, kind="stable")
    return Holdings.of_draws(by_class[first[chosen] + within].ravel(), np.full(len(mix), size))
