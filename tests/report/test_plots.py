import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hsfl.errors import InputError
from hsfl.framework_table import METHODS
from hsfl.report import plots
from hsfl.report.comparison_summary import read_comparison
from hsfl.report.figure_style import figure_file_name, lies_on, save_figure
from tests.naming import raises
from tests.report.fabricated import a_timeline, record, records, timed, write_run

pytest.importorskip("matplotlib")


@pytest.fixture
def comparison(tmp_path):
    for seed in range(3):
        for label, round_s in (("hsfl", 100.0), ("fl", 200.0), ("fl,train.tau_s=60", 150.0)):
            rounds = records([0.2, 0.4 + 0.01 * seed, 0.6], round_s + seed)
            write_run(tmp_path, label, seed, rounds)
    return read_comparison(tmp_path, target=0.5)


def words(axes):
    return [text.get_text() for text in axes.texts]


def test_every_figure_of_a_comparison_is_written(tmp_path):
    write_run(tmp_path, "fl,train.tau_s=60", 0, records([None, None], balanced_accuracy=None))
    paths = plots.write_figures(read_comparison(tmp_path), tmp_path / "figures")
    figures = ("train_loss", "gantt-fl-train-tau_s-60-round-1")  # and none of what was never evaluated
    assert [path.name for path in paths] == [f"{figure}.{kind}" for figure in figures for kind in ("pdf", "png", "svg")]
    for path in paths:
        start = path.read_bytes()[:5]
        assert start == {".pdf": b"%PDF-", ".png": b"\x89PNG\r", ".svg": b"<?xml"}[path.suffix], path


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_same_figure_is_the_same_file(comparison, tmp_path, kind):
    draw = plots.learning_figure if kind == "png" else lambda _: plots.gantt_figure(timed(a_timeline("hsfl", 3)))
    one, two = (plots.save_figure(draw(comparison), tmp_path / name, [kind])[0].read_bytes() for name in ("one", "two"))
    assert one == two
    assert b"dc:date" not in one
    assert b"CreationDate" not in one


def test_accuracy_over_time_and_over_rounds(comparison):
    over_time, over_rounds = plots.learning_figure(comparison).axes
    assert over_time.get_xlabel() == "simulated time (min)"
    lines = {line.get_label(): line for line in over_rounds.get_lines()}
    np.testing.assert_allclose(lines["HSFL"].get_xdata(), [1, 2, 3])
    np.testing.assert_allclose(lines["HSFL"].get_ydata(), [20, 41, 60])
    (hsfl,) = [line for line in over_time.get_lines() if line.get_label() == "HSFL"]
    assert hsfl.get_xdata()[0] * 60 == pytest.approx(102)  # the latest of the first rounds
    assert hsfl.get_xdata()[-1] * 60 == pytest.approx(300)  # the first of the last ones
    assert hsfl.get_ydata()[0] == pytest.approx(20)
    assert {"HSFL", "FL", "FL, train.tau_s=60", "target 50 %"} == set(words(over_time))
    assert len(over_time.collections) == 3  # bars of three curves; a band of each would be mud
    assert all(len(bars.get_paths()) <= plots.NUM_BARS + 2 for bars in over_time.collections)


def test_one_seed_is_drawn_as_steps_without_a_band(tmp_path):
    write_run(tmp_path, "hsfl", 0, records([0.2, 0.4]))
    over_time, _ = plots.learning_figure(read_comparison(tmp_path), "train_loss").axes
    assert over_time.get_lines()[0].get_drawstyle() == "steps-post"
    assert not over_time.collections


@pytest.mark.parametrize("num_labels", [1, 4])  # bands, and bars
@pytest.mark.parametrize("quantity", ["test_accuracy", "train_loss", "round_s"])
def test_intervals_and_axes_end_where_values_can_be(tmp_path, num_labels, quantity):
    """Three seeds: intervals far wider than the curves, which would go beyond 0 and 100 %, where no accuracy is."""
    for number in range(num_labels):
        for seed, values in enumerate(([0.2, 0.2, 0.3], [0.3, 0.8, 0.9], [0.9, 0.95, 0.99])):
            rounds = [
                replace(one, train_loss=3.0 - 1.4 * seed)
                for one in records(values, (10.0, 11.0, 29.0)[seed] + number / 10)
            ]
            write_run(tmp_path, f"hsfl,fleet.num_clients={number + 1}", seed, rounds)
    figure = plots.learning_figure(read_comparison(tmp_path, target=0.6), quantity)
    for axes in figure.axes:
        ends = drawn_ends(axes)
        low, high = axes.get_ylim()
        assert ends.min() == 0
        assert -5 * (high - low) / 100 < low < 0
        assert (ends.max(), high) == pytest.approx((100, 103)) if quantity == "test_accuracy" else ends.max() <= high


def test_two_seeds_have_their_range_as_thin_marks(tmp_path):
    for seed, values in enumerate(([0.2, 0.4], [0.3, 0.8])):
        write_run(tmp_path, "hsfl", seed, records(values))
    figure = plots.learning_figure(read_comparison(tmp_path))
    _, over_rounds = figure.axes
    assert sorted(drawn_ends(over_rounds)) == pytest.approx([20, 30, 40, 80])  # bars, and no band
    assert "range of two seeds" in figure.get_supxlabel()
    assert "confidence" not in figure.get_supxlabel()


def drawn_ends(axes):
    """Both ends of all bands and bars of a picture."""
    paths = [path for collection in axes.collections for path in collection.get_paths()]
    return np.concatenate([path.vertices[:, 1] for path in paths])


def test_a_run_without_rounds_is_no_curve(tmp_path):
    write_run(tmp_path, "sl", 0, [])
    plots.save_figure(plots.learning_figure(read_comparison(tmp_path)), tmp_path / "figure")
    write_run(tmp_path, "hsfl", 0, records([0.2, 0.4]))
    over_time, _ = plots.learning_figure(read_comparison(tmp_path)).axes
    assert words(over_time) == ["HSFL"]


def test_styles_differ_in_more_than_colour():
    for place in range(3):
        assert len({str(row.style[place]) for row in METHODS.values()}) == len(METHODS)
    styles = plots.label_styles({"hsfl": "hsfl", "hsfl,fleet.cuts=1": "hsfl", "fl": "fl"})
    assert styles["hsfl"] == METHODS["hsfl"].style
    assert len({style[0] for style in styles.values()}) == 3
    assert len(plots.label_styles({f"fl,seed={n}": "fl" for n in range(30)})) == 30


@pytest.mark.parametrize("heights", [[0.5], [0.5, 0.5, 0.5], [0.0, 0.01, 0.9], [0.98, 0.99, 1.0], [0.1, 0.5, 0.51]])
def test_names_are_spread_in_order_and_within_the_axes(heights):
    apart = plots.spread(heights, 0.1)
    assert np.all(np.diff(apart) >= 0.1 - 1e-12)
    assert apart[0] >= 0
    assert apart[-1] <= 1 + 1e-12
    if np.all(np.diff(heights) >= 0.1):
        assert apart == pytest.approx(heights)


def test_equal_heights_are_spread_about_their_middle():
    assert plots.spread([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.4, 0.5, 0.6])


def test_matplotlib_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with raises(InputError, 'pip install "matplotlib'):
        plots.gantt_figure(record())


def test_a_format_that_is_none(tmp_path):
    with raises(InputError, "format 'jpg'"):
        save_figure(SimpleNamespace(), tmp_path / "x", ["jpg"])


def test_two_curves_have_bands_beneath_them(tmp_path):
    for seed in range(3):
        write_run(tmp_path, "hsfl", seed, records([0.2, 0.4 + 0.01 * seed]))
    _, over_rounds = plots.learning_figure(read_comparison(tmp_path)).axes
    (band,) = over_rounds.collections
    assert band.get_zorder() < over_rounds.get_lines()[0].get_zorder()
    assert type(band).__name__.startswith(("Poly", "FillBetween"))


def test_curves_that_coincide_are_said_to_and_leave_each_other_room(tmp_path):
    """The same accuracies a round, other times: one curve over rounds, three over time."""
    for label, round_s in (("hsfl", 100.0), ("splitfed_v1", 150.0), ("fl", 200.0), ("cl", 90.0)):
        rounds = records([0.2, 0.4, 0.6, 0.65][: 3 if label == "fl" else 4], round_s)
        write_run(tmp_path, label, 0, records([0.3, 0.7, 0.8], 90.0) if label == "cl" else rounds)
    figure = plots.learning_figure(read_comparison(tmp_path))
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["CL", "FL", "SplitFed V1\n= FL over rounds", "HSFL\n= FL over rounds"]
    over_time, over_rounds = figure.axes
    dashes = {line.get_label(): line._unscaled_dash_pattern for line in over_rounds.get_lines()}
    assert [dashes[name] for name in ("FL", "SplitFed V1", "HSFL")] == [(3 * n, (3, 6)) for n in range(3)]
    own = {line.get_label(): line.get_linestyle() for line in over_time.get_lines()}
    assert own["HSFL"] == "-"


@pytest.mark.parametrize(
    ("curves", "first"),
    [
        ([([1, 2, 3], [0, 1, 2]), ([1, 2, 3], [0, 1, 2])], [0, 0]),
        ([([1, 2, 3], [0, 1, 2]), ([1, 2], [0, 1])], [0, 0]),  # as far as both go
        ([([1, 2, 3], [0, 1, 2]), ([3, 4], [2, 2])], [0, 1]),  # they touch in one point
        ([([1, 2, 3], [0, 1, 2]), ([1], [0])], [0, 1]),  # one begins where the other begins and ends
        ([([1, 2, 3], [0, 1, 2]), ([1, 2, 3], [0, 1, 2.1])], [0, 1]),
        ([([1, 2], [0, 1]), ([1, 2], [5, 5]), ([1, 2], [5, 5]), ([1, 2], [0, 1])], [0, 1, 1, 0]),
        ([([], []), ([1], [np.nan]), ([1], [2.0]), ([1], [2.0])], [0, 1, 2, 2]),
    ],
)
def test_which_curve_lies_on_which(curves, first):
    assert lies_on([(np.array(x, float), np.array(y, float)) for x, y in curves]) == first


def test_file_names_are_plain_and_differ(tmp_path):
    assert figure_file_name("hsfl,fleet.cuts=[1, 2]") == "hsfl-fleet-cuts-1-2"
    assert figure_file_name("...") == "figure"
    for label in ("fl,train.tau_s=6", "fl,train.tau_s=-6"):
        write_run(tmp_path, label, 0, records([0.5]))
    names = [path.stem for path in plots.write_figures(read_comparison(tmp_path), tmp_path / "out")]
    assert {"gantt-fl-train-tau_s-6-round-1", "gantt-fl-train-tau_s-6-2-round-1"} <= set(names)


def test_no_number_that_nobody_reads(tmp_path):
    """A rate next to nothing makes rounds of 1e299 seconds."""
    write_run(tmp_path, "hsfl", 0, records([0.2, 0.4], 2.7e299))
    write_run(tmp_path, "fl", 0, records([0.2, 0.4], 4e5))
    comparison = read_comparison(tmp_path)
    assert "over 10^15" in comparison.to_markdown()
    assert not re.search(r"e\+\d|\d{20}", comparison.to_markdown())
    over_time, _ = plots.learning_figure(comparison).axes
    assert over_time.get_xlabel() == "simulated time (1 is over 10^15 s)"
    assert plots.time_unit(4e5) == (86400.0, "days")
    assert plots.gantt_figure(comparison.runs[1].records[0]).axes[0].get_title("left") == "HSFL, round 1: over 10^15 s"


def test_the_legend_says_who_made_no_round(tmp_path):
    write_run(tmp_path, "hsfl", 0, records([0.2, 0.4]))
    write_run(tmp_path, "fl", 0, [])
    figure = plots.learning_figure(read_comparison(tmp_path))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FL\nno round in the budget", "HSFL"]


def test_a_wrong_quantity_lists_each_one_once(comparison):
    with raises(InputError, "quantity 'speed'") as caught:
        plots.learning_figure(comparison, "speed")
    known = str(caught.value).rpartition("one of ")[2].split(", ")
    assert len(known) == len(set(known)) >= 4


@pytest.mark.parametrize("target", [0.9, 0.1])
def test_a_target_far_from_all_curves_is_on_the_axis(tmp_path, target):
    write_run(tmp_path, "hsfl", 0, records([0.41, 0.42]))
    over_time, _ = plots.learning_figure(read_comparison(tmp_path, target)).axes
    low, high = over_time.get_ylim()
    assert low < 100 * target < high


def test_a_seed_without_a_round_leaves_the_other_seeds_their_curve(tmp_path):
    for seed in range(3):
        write_run(tmp_path, "hsfl", seed, records([0.2, 0.4]) if seed else [], "budget", "train.budget_s=30")
    figure = plots.learning_figure(read_comparison(tmp_path))
    for axes in figure.axes:
        assert len(axes.get_lines()[0].get_xdata())
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["HSFL\n2 of 3 seeds made a round"]


def test_the_seconds_of_rounds_are_drawn_where_they_are_asked_for(comparison):
    _, over_rounds = plots.learning_figure(comparison, "round_s").axes
    lines = {line.get_label(): line for line in over_rounds.get_lines()}
    assert lines["HSFL"].get_ydata() == pytest.approx([101, 101, 101])
    assert lines["FL"].get_ydata() == pytest.approx([201, 201, 201])
