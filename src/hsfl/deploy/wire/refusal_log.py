"""Log lines that a peer causes, a few of each kind a minute: a peer that is refused, or joins and goes, a thousand times a second must
not fill the disk."""

import time
from collections.abc import Callable
from typing import Any

from hsfl.deploy.logs import Log

MOST_LINES = 20  # of one kind, in WINDOW_S
WINDOW_S = 60.0


class RefusalLog:
    """Writes the first MOST_LINES lines of a kind in every WINDOW_S; the next line that is written says how many were not. A kind
    is an event, a client and a reason."""

    def __init__(self, log: Log, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock_s = log, clock_s
        self._began_s, self._num_left_out = clock_s(), 0
        self._num_lines = dict[tuple[str, str | None, str | None], int]()  # by kind, in this window

    def event(
        self, event: str, client: str | None, reason: str | None = None, level: str = "warning", **fields: Any
    ) -> None:
        """Write a line, if there were few of its kind."""
        now_s, kind = self._clock_s(), (event, client, reason)
        if now_s - self._began_s >= WINDOW_S:
            self._began_s = now_s
            self._num_lines.clear()
        num_lines = self._num_lines[kind] = self._num_lines.get(kind, 0) + 1
        if num_lines > MOST_LINES:
            self._num_left_out += 1
            return
        if self._num_left_out:
            fields["lines_left_out"], self._num_left_out = self._num_left_out, 0
        fields = fields if reason is None else {"reason": reason} | fields
        self._log.event(event, level, client=client, **fields)
