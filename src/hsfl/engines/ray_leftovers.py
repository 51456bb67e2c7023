"""What is left of a Ray cluster whose run is gone without a word: killed, or ended by Ray because its own node had ended.

A small process stands by while the cluster that was started for a run is up. It waits for the end of a pipe that the run holds. Where the
run has not said that it ends in good order, the process ends what Ray has left behind (two agents, which would try for a minute to tell
a cluster that is gone), and says in one line that the run is gone: nobody else is there to say it.
"""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

GONE = "error: the run is gone, and with it its Ray cluster: it was killed, or Ray's node was; hsfl run --resume goes on from the last checkpoint"
WATCH = """
import os, pathlib, signal, sys
if not sys.stdin.buffer.read(1):
    for pid in sys.argv[2:]:
        try:
            if b"ray::" in pathlib.Path("/proc", pid, "cmdline").read_bytes():  # and no other process by now
                os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass
    print(sys.argv[1], file=sys.stderr)
"""


class LeftoverWatch:
    """The process that stands by. node_pid: of the node that was started for the run, whose agents are its children."""

    def __init__(self, node_pid: int) -> None:
        command = [sys.executable, "-I", "-S", "-c", WATCH, GONE, *map(str, children(node_pid))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )  # Ctrl-C is the run's alone

    def end(self) -> None:
        """The cluster is ended in good order."""
        assert self._process.stdin is not None
        with suppress(OSError):  # somebody has ended it
            self._process.stdin.write(b"x")
            self._process.stdin.close()
        self._process.wait()


def children(pid: int) -> list[int]:
    """The processes that a process has started, on Linux; elsewhere none are found."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                pids.append(int(path.parent.name))
    return sorted(pids)
