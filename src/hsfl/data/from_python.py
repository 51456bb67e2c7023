"""`hsfl.dataset`: a data set from arrays in memory or a `torch.utils.data.Dataset`, and what a config may still change about it."""

import hashlib
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hsfl.data.arrays import Side, checked_arrays, pixel_note
from hsfl.data.readers.reader_base import Arrays
from hsfl.data.registry import Dataset, limited_dataset, make_dataset
from hsfl.errors import InputError
from hsfl.tasks import DEFAULT


def dataset(
    x: Any,
    y: Any = None,
    test_x: Any = None,
    test_y: Any = None,
    *,
    test_fraction: float | None = None,
    clients: Any = None,
    classes: Sequence[str] | None = None,
    normalise: bool = False,
    task: str = DEFAULT,
    tokens: bool = False,
    name: str = "own",
) -> Dataset:
    """A data set of one's own from NumPy arrays, tensors, lists or a torch data set, everything checked; for `hsfl.run(..., data=...)`.

    x: floats of any shape [n, ...], taken as they are, or whole numbers in 0..255, images [n, C, H, W] or grey [n, H, W]. Or a
        `torch.utils.data.Dataset` of pairs (x, y), without y; every sample is read once, after its transform. So may test_x be.
    y: one label for each sample, 0, 1, ... of any whole type, or names; of another task 0 and 1 for each label (`multi_label`, [n, L]),
        numbers (`regression`, [n] or [n, D]), the token that follows each token (`next_token`, [n, T]), or the class of each pixel
        (`segmentation`, whole numbers [n, H, W], or of any other shape that the model gives).
    test_x, test_y: the samples to test on; without them `test_fraction` of each class (0.2) is held out, always the same; of 0 none, for a
        device that only trains.
    clients: who holds each sample of x, a number or a name; used by `data.partition = "given"`.
    classes: names, by label; needed where a class has no training sample.
    normalise: each feature (or channel) of floats to mean 0 and std 1 over the training samples; images always are.
    task: what is learned. tokens: x holds whole numbers that name tokens, [n, T], as x of `next_token` always does.
    """
    if is_torch_dataset(x):
        classes = classes if classes is not None or task != DEFAULT else getattr(x, "classes", None)
        x, y = _samples_of("x", x, "y", y)
    if is_torch_dataset(test_x):
        test_x, test_y = _samples_of("test_x", test_x, "test_y", test_y)
    if y is None:
        raise InputError("y is missing; give one label for each sample, or a torch data set of pairs (x, y) as x")
    if (test_x is None) != (test_y is None):
        raise InputError(f"test_{'y' if test_y is None else 'x'} is missing; give test_x and test_y, or neither")
    if test_x is not None and test_fraction:
        raise InputError(f"test_fraction is {test_fraction} beside test_x; leave one of them out")
    test = None if test_x is None else Side("test_x", test_x, "test_y", test_y)
    arrays = checked_arrays(
        "",
        Side("x", x, "y", y),
        test,
        test_fraction=test_fraction,
        classes=classes,
        clients=clients,
        normalise=normalise,
        task=task,
        tokens=tokens,
    )
    note = None if normalise else pixel_note("x", arrays.train_x, "normalise=True")
    if note is not None:
        warnings.warn(note, stacklevel=3)  # of the caller: `import hsfl` wraps this function
    return make_dataset(name, arrays)


def is_torch_dataset(value: Any) -> bool:
    """Whether the value is a `torch.utils.data.Dataset`; if torch is not imported, there is none."""
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and isinstance(value, torch_data.Dataset)


def _samples_of(x_name: str, pairs: Any, y_name: str, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """The samples and targets of a torch data set as arrays. x_name, y_name: how errors call them. y: must be None."""
    if y is not None:
        raise InputError(f"{y_name} is given beside a torch data set, which has targets of its own; leave it out")
    xs: list[np.ndarray] = []
    ys: list[np.ndarray] = []
    by_place = hasattr(pairs, "__len__") and not hasattr(pairs, "__iter__")
    items: Iterable[Any] = map(pairs.__getitem__, range(len(pairs))) if by_place else pairs
    for number, item in enumerate(items):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise InputError(f"{x_name}[{number}] is a {type(item).__name__}; a torch data set must give pairs (x, y)")
        xs.append(_pixels(item[0]))
        ys.append(np.asarray(item[1]))
        for name, arrays in ((x_name, xs), (y_name, ys)):
            if arrays[-1].shape != arrays[0].shape:
                raise InputError(
                    f"{name}[{number}] has shape {arrays[-1].shape} but the first {arrays[0].shape}; make samples alike, by "
                    "a transform that resizes or pads them"
                )
    if not xs:
        raise InputError(f"{x_name} is empty; give at least one sample")
    return np.stack(xs), np.stack(ys)


def _pixels(sample: Any) -> np.ndarray:
    """A sample as an array; the channels of a Pillow image come first."""
    array = np.asarray(sample.detach().cpu() if hasattr(sample, "detach") else sample)
    return array.transpose(2, 0, 1) if hasattr(sample, "getbands") and array.ndim == 3 else array


def fit_dataset(
    data: Dataset, image_size: int | None, limit: int | None, limit_test: int | None, rng: np.random.Generator
) -> Dataset:
    """A given data set after the settings that apply to any: the size of images, and limits."""
    if image_size is not None:
        x_and_y = (data.train_x, data.train_y, data.test_x, data.test_y)
        arrays = Arrays(*x_and_y, data.classes, bool(data.mean), data.clients, data.client_names, data.task)
        data = make_dataset(data.name, arrays, image_size)
    return limited_dataset(data, limit, limit_test, rng)


def dataset_digest(data: Dataset) -> str:
    """SHA-256 of all that a data set holds."""
    total = hashlib.sha256(repr((data.classes, data.mean, data.std, data.client_names)).encode())
    if data.task != DEFAULT or data.vocabulary is not None:
        total.update(repr((data.task, data.vocabulary)).encode())
    for array in (data.train_x, data.train_y, data.test_x, data.test_y, data.clients):
        if array is not None:
            total.update(f"{array.dtype} {array.shape}".encode())
            total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()
