"""The lines that say what was gained are the numbers of the runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from hsfl.report.comparison_summary import gain_sentences, read_comparison
from hsfl.report.page.page import page_data
from hsfl.report.page.page_sources import read_sources
from tests.report.fabricated import records, write_run
from tests.small_runs import hsfl, numbers, tiny_words


@pytest.mark.usefixtures("undrawn")
def test_the_lines_of_a_comparison(tmp_path: Path) -> None:
    words = ["compare", *tiny_words("train.rounds=4"), "-f", "hsfl", "-f", "splitfed_v1", "-f", "fl", "--quiet"]
    shown = hsfl(*words, "--out", tmp_path)
    lines = gain_sentences(
        read_comparison(tmp_path, labels=["hsfl", "splitfed_v1", "fl"])
    )  # in the order that was asked for
    assert all(line in shown.out for line in lines)
    again = hsfl(*words, "--out", tmp_path, "--latex", "--json").json()
    assert again["gained"] == lines
    files = {Path(path).name for path in again["files"]}
    assert {
        f"table-{name}.{kind}" for name in ("metrics", "time", "bytes", "pairs") for kind in ("csv", "tex")
    } <= files
    assert page_data(read_sources([tmp_path]))["tables"]["gained"] == lines  # on the page, too
    means = {}
    for name in ("hsfl", "splitfed_v1", "fl"):
        records = numbers(tmp_path / name / "seed-0")
        means[name] = sum(record["round_s"] for record in records) / len(records) if records else None
    assert f"HSFL {means['hsfl']:.3g} s" in lines[0]
    longer = means["splitfed_v1"] / means["hsfl"]
    assert f"SplitFed V1 {means['splitfed_v1']:.3g} s ({longer:.3g} times)" in lines[0]
    assert "last accuracy: HSFL " in lines[1]


@pytest.mark.usefixtures("undrawn")
def test_one_framework_alone_gains_nothing(tmp_path: Path) -> None:
    assert hsfl("compare", *tiny_words(), "-f", "hsfl", "--quiet", "--out", tmp_path).code == 0
    assert gain_sentences(read_comparison(tmp_path)) == []


def test_to_reach_what_says_nothing_is_left_out(tmp_path: Path) -> None:
    """A run that ends no better than it began, and one that is reached at the same time."""

    def lines(name: str, theirs: list[float], round_s: float) -> str:
        for label, rounds in (("hsfl", records([0.1, 0.5, 0.6], 1.0)), ("fl", records(theirs, round_s))):
            write_run(tmp_path / name, label, 0, [replace(one, framework=label) for one in rounds])
        return " ".join(gain_sentences(read_comparison(tmp_path / name, labels=["hsfl", "fl"])))

    assert "HSFL reached the last accuracy of FL after 2 s instead of 6 s" in lines("sooner", [0.1, 0.2, 0.5], 2.0)
    assert "reached" not in lines("fallen", [0.4, 0.3, 0.2], 2.0)
    assert "reached" not in lines("alike", [0.1, 0.5, 0.6], 1.0)


def test_who_made_no_round_and_who_is_the_reference_is_said(tmp_path: Path) -> None:
    for label, rounds in (("sl", records([0.1, 0.5], 1.0)), ("psl", records([0.1, 0.4], 1.0)), ("fl", [])):
        write_run(tmp_path, label, 0, rounds, "budget", "train.budget_s=2.5")
    lines = gain_sentences(read_comparison(tmp_path, labels=["sl", "psl", "fl"]))
    assert lines[1] == "FL made no round within the budget of 2.5 s."
    assert lines[2] == "The reference is SL: the others are compared with it."
