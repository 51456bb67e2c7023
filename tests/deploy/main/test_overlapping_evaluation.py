"""A test beside the next round: the same numbers as a test that a round waits for, whatever happens in between."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from hsfl.deploy.main import overlapping_evaluation
from hsfl.deploy.main.server_checkpoint import MainCheckpoint
from hsfl.deploy.settings import MainSettings, run_config
from hsfl.errors import InputError
from hsfl.runs.run_folder.folder import RunFolder
from tests.deploy.fleet import RUN, changed
from tests.deploy.inside import Inside
from tests.naming import raises

ROUNDS = 4
SAME = ("round", "test_loss", "test_accuracy", "recall", "train_loss", "kept", "bytes")


def deployment(folder: Path, beside: bool = True, **train: Any) -> Inside:
    folder.mkdir()
    run = changed(RUN, train={"rounds": ROUNDS} | train, fleet={"cuts": [1, 2, 3, 5]})
    return Inside(folder, run, more={"test_beside": beside})


def learned(inside: Inside) -> tuple[list[dict[str, Any]], bytes, bytes]:
    """What a run has learned: its records, its last model and its best one."""
    models = ((inside.folder / "run" / name).read_bytes() for name in ("model.safetensors", "model-best.safetensors"))
    return [{name: record[name] for name in SAME} for record in inside.rounds()], *models


@pytest.fixture(scope="module")
def waited_for(tmp_path_factory: pytest.TempPathFactory) -> Inside:
    """A deployment whose rounds wait for their tests."""
    inside = deployment(tmp_path_factory.mktemp("waited") / "run", beside=False)
    inside.go()
    return inside


def test_the_numbers_are_those_of_a_round_that_waits(waited_for: Inside, tmp_path: Path) -> None:
    inside = deployment(tmp_path / "beside")
    summary = inside.go()
    assert learned(inside) == learned(waited_for)
    assert summary.best_accuracy == max(record["test_accuracy"] for record in inside.rounds())
    tested = [
        (line["event"], line["round"])
        for line in inside.events("main")
        if line["event"] in ("round complete", "round tested")
    ]
    assert tested.index(("round tested", 1)) > tested.index(("round complete", 1)), "complete before it is tested"
    assert [number for event, number in tested if event == "round tested"] == [*range(1, ROUNDS)], (
        "the last one is waited for"
    )
    modelled = [record["modelled_ending_s"] for record in inside.rounds()]
    assert [("test" in parts) for parts in modelled] == [False] * (ROUNDS - 1) + [True]


def test_with_codecs_too(tmp_path: Path) -> None:
    """Each codec at each cut is a test of its own, and the last round, whose test is waited for, is judged in the same way."""
    folders = {beside: deployment(tmp_path / str(beside), beside) for beside in (False, True)}
    for inside in folders.values():
        inside.run = changed(inside.run, link={"up": "int8"})
        assert inside.go().status == "finished"
    plain, beside = ([record["coded"] for record in inside.rounds()] for inside in folders.values())
    assert plain == beside
    assert None not in plain


class Killed(BaseException):
    """Stands for the end of the process."""


SLOW = pytest.mark.slow
KILLED_AT = [
    "the record of 2",
    *(pytest.param(f"the {what}", marks=SLOW) for what in ("checkpoint of 2", "checkpoint of 3", "best model")),
]


@pytest.mark.parametrize("killed_at", KILLED_AT)
def test_a_killed_main_server_tests_again_and_loses_no_round(
    waited_for: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    """With the checkpoint of round 2 in place and its test not written down; before; and with its test written down."""
    inside, replace, append = deployment(tmp_path / "killed"), os.replace, RunFolder.append
    (number,) = [word for word in killed_at.split() if word.isdigit()] or "1"

    def replacing(source: Any, target: Any) -> None:
        dies = {"the checkpoint of": f"round-{number}.safetensors", "the best": "model-best.safetensors"}
        name = dies.get(killed_at.rsplit(" ", 1)[0])
        if Path(target).name == name and Path(target).is_relative_to(tmp_path / "killed" / "run"):
            raise Killed
        replace(source, target)

    def appending(folder: RunFolder, record: Any) -> None:
        if killed_at == f"the record of {record.round}":
            raise Killed
        append(folder, record)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", replacing)
        patched.setattr(RunFolder, "append", appending)
        with pytest.raises(Killed):
            inside.go()
    checkpoints = (tmp_path / "killed" / "run" / "checkpoint").glob("round-*")
    complete = max(int(path.stem.removeprefix("round-")) for path in checkpoints)
    written = [record["round"] for record in inside.rounds()]
    assert (complete, written) == {
        "the record of 2": (2, [1]), "the checkpoint of 2": (1, [1]), "the checkpoint of 3": (2, [1, 2]), "the best model": (1, []),
    }[killed_at]  # fmt: skip
    inside.go()
    assert learned(inside) == learned(waited_for)


def test_a_server_that_is_told_to_end_ends_its_test_first(
    waited_for: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes as the test of round 2 begins, which takes half a second here."""
    inside, begin, load = (
        deployment(tmp_path / "stopped"),
        MainCheckpoint._begin_test,
        overlapping_evaluation.load_state,
    )

    def beginning(checkpoint: MainCheckpoint, record: Any, whole: Any) -> None:
        begin(checkpoint, record, whole)
        if record.round == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    def loading(*words: Any) -> None:
        time.sleep(0.5)
        load(*words)

    with monkeypatch.context() as patched:
        patched.setattr(MainCheckpoint, "_begin_test", beginning)
        patched.setattr(overlapping_evaluation, "load_state", loading)
        summary = inside.go()
    checkpoints = (tmp_path / "stopped" / "run" / "checkpoint").glob("round-*")
    complete = max(int(path.stem.removeprefix("round-")) for path in checkpoints)
    assert (summary.status, summary.rounds, complete) == ("interrupted", 2, 2)
    inside.go()
    assert learned(inside) == learned(waited_for)


@SLOW
def test_rounds_that_are_not_tested_wait_for_nothing(tmp_path: Path) -> None:
    inside = deployment(tmp_path / "seldom", eval_every=2)
    inside.go()
    assert [record["test_loss"] is not None for record in inside.rounds()] == [False, True, False, True]
    assert [record["round"] for record in inside.rounds()] == [*range(1, ROUNDS + 1)]


@pytest.mark.parametrize(("name", "value"), [("on_jump", "reject"), ("evaluate", "none"), ("evaluate", "clients")])
def test_what_a_round_must_wait_for_is_not_tested_beside_it(name: str, value: str) -> None:
    settings = MainSettings(test_beside=True, run=changed(RUN, data={"name": "digits"}), **{name: value})
    with raises(InputError, "test_beside", f"{name} is '{value}'", "leave test_beside out"):
        run_config(settings)


@SLOW
def test_a_warning_of_a_jump_and_a_test_beside_go_together(waited_for: Inside, tmp_path: Path) -> None:
    inside = deployment(tmp_path / "warned")
    inside.more["on_jump"] = "warn"
    inside.go()
    assert learned(inside) == learned(waited_for)
