"""A run killed at any file operation, with files half written, resumes or begins anew, to the same bits."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hsfl.files import SCRATCH
from hsfl.runs import loop
from hsfl.runs.run_folder.checkpoint import load_tensors
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.studies.compare_runs import run_or_resume
from tests.small_runs import tiny

SETTINGS = ("train.rounds=2", "data.limit=30", "data.limit_test=20", "log.checkpoint_every=2")
OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")
DEAD = 77


def train(folder: Path) -> None:
    loop.train_run(tiny(*SETTINGS), folder)


def killed_at(folder: Path, operation: int, half: bool) -> int:
    """Train in a child process that dies before this file operation; returns how many there were, or -1 if it died.

    With `half`, what is about to be renamed has lost its second half, and a file that is appended to ends in half a line.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        seen = 0

        def hook(event: str, words: tuple[Any, ...]) -> None:
            nonlocal seen
            if seen == 10**9 or event not in OPERATIONS or not str(words[0]).startswith(str(folder)):
                return
            if event == "open" and not _writes(words):
                return
            if seen == operation:
                seen = 10**9  # what the dying process does itself is not counted
                os.write(writer, b"-1")
                if half:
                    _halve(event, words)
                os._exit(DEAD)
            seen += 1

        sys.addaudithook(hook)
        try:
            train(folder)
            os.write(writer, str(seen).encode())
            os._exit(0)
        except BaseException:
            os._exit(1)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    assert os.waitstatus_to_exitcode(status) in (0, DEAD), "the run itself failed"
    return int(said)


def _writes(words: tuple[Any, ...]) -> bool:
    mode, flags = words[1], words[2]
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _halve(event: str, words: tuple[Any, ...]) -> None:
    path = Path(words[0])
    if event == "os.rename" and path.is_file():
        os.truncate(path, path.stat().st_size // 2)
    elif event == "open" and words[1] == "a":
        handle = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(handle, b'{"round": 1, "framework": "hs')
        os.close(handle)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder)
    return folder


@pytest.fixture(scope="module")
def num_operations(tmp_path_factory: pytest.TempPathFactory) -> int:
    return killed_at(tmp_path_factory.mktemp("count") / "run", 10**9, half=False)


def goes_on(folder: Path, whole: Path) -> None:
    """The same command again, as often as needed: `compare` and `reproduce` call this, and `hsfl run --resume` the same."""
    run_or_resume(tiny(*SETTINGS), folder, loop.Observer())
    for name in ("model.safetensors", "model-best.safetensors", "checkpoint/state.safetensors"):
        (ours, notes), (theirs, expected) = load_tensors(folder / name), load_tensors(whole / name)
        assert notes == expected
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs), name
    ours, theirs = RunFolder(folder).rounds(), RunFolder(whole).rounds()
    assert [(r.round, r.train_loss, r.sim_time_s) for r in ours] == [
        (r.round, r.train_loss, r.sim_time_s) for r in theirs
    ]
    assert not list(folder.rglob(f"{SCRATCH}*")), "something was left behind"


def check(operation: int, half: bool, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / f"run-{operation}-{half}"
    assert killed_at(folder, operation, half) == -1
    goes_on(folder, whole)
    shutil.rmtree(folder)


def test_a_sample_of_crash_points(whole: Path, num_operations: int, tmp_path: Path) -> None:
    assert num_operations > 20
    for place in range(6):
        check(place * num_operations // 6, place % 2 == 1, whole, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("half", [False, True])
def test_every_crash_point(whole: Path, num_operations: int, tmp_path: Path, half: bool) -> None:
    for operation in range(num_operations):
        check(operation, half, whole, tmp_path)
