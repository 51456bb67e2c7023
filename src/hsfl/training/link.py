"""The link: the one way by which anything travels between a client, the main server and the edge server.

The link counts the bytes of everything it carries, route by route. A codec or a wire belongs here and nowhere else. With a codec, what was sent and
what arrived are two tensors: the sender goes on with the first, the receiver gets the second.
"""

import math
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TypeVar

from torch import Tensor

from hsfl.codec_table import DOWN, UP
from hsfl.models.state import UnitState, dense
from hsfl.rng import stream
from hsfl.training.aggregate import PartialSum
from hsfl.training.codecs.codec import Codec, Draws
from hsfl.training.codecs.head_codec import REMEMBERED
from hsfl.training.codecs.link_codecs import UNCODED, LinkCodecs
from hsfl.training.step import StepKey

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

    def __init__(self, codecs: LinkCodecs = UNCODED) -> None:
        self.bytes, self.codecs = LinkBytes(), codecs

    def carry(self, route: str, load: Load, key: StepKey | None = None) -> Load:
        """The load as it arrives at the other end. route: a field of `LinkBytes`. key: the step's name, by which a codec draws; None where
        nothing may be drawn, as in an evaluation."""
        if isinstance(load, Tensor):
            codec = self._codec(route)
            if codec is not None and load.is_floating_point() and load.numel():
                return self.arrive(route, self._coded(codec, route, load, key))
            self.count(route, load.nbytes)
        else:
            self.count(route, load.num_bytes)
        return self.arrive(route, load)

    def carry_head(
        self, route: str, sent: UnitState, trained: UnitState, memory: MutableMapping[str, Tensor]
    ) -> UnitState:
        """A trained head as it arrives at the edge server. With a codec that is put into `trained`, which the next client overwrites.

        sent: the head that was sent down to the client. memory: what the client remembers, in which a codec keeps what was lost."""
        if self.codecs.model is None or sent.start == sent.stop:
            return self.carry(route, trained)
        num_bytes, memory[REMEMBERED] = self.codecs.model.carry(sent, trained, memory.get(REMEMBERED))
        self.count(route, num_bytes)
        return self.arrive(route, trained)

    def carry_gradients(
        self, route: str, gradients: Sequence[Tensor], memory: MutableMapping[str, Tensor]
    ) -> list[Tensor]:
        """The gradients of a head's weights as they arrive, coded as an update of the head is."""
        assert self.codecs.model is not None, "only what is coded"
        update = self.codecs.model.code(gradients, memory.get(REMEMBERED))
        memory[REMEMBERED] = update.lost
        self.count(route, update.num_bytes)
        return [self.arrive(route, gradient) for gradient in update.arrived]

    def _codec(self, route: str) -> Codec | None:
        if route == "client_main_up":
            return self.codecs.up
        return self.codecs.down if route == "client_main_down" else None

    def _coded(self, codec: Codec, route: str, load: Tensor, key: StepKey | None) -> Tensor:
        """A tensor as a codec gives it back."""
        direction = UP if route == "client_main_up" else DOWN
        payload = codec.encode(load.detach(), direction, draws_of(key, direction))
        self.count(route, payload.num_bytes)
        return codec.decode(payload, load.shape, load.dtype)

    def arrive(self, route: str, load: Load) -> Load:
        """The load as it comes out at the other end. Here it is unchanged, except that a tensor gets no gaps in memory; a wire would
        change it in this function.

        Call this alone for a load whose bytes are counted elsewhere: a head comes down at the end of a round and is used in the next.
        """
        return dense(load) if isinstance(load, Tensor) and not load.is_contiguous() else load

    def count(self, route: str, num_bytes: int) -> None:
        """Count bytes of a load that arrives elsewhere, later or many times."""
        setattr(self.bytes, route, getattr(self.bytes, route) + num_bytes)


def draws_of(key: StepKey | None, direction: str) -> Draws | None:
    """The random numbers of a step's message, the same whoever computes the step; None where there is no step."""
    if key is None:
        return None
    return partial(stream, key.seed, "codec", direction, key.client, key.pass_index, key.step)


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
