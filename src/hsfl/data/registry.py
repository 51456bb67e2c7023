"""Data sets by name: `READERS` says which function reads which name, and `load_dataset` reads one into a `Dataset` of plain arrays.

Files lie under the data directory: the argument, else the variable HSFL_DATA, else a cache folder of the user, where `hsfl data
fetch` puts things. Mean and std are computed here for every set, over its whole training part before any limit: for MNIST and CIFAR-10
they are the published constants. `FACTS` holds what is known of the built-in sets without reading them. A plugin adds a data set with
`register_dataset`; what its function returns is checked.

Legend: n samples, C channels, H height, W width.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hsfl import plugins
from hsfl.config import DATA_KINDS
from hsfl.data.arrays import Side, checked_arrays, client_numbers, feature_statistics
from hsfl.data.readers import cifar10, csv_table, digits, ham10000, idx, image_folder, npz, text
from hsfl.data.readers.reader_base import Arrays, FileSettings, Request, resized_array
from hsfl.display import OnScreen, Screen
from hsfl.errors import InputError, known_name
from hsfl.formats import count
from hsfl.rng import stream
from hsfl.tasks import DEFAULT, find_task

if TYPE_CHECKING:
    from pydantic import BaseModel


class Facts(NamedTuple):
    """What is known of a whole data set without reading it."""

    num_train: int
    shape: tuple[int, ...]  # of a sample
    num_classes: int


FACTS = {
    "ham10000": Facts(8_009, (3, 64, 64), 7),  # as this package divides it by lesions, images of 64x64
    "cifar10": Facts(50_000, (3, 32, 32), 10),
    "mnist": Facts(60_000, (1, 28, 28), 10),
    "digits": Facts(1_438, (1, 32, 32), 10),
}


WANTED = "give train_x, train_y, test_x, test_y and, if you like, the names of the classes"


@dataclass(frozen=True)
class OwnReader:
    """A data set of a plugin: `read(request)` gives train_x, train_y, test_x, test_y and, optionally, the names of the classes."""

    name: str
    read: Callable[[Request], Sequence[Any]]
    normalise: bool = False  # floats: each feature (or channel) to mean 0 and std 1 over the training samples
    task: str = DEFAULT

    def __call__(self, request: Request) -> Arrays:
        answer = self.read(request)
        if not isinstance(answer, Sequence) or len(answer) not in (4, 5):
            raise InputError(f"data set {self.name!r} gives a {type(answer).__name__}; {WANTED}")
        train = Side("train_x", answer[0], "train_y", answer[1])
        test = Side("test_x", answer[2], "test_y", answer[3])
        classes = answer[4] if len(answer) == 5 else None
        return checked_arrays(
            f"data set {self.name!r}: ", train, test, classes=classes, normalise=self.normalise, task=self.task
        )


Reader = Callable[[Request], Arrays]

READERS: dict[str, Reader] = {
    "mnist": idx.read_mnist,
    "cifar10": cifar10.read_cifar10,
    "ham10000": ham10000.read_ham10000,
    "digits": digits.read_digits,
    "idx": idx.read_idx_folder,  # idx:PATH
    "folder": image_folder.read_image_folder,  # folder:PATH
    "npz": npz.read_npz,  # npz:PATH
    "csv": csv_table.read_csv,  # csv:PATH
    "text": text.read_text,  # text:PATH
    "pydoc": text.read_pydoc,
}
SPLITS = ("lesion", "image")


def register_dataset(
    name: str,
    read: Callable[[Request], Any],
    *,
    normalise: bool = False,
    options: "type[BaseModel] | None" = None,
    task: str = DEFAULT,
) -> None:
    """Add a data set of one's own. `read(request)` gives train_x, train_y, test_x, test_y and, optionally, class names.

    x is uint8 [n, C, H, W], images in 0..255, or floats of any shape [n, ...], with `normalise` brought to mean 0 and
    std 1 for each feature (or channel). y is 0, 1, ... [n], or what `task` (regression, ...) has for targets. `request.data_dir` is the data directory, `request.options` what
    stands under `options.<name>`, checked by the pydantic model given here.
    """
    if not callable(read):
        raise InputError(f"data set {name!r} is read by {read!r}; give a function of one argument, the request")
    plugins.check_call(f"data set {name!r}", read, "request")
    plugins.register_name("data set", READERS, name, OwnReader(name, read, normalise, task), options)


@dataclass(frozen=True, repr=False)
class Dataset(OnScreen):
    """Images in 0..255, numbers of any shape or tokens, and their targets: by default the index of a class."""

    name: str
    train_x: np.ndarray  # [n, C, H, W] uint8, [n, ...] float32, or tokens [n, T] int64
    train_y: np.ndarray  # [n] int64; labels, numbers [n, L] float32; tokens [n, T] int64; pixels [n, ...]
    test_x: np.ndarray
    test_y: np.ndarray
    classes: tuple[str, ...]  # names, or those of labels or columns; none of tokens
    mean: tuple[
        float, ...
    ]  # [C], of training pixels scaled to 0..1, or of features; empty: floats are taken as they are
    std: tuple[float, ...]  # [C]
    clients: np.ndarray | None = None  # [n] int64: which client holds each training sample, where the data say so
    client_names: tuple[str, ...] = ()  # by that number
    task: str = DEFAULT
    vocabulary: int | None = None  # of tokens; None where x holds none
    num_unlimited: int | None = None  # training samples before a limit; None where no limit left any out

    def __post_init__(self) -> None:
        for side, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            if len(x) != len(y) or (len(x) == 0 and side == "train"):
                raise InputError(
                    f"{self.name}: {side}_x has {len(x)} samples and {side}_y {len(y)} labels; give one label for each "
                    "sample, and one sample at least"
                )

    @property
    def targets(self) -> str:
        """What y holds: classes, labels, numbers, tokens or pixels."""
        return find_task(self.task).targets

    @property
    def num_classes(self) -> int:
        """How many numbers a model gives for a sample (or token, or pixel): one for each class, label or column, or for each token
        of the vocabulary."""
        return len(self.classes) if self.targets != "tokens" else self.vocabulary or 0

    def strata(self, side: str) -> np.ndarray:
        """The classes of the "train" or "test" samples, [n]; all alike where there are no classes."""
        y = self.train_y if side == "train" else self.test_y
        return y if self.targets == "classes" else np.zeros(len(y), np.int64)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W) of images, else the shape of a sample."""
        return self.train_x.shape[1:]

    def screen(self) -> Screen:
        """How many samples there are, of which kind, and how many of each class."""
        shape = "x".join(map(str, self.image_shape))
        sentence = f"{self.name}: {len(self.train_y):,} samples to train and {len(self.test_y):,} to test"
        sentences = [f"{sentence}, each {shape} of {self.train_x.dtype}, for {self.task}"]
        if self.clients is not None:
            sentences.append(f"the data say which of {count(len(self.client_names), 'client')} holds each sample")
        return Screen(sentences, ("class", "train", "test"), class_counts_of(self))


class ClassCount(NamedTuple):
    """A row of `hsfl data show`."""

    name: str
    num_train: int
    num_test: int


def load_dataset(
    name: str,
    data_dir: str | Path | None = None,
    limit: int | None = None,
    rng: np.random.Generator | None = None,
    image_size: int | None = None,
    split: str = "lesion",
    limit_test: int | None = None,
    options: Any = None,
    files: FileSettings | None = None,
) -> Dataset:
    """Read a data set: a name of READERS, `idx:PATH`, `folder:PATH`, `npz:PATH`, `csv:PATH` or `text:PATH`.

    `limit` and `limit_test` keep a random part, class by class in proportion, drawn from `rng`; which images are test
    images never depends on `rng`. `image_size` resizes to squares. `split` matters to HAM10000 only. `options` are
    for data sets of one's own; theirs by default where none are given. `files` says how files of one's own are read.
    """
    _check_options(limit, limit_test, image_size, split)
    kind, _, path = name.partition(":")
    reader = READERS[known_name("data set", kind, READERS, plugins.WAY_OUT)]
    if not isinstance(reader, OwnReader) and bool(path) != (kind in DATA_KINDS):
        raise InputError(
            f"data set '{name}' needs a path: write {kind}:PATH"
            if kind in DATA_KINDS
            else f"data set '{name}' takes no path; write {kind} and name the folder with --data-dir or HSFL_DATA"
        )
    options, files = plugins.default_options(kind) if options is None else options, files or FileSettings()
    files.check(kind)
    request = Request(find_data_dir(data_dir), path, image_size, split, options, files)
    arrays = reader(request)
    if arrays.clients is None and (ids := request.clients()) is not None:
        holder, names = client_numbers(f"data.client_file {files.client_file}", ids, len(arrays.train_y))
        arrays = arrays._replace(clients=holder, client_names=names)
    return limited_dataset(make_dataset(name, arrays, image_size), limit, limit_test, rng)


def make_dataset(name: str, arrays: Arrays, image_size: int | None = None) -> Dataset:
    """The whole data set, images in the wanted size, with its statistics."""
    if arrays.train_x.dtype != np.uint8 and image_size is not None:
        raise InputError(f"data.image_size is {image_size} but {name} holds numbers, not images; leave it out")
    if image_size is not None and find_task(arrays.task).targets == "pixels":
        raise InputError(
            f"data.image_size is {image_size} but {name} has a class for each pixel; resize images and targets yourself, and leave it out"
        )
    arrays = _finished(arrays, image_size)
    mean, std = _statistics(arrays)
    x_and_y = (arrays.train_x, arrays.train_y, arrays.test_x, arrays.test_y)
    holders = (arrays.clients, arrays.client_names)
    return Dataset(name, *x_and_y, arrays.classes, mean, std, *holders, arrays.task, arrays.vocabulary)


def limited_dataset(
    dataset: Dataset, limit: int | None, limit_test: int | None, rng: np.random.Generator | None = None
) -> Dataset:
    """A random part of the training and of the test samples, class by class in proportion; statistics stay the whole's."""
    train_rng, test_rng = (stream(0, "limit") if rng is None else rng).spawn(2)
    num_train = len(dataset.train_y)
    train = stratified_subset(dataset.strata("train"), limit, train_rng)
    test = stratified_subset(dataset.strata("test"), limit_test, test_rng)
    return replace(
        dataset,
        train_x=dataset.train_x[train],
        train_y=dataset.train_y[train],
        test_x=dataset.test_x[test],
        test_y=dataset.test_y[test],
        clients=None if dataset.clients is None else dataset.clients[train],
        num_unlimited=num_train if limit is not None and limit < num_train else dataset.num_unlimited,
    )


def find_data_dir(data_dir: str | Path | None = None) -> Path:
    """The argument, else HSFL_DATA, else the user's cache folder."""
    chosen = data_dir or os.environ.get("HSFL_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import pooch  # here, because it costs a tenth of a second

    return Path(pooch.os_cache("hsfl"))


def class_counts_of(dataset: Dataset) -> list[ClassCount]:
    """How many samples (or pixels) each class has, in the order of the labels, or how many samples have each label; other targets have
    one row for all."""
    if dataset.targets == "labels":
        had = zip(dataset.classes, dataset.train_y.sum(axis=0), dataset.test_y.sum(axis=0))
        return [ClassCount(name, int(train), int(test)) for name, train, test in had]
    if dataset.targets not in ("classes", "pixels"):
        return [ClassCount(f"samples for {dataset.task}", len(dataset.train_y), len(dataset.test_y))]
    if dataset.targets == "pixels":
        pixels = [_pixels_of_classes(y, dataset.num_classes) for y in (dataset.train_y, dataset.test_y)]
        return [ClassCount(f"pixels of {name}", *counts) for name, *counts in zip(dataset.classes, *pixels)]
    train = np.bincount(dataset.train_y, minlength=dataset.num_classes)
    test = np.bincount(dataset.test_y, minlength=dataset.num_classes)
    return [ClassCount(*row) for row in zip(dataset.classes, train.tolist(), test.tolist())]


def _pixels_of_classes(y: np.ndarray, num_classes: int) -> list[int]:
    """How many pixels of y [n, ...] each class has; one sample at a time, so that no wide copy of all pixels is made."""
    counts = np.zeros(num_classes, np.int64)
    for sample in y:
        counts += np.bincount(sample.ravel(), minlength=num_classes)
    return [int(number) for number in counts]


def samples_of_clients(dataset: Dataset) -> dict[str, int] | None:
    """Training samples by the client that holds them; None where the data do not say."""
    if dataset.clients is None:
        return None
    counts = np.bincount(dataset.clients, minlength=len(dataset.client_names))
    return dict(zip(dataset.client_names, counts.tolist()))


def _statistics(arrays: Arrays) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std that samples are normalised by; none for floats that are taken as they are."""
    if arrays.train_x.dtype == np.uint8:
        return channel_statistics(arrays.train_x)
    return feature_statistics(arrays.train_x) if arrays.normalise else ((), ())


def channel_statistics(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of each channel, pixels scaled to 0..1; sums of integers, so exact in any order."""
    total = np.zeros(x.shape[1], np.int64)
    squares = np.zeros(x.shape[1], np.int64)
    for start in range(0, len(x), 1024):  # in pieces, so that no wide copy of the whole set is made
        chunk = x[start : start + 1024].astype(np.uint16)
        total += chunk.sum(axis=(0, 2, 3), dtype=np.int64)
        squares += (chunk * chunk).sum(axis=(0, 2, 3), dtype=np.int64)  # 255 squared fits in 16 bits
    num_pixels = x.size // x.shape[1]
    mean = total / num_pixels
    std = np.sqrt(np.maximum(squares / num_pixels - mean**2, 0.0))
    std = np.maximum(std, 1.0)  # a constant channel must not divide by zero
    return tuple((mean / 255).tolist()), tuple((std / 255).tolist())


def stratified_subset(labels: np.ndarray, limit: int | None, rng: np.random.Generator) -> np.ndarray | slice:
    """Sorted indices of at most `limit` samples, each class in proportion to its size."""
    if limit is None or limit >= len(labels):
        return slice(None)
    order = rng.permutation(len(labels))
    quantile = np.empty(len(labels))  # where a sample stands within its class, 0..1
    for label in np.unique(labels):
        members = order[labels[order] == label]
        quantile[members] = (np.arange(len(members)) + 0.5) / len(members)
    return np.sort(order[np.argsort(quantile[order], kind="stable")[:limit]])


def _finished(arrays: Arrays, image_size: int | None) -> Arrays:
    """Images of the wanted size, in memory that torch takes without a copy or a warning."""
    train_x, test_x = arrays.train_x, arrays.test_x
    if image_size is not None:
        train_x, test_x = resized_array(train_x, image_size), resized_array(test_x, image_size)
    y_type: type = np.float32 if arrays.train_y.dtype.kind == "f" else np.int64
    if find_task(arrays.task).targets == "pixels" and len(arrays.classes) <= 256:
        y_type = np.uint8  # an eighth of the memory; a batch at a time becomes int64
    return arrays._replace(
        train_x=np.require(train_x, train_x.dtype, ["C", "W"]),
        test_x=np.require(test_x, test_x.dtype, ["C", "W"]),
        train_y=np.require(arrays.train_y, y_type, ["C", "W"]),
        test_y=np.require(arrays.test_y, y_type, ["C", "W"]),
    )


def _check_options(limit: int | None, limit_test: int | None, image_size: int | None, split: str) -> None:
    for option, value in (("limit", limit), ("limit_test", limit_test), ("image_size", image_size)):
        if value is not None and value < 1:
            raise InputError(f"data.{option} is {value} but must be at least 1; leave it out to use what there is")
    if split not in SPLITS:
        raise InputError(f"data.split is '{split}'; choose 'lesion' (no lesion on both sides) or 'image' (leaks)")
