"""Fig. 1(b): three rounds on one fleet, whose bars and waiting fill every client's round exactly."""

import csv
from itertools import pairwise

import pytest

from hsfl.experiments import fig1
from hsfl.experiments.common import Outcome

Spans = dict[tuple[str, int], list[tuple[str, float, float]]]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return fig1.reproduce_fig1(tmp_path_factory.mktemp("reproduce") / "fig1", "smoke", None, lambda text: None)


@pytest.fixture(scope="module")
def spans(outcome: Outcome) -> Spans:
    """(phase, start_s, end_s) by framework and client."""
    found: Spans = {}
    with outcome.files[0].open() as file:
        for row in csv.DictReader(file):
            found.setdefault((row["framework"], int(row["client"])), []).append(
                (row["phase"], float(row["start_s"]), float(row["end_s"]))
            )
    return found


def round_s(spans: Spans, framework: str) -> float:
    return max(end_s for (name, _), parts in spans.items() if name == framework for _, _, end_s in parts)


def test_files(outcome: Outcome) -> None:
    assert {path.name for path in outcome.files} == {"fig1.csv", "fig1.pdf", "fig1.png", "fig1.svg"}
    assert all(path.stat().st_size > 0 for path in outcome.files)
    assert next(path for path in outcome.files if path.suffix == ".png").stat().st_size < 300_000
    again = fig1.reproduce_fig1(outcome.markdown.parent, "quick", None, lambda text: None)  # the same at every scale
    assert again.markdown.read_text() == outcome.markdown.read_text()


def test_bars_and_waiting_fill_the_round(spans: Spans) -> None:
    assert set(spans) == {(name, k) for name in ("sl", "splitfed_v1", "hsfl") for k in range(5)}
    for (name, _), parts in spans.items():
        assert parts[0][1] == 0.0
        assert parts[-1][2] == round_s(spans, name)
        for (_, _, end_s), (_, start_s, _) in pairwise(parts):
            assert start_s == pytest.approx(end_s, rel=1e-6)


def test_sl_takes_turns_and_hsfl_waits_for_nobody(spans: Spans, outcome: Outcome) -> None:
    turns = [[part for part in spans["sl", k] if part[0] != "waiting"] for k in range(5)]
    for before, after in pairwise(turns):
        assert before[-1][2] <= after[0][1]
    waits = {
        name: sum(end_s - start_s for k in range(5) for phase, start_s, end_s in spans[name, k] if phase == "waiting")
        for name in ("splitfed_v1", "hsfl")
    }
    assert waits["splitfed_v1"] > 0.1 * round_s(spans, "splitfed_v1")
    assert waits["hsfl"] < 0.01 * round_s(spans, "hsfl")
    text = outcome.markdown.read_text()
    assert "| all end together |" in text
    assert f"| {round_s(spans, 'sl'):.1f} |" in text
    assert "n = 1 fleet, 1 round" in text
    assert all(trend.holds is None for trend in outcome.trends)  # one fleet shows, and decides nothing
