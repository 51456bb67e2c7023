"""Learning over simulated time, averaged over fleets, and over rounds.

Legend: F fleets, S training seeds, G places on the x-axis.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hsfl.experiments.columns import BUILT_IN, COLUMNS, PUBLISHED, TWIN_TRACE
from hsfl.experiments.reclock import ends_s
from hsfl.experiments.statistics import two_way_half_width
from hsfl.experiments.table1_study import Study
from hsfl.framework_table import FREE_STYLES, METHODS, PROPOSED, Style
from hsfl.report.figure_style import FAINT, STYLE, matplotlib, plain
from hsfl.report.plots import Y_LABELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray
LOOKS: dict[str, Style] = {
    **{name: row.style for name, row in BUILT_IN.items()},
    "hsfl_even": ("#D55E00", "D", (0, (1, 1.2))),
    "single_proposed": ("#009E73", "P", "solid"),
    "single_even": ("#009E73", "s", (0, (1, 1.2))),
}
GRID = 121


def looks_of(columns: Sequence[str]) -> dict[str, Style]:
    """A colour and line style for each column: a plugin's framework brings its own, other contenders get unused styles."""
    looks = {column: LOOKS[column] for column in columns if column in LOOKS}
    for column in (column for column in columns if column not in LOOKS):
        own = METHODS[COLUMNS[column].framework].style
        free = [style for style in (own, *FREE_STYLES) if style not in looks.values() and style not in LOOKS.values()]
        looks[column] = free[0] if free else own
    return looks


def learning_over_fleets(study: Study, data: str, quantity: str = "test_accuracy") -> "Figure":
    """Left: over time in units of SplitFed V1's mean round (as published) on the same fleet. Right: over rounds."""
    mpl = matplotlib()
    scale = 100.0 if quantity.endswith("accuracy") else 1.0
    looks = LOOKS | looks_of(study.columns)
    with mpl.rc_context(STYLE):
        figure = mpl.figure.Figure(figsize=(11.5, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        x = np.linspace(0.0, study.budget_rounds(data), GRID)
        for column in study.columns:
            values = scale * np.stack([_over_time(study, data, column, seed, x, quantity) for seed in study.seeds], 1)
            _draw(left, x, values, looks[column], plain(COLUMNS[column].title))
        for trace in dict.fromkeys(COLUMNS[column].trace for column in study.columns):
            values = scale * np.array(
                [[_over_rounds(study, data, trace, seed, quantity) for seed in study.seeds]], float
            )
            title = "HSFL = SplitFed V1 = FL" if trace == TWIN_TRACE else plain(COLUMNS[trace].title)
            look = looks[PROPOSED] if trace == TWIN_TRACE else looks[trace]
            _draw(right, np.arange(1.0, values.shape[2] + 1), values, look, title)
        left.set(xlabel="simulated time (rounds of SplitFed V1 as published)", ylabel=Y_LABELS[quantity])
        right.set_xlabel("round")
        right.tick_params(labelleft=True)
        left.set_xlim(0, x[-1])
        right.set_xlim(left=0)
        figure.legend(
            *left.get_legend_handles_labels(),
            loc="outside upper left",
            ncols=4,
            frameon=False,
            fontsize=8.5,
            handlelength=3.4,
        )
        right.legend(frameon=False, fontsize=8.5, handlelength=3.4)
        fleets, seeds = len({a.fleet for a in study.answers if a.data == data}), len(study.seeds)
        note = f"mean over {fleets} fleets and {seeds} training seed{'s' if seeds > 1 else ''}" + (
            "; band: 95 % interval over fleets and seeds (right: over seeds)"
            if seeds > 1
            else "; band: 95 % interval over fleets"
        )
        figure.supxlabel(note + "; over time drawn from where every fleet has made a round", fontsize=8, color=FAINT)
    return figure


def _over_time(study: Study, data: str, column: str, seed: int, x: Array, quantity: str) -> Array:
    """The values at times x on every fleet, [F, G]; NaN where a fleet has made no round yet."""
    curves = []
    for answer in (a for a in study.answers if (a.data, a.seed) == (data, seed)):
        trace = study.trace(answer, column)
        ends = ends_s(answer.round_s[column], len(trace.rounds)) / answer.mean_s(PUBLISHED)
        step = np.searchsorted(ends, x * (1 + 1e-9), side="right") - 1
        values = np.array(trace.values(quantity), float)
        curves.append(np.where(step >= 0, values[np.maximum(step, 0)], np.nan))
    return np.array(curves)


def _over_rounds(study: Study, data: str, trace: str, seed: int, quantity: str) -> Sequence[float | None]:
    return study.traces[data, trace, seed].values(quantity)


def _draw(axes: "Axes", x: Array, values: Array, look: Style, label: str) -> None:
    """The mean over fleets and seeds, values [F, S, G], with its interval; the rounds of a training know no fleet, F = 1."""
    colour, marker, dashes = look
    mean = values.mean(axis=(0, 1))
    if values.shape[0] * values.shape[1] > 1:
        half = two_way_half_width(values)
        axes.fill_between(x, mean - half, mean + half, color=colour, alpha=0.10, linewidth=0, zorder=1)
    axes.plot(
        x, mean, color=colour, linestyle=dashes, marker=marker, markevery=max(1, len(x) // 8), markersize=5,
        linewidth=1.7, label=label, zorder=3,
    )  # fmt: skip
