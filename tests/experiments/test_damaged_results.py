"""Damaged files of a reproduction are one line, and numbers that cannot be are no results."""

import json
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hsfl.errors import InputError
from hsfl.experiments.common import claim
from hsfl.experiments.latency.latency_study import read_point
from hsfl.experiments.table1.fleets import Answer, cost_of, make_point, read_answer, read_cuts, solve_fleet, write_cuts
from hsfl.experiments.table1.tau_row import TauRow, read_tau_rows
from hsfl.experiments.table1.traces import read_trace
from hsfl.files import write_json
from tests.naming import raises
from tests.runs.damage import damaged

ROOT = Path(__file__).parents[2]
POINT = make_point("mnist", "smoke", 1, 2, [60] * 10, ("hsfl",))
ANSWER = Answer(
    "mnist",
    1,
    2,
    "drawn",
    0.01,
    {"hsfl": [2] * 10},
    {"hsfl": [3.5]},
    [1e9] * 10,
    [3] * 10,
    [60.0] * 10,
    0.5,
    "settings",
)
ROUNDS = {"cuts": [2, 2], "plan_s": [1.5, 2.0], "fresh_s": [1.0]}
SOLVED = {
    **{"name": "x", "seed": 3, "rounds": {"proposed": ROUNDS}, "seconds": 1.0},
    "plan": {"mean_s": 2.0, "lower_bound_s": 1.0, "gap": 0.5, "seconds": 1.0},
}


def made(kind: str, place: Path) -> tuple[Path, Callable[[], Any]]:
    """A whole file of this kind, and how it is read."""
    if kind == "trace":
        path = place / "trace.csv"
        path.write_bytes((ROOT / "docs/results/mnist-fl-quick-seed-1.csv").read_bytes())
        return path, lambda: read_trace(path)
    if kind == "cuts":
        path = write_cuts(place / "cuts.csv", [ANSWER])
        return path, lambda: read_cuts(path)
    if kind == "tau":
        names = list(TauRow.__dataclass_fields__)
        path = place / "tau.csv"
        path.write_text(",".join(names) + "\n" + ",".join("False" if name == "short" else "1" for name in names) + "\n")
        return path, lambda: read_tau_rows(path)
    if kind == "answer":
        path = place / POINT.file
        write_json(path, asdict(ANSWER))
        return path, lambda: read_answer(place, POINT)
    if kind == "settings":
        path = place / "settings.json"
        claim(place, {"scale": "smoke", "configs": {"mnist": {}}})
        return path, lambda: claim(place, {"scale": "smoke", "configs": {"mnist": {}}})
    path = place / "points" / "x" / "seed-3.json"
    write_json(path, SOLVED)
    return path, lambda: read_point(place, "x", 3)


@pytest.mark.parametrize("kind", ["trace", "cuts", "tau", "answer", "settings", "point"])
def test_a_damaged_result_is_one_line(kind: str, tmp_path: Path) -> None:
    for seed in range(60):
        path, read = made(kind, tmp_path / str(seed))
        if kind != "settings":
            read()
        said = damaged(path, random.Random(seed))
        error = None
        try:
            read()
        except Exception as caught:
            error = caught
        fine = error is None or (isinstance(error, InputError) and "\n" not in str(error))
        assert fine, f"{said} in seed {seed}: {error!r}"


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> None:
    for seed in range(60):
        (tmp_path / str(seed)).mkdir()


@pytest.mark.parametrize("wrong", ["nan", "inf", "1e400", "7", "-0.1"])
def test_an_accuracy_that_cannot_be_is_no_result(wrong: str, tmp_path: Path) -> None:
    path, _ = made("trace", tmp_path)
    lines = path.read_text().splitlines()
    cells = lines[2].split(",")
    path.write_text("\n".join([*lines[:2], ",".join([*cells[:3], wrong, *cells[4:]]), *lines[3:]]))
    with raises(InputError, "trace.csv", "trace"):
        read_trace(path)


def test_the_answer_of_another_fleet_is_not_taken(tmp_path: Path) -> None:
    path, read = made("answer", tmp_path)
    path.write_text(json.dumps(asdict(ANSWER) | {"fleet": 3}))
    with raises(InputError, str(path), "another fleet"):
        read()


@pytest.mark.parametrize("cuts", [[2] * 9, [99] * 10, [-1] * 10])
def test_known_cuts_that_cannot_be_are_named(cuts: list[int]) -> None:
    with raises(InputError, "known cuts", "hsfl"):
        solve_fleet(POINT, cost_of(POINT.config), {"hsfl": cuts}, 0.1)
