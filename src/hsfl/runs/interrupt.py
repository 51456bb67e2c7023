"""Ctrl-C stops a run while it computes, never while it writes a file."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = tuple(  # Ctrl-C, an order to stop, a lost connection
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Interruptible:
    """While this context is entered, a signal to stop raises KeyboardInterrupt inside `with interruptible():`; anywhere else the
    signal waits until the next such block begins."""

    def __enter__(self) -> "Interruptible":
        self._armed = self._pending = False
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {
                n: signal.signal(n, self._stop) for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN
            }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._pending = True
        if self._armed:
            self._armed = False  # first, so that a second signal cannot cut the writing short
            raise KeyboardInterrupt

    @contextmanager
    def __call__(self) -> Iterator[None]:
        try:
            self._armed = True
            if self._pending:
                raise KeyboardInterrupt
            yield
        finally:
            self._armed = False
