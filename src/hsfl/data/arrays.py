"""Arrays that people bring, from Python or from a file: checked, and brought into the form that training takes.

`checked_arrays` does all of it; the sections below it are its steps. An input may be an array, a tensor, a list or a column of a table.
Samples: floats are taken as they are; whole numbers with three or four axes are images in 0..255; other whole numbers become floats.
Targets, by the task: classes (whole numbers of any type, or names), labels of which a sample has any number, numbers, tokens, or a class for
each pixel.

A function's `array_name` is how an error message calls the array.

Legend: n samples, C channels, H height, W width, L labels or columns, T tokens.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hsfl.data.readers.reader_base import SPLIT_SEED, TEST_FRACTION, Arrays
from hsfl.errors import InputError
from hsfl.rng import stream
from hsfl.tasks import find_task

CHANNELS = (1, 3, 4)  # of images as people store them
MOST_SCALED = 2.0  # floats of pixels that were scaled to 0..1 are smaller, even where resizing overshoots
MOST_TOKENS = 2**24  # of a vocabulary; so are the classes of pixels


class Side(NamedTuple):
    """Samples and labels for training or for testing, and what the person who brings them calls them."""

    x_name: str
    x: Any
    y_name: str
    y: Any


def checked_arrays(
    where: str,
    train: Side,
    test: Side | None = None,
    *,
    test_fraction: float | None = None,
    classes: Sequence[Any] | None = None,
    clients: Any = None,
    normalise: bool = False,
    task: str | None = None,
    tokens: bool = False,
) -> Arrays:
    """The arrays, with everything checked; without `test`, a part of each class (and of each client's samples) is held out for testing.

    where: how errors begin. clients: for each training sample the name or number of the client that holds it; before the
    split, where there is one. task: what is learned, which decides what y is. tokens: whether x holds tokens.
    """
    row, sides = find_task(task), [train] if test is None else [train, test]
    tokens = tokens or row.targets == "tokens"
    if tokens and normalise:
        raise InputError(f"{where}{train.x_name} holds tokens, which have no mean; leave normalise out")
    x = [(_token_numbers if tokens else samples)(where + side.x_name, side.x) for side in sides]
    raw = [RAW[row.targets](where + side.y_name, side.y) for side in sides]
    _check_alike(where, sides, x, raw)
    called, of_classes = [where + side.y_name for side in sides], row.targets in ("classes", "pixels")
    y, names = _class_numbers(called, raw, classes) if of_classes else (raw, _named_columns(called, raw, classes))
    vocabulary = (
        1 + int(max(values.max() for values in (*x, *(y if row.targets == "tokens" else ())))) if tokens else None
    )
    holder, holders = (None, ()) if clients is None else client_numbers(f"{where}clients", clients, len(y[0]))
    if row.targets == "tokens":
        _check_follows(called, x, y)
        names = ()
    if len({values.shape[1:] for values in y}) > 1:
        first, second = (values.shape[1:] for values in y)
        raise InputError(f"{called[0]} holds targets of {first} but {called[1]} of {second}; make them alike")
    if len(x) == 2:
        return Arrays(x[0], y[0], x[1], y[1], names, normalise, holder, holders, row.name, vocabulary)
    strata = y[0] if row.targets == "classes" else np.zeros(len(y[0]), np.int64)
    held = held_out_samples(where, strata, holder, TEST_FRACTION if test_fraction is None else test_fraction)
    train_holder = None if holder is None else holder[~held]
    about = (names, normalise, train_holder, holders, row.name, vocabulary)
    return Arrays(x[0][~held], y[0][~held], x[0][held], y[0][held], *about)


def _check_alike(where: str, sides: Sequence[Side], x: Sequence[np.ndarray], raw: Sequence[np.ndarray]) -> None:
    """An error unless every sample has one label, and training and test samples have one type and shape."""
    for side, values, labels in zip(sides, x, raw):
        if len(values) != len(labels):
            raise InputError(
                f"{where}{side.x_name} has {len(values)} samples but {side.y_name} {len(labels)} labels; "
                "give one label for each sample"
            )
    if len(x) == 2 and (x[0].dtype, x[0].shape[1:]) != (x[1].dtype, x[1].shape[1:]):
        first, second = (f"{array.dtype} {array.shape[1:]}" for array in x)
        raise InputError(f"{where}{sides[0].x_name} holds {first} but {sides[1].x_name} {second}; make them alike")


# --- samples


def samples(array_name: str, value: Any) -> np.ndarray:
    """Images as uint8 [n, C, H, W], everything else as float32 [n, ...]."""
    x = _as_numbers(array_name, value)
    if x.ndim < 2 or x.size == 0:
        raise InputError(f"{array_name} has shape {x.shape}; give [samples, features] or more")
    if np.issubdtype(x.dtype, np.integer) and x.ndim in (3, 4):
        return _images(array_name, x)
    if x.ndim == 4 and x.shape[1] not in CHANNELS:
        height, width, last = x.shape[1:]  # or [n, features, steps, 1]: one channel is told of squares alone
        if last == 3 or (last == 1 and height == width):
            _check_channels(array_name, x)
    return _as_floats(array_name, x)


def _images(array_name: str, x: np.ndarray) -> np.ndarray:
    if (outside := (x < 0) | (x > 255)).any():
        place = np.unravel_index(int(outside.argmax()), x.shape)
        raise InputError(
            f"{array_name}[{', '.join(map(str, place))}] is {x[place]}, but whole numbers with {x.ndim} axes are images in 0..255; "
            "convert the array to float to have its numbers taken as they are"
        )
    if x.ndim == 4:
        _check_channels(array_name, x)
    return (x[:, None] if x.ndim == 3 else x).astype(np.uint8)


def _check_channels(array_name: str, x: np.ndarray) -> None:
    """Refuse images [n, H, W, C]."""
    if x.shape[3] in CHANNELS and min(x.shape[1:3]) > max(CHANNELS):
        raise InputError(
            f"{array_name} has shape {x.shape}, with the channels last; put them second: x.transpose(0, 3, 1, 2)"
        )


def pixel_note(name: str, x: np.ndarray, normalise: str) -> str | None:
    """A note where floats with the axes of images lie in 0..255 and not in 0..1. normalise: what scales them."""
    if x.dtype.kind != "f" or x.ndim < 3:
        return None
    low, high = float(x.min()), float(x.max())
    if low < 0 or not MOST_SCALED < high <= 255:
        return None
    return (
        f"{name} holds floats from {low:g} to {high:g}, which a model takes as they are; if they are pixels, give them as "
        f"whole numbers (uint8), which are normalised, divide them by 255, or set {normalise}"
    )


def _token_numbers(array_name: str, value: Any) -> np.ndarray:
    """Tokens as int64 [n, T]."""
    x = _as_numbers(array_name, value)
    if x.dtype.kind not in "iu" or x.ndim != 2 or x.size == 0:
        raise InputError(
            f"{array_name} is {_short_description(value)} of {x.dtype}; give whole numbers that name tokens, [samples, tokens]"
        )
    if (wrong := (x < 0) | (x >= MOST_TOKENS)).any():
        place = np.unravel_index(int(wrong.argmax()), x.shape)
        raise InputError(
            f"{array_name}[{place[0]}, {place[1]}] is {x[place]}; tokens are numbered 0 to {MOST_TOKENS - 1}"
        )
    return x.astype(np.int64)


def feature_statistics(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of floats [n, F, ...] for each F, over everything else; a constant feature has std 1."""
    other_axes = (0, *range(2, x.ndim))
    mean, std = x.mean(axis=other_axes, dtype=np.float64), x.std(axis=other_axes, dtype=np.float64)
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


# --- targets


def _raw_labels(array_name: str, value: Any) -> np.ndarray:
    """One whole number (int64) or one name (text) for each sample, [n]."""
    y = _as_array(array_name, value)
    if y.dtype.kind == "O" and y.size and all(isinstance(label, str) for label in y.ravel()):
        y = y.astype(str)
    if y.dtype.kind not in "biuU":
        way_out = ""
        if y.dtype.kind == "f" and _is_one_hot(y):
            way_out = ": y.argmax(axis=1), since they are one-hot"
        elif y.dtype.kind == "f":
            way_out = "; y.astype(int) makes whole numbers of them, or set the task to regression"
        raise InputError(
            f"{array_name} is {_short_description(value)} of {y.dtype}; give whole numbers 0, 1, ... or names [samples]{way_out}"
        )
    if y.ndim > 2:
        raise InputError(
            f"{array_name} has shape {y.shape}; give one label for each sample, [samples], or set the task to segmentation, where "
            "each pixel has a class"
        )
    if y.ndim != 1:
        way_out = (
            "y.ravel()"
            if y.ndim == 2 and y.shape[1] == 1
            else "y.argmax(axis=1) if they are one-hot, or set the task to multi_label or regression"
        )
        raise InputError(f"{array_name} has shape {y.shape}; give one label for each sample, [samples]: {way_out}")
    if y.size == 0:
        raise InputError(f"{array_name} is empty; give at least one sample")
    if y.dtype.kind == "U":
        return y
    if y.dtype.kind != "b" and (wrong := (y < 0) | (y > np.iinfo(np.int64).max)).any():
        raise InputError(f"{array_name} holds label {y[wrong.argmax()]}; give whole numbers 0, 1, ... or names")
    return y.astype(np.int64)


def _is_one_hot(y: np.ndarray) -> bool:
    """Whether every row has a single 1 and zeros besides."""
    return y.ndim == 2 and y.shape[1] > 1 and bool(((y == 0) | (y == 1)).all() and (y.sum(axis=1) == 1).all())


def _class_numbers(
    array_names: Sequence[str], raw: Sequence[np.ndarray], classes: Sequence[Any] | None
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """The labels of each side as indices into the classes, and the classes' names."""
    if len({labels.dtype.kind == "U" for labels in raw}) > 1:
        raise InputError(f"{array_names[0]} and {array_names[1]} hold names and whole numbers; use one kind for both")
    by_name = raw[0].dtype.kind == "U"
    train_labels = np.unique(raw[0])  # in training
    if len(train_labels) < 2:
        raise InputError(f"{array_names[0]} holds one class alone, {train_labels[0]}; a classifier needs two")
    if classes is None:
        for side, labels in zip(array_names[1:], raw[1:]):
            if len(new := np.setdiff1d(labels, train_labels)):
                raise InputError(
                    f"{side} holds label {new[0]}, which no training sample has; leave its samples out, or name all classes"
                )
        names = tuple(map(str, train_labels.tolist()))
        if not by_name and train_labels[-1] >= len(train_labels):
            gap = int((train_labels != np.arange(len(train_labels))).argmax())
            raise InputError(
                f"{array_names[0]} holds labels up to {train_labels[-1]} but none is {gap}; number the classes 0, 1, ... "
                "(np.unique(y, return_inverse=True)[1]), or name them all"
            )
    else:
        names = tuple(str(name) for name in classes)
        if len(names) < 2 or len(set(names)) < len(names):
            raise InputError(f"classes are {', '.join(names) or 'none'}; name two or more, each once")
        for side, labels in zip(array_names, raw):
            if by_name and len(new := np.setdiff1d(labels, names)):
                raise InputError(
                    f"{side} holds label {str(new[0])!r}, which is none of the classes; leave its samples out, or name it"
                )
            if not by_name and labels.max() >= len(names):
                raise InputError(f"{side} holds label {labels.max()} but there are {len(names)} classes; name them all")
    if not by_name:
        return list(raw), names
    place = {name: index for index, name in enumerate(names)}
    return [np.array([place[label] for label in labels.tolist()], np.int64) for labels in raw], names


def _label_targets(array_name: str, value: Any) -> np.ndarray:
    """Which labels each sample has: 0 or 1 as float32, [n, L]."""
    y = _as_numbers(array_name, value)
    if y.ndim != 2 or y.size == 0:
        raise InputError(
            f"{array_name} has shape {y.shape}; give 0 or 1 for each label of each sample, [samples, labels]"
        )
    if (wrong := (y != 0) & (y != 1)).any():
        place = np.unravel_index(int(wrong.argmax()), y.shape)
        raise InputError(f"{array_name}[{place[0]}, {place[1]}] is {y[place]}; a label is 0 or 1")
    return y.astype(np.float32)


def _number_targets(array_name: str, value: Any) -> np.ndarray:
    """The numbers that a model shall give, as float32 [n, L]; one for each sample may come as [n]."""
    y = _as_numbers(array_name, value)
    if y.ndim not in (1, 2) or y.size == 0:
        raise InputError(
            f"{array_name} has shape {y.shape}; give one number for each sample, or some: [samples, columns]"
        )
    y = _as_floats(array_name, y)
    return y[:, None] if y.ndim == 1 else y


def _pixel_classes(array_name: str, value: Any) -> np.ndarray:
    """A class for each pixel of a sample, [n, ...]: bytes, or int64 where there are more than 256 classes."""
    y = _as_numbers(array_name, value)
    if y.dtype.kind not in "biu" or y.ndim < 2 or y.size == 0:
        raise InputError(
            f"{array_name} is {_short_description(value)} of {y.dtype}; give a whole number for each pixel, [samples, height, width]: "
            "y.astype(int), or y.argmax(axis=1) if they are one-hot"
        )
    least, most = int(y.min()), int(y.max())
    if least < 0 or most >= MOST_TOKENS:
        raise InputError(
            f"{array_name} holds class {least if least < 0 else most}; number the classes 0, 1, ..., and give pixels that have none a "
            "class of their own"
        )
    return y.astype(np.uint8 if most < 256 else np.int64)


def _named_columns(array_names: Sequence[str], y: Sequence[np.ndarray], names: Sequence[Any] | None) -> tuple[str, ...]:
    """The names of the labels or columns, numbers where none are given; training and test targets must be alike."""
    widths = [targets.shape[1] for targets in y]
    if len(set(widths)) > 1:
        raise InputError(f"{array_names[0]} has {widths[0]} columns but {array_names[1]} {widths[1]}; make them alike")
    if names is None:
        return tuple(map(str, range(widths[0])))
    if len(set(map(str, names))) != widths[0] or len(names) != widths[0]:
        raise InputError(
            f"classes has {len(names)} names but {array_names[0]} {widths[0]} columns; name each column once"
        )
    return tuple(map(str, names))


def _check_follows(array_names: Sequence[str], x: Sequence[np.ndarray], y: Sequence[np.ndarray]) -> None:
    """An error unless samples and targets have the same shape, so that every token has a token that follows it."""
    for side, tokens, following in zip(array_names, x, y):
        if tokens.shape != following.shape:
            raise InputError(f"{side} has shape {following.shape}; give the token that follows each of {tokens.shape}")


RAW = {
    "classes": _raw_labels,
    "labels": _label_targets,
    "numbers": _number_targets,
    "tokens": _token_numbers,
    "pixels": _pixel_classes,
}  # by targets


# --- who holds a sample, and which samples are held out for testing


def client_numbers(array_name: str, value: Any, num_samples: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Which client holds each sample, as an index [n], and the clients' names.

    Clients are numbered in the order of their names: 0, 1, 2, ... for whole numbers, else as words are sorted.
    """
    ids = _as_array(array_name, value)
    if ids.dtype.kind == "O" and all(isinstance(name, str) for name in ids.ravel()):
        ids = ids.astype(str)
    if ids.dtype.kind not in "iuU" or ids.ndim != 1:
        raise InputError(
            f"{array_name} is {_short_description(value)} of {ids.dtype}; give one whole number or name for each sample"
        )
    if len(ids) != num_samples:
        raise InputError(f"{array_name} has {len(ids)} entries for {num_samples} samples; give one for each sample")
    if ids.dtype.kind == "U" and (empty := np.char.strip(ids) == "").any():
        raise InputError(f"{array_name}[{empty.argmax()}] is empty; name the client that holds the sample")
    names, index = np.unique(ids, return_inverse=True)
    client_names = [str(name) for name in names.tolist()]
    if all(word.isascii() and word.isdigit() for word in client_names):  # "10" comes after "9"
        order = sorted(range(len(client_names)), key=lambda place: (int(client_names[place]), client_names[place]))
        rank = np.empty(len(client_names), np.int64)
        rank[order] = np.arange(len(client_names))
        index, client_names = rank[index], [client_names[place] for place in order]
    return index.astype(np.int64), tuple(client_names)


def held_out_samples(where: str, labels: np.ndarray, clients: np.ndarray | None, fraction: float) -> np.ndarray:
    """Which samples are for testing, [n] bool: that part of each class and, within it, of each client's share; none where it is 0.

    The same in every run. A class of two samples or more is on both sides.
    """
    if not 0 <= fraction < 1:
        raise InputError(f"{where}test_fraction is {fraction}; give 0 or more and below 1, such as 0.2")
    rng, is_test = stream(SPLIT_SEED, "own split"), np.zeros(len(labels), bool)
    if fraction == 0:
        return is_test
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        if clients is not None:
            members = members[np.argsort(clients[members], kind="stable")]
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        is_test[members[_evenly(len(members), count, rng)]] = True
    if not is_test.any():
        raise InputError(
            f"{where}every class has one sample, so that none can be held out for testing; give test samples"
        )
    return is_test


def _evenly(length: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` places of a line of `length`, evenly spaced from a random start."""
    places = ((np.arange(count) + rng.random()) * length / max(count, 1)).astype(np.int64)
    return np.minimum(places, length - 1)


# --- whatever people bring, as NumPy has it


def _as_array(array_name: str, value: Any) -> np.ndarray:
    """NumPy's view of an array, a tensor on any device, a list, or a column of a table."""
    try:
        return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (ValueError, TypeError, RuntimeError):  # rows of different lengths, a type that NumPy does not have
        raise InputError(
            f"{array_name} is {_short_description(value)}, which is no array of numbers; convert it"
        ) from None


def _as_numbers(array_name: str, value: Any) -> np.ndarray:
    """An array of numbers or of truth values."""
    array = _as_array(array_name, value)
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool) or np.iscomplexobj(array):
        raise InputError(f"{array_name} is {_short_description(value)}, which is no array of numbers; convert it")
    return array


def _as_floats(array_name: str, x: np.ndarray) -> np.ndarray:
    """The numbers as float32; an error names the place of a number that is infinite or NaN."""
    with np.errstate(over="ignore"):  # what float32 cannot hold is told below
        x = x.astype(np.float32)
    if not (fine := np.isfinite(x)).all():
        place = np.unravel_index(int(fine.argmin()), x.shape)
        raise InputError(
            f"{array_name}[{', '.join(map(str, place))}] is {x[place]}; leave the sample out or put a number there"
        )
    return x


def _short_description(value: Any) -> str:
    """What a value is, with its shape where it has one."""
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + (f" of shape {tuple(shape)}" if shape is not None else "")
