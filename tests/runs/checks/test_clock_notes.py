"""Seconds that are legal but mislead are said in one line, on every path to them: run, compare, sweep and plan."""

from pathlib import Path

import pytest

from hsfl.config import RunConfig
from hsfl.frameworks import find_framework
from hsfl.runs.checks.clock_notes import clock_notes
from hsfl.runs.loop import make_clock
from hsfl.runs.prepare import prepare
from hsfl.runs.run_folder.folder import RunFolder
from tests.naming import names
from tests.small_runs import hsfl, tiny, tiny_words

CHARGED = "network.sample_scale=2"  # somebody has thought about the limit
ALL_DIGITS = 1438


def notes_of(config: RunConfig) -> list[str]:
    bench = prepare(config)
    framework = find_framework(config.framework)(bench.task)
    return clock_notes(bench, framework, make_clock(bench, framework))


def test_a_limit_is_charged_as_if_it_were_all_and_said(tmp_path: Path) -> None:
    (note,) = notes_of(tiny())
    names(note, "data.limit", "60 of 1,438", f"network.sample_scale={ALL_DIGITS / 60:.6g}")
    assert notes_of(tiny(CHARGED)) == []
    assert notes_of(tiny(f"data.limit={ALL_DIGITS}")) == []


def test_the_scale_that_is_named_charges_the_whole_set() -> None:
    limited = prepare(tiny(f"network.sample_scale={ALL_DIGITS / 60:.6g}"))
    assert limited.num_samples.sum() == pytest.approx(ALL_DIGITS, rel=1e-5)


@pytest.mark.usefixtures("undrawn")
def test_every_command_says_it(tmp_path: Path) -> None:
    words = tiny_words("train.rounds=1", "allocation.policy=even")
    run = hsfl("run", *words, "--out", tmp_path / "run")
    compared = hsfl("compare", *words, "-f", "hsfl", "-f", "fl", "--train-once", "--out", tmp_path / "compare")
    points = ("sweep", "network.main_hz=1e10,2e10", "--plan-only")
    swept = hsfl(*points, *words, "-f", "hsfl", "--out", tmp_path / "sweep")
    for answer, times in ((run, 1), (compared, 2), (swept, 1)):  # a comparison has it among its notes, too
        assert answer.code == 0, answer
        assert (answer.out + answer.err).count("network.sample_scale=23.9667") == times
    for path in tmp_path.glob("compare/*/seed-*"):  # the run that was only timed, too
        assert any("network.sample_scale" in note for note in RunFolder(path).clients().notes), path


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (["framework=splitfed_v1", "fleet.cuts=5"], ["every cut is 5", "SplitFed V1 is FL", "fleet.one_cut"]),
        (["framework=fsl", "fleet.cuts=5"], ["FSL is FL", "fleet.one_cut"]),
        (["framework=fsl", "fleet.cuts=5", "options.fsl.average=server"], ["averages nothing"]),
        (["fleet.cuts=5"], ["HSFL is FL", "fleet.cuts"]),
    ],
)
def test_nothing_is_split_at_the_models_end(changes: list[str], parts: list[str]) -> None:
    (note,) = notes_of(tiny(CHARGED, *changes))
    names(note, *parts)


ALIKE = (CHARGED, "fleet.cpu_hz=[1e9,1e9]", "fleet.max_cut=3", "fleet.heterogeneity=0")


@pytest.mark.parametrize("changes", [["fleet.cuts=planned"], ["fleet.cuts=fastest", "allocation.policy=even"]])
def test_planned_cuts_that_are_one_cut_are_said(changes: list[str]) -> None:
    (note,) = notes_of(tiny(*ALIKE, *changes))
    names(note, "all clients have cut", "HSFL is SplitFed V1", "hsfl plan")
    assert "another allocation" not in note  # SplitFed V1 gets the same


def test_another_allocation_is_said_where_there_is_one() -> None:
    published = tiny(*ALIKE, "fleet.cuts=planned", "allocation.policy=own", "allocation.samples=1")
    names(notes_of(published)[0], "HSFL is SplitFed V1", "with another allocation")
    (note,) = notes_of(tiny(CHARGED, "fleet.cuts=5"))
    assert "another allocation" not in note


@pytest.mark.parametrize(
    "changes",
    [
        [*ALIKE, "fleet.cuts=3"],
        [*ALIKE, "fleet.cuts=planned", "fleet.num_clients=1"],
        ["framework=fl", "fleet.max_cut=5"],
        ["framework=sl", "fleet.cuts=5"],
        ["framework=splitfed_v1", "fleet.cuts=4"],
        [],
    ],
)
def test_who_splits_or_never_said_so_hears_nothing(changes: list[str]) -> None:
    assert notes_of(tiny(CHARGED, *changes)) == []


def test_a_wrong_unit_is_said_at_the_start(tmp_path: Path) -> None:
    words = tiny_words("network.sample_scale=10_000", "train.rounds=1", "network.subchannel_hz=1")
    answer = hsfl("run", *words, "--out", tmp_path / "run")
    names(answer.out + answer.err, "days", "network.subchannel_hz = 1")


def test_clients_that_train_more_than_they_hold_are_told() -> None:
    few = (CHARGED, "framework=fl", "fleet.cuts=1", "fleet.max_cut=[1, 3, 5]")
    (note,) = notes_of(tiny(*few))
    names(note, "2 of 3 clients", "whole model", "FL", "options.fl.needs_storage=true")
    assert notes_of(tiny(*few, "options.fl.needs_storage=true")) == []
    assert notes_of(tiny(CHARGED, "fleet.cuts=1", "fleet.max_cut=[1, 3, 5]")) == []
