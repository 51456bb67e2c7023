"""Nothing is lost: one holder of a folder, runs that stopped early, damaged files, states that are no numbers."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from hsfl.config import RunConfig
from hsfl.errors import InputError
from hsfl.files import SCRATCH
from hsfl.runs import loop
from hsfl.runs.run_folder.checkpoint import load_tensors, save_tensors
from hsfl.runs.run_folder.folder import LOCK, RunFolder, holds_something, lock_file
from hsfl.runs.studies.compare_runs import run_or_resume
from tests.naming import raises
from tests.small_runs import tiny


class Told(loop.Observer):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warns(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    loop.train_run(tiny(), folder)
    return folder


def same_model(left: Path, right: Path) -> bool:
    return (left / "model.safetensors").read_bytes() == (right / "model.safetensors").read_bytes()


# ---- the lock


def test_a_second_holder_is_refused_and_touches_nothing(whole: Path, tmp_path: Path) -> None:
    """As a second `hsfl compare` meets the first one's run before its first checkpoint."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "checkpoint")
    (folder / "summary.json").unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with RunFolder(folder).locked(), raises(InputError, "another run", str(folder), "another --out"):
        run_or_resume(tiny(), folder, loop.Observer())
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(victim)
    with raises(InputError, LOCK, "another place"), RunFolder(tmp_path / "run").locked():
        pass
    assert victim.read_text() == "precious"


def test_a_lock_that_was_removed_counts_for_nothing(tmp_path: Path) -> None:
    """Two processes take and leave the lock as fast as they can; never are both inside."""
    code = """
import sys, time
from pathlib import Path
from hsfl.runs.run_folder.folder import RunFolder, holds_something
from hsfl.errors import InputError
folder, mark, end = RunFolder(sys.argv[1]), Path(sys.argv[2]), time.time() + 2.0
entered = 0
while time.time() < end:
    try:
        with folder.locked():
            mark.mkdir()  # fails if another one is inside
            entered += 1
            mark.rmdir()
    except InputError:
        pass
print(entered)
"""
    words = [sys.executable, "-c", code, str(tmp_path / "run"), str(tmp_path / "mark")]
    processes = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert int(out) > 0


def test_a_lock_that_goes_between_opening_and_locking_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder before us removes the file that we have opened: a third one would lock another file."""
    flock, path = fcntl.flock, tmp_path / LOCK

    def late(handle: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with lock_file(path), raises(InputError, "another run"), lock_file(path):
        pass


def test_an_error_before_the_first_round_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        loop.train_run(tiny("fleet.cuts=[1, 2, 99]"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- runs that stopped early


@pytest.mark.parametrize(
    "left", [[], ["config.json"], ["config.json", "environment.json", "rounds.jsonl", "clients.json"]]
)
def test_a_run_without_a_checkpoint_begins_anew(whole: Path, tmp_path: Path, left: list[str]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in left:
        shutil.copy(whole / name, folder)
    (folder / f"{SCRATCH}half").write_text("half a file")
    told = Told()
    loop.train_run(tiny(), folder, resume=True if left else None, observer=told)
    assert same_model(folder, whole)
    assert not list(folder.glob(f"{SCRATCH}*"))
    assert any("begins anew" in message for message in told.warnings) == bool(left)


def test_scratch_files_are_nobodys_run(tmp_path: Path) -> None:
    (tmp_path / f"{SCRATCH}x").write_text("half")
    loop.train_run(tiny(), tmp_path)
    assert (tmp_path / "summary.json").exists()


def test_a_run_that_is_killed_before_its_checkpoint_runs_again(whole: Path, tmp_path: Path) -> None:
    """With a checkpoint every hundred rounds, a kill in round 2 leaves rounds and no checkpoint."""
    code = f"""
import os, signal
from tests.small_runs import tiny
from hsfl.runs import loop
class Kill(loop.Observer):
    def round_ends(self, record):
        if record.round == 2:
            os.kill(os.getpid(), signal.SIGKILL)
loop.train_run(tiny("log.checkpoint_every=100"), {str(tmp_path / "run")!r}, observer=Kill())
"""
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "run" / "checkpoint").exists()
    run_or_resume(tiny("log.checkpoint_every=100"), tmp_path / "run", loop.Observer())
    assert same_model(tmp_path / "run", whole)


def test_what_a_kill_amid_tensors_leaves_is_cleared(tmp_path: Path) -> None:
    """The process dies when its file reaches 1000 bytes, while safetensors writes to a file with a name of its own choice."""
    code = f"""
import resource, signal, torch
from pathlib import Path
from hsfl.runs.run_folder.checkpoint import save_tensors
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
save_tensors(Path({str(tmp_path / "model.safetensors")!r}), {{"weight": torch.zeros(10_000)}})
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == -signal.SIGXFSZ
    assert list(tmp_path.iterdir())
    assert not holds_something(tmp_path)
    RunFolder(tmp_path).clear_scratch()
    assert not list(tmp_path.iterdir())


def test_a_lost_connection_is_as_ctrl_c(tmp_path: Path) -> None:
    code = f"""
import os, signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup make test has it ignored
from tests.small_runs import tiny
from hsfl.runs import loop
class HangUp(loop.Observer):
    def round_ends(self, record):
        os.kill(os.getpid(), signal.SIGHUP)
try:
    loop.train_run(tiny(), {str(tmp_path / "run")!r}, observer=HangUp())
except loop.RunStopped as stop:
    print(stop.summary.status, stop.number == signal.SIGHUP)
"""
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "interrupted True\n", done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 1


# ---- plans


def test_a_resumed_run_keeps_the_cuts_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = ("fleet.cuts=planned", "allocation.policy=proposed", "allocation.samples=2", "fleet.max_cut=[3, 4, 5]")
    first = loop.train_run(tiny(*planned, "train.rounds=1"), tmp_path / "run")
    assert first.status == "finished"
    cuts = RunFolder(tmp_path / "run").rounds()[0].cuts
    from hsfl.runs import prepare as preparing

    def other(*_: object) -> tuple[int, ...]:
        raise AssertionError("the cuts are searched again")

    monkeypatch.setattr(preparing, "choose_cuts", other)
    loop.train_run(tiny(*planned), tmp_path / "run", resume=True)
    assert [record.cuts for record in RunFolder(tmp_path / "run").rounds()] == [cuts] * 3


# ---- damaged files, and states that are no numbers


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint/state.safetensors"])
def test_every_flipped_bit_is_noticed(whole: Path, tmp_path: Path, name: str) -> None:
    content = (whole / name).read_bytes()
    path = tmp_path / "file"
    header = 8 + int.from_bytes(content[:8], "little")
    for place in range(header, len(content), max(1, (len(content) - header) // 60)):
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << place % 8)]) + content[place + 1 :])
        with raises(Exception, "checksum"):
            load_tensors(path)
    path.write_bytes(content)
    load_tensors(path)


def test_a_damaged_checkpoint_is_one_line(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    path = tmp_path / "run" / "checkpoint" / "state.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 16
    path.write_bytes(content)
    with raises(InputError, "state.safetensors", "checksum"):
        loop.train_run(tiny("train.rounds=4"), tmp_path / "run", resume=True)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum"])
def test_nothing_that_is_no_number_is_saved(tmp_path: Path, optimizer: str) -> None:
    summary = loop.train_run(tiny("train.lr=1e38", f"train.optimizer={optimizer}"), tmp_path / "run")
    assert summary.status == "diverged"
    for name in ("model.safetensors", "checkpoint/state.safetensors"):
        tensors, _ = load_tensors(tmp_path / "run" / name)
        assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())


@pytest.mark.parametrize("framework", ["hsfl", "cl"])  # sums of clients are checked as well; cl has none
def test_weights_that_are_no_numbers_are_seen_where_the_loss_is_one(tmp_path: Path, framework: str) -> None:
    """One step a client, whose loss comes before the step, and no test in the round."""
    one_step = ("train.batch_size=64", "train.eval_every=3", "train.optimizer=sgd", "train.lr=1e300")
    summary = loop.train_run(tiny(*one_step, f"framework={framework}"), tmp_path / "run")
    assert (summary.status, summary.rounds) == ("diverged", 0)


def test_a_checkpoint_is_on_the_disk_before_it_replaces_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (seen.append("fsync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda old, new: (seen.append("replace"), replace(old, new)))
    save_tensors(tmp_path / "x", {"a": torch.zeros(2)})
    assert seen == ["replace", "fsync", "replace", "fsync"]  # out of the scratch folder; the file, its name, the folder


def test_the_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    def settings() -> RunConfig:
        return tiny("train.rounds=1")

    with pytest.raises(RuntimeError), RunFolder(tmp_path / "run").locked():
        raise RuntimeError
    began = time.monotonic()
    loop.train_run(settings(), tmp_path / "run")
    assert time.monotonic() - began < 60
    assert not (tmp_path / "run" / LOCK).exists()


def test_a_run_that_ended_never_begins_anew(whole: Path, tmp_path: Path) -> None:
    """Its checkpoint and its summary are gone: the models and rounds that are there stay."""
    shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    (tmp_path / "run" / "summary.json").unlink()
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"state\.safetensors"):
        loop.train_run(RunFolder(tmp_path / "run").config(), tmp_path / "run", resume=True)
    after = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {path: after[path] for path in before} == before
