"""The link: the one way by which anything travels between a client, the main server and the edge server.

The link counts the bytes of everything it carries, route by route. A codec or a wire belongs here and nowhere else.
"""

import math
from dataclasses import dataclass, fields
from typing import TypeVar

from torch import Tensor

from hsfl.models.state import UnitState, dense
from hsfl.training.aggregate import PartialSum

Load = TypeVar("Load", Tensor, UnitState, PartialSum)
READ_EVERY = 1000  # losses that are kept as tensors at most: reading one waits for its device


@dataclass
class LinkBytes:
    """Bytes on each link. Labels are not counted."""

    client_main_up: int = 0
    client_main_down: int = 0
    client_edge_up: int = 0
    client_edge_down: int = 0
    edge_main: int = 0

    def merge(self, other: "LinkBytes") -> None:
        """Add the bytes of another part of the round."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class Link:
    """Carries tensors, states of units and sums, and counts their bytes."""

    def __init__(self) -> None:
        self.bytes = LinkBytes()

    def carry(self, route: str, load: Load) -> Load:
        """The load as it arrives at the other end. route: a field of `LinkBytes`."""
        self.count(route, load.nbytes if isinstance(load, Tensor) else load.num_bytes)
        return self.arrive(route, load)

    def arrive(self, route: str, load: Load) -> Load:
        """The load as it comes out at the other end. Here it is unchanged, except that a tensor gets no gaps in memory; a codec or a
        wire would change it in this function.

        Call this alone for a load whose bytes are counted elsewhere: a head comes down at the end of a round and is used in the next.
        """
        return dense(load) if isinstance(load, Tensor) and not load.is_contiguous() else load

    def count(self, route: str, num_bytes: int) -> None:
        """Count bytes of a load that arrives elsewhere, later or many times."""
        setattr(self.bytes, route, getattr(self.bytes, route) + num_bytes)


class Losses:
    """The mean training loss over samples. The parts of a round may be merged in any order: their sum is exact."""

    def __init__(self) -> None:
        self.steps: list[tuple[Tensor, int]] = []  # losses on another device that were not read yet, with their samples
        self.total: float | None = None  # of the steps that were added here, in their order
        self.parts: list[float] = []  # the totals of other parts of the round, which were merged
        self.num_samples = 0

    def add(self, loss: Tensor, num_samples: int) -> None:
        """Add the mean loss of a batch of so many samples."""
        self.steps.append((loss.detach(), num_samples))
        self.num_samples += num_samples
        if loss.device.type == "cpu" or len(self.steps) >= READ_EVERY:
            self._read()

    def merge(self, other: "Losses") -> None:
        """Count in the losses of another part of the round."""
        self.parts += other.totals
        self.num_samples += other.num_samples

    def read(self) -> None:
        """Turn everything into plain numbers, which can be sent to another process."""
        self.parts, self.total = self.totals, None

    def _read(self) -> None:
        for loss, count in self.steps:
            self.total = loss.item() * count + (self.total or 0.0)
        self.steps.clear()

    @property
    def totals(self) -> list[float]:
        self._read()
        return self.parts if self.total is None else [*self.parts, self.total]

    @property
    def mean(self) -> float | None:
        totals = self.totals
        return math.fsum(totals) / self.num_samples if totals else None
