"""What crosses a cut is one tensor with the samples in front. Several tensors, or one with the samples elsewhere, are packed into it.

A packed message is `[batch, numbers]` in the type of the first piece. Side tensors (an attention mask) travel in it as floats, so
that every link counts them; whole numbers are exact up to 2 ** 24.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

Layout = tuple[int, tuple[int, ...], torch.dtype]  # of a piece: dimension of the samples, its other sizes, type


@dataclass(frozen=True)
class Message:
    """The pieces that cross a cut (or enter the model) together."""

    pieces: tuple[Layout, ...]

    @property
    def is_plain(self) -> bool:
        """Whether the one piece crosses as it is."""
        return len(self.pieces) == 1 and self.pieces[0][0] == 0

    @property
    def dtype(self) -> torch.dtype:
        """Of the tensor that travels; of a packed message a floating type."""
        first = self.pieces[0][2]
        return first if self.is_plain or first.is_floating_point else torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor that travels, for one sample."""
        if self.is_plain:
            return self.pieces[0][1]
        return (sum(prod(sizes) for _, sizes, _ in self.pieces),)


def pack(tensors: Sequence[Tensor], pieces: Sequence[Layout], dtype: torch.dtype) -> Tensor:
    """One tensor `[batch, numbers]` that holds the pieces."""
    flat = [
        tensor.movedim(dim, 0).reshape(tensor.shape[dim], prod(sizes)).to(dtype)
        for tensor, (dim, sizes, _) in zip(tensors, pieces)
    ]
    return torch.cat(flat, dim=1)


def unpack(packed: Tensor, pieces: Sequence[Layout]) -> list[Tensor]:
    """The pieces again, each with its own shape and type."""
    parts = packed.split([prod(sizes) for _, sizes, _ in pieces], dim=1)
    return [
        part.reshape(len(packed), *sizes).movedim(0, dim).to(dtype) for part, (dim, sizes, dtype) in zip(parts, pieces)
    ]
