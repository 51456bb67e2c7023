"""Figures of a sweep: a metric against the first field, a curve for each contender, a panel for each value of the other fields."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hsfl.report.figure_style import (
    FAINT,
    STYLE,
    add_side_legend,
    coincidence_notes,
    escape_dollars,
    figure_file_name,
    lies_on,
    matplotlib,
    save_figure,
    shared_dashes,
)
from hsfl.report.plots import LINE_POINTS, curve_look, label_styles
from hsfl.report.sweep_results import Sweep, find_metric, say_setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray
LOG_FROM = 8.0  # times from the least to the greatest value: above, the axis is logarithmic
APART_POINTS = 2.5  # between the curves' bars, in points
MAX_COLUMNS = 3
LEGEND_WIDTH = 1.7  # inches, beside the panels


@dataclass(frozen=True)
class SweepAxis:
    """The values of the first field, in their order on the axis."""

    values: list[Any]
    texts: list[str]
    x: Array  # where they stand
    numbers: bool  # else words, which stand at equal distances
    log: bool


@dataclass(frozen=True)
class Panel:
    """The points in which the fields after the first have the same values."""

    name: str
    points: list[int]  # in the order of the axis


def axis_of(sweep: Sweep) -> SweepAxis:
    """The axis of a sweep: the values of its first field, logarithmic where they span a wide range."""
    values = list({repr(value[0]): value[0] for value in sweep.values}.values())
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    values = sorted(values) if numbers else values
    x = np.array(values, float) if numbers else np.arange(len(values), dtype=float)
    log = numbers and len(values) > 1 and x.min() > 0 and x.max() >= LOG_FROM * x.min()
    return SweepAxis(values, [say_setting(sweep.fields[0], value) for value in values], x, numbers, bool(log))


def panels_of(sweep: Sweep) -> list[Panel]:
    """The panels of a sweep, one for each combination of the values of the fields after the first."""
    order = {repr(value): place for place, value in enumerate(axis_of(sweep).values)}
    points_of: dict[str, list[int]] = {}
    for point, (_, *other_values) in enumerate(sweep.values):
        name = ", ".join(f"{field} = {say_setting(field, v)}" for field, v in zip(sweep.fields[1:], other_values))
        points_of.setdefault(name, []).append(point)
    return [
        Panel(name, sorted(points, key=lambda p: order[repr(sweep.values[p][0])])) for name, points in points_of.items()
    ]


def curve_of(sweep: Sweep, panel: Panel, label: str, metric: str) -> tuple[Array, Array, Array]:
    """Mean, low and high at the panel's points, in the unit of the axis; NaN where unknown."""
    scale = find_metric(metric).scale
    estimates = [sweep.drawn_estimate(point, label, metric) for point in panel.points]
    columns = [[getattr(estimate, name) for estimate in estimates] for name in ("mean", "low", "high")]
    mean, low, high = (np.array([np.nan if v is None else scale * v for v in column]) for column in columns)
    return mean, low, high


def write_sweep_figures(sweep: Sweep, metrics: Sequence[str], out: Path) -> list[Path]:
    """Draw every metric against the first field; returns the files."""
    return [path for name in metrics for path in save_figure(sweep_figure(sweep, name), out / figure_file_name(name))]


def sweep_figure(sweep: Sweep, metric: str) -> "Figure":
    """One metric against the first field: a curve for each contender, in as many panels as the other fields need."""
    mpl = matplotlib()
    axis, panels = axis_of(sweep), panels_of(sweep)
    styles = label_styles(sweep.frameworks, sweep.styles)
    names = [escape_dollars(sweep.names[label]) for label in sweep.labels]
    num_columns = min(len(panels), MAX_COLUMNS)
    num_rows = -(-len(panels) // num_columns)
    with mpl.rc_context(STYLE):
        size = (max(5.0, 3.4 * num_columns) + LEGEND_WIDTH, 2.6 * num_rows + 0.9)
        figure = mpl.figure.Figure(figsize=size, layout="constrained")
        grid = figure.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False)
        firsts: list[tuple[str, list[int]]] = []
        drawn: list[tuple[Array, Array, Array]] = []
        for axes, panel in zip(grid.flat, panels):
            curves = [curve_of(sweep, panel, label, metric) for label in sweep.labels]
            drawn += curves
            panel_firsts = lies_on([(axis.x[: len(mean)], mean) for mean, *_ in curves])
            firsts.append((f"at {escape_dollars(panel.name)}" if panel.name else "", panel_firsts))
            x = np.array([axis.x[place] for place in axis_positions(sweep, axis, panel)])
            for place, (label, curve) in enumerate(zip(sweep.labels, curves)):
                colour, marker, dashes = styles[label]
                shift = APART_POINTS * (place - (len(names) - 1) / 2)
                dashes = shared_dashes(dashes, panel_firsts, place, shift / LINE_POINTS)
                style = (colour, marker, dashes if axis.numbers else "none")
                _draw_curve_with_bars(mpl, figure, axes, x, curve, style, shift)
            axes.set_title(escape_dollars(panel.name), fontsize=9)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_visible(False)
        grid.flat[0].set_ylim(*y_limits(drawn))
        _name_axes(mpl, grid, axis, escape_dollars(sweep.fields[0]), escape_dollars(sweep.title(metric)))
        texts = [f"{name} {note}".strip() for name, note in zip(names, coincidence_notes(names, *firsts))]
        handles = [mpl.lines.Line2D([], [], **curve_look(styles[label])) for label in sweep.labels]
        add_side_legend(figure, handles, texts)
        if len(sweep.seeds) > 1:
            spread = "range" if len(sweep.seeds) == 2 else "95 % confidence interval"
            note = f"mean and {spread} over {len(sweep.seeds)} seeds"
            grid.flat[0].annotate(
                note, (0, 1), (0, 16 if panels[0].name else 4), "axes fraction", "offset points", fontsize=7.5, color=FAINT
            )  # fmt: skip
    return figure


def y_limits(curves: Sequence[tuple[Array, Array, Array]]) -> tuple[float, float]:
    """The least and the greatest y, with room for all means and the ends of all bars; an axis without negative values begins at 0 or
    above."""
    known = np.concatenate([values[np.isfinite(values)] for curve in curves for values in curve])
    if not len(known):
        return 0.0, 1.0
    low, high = float(known.min()), float(known.max())
    edge = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return (max(low - edge, 0.0) if low >= 0 else low - edge), high + edge


def axis_positions(sweep: Sweep, axis: SweepAxis, panel: Panel) -> list[int]:
    """The position on the axis of each point of a panel."""
    order = {repr(value): place for place, value in enumerate(axis.values)}
    return [order[repr(sweep.values[point][0])] for point in panel.points]


def _draw_curve_with_bars(
    mpl: Any, figure: "Figure", axes: "Axes", x: Array, curve: tuple[Array, Array, Array], style: Any, shift: float
) -> None:
    """A curve with bars, a little to the side, so that bars at the same value stand beside each other."""
    mean, low, high = curve
    beside = mpl.transforms.ScaledTranslation(shift / 72, 0, figure.dpi_scale_trans)
    transform = axes.transData + beside
    known = np.isfinite(low)
    if known.any():
        bars = np.stack([mean - low, high - mean])[:, known]
        look: dict[str, Any] = {"ecolor": style[0], "elinewidth": 0.9, "capsize": 2.5, "alpha": 0.75}
        axes.errorbar(x[known], mean[known], bars, fmt="none", zorder=1.5, transform=transform, **look)
    axes.plot(x, mean, zorder=2, transform=transform, **curve_look(style))


def _name_axes(mpl: Any, grid: Any, axis: SweepAxis, field: str, title: str) -> None:
    for axes in grid.flat:
        if axis.log:
            axes.set_xscale("log")
        axes.set_xticks(axis.x, axis.texts, rotation=0 if sum(map(len, axis.texts)) <= 40 else 30)
        axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
        axes.tick_params(labelbottom=axes in list(grid[-1]) or not axes.get_visible())
        if axis.log:
            room = float(axis.x.max() / axis.x.min()) ** 0.06
            axes.set_xlim(axis.x.min() / room, axis.x.max() * room)
        else:
            room = 0.06 * float(np.ptp(axis.x)) or 0.5
            axes.set_xlim(axis.x.min() - room, axis.x.max() + room)
    for axes in grid[-1]:
        axes.set_xlabel(field)
    for axes in grid[:, 0]:
        axes.set_ylabel(title)
