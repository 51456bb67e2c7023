"""Random changes to a batch of training images. Legend: b images, C channels, H height, W width."""

from collections.abc import Callable

import numpy as np
import torch

from hsfl.data.names import lookup
from hsfl.errors import InputError

Augmentation = Callable[[torch.Tensor, np.random.Generator], torch.Tensor]

PAD = 4


def none(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """The batch as it is."""
    return x


def flip_crop(x: torch.Tensor, rng: np.random.Generator, pad: int = PAD) -> torch.Tensor:
    """Each image mirrored or not, then moved by up to `pad` pixels each way; what enters is a reflection.

    Reflection, not black: it needs no knowledge of how pixels were normalised.
    """
    num_images, _, height, width = x.shape
    row, column = torch.from_numpy(rng.integers(0, 2 * pad + 1, (2, num_images))).to(x.device)
    mirrored = torch.from_numpy(rng.random(num_images) < 0.5).to(x.device)
    padded = x[:, :, _reflected(height, pad, x.device)][:, :, :, _reflected(width, pad, x.device)]
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view [b, C, 2 pad + 1, 2 pad + 1, H, W]
    moved = windows[torch.arange(num_images, device=x.device), :, row, column]  # [b, C, H, W]
    return torch.where(mirrored[:, None, None, None], moved.flip(3), moved)


AUGMENTATIONS: dict[str, Augmentation] = {"none": none, "flip_crop": flip_crop}


def check(name: str, image_shape: tuple[int, int, int]) -> None:
    """Whether this augmentation exists and suits images of shape (C, H, W)."""
    lookup(AUGMENTATIONS, name, "augmentation")
    channels, height, width = image_shape
    if name == "flip_crop" and channels != 3:
        raise InputError(
            f"data.augment is 'flip_crop' but the images have {channels} channel; it is for colour images: set 'none'"
        )
    if name == "flip_crop" and min(height, width) <= PAD:
        raise InputError(f"data.augment is 'flip_crop' but images of {height}x{width} are too small; set 'none'")


def _reflected(length: int, pad: int, device: torch.device) -> torch.Tensor:
    """Indices -pad..length+pad-1, those outside reflected at the border pixel."""
    index = torch.arange(-pad, length + pad, device=device).abs()
    return torch.minimum(index, 2 * (length - 1) - index)
