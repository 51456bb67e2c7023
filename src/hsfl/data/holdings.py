"""Who holds which samples, as two arrays: however many clients there are, none of them is an object."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

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
    return parts.sizes if isinstance(parts, Holdings) else np.array([len(part) for part in parts], int)


def class_counts(parts: Sequence[Array], labels: Array, num_classes: int) -> Array:
    """How many samples of each class each client holds, [K, C]."""
    sizes = sizes_of(parts)
    held = parts.indices if isinstance(parts, Holdings) else np.concatenate([*parts, np.empty(0, int)]).astype(int)
    cell = np.repeat(np.arange(len(sizes)), sizes) * num_classes + labels[held]
    return np.bincount(cell, minlength=len(sizes) * num_classes).reshape(len(sizes), num_classes)
