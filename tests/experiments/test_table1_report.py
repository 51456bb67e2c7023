"""What Table 1 makes of run folders, by hand."""

from pathlib import Path

import pytest

from hsfl.experiments.columns import Plan
from hsfl.experiments.fig3 import draw as draw_fig3
from hsfl.experiments.fig3 import find_trends as fig3_trends
from hsfl.experiments.fig3 import loss_at
from hsfl.experiments.table1_report import Cell, equality, find_trends, markdown, read_cells
from hsfl.report.comparison import read_comparison
from tests.report.fabricated import records, write_run

BUDGET = "train.budget_s=40"


def cells(out: Path, accuracies: dict[str, list[float]], data: str = "cifar10", which: str = "budget") -> list[Cell]:
    """Runs of ten seconds a round for seeds 1 and 2, the second a point better in every round."""
    for label, values in accuracies.items():
        for seed in (1, 2):
            shifted = [value + 0.01 * (seed - 1) for value in values]
            status = "budget" if len(values) > 3 else "finished"
            write_run(out / data / which, label, seed, records(shifted), status, BUDGET)
    return read_cells(out, data, which, accuracies, [1, 2])


def test_order_of_frameworks(tmp_path: Path) -> None:
    found = find_trends(cells(tmp_path, {"hsfl": [0.1, 0.5], "splitfed_v1": [0.4], "fl": [0.55], "cl": [0.7]}))
    assert [trend.holds for trend in found[:3]] == [True, False, True]
    assert "CIFAR-10 +10.0 points" in found[0].ours
    assert "CIFAR-10 -5.0 points" in found[1].ours


def test_one_seed_decides_nothing(tmp_path: Path) -> None:
    write_run(tmp_path / "cifar10" / "budget", "hsfl", 1, records([0.5]))
    write_run(tmp_path / "cifar10" / "budget", "fl", 1, records([0.4]))
    (trend,) = find_trends(read_cells(tmp_path, "cifar10", "budget", ("hsfl", "fl"), [1]))
    assert trend.holds is None
    assert "+10.0 points (one seed, which decides nothing)" in trend.ours


def test_the_papers_claims_are_asked_where_it_makes_them(tmp_path: Path) -> None:
    """On MNIST the paper's HSFL is above its CL, so nothing is to be shown there; no round is no accuracy."""
    found = cells(tmp_path, {"hsfl": [0.9], "cl": [0.8]}, "mnist")
    assert find_trends(found) == []  # nothing to compare, nothing said
    found += cells(tmp_path, {"hsfl": [0.5], "cl": [0.6]}, "cifar10")
    assert find_trends(found)[0].holds is True
    found += cells(tmp_path, {"hsfl": [0.5], "cl": []}, "ham10000")
    assert "HAM10000 no round in the budget" in find_trends(found)[0].ours
    assert find_trends(found)[0].holds is None


@pytest.mark.parametrize(("last", "holds"), [(0.5, True), (0.51, True), (0.55, False)])
def test_equality_at_equal_rounds(tmp_path: Path, last: float, holds: bool) -> None:
    trend = equality(cells(tmp_path, {"hsfl": [0.1, 0.5], "fl": [0.1, last]}, which="rounds"))
    assert trend.holds is holds
    assert f"{100 * (last - 0.5):.2f} points" in trend.ours


def test_more_rounds_are_not_equal_rounds(tmp_path: Path) -> None:
    assert equality(cells(tmp_path, {"hsfl": [0.1, 0.5], "fl": [0.1]}, which="rounds")).holds is False


def test_the_table_has_spread_the_papers_value_and_marks(tmp_path: Path) -> None:
    """Seeds 0.50 and 0.51: mean 50.5, half-width 12.7062 * 0.7071 / 1.4142 = 6.4 points."""
    found = cells(tmp_path, {"hsfl": [0.1, 0.2, 0.3, 0.5], "cl": [0.8]})
    text = markdown(
        found, {"cifar10": [Plan([1, 2], [3, 3], 5, 5.0, 0.0, 10.0, 40.0)]}, find_trends(found), "Scale smoke."
    )
    assert "| CIFAR-10 | 50.5 ± 6.4 | 80.5 ± 6.4 † |" in text
    assert "| CIFAR-10, the paper | 76.12 | 82.61 |" in text
    assert "over 2 seeds" in text
    assert "| CIFAR-10, HSFL | 4.0 ± 0.0 | 40 ± 0 |" in text
    assert "budget 40 s, tau 10 s, HSFL's cuts 1 2" in text


def test_fig3_compares_at_the_same_second(tmp_path: Path) -> None:
    """Losses are 2 / round: at 20 of 40 s HSFL has made two rounds (1.0), SL none."""
    runs = tmp_path / "table1" / "ham10000"
    for which in ("budget", "rounds"):
        write_run(runs / which, "hsfl", 1, records([0.1, 0.2, 0.3, 0.4]), "budget", BUDGET)
        write_run(runs / which, "fl", 1, records([0.1, 0.2], round_s=16.0), "budget", BUDGET)
        write_run(runs / which, "sl", 1, records([0.5], round_s=30.0), "budget", BUDGET)
    comparison = read_comparison(runs / "budget")
    assert [loss_at(comparison.runs_of(label)[0], 20.0) for label in ("hsfl", "fl", "sl")] == [1.0, 2.0, None]
    (trend,) = fig3_trends(comparison)
    assert trend.holds is None  # one seed
    assert "FL 2.000, SL has made no round, HSFL 1.000" in trend.ours
    outcome = draw_fig3(tmp_path / "fig3", tmp_path / "table1", ("hsfl", "fl", "sl"))
    assert len(outcome.files) == 4 * 3 + 1
    assert "| HSFL | - | 2.0000 | 1.0000 | 0.5000 |" in outcome.markdown.read_text()
    assert "n = 1 seed, no interval" in outcome.markdown.read_text()
    for label, seconds in (("hsfl", 10.0), ("fl", 16.0)):
        write_run(runs / "budget", label, 2, records([0.1, 0.2], round_s=seconds), "budget", BUDGET)
    (trend,) = fig3_trends(read_comparison(runs / "budget"))
    assert trend.holds is True
