"""Pieces of work in several processes: whoever stops the caller stops them, too."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hsfl.errors import InputError
from hsfl.runs.studies.process_pool import in_processes
from tests.naming import raises

ROOT = Path(__file__).parents[3]


def busy(folder: Path) -> None:
    """Computes for minutes, and writes down which process it is."""
    (folder / str(os.getpid())).touch()
    until = time.monotonic() + 300
    while time.monotonic() < until:
        pass


def wait_for(condition, seconds: float = 60.0) -> bool:  # type: ignore[no-untyped-def]
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    return bool(condition())


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


CALLER = """
import sys
from pathlib import Path
from tests.runs.studies.test_process_pool import busy, in_processes
if __name__ == "__main__":
    list(in_processes(busy, [Path(sys.argv[1])] * 4, 2))
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_work_ends_with_its_caller(how: signal.Signals, tmp_path: Path) -> None:
    """`hsfl reproduce` ended by SIGTERM left its pool computing."""
    script = tmp_path / "caller.py"
    script.write_text(CALLER)
    folder = tmp_path / "pids"
    folder.mkdir()
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    caller = subprocess.Popen([sys.executable, str(script), str(folder)], env=env, stderr=subprocess.DEVNULL)
    try:
        assert wait_for(lambda: len(list(folder.iterdir())) == 2)
        caller.send_signal(how)
        caller.wait(20)
        pids = [int(path.name) for path in folder.iterdir()]
        assert wait_for(lambda: not any(map(is_alive, pids)), 5.0)
    finally:
        caller.kill()
        for pid in [int(path.name) for path in folder.iterdir() if is_alive(int(path.name))]:
            os.kill(pid, signal.SIGKILL)


def refuse_first(number: int) -> int:
    if number == 0:
        raise InputError("the first is refused")
    time.sleep(300)
    return number


def test_an_error_in_one_piece_ends_the_others(tmp_path: Path) -> None:
    began = time.monotonic()
    with raises(InputError, "is refused"):
        list(in_processes(refuse_first, [0, 1, 2], 2))
    assert time.monotonic() - began < 60


def test_answers_come_as_they_are_made() -> None:
    assert sorted(in_processes(abs, [-1, -2, -3], 2)) == [1, 2, 3]
    assert list(in_processes(abs, [-1, -2], 1)) == [1, 2]
