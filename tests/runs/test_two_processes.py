"""Two processes on one folder, and a disk that is full: one line for the second, and nothing of the first is lost."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hsfl.runs import loop
from hsfl.runs.run_folder.folder import LOCK
from tests.naming import names
from tests.small_runs import assert_same_run, tiny, tiny_words
from tests.small_runs import hsfl as here

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}


def hsfl(*words: object) -> "subprocess.Popen[str]":
    """The command in a process of its own."""
    line = [sys.executable, "-m", "hsfl", *map(str, words)]
    return subprocess.Popen(line, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


LONG = tiny_words("train.rounds=400", "train.eval_every=400")
COMMANDS = {
    "run": ("run", *LONG, "--quiet", "--out"),
    "compare": ("compare", *LONG, "-f", "hsfl", "-f", "splitfed_v1", "--quiet", "--out"),
    "reproduce": ("reproduce", "table1", "--scale", "smoke", "--datasets", "mnist", "--results", "none", "--out"),
}


def halted_in_a_folder(out: Path, process: "subprocess.Popen[str]") -> Path:
    """Halt the process while it holds a folder, which is returned."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for lock in out.rglob(LOCK):
            if not (lock.parent / "rounds.jsonl").exists():
                continue
            process.send_signal(signal.SIGSTOP)
            if lock.exists():
                return lock.parent
            process.send_signal(signal.SIGCONT)
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError("the first process never took its folder")


@pytest.mark.parametrize("name", ["run", pytest.param("compare", marks=pytest.mark.slow)])
def test_the_second_process_ends_in_one_line(tmp_path: Path, name: str) -> None:
    check_second(COMMANDS[name], tmp_path / "out")


@pytest.mark.slow
def test_the_second_reproduction_ends_in_one_line(tmp_path: Path, data_dir: Path) -> None:
    check_second((*COMMANDS["reproduce"][:-1], "--data-dir", data_dir, "--out"), tmp_path / "out")


def check_second(words: tuple[object, ...], out: Path) -> None:
    first = hsfl(*words, out)
    try:
        held = halted_in_a_folder(out, first)
        config = (held / "config.json").read_bytes()
        lines = (held / "rounds.jsonl").read_bytes()
        code, said = second_of(words, out)
        assert code == 2, said
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert "another run is writing to" in said or "already holds something" in said
        assert (held / LOCK).exists()
        assert (held / "config.json").read_bytes() == config
        assert (held / "rounds.jsonl").read_bytes() == lines
    finally:
        first.send_signal(signal.SIGCONT)
        first.terminate()
        first.communicate(timeout=120)


def second_of(words: tuple[object, ...], out: Path) -> tuple[int, str]:
    second = hsfl(*words, out)
    _, said = second.communicate(timeout=180)
    return second.returncode, said


@pytest.fixture
def small_disk(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Three megabytes; only root may mount them."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("a small disk is mounted by root alone")
    done = subprocess.run([mount, "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_ends_a_run_in_one_line_and_it_goes_on(small_disk: Path, tmp_path: Path) -> None:
    loop.train_run(tiny("log.checkpoint_every=1"), tmp_path / "undisturbed")
    size = sum(path.stat().st_size for path in (tmp_path / "undisturbed").rglob("*") if path.is_file())
    free = shutil.disk_usage(small_disk).free
    assert 2 * size < free, "the test wants a larger disk"
    for left in (size // 4, size // 2, 3 * size // 4):  # where in the run the disk is full
        (small_disk / "ballast").write_bytes(bytes(free - left))
        answer = here("run", *tiny_words("log.checkpoint_every=1"), "--quiet", "--out", small_disk / "run")
        (small_disk / "ballast").unlink()
        if answer.code != 0:
            assert answer.code == 2, answer
            assert answer.err.count("\n") == 1
            names(answer.err, str(small_disk), "make room")
            loop.train_run(tiny("log.checkpoint_every=1"), small_disk / "run", resume=None)
        assert_same_run(small_disk / "run", tmp_path / "undisturbed")
        shutil.rmtree(small_disk / "run")
