"""Figures of a comparison: learning over simulated time and over rounds, and a Gantt chart of a round for each label."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hsfl.errors import known_name
from hsfl.formats import ENDLESS, seconds
from hsfl.framework_table import METHODS, Style
from hsfl.report.compared_runs import Run, built_in
from hsfl.report.comparison import Comparison, contender_words, metric_title
from hsfl.report.curves import QUANTITIES, Band, mean_band, steps_of
from hsfl.report.figure_style import (
    FAINT,
    INK,
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
from hsfl.report.gantt import gantt_figure
from hsfl.runs.run_folder.records import ROUND_S

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray
LOSSES = ("train_loss", "test_loss")
Y_LABELS = {
    "test_accuracy": "test accuracy (%)",
    "balanced_accuracy": "balanced test accuracy (%)",
    "train_loss": "training loss",
    "test_loss": "test loss",
    ROUND_S: "round (simulated s)",
}
LONGEST_NAME = 24  # letters beside a curve
NUM_TIMES = 61  # points of a mean over time


def write_figures(comparison: Comparison, out: str | Path, gantt_round: int = 1) -> list[Path]:
    """Accuracy and losses over time and rounds, and a round of each label's first seed as a Gantt chart."""
    out, written = Path(out), []
    task_metrics = [metric.name for metric in comparison.runs[0].metrics if metric.name not in QUANTITIES]
    for quantity in (*QUANTITIES, *task_metrics):
        if any(record.value(quantity) is not None for run in comparison.runs for record in run.records):
            written += save_figure(learning_figure(comparison, quantity), out / quantity)
    names: list[str] = []
    for label in comparison.labels:
        first_run = comparison.runs_of(label)[0]
        shown = (record for record in first_run.records if record.round == gantt_round and record.crowd is None)
        for record in shown:
            name = f"gantt-{figure_file_name(label if first_run.contender is None else first_run.contender.folder)}"
            names.append(name)
            suffix = f"-{names.count(name)}" if names.count(name) > 1 else ""  # labels that differ in signs alone
            path = out / f"{name}{suffix}-round-{gantt_round}"
            words = contender_words([first_run])
            note = f"{words.cuts}, {words.allocation}"
            figure = gantt_figure(record, first_run.name, first_run.pools_data, first_run.client_names, note)
            written += save_figure(figure, path)
    return written


def learning_figure(comparison: Comparison, quantity: str | None = None) -> "Figure":
    """A quantity over simulated time (left) and over rounds (right), mean and interval over each label's seeds; by default the
    metric by which labels are compared."""
    quantity = quantity or comparison.metric.name
    metrics = {metric.name: metric for metric in comparison.runs[0].metrics}
    known_name("quantity", quantity, dict.fromkeys([*QUANTITIES, ROUND_S, *metrics]))
    mpl = matplotlib()
    unit_s, unit = time_unit(max(run.end_s for run in comparison.runs))
    y_scale = 100.0 if quantity in metrics and metrics[quantity].percent else 1.0
    styles = label_styles(frameworks_of(comparison.runs), foreign_styles(comparison.runs))
    with mpl.rc_context(STYLE):
        figure = mpl.figure.Figure(figsize=(11.5, 4.2), layout="constrained")
        time_axes, round_axes = figure.subplots(1, 2, sharey=True)
        over_time = _draw_curves(time_axes, comparison, quantity, "time", (1 / unit_s, y_scale), styles)
        over_rounds = _draw_curves(round_axes, comparison, quantity, "rounds", (1.0, y_scale), styles)
        ends = over_time.ends
        time_axes.set_xlim(0, 1.01 * max((end.x for end in ends), default=1.0))  # room for the last marker
        round_axes.set_xlim(left=0)
        if comparison.target is not None and quantity == comparison.metric.name:
            ends.append(_draw_target(time_axes, round_axes, comparison, y_scale * comparison.target))
        least, most = value_limits(comparison.runs, quantity)
        _end_axis_at_limits(time_axes, y_scale * least, y_scale * most)  # last, since the axis grows no more then
        if all(len(end.text) <= LONGEST_NAME for end in ends):  # else the legend alone, or no room is left
            _label_ends(time_axes, ends)
        y_label = Y_LABELS.get(quantity) or metric_title(metrics[quantity])
        time_axes.set(xlabel=f"simulated time ({unit})", ylabel=y_label)
        round_axes.set_xlabel("round")
        round_axes.tick_params(labelleft=True)
        round_axes.xaxis.get_major_locator().set_params(integer=True)
        texts = _legend_texts(comparison, over_time.firsts, over_rounds.firsts)
        handles = [_legend_sample(mpl, styles[label]) for label in comparison.labels]
        add_side_legend(figure, handles, texts)
        figure.supxlabel(_seeds_note(comparison), fontsize=8, color=FAINT)
    return figure


def _end_axis_at_limits(axes: "Axes", least: float, most: float) -> None:
    """End the axis a little beyond the most and the least that a value can be: intervals of few seeds reach far beyond."""
    low, high = axes.get_ylim()
    low, high = max(low, least), min(high, most)
    room = 0.03 * (high - low)  # for markers
    axes.set_ylim(low - room if low == least else low, high + room if high == most else high)


class _End(NamedTuple):
    """The last point of a curve, beside which its name is written."""

    text: str
    colour: str
    x: float
    y: float


class _Drawn(NamedTuple):
    """What is known of the curves of one picture, in the order of the labels."""

    firsts: list[int]  # of each curve, the first curve that it coincides with
    ends: list[_End]  # of the curves that have points


def _draw_curves(
    axes: "Axes",
    comparison: Comparison,
    quantity: str,
    over: str,
    scales: tuple[float, float],
    styles: Mapping[str, Style],
) -> _Drawn:
    """Draw the curve and the interval of every label. scales: what x and y are multiplied by."""
    names = [escape_dollars(comparison.name(label)) for label in comparison.labels]
    label_bands = [label_band(comparison.runs_of(label), quantity, over) for label in comparison.labels]
    bands = [_scaled(band, *scales) for band in label_bands]
    firsts, ends = lies_on([(x, mean) for x, mean, *_ in bands]), []
    for place, (label, (x, mean, low, high)) in enumerate(zip(comparison.labels, bands)):
        colour, marker, dashes = styles[label]
        style = (colour, marker, shared_dashes(dashes, firsts, place))
        steps = over == "time" and len(comparison.runs_of(label)) == 1
        _draw_interval(axes, x, mean, low, high, colour, place, len(bands), label_bands[place].num_seeds == 2)
        _draw_curve(axes, x, mean, style, place, names[place], steps)
        if len(x):
            ends.append(_End(names[place], colour, x[-1], mean[-1]))
    return _Drawn(firsts, ends)


def _draw_target(time_axes: "Axes", round_axes: "Axes", comparison: Comparison, target: float) -> _End:
    """Draw the target as a line in both pictures; returns where its name stands. target: as the axis shows it."""
    for axes in (time_axes, round_axes):
        axes.axhline(target, color=INK, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    sign = " %" if comparison.metric.percent else ""
    return _End(f"target {target:.4g}{sign}", INK, time_axes.get_xlim()[1], target)


def _legend_texts(comparison: Comparison, over_time: list[int], over_rounds: list[int]) -> list[str]:
    """The labels' names, a line for each setting, and with which curve each coincides."""
    names = [escape_dollars(comparison.name(label)) for label in comparison.labels]
    notes = coincidence_notes(names, ("over time", over_time), ("over rounds", over_rounds))
    texts = [re.sub(r",(?=\w+\.)", ",\n", name) for name in names]
    runs = [comparison.runs_of(label) for label in comparison.labels]
    missing = [_missing_words(label_runs) for label_runs in runs]
    notes = ["\n".join(filter(None, parts)) for parts in zip(missing, notes)]
    return [f"{text}\n{note}" if note else text for text, note in zip(texts, notes)]


def _missing_words(runs: Sequence[Run]) -> str:
    """How many runs of a label made a round, where not all did."""
    num_trained = sum(bool(run.records) for run in runs)
    if num_trained == 0:
        return "no round in the budget"
    return "" if num_trained == len(runs) else f"{num_trained} of {len(runs)} seeds made a round"


def foreign_styles(runs: Sequence[Run]) -> dict[str, Style]:
    """The styles of frameworks that are not built in, as their folders say."""
    return {run.framework: run.look.style for run in runs if run.look is not None and run.look.style is not None}


def frameworks_of(runs: Sequence[Run]) -> dict[str, str]:
    """The framework of each label."""
    return {run.label: run.framework for run in runs}


def label_styles(frameworks: Mapping[str, str], foreign: Mapping[str, Style] | None = None) -> dict[str, Style]:
    """A colour, marker and dashes for each label. The first label of a framework has the framework's style; other labels take styles
    that are left. frameworks: by label."""
    known_styles = {name: row.style for name, row in METHODS.items() if built_in(name) is not None}
    known_styles |= dict(foreign or {})
    firsts = first_labels(frameworks)
    styles = {firsts[name]: known_styles[name] for name in firsts if name in known_styles}
    free = [style for style in reversed(known_styles.values()) if style not in styles.values()]
    free = free or list(known_styles.values())
    other_labels = [label for label in frameworks if label not in styles]
    return styles | {label: free[place % len(free)] for place, label in enumerate(other_labels)}


def first_labels(frameworks: Mapping[str, str]) -> dict[str, str]:
    """By framework, the label that has its style: the one that is the framework's name, else the first. frameworks: by label."""
    firsts = {name: label for label, name in reversed(list(frameworks.items()))}
    return firsts | {name: name for label, name in frameworks.items() if label == name}


def label_band(runs: Sequence[Run], quantity: str, over: str) -> Band:
    """The mean over the runs of a label: over rounds at every round; over time at equal distances, since seeds step at different times.
    A seed without any value does not count. Two seeds have their range in place of an interval, which would be many times as wide; no
    interval goes beyond what a value can be."""
    all_curves = [run.curve(quantity, over) for run in runs]
    curves = [curve for curve in all_curves if len(curve.x)] or all_curves  # a seed that made no round is in the legend
    grid = steps_of(curves)
    if over == "time" and len(runs) > 1 and len(grid):
        grid = np.linspace(grid[0], grid[-1], NUM_TIMES)
    band = mean_band(curves, grid)
    if len(curves) == 2:
        values = np.stack([curve.at(grid) for curve in curves])
        band = replace(band, low=values.min(axis=0), high=values.max(axis=0))
    least, most = value_limits(runs, quantity)
    return replace(band, low=np.clip(band.low, least, most), high=np.clip(band.high, least, most))


def value_limits(runs: Sequence[Run], quantity: str) -> tuple[float, float]:
    """The least and the most that a quantity can be."""
    if any(metric.name == quantity and metric.percent for metric in runs[0].metrics):
        return 0.0, 1.0
    return (0.0, math.inf) if quantity in (*LOSSES, ROUND_S) else (-math.inf, math.inf)


def _scaled(band: Band, x_scale: float, y_scale: float) -> tuple[Array, Array, Array, Array]:
    return band.x * x_scale, band.mean * y_scale, band.low * y_scale, band.high * y_scale


MAX_BANDS = 2  # more bands would hide each other: then intervals are bars at a few points
NUM_BARS = 6
LINE_POINTS = 1.7  # the width of a curve


def _draw_interval(
    axes: "Axes",
    x: Array,
    mean: Array,
    low: Array,
    high: Array,
    colour: str,
    place: int,
    num_curves: int,
    is_range: bool,
) -> None:
    """Draw the interval beneath the lines: a pale band, or bars where many curves cross; each curve has its bars at other points. The
    range of two seeds is thin marks without ends."""
    if not np.isfinite(low).any():
        return
    if num_curves <= MAX_BANDS and not is_range:
        axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0, zorder=1)
        return
    positions = _bar_positions(len(x), place, num_curves)
    bars = np.stack([mean - low, high - mean])[:, positions]
    look: dict[str, Any] = {"ecolor": colour, "elinewidth": 0.9, "capsize": 2, "capthick": 0.9, "alpha": 0.75}
    look |= {"elinewidth": 0.7, "capsize": 0} if is_range else {}
    axes.errorbar(x[positions], mean[positions], bars, fmt="none", zorder=1.5, **look)


def _bar_positions(num_points: int, place: int, num_curves: int, max_bars: int = NUM_BARS) -> Array:
    """The points of a curve that have bars: all points where they are few, else about `max_bars`, apart from those of other curves."""
    if num_points <= max_bars:
        return np.arange(num_points)
    stride = max(num_points // max_bars, 1)
    first = place * stride // max(num_curves, 1)
    return np.arange(min(first, num_points - 1), num_points, stride)


def curve_look(style: Style) -> dict[str, Any]:
    """A framework's style as matplotlib's arguments for a curve."""
    colour, marker, dashes = style
    return {
        "color": colour,
        "linestyle": dashes,
        "linewidth": LINE_POINTS,
        "marker": marker,
        "markersize": 8 if marker == "*" else 5.5,
        "markeredgecolor": colour if marker == "x" else "white",
        "markeredgewidth": 1.4 if marker == "x" else 0.5,
    }


def _legend_sample(mpl: Any, style: Style) -> Any:
    """A line of the legend, in the curve's own style."""
    return mpl.lines.Line2D([], [], **curve_look(style))


def _draw_curve(axes: "Axes", x: Array, mean: Array, style: Style, place: int, name: str, steps: bool) -> None:
    stride = max(len(x) // 8, 1)
    axes.plot(
        x,
        mean,
        drawstyle="steps-post" if steps else "default",
        markevery=(place * stride // 3 % stride, stride),  # curves that coincide (HSFL = FL per round) all show marks
        label=name,
        zorder=2,
        **curve_look(style),
    )


def _label_ends(axes: "Axes", ends: list[_End]) -> None:
    """Each curve's name right of the axes, as near to its last value as the other names allow."""
    if not ends:
        return
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    ends = sorted(ends, key=lambda end: end.y)
    heights = spread([(end.y - low) / (high - low) for end in ends], gap=0.06)
    for (text, colour, x, y), height in zip(ends, heights):
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.7, "shrinkA": 0, "shrinkB": 2}
        axes.annotate(
            text,
            xy=(x, y),
            xytext=(1.05, height),
            textcoords="axes fraction",
            va="center",
            color=colour,
            fontweight="normal" if colour == INK else "bold",
            fontsize=8.5,
            annotation_clip=False,
            arrowprops=leader | {"relpos": (0, 0.5)},
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights moved apart to at least `gap`, within 0 and 1 if they fit, by the least sum of squares."""
    groups: list[list[float]] = []  # neighbours that touch move together (pool adjacent violators)
    for place, height in enumerate(heights):
        groups.append([height - place * gap])
        while len(groups) > 1 and np.mean(groups[-2]) >= np.mean(groups[-1]):
            last = groups.pop()
            groups[-1] += last
    levels = [float(np.mean(group)) for group in groups for _ in group]
    ceiling = max(1.0 - gap * (len(heights) - 1), 0.0)
    return [min(max(base, 0.0), ceiling) + place * gap for place, base in enumerate(levels)]


def time_unit(longest_s: float) -> tuple[float, str]:
    """The unit of a time axis, as the page's function timeUnit chooses it: seconds in one unit, and the unit's name."""
    if longest_s >= ENDLESS:
        return longest_s, f"1 is {seconds(longest_s)}"
    units = ((3.156e7, "years"), (86400.0, "days"), (3600.0, "h"), (60.0, "min"))
    return next(((s, name) for s, name in units if longest_s >= 3 * s), (1.0, "s"))


def _seeds_note(comparison: Comparison) -> str:
    trained = [sum(bool(run.records) for run in comparison.runs_of(label)) for label in comparison.labels]
    counts = sorted({number for number in trained if number})
    if not counts or counts == [1]:
        return "one seed"
    marks = ["thin marks are the range of two seeds"] if 2 in counts else []
    intervals = ["with its 95 % confidence interval"] if counts[-1] > 2 else []
    numbers = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    mean = " ".join(["mean", *intervals, f"over {numbers} seeds"])
    return "; ".join([mean, *marks, "a curve ends where the first of its seeds ends"])
