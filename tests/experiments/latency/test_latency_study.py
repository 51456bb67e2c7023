"""Latency studies: points are solved once, kept, and averaged as by hand; and the trends of Figs. 4 and 5."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hsfl.config import RunConfig, with_changes
from hsfl.errors import InputError
from hsfl.experiments.latency import fig4, fig5
from hsfl.experiments.latency.latency_report import (
    _latency_figure,
    longer,
    mean_s,
    read_latency_rows,
    rows_at,
    series_s,
    write_rows,
)
from hsfl.experiments.latency.latency_study import (
    PAPER,
    SIX,
    Axis,
    LatencyStudy,
    paper_base,
    points,
    run_points,
    solve_latency_point,
)
from hsfl.models.cost_table import CostTable
from hsfl.planning.world import OPTIMIZER_STATES, measured_cost
from tests.naming import names, raises
from tests.report.test_figure_style import check_legends

SMALL = ("model.name=cnn", "fleet.num_clients=3", "network.num_subchannels=4")
BANDWIDTH = Axis("network.subchannel_hz", (1e6, 2e6), "bandwidth")
CYCLES = Axis("network.main_hz", (50e10, 100e10), "cycles")


def small_study(**changes: Any) -> LatencyStudy:
    base = with_changes(paper_base(2), SMALL)
    study = LatencyStudy(base, (BANDWIDTH, CYCLES), (*SIX, PAPER), num_fleets=2, num_channels=2)
    return replace(study, **changes)


def cost_of(base: RunConfig) -> CostTable:
    states = OPTIMIZER_STATES[base.train.optimizer]
    return measured_cost(base.model, (3, 32, 32), 10, base.train.batch_size, states)


def quietly(text: str) -> None:
    """Progress that nobody reads."""


def rounds_in(path: Path) -> Any:
    return json.loads(path.read_text())["rounds"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small study."""
    path = tmp_path_factory.mktemp("study") / "fig"
    run_points(small_study(), path, quietly, num_workers=1)
    return path


def test_axes_share_the_point_at_which_nothing_differs() -> None:
    files = [point.file for point in points(small_study())]
    assert len(files) == len(set(files)) == 2 * 3  # two fleets at three places
    assert "base/seed-1.json" in files
    configs = {point.file: point.config for point in points(small_study())}
    assert configs["network.main_hz=5e+11/seed-2.json"].network.main_hz == 50e10
    assert configs["network.main_hz=5e+11/seed-2.json"].fleet_seed == 2


def test_fleets_differ_where_the_base_has_a_fleet_of_its_own() -> None:
    """A base with fleet.seed = 7 begins there; its own seed, which draws data and weights, stays."""
    study = small_study(base=with_changes(paper_base(2), [*SMALL, "fleet.seed=7"]))
    configs = {point.file: point.config for point in points(study)}
    assert {config.fleet_seed for config in configs.values()} == {7, 8}
    assert {config.seed for config in configs.values()} == {study.base.seed}
    assert configs["base/seed-8.json"].fleet_seed == 8


def test_a_plan_is_searched_as_the_config_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every field of the allocation settings that says how to search reaches the search."""
    words = ["cuts=ga", "population=7", "patience=3", "plan_time_limit_s=11"]
    base = with_changes(paper_base(2), [*SMALL, *(f"allocation.{word}" for word in words)])
    seen = []

    def stop(request: Any) -> None:
        seen.append(request.settings)
        raise KeyboardInterrupt

    monkeypatch.setattr("hsfl.allocation.cuts.search.search_cuts", stop)
    (point, *_) = points(small_study(base=base))
    with pytest.raises(KeyboardInterrupt):
        solve_latency_point(point, cost_of(base))
    (how,) = seen
    assert (how.method, how.population, how.patience, how.time_limit_s, how.seed) == ("ga", 7, 3, 11.0, 1)


def test_what_is_done_is_not_done_again(folder: Path) -> None:
    files = sorted((folder / "points").rglob("*.json"))
    written = {path: path.stat().st_mtime_ns for path in files}
    lost = folder / "points" / "base" / "seed-2.json"
    first = rounds_in(lost)
    lost.unlink()
    said: list[str] = []
    run_points(small_study(), folder, said.append, num_workers=1)
    assert len(said) == 1
    assert all(path.stat().st_mtime_ns == written[path] for path in files if path != lost)
    assert rounds_in(lost) == first  # the same numbers, to the bit


def test_points_of_other_settings_are_not_mixed(folder: Path, tmp_path: Path) -> None:
    with raises(InputError, "another channels", "another --out"):
        run_points(small_study(num_channels=3), folder, quietly)
    (tmp_path / "something").write_text("else")
    with raises(InputError, f"{tmp_path} already holds", "--out"):
        run_points(small_study(), tmp_path, quietly)


def test_two_processes_find_what_one_finds(folder: Path, tmp_path: Path) -> None:
    run_points(small_study(num_fleets=1, axes=(BANDWIDTH,)), tmp_path / "fig", quietly, num_workers=2)
    for name in ("base", "network.subchannel_hz=2e+06"):
        here, there = (rounds_in(path / "points" / name / "seed-1.json") for path in (folder, tmp_path / "fig"))
        assert here == there


def test_rows_are_means_of_the_points(folder: Path, tmp_path: Path) -> None:
    rows = read_latency_rows(small_study(), folder)
    assert len(rows) == 2 * 2 * 7 * 2  # axes, values, policies, fleets
    point = rounds_in(folder / "points" / "base" / "seed-2.json")
    (row,) = (row for row in rows_at(rows, BANDWIDTH, 1e6, "scls") if row.seed == 2)
    assert row.fresh_mean_s == pytest.approx(sum(point["scls"]["fresh_s"]) / 2)
    assert row.plan_mean_s == pytest.approx(sum(point["scls"]["plan_s"]) / 2)
    assert row.ratio == pytest.approx(sum(point["scls"]["fresh_s"]) / sum(point["proposed"]["fresh_s"]))
    both = [r.fresh_mean_s for r in rows_at(rows, BANDWIDTH, 1e6, "scls")]
    assert mean_s(rows, BANDWIDTH, 1e6, "scls").mean == pytest.approx(sum(both) / 2)
    ratios = [r.ratio for r in rows_at(rows, BANDWIDTH, 1e6, "scls")]
    assert longer(rows, BANDWIDTH, 1e6, "scls").mean == pytest.approx(100 * (np.sqrt(ratios[0] * ratios[1]) - 1))
    with write_rows(rows, tmp_path / "rows.csv").open() as file:
        written = list(csv.DictReader(file))
    assert len(written) == len(rows)
    assert float(written[0]["fresh_mean_s"]) == rows[0].fresh_mean_s


def test_the_papers_solver_is_drawn_from_its_own_rounds(folder: Path) -> None:
    """It ran on every fleet and channel, with the proposed cuts, so that it is never shorter by more than the gap."""
    rows = read_latency_rows(small_study(), folder)
    every = [rounds_in(folder / "points" / "base" / f"seed-{seed}.json") for seed in (1, 2)]
    for rounds in every:
        assert rounds[PAPER]["cuts"] == rounds["proposed"]["cuts"]
        for name in ("plan_s", "fresh_s"):
            assert (np.array(rounds[PAPER][name]) >= np.array(rounds["proposed"][name]) * (1 - 1e-3)).all()
    means = [np.mean(rounds[PAPER]["fresh_s"]) for rounds in every]
    found = mean_s(rows, CYCLES, 100e10, PAPER)
    assert found.mean == pytest.approx(np.mean(means))
    assert found.num == 2


def test_the_figure_holds_its_bands_and_its_legend(folder: Path) -> None:
    """Two fleets: bands that reach below zero and far above the means."""
    pytest.importorskip("matplotlib")
    study = small_study()
    rows = read_latency_rows(study, folder)
    figure = _latency_figure(study, rows, "")
    above, below = figure.axes[:2], figure.axes[2:]
    for axis, seconds_panel, longer_panel in zip(study.axes, above, below):
        for panel, quantity in ((seconds_panel, mean_s), (longer_panel, longer)):
            shown = [quantity(rows, axis, value, name) for value in axis.values for name in study.policies]
            low, high = panel.get_ylim()
            assert low <= min(value.low or 0.0 for value in shown)
            assert high >= max(value.high or 0.0 for value in shown)
    check_legends(figure)


def check_plans(study: LatencyStudy, folder: Path) -> None:
    """No policy beats proposed on the plan's samples by more than the plan's proven gap and that of a round's solve."""
    for row in read_latency_rows(study, folder):
        assert row.plan_ratio >= (1 - row.plan_gap) * (1 - study.base.allocation.gap), row


def test_fig4_trends(tmp_path: Path) -> None:
    outcome = fig4.reproduce_fig4(tmp_path / "fig4", "smoke", None, quietly)
    study = fig4.fig4_study("smoke")
    check_plans(study, tmp_path / "fig4")
    rows = read_latency_rows(study, tmp_path / "fig4")
    bandwidth, cycles, power = study.axes
    for policy in study.policies:
        assert (np.diff(series_s(rows, bandwidth, policy)) < 0).all(), policy
        assert (np.diff(series_s(rows, cycles, policy)) < 0).all(), policy
    assert (np.diff(series_s(rows, power)) < 0).all()
    assert {path.name for path in outcome.files} == {"fig4.csv", "fig4.pdf", "fig4.png", "fig4.svg"}
    assert [table.name for table in [*outcome.tables, outcome.claims]] == [
        *("fig4-subchannel_hz", "fig4-main_hz", "fig4-main_power_w"),
        *("fig4-policies", "fig4-claims"),
    ]
    first, falls, sensitive, few, slight = outcome.trends
    means = {(a.field, v, p): np.mean([r.fresh_mean_s for r in rows if (r.field, r.value, r.policy) == (a.field, v, p)])
             for a in study.axes for v in a.values for p in study.policies}  # fmt: skip
    wins = sum(
        means[a.field, v, "proposed"] <= min(means[a.field, v, p] for p in study.policies) * 1.001
        for a in study.axes
        for v in a.values
    )
    assert f"at {wins} of 9 points" in first.ours
    assert first.holds == (wins == 9)
    change = {
        a.field: means[a.field, a.values[-1], "proposed"] / means[a.field, a.values[0], "proposed"] - 1
        for a in study.axes
    }
    assert f"{100 * change[bandwidth.field]:+.1f} % from" in falls.ours
    assert falls.holds is True
    along = np.array([means[cycles.field, value, "proposed"] for value in cycles.values])
    step = along[1:] / along[:-1] - 1
    assert f"{100 * change[cycles.field]:+.1f} % from 10 to 150" in sensitive.ours
    assert "step by step " + ", ".join(f"{100 * one:+.1f}" for one in step) in sensitive.ours
    assert sensitive.holds == (step < -0.1).all()
    assert step[0] < -0.1 < step[1]  # so that the next line is about something
    assert sensitive.ours.endswith("more than 10 % below 50 only")
    assert few.holds == (step[0] < 0.5 * change[cycles.field])
    assert slight.holds == (
        abs(change[power.field]) < 0.5 * min(abs(change[bandwidth.field]), abs(change[cycles.field]))
    )
    text = outcome.markdown.read_text()
    assert "n = 2 fleets x 3 channels" in text
    assert "Machine: " in text
    names(text, "RCLS and SCLS")
    names(text, "ECFA, GTRA, ETRA")
    names(text, "no finding")


def test_fig5_trends(tmp_path: Path) -> None:
    fig5.reproduce_fig5(tmp_path / "fig5", "smoke", None, quietly)
    study = fig5.fig5_study("smoke")
    check_plans(study, tmp_path / "fig5")
    rows = read_latency_rows(study, tmp_path / "fig5")
    for policy in SIX:
        series = series_s(rows, study.axes[0], policy)
        assert series[-1] > series[0], policy
    assert (np.diff(series_s(rows, study.axes[0])) > 0).all()


def test_a_study_is_made_of_configs() -> None:
    quick, full = ([point.config for point in points(fig4.fig4_study(scale))] for scale in ("quick", "full"))
    assert len(quick) == 10 * 16  # three axes of six values that share one
    assert len(list(points(fig5.fig5_study("quick")))) == 20 * 6
    assert {config.network.main_power_w for config in quick} == {25, 50, 100, 150, 200, 250}
    assert {config.train.tau_s for config in full} == {None}
