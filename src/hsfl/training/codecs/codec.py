"""What a codec is: it turns a tensor into a few plain arrays, its payload, and a payload into a tensor of the same shape and type.

Payloads may come over a wire, from a device that is broken or hostile. So `check` looks at every array of a payload before `decode` makes memory
for the tensor, and refuses what `encode` could not have made.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hsfl.errors import InputError
from hsfl.training.aggregate import Diverged

Draws = Callable[
    [], np.random.Generator
]  # a stream of random numbers by the name of the step and direction; None draws nothing


class PayloadError(InputError):
    """A payload that no encoder made for a tensor of this shape."""


@dataclass(frozen=True)
class Payload:
    """What travels instead of a tensor."""

    arrays: dict[str, Tensor]

    @property
    def num_bytes(self) -> int:
        """Numbers, scales and masks; headers of frames are not counted, as for other messages."""
        return sum(array.nbytes for array in self.arrays.values())


class Codec(ABC):
    """Encodes tensors of floating-point numbers. It has no memory, so that one codec serves all clients and threads."""

    @abstractmethod
    def encode(self, tensor: Tensor, direction: str, draws: Draws | None) -> Payload:
        """The payload of a tensor that needs no gradient. direction: up, down or model. draws: for codecs that draw random numbers; None where the
        same tensor must always give the same payload, as in an evaluation."""

    @abstractmethod
    def check(self, payload: Payload, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Refuse a payload that cannot be that of a tensor with this shape and type, with a `PayloadError`."""

    @abstractmethod
    def decode(self, payload: Payload, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The tensor of a payload that is in order."""

    def receive(self, payload: Payload, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The tensor of a payload from somebody else, which is checked first."""
        self.check(payload, shape, dtype)
        return self.decode(payload, shape, dtype)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which a codec computes: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def largest(tensor: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The largest absolute value over some dimensions, without a copy of the tensor."""
    return torch.maximum(tensor.amax(dims), tensor.amin(dims).neg())


def check_finite(numbers: Tensor) -> None:
    """Refuse to encode numbers that are NaN or infinite: the training that made them has diverged."""
    if not bool(torch.isfinite(numbers).all()):
        raise Diverged("what a client or the main server sends holds a number that is NaN or infinite; lower train.lr")


def check_array(payload: Payload, name: str, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """The array of this name; refuses a payload without it, or with another shape or type."""
    array = payload.arrays.get(name)
    if array is None:
        raise PayloadError(f"a payload without {name}, with {', '.join(payload.arrays) or 'nothing'}; send {name}")
    if array.dtype != dtype or tuple(array.shape) != tuple(shape):
        raise PayloadError(
            f"{name} of a payload are {array.dtype} {tuple(array.shape)}, not {dtype} {tuple(shape)}; send those"
        )
    return array


def check_names(payload: Payload, *names: str) -> None:
    """Refuse arrays that the codec does not know, which would only take memory."""
    if strange := sorted(payload.arrays.keys() - set(names)):
        raise PayloadError(f"a payload with {strange[0]!r}, which is none of {', '.join(names)}; leave it out")


def random_int16(draws: Draws, shape: Sequence[int], device: torch.device) -> Tensor:
    """Whole numbers in [-2**15, 2**15), all alike, as the stream gives them."""
    count = math.prod(shape)
    raw = draws().bit_generator.random_raw(-(-count // 4))
    return torch.from_numpy(raw.view(np.int16)[:count]).to(device).view(tuple(shape))
