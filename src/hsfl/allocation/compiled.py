"""`compiled`: numba's njit with its cache, which falls back to compiling in memory where no cache can be written."""

import os
from collections.abc import Callable
from typing import Any

# Our loops run over a handful of subchannels: vectorising them makes the code a third slower, and slower to compile.
os.environ.setdefault("NUMBA_OPT", "1")
os.environ.setdefault("NUMBA_LOOP_VECTORIZE", "0")

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
