"""Random changes to a batch of training images. Legend: b images, C channels, H height, W width."""

from collections.abc import Callable

import numpy as np
import torch

from hsfl.errors import InputError, known_name

Augmentation = Callable[[torch.Tensor, np.random.Generator], torch.Tensor]

PAD = 4


def _unchanged(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """The batch as it is."""
    return x


def flip_crop(x: torch.Tensor, rng: np.random.Generator, pad: int = PAD) -> torch.Tensor:
    """Each image mirrored or not, then moved by up to `pad` pixels each way; what enters is a reflection.

    Reflection, not black: it needs no knowledge of how pixels were normalised.
    """
    num_images, channels, height, width = x.shape
    offset = rng.integers(0, 2 * pad + 1, (2, num_images)) - pad
    mirrored = rng.random(num_images) < 0.5
    row = _reflected(offset[0][:, None] + np.arange(height), height)  # [b, H]: the row that each row is taken from
    column = _reflected(offset[1][:, None] + np.arange(width), width)  # [b, W]
    column = np.where(mirrored[:, None], column[:, ::-1], column)
    source = torch.from_numpy((row[:, :, None] * width + column[:, None, :]).reshape(num_images, 1, -1)).to(x.device)
    return x.flatten(2).gather(2, source.expand(-1, channels, -1)).view_as(x)


AUGMENTATIONS: dict[str, Augmentation] = {"none": _unchanged, "flip_crop": flip_crop}


def check_augmentation(name: str, image_shape: tuple[int, ...], pixel_shape: tuple[int, ...] | None = None) -> None:
    """Whether this augmentation exists and suits images of shape (C, H, W). pixel_shape: of a sample's targets, where each pixel has a
    class."""
    if known_name("augmentation", name, AUGMENTATIONS) == "none":
        return
    if len(image_shape) != 3:
        raise InputError(
            f"data.augment is {name!r} but the samples have shape {image_shape}; it is for images: set 'none'"
        )
    channels, height, width = image_shape
    if name == "flip_crop" and channels != 3:
        raise InputError(
            f"data.augment is 'flip_crop' but the images have {channels} channel; it is for colour images: set 'none'"
        )
    if name == "flip_crop" and min(height, width) <= PAD:
        raise InputError(f"data.augment is 'flip_crop' but images of {height}x{width} are too small; set 'none'")
    if pixel_shape not in (None, image_shape[1:]):
        raise InputError(
            f"data.augment is {name!r} but targets of {pixel_shape} cannot move with images of {height}x{width}; set 'none'"
        )


def _reflected(index: np.ndarray, length: int) -> np.ndarray:
    """Indices outside 0..length-1 reflected at the border pixel."""
    index = np.abs(index)
    return np.minimum(index, 2 * (length - 1) - index)
