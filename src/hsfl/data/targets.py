"""Targets that are no classes: labels of which a sample has any number, numbers, and tokens; everything checked.

Each function takes `what`, the words that an error names the array by. Legend: n samples, L labels or columns, T tokens.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hsfl.data.arrays import as_floats, as_numbers, short
from hsfl.errors import InputError

MOST_TOKENS = 2**24  # of a vocabulary


def label_targets(what: str, value: Any) -> np.ndarray:
    """Which labels each sample has: 0 or 1 as float32, [n, L]."""
    y = as_numbers(what, value)
    if y.ndim != 2 or y.size == 0:
        raise InputError(f"{what} has shape {y.shape}; give 0 or 1 for each label of each sample, [samples, labels]")
    if (wrong := (y != 0) & (y != 1)).any():
        place = np.unravel_index(int(wrong.argmax()), y.shape)
        raise InputError(f"{what}[{place[0]}, {place[1]}] is {y[place]}; a label is 0 or 1")
    return y.astype(np.float32)


def number_targets(what: str, value: Any) -> np.ndarray:
    """The numbers that a model shall give, as float32 [n, L]; one for each sample may come as [n]."""
    y = as_numbers(what, value)
    if y.ndim not in (1, 2) or y.size == 0:
        raise InputError(f"{what} has shape {y.shape}; give one number for each sample, or some: [samples, columns]")
    y = as_floats(what, y)
    return y[:, None] if y.ndim == 1 else y


def token_numbers(what: str, value: Any) -> np.ndarray:
    """Tokens as int64 [n, T]."""
    x = as_numbers(what, value)
    if x.dtype.kind not in "iu" or x.ndim != 2 or x.size == 0:
        raise InputError(
            f"{what} is {short(value)} of {x.dtype}; give whole numbers that name tokens, [samples, tokens]"
        )
    if (wrong := (x < 0) | (x >= MOST_TOKENS)).any():
        place = np.unravel_index(int(wrong.argmax()), x.shape)
        raise InputError(f"{what}[{place[0]}, {place[1]}] is {x[place]}; tokens are numbered 0 to {MOST_TOKENS - 1}")
    return x.astype(np.int64)


def named_columns(what: Sequence[str], y: Sequence[np.ndarray], names: Sequence[Any] | None) -> tuple[str, ...]:
    """The names of the labels or columns, numbers where none are given; training and test targets must be alike."""
    widths = [part.shape[1] for part in y]
    if len(set(widths)) > 1:
        raise InputError(f"{what[0]} has {widths[0]} columns but {what[1]} {widths[1]}; make them alike")
    if names is None:
        return tuple(map(str, range(widths[0])))
    if len(set(map(str, names))) != widths[0] or len(names) != widths[0]:
        raise InputError(f"classes has {len(names)} names but {what[0]} {widths[0]} columns; name each column once")
    return tuple(map(str, names))


def check_follows(what: Sequence[str], x: Sequence[np.ndarray], y: Sequence[np.ndarray]) -> None:
    """An error unless samples and targets have the same shape, so that every token has a token that follows it."""
    for side, tokens, following in zip(what, x, y):
        if tokens.shape != following.shape:
            raise InputError(f"{side} has shape {following.shape}; give the token that follows each of {tokens.shape}")
