"""The idx reader: every place and packing it accepts, every kind of damage it names."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from hsfl.data.registry import load_dataset
from hsfl.errors import InputError
from tests.data.data_files import idx_bytes, write_idx, write_mnist
from tests.naming import raises

IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


@pytest.mark.parametrize("place", ["MNIST/raw", "raw", ""])
@pytest.mark.parametrize("suffix", ["-ubyte.gz", "-ubyte"])
def test_every_layout_gives_the_same(place: str, suffix: str, tmp_path: Path) -> None:
    write_mnist(tmp_path / "reference")
    write_mnist(tmp_path / "other" / place, suffix=suffix)
    reference, other = load_dataset("mnist", tmp_path / "reference"), load_dataset("mnist", tmp_path / "other")
    assert np.array_equal(reference.train_x, other.train_x)
    assert np.array_equal(reference.test_y, other.test_y)


def test_any_idx_set_by_path(tmp_path: Path) -> None:
    write_mnist(tmp_path / "fashion")
    by_path = load_dataset(f"idx:{tmp_path / 'fashion'}")
    assert (by_path.num_classes, by_path.image_shape) == (10, (1, 28, 28))
    assert np.array_equal(load_dataset("idx:fashion", tmp_path).train_x, by_path.train_x)  # within the data directory


def test_other_names_and_colour(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (6, 5, 4, 3))
    for part in ("train", "test"):
        write_idx(tmp_path / f"my-{part}-images.idx4-ubyte", x)
        write_idx(tmp_path / f"my-{part}-labels.idx1-ubyte", np.arange(6) % 3)
    dataset = load_dataset(f"idx:{tmp_path}")
    assert (dataset.classes, dataset.image_shape) == (("0", "1", "2"), (3, 5, 4))
    assert np.array_equal(dataset.train_x, x.transpose(0, 3, 1, 2))


def images_of(shape: tuple[int, ...]) -> bytes:
    return gzip.compress(idx_bytes(np.zeros(shape)))


DAMAGE = {
    "bad gzip": (IMAGES, b"\x1f\x8b" + b"nonsense" * 9, "cannot be read"),
    "truncated gzip": (IMAGES, images_of((40, 28, 28))[:-9], "cannot be read"),
    "flipped gzip sum": (IMAGES, images_of((40, 28, 28))[:-8] + b"\0" * 8, "cannot be read", "CRC"),
    "empty": (IMAGES, b"", "starts with  and", "not an idx file"),
    "web page": (IMAGES, b"<!DOCTYPE html>", "starts with 3c21444f"),
    "floats": (IMAGES, gzip.compress(bytes([0, 0, 13, 3]) + bytes(99)), "starts with 00000d03"),
    "too short": (IMAGES, gzip.compress(idx_bytes(np.zeros((40, 28, 28)))[:-1]), "31360 values", "holds 31359"),
    "too long": (IMAGES, gzip.compress(idx_bytes(np.zeros((40, 28, 28))) + b"x"), "31360 values", "holds more"),
    "no dimensions": (IMAGES, gzip.compress(bytes([0, 0, 8, 3, 0, 0])), "cannot be read"),
    "fewer images": (IMAGES, images_of((39, 28, 28)), "40 labels for 39 images"),
    "another shape": (IMAGES, images_of((40, 27, 28)), "(1, 27, 28)", "test images (1, 28, 28)"),
    "flat": (IMAGES, images_of((40, 784)), "(40, 784)", "1 or 3 channels"),
    "label 10": (LABELS, gzip.compress(idx_bytes(np.arange(40) % 11)), "label 10", "0..9"),
    "labels in a square": (LABELS, images_of((40, 1)), "not one label per image"),
    "no samples": (IMAGES, images_of((0, 28, 28)), "40 labels for 0 images"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_in_one_line(kind: str, tmp_path: Path) -> None:
    file, content, *parts = DAMAGE[kind]
    write_mnist(tmp_path)
    (tmp_path / file).write_bytes(content)
    with raises(InputError, str(tmp_path), *parts) as caught:
        load_dataset("mnist", tmp_path)
    assert "\n" not in str(caught.value)


def test_incomplete_and_ambiguous_folders(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InputError, match=r"has no t10k-labels-idx1-ubyte.gz"):
        load_dataset("mnist", tmp_path)
    write_mnist(tmp_path)
    write_idx(tmp_path / "emnist-train-images-idx3-ubyte", np.zeros((1, 2, 2)))
    with raises(InputError, "several files", "train-images"):
        load_dataset(f"idx:{tmp_path}")
    with raises(InputError, "absent", "not a folder"):
        load_dataset(f"idx:{tmp_path / 'absent'}")


def test_a_test_label_that_training_never_saw(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write_idx(tmp_path / LABELS, np.arange(40) % 9)
    with raises(InputError, "t10k-labels", "label 9", "0..8"):
        load_dataset(f"idx:{tmp_path}")
