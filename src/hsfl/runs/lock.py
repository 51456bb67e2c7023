"""One process at a time writes to a folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hsfl.errors import InputError
from hsfl.files import writing

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"  # the file's name


@contextmanager
def lock(
    path: Path, busy: str = "another run is writing to {folder}; wait for it, or choose another --out"
) -> Iterator[None]:
    """Hold the lock of the file `path` and remove the file at the end; the lock goes with the process that holds it.

    The file's content stays as it is, since the file may be a link to something else. A lock file that another process has
    removed between our opening and locking it counts for nothing. busy: what to say where another process holds the lock.
    """
    if fcntl is None:  # not on Windows
        yield
        return
    while True:
        with writing(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(busy.format(folder=path.parent)) from None
            if not _is_at(handle, path):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)  # still locked: whoever opened the file meanwhile finds that it is gone
            return
        finally:
            os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    """Whether the open file is the one at this path."""
    try:
        here = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    mine = os.fstat(handle)
    return (here.st_dev, here.st_ino) == (mine.st_dev, mine.st_ino)
