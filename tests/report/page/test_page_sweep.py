"""A sweep's figures and page, from folders made by hand."""

import math
from pathlib import Path

import numpy as np
import pytest

from hsfl.files import write_json
from hsfl.report.page.page import page_data, write_page
from hsfl.report.page.page_sources import read_sources
from hsfl.report.sweep_figure import axis_of, panels_of, sweep_figure, y_limits
from hsfl.report.sweep_results import Sweep, read_sweep
from hsfl.report.watch import Watcher
from tests.report.fabricated import data_in, records, write_run

pytest.importorskip("matplotlib")


def write_sweep(out: Path, fields: list[str], points: list[list[object]], seeds: int = 3, **changes: object) -> Sweep:
    """A sweep of HSFL and FL, equally accurate, FL's rounds twice as long; the first value divides the round."""
    about = {"fields": fields, "labels": ["hsfl", "fl"], "seeds": list(range(seeds)), "plan_only": False}
    listed = [{"values": values, "folder": f"point-{place}"} for place, values in enumerate(points)]
    write_json(out / "sweep.json", about | {"points": listed, "target": None, "config": {}} | changes)
    for place in range(len(points)):
        for seed in range(seeds):
            for label, round_s in (("hsfl", 10.0), ("fl", 20.0)):
                rounds = records([0.2, 0.5 + 0.1 * seed], (round_s + seed) / (1 + place))
                write_run(out / f"point-{place}", label, seed, rounds)
    return read_sweep(out)


def test_means_and_intervals_by_hand(tmp_path: Path) -> None:
    """Rounds of 10, 11, 12 s: mean 11, and half an interval of t(2) = 4.3027 times 1 / sqrt(3)."""
    sweep = write_sweep(tmp_path, ["train.lr"], [[0.1], [0.2]])
    found = sweep.estimate(0, "hsfl", "round_s")
    assert found.mean == pytest.approx(11)
    assert found.high == pytest.approx(11 + 4.3027 / math.sqrt(3))
    assert sweep.estimate(1, "fl", "round_s").mean == pytest.approx(10.5)
    assert sweep.metrics[0] == "final_accuracy"
    assert "time_to_target_s" not in sweep.metrics
    assert "gap" not in sweep.metrics


def test_the_first_field_is_the_axis_and_the_others_make_panels(tmp_path: Path) -> None:
    points: list[list[object]] = [[hz, cuts] for hz in (1e7, 1e6, 1e5) for cuts in ("max_cut", 3)]
    sweep = write_sweep(tmp_path, ["network.subchannel_hz", "fleet.cuts"], points, seeds=2)
    axis, panels = axis_of(sweep), panels_of(sweep)
    assert (axis.texts, axis.log, axis.numbers) == (["100 kHz", "1 MHz", "10 MHz"], True, True)
    assert [panel.name for panel in panels] == ["fleet.cuts = max_cut", "fleet.cuts = 3"]
    assert panels[0].points == [4, 2, 0]
    figure = sweep_figure(sweep, "round_s")
    first, second = figure.axes
    assert (first.get_title(), second.get_title()) == ("fleet.cuts = max_cut", "fleet.cuts = 3")
    assert first.get_xscale() == "log"
    assert [text.get_text() for text in first.get_xticklabels()] == ["100 kHz", "1 MHz", "10 MHz"]
    assert first.get_xlabel() == "network.subchannel_hz"
    hsfl, _ = [line for line in first.get_lines() if line.get_zorder() == 2]  # the others are ends of bars
    np.testing.assert_allclose(hsfl.get_xdata(), [1e5, 1e6, 1e7])
    np.testing.assert_allclose(hsfl.get_ydata(), [10.5 / 5, 10.5 / 3, 10.5])
    low, high = first.get_ylim()
    assert 0 <= low < 1
    assert high > 20.5


def test_words_are_points_without_a_line(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, ["model.name"], [["mlp"], ["cnn"]], seeds=1)
    assert axis_of(sweep).texts == ["mlp", "cnn"]
    (axes,) = sweep_figure(sweep, "round_s").axes
    assert {line.get_linestyle() for line in axes.get_lines()} == {"None"}


def test_curves_that_coincide(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, ["train.lr"], [[0.1], [0.2]])
    names = [text.get_text() for text in sweep_figure(sweep, "final_accuracy").legends[0].get_texts()]
    assert names == ["HSFL", "FL = HSFL"]
    names = [text.get_text() for text in sweep_figure(sweep, "round_s").legends[0].get_texts()]
    assert names == ["HSFL", "FL"]


def test_limits_leave_room_for_means_and_begin_at_zero() -> None:
    wide = (np.array([1.0, 2.0]), np.array([-50.0, -50.0]), np.array([50.0, 50.0]))
    low, high = y_limits([wide])
    assert 0 <= low < 1
    assert 2 < high < 4
    assert y_limits([(wide[0] - 0.9, wide[1], wide[2])])[0] == 0
    nothing = np.array([np.nan])
    assert y_limits([(nothing, nothing, nothing)]) == (0.0, 1.0)
    assert y_limits([(np.array([5.0]), nothing, nothing)])[0] < 5


def test_the_page_of_a_sweep(tmp_path: Path) -> None:
    write_sweep(tmp_path, ["train.lr"], [[0.1], [0.2]])
    page = write_page([tmp_path], tmp_path / "report.html")
    data = data_in(page)
    assert data["title"] == "HSFL and FL against train.lr: resnet18 on digits"
    (sweep,) = data["sweeps"]
    assert sweep["metrics"][0]["key"] == "final_accuracy"
    assert sweep["metrics"][0]["panels"][0][0]["mean"] == [60, 60]
    assert sweep["cells"]["round_s"][1][1] == [10.5, pytest.approx(4.3027 / math.sqrt(3) / 2, rel=1e-3)]
    assert not sweep["linked"]
    for point in ("point-0", "point-1"):
        write_page([tmp_path / point], tmp_path / point / "report.html")
    assert data_in(write_page([tmp_path], page))["sweeps"][0]["linked"]
    elsewhere = write_page([tmp_path], tmp_path / "there/page.html")
    assert not data_in(elsewhere)["sweeps"][0]["linked"]


def test_a_sweep_under_way_is_followed(tmp_path: Path) -> None:
    write_sweep(tmp_path, ["train.lr"], [[0.1], [0.2]], seeds=1)
    watcher = Watcher([tmp_path])
    before, data = watcher.news()
    (tmp_path / "point-1/fl/seed-0/summary.json").unlink()
    (tmp_path / "point-1/fl/seed-0/rounds.jsonl").write_text("")
    after, news = watcher.news()
    assert before != after
    assert data["sweeps"][0]["cells"]["rounds"][1][1][0] == 2
    assert news["sweeps"][0]["cells"]["rounds"][1][1][0] == 0


def test_a_sweep_beside_a_run_on_one_page(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", ["train.lr"], [[0.1]], seeds=1)
    folder = write_run(tmp_path / "runs", "hsfl", 0, records([0.5])).path
    data = page_data(read_sources([tmp_path / "sweep", folder]))
    assert len(data["runs"]) == len(data["sweeps"]) == 1
