"""`hsfl report --watch`: serves the page on this machine alone, and sends the page what is new in runs under way.

Two addresses are answered, by GET: the page at `/`, and at `/data` what is new since the page last asked. A page of another
site that reaches the port under a name of its own (DNS rebinding) is turned away.
"""

import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hsfl.errors import InputError
from hsfl.report.compared_runs import run_folders
from hsfl.report.page.page import page_data, render, safe_json, waiting_data
from hsfl.report.page.page_sources import NothingYet, read_sources

HOST = "127.0.0.1"
IDLE_S = 30.0  # a connection that says nothing for so long is closed
FILES = (
    *("config.json", "rounds.jsonl", "summary.json", "clients.json", "plan.json", "comparison.json", "trace.json"),
    *("sweep.json", "timing.json"),
)


class Watcher:
    """The folders' data, read again only when a file has changed."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self.paths = [Path(path) for path in paths]
        self._lock = threading.Lock()
        self._version: str | None = None
        self._data: dict[str, Any] = {}
        try:
            self.news()  # an error for wrong folders comes at once
        except NothingYet as nothing:
            print(f"no run is there yet: {nothing}; the page waits for one", file=sys.stderr)

    @property
    def waits(self) -> bool:
        """Whether there was nothing to show so far."""
        return self._version is None

    def news(self) -> tuple[str, dict[str, Any]]:
        """The stamp of the folders' files as they are now, and all data in them."""
        with self._lock:
            version = self._stamp()
            if version != self._version:
                self._data = page_data(read_sources(self.paths))
                self._version = version
            return version, self._data

    def _stamp(self) -> str:
        """A value that changes whenever one of the files changes."""
        folders = [folder for path in self.paths for folder in (path, *run_folders(path).values())]
        folders += [run for path in self.paths if (path / "sweep.json").is_file() for run in path.glob("*/*/seed-*")]
        stamps = []
        for path in (folder / name for folder in folders for name in FILES):
            try:
                status = path.stat()
            except OSError:
                continue
            stamps.append(f"{status.st_mtime_ns:x}.{status.st_size:x}")
        return "-".join(stamps)


def unseen_data(data: dict[str, Any], have: str) -> dict[str, Any]:
    """The data without the rounds that a page has. have: `stride:rounds` for each run, as the function follow of main.js sends it."""
    held = [fields.split(":") for fields in have.split(",")]
    if len(held) != len(data["runs"]):
        return data
    return data | {"runs": [_unseen_rounds(run, fields) for run, fields in zip(data["runs"], held)]}


def _unseen_rounds(run: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    """The rounds that a page does not have; a page whose Gantt charts are of other rounds gets all rounds."""
    stride, num_held = fields[0], fields[-1]
    known = stride == str(run["gantt_every"] or 0) and num_held.isdecimal() and len(num_held) < 10
    if not known or int(num_held) > run["num_rounds"]:
        return run
    first = max(
        int(num_held) - 1, 0
    )  # the page's last round is sent again: its chart may have been kept only because it was the last
    return run | {"from": first, "rounds": {name: column[first:] for name, column in run["rounds"].items()}}


def make_server(paths: Sequence[str | Path], port: int = 0) -> ThreadingHTTPServer:
    """A server of the page of these folders, on 127.0.0.1; port 0 takes a free port."""
    watcher = Watcher(paths)
    try:
        return _Server(port, watcher)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"port {port} cannot be used ({reason}); choose another --port, or leave it out") from None


class _Server(ThreadingHTTPServer):
    """A server on this machine alone; its threads end with the program."""

    daemon_threads = True

    def __init__(self, port: int, watcher: Watcher) -> None:
        self.watcher = watcher
        super().__init__((HOST, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell of an error, unless a browser has closed its page in the midst of an answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request of the page."""

    server: "_Server"
    server_version, sys_version = "hsfl", ""
    timeout = IDLE_S

    def do_GET(self) -> None:
        try:
            wanted = urlsplit(self.path)
        except ValueError:
            return self._answer(400, "text/plain", "that is no address")
        if self.headers.get("Host", "") not in self._allowed_hosts():
            self._answer(403, "text/plain", "this page is for the machine that it runs on")
        elif wanted.path not in ("/", "/data"):
            self._answer(404, "text/plain", "there is / and /data")
        else:
            self._send_page_or_news(wanted.path, parse_qs(wanted.query))

    def _allowed_hosts(self) -> tuple[str, ...]:
        """The hosts under which the page may be asked for."""
        port = self.server.server_port
        without_port = (HOST, "localhost") if port == 80 else ()  # a browser leaves the usual port out
        return (f"{HOST}:{port}", f"localhost:{port}", *without_port)

    def _send_page_or_news(self, path: str, query: dict[str, list[str]]) -> None:
        """Send the page, or what is new since the page last asked."""
        try:
            version, data = self.server.watcher.news()
        except InputError as error:  # no run yet, a file in the midst of a change, or the folder is gone
            if path == "/data" and not self.server.watcher.waits:
                return self._answer(503, "text/plain", str(error))
            version, data = "", waiting_data(str(error))
        if path == "/":
            return self._answer(200, "text/html", render(data, watch=True))
        if version and query.get("version") == [version]:
            return self._answer(204, "text/plain", "")
        news = unseen_data(data, query.get("have", [""])[0])
        self._answer(200, "application/json", safe_json({"version": version, "data": news}))

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status != 204:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...
