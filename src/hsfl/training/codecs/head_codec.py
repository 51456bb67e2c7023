"""A client's trained head on its way to the edge server, as the difference to the head that was sent down.

    d = (w_trained - w_sent) + e,  w_arrived = w_sent + C(d),  e' = d - C(d)

C is the codec of `link.model`, used for each parameter by itself; e is what the client remembers of what was lost in the rounds before
(error feedback: Seide et al., 1-Bit Stochastic Gradient Descent, 2014). A client that restarts, or whose cut changes, begins with e = 0.
Buffers (BatchNorm's statistics, counts) travel uncoded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hsfl.codec_table import MODEL
from hsfl.models.state import Layout, UnitState
from hsfl.models.units import SplitModel
from hsfl.training.codecs.codec import Codec

REMEMBERED = "link.model"  # the name of e in a client's memory
Places = tuple[tuple[tuple[int, int], ...], ...]  # for each unit, where in its floats each parameter begins and ends


@dataclass(frozen=True)
class CodedUpdate:
    """What became of an update on its way."""

    arrived: list[Tensor]
    lost: Tensor  # e', of all parts one after another
    num_bytes: int


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
        after, arrived, num_bytes = torch.empty_like(lost), list[Tensor](), 0
        begin = 0
        for tensor in tensors:
            end = begin + tensor.numel()
            wanted = lost[begin:end] + tensor.reshape(-1)
            payload = self.codec.encode(wanted, MODEL, None)
            got = self.codec.decode(payload, wanted.shape, wanted.dtype)
            torch.sub(wanted, got, out=after[begin:end])
            arrived.append(got.view(tensor.shape))
            num_bytes += payload.num_bytes
            begin = end
        return CodedUpdate(arrived, after, num_bytes)

    @torch.no_grad()
    def carry(self, sent: UnitState, trained: UnitState, lost: Tensor | None) -> tuple[int, Tensor]:
        """Put the head as it arrives into `trained`; returns the bytes that travelled, buffers included, and e'. The two states share no memory."""
        pairs = list(self._pairs(sent, trained))
        update = self.code([after - before for before, after in pairs], lost)
        for (before, after), arrived in zip(pairs, update.arrived):
            torch.add(before, arrived, out=after)
        buffer_bytes = trained.num_bytes - sum(after.nbytes for _, after in pairs)
        return buffer_bytes + update.num_bytes, update.lost

    def _pairs(self, sent: UnitState, trained: UnitState) -> Iterator[tuple[Tensor, Tensor]]:
        for unit in range(sent.start, sent.stop):
            before, after = sent[unit : unit + 1].floats, trained[unit : unit + 1].floats
            for begin, end in self.places[unit]:
                yield before[begin:end], after[begin:end]


def _parameter_places(model: SplitModel, layout: Layout, unit: int) -> Iterator[tuple[int, int]]:
    """Where each parameter lies in the floats of a unit; the rest are buffers."""
    names = {model.prefixes[unit] + name for name, _ in model.units[unit].named_parameters(remove_duplicate=False)}
    begin = 0
    for slot in layout.units[unit]:
        if slot.is_float:
            end = begin + slot.shape.numel()
            if slot.name in names and end > begin:
                yield begin, end
            begin = end
