"""What people bring as NumPy arrays: arrays, tensors, lists, columns of a table."""

from typing import Any

import numpy as np

from hsfl.errors import InputError


def as_numbers(what: str, value: Any) -> np.ndarray:
    """An array of numbers or of truth values."""
    array = as_array(what, value)
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool) or np.iscomplexobj(array):
        raise InputError(f"{what} is {short(value)}, which is no array of numbers; convert it")
    return array


def as_array(what: str, value: Any) -> np.ndarray:
    """NumPy's view of an array, a tensor on any device, a list, or a column of a table."""
    try:
        return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (ValueError, TypeError, RuntimeError):  # rows of different lengths, a type that NumPy does not have
        raise InputError(f"{what} is {short(value)}, which is no array of numbers; convert it") from None


def short(value: Any) -> str:
    """What a value is, with its shape where it has one."""
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + (f" of shape {tuple(shape)}" if shape is not None else "")


def as_floats(what: str, x: np.ndarray) -> np.ndarray:
    """The numbers as float32; an error names the place of a number that is infinite or NaN."""
    with np.errstate(over="ignore"):  # what float32 cannot hold is told below
        x = x.astype(np.float32)
    if not (fine := np.isfinite(x)).all():
        place = np.unravel_index(int(fine.argmin()), x.shape)
        raise InputError(
            f"{what}[{', '.join(map(str, place))}] is {x[place]}; leave the sample out or put a number there"
        )
    return x
