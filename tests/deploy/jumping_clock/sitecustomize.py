"""Python runs this file at its start when its folder is on PYTHONPATH: from then on the process's wall clock is ahead by the seconds
that stand in the file HSFL_TEST_CLOCK. Monotonic clocks go on, as on a machine whose clock is set. What reads the system's
clock without Python (TLS itself) sees no jump.
"""

import datetime
import os
import time
from typing import Any

_FILE = os.environ.get("HSFL_TEST_CLOCK", "")
_time, _time_ns, _datetime = time.time, time.time_ns, datetime.datetime


def _ahead_s() -> float:
    try:
        with open(_FILE) as file:
            return float(file.read() or 0)
    except (OSError, ValueError):  # it is being written, or is not there
        return 0.0


class _AnyDatetime(type):
    """So that moments which C code has made are datetimes, too."""

    def __instancecheck__(cls, moment: Any) -> bool:
        return isinstance(moment, _datetime)


class _Datetime(_datetime, metaclass=_AnyDatetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return _datetime.now(tz) + datetime.timedelta(seconds=_ahead_s())

    @classmethod
    def utcnow(cls) -> Any:
        return _datetime.utcnow() + datetime.timedelta(seconds=_ahead_s())


if _FILE:
    time.time = lambda: _time() + _ahead_s()
    time.time_ns = lambda: _time_ns() + int(_ahead_s() * 1e9)
    datetime.datetime = _Datetime  # type: ignore[misc]
