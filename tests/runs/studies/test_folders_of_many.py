"""Folders that hold many runs: one comparison or sweep at a time, and what a killed one leaves is no content."""

from pathlib import Path

import pytest

from hsfl.errors import InputError
from hsfl.experiments.common import claim
from hsfl.files import SCRATCH
from hsfl.runs.run_folder.folder import LOCK, RunFolder
from hsfl.runs.studies.compare_runs import run_contenders
from hsfl.runs.studies.grid import read_grid
from hsfl.runs.studies.sweep_runs import run_sweep
from tests.naming import names, raises
from tests.small_runs import refused, tiny, tiny_words

SMALL = ("train.rounds=1", "data.limit=30", "data.limit_test=20")


def make(what: str, out: Path) -> None:
    """A comparison or a sweep of few runs, in this folder."""
    base = tiny(*SMALL)
    if what == "compare":
        run_contenders(base, ["hsfl"], out)
    else:
        run_sweep(base, read_grid(base, ["train.lr=0.01,0.02"]), ["hsfl"], out, plan_only=what == "timing")


@pytest.mark.parametrize("what", ["compare", "sweep", "timing"])
def test_a_kill_before_the_first_file_does_not_block_the_folder(what: str, tmp_path: Path) -> None:
    for name in (f"{SCRATCH}0-{what}.json", LOCK):
        (tmp_path / name).touch()
    make(what, tmp_path)
    assert not list(tmp_path.rglob(f"{SCRATCH}*"))
    assert not list(tmp_path.rglob(LOCK))


def test_a_kill_before_the_first_file_does_not_block_a_reproduction(tmp_path: Path) -> None:
    (tmp_path / f"{SCRATCH}0-settings.json").touch()
    claim(tmp_path, {"scale": "smoke"})
    (tmp_path / "settings.json").unlink()
    (tmp_path / "thesis.tex").touch()
    with raises(InputError, f"{tmp_path} already holds", "--out"):
        claim(tmp_path, {"scale": "smoke"})


@pytest.mark.parametrize("what", ["compare", "sweep", "timing"])
def test_one_at_a_time(what: str, tmp_path: Path) -> None:
    """Two that begin together in an empty folder with different settings would mix their runs."""
    with (
        RunFolder(tmp_path / "out").locked(),
        raises(InputError, "another run", str(tmp_path / "out"), "another --out"),
    ):
        make(what, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_that_is_refused_removes_nothing_of_another_one(tmp_path: Path) -> None:
    """`--out runs` where `runs/a` is meant: the unfinished file of a run under way in `runs/a` is about to be moved in place."""
    theirs = [tmp_path / "a" / "checkpoint" / f"{SCRATCH}0-state", tmp_path / f"{SCRATCH}0-compare.json"]
    theirs[0].parent.mkdir(parents=True)
    for path in (*theirs, tmp_path / "compare.json"):
        path.touch()
    names(refused("run", *tiny_words(), "--out", tmp_path), f"{tmp_path} already holds", "--out")
    assert all(path.exists() for path in theirs)


@pytest.mark.parametrize("summary", ["[]", "{}", '{"status": 3}', ""])
def test_a_damaged_summary_of_a_sweep_is_one_line(summary: str, tmp_path: Path) -> None:
    words = ("sweep", "train.lr=0.01,0.02", *tiny_words(*SMALL), "--out", tmp_path)
    make("sweep", tmp_path)
    path = next(tmp_path.rglob("summary.json"))
    path.write_text(summary)
    assert str(path) in refused(*words)
