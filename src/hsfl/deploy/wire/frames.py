"""A message on the wire: eight fixed bytes and two lengths, the fields as JSON, headers of tensors as JSON, then the tensors' bytes.

Nothing is trusted before it is checked: magic and version, every length against what has arrived, fields against the message's own
record, each tensor's dtype and shape against its bytes. Nothing is unpickled or executed. docs/protocol.md has the layout.
"""

import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from math import prod
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import to_json
from torch import Tensor

from hsfl.errors import explain_field, first_problem
from hsfl.models.state import dense, is_dense, usual_strides

MAGIC = b"HSFL"
VERSION = 5
PREFIX = struct.Struct("<4sHHII")  # magic, version, kind, bytes of the fields, bytes of the tensors' headers
MOST_JSON_BYTES = 1 << 20  # of the fields, and of the headers
MOST_TENSORS = 64
MOST_DIMENSIONS = 8
RAW = "raw"  # the codec that leaves a tensor as it is

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "float16": torch.float16,  # these four in payloads of codecs
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "int16": torch.int16,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

Name = Annotated[str, Field(max_length=64)]
Size = Annotated[int, Field(ge=0, le=2**40)]


class WireError(ValueError):
    """A message that is not let in. reason: one word for logs and metrics; the text is for people."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence


@dataclass(frozen=True)
class TensorHeader:
    """What a stretch of a message's bytes holds. codec: how the tensor is coded. side_of: the tensor that needs this
    one to be decoded, as a scale or the places of kept numbers. content: the hash of a unit that the receiver may
    hold already. strides: the steps of the dimensions in the sender's memory, where they are not the usual ones; the bytes are in the usual
    order all the same."""

    name: Name
    dtype: Name
    shape: Annotated[list[Size], Field(max_length=MOST_DIMENSIONS)]
    num_bytes: Size
    codec: Name = RAW
    side_of: Name | None = None
    content: Annotated[str, Field(max_length=128)] | None = None
    strides: Annotated[list[Size], Field(max_length=MOST_DIMENSIONS)] | None = None


Headers = Annotated[list[TensorHeader], Field(max_length=MOST_TENSORS)]


@dataclass(frozen=True)
class Frame:
    """A message as it arrived: its kind, its fields still as JSON, and its tensors."""

    kind: int
    fields: bytes
    tensors: dict[str, Tensor]


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def pack_frame(kind: int, fields: Any, tensors: Mapping[str, Tensor] | None = None) -> bytes:
    """The bytes of a message. kind: its number, of `messages.KINDS`. fields: a record that JSON can hold."""
    tensors = {name: tensor.detach().cpu() for name, tensor in (tensors or {}).items()}
    headers = [_header(name, dense(tensor)) for name, tensor in tensors.items()]
    text = to_json(asdict(fields), inf_nan_mode="strings")
    header_text = to_json([asdict(header) for header in headers]) if headers else b""
    prefix = PREFIX.pack(MAGIC, VERSION, kind, len(text), len(header_text))
    return b"".join((prefix, text, header_text, *(_bytes_of(tensor) for tensor in tensors.values())))


def _header(name: str, tensor: Tensor) -> TensorHeader:
    usual = tensor.numel() == 0 or tensor.stride() == usual_strides(tensor.shape)
    strides = None if usual else list(tensor.stride())
    return TensorHeader(name, NAMES[tensor.dtype], list(tensor.shape), tensor.nbytes, strides=strides)


def _bytes_of(tensor: Tensor) -> memoryview:
    if not tensor.numel():
        return memoryview(b"")
    numbers = tensor.contiguous().as_strided(
        (tensor.numel(),), (1,)
    )  # a size of 1 may have any stride, which view() would keep
    return numbers.view(torch.uint8).numpy().data  # NumPy has no bfloat16


def unpack_frame(message: bytes) -> Frame:
    """A message, checked; whatever is wrong with it is a WireError."""
    if len(message) < PREFIX.size:
        raise WireError("protocol", f"a message of {len(message)} bytes is shorter than its first {PREFIX.size}")
    magic, version, kind, num_fields, num_about = PREFIX.unpack_from(message)
    if magic != MAGIC:
        raise WireError("protocol", "a message that does not begin with HSFL; is the address that of an HSFL server?")
    if version != VERSION:
        raise WireError(
            "protocol",
            f"the other side speaks version {version} of the protocol and this side {VERSION}; install the same hsfl",
        )
    if max(num_fields, num_about) > MOST_JSON_BYTES or PREFIX.size + num_fields + num_about > len(message):
        raise WireError("protocol", f"a message of {len(message)} bytes claims {num_fields} and {num_about} of text")
    at = PREFIX.size + num_fields
    fields, header_text = message[PREFIX.size : at], message[at : at + num_about]
    return Frame(kind, fields, _tensors(memoryview(message)[at + num_about :], _headers(header_text)))


def _headers(header_text: bytes) -> list[TensorHeader]:
    headers: list[TensorHeader] = checked_fields(header_text, Headers, "headers of tensors") if header_text else []
    if len({header.name for header in headers}) < len(headers):
        raise WireError("protocol", "a message names a tensor twice")
    return headers


def _tensors(content: memoryview, headers: list[TensorHeader]) -> dict[str, Tensor]:
    """Copies of the tensors. Every length is compared with what arrived before any memory is taken."""
    if sum(header.num_bytes for header in headers) != len(content):
        raise WireError("protocol", f"the headers do not account for the {len(content)} bytes that follow them")
    tensors, at = {}, 0
    for header in headers:
        tensors[header.name] = _tensor(header, content[at : at + header.num_bytes])
        at += header.num_bytes
    return tensors


def _tensor(header: TensorHeader, content: memoryview) -> Tensor:
    if header.codec != RAW or header.side_of is not None or header.content is not None:
        raise WireError(
            "protocol", f"tensor {header.name!r} is coded by {header.codec!r}; this side knows {RAW!r} alone"
        )
    dtype = DTYPES.get(header.dtype)
    if dtype is None:
        raise WireError("protocol", f"tensor {header.name!r} is of {header.dtype!r}; known are {', '.join(DTYPES)}")
    if prod(header.shape) * dtype.itemsize != len(content):
        raise WireError("shape", f"tensor {header.name!r} of shape {header.shape} does not have {len(content)} bytes")
    try:
        tensor = torch.empty(header.shape, dtype=dtype)
    except RuntimeError:  # no bytes in all, but sides whose product no machine can count
        raise WireError("shape", f"tensor {header.name!r} cannot have the shape {header.shape}") from None
    if tensor.numel():
        tensor.view(-1).view(torch.uint8).numpy()[:] = np.frombuffer(content, np.uint8)
    return tensor if header.strides is None else _with_strides(tensor, header)


def _with_strides(tensor: Tensor, header: TensorHeader) -> Tensor:
    """The tensor as it lay in the sender's memory. Steps that leave gaps are refused: they would ask for any amount of memory."""
    strides = header.strides or []
    if len(strides) != tensor.ndim or not is_dense(tensor.shape, strides):
        raise WireError("shape", f"tensor {header.name!r} of shape {header.shape} cannot have the strides {strides}")
    return torch.empty_strided(header.shape, strides, dtype=tensor.dtype).copy_(tensor)


def checked_fields(text: bytes, kind: Any, what: str) -> Any:
    """Read JSON strictly as the type `kind`. what: the name of the JSON in an error."""
    try:
        return adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise WireError("protocol", f"{what}{explain_field(first_problem(error), show=False)}") from None
