"""Evaluation, sweeps and observers from Python."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import hsfl as package
from hsfl.errors import InputError
from tests.naming import names, raises
from tests.small_runs import hsfl, tiny

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 6)), np.arange(60) % 3
OWN: dict[str, Any] = {
    "data": package.dataset(X, Y),
    "model": nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
    "fleet": {"num_clients": 3, "cuts": 1},
    "train": {"rounds": 1, "batch_size": 16},
}


def test_a_model_is_tested_as_the_command_does(tmp_path: Path) -> None:
    package.run(tiny("train.rounds=2"), tmp_path / "run", report=False)
    found = package.evaluate(tmp_path / "run", "best")
    assert hsfl("evaluate", tmp_path / "run", "--which", "best", "--json").json() == found.to_json()
    assert len(found.table()) == 10
    names(repr(found), "best model", "accuracy")
    with raises(InputError, "which='worst'", "last, best"):
        package.evaluate(tmp_path / "run", "worst")


def test_a_model_of_ones_own_is_tested_with_its_data(tmp_path: Path) -> None:
    result = package.run(None, tmp_path / "run", **OWN)
    tested = package.evaluate(tmp_path / "run", data=OWN["data"], model=OWN["model"])
    assert tested.accuracy == pytest.approx(result.test_accuracy)
    with raises(InputError, "from Python"):
        package.evaluate(tmp_path / "run", model=OWN["model"])
    with raises(InputError, "began with"):
        package.evaluate(tmp_path / "run", data=package.dataset(X + 1, Y), model=OWN["model"])


def test_a_sweep_of_data_and_a_model_of_ones_own(tmp_path: Path) -> None:
    found = package.sweep(None, {"train.lr": [0.01, np.float64(0.1)]}, ["hsfl", "fl"], tmp_path / "a", **OWN)
    assert [(row["train.lr"], row["contender"]) for row in found.table()] == [
        (lr, label) for lr in (0.01, 0.1) for label in ("hsfl", "fl")
    ]
    assert (tmp_path / "a/report.html").exists()
    names(found._repr_html_(), "train.lr", "One seed")
    timed = package.sweep(None, "train.batch_size=8,16", out=tmp_path / "b", plan_only=True, **OWN)
    assert {row["final_accuracy"] for row in timed.table() if "final_accuracy" in row} == set()
    assert timed.plot().axes
    with raises(InputError, "metric", "final_accuracy"):
        timed.plot("final_accuracy")
    with raises(InputError, "needs training", "plan_only=True"):
        package.sweep(None, "train.batch_size=8,16", metrics="test_loss", plan_only=True, **OWN)
    with raises(InputError, "a sweep needs values"):
        package.sweep(None, out=tmp_path / "c", **OWN)


@pytest.mark.slow  # processes take seconds to start
def test_runs_side_by_side_are_the_same_runs(tmp_path: Path) -> None:
    one = package.compare(None, ["hsfl", "fl"], tmp_path / "one", report=False, **OWN)
    two = package.compare(None, ["hsfl", "fl"], tmp_path / "two", jobs=2, report=False, **OWN)
    assert one.table() == two.table()


def test_a_number_of_jobs_is_checked(tmp_path: Path) -> None:
    with raises(InputError, "jobs 0"):
        package.compare(None, ["hsfl"], tmp_path / "a", jobs=0, **OWN)
    with raises(InputError, "jobs 0"):
        package.sweep(None, "train.lr=0.1", jobs=0, **OWN)


def test_an_observer_that_is_none_is_refused(tmp_path: Path) -> None:
    class Mine(package.Observer):
        pass

    for given, way_out in ((print, "hsfl.Observer"), (Mine, "Mine()"), (3, "observer is 3")):
        with raises(InputError, "observer", way_out):
            package.run(None, tmp_path / "run", observer=given, **OWN)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_by_its_folder_alone(tmp_path: Path) -> None:
    package.run(tiny("train.rounds=1"), tmp_path / "run", report=False)
    assert package.run(out=tmp_path / "run", train={"rounds": 2}, resume=True).rounds == 2
