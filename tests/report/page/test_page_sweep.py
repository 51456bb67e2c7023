"""A sweep's figures and page, from folders made by hand."""

import csv
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from hsfl.files import write_json
from hsfl.report.page.page import page_data, write_page
from hsfl.report.page.page_sources import read_sources
from hsfl.report.sweep_figure import axis_of, panels_of, sweep_figure, y_limits
from hsfl.report.sweep_results import Sweep, find_metric, read_sweep
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


def test_limits_hold_every_bar_and_begin_at_zero() -> None:
    wide = (np.array([1.0, 2.0]), np.array([-50.0, np.nan]), np.array([60.0, np.nan]))
    low, high = y_limits([wide])
    assert -62 < low < -50
    assert 60 < high < 72
    assert y_limits([(np.array([0.1, 2.0]), np.array([0.05, 1.0]), np.array([3.0, 3.0]))])[0] == 0
    nothing = np.array([np.nan])
    assert y_limits([(nothing, nothing, nothing)]) == (0.0, 1.0)
    assert y_limits([(np.array([5.0]), nothing, nothing)])[0] < 5


@pytest.mark.parametrize("num_seeds", [2, 3])
@pytest.mark.parametrize("metric", ["final_accuracy", "round_s"])
def test_the_figure_holds_every_bar(tmp_path: Path, metric: str, num_seeds: int) -> None:
    sweep = write_sweep(
        tmp_path, ["train.lr", "fleet.num_clients"], [[0.1, 2], [0.2, 2], [0.1, 3], [0.2, 3]], seeds=num_seeds
    )
    places = [(point, label) for point in range(4) for label in sweep.labels]
    scale, estimates = find_metric(metric).scale, [sweep.drawn_estimate(*place, metric) for place in places]
    ends = [scale * (end or 0.0) for value in estimates for end in (value.low, value.high)]
    assert min(ends) >= 0
    assert max(ends) <= 100
    for place, value in zip(places, estimates):
        numbers = [row.numbers[metric] for row in sweep.rows if (row.point, row.label) == place]
        interval = sweep.estimate(*place, metric)
        assert (value.low == min(numbers)) == (num_seeds == 2)
        assert num_seeds == 2 or value.low == max(interval.low or 0.0, 0.0)
    for axes in sweep_figure(sweep, metric).axes:
        low, high = axes.get_ylim()
        assert low < min(ends) or low == 0
        assert max(ends) < high


def test_differences_are_taken_seed_by_seed(tmp_path: Path) -> None:
    """Rounds of 10 + s and 20 + s seconds: HSFL's are 10 s shorter with every seed, so that the interval is a point, although both
    vary. Those of the second point are half as long: 5, 5.5 and 6 s shorter."""
    sweep = write_sweep(tmp_path, ["train.lr"], [[0.1], [0.2]])
    first, second = sweep.between_contenders()
    assert (first.point, first.label, first.other_label, first.seeds) == (0, "hsfl", "fl", [0, 1, 2])
    value = sweep.difference(first, "round_s")
    assert (value.mean, value.low, value.high, value.num) == pytest.approx((-10, -10, -10, 3))
    assert sweep.difference(second, "round_s").mean == pytest.approx(-5)
    hsfl, fl = sweep.between_values()
    assert (hsfl.point, hsfl.other_point, hsfl.label, hsfl.other_label) == (1, 0, "hsfl", "hsfl")
    value = sweep.difference(hsfl, "round_s")
    assert value.mean == pytest.approx(-5.5)
    assert value.high == pytest.approx(-5.5 + 4.3027 * 0.5 / math.sqrt(3))
    assert sweep.difference(fl, "final_accuracy").mean == pytest.approx(0)
    means, contenders, values, _ = sweep.tables(["final_accuracy", "round_s"])
    assert contenders.header == [
        "train.lr",
        "against",
        "seeds",
        "final test accuracy (points)",
        "mean round (simulated s)",
    ]
    assert contenders.rows[0] == ["0.1", "FL", "3", "+0", "-10"]
    assert values.rows[0][:4] == ["0.2", "0.1", "HSFL", "3"]
    assert len(means.rows) == 4
    tree = sweep.to_json()["differences"]
    assert len(tree) == 4
    assert tree[0]["less"] == {"train.lr": 0.1, "contender": "fl"}
    assert tree[2]["round_s"]["mean"] == pytest.approx(-5.5)


def test_values_are_compared_where_the_other_fields_are_equal(tmp_path: Path) -> None:
    points: list[list[object]] = [[lr, clients] for lr in (0.1, 0.2) for clients in (2, 3)]
    sweep = write_sweep(tmp_path, ["train.lr", "fleet.num_clients"], points, seeds=2)
    assert {(pair.point, pair.other_point) for pair in sweep.between_values()} == {(2, 0), (3, 1)}


def test_no_differences_without_a_second_seed_or_where_seeds_are_missing(tmp_path: Path) -> None:
    alone = write_sweep(tmp_path / "one", ["train.lr"], [[0.1], [0.2]], seeds=1)
    assert [table.name for table in alone.tables(["round_s"])] == ["means", "contenders"]
    write_sweep(tmp_path / "three", ["train.lr"], [[0.1], [0.2]])
    shutil.rmtree(tmp_path / "three/point-1/fl/seed-0")
    first, second = read_sweep(tmp_path / "three").between_contenders()
    assert (first.seeds, second.seeds) == ([0, 1, 2], [1, 2])


def test_the_files_of_a_sweep(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, ["network.subchannel_hz"], [[5e5], [1e6]])
    names = [path.name for path in sweep.write(tmp_path, ["final_accuracy", "round_s"], latex=True)]
    tables = [f"table-{name}.{kind}" for name in ("means", "between-contenders", "between-values", "contenders") for kind in ("csv", "tex")]  # fmt: skip
    assert names == ["sweep.csv", "sweep.md", *tables]
    with (tmp_path / "table-between-values.csv").open(newline="") as file:
        (first, _) = csv.DictReader(file)
    assert (float(first["network.subchannel_hz"]), float(first["against"])) == (1e6, 5e5)
    assert float(first["mean round (simulated s)"]) == pytest.approx(-5.5)
    assert "500 kHz" in (tmp_path / "table-between-values.tex").read_text()


def test_the_page_of_a_sweep(tmp_path: Path) -> None:
    write_sweep(tmp_path, ["train.lr"], [[0.1], [0.2]])
    page = write_page([tmp_path], tmp_path / "report.html")
    data = data_in(page)
    assert data["title"] == "HSFL and FL against train.lr: resnet18 on digits"
    (sweep,) = data["sweeps"]
    assert sweep["metrics"][0]["key"] == "final_accuracy"
    assert sweep["metrics"][0]["panels"][0][0]["mean"] == [60, 60]
    assert sweep["cells"]["round_s"][1][1] == [10.5, pytest.approx(4.3027 / math.sqrt(3) / 2, rel=1e-3)]
    assert [table["title"] for table in sweep["differences"]["round_s"]] == [
        "HSFL minus the other contenders, seed by seed",
        "Each value of train.lr minus the first one, seed by seed",
    ]
    assert [name for name, _ in data["policies"]] == ["even"]
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
