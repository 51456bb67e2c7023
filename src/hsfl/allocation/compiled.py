"""`compiled`: numba's njit with its cache, which falls back to compiling in memory where no cache can be written."""

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
    """Compile in nopython mode. `error_model="numpy"`: x/0 is inf, as in the equations, and not an exception."""
    if function is None:
        return lambda inner: compiled(inner, **options)
    options = {"error_model": "numpy", "nogil": True, **options}
    try:
        return numba.njit(function, cache=True, **options)
    except RuntimeError:  # no directory of numba's list is writable
        return numba.njit(function, **options)
