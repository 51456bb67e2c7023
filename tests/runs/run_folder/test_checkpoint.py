"""A run stopped at any round and resumed gives, to the bit, what one never stopped gives."""

import json
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hsfl.config import RunConfig
from hsfl.errors import InputError
from hsfl.framework_table import METHODS
from hsfl.frameworks.framework import State
from hsfl.models.state import read_state
from hsfl.models.zoo import build
from hsfl.planning.fair_defaults import without_auto
from hsfl.runs import loop
from hsfl.runs.run_folder.checkpoint import load_checkpoint, load_tensors, save_checkpoint, save_tensors
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.run_folder.records import RoundRecord, RunStanding
from tests.naming import raises
from tests.small_runs import assert_same_run, numbers, read_strictly, tiny

# BatchNorm, dropout, several epochs, unequal clients, clients that miss a round: whatever a checkpoint could forget.
HARD = ("model.dropout=0.3", "train.local_epochs=2", "train.drop_rate=0.2", "data.partition=dirichlet")
CASES = [(f"framework={name}", "train.optimizer=adam") for name in METHODS]
CASES += [(f"framework={name}", "train.optimizer=momentum") for name in ("cl", "sl")]  # their optimiser lasts the run
CASES += [
    ("framework=fsl", "options.fsl.average=server"),
    ("framework=psl", "options.psl.cut_gradient=true"),
    ("framework=cpsl", "options.cpsl.cut=cluster", "train.schedule=step", "train.step_rounds=1"),
    ("framework=hsfl", "model.name=mlp", "fleet.cuts=[1, 2, 3]", "train.schedule=cosine", "train.proximal_mu=0.1"),
]


class CtrlC(loop.Observer):
    """Presses Ctrl-C at the start of the third batch of a round."""

    def __init__(self, in_round: int) -> None:
        self.in_round = in_round

    def round_starts(self, round_number, kept, num_samples):
        self.round_number, self.batches = round_number, 0

    def batch_starts(self, client, num_samples):
        self.batches += 1
        if (self.round_number, self.batches) == (self.in_round, 3):
            os.kill(os.getpid(), signal.SIGINT)


class Crash(loop.Observer):
    """The process dies when a round has ended."""

    def __init__(self, after_round: int) -> None:
        self.after_round = after_round

    def round_ends(self, record: RoundRecord) -> None:
        if record.round == self.after_round:
            raise SystemExit


def stop_in_round(number, config, folder):
    with pytest.raises(loop.RunStopped) as caught:
        loop.train_run(config, folder, observer=CtrlC(in_round=number))
    return caught.value.summary


@pytest.mark.parametrize("changes", CASES, ids=lambda changes: "-".join(word.split("=")[1] for word in changes))
def test_stopped_and_resumed_equals_never_stopped(tmp_path, changes):
    config = tiny(*HARD, *changes)
    loop.train_run(config, tmp_path / "whole")
    loop.train_run(config, tmp_path / "again")
    assert_same_run(tmp_path / "whole", tmp_path / "again")

    stopped = stop_in_round(2, config, tmp_path / "stopped")
    assert (stopped.status, stopped.rounds) == ("interrupted", 1)
    assert numbers(tmp_path / "stopped") == numbers(tmp_path / "whole")[:1]
    resumed = loop.train_run(config, tmp_path / "stopped", resume=True)
    assert (resumed.status, resumed.rounds) == ("finished", 3)
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_another_seed_gives_other_bits(tmp_path):
    loop.train_run(tiny("train.rounds=1"), tmp_path / "a")
    loop.train_run(tiny("train.rounds=1", "seed=1"), tmp_path / "b")
    assert (tmp_path / "a/model.safetensors").read_bytes() != (tmp_path / "b/model.safetensors").read_bytes()


def test_ctrl_c_in_the_first_round_leaves_a_whole_folder(tmp_path):
    loop.train_run(tiny(), tmp_path / "whole")
    stopped = stop_in_round(1, tiny(), tmp_path / "run")
    assert (stopped.status, stopped.rounds, stopped.test_accuracy, stopped.best_round) == ("interrupted", 0, None, None)
    assert (tmp_path / "run/model.safetensors").exists()
    loop.train_run(tiny(), tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_crash_falls_back_to_the_last_checkpoint(tmp_path):
    config = tiny("train.rounds=4", "log.checkpoint_every=2")
    loop.train_run(config, tmp_path / "whole")
    with pytest.raises(SystemExit):
        loop.train_run(config, tmp_path / "run", observer=Crash(after_round=3))
    assert len(numbers(tmp_path / "run")) == 3
    with (tmp_path / "run/rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "framew')
    loop.train_run(config, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_finished_run_goes_on_for_more_rounds(tmp_path):
    loop.train_run(tiny("train.rounds=2"), tmp_path / "run")
    loop.train_run(tiny("train.rounds=4"), tmp_path / "run", resume=True)
    loop.train_run(tiny("train.rounds=4"), tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    assert RunFolder(tmp_path / "run").config().train.rounds == 4


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    summary = loop.train_run(tiny(), tmp_path / "run")
    before = numbers(tmp_path / "run")
    assert loop.train_run(tiny(), tmp_path / "run", resume=True) == summary
    assert numbers(tmp_path / "run") == before


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    stop_in_round(3, tiny(), folder)
    return folder


def spoiled(stopped: Path, to: Path, spoil) -> Path:
    shutil.copytree(stopped, to)
    spoil(to / "checkpoint" / "state.safetensors")
    return to


def foreign(*changes: str):
    """Puts another run's checkpoint in place."""

    def spoil(path: Path) -> None:
        loop.train_run(tiny(*changes, "train.rounds=1"), path.parents[1] / "other")
        shutil.move(path.parents[1] / "other/checkpoint/state.safetensors", path)
        shutil.rmtree(path.parents[1] / "other")

    return spoil


def without_progress(path: Path) -> None:
    save_tensors(path, load_file(path))


def without_checksum(path: Path) -> None:
    save_file(load_file(path), path)


def with_standing(standing: dict[str, Any]) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        tensors, notes = load_tensors(path)
        save_tensors(path, tensors, notes | {"progress": json.dumps(standing)})

    return spoil


def without_tensors(path: Path) -> None:
    standing, config = RunStanding(2, None, None), without_auto(tiny())
    save_checkpoint(path, State({}, {"x": torch.zeros(3)}), standing, config)


SPOILS = {
    "missing": (lambda path: path.unlink(), ("is missing", "cannot go on")),
    "empty": (lambda path: path.write_bytes(b""), ("not hold a checkpoint",)),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-100]), ("not hold a checkpoint",)),
    "noise": (lambda path: path.write_bytes(b"\x07" * 5000), ("not hold a checkpoint",)),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), ("no ordinary file",)),
    "without standing": (without_progress, ("no 'config'",)),
    "without checksum": (without_checksum, ("checksum is wrong",)),
    "of other fields": (with_standing({"rounds_done": 2, "best_accuracy": 0.5}), ("note progress", "best is missing")),
    "without tensors": (without_tensors, ("no 'floats/main'",)),
    "of another seed": (foreign("seed=4"), ("seed = 4", "not 0")),
    "of another framework": (foreign("framework=sl"), ("framework = 'sl'", "not 'hsfl'")),
    "of another model": (foreign("model.name=mlp", "fleet.cuts=2"), ("model.name = 'mlp'", "not 'cnn'")),
}


@pytest.mark.parametrize("name", SPOILS)
def test_a_spoiled_checkpoint_is_one_line_and_changes_nothing(stopped, tmp_path, name):
    spoil, parts = SPOILS[name]
    folder = spoiled(stopped, tmp_path / "run", spoil)
    before = folder_bytes(folder)
    with raises(InputError, "checkpoint/state.safetensors", *parts):
        loop.train_run(tiny(), folder, resume=True)
    assert folder_bytes(folder) == before


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (("train.lr=0.5",), ("train.lr = 0.01", "not 0.5")),
        (("framework=fl",), ("framework = 'hsfl'", "not 'fl'")),
        (("train.rounds=1",), ("train.rounds is 1", "has done 2", "raise it")),
    ],
)
def test_other_settings_are_refused_and_change_nothing(stopped, changes, parts):
    before = folder_bytes(stopped)
    with raises(InputError, *parts):
        loop.train_run(tiny(*changes), stopped, resume=True)
    assert folder_bytes(stopped) == before


def test_a_folder_with_lost_rounds_is_refused(stopped, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    (folder / "rounds.jsonl").write_text("")
    with raises(InputError, "0 rounds", "checkpoint 2"):
        loop.train_run(tiny(), folder, resume=True)


def test_a_state_is_stored_whole(tmp_path):
    state = read_state(build("cnn", (1, 8, 8), 10, seed=1))
    state.ints.add_(7)
    first = State({"edge": state[0:2].clone(), "main": state[1:5].clone()}, {"head.0.step": torch.tensor(3.0)})
    save_checkpoint(tmp_path / "state", first, RunStanding(4, 0.5, 2), RunConfig())
    like = State({"edge": state[0:2].clone(), "main": state[1:5].clone()})
    loaded, standing = load_checkpoint(tmp_path / "state", like, RunConfig())
    assert standing == RunStanding(4, 0.5, 2)
    for name in ("edge", "main"):
        assert torch.equal(loaded.units[name].floats, first.units[name].floats)
        assert torch.equal(loaded.units[name].ints, first.units[name].ints)
    assert torch.equal(loaded.tensors["head.0.step"], torch.tensor(3.0))


def test_a_full_disk_keeps_the_old_checkpoint(tmp_path):
    """As the system shows it: a write beyond the allowed size fails half-way."""
    path = tmp_path / "state"
    save_tensors(path, {"x": torch.zeros(10)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with raises(InputError, str(path), "make room"):
            save_tensors(path, {"x": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert load_file(path)["x"].shape == (10,)
    assert os.listdir(tmp_path) == ["state"]


def test_the_interrupted_folder_says_so(stopped):
    (summary,) = read_strictly(stopped / "summary.json")
    assert (summary["status"], summary["rounds"], summary["framework"]) == ("interrupted", 2, "hsfl")
