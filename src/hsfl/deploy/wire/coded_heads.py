"""A trained head on its way to the edge server: as it is, or under `link.model` as a safetensors file with the coded difference of each
parameter to the head that was sent down, and the buffers as they are.

The arrays of a payload are called `parameter.array`, such as `conv.weight.values` and `conv.weight.scales`. Which codec is used follows from
the run's settings. Everything in a file is checked before memory is taken for the head.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from hsfl.codec_table import CodecChoice, checked_size
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.model_chunks import (
    check_alike,
    most_bytes,
    most_state_bytes,
    read_tensors_file,
    state_bytes,
    tensors_file,
    unpack_state,
)
from hsfl.models.state import UnitState
from hsfl.training.aggregate import Diverged
from hsfl.training.codecs.codec import Payload, PayloadError
from hsfl.training.codecs.head_codec import HeadCodec

MOST_ARRAYS = 4  # of a payload; each has a name in the file


@dataclass(frozen=True)
class PackedHead:
    """The file of a trained head. lost: what a codec has lost of it on its way; None where heads are not coded."""

    content: bytes
    lost: Tensor | None


@dataclass(frozen=True)
class ArrivedHead:
    """A head as it arrived, and the bytes that travelled for it: payloads and buffers, or all of it."""

    head: UnitState
    num_bytes: int


class HeadFiles:
    """Packs trained heads into files and reads them. codec, choice: of `link.model`; None where heads travel as they are."""

    def __init__(self, codec: HeadCodec | None = None, choice: CodecChoice | None = None) -> None:
        self.codec, self.choice = codec, choice

    def pack(self, sent: UnitState | None, trained: UnitState, lost: Tensor | None) -> PackedHead:
        """The file of a trained head. sent: the head that came down. lost: what was lost before. A head that cannot be coded, since a number is NaN
        or infinite, travels as one such number, which the edge server refuses with its reason."""
        if self.codec is None or sent is None or not trained.stop:
            return PackedHead(state_bytes(trained), None)
        parameters = self.codec.parameters(trained)
        try:
            update = self.codec.update(sent, trained, lost)
        except Diverged:
            return PackedHead(tensors_file({next(iter(parameters)): torch.full((1,), torch.nan)}), lost)
        arrays = {
            f"{name}.{array}": content
            for name, payload in zip(parameters, update.payloads)
            for array, content in payload.arrays.items()
        }
        return PackedHead(tensors_file(_buffers(trained, parameters) | arrays), update.lost)

    def unpack(self, content: bytes, sent: UnitState) -> ArrivedHead:
        """The head of a file, which must have exactly the units of `sent`, the head that its client got, all numbers finite."""
        if self.codec is None or not sent.stop:
            return ArrivedHead(unpack_state(content, sent), sent.num_bytes)
        tensors, parameters = read_tensors_file(content), self.codec.parameters(sent)
        payloads = _sorted_payloads(tensors, parameters)
        for name, parameter in parameters.items():
            try:
                self.codec.codec.check(payloads[name], parameter.shape, parameter.dtype)
            except PayloadError as error:
                raise WireError("codec", f"{name}: {error}") from None
        coded = {f"{name}.{array}" for name, payload in payloads.items() for array in payload.arrays}
        buffers = {name: tensor for name, tensor in tensors.items() if name not in coded}
        check_alike(buffers, _buffers(sent, parameters))
        head = UnitState.empty(sent.layout, sent.start, sent.stop, sent.floats.dtype, sent.floats.device)
        for name, buffer in _buffers(head, parameters).items():
            buffer.copy_(buffers[name])
        decoded = (self.codec.codec.decode(payloads[name], part.shape, part.dtype) for name, part in parameters.items())
        self.codec.arrive(sent, decoded, head)
        if not bool(torch.isfinite(head.floats).all()):
            raise WireError("not_finite", "a head with a number that is NaN or infinite")
        return ArrivedHead(head, sum(tensor.nbytes for tensor in tensors.values()))

    def most_bytes(self, sent: UnitState) -> int:
        """Bytes of the longest file that may hold a head of these units."""
        if self.codec is None or not sent.stop:
            return most_state_bytes(sent)
        return most_bytes(self.num_bytes(sent), MOST_ARRAYS * len(sent.named()))

    def num_bytes(self, head: UnitState) -> int:
        """Bytes that travel for a head, of payloads and buffers; where a codec's size depends on the data, the most."""
        if self.codec is None or self.choice is None:
            return head.num_bytes
        parts = self.codec.parameters(head).values()
        coded = sum(ceil(checked_size(self.choice, tuple(part.shape), part.itemsize)) for part in parts)
        return head.num_bytes - sum(part.nbytes for part in parts) + coded


def _buffers(head: UnitState, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What of a head is not coded."""
    return {name: tensor for name, tensor in head.named().items() if name not in parameters}


def _sorted_payloads(tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Payload]:
    """The arrays of a file by the parameter that they stand for."""
    arrays: dict[str, dict[str, Tensor]] = {name: {} for name in parameters}
    for key, tensor in tensors.items():
        if key in parameters:
            _refuse_uncoded(key, tensor)
        name, _, array = key.rpartition(".")
        if name in arrays:
            arrays[name][array] = tensor
    return {name: Payload(named) for name, named in arrays.items()}


def _refuse_uncoded(name: str, tensor: Tensor) -> None:
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise WireError("not_finite", f"{name} with a number that is NaN or infinite; lower train.lr")
    raise WireError("codec", f"{name} of {tensor.nbytes} bytes uncoded, where the run's settings have link.model")
