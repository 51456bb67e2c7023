"""What readers share: the `Request` that a reader gets, the `Arrays` that it gives, errors for damaged or missing files, test samples that are
held out, and images, which Pillow turns from files or bytes into arrays [C, H, W].
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from hsfl.errors import DataMissing, InputError
from hsfl.rng import stream
from hsfl.tasks import DEFAULT, find_task

TEST_FRACTION = 0.2
SPLIT_SEED = 0  # fixed: the test images of a set are the same in every run


@dataclass(frozen=True)
class FileSettings:
    """What a config says of files of one's own; the fields are those of `data` with the same names."""

    target_column: str | tuple[str, ...] | None = None
    feature_columns: tuple[str, ...] | None = None
    client_column: str | None = None
    client_file: str | None = None
    test_file: str | None = None
    test_fraction: float | None = None
    normalise: bool = False
    block: int | None = None
    tokenizer: str | None = None
    text_split: str | None = None
    task: str | None = None  # train.task

    @property
    def targets(self) -> str:
        """What the targets are: classes, labels, numbers, tokens or pixels."""
        return find_task(self.task).targets

    def check(self, kind: str) -> None:
        """A setting that this kind of data set does not look at is an error."""
        for field, kinds in FILE_FIELDS.items():
            value = getattr(self, field)
            if value is not None and value is not False and kind not in kinds:
                alone = " and ".join(name if name == "pydoc" else f"{name}:PATH" for name in kinds)
                raise InputError(f"data.{field} is {value!r} but the data are {kind}; it is for {alone}, leave it out")


FILE_FIELDS = {  # which data sets look at a setting; any of them has a client_file
    "target_column": ("csv",),
    "feature_columns": ("csv",),
    "client_column": ("csv",),
    "test_file": ("csv",),
    "test_fraction": ("csv", "npz", "text", "pydoc"),
    "block": ("text", "pydoc"),
    "tokenizer": ("text", "pydoc"),
    "text_split": ("text", "pydoc"),
    "normalise": ("csv", "npz"),
}


@dataclass(frozen=True)
class Request:
    """What `load_dataset` asks of a reader."""

    data_dir: Path
    path: str = ""  # of idx:PATH, folder:PATH, npz:PATH, csv:PATH and text:PATH
    image_size: int | None = None
    split: str = "lesion"
    options: Any = None  # of a data set of one's own: what stands under options.<name>
    files: FileSettings = FileSettings()

    def folder(self) -> Path:
        """Where PATH is: as given, or within the data directory."""
        as_typed = Path(self.path).expanduser()
        folder = as_typed if as_typed.is_dir() else self.data_dir / as_typed
        if not folder.is_dir():
            raise InputError(f"{as_typed} is not a folder, neither here nor in {self.data_dir}; give the path of one")
        return folder

    def file(self, path: str) -> Path:
        """Where a file is: as given, or within the data directory."""
        return _find_file(path, self.data_dir)

    def clients(self) -> list[str] | None:
        """The lines of `data.client_file`, each the client of one sample."""
        if self.files.client_file is None:
            return None
        path = self.file(self.files.client_file)
        with reading(path, "write a line for each sample, the name or number of the client that holds it"):
            return [client.strip() for client in path.read_text("utf-8-sig").splitlines()]


def _find_file(path: str, data_dir: Path) -> Path:
    """The file at a path, as given or within the data directory; an error where there is none."""
    as_typed = Path(path).expanduser()
    file = as_typed if as_typed.is_file() else data_dir / as_typed
    if not file.is_file():
        raise InputError(f"{as_typed} is no file, neither here nor in {data_dir}; give the path of one")
    return file


class Arrays(NamedTuple):
    """What a reader gives. x is uint8 [n, C, H, W] (or, of one's own, floats [n, ...]); y is an index into classes [n]."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    classes: tuple[str, ...]
    normalise: bool = False  # floats: each feature (or channel) to mean 0 and std 1 over the training samples
    clients: np.ndarray | None = None  # [n] which client holds each training sample, where the data say so
    client_names: tuple[str, ...] = ()
    task: str = DEFAULT  # which decides what y is: an index [n], labels or numbers as floats [n, L], tokens [n, T], pixels [n, ...]
    vocabulary: int | None = None  # of tokens, which x holds as int64 [n, T]; None where x holds none


@contextmanager
def reading(path: Path, way_out: str) -> Iterator[None]:
    """Turn whatever foreign bytes can cause (gzip, zip, pickle and JPEG each raise errors of their own) into one InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        kind = "" if type(error) is Exception else f"{type(error).__name__}: "
        detail = " ".join(str(error).split())[:120]
        raise InputError(f"{path} cannot be read ({kind}{detail}); {way_out}") from error


def missing(name: str, file: str, data_dir: Path) -> DataMissing:
    """The error for a set that is not there."""
    return DataMissing(
        f"{name}: no {file} in {data_dir}; run `hsfl data fetch {name}`, "
        "or name the folder that has it with --data-dir or HSFL_DATA"
    )


def fetch_again(name: str) -> str:
    """The way out of a broken file that can be downloaded."""
    return f"delete it and run `hsfl data fetch {name}`"


def check_labels(path: Path, labels: np.ndarray, num_images: int, num_classes: int, way_out: str) -> None:
    """As many labels as images, at least one, each the index of a class."""
    if len(labels) != num_images or num_images == 0:
        raise InputError(f"{path} has {len(labels)} labels for {num_images} images; {way_out}")
    if labels.min() < 0 or labels.max() >= num_classes:
        worst = labels.max() if labels.max() >= num_classes else labels.min()
        raise InputError(f"{path} has label {worst} but labels are 0..{num_classes - 1}; {way_out}")


def held_out_groups(labels: np.ndarray, groups: np.ndarray, name: str) -> np.ndarray:
    """Which samples are for testing, [n] bool: whole groups, about a fifth of each class, the same in every run.

    A group (a lesion) belongs to the class of its first image. Every class of two groups or more is on both sides.
    """
    rng = stream(SPLIT_SEED, "split", name)
    _, first, group, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    is_test = np.zeros(len(sizes), bool)  # per group
    for label in np.unique(labels[first]):
        members = rng.permutation(np.flatnonzero(labels[first] == label))
        taken = np.cumsum(sizes[members])
        num_groups = 1 + int(np.abs(taken - TEST_FRACTION * taken[-1]).argmin())
        is_test[members[: min(num_groups, len(members) - 1)]] = True
    return is_test[group]


def divided(x: np.ndarray, y: np.ndarray, is_test: np.ndarray, classes: tuple[str, ...]) -> Arrays:
    """The two sides of a split."""
    return Arrays(x[~is_test], y[~is_test], x[is_test], y[is_test], classes)


# --- images

MAX_BYTES = 16 * 2**30
Size = tuple[int, int]  # width, height, as Pillow has it


def decode_image(source: Path | bytes, mode: str, size: Size | None) -> np.ndarray:
    """One image as uint8 [C, H, W]; mode is "L" or "RGB", and a size of None keeps the image's own."""
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
        if size is not None and image.size != size:
            image.draft(mode, (2 * size[0], 2 * size[1]))  # a large JPEG is decoded at a fraction of its size
        pixels = image.convert(mode)
    if size is not None and pixels.size != size:
        pixels = pixels.resize(size, Image.Resampling.BICUBIC)
    array = np.asarray(pixels)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def empty_images(num_images: int, mode: str, size: Size, source: str | Path) -> np.ndarray:
    """Room for that many images, or an error when it would not fit into any sensible memory."""
    shape = (num_images, len(mode), size[1], size[0])  # len("L") is 1, len("RGB") is 3
    num_bytes = int(np.prod(shape, dtype=np.int64))
    if num_bytes > MAX_BYTES:
        raise InputError(
            f"{source}: {num_images} images of {size[0]}x{size[1]} take {num_bytes / 1e9:.0f} GB; "
            "set data.image_size to something smaller"
        )
    return np.empty(shape, np.uint8)


def resized_array(x: np.ndarray, image_size: int) -> np.ndarray:
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
