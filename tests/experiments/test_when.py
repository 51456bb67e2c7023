"""When own cuts are worth it: verdicts by hand, bits and samples as they say, and the grid at smoke scale."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hsfl.config import with_changes
from hsfl.experiments.statistics import UNDECIDED
from hsfl.experiments.when_maps import counts_at, difference_from_preset, place_table, when_trends
from hsfl.experiments.when_study import (
    AT_LEAST,
    BELOW,
    PRESET,
    SPREADS,
    FleetAnswer,
    Place,
    cuts_verdict,
    fleet_tasks,
    samples_of,
    solve_tasks,
    when_study,
    with_bits,
)
from hsfl.models.cost_table import CostTable
from hsfl.report.tables import markdown_rows
from tests.small_runs import hsfl

COST = CostTable(
    client_forward_flops=np.array([0.0, 1.0, 2.0]),
    client_backward_flops=np.array([0.0, 2.0, 4.0]),
    server_forward_flops=np.array([2.0, 1.0, 0.0]),
    server_backward_flops=np.array([4.0, 2.0, 0.0]),
    smashed_bits=np.array([24.0, 64.0, 0.0]),
    gradient_bits=np.array([0.0, 32.0, 0.0]),
    model_bits=np.array([0.0, 96.0, 160.0]),
)


@pytest.mark.parametrize(
    ("own_s", "single_s", "single_bound_s", "cuts_bound_s", "expected"),
    [
        (100.0, 100.5, 100.4, 99.6, BELOW),  # 100.5 / 1.01 = 99.50
        (100.0, 100.5, 100.4, 99.4, UNDECIDED),  # cuts of 99.45 s may exist
        (100.0, 101.0, 101.0, 100.0, BELOW),  # exactly 1 %, and no cuts are better
        (100.0, 102.0, 101.5, 98.0, AT_LEAST),
        (100.0, 102.0, 100.9, 98.0, UNDECIDED),  # another single cut may take 100.9 s
        (100.0, 99.0, 98.9, 98.5, BELOW),  # planned cuts that are worse on fresh channels
    ],
)
def test_verdicts_by_hand(
    own_s: float, single_s: float, single_bound_s: float, cuts_bound_s: float, expected: str
) -> None:
    assert cuts_verdict(own_s, single_s, single_bound_s, cuts_bound_s) == expected


def test_fewer_bits_shorten_smashed_data_and_gradients_alone() -> None:
    scaled = with_bits(COST, 8)
    assert scaled.smashed_bits.tolist() == [24.0, 16.0, 0.0]  # raw data are no floats
    assert scaled.gradient_bits.tolist() == [0.0, 8.0, 0.0]
    assert scaled.model_bits.tolist() == COST.model_bits.tolist()
    assert with_bits(COST, 32).to_dict() == COST.to_dict()


def test_samples_are_divided_whole_and_ever_more_unequally() -> None:
    fleets = [with_changes(when_study("quick").base, [f"fleet.seed={seed}"]) for seed in range(1, 11)]
    spread = {name: np.array([samples_of(config, name) for config in fleets]) for name in SPREADS}  # [fleets, K]
    assert all((samples.sum(axis=1) == 50_000).all() for samples in spread.values())
    assert (spread["equal"] == 5000.0).all()
    deviations = [spread[name].std(axis=1).mean() for name in SPREADS]
    assert deviations == sorted(deviations)
    assert deviations[2] > 1.3 * deviations[1] > 0
    assert (spread["Dirichlet 0.5"][0] != spread["Dirichlet 0.5"][1]).any()  # a fleet has a division of its own


def test_a_task_has_the_settings_of_its_place() -> None:
    wanted = when_study("full")
    every = {(task.place, task.config.fleet_seed): task for task in fleet_tasks(wanted)}
    assert len(every) == len({task.file for task in every.values()}) == 3 * 3 * 3 * 4 * 30
    config = every[Place("equal", 0.5, 30.0, 8), 7].config
    assert config.fleet.heterogeneity == 0.5
    assert config.network.noise_w == pytest.approx(30 * wanted.base.network.noise_w)
    assert every[PRESET, 1].config.network == wanted.base.network
    assert every[PRESET, 1].config.fleet.heterogeneity == wanted.base.fleet.heterogeneity


def test_scale_full_goes_on_where_quick_was() -> None:
    quick, full = when_study("quick"), when_study("full")
    assert quick.settings() == full.settings()
    assert {task.file for task in fleet_tasks(quick)} < {task.file for task in fleet_tasks(full)}


def answer(fleet: int, own_s: float, single_s: float, bound_s: float) -> FleetAnswer:
    return FleetAnswer(fleet, own_s, single_s, single_s, bound_s, [1, 2], 1, 0.5)


def test_fleets_are_counted_and_averaged_by_place() -> None:
    of_place = [answer(1, 10.0, 11.0, 9.0), answer(2, 10.0, 12.0, 9.0), answer(3, 10.0, 10.0, 10.0), answer(4, 10.0, 10.05, 9.0)]  # fmt: skip
    assert counts_at(of_place) == [2, 1, 1]
    mean = (1.1 * 1.2 * 1.0 * 1.005) ** 0.25
    noisy = replace(PRESET, noise=30.0)
    text = markdown_rows(place_table({PRESET: of_place, noisy: of_place[:1]}))
    assert f"| Dirichlet 0.5 | 1 | 1 | 32 | {mean:.3f} [" in text
    assert "(1.00 to 1.20) | 2 | 1 | 1 |" in text
    assert "| Dirichlet 0.5 | 1 | 30 | 32 | 1.100 [1.100, 1.100] (1.10 to 1.10) | 1 | 0 | 0 |" in text
    paper, other = when_trends({noisy: of_place[:1], PRESET: of_place})
    assert paper.holds is True
    assert "2 at least 1 %, 1 undecided, 1 below 1 % (proven) of 4 fleets" in paper.ours
    assert (other.paper, other.holds) == ("(not in the paper) the same with 30 times the noise", None)
    assert difference_from_preset(replace(noisy, bits=8)) is None


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the study at smoke scale."""
    out = tmp_path_factory.mktemp("when")
    answer = hsfl("reproduce", "when", "--scale", "smoke", "--out", out, "--quiet", "--json")
    assert answer.code == 0, answer
    assert all(Path(path).exists() for path in answer.json()["when"]["files"])
    return out / "when"


def test_bounds_lie_below_rounds(results: Path) -> None:
    with (results / "when.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 1 * 2 * 2 * 2  # spreads, speeds, noises, bits, fleets
    for row in rows:
        own_s, single_s, single_bound_s, cuts_bound_s = (
            float(row[name]) for name in ("own_s", "single_s", "single_bound_s", "cuts_bound_s")
        )
        assert 0 < cuts_bound_s <= min(own_s, single_s) * (1 + 1e-9)
        assert cuts_bound_s <= single_bound_s * (1 + 1e-3)
        assert 0.9 * single_s <= single_bound_s <= single_s * (1 + 1e-9)
        assert row["verdict"] == cuts_verdict(own_s, single_s, single_bound_s, cuts_bound_s)
    of = {(row["spread"], row["noise"], row["bits"], row["fleet"]): float(row["own_s"]) for row in rows}
    assert all(of[a, b, "8", f] < of[a, b, "32", f] for a, b, _, f in of)  # fewer bits, shorter rounds
    assert all(of[a, "1", c, f] < of[a, "1000", c, f] for a, _, c, f in of)  # more noise, longer rounds
    assert "![own cuts over the best single cut" in (results / "when.md").read_text()


def test_what_is_solved_is_not_solved_again(results: Path) -> None:
    files = sorted((results / "fleets").rglob("*.json"))
    assert len(files) == 16
    lost = files[3]
    before, written = lost.read_text(), {path: path.stat().st_mtime_ns for path in files if path != lost}
    lost.unlink()
    told: list[str] = []
    solve_tasks(when_study("smoke"), results, told.append)
    assert len(told) == 1
    assert all(path.stat().st_mtime_ns == time_ns for path, time_ns in written.items())
    assert lost.read_text().split('"seconds"')[0] == before.split('"seconds"')[0]
