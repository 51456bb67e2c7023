import sys
from types import SimpleNamespace

import numpy as np
import pytest

from hsfl.errors import InputError
from hsfl.methods import METHODS
from hsfl.report import plots
from hsfl.report.comparison import read_comparison
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
    figures = ("train_loss", "gantt-fl,train.tau_s=60-round-1")  # and none of what was never evaluated
    assert [path.name for path in paths] == [f"{figure}.{kind}" for figure in figures for kind in ("png", "svg")]
    for path in paths:
        start = path.read_bytes()[:5]
        assert start == (b"\x89PNG\r" if path.suffix == ".png" else b"<?xml"), path


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_same_figure_is_the_same_file(comparison, tmp_path, kind):
    draw = {"png": plots.learning_figure, "svg": lambda _: plots.gantt_figure(timed(a_timeline("hsfl", 3)))}[kind]
    one, two = (plots.save(draw(comparison), tmp_path / name, [kind])[0].read_bytes() for name in ("one", "two"))
    assert one == two
    assert b"dc:date" not in one


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
    assert len(over_time.collections) == 3  # bands


def test_one_seed_is_drawn_as_steps_without_a_band(tmp_path):
    write_run(tmp_path, "hsfl", 0, records([0.2, 0.4]))
    over_time, _ = plots.learning_figure(read_comparison(tmp_path), "train_loss").axes
    assert over_time.get_lines()[0].get_drawstyle() == "steps-post"
    assert not over_time.collections


def test_wide_intervals_of_two_seeds_do_not_squash_the_curves(tmp_path):
    write_run(tmp_path, "hsfl", 0, records([0.2, 0.4]))
    write_run(tmp_path, "hsfl", 1, records([0.3, 0.8]))
    low, high = plots.learning_figure(read_comparison(tmp_path)).axes[0].get_ylim()
    assert 10 < low < 25
    assert 60 < high < 75


def test_a_run_without_rounds_is_no_curve(tmp_path):
    write_run(tmp_path, "sl", 0, [])
    plots.save(plots.learning_figure(read_comparison(tmp_path)), tmp_path / "figure")
    write_run(tmp_path, "hsfl", 0, records([0.2, 0.4]))
    over_time, _ = plots.learning_figure(read_comparison(tmp_path)).axes
    assert words(over_time) == ["HSFL"]


def test_styles_differ_in_more_than_colour():
    for place in range(3):
        assert len({str(row.style[place]) for row in METHODS.values()}) == len(METHODS)
    styles = plots.label_styles(["hsfl", "hsfl,fleet.cuts=1", "fl"])
    assert styles["hsfl"] == METHODS["hsfl"].style
    assert len({style[0] for style in styles.values()}) == 3
    assert len(plots.label_styles([f"fl,seed={n}" for n in range(30)])) == 30


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
    with pytest.raises(InputError, match=r"pip install 'hsfl\[report\]'"):
        plots.gantt_figure(record())


def test_a_format_that_is_none(tmp_path):
    with pytest.raises(InputError, match="format 'jpg' is unknown"):
        plots.save(SimpleNamespace(), tmp_path / "x", ["jpg"])
