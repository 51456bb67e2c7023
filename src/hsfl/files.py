"""Files that are there whole or not at all, and JSON."""

import json
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hsfl.errors import InputError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write (no room, no permission, a file where a folder should be) into an error of one line."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}); make room there or choose another place"
        ) from error


SCRATCH = ".hsfl-scratch-"  # the names of unfinished files begin like this


def write_atomic(path: Path, write: Callable[[Path], Any], durable: bool = False) -> None:
    """Let `write` fill a scratch file beside `path`, then put it in place in one move.

    A link is followed: the file that it points to is replaced, and the link stays. A device (such as /dev/stdout) is written
    to; a folder or a named pipe is refused. durable: the content is on the disk before it replaces the old file, so that
    after a power cut the old or the new file is there.
    """
    with writing(path):
        path = Path(os.path.realpath(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        if _kind(path) == "device":
            _write_through(path, write)
            return
        scratch = path.parent / f"{SCRATCH}{secrets.token_hex(6)}-{path.name}"[:250]
        try:
            os.close(os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # the mode that the umask leaves
            mode = scratch.stat().st_mode
            write(scratch)
            os.chmod(scratch, mode)  # libraries that write files of their own have their own idea of it
            if durable:
                _to_disk(scratch)
            os.replace(scratch, path)
            if durable:
                _to_disk(path.parent)
        finally:
            scratch.unlink(missing_ok=True)


def _kind(path: Path) -> str:
    """What is at the path: "file" (or nothing yet) or "device". Anything else is refused."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "file"
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISCHR(mode):
        return "device"
    raise InputError(
        f"{path} is {'a folder' if stat.S_ISDIR(mode) else 'no ordinary file'} and cannot be written; choose another place"
    )


def _write_through(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a scratch file elsewhere, and copy its content to the device."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "content"
        scratch.touch()
        write(scratch)
        with path.open("wb") as device:
            device.write(scratch.read_bytes())


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def clear_scratch(folder: Path) -> None:
    """Remove the unfinished files that a killed process left in this folder and in the folders below it."""
    for path in folder.rglob(f"{SCRATCH}*"):
        path.unlink(missing_ok=True)


def is_scratch(path: Path) -> bool:
    """Whether the file is an unfinished one."""
    return path.name.startswith(SCRATCH)


def write_json(path: Path, value: Any) -> None:
    """Write plain data as JSON; a NaN or an infinite number is an error."""
    write_atomic(path, lambda scratch: scratch.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n"))


def read_json(path: Path) -> Any:
    """The plain data of a JSON file of a run folder; a missing or damaged file is an error of one line."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} is missing; is {path.parent} the folder of a run?") from None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); the run folder is damaged, run again into a new one"
        ) from None
