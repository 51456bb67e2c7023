"""Flip and crop against a plain loop."""

import numpy as np
import pytest
import torch

from hsfl.data.augment import AUGMENTATIONS, check_augmentation, flip_crop
from hsfl.errors import InputError
from tests.naming import raises


def plain_flip_crop(x: np.ndarray, rng: np.random.Generator, pad: int) -> np.ndarray:
    """The oracle: one image after another, padded by NumPy."""
    offsets = rng.integers(0, 2 * pad + 1, (2, len(x)))
    mirrored = rng.random(len(x)) < 0.5
    out = []
    for image, row, column, mirror in zip(x, *offsets, mirrored):
        padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)), mode="reflect")
        window = padded[:, row : row + image.shape[1], column : column + image.shape[2]]
        out.append(window[:, :, ::-1] if mirror else window)
    return np.stack(out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8])
@pytest.mark.parametrize("pad", [1, 4])
def test_flip_crop_equals_the_plain_loop(dtype: torch.dtype, pad: int) -> None:
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (64, 3, 9, 7))).to(dtype)
    before = x.clone()
    out = flip_crop(x, np.random.default_rng(5), pad)
    assert out.dtype == dtype
    assert np.array_equal(out.numpy(), plain_flip_crop(x.numpy(), np.random.default_rng(5), pad))
    assert torch.equal(x, before)
    assert not torch.equal(out, flip_crop(x, np.random.default_rng(6), pad))


def test_randomness_comes_from_rng_alone() -> None:
    x = torch.rand(8, 3, 8, 8)
    state = torch.get_rng_state()
    flip_crop(x, np.random.default_rng(0))
    assert torch.equal(state, torch.get_rng_state())


def test_no_padding_only_flips_and_none_does_nothing() -> None:
    x = torch.rand(50, 3, 4, 5)
    out = flip_crop(x, np.random.default_rng(0), pad=0)
    flipped = (out == x.flip(3)).flatten(1).all(1)
    assert ((out == x).flatten(1).all(1) ^ flipped).all()
    assert 10 < flipped.sum() < 40
    assert AUGMENTATIONS["none"](x, np.random.default_rng(0)) is x


def test_what_suits_which_images() -> None:
    check_augmentation("none", (1, 28, 28))
    check_augmentation("flip_crop", (3, 32, 32))
    check_augmentation("flip_crop", (3, 32, 32), (32, 32))
    with raises(InputError, "'flip_crop'", "(16, 16)", "32x32", "'none'"):
        check_augmentation("flip_crop", (3, 32, 32), (16, 16))
    with raises(InputError, "1 channel", "colour images"):
        check_augmentation("flip_crop", (1, 28, 28))
    with raises(InputError, "4x9", "too small"):
        check_augmentation("flip_crop", (3, 4, 9))
    with raises(InputError, "'flipcrop'", "did you mean flip_crop"):
        check_augmentation("flipcrop", (3, 32, 32))
