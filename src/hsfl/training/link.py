"""The link: the one way by which anything travels between a client, the main server and the edge server.

The link counts the bytes of everything it carries, route by route. A codec or a wire belongs here and nowhere else.
"""

from dataclasses import dataclass, fields
from typing import TypeVar

from torch import Tensor

from hsfl.models.state import UnitState
from hsfl.training.aggregate import PartialSum

Load = TypeVar("Load", Tensor, UnitState, PartialSum)


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
        return load

    def count(self, route: str, num_bytes: int) -> None:
        """Count bytes of a load that is not carried here, because it has arrived already or travels many times."""
        setattr(self.bytes, route, getattr(self.bytes, route) + num_bytes)


class Losses:
    """The mean training loss over samples. Losses are summed on their device, and the sum is read once."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.num_samples = 0

    def add(self, loss: Tensor, num_samples: int) -> None:
        """Add the mean loss of a batch of so many samples."""
        part = (loss.detach() if loss.device.type == "mps" else loss.detach().double()) * num_samples
        self._add(part, num_samples)

    def merge(self, other: "Losses") -> None:
        """Add the losses of another part of the round."""
        if other.total is not None:
            self._add(other.total, other.num_samples)

    def _add(self, part: Tensor, num_samples: int) -> None:
        self.total = part if self.total is None else self.total + part
        self.num_samples += num_samples

    @property
    def mean(self) -> float | None:
        return float(self.total) / self.num_samples if self.total is not None else None
