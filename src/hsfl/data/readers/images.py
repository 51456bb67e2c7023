"""Pillow at one place: image files and bytes to arrays [C, H, W]."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from hsfl.errors import InputError

MAX_BYTES = 16 * 2**30
Size = tuple[int, int]  # width, height, as Pillow has it


def decode(source: Path | bytes, mode: str, size: Size | None) -> np.ndarray:
    """One image as uint8 [C, H, W]; mode is "L" or "RGB", and a size of None keeps the image's own."""
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
        if size is not None and image.size != size:
            image.draft(mode, (2 * size[0], 2 * size[1]))  # a large JPEG is decoded at a fraction of its size
        pixels = image.convert(mode)
    if size is not None and pixels.size != size:
        pixels = pixels.resize(size, Image.Resampling.BICUBIC)
    array = np.asarray(pixels)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def empty(num_images: int, mode: str, size: Size, what: str | Path) -> np.ndarray:
    """Room for that many images, or an error when it would not fit into any sensible memory."""
    shape = (num_images, len(mode), size[1], size[0])  # len("L") is 1, len("RGB") is 3
    num_bytes = int(np.prod(shape, dtype=np.int64))
    if num_bytes > MAX_BYTES:
        raise InputError(
            f"{what}: {num_images} images of {size[0]}x{size[1]} take {num_bytes / 2**30:.0f} GiB; "
            "set data.image_size to something smaller"
        )
    return np.empty(shape, np.uint8)


def resized(x: np.ndarray, image_size: int) -> np.ndarray:
    """uint8 [n, C, H, W] to [n, C, image_size, image_size]."""
    if x.shape[2:] == (image_size, image_size):
        return x
    out = np.empty((*x.shape[:2], image_size, image_size), np.uint8)
    for sample, target in zip(x, out):
        _resize_channels(sample, target, image_size)
    return out


def _resize_channels(sample: Sequence[np.ndarray] | np.ndarray, target: np.ndarray, image_size: int) -> None:
    for channel, plane in zip(sample, target):
        plane[:] = Image.fromarray(channel).resize((image_size, image_size), Image.Resampling.BICUBIC)
