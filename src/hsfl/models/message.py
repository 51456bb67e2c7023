"""What crosses a cut is one tensor whose first dimension counts samples. Several tensors, or one with the samples in
another dimension, are packed into such a tensor.

A packed message is `[batch, numbers]` in the type of the first piece. Side tensors (an attention mask) travel in it as floats, so
that every link counts them; whole numbers are exact up to 2 ** 24.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

# Of a piece: the dimension of the samples, its other sizes, its type, and the order of its dimensions in memory.
Layout = tuple[int, tuple[int, ...], torch.dtype, tuple[int, ...]]


@dataclass(frozen=True)
class Message:
    """The pieces that cross a cut (or enter the model) together."""

    pieces: tuple[Layout, ...]

    @property
    def is_plain(self) -> bool:
        """Whether the message is a single piece that crosses as it is."""
        return len(self.pieces) == 1 and self.pieces[0][0] == 0

    @property
    def dtype(self) -> torch.dtype:
        """The type of the tensor that travels; a packed message has a floating type."""
        first = self.pieces[0][2]
        return first if self.is_plain or first.is_floating_point else torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that travels, for one sample."""
        if self.is_plain:
            return self.pieces[0][1]
        return (sum(prod(sizes) for _, sizes, *_ in self.pieces),)


def pack(tensors: Sequence[Tensor], pieces: Sequence[Layout], dtype: torch.dtype) -> Tensor:
    """One tensor `[batch, numbers]` that holds the pieces."""
    flat = [
        tensor.movedim(dim, 0).reshape(tensor.shape[dim], prod(sizes)).to(dtype)
        for tensor, (dim, sizes, *_) in zip(tensors, pieces)
    ]
    return torch.cat(flat, dim=1)


def unpack(packed: Tensor, pieces: Sequence[Layout]) -> list[Tensor]:
    """The pieces again, each with its own shape, type and order in memory."""
    parts = packed.split([prod(sizes) for _, sizes, *_ in pieces], dim=1)
    return [
        laid_out(part.reshape(packed.shape[0], *sizes).movedim(0, dim).to(dtype), order)
        for part, (dim, sizes, dtype, order) in zip(parts, pieces)
    ]


def laid_out(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    """A tensor with its dimensions in this order in memory, as the module has it, so that `view` works on what arrived."""
    return tensor.permute(order).contiguous().permute([order.index(dim) for dim in range(len(order))])


def memory_order(strides: Sequence[int]) -> tuple[int, ...]:
    """The dimensions in the order of their steps in memory, the widest first. A repeated tensor, which has a step of 0,
    keeps its order."""
    plain = range(len(strides))
    return tuple(plain) if 0 in strides else tuple(sorted(plain, key=lambda dim: -strides[dim]))
