"""A data set of one's own: what its reader answers, checked and brought into the form that training takes.

Legend: n samples. Bytes [n, C, H, W] are images; all other numbers become float32 of the shape that they have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hsfl.data.readers.base import Arrays, Request
from hsfl.errors import InputError

WANTED = "give train_x, train_y, test_x, test_y and, if you like, the names of the classes"


@dataclass(frozen=True)
class OwnReader:
    """`read(request)` answers train_x, train_y, test_x, test_y and, if it likes, the names of the classes."""

    name: str
    read: Callable[[Request], Sequence[Any]]
    normalise: bool = False  # floats: each feature (or channel) to mean 0 and std 1 over the training samples

    def __call__(self, request: Request) -> Arrays:
        answer = self.read(request)
        if not isinstance(answer, Sequence) or len(answer) not in (4, 5):
            raise InputError(f"data set {self.name!r} gives {_short(answer)}; {WANTED}")
        x = [self._samples(side, part) for side, part in zip(("train_x", "test_x"), answer[0:4:2])]
        if x[0].dtype != x[1].dtype or x[0].shape[1:] != x[1].shape[1:]:
            first, second = (f"{part.dtype} {part.shape[1:]}" for part in x)
            raise InputError(f"data set {self.name!r}: train_x holds {first} but test_x {second}; make them alike")
        y = [self._labels(side, part) for side, part in zip(("train_y", "test_y"), answer[1:4:2])]
        for side, samples, labels in zip(("train", "test"), x, y):
            if len(samples) != len(labels):
                raise InputError(
                    f"data set {self.name!r}: {side}_x has {len(samples)} samples but {side}_y {len(labels)} labels; "
                    "give one label for each sample"
                )
        most = int(max(labels.max() for labels in y)) + 1
        classes = tuple(str(name) for name in (answer[4] if len(answer) == 5 else range(most)))
        if most > len(classes):
            raise InputError(f"data set {self.name!r} has label {most - 1} but {len(classes)} classes; name them all")
        return Arrays(x[0], y[0], x[1], y[1], classes)

    def _samples(self, side: str, value: Any) -> np.ndarray:
        x = _array(self.name, side, value)
        if x.ndim < 2 or x.size == 0:
            raise InputError(f"data set {self.name!r}: {side} has shape {x.shape}; give [samples, features] or more")
        if x.dtype == np.uint8 and x.ndim == 4:
            return x
        with np.errstate(over="ignore"):  # what float32 cannot hold is told below
            x = x.astype(np.float32)
        if not (fine := np.isfinite(x)).all():
            place = np.unravel_index(int(fine.argmin()), x.shape)
            raise InputError(
                f"data set {self.name!r}: {side}[{', '.join(map(str, place))}] is {x[place]}; leave the sample out or "
                "put a number there"
            )
        return x

    def _labels(self, side: str, value: Any) -> np.ndarray:
        y = _array(self.name, side, value)
        if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer) or (y.size and y.min() < 0):
            raise InputError(
                f"data set {self.name!r}: {side} is {_short(value)}; give whole numbers 0, 1, ... [samples]"
            )
        return y.astype(np.int64)


def _array(name: str, side: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.empty(0, object)
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool) or np.iscomplexobj(array):
        raise InputError(f"data set {name!r}: {side} is {_short(value)}, which is no array of numbers; convert it")
    return array


def _short(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + (f" of shape {tuple(shape)}" if shape is not None else "")


def feature_statistics(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of floats [n, F, ...] for each F, over everything else; a constant feature has std 1."""
    others = (0, *range(2, x.ndim))
    mean, std = x.mean(axis=others, dtype=np.float64), x.std(axis=others, dtype=np.float64)
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())
