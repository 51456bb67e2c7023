"""Files that are there whole or not at all, and JSON."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hsfl.errors import InputError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A place that cannot be written (no room, no right, a file where a folder should be) is wrong input."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}); make room there or choose another place"
        ) from error


def write_atomic(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a file beside `path`, then put it in place in one move."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        scratch = Path(name)
        try:
            write(scratch)
            os.chmod(scratch, 0o644)
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, lambda scratch: scratch.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n"))


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} is missing; is {path.parent} the folder of a run?") from None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); the run folder is damaged, run again into a new one"
        ) from None
