"""Whoever a killed run leaves behind is ended, and one line says that the run is gone. No Ray is needed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hsfl.engines.ray_leftovers import GONE
from tests.engines.runs import until

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="children are found in /proc")
CODE = """
import os, signal, subprocess, sys, time
from hsfl.engines.ray_leftovers import LeftoverWatch

quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
agent = subprocess.Popen(["bash", "-c", "exec -a ray::Agent sleep 60"], **quiet)
other = subprocess.Popen(["sleep", "60"], **quiet)
while b"ray::" not in open(f"/proc/{agent.pid}/cmdline", "rb").read():
    time.sleep(0.01)
watch = LeftoverWatch(os.getpid())
print(agent.pid, other.pid, flush=True)
if sys.argv[1] == "ends":
    watch.end()
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_agents_of_a_killed_run_are_ended_and_nobody_else(how: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, how], capture_output=True, text=True, timeout=60, check=False)
    agent, other = map(int, done.stdout.split())
    try:
        assert done.returncode == (0 if how == "ends" else -signal.SIGKILL), done.stderr
        assert done.stderr.splitlines() == (
            [] if how == "ends" else [GONE]
        )  # the pipe ends with the process that stands by
        assert until(10, lambda: is_running(agent) == (how == "ends"))
        assert is_running(other)
    finally:
        subprocess.run(["kill", str(agent), str(other)], check=False, capture_output=True)
