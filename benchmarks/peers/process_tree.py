"""Runs a program and watches it: its peak memory with all of its children, and how long it takes. Linux alone.

This process becomes the parent of orphans (`PR_SET_CHILD_SUBREAPER`), so that a peer's daemons stay in the tree; what is left of a peer
when its program ends is killed. Memory is the sum of the proportional set sizes (PSS), in which a page that several processes share
counts once; where a kernel does not tell it, the resident set sizes.
"""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
SAMPLE_S = 0.1


@dataclass(frozen=True)
class Watched:
    """How a program ended."""

    code: int | None  # None: it was stopped at its time limit
    started: float  # seconds since the epoch
    peak_bytes: int


def become_subreaper() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """The processes below a process, at this moment."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it ended meanwhile
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, ahead = list[int](), [root]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


def memory_bytes(pid: int) -> int:
    """The proportional set size of a process, or its resident set size; 0 where it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def run_watched(
    command: Sequence[str], environment: dict[str, str], log: Path, until: Path, time_limit_s: float
) -> Watched:
    """Run a program, with its output in a file. Memory is sampled until the file `until` is there, when the measurement of speed begins,
    so that reading /proc disturbs no timing."""
    become_subreaper()
    before = set(descendants(os.getpid()))
    try:
        with log.open("wb") as output:
            started, peak = time.time(), 0
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
            while process.poll() is None and time.time() - started < time_limit_s:
                if not until.exists():
                    peak = max(peak, sum(memory_bytes(pid) for pid in set(descendants(os.getpid())) - before))
                time.sleep(SAMPLE_S)
            code = process.poll()
    finally:  # also where this process is told to stop
        _kill_what_is_left(before)
    return Watched(code, started, peak)


def _kill_what_is_left(before: set[int]) -> None:
    """End all processes below this one that were not there before, and take their status."""
    for _ in range(20):
        left = set(descendants(os.getpid())) - before
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with suppress(ChildProcessError):  # a grandchild, which comes to us when its parent is gone
                os.waitpid(pid, os.WNOHANG)
        if not left:
            return
        time.sleep(0.1)
