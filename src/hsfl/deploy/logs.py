"""Logs of servers and clients: one line for each event, as JSON for programs or as words for people.

    log = open_log("main", as_json=True)
    log.event("client dropped", client="ward-1", round=3, reason="late")

File paths, names of hosts, addresses and keys are in no line: they are replaced, wherever they come from.
"""

import ipaddress
import json
import logging
import math
import re
import socket
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import IO, Any

NAMES = ("client", "clients")  # fields with names of clients, who may be called as their hosts are
REPEAT_S = 60.0  # in which few lines say the same
MOST_LINES = 20  # of one kind in REPEAT_S, of what a peer does that may have good reasons
MOST_ORDERS = 600  # of one kind in REPEAT_S, of what a main server tells a device; ten rounds a second
MOST_CHARACTERS = 500  # of one value: a peer's words do not fill the disk
PEM = re.compile(r"-----BEGIN [A-Z0-9 ]*-----.*?(?:-----END [A-Z0-9 ]*-----|$)", re.DOTALL)
URL = re.compile(r"\b(?!hsfl:)[a-z][a-z0-9+.-]*://\S+")
PATH = re.compile(
    r"(?<![\w./:\\])(?:~|\.{1,2})?/(?!hsfl\.|grpc\.)[^\s:;,'\"()]+"  # /a/b, ~/a, ./a; a gRPC method is no path
    r"|(?<![\w./:\\])[\w.-]+(?:/[\w.-]+)*/[\w-]+\.[a-z]{2,6}\b"  # a/b.pem
    r"|\b[A-Za-z]:\\[^\s:;,'\"()]*"  # C:\a
)
ADDRESS = re.compile(r"(?:ipv[46]:)?(?<![\w.])(?:\[[0-9a-fA-F:.%]{2,}\]|\d{1,3}(?:\.\d{1,3}){3})(?::\d{1,5})?(?![\w.])")
HOST = re.compile(r"\b(?:[a-zA-Z0-9-]+\.)+[a-zA-Z][a-zA-Z0-9-]*:\d{1,5}\b|(?<![\w.])[a-zA-Z][a-zA-Z0-9-]*:\d{2,5}\b")


def scrubbed(text: str, hosts: bool = True) -> str:
    """The text without keys, paths, addresses and, with `hosts`, this machine's name, on one line of at most
    MOST_CHARACTERS."""
    text = PEM.sub("(key)", text)
    text = URL.sub("(address)", text)
    text = PATH.sub("(path)", text)
    text = HOST.sub("(address)", ADDRESS.sub("(address)", text))
    for name in _host_names() if hosts else ():
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", "(host)", text)
    text = " ".join(text.split())
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."


def _host_names() -> set[str]:
    """The names of this machine, which logs hide; `localhost`, `main` and `edge` tell nothing of it and are shown."""
    full = socket.gethostname()
    return {
        name for name in (full, full.partition(".")[0]) if len(name) > 1 and name not in ("localhost", "main", "edge")
    }


def _plain(value: Any, hosts: bool = True) -> Any:
    """A value as JSON can hold it and a log may show it. hosts: hide this machine's name."""
    if isinstance(value, PurePath):
        return "(path)"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"({len(value)} bytes)"
    if isinstance(value, ipaddress.IPv4Address | ipaddress.IPv6Address):
        return "(address)"
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {scrubbed(str(name)): _plain(item, hosts) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, hosts) for item in value]
    return scrubbed(str(value), hosts)


def _call_places(error: BaseException) -> list[str]:
    """Where an exception came from: file (without its folder), function and line of the last eight calls."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    return [f"{Path(frame.filename).stem}.{frame.name}:{frame.lineno}" for frame in frames]


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What a line says beside its time, in the order of importance."""
    fields: dict[str, Any] = {"level": record.levelname.lower(), "server": record.name.rpartition(".")[2]}
    fields["event"] = scrubbed(record.getMessage())
    fields |= {name: _plain(value, hosts=name not in NAMES) for name, value in getattr(record, "fields", {}).items()}
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        fields |= {"error": f"{type(error).__name__}: {scrubbed(str(error))}", "where": _call_places(error)}
    return fields


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return json.dumps({"time": moment} | _fields(record), allow_nan=False)


class TextLines(logging.Formatter):
    """One line for people."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        level, who, event = (fields.pop(name) for name in ("level", "server", "event"))
        more = " ".join(f"{name}={_shown(value)}" for name, value in fields.items())
        mark = "" if level == "info" else f"{level}: "
        text = f"{datetime.fromtimestamp(record.created):%Y-%m-%d %H:%M:%S} {who}: {mark}{event}"
        return _printable(f"{text}  {more}" if more else text)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and " " not in value else json.dumps(value, ensure_ascii=False)


def _printable(text: str) -> str:
    """The line with a sign in the place of every control character: an escape sequence could rewrite the terminal."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


class Log:
    """Where one server or client writes what happens."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def event(self, event: str, level: str = "info", error: BaseException | None = None, **fields: Any) -> None:
        """Write a line: what happened, and fields with names that say their unit (`round_s`, `num_bytes`)."""
        number = logging.getLevelNamesMapping()[level.upper()]
        self._logger.log(number, "%s", event, extra={"fields": fields}, exc_info=error)

    def adopt_others(self) -> None:
        """Let warnings of libraries in this process (gRPC, asyncio) go into this log: alone they would write tracebacks with the
        paths of files to stderr."""
        root = logging.getLogger()
        root.handlers[:] = self._logger.handlers
        root.setLevel(logging.WARNING)
        for name in ("asyncio", "grpc._cython.cygrpc"):
            logging.getLogger(name).addFilter(_is_no_lost_answer)


class LineLimit:
    """Writes few lines of a kind into a log, `most` of them in REPEAT_S: a peer that is refused, or joins and goes, a thousand times a second
    must not fill the disk. The next line that is written says how many were not. A kind is an event, a client and a reason."""

    def __init__(self, log: Log, most: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._log, self._most, self._clock_s = log, most, clock_s
        self._written: dict[
            tuple[str, str | None, str | None], tuple[float, int]
        ] = {}  # since when, and how many, by kind
        self._num_left_out = 0

    def event(
        self, event: str, client: str | None = None, reason: str | None = None, level: str = "warning", **fields: Any
    ) -> None:
        """Write a line, if there were few of its kind."""
        now_s, kind = self._clock_s(), (event, client, reason)
        since_s, count = self._written.get(kind, (now_s, 0))
        if now_s - since_s >= REPEAT_S:
            since_s, count = now_s, 0
        if not count:
            self._written = {kind: counted for kind, counted in self._written.items() if now_s - counted[0] < REPEAT_S}
        self._written[kind] = (since_s, count + 1)
        if count >= self._most:
            self._num_left_out += 1
            return
        known: dict[str, Any] = {
            name: value for name, value in (("client", client), ("reason", reason)) if value is not None
        }
        if self._num_left_out:
            fields["lines_left_out"], self._num_left_out = self._num_left_out, 0
        self._log.event(event, level, **known, **fields)

    def forget(self) -> None:
        """Let lines of every kind be written anew."""
        self._written.clear()


def _is_no_lost_answer(record: logging.LogRecord) -> bool:
    """Whether a line of gRPC's is worth a place in the log: a peer that opens calls and goes causes a traceback for each answer
    that it does not take, thousands if it likes."""
    error = record.exc_info[1] if record.exc_info else None
    return type(error).__name__ != "ExecuteBatchError"


def open_log(name: str, as_json: bool, stream: IO[str] | None = None, level: str = "info") -> Log:
    """The log of a process. name: main, edge, or a client's name. as_json: for programs. stream: by default stderr."""
    logger = logging.getLogger("hsfl.deploy").getChild(name.replace(".", "_"))
    logger.setLevel(level.upper())
    logger.propagate = False
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    logger.handlers[:] = [handler]
    return Log(logger)
