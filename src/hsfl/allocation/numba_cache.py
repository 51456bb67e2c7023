"""`compiled`: numba's njit with a cache that knows all our sources, or without a cache where nothing can be written.

numba's own cache looks only at the file of a function: a cached caller would keep the old code of a callee whose file
has changed. So the cache lives in a directory whose name is a hash of the sources in this package. numba also ends with a
traceback where a file of its cache is damaged, or is killed by a signal: damaged machine code is loaded and run, and no exception
can be caught. So every file ends with a checksum, and a function whose file does not fit its checksum is compiled anew.
"""

import hashlib
import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

# Our loops run over a handful of subchannels: vectorising them makes the code a third slower, and slower to compile.
os.environ.setdefault("NUMBA_OPT", "1")
os.environ.setdefault("NUMBA_LOOP_VECTORIZE", "0")

import numba
from numba.core.caching import IndexDataCacheFile

_CONFIG: Any = numba.config
_HERE = Path(__file__).parent
Function = TypeVar("Function", bound=Callable[..., Any])


@cache
def cache_dir() -> str:
    """Where compiled code is kept: in NUMBA_CACHE_DIR, beside the source, or in the user's cache; empty where nothing can be written."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(_HERE.rglob("*.py")):
        content = source.read_bytes()
        if b"compiled" in content:  # other sources may change without a new compilation
            digest.update(source.relative_to(_HERE).as_posix().encode() + content)
    name = f"numba-{digest.hexdigest()[:16]}"
    user = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "hsfl"
    places = [Path(_CONFIG.CACHE_DIR)] if _CONFIG.CACHE_DIR else [_HERE / "__pycache__", user]
    for parent in places:
        path = parent / name
        try:
            if not path.is_dir():
                path.mkdir(parents=True)
                for other in set(parent.glob("numba-*")) - {path}:
                    shutil.rmtree(other, ignore_errors=True)
        except OSError:
            continue
        if os.access(path, os.W_OK):
            return str(path)
    return ""


def is_cold() -> bool:
    """Whether nothing is compiled yet for these sources, so that the first solve takes about a minute longer."""
    return not any(Path(cache_dir()).rglob("*.nbi")) if cache_dir() else True


class _CheckedFiles(IndexDataCacheFile):
    """The cache files of a function. Unpickling ignores what follows, so a checksum can stand at the end."""

    def _dump(self, obj: Any) -> bytes:
        content: bytes = super()._dump(obj)
        return content + _checksum(content)

    def _load_index(self) -> dict[Any, str]:
        return super()._load_index() if self._whole(self._index_path, pickle.dumps(self._version, -1)) else {}

    def _load_data(self, name: str) -> Any:
        if not self._whole(self._data_path(name)):
            raise OSError(f"{name} is damaged")  # numba compiles anew
        return super()._load_data(name)

    def _whole(self, path: str, start: bytes = b"") -> bool:
        try:
            content = Path(path).read_bytes()
        except OSError:
            return False
        return content.startswith(start) and content[-_SIZE:] == _checksum(content[len(start) : -_SIZE])

    def save(self, key: Any, data: Any) -> None:
        """A full disk costs the next start a compilation, and nothing else."""
        with suppress(OSError):
            super().save(key, data)


_SIZE = 16


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SIZE).digest()


def _checked_cache(function: Any) -> Any:
    """The compiled function, whose cache files are checked."""
    files = function._cache._cache_file
    base = files._index_name.removesuffix(".nbi")
    function._cache._cache_file = _CheckedFiles(files._cache_path, base, files._source_stamp)
    return function


def compiled(function: Function) -> Function:
    """Compile a function in nopython mode; its signature stays, for readers and for mypy.

    error_model="numpy" means that x / 0 is infinite, as in the equations, and no exception.
    """
    directory, before = cache_dir(), _CONFIG.CACHE_DIR
    _CONFIG.CACHE_DIR = directory
    try:
        jitted = numba.njit(function, cache=bool(directory), error_model="numpy", nogil=True)
        return cast(Function, _checked_cache(jitted) if directory else jitted)
    except RuntimeError:  # numba found no place to write after all
        return cast(Function, numba.njit(function, error_model="numpy", nogil=True))
    finally:
        _CONFIG.CACHE_DIR = before
