"""Models and sums on the wire: states of units and partial sums as safetensors files, sent in chunks. A file that arrives is
checked against the model before it is used: names, shapes, types, and that every number is finite."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from hsfl.deploy.wire.client_messages import Chunk
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.messages import expect_message, pack_message
from hsfl.models.state import Layout, UnitState
from hsfl.training.aggregate import PartialSum

A = TypeVar("A")
B = TypeVar("B")
CHUNK_BYTES = 1 << 20
HEADER_BYTES = 4096  # that a safetensors file may have beside its tensors
TENSOR_HEADER_BYTES = 512  # and that it may have in addition for each tensor


def fingerprint(layout: Layout, dtype: torch.dtype) -> str:
    """A hash of units, names and shapes: two machines with equal fingerprints have built the same model."""
    digest = hashlib.sha256(f"{dtype}".encode())
    for number, unit in enumerate(layout.units):
        for slot in unit:
            digest.update(f"{number} {slot.name} {tuple(slot.shape)} {slot.is_float}\n".encode())
    return digest.hexdigest()


def state_bytes(state: UnitState) -> bytes:
    """The units as a safetensors file, by the tensors' names in the whole model."""
    return tensors_file(state.named())


def tensors_file(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors by their names as a safetensors file."""
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def unpack_state(content: bytes, like: UnitState) -> UnitState:
    """The units of a safetensors file, which must be exactly those of `like`, all numbers finite."""
    fresh = UnitState.empty(like.layout, like.start, like.stop, like.floats.dtype, like.floats.device)
    _copy_checked(read_tensors_file(content), fresh.named())
    if not bool(torch.isfinite(fresh.floats).all()):
        raise WireError("not_finite", "a model with a number that is NaN or infinite")
    return fresh


def sum_bytes(total: PartialSum) -> bytes:
    """A partial sum as a safetensors file: whole multiples of each unit's grid, the grids, and the weights."""
    bits = torch.tensor(total.bits, dtype=torch.int64)
    return save({"floats": total.total.floats, "ints": total.total.ints, "weight": total.weight, "bits": bits})


def read_sum(content: bytes, like: PartialSum) -> PartialSum:
    """The other server's sum over the units of `like`, which must have the same grids."""
    fresh = like.clone()
    bits = torch.zeros(len(like.bits), dtype=torch.int64)
    views = {"floats": fresh.total.floats, "ints": fresh.total.ints, "weight": fresh.weight, "bits": bits}
    _copy_checked(read_tensors_file(content), views)
    if tuple(bits.tolist()) != like.bits:
        raise WireError("order", "the servers' sums began from different models; start the round again")
    return fresh


def read_tensors_file(content: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file; their bytes are those of the file."""
    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError, OverflowError) as error:
        raise WireError("protocol", f"no safetensors file ({error})") from None


def _copy_checked(tensors: Mapping[str, Tensor], views: Mapping[str, Tensor]) -> None:
    check_alike(tensors, views)
    for name, view in views.items():
        view.copy_(tensors[name])


def check_alike(tensors: Mapping[str, Tensor], views: Mapping[str, Tensor]) -> None:
    """Refuse tensors that have not exactly these names, shapes and types."""
    if tensors.keys() != views.keys():
        odd = sorted(tensors.keys() ^ views.keys())
        raise WireError(
            "shape", f"{len(tensors)} tensors where {len(views)} are expected; {odd[0]!r} is one too many or missing"
        )
    for name, view in views.items():
        if tensors[name].shape != view.shape or tensors[name].dtype != view.dtype:
            received = f"{tensors[name].dtype} {tuple(tensors[name].shape)}"
            raise WireError("shape", f"{name} is {received}, not {view.dtype} {tuple(view.shape)}")


def most_bytes(payload: int, num_tensors: int) -> int:
    """Bytes of the longest file that may hold so many tensors of `payload` bytes in all."""
    return payload + HEADER_BYTES + TENSOR_HEADER_BYTES * num_tensors


def most_state_bytes(state: UnitState) -> int:
    """Bytes of the longest file that may hold these units."""
    return most_bytes(state.num_bytes, len(state.named()))


def most_sum_bytes(units: UnitState) -> int:
    """Bytes of the longest file that may hold a sum over these units: 8 for each number, and 16 for each unit."""
    return most_bytes(8 * (units.floats.numel() + units.ints.numel()) + 16 * (units.stop - units.start), 4)


def chunks(content: bytes) -> Iterator[bytes]:
    """The file as messages; an empty file is one empty chunk."""
    whole = np.frombuffer(content, np.uint8)
    for at in range(0, max(len(content), 1), CHUNK_BYTES):
        piece = torch.from_numpy(whole[at : at + CHUNK_BYTES].copy())
        yield pack_message(Chunk(at, len(content)), {"bytes": piece})


class Collector:
    """Puts the chunks of one file together; a chunk out of order, or more bytes than expected, is refused."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.total = max_bytes, -1
        self.pieces, self.num_bytes = list[memoryview](), 0

    def add(self, message: bytes) -> bool:
        """Take a chunk; returns whether the file is whole."""
        chunk, tensors = expect_message(message, Chunk, tensors=("bytes",))
        piece = tensors["bytes"]
        if self.total < 0:
            self.total = chunk.total
            if self.total > self.max_bytes:
                raise WireError(
                    "too_large", f"a model of {self.total} bytes where at most {self.max_bytes} are expected"
                )
        inside = piece.dtype == torch.uint8 and piece.ndim == 1 and len(piece) <= CHUNK_BYTES
        if chunk.total != self.total or chunk.at != self.num_bytes or not inside:
            raise WireError(
                "order", f"a chunk at byte {chunk.at} of {chunk.total} where byte {self.num_bytes} comes next"
            )
        if self.num_bytes + len(piece) > self.total or (self.total and not len(piece)):
            raise WireError("too_large", f"chunks of more than the {self.total} bytes that were announced")
        self.pieces.append(piece.numpy().data)
        self.num_bytes += len(piece)
        return self.num_bytes == self.total


async def collect(read_next: Callable[[], Awaitable[bytes]], max_bytes: int) -> bytes:
    """The file whose chunks come next. read_next: returns the next message. max_bytes: a longer file is refused."""
    collector = Collector(max_bytes)
    while not collector.add(await read_next()):
        pass
    return b"".join(collector.pieces)  # a bytes object is what safetensors reads, and this is the only copy


async def send(stream: Any, content: bytes) -> None:
    """Send a file in chunks. stream: of gRPC, at either end."""
    for chunk in chunks(content):
        await stream.write(chunk)


async def both_results(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Both results. If one fails, the other is given up, and its failure is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            first_task, second_task = group.create_task(first), group.create_task(second)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return first_task.result(), second_task.result()
