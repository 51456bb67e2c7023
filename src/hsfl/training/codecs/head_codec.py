"""A client's trained head on its way to the edge server, as the difference to the head that was sent down.

    d = (w_trained - w_sent) + e,  w_arrived = w_sent + C(d),  e' = d - C(d)

C is the codec of `link.model`, used for each parameter by itself; e is what the client remembers of what was lost in the rounds before
(error feedback: Seide et al., 1-Bit Stochastic Gradient Descent, 2014). A client that restarts, or whose cut changes, begins with e = 0.
Buffers (BatchNorm's statistics, counts) travel uncoded.

In a simulation `HeadCodec.carry` does all of it. On real machines the device codes (`HeadCodec.update`) and the edge server decodes
(`HeadCodec.arrive`), with the same operations, so that both have the bits of a simulation.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hsfl.codec_table import MODEL
from hsfl.models.state import Layout, UnitState
from hsfl.models.units import SplitModel
from hsfl.training.codecs.codec import Codec, Payload

REMEMBERED = "link.model"  # the name of e in a client's memory


@dataclass(frozen=True)
class CodedUpdate:
    """What became of an update on its way."""

    payloads: list[Payload]
    arrived: list[Tensor]
    lost: Tensor  # e', of all parts one after another

    @property
    def num_bytes(self) -> int:
        return sum(payload.num_bytes for payload in self.payloads)


@dataclass(frozen=True)
class ParameterPlace:
    """Where a parameter lies in the floats of its unit."""

    name: str  # in the whole model
    begin: int
    end: int

    def of(self, unit: UnitState) -> Tensor:
        """The parameter's numbers in a state of its unit: a view."""
        return unit.floats[self.begin : self.end]


Places = tuple[tuple[ParameterPlace, ...], ...]  # for each unit


@dataclass(frozen=True)
class HeadCodec:
    """Codes heads of one model."""

    codec: Codec
    places: Places

    @classmethod
    def of(cls, codec: Codec, model: SplitModel, layout: Layout) -> "HeadCodec":
        """The codec for the parameters of this model."""
        return cls(codec, tuple(tuple(_parameter_places(model, layout, unit)) for unit in range(layout.num_units)))

    @torch.no_grad()
    def code(self, tensors: Sequence[Tensor], lost: Tensor | None) -> CodedUpdate:
        """Code the tensors of an update. lost: e of the rounds before, of all tensors one after another."""
        count = sum(tensor.numel() for tensor in tensors)
        if lost is None or lost.numel() != count:
            lost = torch.zeros(count, dtype=tensors[0].dtype, device=tensors[0].device) if tensors else torch.zeros(0)
        after, payloads, arrived = torch.empty_like(lost), list[Payload](), list[Tensor]()
        begin = 0
        for tensor in tensors:
            end = begin + tensor.numel()
            wanted = lost[begin:end] + tensor.reshape(-1)
            payload = self.codec.encode(wanted, MODEL, None)
            got = self.codec.decode(payload, wanted.shape, wanted.dtype)
            torch.sub(wanted, got, out=after[begin:end])
            payloads.append(payload)
            arrived.append(got.view(tensor.shape))
            begin = end
        return CodedUpdate(payloads, arrived, after)

    @torch.no_grad()
    def update(self, sent: UnitState, trained: UnitState, lost: Tensor | None) -> CodedUpdate:
        """A trained head as it leaves its client."""
        before, after = self.parameters(sent), self.parameters(trained)
        return self.code([after[name] - before[name] for name in before], lost)

    @torch.no_grad()
    def arrive(self, sent: UnitState, update: Iterable[Tensor], trained: UnitState) -> None:
        """Put the head as it arrives into the parameters of `trained`. update: of each parameter, decoded. The two states share no memory."""
        before, after = self.parameters(sent), self.parameters(trained)
        for name, arrived in zip(before, update, strict=True):
            torch.add(before[name], arrived, out=after[name])

    def carry(self, sent: UnitState, trained: UnitState, lost: Tensor | None) -> tuple[int, Tensor]:
        """Put the head as it arrives into `trained`; returns the bytes that travelled, buffers included, and e'. The two states share no memory."""
        update = self.update(sent, trained, lost)
        self.arrive(sent, update.arrived, trained)
        buffer_bytes = trained.num_bytes - sum(part.nbytes for part in self.parameters(trained).values())
        return buffer_bytes + update.num_bytes, update.lost

    def parameters(self, head: UnitState) -> dict[str, Tensor]:
        """The parameters that are coded, in their order: views of the head."""
        units = range(head.start, head.stop)
        return {place.name: place.of(head[unit : unit + 1]) for unit in units for place in self.places[unit]}


def _parameter_places(model: SplitModel, layout: Layout, unit: int) -> Iterator[ParameterPlace]:
    """Where each parameter lies in the floats of a unit; the rest are buffers."""
    names = {model.prefixes[unit] + name for name, _ in model.units[unit].named_parameters(remove_duplicate=False)}
    begin = 0
    for slot in layout.units[unit]:
        if slot.is_float:
            end = begin + slot.shape.numel()
            if slot.name in names and end > begin:
                yield ParameterPlace(slot.name, begin, end)
            begin = end
