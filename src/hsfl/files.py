"""Files: written whole or not at all, JSON and CSV, and records that are checked where they are read."""

import csv
import errno
import json
import os
import reprlib
import secrets
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from hsfl.errors import InputError, explain_field, first_problem


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write (no room, no permission, a file where a folder should be) into an error of one line."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}); make room there or choose another place"
        ) from error


PATIENCE_S = (
    10.0  # for a descriptor; a server that is flooded with connections closes those that are too many within a second
)
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
Answer = TypeVar("Answer")


def patiently(work: Callable[[], Answer]) -> Answer:
    """Do work that opens files and may be done again from its start. Where there is no descriptor left for it, it is tried again for PATIENCE_S."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return work()
        except Exception as error:
            numbers = [f"(os error {number})" for number in NO_DESCRIPTORS]  # so does a library in Rust tell of it
            is_passing = getattr(error, "errno", None) in NO_DESCRIPTORS or any(text in str(error) for text in numbers)
            if not is_passing or time.monotonic() > until_s:
                raise
        time.sleep(0.1)


SCRATCH = ".hsfl-scratch-"  # the names of unfinished files, and of folders that hold them, begin like this


def write_atomic(
    path: Path,
    write: Callable[[Path], Any],
    durable: bool = False,
    mode: int = 0o666,
    once_written: Callable[[], None] | None = None,
) -> None:
    """Let `write` fill a scratch file beside `path`, then put it in place in one move.

    A link is followed: the file that it points to is replaced, and the link stays. A device (such as /dev/stdout) is written
    to; a folder or a named pipe is refused. durable: the content is on the disk before it replaces the old file, so that
    after a power cut the old or the new file is there. mode: who may read the file, less what the umask takes away. once_written: called
    when the content is written, and with `durable` on the disk, before it takes its place.
    """
    with writing(path):
        path = Path(os.path.realpath(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        if _kind(path) == "device":
            _write_through(path, write)
            return
        scratch = path.parent / f"{SCRATCH}{secrets.token_hex(6)}-{path.name}"[:250]
        try:
            patiently(lambda: os.close(os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)))
            allowed = scratch.stat().st_mode  # what the umask leaves
            patiently(lambda: write(scratch))
            os.chmod(scratch, allowed)  # libraries that write files of their own have their own idea of it
            if durable:
                patiently(lambda: _to_disk(scratch))
            if once_written is not None:
                once_written()
            os.replace(scratch, path)
            if durable:
                patiently(lambda: _to_disk(path.parent))
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
    """Remove the unfinished files that a killed process left in this folder. Other folders below it may be other processes'."""
    for path in folder.glob(f"{SCRATCH}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def is_scratch(path: Path) -> bool:
    """Whether the path is that of an unfinished file."""
    return path.name.startswith(SCRATCH)


def stamp(*paths: Path) -> tuple[tuple[int, int, int] | None, ...]:
    """A value that changes when one of the files is replaced, made or removed; no file is read for it."""
    return tuple(_stamp(path) for path in paths)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        seen = path.stat()
    except OSError:
        return None
    return (seen.st_mtime_ns, seen.st_size, seen.st_ino)


def write_json(path: Path, value: Any) -> None:
    """Write plain data as JSON; a NaN or an infinite number is an error."""
    write_atomic(path, lambda scratch: scratch.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n"))


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Write a CSV file, whole or not at all; None is an empty field. Returns the path."""

    def write(scratch: Path) -> None:
        with scratch.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            writer.writerows(rows)

    write_atomic(path, write)
    return path


def check_ordinary(path: Path) -> None:
    """Refuse a device, a named pipe or a folder where a file is to be read; reading from the first two may never end."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} cannot be read: it is no ordinary file; give the path of one")


def read_content(path: Path) -> bytes:
    """The bytes of an ordinary file; a named pipe is refused, since reading from it may never end."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} cannot be read: it is no ordinary file; is {path.parent} the folder of a run?")
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} is missing; is {path.parent} the folder of a run?") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}); check the place and try again") from None


def check_unpacked(path: Path, most_bytes: int) -> None:
    """Refuse a zip or npz file that unpacks to more bytes than it can sensibly hold. What else is wrong with the file is
    raised as zipfile does, for the caller who turns whatever foreign bytes cause into one line."""
    with zipfile.ZipFile(path) as packed:
        size = sum(member.file_size for member in packed.infolist())
    if size > most_bytes:
        raise InputError(
            f"{path} unpacks to {size / 1e9:.3g} GB, at most {most_bytes / 1e9:.3g} are read; is it whole?"
        )


DAMAGED = "it is damaged: put the original file back, or run again into a new folder"


def read_json(path: Path) -> Any:
    """The JSON value of a file. Numbers that are not finite and nesting deeper than 200 levels are refused."""
    try:
        value = from_json(read_content(path), allow_inf_nan=False)
        json.dumps(value, allow_nan=False)  # 1e400 is read as infinity
        return value
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path} cannot be read ({error}); {DAMAGED}") from None


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds names and values."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(f"{path} holds {reprlib.repr(value)} where names and values are expected; {DAMAGED}")
    return value


def read_record(path: Path, kind: Any, way_out: str = DAMAGED) -> Any:
    """A JSON file as the record `kind`, a dataclass whose annotations say what its fields may hold."""
    return checked_record(read_content(path), kind, str(path), way_out)


def checked_record(content: bytes | str, kind: Any, where: str, way_out: str = DAMAGED) -> Any:
    """JSON as the record `kind`; whatever does not fit is one line that begins with `where` and names field and value."""
    try:
        return _adapter(kind).validate_json(content, strict=True)
    except ValidationError as error:
        raise InputError(f"{where}{explain_field(first_problem(error))}; {way_out}") from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
