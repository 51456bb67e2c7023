"""The idx format of MNIST and its relatives (Fashion-MNIST, KMNIST, EMNIST), packed with gzip or plain.

A file is two zero bytes, a type (8 is uint8), the number of dimensions, each dimension as a big-endian 32-bit number,
and the values.
"""

import gzip
import math
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hsfl.data.readers.reader_base import Arrays, Request, check_labels, fetch_again, missing, reading
from hsfl.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
UINT8 = 8
MOST_BYTES = 4 * 2**30  # unpacked; EMNIST, the largest, has half a GiB
MNIST_PATTERN = "{prefix}-{kind}?idx?-ubyte*"  # "-idx3" as published, ".idx3" as some copies have it
ANY_PATTERN = "*{prefix}-{kind}*"

Part = tuple[np.ndarray, np.ndarray]  # images, labels


def read_mnist(request: Request) -> Arrays:
    """MNIST, in MNIST/raw, raw, or the data directory itself."""
    places = [request.data_dir / "MNIST" / "raw", request.data_dir / "raw", request.data_dir]
    folder = next((place for place in places if _matches(place, MNIST_PATTERN, "train", "images")), None)
    if folder is None:
        raise missing("mnist", "train-images-idx3-ubyte.gz", request.data_dir)
    way_out = fetch_again("mnist")
    train = _read_part(folder, MNIST_PATTERN, ("train",), 10, way_out)
    test = _read_part(folder, MNIST_PATTERN, ("t10k",), 10, way_out)
    return _joined(folder, train, test, tuple("0123456789"))


def read_idx_folder(request: Request) -> Arrays:
    """Any folder with names such as train-images-idx3-ubyte.gz; classes are 0 to the largest training label."""
    folder, way_out = request.folder(), "replace it by a whole copy"
    train = _read_part(folder, ANY_PATTERN, ("train",), 256, way_out)
    classes = tuple(str(label) for label in range(train[1].max() + 1))
    test = _read_part(folder, ANY_PATTERN, ("t10k", "test"), len(classes), way_out)
    return _joined(folder, train, test, classes)


def read_idx(path: Path, way_out: str) -> np.ndarray:
    """The uint8 array of one file."""
    with reading(path, way_out), _opened(path) as file:
        magic = file.read(4)
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != UINT8 or magic[3] == 0:
            raise InputError(f"{path} starts with {magic.hex()} and is not an idx file of bytes; {way_out}")
        shape = tuple(np.frombuffer(file.read(4 * magic[3]), ">u4").tolist())
        size = math.prod(shape)
        if size > MOST_BYTES:
            raise InputError(f"{path} claims {size / 1e9:.3g} GB, more than any such set has; {way_out}")
        values = file.read(size + 1)  # one more: too long is as wrong as too short
        if len(shape) != magic[3] or len(values) != size:
            raise InputError(
                f"{path} should hold {size} values of shape {shape} but holds {_amount(values, size)}; {way_out}"
            )
        return np.frombuffer(bytearray(values), np.uint8).reshape(shape)


def _amount(values: bytes, size: int) -> str:
    return "more" if len(values) > size else str(len(values))


def _opened(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        packed = file.read(2) == GZIP_MAGIC
    return gzip.open(path, "rb") if packed else path.open("rb")  # type: ignore[return-value]


def _read_part(folder: Path, pattern: str, prefixes: tuple[str, ...], num_classes: int, way_out: str) -> Part:
    image_path = _find(folder, pattern, prefixes, "images")
    label_path = _find(folder, pattern, prefixes, "labels")
    images, labels = read_idx(image_path, way_out), read_idx(label_path, way_out)
    if labels.ndim != 1:
        raise InputError(f"{label_path} has shape {labels.shape}, not one label per image; {way_out}")
    check_labels(label_path, labels, len(images), num_classes, way_out)
    return _with_channels(image_path, images, way_out), labels.astype(np.int64)


def _with_channels(path: Path, images: np.ndarray, way_out: str) -> np.ndarray:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return images
    if images.ndim == 4 and images.shape[3] in (1, 3):
        return images.transpose(0, 3, 1, 2)
    raise InputError(f"{path} has shape {images.shape}, not images of 1 or 3 channels; {way_out}")


def _joined(folder: Path, train: Part, test: Part, classes: tuple[str, ...]) -> Arrays:
    train_shape, test_shape = train[0].shape[1:], test[0].shape[1:]
    if train_shape != test_shape:
        raise InputError(
            f"{folder}: training images are {train_shape} but test images {test_shape}; put the files of one set there"
        )
    return Arrays(*train, *test, classes)


def _find(folder: Path, pattern: str, prefixes: tuple[str, ...], kind: str) -> Path:
    paths = [path for prefix in prefixes for path in _matches(folder, pattern, prefix, kind)]
    file_name = f"{prefixes[0]}-{kind}-idx{3 if kind == 'images' else 1}-ubyte.gz"
    if not paths:
        raise InputError(f"{folder} has no {file_name}; put it there, packed or not")
    if len({path.name.removesuffix(".gz") for path in paths}) > 1:
        raise InputError(f"{folder} has several files like {file_name}: {paths[0].name}, {paths[1].name}; keep one set")
    return paths[0]


def _matches(folder: Path, pattern: str, prefix: str, kind: str) -> list[Path]:
    """Files of that part, the plain one before the packed one."""
    return sorted(path for path in folder.glob(pattern.format(prefix=prefix, kind=kind)) if path.is_file())
