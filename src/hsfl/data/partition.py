"""Dividing samples among clients.

Every function takes the labels [n] and gives sorted indices for each client. Each sample belongs to exactly
one client, and each client has at least `min_samples`, by construction: what a random draw leaves short is topped up
from the richest clients, so no draw is ever repeated. Where the data say who holds what (`given`), nothing is moved. Where the
samples do not suffice for so many clients, they are drawn with replacement (`redrawn`).
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hsfl.data import redrawn
from hsfl.data.holdings import Holdings
from hsfl.errors import InputError, known

Parts = Holdings  # sorted within each client, int64


def iid(labels: np.ndarray, num_clients: int, rng: np.random.Generator, *, min_samples: int = 2) -> Parts:
    """Equal random parts."""
    _check(labels, num_clients, min_samples)
    if is_redrawn(len(labels), num_clients, min_samples):
        return redrawn.iid(labels, num_clients, rng, min_samples=min_samples)
    sizes = np.full(num_clients, len(labels) // num_clients)
    sizes[: len(labels) % num_clients] += 1
    return _parts(_dealt(sizes, rng), num_clients)


def quantity_skew(
    labels: np.ndarray, num_clients: int, rng: np.random.Generator, *, alpha: float = 0.5, min_samples: int = 2
) -> Parts:
    """Parts of unequal size, Dirichlet(alpha) beyond the minimum, each with the classes of the whole."""
    _check(labels, num_clients, min_samples)
    _check_alpha(alpha)
    if is_redrawn(len(labels), num_clients, min_samples):
        return redrawn.quantity_skew(labels, num_clients, rng, alpha=alpha, min_samples=min_samples)
    spare = len(labels) - num_clients * min_samples
    sizes = min_samples + _rounded(spare * rng.dirichlet(np.full(num_clients, alpha)), spare)
    return _parts(_dealt(sizes, rng), num_clients)


def dirichlet(
    labels: np.ndarray, num_clients: int, rng: np.random.Generator, *, alpha: float = 0.5, min_samples: int = 2
) -> Parts:
    """Each class is divided by its own draw from Dirichlet(alpha): small alpha, few classes per client."""
    _check(labels, num_clients, min_samples)
    _check_alpha(alpha)
    if is_redrawn(len(labels), num_clients, min_samples):
        return redrawn.dirichlet(labels, num_clients, rng, alpha=alpha, min_samples=min_samples)
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        shares = rng.dirichlet(np.full(num_clients, alpha))
        owner[members] = _dealt(_rounded(len(members) * shares, len(members)), rng)
    _top_up(owner, num_clients, min_samples, rng)
    return _parts(owner, num_clients)


def shards(
    labels: np.ndarray, num_clients: int, rng: np.random.Generator, *, classes_per_client: int = 2, min_samples: int = 2
) -> Parts:
    """Each client has shards of `classes_per_client` different classes, all shards about equally large.

    Two exceptions: a class with fewer samples than shards leaves some of them empty, and a client so poor that it must
    be topped up to `min_samples` may get further classes.
    """
    _check(labels, num_clients, min_samples)
    classes, sizes = np.unique(labels, return_counts=True)
    _check_shards(num_clients, len(classes), classes_per_client)
    if is_redrawn(len(labels), num_clients, min_samples):
        return redrawn.shards(labels, num_clients, rng, classes_per_client=classes_per_client, min_samples=min_samples)
    num_shards = _shards_per_class(sizes, num_clients, num_clients * classes_per_client)
    holders = _shard_holders(num_shards, num_clients, classes_per_client, rng)
    owner = np.empty(len(labels), np.int64)
    for label, clients in zip(classes, holders):
        members = rng.permutation(np.flatnonzero(labels == label))
        for client, shard in zip(clients, np.array_split(members, len(clients))):
            owner[shard] = client
    _top_up(owner, num_clients, min_samples, rng)
    return _parts(owner, num_clients)


def given(
    labels: np.ndarray,
    num_clients: int,
    rng: np.random.Generator,
    *,
    clients: np.ndarray | None = None,
    client_names: Sequence[str] = (),
    min_samples: int = 2,
) -> Parts:
    """Each client has the samples that the data say it holds: clients [n], names by number."""
    _check(labels, num_clients, min_samples)
    _check_enough(labels, num_clients, min_samples)
    if clients is None:
        raise InputError(
            "data.partition is 'given' but the data do not say which client holds a sample; set data.client_column or "
            "data.client_file, or choose another partition"
        )
    if len(client_names) != num_clients:
        some = ", ".join(client_names[:3]) + (", ..." if len(client_names) > 3 else "")
        raise InputError(
            f"fleet.num_clients is {num_clients} but the data are those of {len(client_names)} clients ({some}); "
            f"set fleet.num_clients={len(client_names)}"
        )
    parts = _parts(clients, num_clients)
    for name, size in zip(client_names, parts.sizes):
        if size < min_samples:
            raise InputError(
                f"client {name!r} holds {size} training samples, below data.min_samples = {min_samples}; give it "
                "more, leave it out of the data, or lower data.min_samples"
            )
    return parts


PARTITIONS: dict[str, Callable[..., Parts]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "shards": shards,
    "quantity_skew": quantity_skew,
    "given": given,
}


BY_CLASS = ("dirichlet", "shards")


def check_classes(kind: str, task: str, targets: str) -> None:
    """Refuse a partition by class where the targets are no classes."""
    if kind in BY_CLASS and targets != "classes":
        others = ", ".join(name for name in PARTITIONS if name not in BY_CLASS)
        raise InputError(f"data.partition is {kind!r}, by class, but {task} has no classes; choose one of {others}")


def partition(labels: np.ndarray, num_clients: int, kind: str, rng: np.random.Generator, **options: Any) -> Parts:
    """Divide by the name of the partition; options that this kind does not have are left aside."""
    function = PARTITIONS[known("partition", kind, PARTITIONS)]
    taken = inspect.signature(function).parameters
    return function(labels, num_clients, rng, **{name: value for name, value in options.items() if name in taken})


def _parts(owner: np.ndarray, num_clients: int) -> Parts:
    """From the client of each sample [n] to the samples of each client."""
    return Holdings.of_owners(owner, num_clients)


def is_redrawn(num_samples: int, num_clients: int, min_samples: int) -> bool:
    """Whether the samples do not suffice, so that clients draw theirs with replacement."""
    return num_clients * min_samples > num_samples


def _dealt(sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random client for each sample, so that client k gets sizes[k] of them."""
    return rng.permutation(np.repeat(np.arange(len(sizes)), sizes))


def _rounded(shares: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers nearest to the shares that still sum to total (largest remainders)."""
    whole = np.floor(shares).astype(np.int64)
    lacking = total - int(whole.sum())
    whole[np.argsort(whole - shares, kind="stable")[:lacking]] += 1
    return whole


def _top_up(owner: np.ndarray, num_clients: int, min_samples: int, rng: np.random.Generator) -> None:
    """Move random samples from the richest clients to those short of the minimum, in place."""
    counts = np.bincount(owner, minlength=num_clients)
    for client in np.flatnonzero(counts < min_samples):
        while counts[client] < min_samples:
            richest = int(counts.argmax())
            num_moved = min(min_samples - counts[client], counts[richest] - min_samples)
            moved = rng.choice(np.flatnonzero(owner == richest), num_moved, replace=False)
            owner[moved] = client
            counts[richest] -= num_moved
            counts[client] += num_moved


def _shards_per_class(sizes: np.ndarray, num_clients: int, total: int) -> np.ndarray:
    """One shard per class, then one more to whichever class has the largest shards; at most one per client."""
    num_shards = np.ones(len(sizes), np.int64)
    for _ in range(total - len(sizes)):
        num_shards[np.where(num_shards < num_clients, sizes / num_shards, -1).argmax()] += 1
    return num_shards


def _shard_holders(
    num_shards: np.ndarray, num_clients: int, classes_per_client: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Which clients hold a shard of each class. Widest class first, to the clients with most room: this always fits."""
    room = np.full(num_clients, classes_per_client)
    holders: list[np.ndarray] = [np.empty(0, np.int64)] * len(num_shards)
    for label in np.argsort(-num_shards, kind="stable"):
        holders[label] = np.lexsort((rng.random(num_clients), -room))[: num_shards[label]]
        room[holders[label]] -= 1
    return holders


def _check(labels: np.ndarray, num_clients: int, min_samples: int) -> None:
    if num_clients < 1:
        raise InputError(f"fleet.num_clients is {num_clients}; there must be at least one client")
    if min_samples < 0:
        raise InputError(f"data.min_samples is {min_samples}; give 0 or more")
    if not len(labels) and min_samples:
        raise InputError(f"there are no samples for {num_clients} clients; give data")


def _check_enough(labels: np.ndarray, num_clients: int, min_samples: int) -> None:
    if num_clients * min_samples > len(labels):
        raise InputError(
            f"{num_clients} clients of at least {min_samples} samples need {num_clients * min_samples} but there are "
            f"{len(labels)}; take fewer clients or more data"
        )


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha <= 1e6:  # NumPy's draw overflows far beyond
        raise InputError(
            f"data.alpha is {alpha}; give a number above 0, at most 1e6 (0.1 is very uneven, 100 almost even)"
        )


def _check_shards(num_clients: int, num_classes: int, classes_per_client: int) -> None:
    if not 1 <= classes_per_client <= num_classes:
        raise InputError(
            f"data.classes_per_client is {classes_per_client}; give 1 to {num_classes}, as many as there are"
        )
    if num_clients * classes_per_client < num_classes:
        raise InputError(
            f"{num_clients} clients of {classes_per_client} classes cannot hold {num_classes} classes; "
            "raise data.classes_per_client or take more clients"
        )
