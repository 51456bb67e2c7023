"""Legends take at most a quarter of a figure, as the Agg renderer measures them."""

from typing import Any

import pytest

from hsfl.report.comparison_summary import read_comparison
from hsfl.report.figure_style import add_side_legend, matplotlib
from hsfl.report.gantt import gantt_figure
from hsfl.report.plots import learning_figure
from hsfl.report.sweep_figure import sweep_figure
from tests.report.fabricated import a_timeline, records, timed, write_run
from tests.report.page.test_page_sweep import write_sweep

pytest.importorskip("matplotlib")

LONG = (
    "hsfl,options.splitfed_v1.needs_storage=true,fleet.cuts=planned,data.name=folder:/aVeryLongFolderNameWithoutAnySign"
)


def check_legends(figure: Any) -> None:
    """Every legend is at most a quarter of the width, and lies within the figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    width, height = figure.bbox.width, figure.bbox.height
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    assert legends
    for legend in legends:
        box = legend.get_window_extent(canvas.get_renderer())
        assert box.width <= 0.25 * width
        assert 0 <= box.x0 < box.x1 <= width
        assert 0 <= box.y0 < box.y1 <= height


@pytest.mark.parametrize("num_labels", [1, 9])
def test_the_legend_of_a_comparison(tmp_path: Any, num_labels: int) -> None:
    for number in range(num_labels):
        write_run(tmp_path, f"{LONG}{number}", 0, records([0.2, 0.4 + 0.01 * number]))
    figure = learning_figure(read_comparison(tmp_path))
    check_legends(figure)
    assert all(axes.get_position().width > 0.2 for axes in figure.axes)


@pytest.mark.parametrize("num_panels", [1, 2, 5])
def test_the_legend_of_a_sweep(tmp_path: Any, num_panels: int) -> None:
    points: list[list[Any]] = [[lr, panel] for lr in (0.1, 0.2) for panel in range(1, num_panels + 1)]
    sweep = write_sweep(tmp_path, ["train.lr", "fleet.num_clients"], points, seeds=1)
    check_legends(sweep_figure(sweep, "final_accuracy"))  # with a note on coincidence in each panel


@pytest.mark.parametrize(("name", "num_clients"), [("hsfl", 1), ("locfedmix_sl", 4), ("sl", 50)])
def test_the_legend_of_a_gantt_chart(name: str, num_clients: int) -> None:
    tau_s = float(a_timeline(name, num_clients).finish_s.mean()) if num_clients > 1 else float("inf")
    check_legends(gantt_figure(timed(a_timeline(name, num_clients, tau_s))))


def test_words_are_broken_at_their_signs_and_nothing_is_lost() -> None:
    mpl = matplotlib()
    figure = mpl.figure.Figure(figsize=(6.0, 1.0), layout="constrained")
    figure.subplots()
    add_side_legend(figure, [mpl.lines.Line2D([], [])], [LONG])
    (text,) = (text.get_text() for text in figure.legends[0].get_texts())
    assert text.replace("\n", "") == LONG
    assert "options.\n" in text or "splitfed_\n" in text or "_v1.\n" in text
    assert figure.get_figheight() > 1.0
    check_legends(figure)
