"""CIFAR-10, the "python version": six pickled batches.

A pickle is a program. Ours may build lists, dicts, bytes, strings and numbers, and name three things of NumPy, which
are answered by the stand-ins below: nothing that a file names is ever imported or called.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from hsfl.data.readers.reader_base import Arrays, Request, check_labels, fetch_again, missing, reading
from hsfl.errors import InputError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FOLDER = "cifar-10-batches-py"
TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
WAY_OUT = fetch_again("cifar10")


class Dtype:
    """Stands in for numpy.dtype; only unsigned bytes are of use here."""

    __slots__ = ()

    def __init__(self, name: object, *_: object) -> None:
        if name not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"an array of type {name!r:.20} instead of bytes")

    def __setstate__(self, _: object) -> None:
        """Byte order and alignment mean nothing for bytes."""


class Array:
    """Stands in for numpy.ndarray and for the function that makes an empty one."""

    __slots__ = ("values",)

    def __init__(self, *_: object) -> None:
        self.values: np.ndarray = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, raw = state
        if not (isinstance(dtype, Dtype) and type(raw) is bytes and is_fortran is False):
            raise pickle.UnpicklingError("an array that is not plain bytes")
        self.values = np.frombuffer(raw, np.uint8).reshape(shape)


STAND_INS: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): Array,
    ("numpy._core.multiarray", "_reconstruct"): Array,
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): Dtype,
}


class RestrictedUnpickler(pickle._Unpickler):
    """Knows the stand-ins and nothing else.

    Python's own version, as fast here as the version in C, which makes room for as many objects as a file claims to have: up to 64
    GiB for an index of ten bytes.
    """

    def find_class(self, module: str, name: str) -> type:
        if (module, name) not in STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no image file needs")
        return STAND_INS[module, name]


def read_cifar10(request: Request) -> Arrays:
    """CIFAR-10, in cifar-10-batches-py or the data directory itself."""
    places = [request.data_dir / FOLDER, request.data_dir]
    folder = next((place for place in places if (place / TRAIN_FILES[0]).is_file()), None)
    if folder is None:
        raise missing("cifar10", f"{FOLDER}/{TRAIN_FILES[0]}", request.data_dir)
    train = [read_batch(folder / file) for file in TRAIN_FILES]
    test_x, test_y = read_batch(folder / "test_batch")
    train_x = np.concatenate([images for images, _ in train])
    train_y = np.concatenate([labels for _, labels in train])
    return Arrays(train_x, train_y, test_x, test_y, CLASSES)


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [n, 3, 32, 32] and labels int64 [n] of one file."""
    if not path.is_file():
        raise missing("cifar10", path.name, path.parent)
    with reading(path, WAY_OUT):
        content = RestrictedUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        images, labels = _entry(content, "data"), _entry(content, "labels")
    if not (isinstance(images, Array) and images.values.shape[1:] == (3072,)):
        raise InputError(f"{path} has no rows of 3072 bytes under 'data'; {WAY_OUT}")
    if not (isinstance(labels, list) and all(type(label) is int and 0 <= label < 256 for label in labels)):
        raise InputError(f"{path} has no list of small numbers under 'labels'; {WAY_OUT}")
    y = np.array(labels, np.int64)
    check_labels(path, y, len(images.values), len(CLASSES), WAY_OUT)
    return images.values.reshape(-1, 3, 32, 32), y


def _entry(content: object, key: str) -> object:
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__} instead of a dict")
    return content[key.encode()] if key.encode() in content else content[key]
