"""`hsfl reproduce`, as people and programs call it; Table 1 and Fig. 3 at smoke scale on a data set that comes along."""

import csv
import re
import shutil
from pathlib import Path

import pytest

from hsfl.config import with_changes
from hsfl.data.registry import FACTS
from hsfl.experiments.table1.columns import base_config
from hsfl.runs.prepare import prepare
from tests.naming import names
from tests.report.test_tables import check_latex
from tests.small_runs import hsfl, refused

FAST = ["--scale", "smoke", "--datasets", "digits", "--results", "none", "--quiet"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a smoke reproduction."""
    out = tmp_path_factory.mktemp("reproduce")
    for what in ("table1", "fig3", "gains"):
        answer = hsfl("reproduce", what, *FAST, "--out", out, "--latex", "--json")
        assert answer.code == 0, answer
        assert all(Path(path).exists() for path in answer.json()[what]["files"])
    return out


def test_hsfl_splitfed_v1_and_fl_are_one_algorithm(results: Path) -> None:
    """V1 and FL are trained by themselves here, for all rounds."""
    text = (results / "table1" / "table1.md").read_text()
    (line,) = (line for line in text.splitlines() if "(not in the paper)" in line)
    assert "in the 4 round(s) that each was trained itself | yes |" in line
    for name in ("splitfed_v1", "fl"):
        assert (results / "table1" / "runs" / "digits" / name / "seed-1" / "summary.json").exists()


def test_tables_and_csv(results: Path) -> None:
    with (results / "table1" / "table1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7 * 2 * 3  # columns, fleets, fractions of the budget
    at = {(row["column"], row["fleet"], row["fraction"]): row for row in rows}
    assert at["splitfed_v1", "1", "1.0"]["rounds"] == "2"  # the budget is what it needs for half of the trained rounds
    assert at["cl", "1", "1.0"]["short"] == "True"
    with (results / "gains" / "gains.csv").open() as file:
        found = {
            (row["storage"], row["fleet"], row["column"]): float(row["mean_round_s"]) for row in csv.DictReader(file)
        }
    assert len(found) == 2 * 2 * 7
    for storage, fleet, _ in found:
        assert found[storage, fleet, "hsfl"] <= 1.02 * found[storage, fleet, "single_proposed"]
        assert found[storage, fleet, "hsfl_even"] <= 1.02 * found[storage, fleet, "single_even"]
    assert "training loss at" in (results / "fig3" / "fig3.md").read_text()


def test_every_table_of_the_markdown_is_a_csv_and_latex(results: Path) -> None:
    """A summary table for each table of the page."""
    for what in ("table1", "fig3", "gains"):
        tables, text = sorted((results / what).glob("table-*.csv")), (results / what / f"{what}.md").read_text()
        shown = len(re.findall(r"^\| :--", text, re.M)) + (what == "gains")  # whose claims are not on its page
        assert len(tables) == shown, tables
        for path in tables:
            rows = check_latex(path.with_suffix(".tex").read_text())
            with path.open(newline="") as file:
                assert len(list(csv.reader(file))) == len(rows)
    with (results / "table1" / "table-table1-rounds.csv").open(newline="") as file:
        (row,) = (row for row in csv.DictReader(file) if row["row"] == "SplitFed V1, as published")
    assert float(row["digits low"]) <= float(row["digits"]) <= float(row["digits high"])
    assert row["digits n"] == "2"


def test_a_folder_of_results_counts_as_trained(results: Path, tmp_path: Path) -> None:
    """Traces and cuts alone, without data or run folders, give the same tables."""
    shipped = tmp_path / "results"
    shutil.copytree(results / "table1" / "traces", shipped)
    shutil.copy(results / "table1" / "cuts-smoke.csv", shipped)
    words = ["--scale", "smoke", "--datasets", "digits", "--results", shipped, "--data-dir", tmp_path / "nothing"]
    answer = hsfl("reproduce", "table1", *words, "--out", tmp_path / "again", "--quiet")
    assert answer.code == 0, answer
    assert not (tmp_path / "again" / "table1" / "runs").exists()
    for name in ("table1.csv", "times.csv", "cuts-smoke.csv", "table1.md"):
        assert (tmp_path / "again" / "table1" / name).read_text() == (results / "table1" / name).read_text()


def test_what_is_done_is_not_done_again(results: Path) -> None:
    kept = [*(results / "table1" / "traces").glob("*.csv"), *(results / "table1" / "fleets").rglob("*.json")]
    lost = results / "table1" / "traces" / "digits-cl-smoke-seed-1.csv"
    before, written = lost.read_text(), {path: path.stat().st_mtime_ns for path in kept if path != lost}
    lost.unlink()
    assert hsfl("reproduce", "table1", *FAST, "--out", results).code == 0
    assert all(path.stat().st_mtime_ns == when for path, when in written.items())
    assert lost.read_text() == before  # from its run folder


def test_wrong_words_are_one_line(results: Path, tmp_path: Path) -> None:
    names(refused("reproduce", "fig6", "--out", tmp_path), "fig4")
    names(refused("reproduce", "fig4", "--scale", "qiuck", "--out", tmp_path), "quick")
    names(refused("reproduce", "table1", "--columns", "single_prposed", "--out", tmp_path), "single_proposed")
    names(refused("reproduce", "table1", "--datasets", ",", "--out", tmp_path), "at least one")
    names(refused("reproduce", "table1", "--columns", ",", "--out", tmp_path), "at least one")
    names(refused("reproduce", "table1", "--results", tmp_path / "x", "--out", tmp_path), "no folder")
    names(refused("reproduce", "table1", "--scale", "smoke", "--datasets", "digits,foo", "--out", tmp_path), "'foo'")
    assert not (tmp_path / "table1").exists()  # said before anything is trained
    names(refused("reproduce", "table1", "--datasets", "digits", "--out", results), "another --out")


def test_the_clock_charges_the_whole_data_set() -> None:
    """At every scale the clients' samples sum to the set's."""
    for scale in ("smoke", "full"):
        config = base_config("digits", scale, 1)
        bench = prepare(with_changes(config, ["model.name=cnn"]))
        assert bench.num_samples.sum() == pytest.approx(FACTS["digits"][0])


@pytest.mark.slow
def test_everything_at_smoke_scale(data_dir: Path, tmp_path: Path) -> None:
    words = ["--scale", "smoke", "--data-dir", data_dir, "--results", "none", "--out", tmp_path, "--quiet", "--json"]
    answer = hsfl("reproduce", "all", *words)
    assert answer.code == 0, answer
    found = answer.json()
    assert list(found) == ["fig1", "table1", "gains", "when", "fig3", "fig4", "fig5"]
    assert found["table1"]["trends"][-1]["paper"].startswith("(not in the paper)")
    assert found["table1"]["trends"][-1]["holds"] is True  # on all three data sets
    assert "HAM10000, balanced" in Path(found["table1"]["markdown"]).read_text()
