"""The batches of every client. They depend on (seed, client, pass over the client's samples, step of the pass) and on nothing else.

`hsfl.data.passes` says how many steps a client makes in a round, and which batches of which passes these are. So HSFL, FL and
SplitFed V1 see the same samples in the same order, and no framework has luckier batches than another.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hsfl.data.augment import AUGMENTATIONS
from hsfl.data.partition import sizes_of
from hsfl.data.passes import RoundSteps, batches_of_pass
from hsfl.rng import stream
from hsfl.training.attack import LabelFlip
from hsfl.training.step import StepKey


def pass_positions(num_samples: int, batch_size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """One pass: the positions 0 to num_samples - 1 in random order, as an array for each batch (`hsfl.data.passes.batches_of_pass`)."""
    order = rng.permutation(num_samples)
    return np.split(order, [batch_size * batch for batch in range(1, int(batches_of_pass(num_samples, batch_size)))])


@dataclass(frozen=True)
class PlannedBatch:
    """The samples of one batch, and the name of its step."""

    indices: np.ndarray  # into the images
    key: StepKey


@dataclass(frozen=True)
class Images:
    """Samples with their targets: images as bytes, numbers of any shape, or tokens. `floats` normalises one batch at a time."""

    x: Tensor  # uint8 [n, C, H, W], floats [n, ...], or tokens int64 [n, T]
    y: Tensor  # of classes int64 [n], of labels or numbers floats [n, L], of tokens int64 [n, T], of pixels uint8 or int64 [n, ...]
    # Of pixels in 0..1, per channel; of floats, per place in their first axis. Empty: nothing is normalised.
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: torch.dtype = torch.float32

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    @cached_property
    def _affine(self) -> tuple[Tensor, Tensor]:
        whole = 255 if self.x.dtype == torch.uint8 else 1
        scale = [1 / (whole * s) for s in self.std]
        shift = [-m / s for m, s in zip(self.mean, self.std)]
        columns = torch.tensor([scale, shift], dtype=self.dtype, device=self.x.device)
        trailing = (1,) * (self.x.ndim - 2)
        return columns[0].view(-1, *trailing), columns[1].view(-1, *trailing)

    def floats(self, x: Tensor) -> Tensor:
        """Normalised floats: (bytes / 255 - mean) / std, or (numbers - mean) / std. Tokens stay as they are. Always a copy, since a
        model may change its input in place."""
        if x.dtype == torch.int64:
            return x.clone()
        if not self.mean:
            return x.to(self.dtype, copy=True)
        scale, shift = self._affine
        return torch.addcmul(shift, x, scale)

    def targets(self, rows: Tensor | slice) -> Tensor:
        """The targets of some samples; classes of pixels, which are kept as bytes, as the numbers that losses take."""
        y = self.y[rows]
        return y.long() if y.dtype == torch.uint8 else y


def resized(x: Tensor, size: tuple[int, int], chunk: int = 1024) -> Tensor:
    """Images [n, C, H, W] as bytes, resized to `size`, which is (height, width); `chunk` images at a time."""
    if tuple(x.shape[-2:]) == size:
        return x
    small = x.new_empty(*x.shape[:2], *size)
    for start in range(0, len(x), chunk):
        pixels = x[start : start + chunk].float()
        pixels = F.interpolate(pixels, size, mode="bilinear", antialias=True, align_corners=False)
        small[start : start + chunk] = pixels.round_().clamp_(0, 255)
    return small


def no_observer(client: int, num_samples: int) -> None:
    """An observer of batches that does nothing."""


@dataclass
class Feed:
    """The training samples and who holds which of them."""

    images: Images
    indices: Sequence[np.ndarray]  # [K] of the images that each client holds
    seed: int
    augment: str = "none"
    label_flip: LabelFlip | None = None  # of simulated attackers
    on_batch: Callable[[int, int], None] = no_observer  # is told the client and the number of samples, to show progress

    def num_samples(self, client: int) -> int:
        return len(self.indices[client])

    @property
    def sizes(self) -> np.ndarray:
        """How many samples each client holds, [K]."""
        return sizes_of(self.indices)

    def batches_of_round(self, client: int, round_index: int, batch_size: int, epochs: float) -> list[PlannedBatch]:
        """The batches on which a client trains in a round (0, 1, ...), in order: one for each step."""
        steps = RoundSteps(self.num_samples(client), batch_size, epochs, round_index)
        batches, passes = [], dict[int, list[np.ndarray]]()
        for step in range(steps.count):
            pass_index, step_of_pass = steps.place(step)
            if pass_index not in passes:
                rng = stream(self.seed, "batches", client, pass_index)
                passes[pass_index] = pass_positions(steps.num_samples, batch_size, rng)
            indices = self.indices[client][passes[pass_index][step_of_pass]]
            batches.append(PlannedBatch(indices, StepKey(self.seed, client, pass_index, step_of_pass)))
        return batches

    def batch(self, planned: PlannedBatch) -> tuple[Tensor, Tensor]:
        """Normalised, augmented samples [b, ...] and their targets, as `Images` has them."""
        key = planned.key
        self.on_batch(key.client, len(planned.indices))
        indices = torch.from_numpy(planned.indices).to(self.images.y.device)
        x, y = self.images.x[indices], self.images.targets(indices)
        if self.label_flip is not None:
            y = self.label_flip.flipped(key.client, y)
        if self.augment != "none":
            names = ("augment", key.client, key.pass_index, key.step)
            x = AUGMENTATIONS[self.augment](x, stream(self.seed, *names))
            if y.ndim == 3:  # the class of a pixel moves with the pixel: by the same draws
                y = AUGMENTATIONS[self.augment](y[:, None], stream(self.seed, *names))[:, 0]
        return self.images.floats(x), y


@dataclass(frozen=True)
class ClientData:
    """One client's data: its own samples, batch by batch, and nobody else's."""

    feed: Feed
    client: int
    batch_size: int
    epochs: float  # passes over the samples in a round; may be a fraction

    @property
    def num_samples(self) -> int:
        return self.feed.num_samples(self.client)

    def batches(self, round_index: int) -> Iterator[tuple[Tensor, Tensor, StepKey]]:
        """Samples, targets and name of every step of a round. round_index: 0, 1, ..."""
        for planned in self.feed.batches_of_round(self.client, round_index, self.batch_size, self.epochs):
            yield *self.feed.batch(planned), planned.key
