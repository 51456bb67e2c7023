"""Which client holds which training samples.

`partition` divides samples by the name of a kind. Each kind is a function that takes the labels [n] and gives `Holdings`, the
sorted sample indices of every client as two arrays: however many clients there are, none of them is an object.

- Where the samples suffice, each sample belongs to exactly one client, and each client has at least `min_samples`, by construction: what
  a random draw leaves short is topped up from the richest clients, so no draw is ever repeated.
- Where they do not suffice, every client's samples are drawn with replacement: two clients may hold the same sample, and a client may
  hold a sample twice. What the kinds promise still holds: `iid` has the classes of the whole, `dirichlet` a mix of classes for each
  client, `shards` a few classes for each, `quantity_skew` unequal sizes. Nothing there loops over clients.
- Where the data say who holds what (`given`), nothing is moved.

Legend: n samples in all, K clients, C classes.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from hsfl.errors import InputError, known_name

Array = np.ndarray


@dataclass(frozen=True)
class Holdings(Sequence[Array]):
    """The samples of all clients, one client after another. Read like a list, it gives the indices of a client."""

    indices: Array  # [n] of samples, sorted within each client
    ends: Array  # [K] where each client's part ends

    @classmethod
    def of_owners(cls, owner: Array, num_clients: int) -> "Holdings":
        """From the client of each sample, [n]."""
        order = np.argsort(owner, kind="stable").astype(np.int64)  # stable: indices stay sorted
        return cls(order, np.cumsum(np.bincount(owner, minlength=num_clients)))

    @classmethod
    def of_draws(cls, drawn: Array, sizes: Array) -> "Holdings":
        """From samples that were drawn for one client after another, [n], and how many are each client's, [K]."""
        client = np.repeat(np.arange(len(sizes)), sizes)
        return cls(drawn[np.lexsort((drawn, client))].astype(np.int64), np.cumsum(sizes))

    @property
    def sizes(self) -> Array:
        """How many samples each client holds, [K]."""
        return np.diff(self.ends, prepend=0)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, client: int) -> Array: ...
    @overload
    def __getitem__(self, client: slice) -> list[Array]: ...
    def __getitem__(self, client: int | slice) -> Array | list[Array]:
        if isinstance(client, slice):
            return [self[k] for k in range(*client.indices(len(self)))]
        client = range(len(self))[client]  # an index beyond the last client is an error, and -1 is the last client
        return self.indices[self.ends[client - 1] if client else 0 : self.ends[client]]

    def __iter__(self) -> Iterator[Array]:
        return (self[client] for client in range(len(self)))


def sizes_of(parts: Sequence[Array]) -> Array:
    """How many samples each client holds, [K]."""
    return parts.sizes if isinstance(parts, Holdings) else np.array([len(indices) for indices in parts], int)


def class_counts(parts: Sequence[Array], labels: Array, num_classes: int) -> Array:
    """How many samples of each class each client holds, [K, C]."""
    sizes = sizes_of(parts)
    held = parts.indices if isinstance(parts, Holdings) else np.concatenate([*parts, np.empty(0, int)]).astype(int)
    cell = np.repeat(np.arange(len(sizes)), sizes) * num_classes + labels[held]
    return np.bincount(cell, minlength=len(sizes) * num_classes).reshape(len(sizes), num_classes)


# --- the kinds of partition


def iid(labels: Array, num_clients: int, rng: np.random.Generator, *, min_samples: int = 2) -> Holdings:
    """Equal random parts."""
    _check(labels, num_clients, min_samples)
    if is_redrawn(len(labels), num_clients, min_samples):
        return _redrawn_iid(labels, num_clients, rng, min_samples=min_samples)
    sizes = np.full(num_clients, len(labels) // num_clients)
    sizes[: len(labels) % num_clients] += 1
    return Holdings.of_owners(_dealt(sizes, rng), num_clients)


def quantity_skew(
    labels: Array, num_clients: int, rng: np.random.Generator, *, alpha: float = 0.5, min_samples: int = 2
) -> Holdings:
    """Holdings of unequal size, Dirichlet(alpha) beyond the minimum, each with the classes of the whole."""
    _check(labels, num_clients, min_samples)
    _check_alpha(alpha)
    if is_redrawn(len(labels), num_clients, min_samples):
        return _redrawn_quantity_skew(labels, num_clients, rng, alpha=alpha, min_samples=min_samples)
    spare = len(labels) - num_clients * min_samples
    sizes = min_samples + _rounded(spare * rng.dirichlet(np.full(num_clients, alpha)), spare)
    return Holdings.of_owners(_dealt(sizes, rng), num_clients)


def dirichlet(
    labels: Array, num_clients: int, rng: np.random.Generator, *, alpha: float = 0.5, min_samples: int = 2
) -> Holdings:
    """Each class is divided by its own draw from Dirichlet(alpha): small alpha, few classes per client."""
    _check(labels, num_clients, min_samples)
    _check_alpha(alpha)
    if is_redrawn(len(labels), num_clients, min_samples):
        return _redrawn_dirichlet(labels, num_clients, rng, alpha=alpha, min_samples=min_samples)
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        shares = rng.dirichlet(np.full(num_clients, alpha))
        owner[members] = _dealt(_rounded(len(members) * shares, len(members)), rng)
    _top_up(owner, num_clients, min_samples, rng)
    return Holdings.of_owners(owner, num_clients)


def shards(
    labels: Array, num_clients: int, rng: np.random.Generator, *, classes_per_client: int = 2, min_samples: int = 2
) -> Holdings:
    """Each client has shards of `classes_per_client` different classes, all shards about equally large.

    Two exceptions: a class with fewer samples than shards leaves some of them empty, and a client so poor that it must
    be topped up to `min_samples` may get further classes.
    """
    _check(labels, num_clients, min_samples)
    classes, sizes = np.unique(labels, return_counts=True)
    _check_shards(num_clients, len(classes), classes_per_client)
    if is_redrawn(len(labels), num_clients, min_samples):
        return _redrawn_shards(labels, num_clients, rng, classes_per_client=classes_per_client, min_samples=min_samples)
    num_shards = _shards_per_class(sizes, num_clients, num_clients * classes_per_client)
    holders = _shard_holders(num_shards, num_clients, classes_per_client, rng)
    owner = np.empty(len(labels), np.int64)
    for label, clients in zip(classes, holders):
        members = rng.permutation(np.flatnonzero(labels == label))
        for client, shard in zip(clients, np.array_split(members, len(clients))):
            owner[shard] = client
    _top_up(owner, num_clients, min_samples, rng)
    return Holdings.of_owners(owner, num_clients)


def _given(
    labels: Array,
    num_clients: int,
    rng: np.random.Generator,
    *,
    clients: Array | None = None,
    client_names: Sequence[str] = (),
    min_samples: int = 2,
) -> Holdings:
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
    parts = Holdings.of_owners(clients, num_clients)
    for name, size in zip(client_names, parts.sizes):
        if size < min_samples:
            raise InputError(
                f"client {name!r} holds {size} training samples, below data.min_samples = {min_samples}; give it "
                "more, leave it out of the data, or lower data.min_samples"
            )
    return parts


PARTITIONS: dict[str, Callable[..., Holdings]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "shards": shards,
    "quantity_skew": quantity_skew,
    "given": _given,
}
BY_CLASS = ("dirichlet", "shards")


def check_classes(kind: str, task: str, targets: str) -> None:
    """Refuse a partition by class where the targets are no classes."""
    if kind in BY_CLASS and targets != "classes":
        other_kinds = ", ".join(name for name in PARTITIONS if name not in BY_CLASS)
        raise InputError(
            f"data.partition is {kind!r}, by class, but {task} has no class for each sample; choose one of {other_kinds}"
        )


def partition(labels: Array, num_clients: int, kind: str, rng: np.random.Generator, **options: Any) -> Holdings:
    """Divide by the name of the partition; options that this kind does not have are left aside."""
    function = PARTITIONS[known_name("partition", kind, PARTITIONS)]
    taken = inspect.signature(function).parameters
    return function(labels, num_clients, rng, **{name: value for name, value in options.items() if name in taken})


def _dealt(sizes: Array, rng: np.random.Generator) -> Array:
    """A random client for each sample, so that client k gets sizes[k] of them."""
    return rng.permutation(np.repeat(np.arange(len(sizes)), sizes))


def _rounded(shares: Array, total: int) -> Array:
    """Whole numbers nearest to the shares that still sum to total (largest remainders)."""
    whole = np.floor(shares).astype(np.int64)
    lacking = total - int(whole.sum())
    whole[np.argsort(whole - shares, kind="stable")[:lacking]] += 1
    return whole


def _top_up(owner: Array, num_clients: int, min_samples: int, rng: np.random.Generator) -> None:
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


def _shards_per_class(sizes: Array, num_clients: int, total: int) -> Array:
    """One shard per class, then one more to whichever class has the largest shards; at most one per client."""
    num_shards = np.ones(len(sizes), np.int64)
    for _ in range(total - len(sizes)):
        num_shards[np.where(num_shards < num_clients, sizes / num_shards, -1).argmax()] += 1
    return num_shards


def _shard_holders(
    num_shards: Array, num_clients: int, classes_per_client: int, rng: np.random.Generator
) -> list[Array]:
    """Which clients hold a shard of each class. Widest class first, to the clients with most room: this always fits."""
    room = np.full(num_clients, classes_per_client)
    holders: list[Array] = [np.empty(0, np.int64)] * len(num_shards)
    for label in np.argsort(-num_shards, kind="stable"):
        holders[label] = np.lexsort((rng.random(num_clients), -room))[: num_shards[label]]
        room[holders[label]] -= 1
    return holders


# --- more clients than samples: every client draws with replacement


def is_redrawn(num_samples: int, num_clients: int, min_samples: int) -> bool:
    """Whether the samples do not suffice, so that clients draw theirs with replacement."""
    return num_clients * min_samples > num_samples


def _redrawn_iid(labels: Array, num_clients: int, rng: np.random.Generator, *, min_samples: int) -> Holdings:
    """`min_samples` random samples for each client."""
    return _any(labels, np.full(num_clients, min_samples), rng)


def _redrawn_quantity_skew(
    labels: Array, num_clients: int, rng: np.random.Generator, *, alpha: float, min_samples: int
) -> Holdings:
    """`min_samples` each, and as many more in all as there are samples, divided by Dirichlet(alpha)."""
    more = rng.multinomial(len(labels), rng.dirichlet(np.full(num_clients, alpha)))
    return _any(labels, min_samples + more, rng)


def _redrawn_dirichlet(
    labels: Array, num_clients: int, rng: np.random.Generator, *, alpha: float, min_samples: int
) -> Holdings:
    """`min_samples` each, of classes mixed by the client's own draw from Dirichlet(alpha), times how frequent the classes are."""
    classes, counts = np.unique(labels, return_counts=True)
    # ln of a gamma draw with a small alpha: that of alpha + 1, plus ln(uniform) / alpha, which does not underflow
    log_mix = np.log(rng.standard_gamma(alpha + 1, (num_clients, len(classes))))
    log_mix += np.log1p(-rng.random(log_mix.shape)) / alpha + np.log(counts)
    mix = np.exp(log_mix - log_mix.max(axis=1, keepdims=True))
    return _of_mix(labels, mix, min_samples, rng)


def _redrawn_shards(
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


# --- checks


def _check(labels: Array, num_clients: int, min_samples: int) -> None:
    if num_clients < 1:
        raise InputError(f"fleet.num_clients is {num_clients}; there must be at least one client")
    if min_samples < 0:
        raise InputError(f"data.min_samples is {min_samples}; give 0 or more")
    if not len(labels) and min_samples:
        raise InputError(f"there are no samples for {num_clients} clients; give data")


def _check_enough(labels: Array, num_clients: int, min_samples: int) -> None:
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
