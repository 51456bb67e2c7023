"""What own cuts, the allocation and splitting gain is told from contenders that differ in one of them alone."""

from pathlib import Path

import pytest

from hsfl.report.compared_runs import read_runs
from hsfl.report.comparison_summary import read_comparison, summarise_runs
from hsfl.report.decision_gains import decision_gains, decision_sentences
from hsfl.runs.studies.compare_runs import run_contenders
from tests.naming import names
from tests.report.fabricated import records, write_run
from tests.small_runs import tiny

LABELS = (
    "hsfl,allocation.policy=proposed,fleet.cuts=planned",
    "splitfed_v1,allocation.policy=proposed,fleet.one_cut=fastest",
    "splitfed_v1,allocation.policy=own,fleet.one_cut=max_cut",
    "fl,allocation.policy=proposed",
    "sl",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gains") / "compare"
    config = tiny("fleet.cuts=max_cut", "allocation.samples=2", "train.rounds=2", "network.main_hz=1e9")
    run_contenders(config, LABELS, out, train_once=True)
    return out


def test_each_decision_is_told_from_one_pair(folder: Path) -> None:
    comparison = read_comparison(folder, labels=LABELS)
    hsfl, v1, published, fl, _ = LABELS
    gains = decision_gains(comparison)
    assert [(gain.decision, gain.label, gain.without) for gain in gains] == [
        ("own cuts", hsfl, v1),
        ("the allocation and its cuts", v1, published),  # the fastest cut here, the deepest there
        ("splitting", v1, fl),
    ]
    for gain in gains:
        run = comparison.runs_of(gain.without)[0]
        assert gain.without_s == pytest.approx(run.sim_time_s / len(run.records))
    sentence = decision_sentences(comparison)[0]
    names(sentence, "own cuts", "times")


def test_the_allocation_is_named_alone_where_the_cuts_are_equal(folder: Path) -> None:
    comparison = read_comparison(folder, labels=LABELS)
    (published,) = (run for run in comparison.runs if run.label == LABELS[2])
    (v1,) = (run for run in comparison.runs if run.label == LABELS[1])
    published.records[0].cuts[:] = v1.records[0].cuts
    assert "the allocation" in {gain.decision for gain in decision_gains(comparison)}


def test_nothing_is_told_without_a_pair(folder: Path) -> None:
    assert decision_sentences(read_comparison(folder, labels=[LABELS[0], LABELS[4]])) == []
    assert decision_sentences(read_comparison(folder, labels=[LABELS[2], LABELS[3]])) == []  # two decisions at once


def test_a_model_that_is_cut_at_its_end_is_not_split(folder: Path) -> None:
    comparison = read_comparison(folder, labels=LABELS)
    (v1,), (fl,) = (comparison.runs_of(LABELS[place]) for place in (1, 3))
    for record in v1.records:
        record.cuts[:] = fl.records[0].cuts
    assert "splitting" not in {gain.decision for gain in decision_gains(comparison)}


def test_contenders_that_differ_in_more_are_not_set_against_each_other(folder: Path) -> None:
    comparison = read_comparison(folder, labels=LABELS)
    for run in comparison.runs_of(LABELS[0]):
        run.own_settings["train.local_epochs"] = 0.5
    assert "own cuts" not in {gain.decision for gain in decision_gains(comparison)}


@pytest.mark.parametrize(
    ("round_s", "accuracy", "verb", "times"),
    [
        (20.0, 0.4, "gains", "2 times as long [2, 2], n = 2 seeds"),
        (5.0, 0.7, "costs", "0.5 times as long [0.5, 0.5], n = 2 seeds"),
        (20.0, 0.7, "changes", "2 times as long [2, 2], n = 2 seeds"),
    ],
)
def test_a_loss_is_not_called_a_gain(tmp_path: Path, round_s: float, accuracy: float, verb: str, times: str) -> None:
    for seed in range(2):
        write_run(tmp_path, "splitfed_v1", seed, records([0.5, 0.6], allocation={"policy": "proposed"}))
        fl = records([accuracy, accuracy], round_s, allocation={"policy": "proposed"}, cuts=[5, 5])
        write_run(tmp_path, "fl", seed, fl)
    (sentence,) = decision_sentences(summarise_runs(read_runs(tmp_path)))
    assert sentence.startswith(
        f"What splitting {verb}: a round of SplitFed V1 takes 10 s, of FL {round_s:g} s ({times})"
    )
    if verb == "gains":
        assert "+20.0 points" in sentence
