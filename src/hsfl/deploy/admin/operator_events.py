"""The operator's orders (`hsfl admin`), and their file: events.jsonl in the run folder, one JSON object a line.

`hsfl admin` appends lines and waits until they are on the disk; the main server reads new lines before each round. So the right to
command is the right to write this file, there is no door in the network, an order can be given while the server is down, and the file is
the history of all orders. Lines are never changed or removed.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, with_config

from hsfl.errors import InputError
from hsfl.files import checked_record, writing

EVENTS_FILE = "events.jsonl"
MOST_LINE_BYTES = 4096

Deed = Literal["kick", "bench", "pause", "resume", "drain", "set", "drained"]
Value = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class OperatorEvent:
    """One order. The deed "drained" is the main server's own line: it has ended as the operator asked."""

    time: str
    deed: Deed
    client: Annotated[str, Field(max_length=63)] | None = None
    rounds: Annotated[int, Field(ge=1, le=1_000_000)] | None = None  # of bench; None: until resume
    values: dict[Annotated[str, Field(max_length=70)], Value] = field(default_factory=dict)  # of set
    why: Annotated[str, Field(max_length=300)] = ""  # told to the client

    def __str__(self) -> str:
        """The order as it was typed."""
        words: list[str] = [self.deed, *([self.client] if self.client else [])]
        words += [f"--rounds {self.rounds}"] if self.rounds else []
        return " ".join([*words, *(f"{name}={value:g}" for name, value in self.values.items())])


def time_now() -> str:
    """The present as events write it."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def append_event(folder: Path, event: OperatorEvent) -> None:
    """Append an order to the file of a run folder. It is on the disk when this returns. Two writers at a time are in no danger, as
    every line is one write at the end of the file."""
    path = folder / EVENTS_FILE
    given = {name: value for name, value in asdict(event).items() if value not in (None, "", {})}
    content = json.dumps(given, allow_nan=False).encode() + b"\n"
    if len(content) > MOST_LINE_BYTES:
        raise InputError(f"the order has {len(content)} bytes, at most {MOST_LINE_BYTES} are taken; say less at a time")
    with writing(path):
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if hasattr(os, "geteuid") and os.geteuid() == 0:  # root orders, and the main server must read
                owner = folder.stat()
                os.chown(handle, owner.st_uid, owner.st_gid)
            content = (b"\n" if _is_torn(path) else b"") + content
            if os.write(handle, content) < len(content):
                raise OSError(None, "no room for the whole line")
            os.fsync(handle)
        finally:
            os.close(handle)


def _is_torn(path: Path) -> bool:
    """Whether the last line has no end, as after a power cut in the middle of it."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def read_events(folder: Path) -> list[OperatorEvent | InputError]:
    """All orders of a run folder, oldest first. A line that is no order stands as the error that says so. A last line without an end is not
    read yet."""
    try:
        content = (folder / EVENTS_FILE).read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(
            f"{EVENTS_FILE} cannot be read ({error.strerror or error}); run hsfl admin as the user of the main server"
        ) from None
    return [_read_line(line, number) for number, line in enumerate(content.split(b"\n")[:-1], 1)]


def _read_line(line: bytes, number: int) -> OperatorEvent | InputError:
    where = f"line {number} of {EVENTS_FILE}"
    if len(line) > MOST_LINE_BYTES:
        return InputError(f"{where} has {len(line)} bytes and is no order; orders are given by hsfl admin")
    try:
        event: OperatorEvent = checked_record(line, OperatorEvent, where, "orders are given by hsfl admin")
    except InputError as error:
        return error
    return event
