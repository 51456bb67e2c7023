"""The leaderboard: every framework has a line, the fastest first, and only what is trained has seconds."""

from pathlib import Path

import pytest

from hsfl.errors import InputError
from hsfl.experiments.leaderboard import (
    NOT_REACHED,
    NOT_TRAINED,
    leaderboard_entries,
    leaderboard_table,
    reproduce_leaderboard,
)
from hsfl.experiments.study_request import StudyRequest
from hsfl.experiments.table1.columns import COLUMNS
from hsfl.experiments.table1.table1_study import Study, column_timings
from hsfl.framework_table import METHODS
from tests.experiments.table1.test_table1 import make_answer, make_trace
from tests.naming import raises

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_every_framework_has_one_entry_and_copies_per_client_one_trace() -> None:
    entries = leaderboard_entries()
    assert [entry.method.name for entry in entries] == list(METHODS)
    traces = {entry.method.name: COLUMNS[entry.column].trace for entry in entries if entry.method.copy_per_client}
    assert set(traces.values()) == {"twins"}
    policies = {entry.method.name: COLUMNS[entry.column].policy for entry in entries if not entry.method.pools_data}
    assert {name for name, policy in policies.items() if policy == "proposed"} == set(traces)


def small_study() -> Study:
    """Two fleets on which HSFL's rounds take 2 and 8 s, FL's 5 and 20 s; SL reaches 90 % with neither seed, 95 % with none."""
    columns = {entry.method.name: entry.column for entry in leaderboard_entries()}
    traces = {}
    for seed in (1, 2):
        traces["mnist", "twins", seed] = make_trace([0.5, 0.9, 0.95, 0.96], "twins", seed)
        traces["mnist", "sl", seed] = make_trace([0.5, 0.9 if seed == 1 else 0.6], "sl", seed)
    seconds = {1: {"hsfl": 2.0, "fl": 5.0, "sl": 1.0}, 2: {"hsfl": 8.0, "fl": 20.0, "sl": 1.0}}
    answers = [
        make_answer(fleet, {columns[name]: value for name, value in of_fleet.items()}, seed)
        for fleet, of_fleet in seconds.items()
        for seed in (1, 2)
    ]
    return Study(tuple(columns[name] for name in ("hsfl", "fl", "sl")), traces, answers)


def test_seconds_are_geometric_means_over_fleets_and_the_fastest_comes_first() -> None:
    study = small_study()
    table = leaderboard_table("mnist", leaderboard_entries(), study, list(column_timings(study)))
    rows = {row[0]: row[3:] for row in table.rows}
    assert [row[0] for row in table.rows][:3] == ["HSFL", "FL", "SL"]
    assert rows["HSFL"][0] == "4 [2, 8]"  # sqrt(2 * 8), of two fleets
    assert rows["HSFL"][1:] == ["8 [4, 16]", "12 [6, 24]", NOT_REACHED]  # after two and three rounds
    assert rows["FL"][1] == "20 [10, 40]"
    assert rows["SL"][1:] == ["2 (2 of 4)", NOT_REACHED, NOT_REACHED]
    assert {name for name, cells in rows.items() if cells[0] == NOT_TRAINED} == {
        row.title for name, row in METHODS.items() if name not in ("hsfl", "fl", "sl")
    }


def test_the_committed_trainings_have_a_place(tmp_path: Path) -> None:
    """And nothing is trained where a training is missing: the error names the command that trains."""
    with raises(InputError, "MNIST", "smoke", "hsfl reproduce table1"):
        reproduce_leaderboard(
            StudyRequest(tmp_path / "leaderboard", "smoke", 1, print, datasets=("mnist",), shipped=RESULTS)
        )
    assert not (tmp_path / "table1" / "runs").exists()


@pytest.mark.slow
def test_the_page_shows_what_the_command_makes(tmp_path: Path) -> None:
    """Every table of docs/leaderboard.md, from the committed traces, cuts and clocks."""
    request = StudyRequest(tmp_path / "leaderboard", "quick", None, print, shipped=RESULTS)
    made = reproduce_leaderboard(request).markdown.read_text()
    page = (RESULTS.parent / "leaderboard.md").read_text()
    tables = made[: made.index("Scale quick")]
    assert tables in page, "python docs/leaderboard.py writes the page anew"
