"""The lines that say what was gained are the numbers of the runs."""

from pathlib import Path

from hsfl.report.comparing import read_comparison
from hsfl.report.gained import gained
from hsfl.report.page_data import page_data
from hsfl.report.page_sources import read_sources
from tests.small_runs import hsfl, numbers, tiny_words


def test_the_lines_of_a_comparison(tmp_path: Path) -> None:
    words = ["compare", *tiny_words("train.rounds=4"), "-f", "hsfl", "-f", "splitfed_v1", "-f", "fl", "--quiet"]
    shown = hsfl(*words, "--out", tmp_path)
    lines = gained(read_comparison(tmp_path, labels=["hsfl", "splitfed_v1", "fl"]))  # in the order that was asked for
    assert all(line in shown.out for line in lines)
    assert hsfl(*words, "--out", tmp_path, "--json").json()["gained"] == lines
    assert page_data(read_sources([tmp_path]))["tables"]["gained"] == lines  # on the page, too
    means = {}
    for name in ("hsfl", "splitfed_v1", "fl"):
        records = numbers(tmp_path / name / "seed-0")
        means[name] = sum(record["round_s"] for record in records) / len(records) if records else None
    assert lines[0].startswith(f"A round takes {means['hsfl']:.3g}"[:16])
    longer = means["splitfed_v1"] / means["hsfl"]
    assert f"with SplitFed V1 ({longer:.3g} times as long)" in lines[0]
    assert "HSFL has an accuracy of" in lines[1]


def test_one_framework_alone_gains_nothing(tmp_path: Path) -> None:
    assert hsfl("compare", *tiny_words(), "-f", "hsfl", "--quiet", "--out", tmp_path).code == 0
    assert gained(read_comparison(tmp_path)) == []
