"""Two small transformers as lists of units: `gpt` guesses the next token of a text, `vit` tells classes of images apart.

After Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), and Dosovitskiy et al., "An Image is Worth 16x16
Words" (2020), with these changes: the classifier has weights of its own (tied weights could not be cut apart), and `vit` takes the
mean over all patches. Every block is a unit. Legend: b samples, T tokens or patches, D width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hsfl.config.options import GPTOptions, ViTOptions
from hsfl.errors import InputError
from hsfl.models.layers import named
from hsfl.models.units import SplitModel

WIDER = 4  # how many times wider the inner dense layer of a block is


class Attention(nn.Module):
    """Self-attention of several heads; with `causal` a token sees only itself and the tokens before it."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.mix(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # [3, b, heads, T, D / heads]
        attended = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=self.causal)
        out: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Attention, then two dense layers; to each of these two parts its input is added."""

    def __init__(self, width: int, heads: int, causal: bool, dropout: float) -> None:
        super().__init__()
        dense = named(wide=nn.Linear(width, WIDER * width), gelu=nn.GELU(), narrow=nn.Linear(WIDER * width, width))
        self.attend = named(norm=nn.LayerNorm(width), attention=Attention(width, heads, causal))
        self.dense = named(norm=nn.LayerNorm(width), layers=dense)
        if dropout > 0:
            self.attend.add_module("dropout", nn.Dropout(dropout))
            self.dense.add_module("dropout", nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(x)
        return x + self.dense(x)


class Places(nn.Module):
    """Adds a learned vector to each place in the sequence."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(length, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


class Mean(nn.Module):
    """The mean over all places."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


def gpt(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    stem: str,
    dropout: float,
    options: GPTOptions | None = None,
) -> SplitModel:
    """For blocks of tokens: an embedding, `depth` blocks, and a number for each token of the vocabulary; `depth + 2` units."""
    chosen = options or GPTOptions()
    if len(input_shape) != 1:
        raise InputError(
            f"gpt takes blocks of tokens, not samples of {input_shape}; choose text, or another model (for a cost table --input is their length)"
        )
    width = chosen.width
    embedding = named(tokens=nn.Embedding(num_classes, width), places=Places(input_shape[0], width))
    head = named(norm=nn.LayerNorm(width), linear=nn.Linear(width, num_classes, bias=False))
    return _transformer("gpt", embedding, chosen, True, dropout, head)


def vit(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    stem: str,
    dropout: float,
    options: ViTOptions | None = None,
) -> SplitModel:
    """For images: squares of `patch` pixels become tokens; an embedding, `depth` blocks and a classifier, `depth + 2` units."""
    chosen = options or ViTOptions()
    (channels, height, width), patch = input_shape, chosen.patch
    if height % patch or width % patch:
        raise InputError(
            f"options.vit.patch is {patch} but images are {height}x{width}; choose a patch that divides both sides"
        )
    embedding = named(
        patches=nn.Conv2d(channels, chosen.width, patch, stride=patch),
        flatten=nn.Flatten(2),
        turn=Transposed(),
        places=Places((height // patch) * (width // patch), chosen.width),
    )
    head = named(norm=nn.LayerNorm(chosen.width), mean=Mean(), linear=nn.Linear(chosen.width, num_classes))
    return _transformer("vit", embedding, chosen, False, dropout, head)


class Transposed(nn.Module):
    """[b, D, T] -> [b, T, D]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def _transformer(
    name: str, embedding: nn.Module, chosen: GPTOptions | ViTOptions, causal: bool, dropout: float, head: nn.Module
) -> SplitModel:
    """The units in order, with torch's first weights, whose std is 1 / sqrt(3 fan_in). Embeddings and places have the same std for their
    width: at GPT-2's 768 that is its published 0.02, which leaves a width of 32 next to nothing to learn from."""
    if chosen.width % chosen.heads:
        raise InputError(
            f"options.{name}.width is {chosen.width} but there are {chosen.heads} heads; choose a width that they divide"
        )
    blocks = {f"block{i}": Block(chosen.width, chosen.heads, causal, dropout) for i in range(1, chosen.depth + 1)}
    model = SplitModel({"embedding": embedding, **blocks, "classifier": head})
    for layer in model.modules():
        if isinstance(layer, nn.Embedding | Places):
            nn.init.normal_(layer.weight, 0.0, (3 * chosen.width) ** -0.5)
    return model
