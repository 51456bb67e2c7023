"""Figures: learning over simulated time and over rounds, and the Gantt chart of a round (Fig. 1(b) of the paper).

Matplotlib comes with the extra `report` and is imported where it is used. A figure is a value that nothing else knows
of (no pyplot, no global state); `save` writes it as PNG and SVG, the same bytes every time.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hsfl.errors import InputError, known
from hsfl.network.clock import FRAMEWORKS, PHASES
from hsfl.records import RoundRecord, write_atomic
from hsfl.report.comparison import Comparison
from hsfl.report.curves import QUANTITIES, Band, mean_band, steps_of
from hsfl.report.runs import Run, display_name, run_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray
Style = tuple[str, str, Any]

# Colour, marker and dashes of each framework, the same in every figure: told apart by colour-blind eyes (Okabe and
# Ito, Tol) and without any colour.
STYLES: dict[str, Style] = {
    "cl": ("#555555", "x", (0, (1, 1.5))),
    "fl": ("#0072B2", "s", (0, (5, 1.5))),
    "sl": ("#999933", "v", (0, (3, 1.5, 1, 1.5))),
    "splitfed_v1": ("#009E73", "^", (0, (4, 1, 1, 1, 1, 1))),
    "splitfed_v2": ("#E69F00", "D", (0, (7, 2))),
    "psl": ("#CC79A7", "P", (0, (2, 1))),
    "fsl": ("#56B4E9", "<", (0, (6, 1, 2, 1))),
    "locfedmix_sl": ("#882255", ">", (0, (3, 3))),
    "cpsl": ("#000000", "*", (0, (1, 3))),
    "hsfl": ("#D55E00", "o", "solid"),
}
PHASE_COLOURS = {  # a hue for who works (client, radio, server, model exchange), dark forward and light back
    "client_forward": "#0072B2",
    "smashed": "#117755",
    "server_forward": "#D55E00",
    "server_backward": "#F5B183",
    "gradient": "#7FCDB0",
    "client_backward": "#8CC6EC",
    "decoder": "#555555",
    "model_up": "#882255",
    "model_down": "#D9A5C8",
}
PHASE_NAMES = {
    "client_forward": "client forward",
    "smashed": "smashed data up",
    "server_forward": "server forward",
    "server_backward": "server backward",
    "gradient": "gradient down",
    "client_backward": "client backward",
    "decoder": "decoder (beside)",
    "model_up": "model up",
    "model_down": "model down",
}
Y_LABELS = {
    "test_accuracy": "test accuracy (%)",
    "balanced_accuracy": "balanced test accuracy (%)",
    "train_loss": "training loss",
    "test_loss": "test loss",
}
MAX_ROWS = 50  # clients in a Gantt chart
NUM_TIMES = 61  # points of a mean over time
INK, FAINT, ALARM = "#222222", "#8A8A8A", "#B00020"
STYLE = {
    "font.size": 9.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "hsfl",  # the names inside an SVG are random otherwise
}


def matplotlib() -> Any:
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError:
        raise InputError("figures need matplotlib; pip install 'hsfl[report]'") from None
    return matplotlib


def save(figure: "Figure", path: str | Path, formats: Iterable[str] = ("png", "svg")) -> list[Path]:
    """Write `path`.png and `path`.svg (or the formats given), without dates, so that the same figure is the same file."""
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    written = []
    for kind in formats:
        words = {"format": known("format", kind, metadata), "metadata": metadata[kind], "dpi": 160}
        target = Path(f"{path}.{kind}")
        with matplotlib().rc_context(STYLE):
            write_atomic(target, partial(figure.savefig, **words, facecolor="white"))
        written.append(target)
    return written


def write_figures(comparison: Comparison, out: str | Path, gantt_round: int = 1) -> list[Path]:
    """Accuracy and losses over time and rounds, and a round of each label's first seed as a Gantt chart."""
    out = Path(out)
    written = []
    for quantity in QUANTITIES:
        if any(getattr(record, quantity) is not None for run in comparison.runs for record in run.records):
            written += save(learning_figure(comparison, quantity), out / quantity)
    for label in comparison.labels:
        rounds = [record for record in comparison.runs_of(label)[0].records if record.round == gantt_round]
        for record in rounds:
            name = run_path(out, label, 0).parent.name
            written += save(gantt_figure(record, display_name(label)), out / f"gantt-{name}-round-{gantt_round}")
    return written


# ---- learning


def learning_figure(comparison: Comparison, quantity: str = "test_accuracy") -> "Figure":
    """A quantity over simulated time (left) and over rounds (right), mean and interval over each label's seeds."""
    known("quantity", quantity, QUANTITIES)
    mpl = matplotlib()
    styles = label_styles(comparison.labels)
    unit_s, unit = _time_unit(max(run.end_s for run in comparison.runs))
    y_scale = 100.0 if quantity.endswith("accuracy") else 1.0
    with mpl.rc_context(STYLE):
        figure = mpl.figure.Figure(figsize=(11.5, 4.2), layout="constrained")
        time_axes, round_axes = figure.subplots(1, 2, sharey=True)
        ends = []  # (text, colour, x, y) of the last points over time
        for place, label in enumerate(comparison.labels):
            runs, name = comparison.runs_of(label), display_name(label)
            for axes, over, x_scale in ((time_axes, "time", 1 / unit_s), (round_axes, "rounds", 1.0)):
                x, mean, low, high = _scaled(_label_band(runs, quantity, over), x_scale, y_scale)
                _draw_band(
                    axes, x, mean, low, high, styles[label], place, name, steps=over == "time" and len(runs) == 1
                )
                if over == "time" and len(x):
                    ends.append((name, styles[label][0], x[-1], mean[-1]))
        time_axes.set_xlim(0, max((x for *_, x, _ in ends), default=1.0))
        round_axes.set_xlim(left=0)
        for axes in (time_axes, round_axes):
            if comparison.target is not None and quantity == "test_accuracy":
                axes.axhline(100 * comparison.target, color=INK, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
        if comparison.target is not None and quantity == "test_accuracy":
            ends.append(
                (f"target {100 * comparison.target:.4g} %", INK, time_axes.get_xlim()[1], 100 * comparison.target)
            )
        _label_ends(time_axes, ends)
        time_axes.set(xlabel=f"simulated time ({unit})", ylabel=Y_LABELS[quantity])
        round_axes.set_xlabel("round")
        round_axes.tick_params(labelleft=True)
        round_axes.xaxis.get_major_locator().set_params(integer=True)
        handles = round_axes.get_legend_handles_labels()
        figure.legend(*handles, loc="outside right center", frameon=False, fontsize=8.5, handlelength=3.6)
        figure.supxlabel(_seeds_note(comparison), fontsize=8, color=FAINT)
    return figure


def label_styles(labels: Sequence[str]) -> dict[str, Style]:
    """A framework has its own style; labels with settings take what is left, in turn."""
    styles = {label: STYLES[label] for label in labels if label in STYLES}
    free = [style for name, style in reversed(STYLES.items()) if name not in styles] or list(STYLES.values())
    others = [label for label in labels if label not in styles]
    return styles | {label: free[place % len(free)] for place, label in enumerate(others)}


def _label_band(runs: Sequence[Run], quantity: str, over: str) -> Band:
    """Over rounds at every round; over time, where seeds step at different times, at equal distances."""
    curves = [run.curve(quantity, over) for run in runs]
    grid = steps_of(curves)
    if over == "time" and len(runs) > 1 and len(grid):
        grid = np.linspace(grid[0], grid[-1], NUM_TIMES)
    return mean_band(curves, grid)


def _scaled(band: Band, x_scale: float, y_scale: float) -> tuple[Array, Array, Array, Array]:
    return band.x * x_scale, band.mean * y_scale, band.low * y_scale, band.high * y_scale


def _draw_band(
    axes: "Axes", x: Array, mean: Array, low: Array, high: Array, style: Style, place: int, name: str, steps: bool
) -> None:
    colour, marker, dashes = style
    if np.isfinite(low).any():
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    every = max(len(x) // 8, 1)
    axes.plot(
        x,
        mean,
        color=colour,
        linestyle=dashes,
        linewidth=1.7,
        drawstyle="steps-post" if steps else "default",
        marker=marker,
        markersize=8 if marker == "*" else 5.5,
        markeredgecolor=colour if marker == "x" else "white",
        markeredgewidth=1.4 if marker == "x" else 0.5,
        markevery=(place * every // 3 % every, every),  # curves that coincide (HSFL = FL per round) all show marks
        label=name,
    )


def _label_ends(axes: "Axes", ends: list[tuple[str, str, float, float]]) -> None:
    """Each curve's name right of the axes, as near to its last value as the other names allow."""
    if not ends:
        return
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    ends = sorted(ends, key=lambda end: end[3])
    heights = spread([(y - low) / (high - low) for *_, y in ends], gap=0.06)
    for (text, colour, x, y), height in zip(ends, heights):
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.7, "shrinkA": 0, "shrinkB": 2}
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
            arrowprops=line | {"relpos": (0, 0.5)},
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights moved apart to at least `gap`, within 0 and 1 if they fit, by the least sum of squares."""
    groups: list[list[float]] = []  # neighbours that touch move together (pool adjacent violators)
    for place, height in enumerate(heights):
        groups.append([height - place * gap])
        while len(groups) > 1 and np.mean(groups[-2]) >= np.mean(groups[-1]):
            last = groups.pop()
            groups[-1] += last
    even = [float(np.mean(group)) for group in groups for _ in group]
    ceiling = max(1.0 - gap * (len(heights) - 1), 0.0)
    return [min(max(base, 0.0), ceiling) + place * gap for place, base in enumerate(even)]


def _time_unit(longest_s: float) -> tuple[float, str]:
    return next(((s, name) for s, name in ((3600.0, "h"), (60.0, "min")) if longest_s >= 3 * s), (1.0, "s"))


def _seeds_note(comparison: Comparison) -> str:
    numbers = sorted({len(result.seeds) for result in comparison.results})
    if numbers == [1]:
        return "one seed"
    count = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return f"mean and 95 % confidence interval over {count} seeds; a curve ends where the first of its seeds ends"


# ---- Gantt


def gantt_figure(record: RoundRecord, title: str | None = None) -> "Figure":
    """One round: a row for each client, a bar for each phase, hatched where the client waits."""
    mpl = matplotlib()
    clients = gantt_rows(record)
    row_inches, font = (np.interp(len(clients), [1, 10, 50], sizes) for sizes in ([0.5, 0.36, 0.2], [9.5, 9.5, 7]))
    with mpl.rc_context(STYLE):
        figure = mpl.figure.Figure(figsize=(10, 1.7 + row_inches * len(clients)), layout="constrained")
        axes = figure.subplots()
        _draw_phases(axes, record, clients)
        _draw_waiting(axes, record, clients)
        _name_rows(axes, record, clients, float(font))
        _mark_dropped(axes, record, clients, float(font))
        axes.axvline(record.round_s, color=INK, linewidth=1)
        axes.set(xlim=(0, record.round_s or 1.0), ylim=(len(clients) - 0.4, -0.6))
        axes.set_xlabel(
            "seconds from the start of the round; a bar is a phase in all mini-batches together", fontsize=8.5
        )
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        axes.set_title(_gantt_title(record, clients, title), loc="left", fontsize=10.5, fontweight="bold")
        handles, names = axes.get_legend_handles_labels()
        order = sorted(range(len(names)), key=lambda i: names[i].startswith("dropped"))  # stable: the others stay
        figure.legend(
            [handles[i] for i in order],
            [names[i] for i in order],
            loc="outside lower center",
            ncols=5,
            frameon=False,
            fontsize=8.5,
        )
    return figure


def gantt_rows(record: RoundRecord) -> list[int]:
    """The clients shown: all, or of a large fleet those that wait least. CL has one row, the main server."""
    if record.framework == "cl":
        return [0]
    everyone = list(range(len(record.cuts)))
    if len(everyone) <= MAX_ROWS:
        return everyone
    started = set(record.started)
    return sorted(sorted(everyone, key=lambda k: (k not in started, record.waiting_s[k]))[:MAX_ROWS])


def gantt_tau_s(record: RoundRecord) -> float | None:
    """When clients were dropped: where the work of those that were breaks off; None if none was."""
    work = [times for phase, times in record.phases.items() if phase != "model_down"]
    return max((times["end_s"][k] for times in work for k in record.dropped), default=None)


def waiting_spans(record: RoundRecord, client: int) -> list[tuple[float, float]]:
    """The parts of the round that no phase of the client covers."""
    spans = sorted((times["start_s"][client], times["end_s"][client]) for times in record.phases.values())
    waiting, now_s = [], 0.0
    for start_s, end_s in [*((a, b) for a, b in spans if b > a), (record.round_s, record.round_s)]:
        if start_s > now_s:
            waiting.append((now_s, start_s))
        now_s = max(now_s, end_s)
    return waiting


def _draw_phases(axes: "Axes", record: RoundRecord, clients: list[int]) -> None:
    for phase in PHASES:
        if phase not in record.phases:
            continue
        start_s, end_s = (np.array(record.phases[phase][name], float)[clients] for name in ("start_s", "end_s"))
        rows = np.flatnonzero(end_s > start_s)
        beside = phase == "decoder"  # it runs beside the server's work: a thin bar over it
        axes.barh(
            rows + (0.25 if beside else 0.0),
            (end_s - start_s)[rows],
            left=start_s[rows],
            height=0.26 if beside else 0.76,
            color=PHASE_COLOURS[phase],
            edgecolor="white",
            linewidth=0.4,
            label=PHASE_NAMES[phase],
            zorder=3 if beside else 2,
        )


def _draw_waiting(axes: "Axes", record: RoundRecord, clients: list[int]) -> None:
    started = set(record.started)
    gaps = [(row, a, b) for row, k in enumerate(clients) if k in started for a, b in waiting_spans(record, k)]
    if gaps:
        rows, start_s, end_s = (np.array(column) for column in zip(*gaps))
        axes.barh(
            rows, end_s - start_s, left=start_s, height=0.76, color="none", edgecolor="#C4C4C4", linewidth=0,
            hatch="////", label="waiting", zorder=1,
        )  # fmt: skip


def _name_rows(axes: "Axes", record: RoundRecord, clients: list[int], font: float) -> None:
    """Client and cut at the left; at the right who was the straggler, was dropped or did not start."""
    pooled = record.framework == "cl"
    names = ["main server"] if pooled else [f"client {k}   cut {record.cuts[k]}" for k in clients]
    axes.set_yticks(range(len(clients)), names, fontsize=font)
    axes.tick_params(axis="y", length=0)
    for row, k in enumerate(clients if not pooled else []):
        straggler, dropped, started = k == record.straggler, k in record.dropped, k in record.started
        words = {"straggler": straggler, "dropped": dropped, "did not start": not started}
        axes.annotate(
            ", ".join(word for word, holds in words.items() if holds),
            xy=(1, row),
            xytext=(6, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center_baseline",
            fontsize=font,
            color=ALARM if dropped else INK if started else FAINT,
            fontweight="bold" if straggler else "normal",
            annotation_clip=False,
        )
        axes.get_yticklabels()[row].set_fontweight("bold" if straggler else "normal")


def _mark_dropped(axes: "Axes", record: RoundRecord, clients: list[int], font: float) -> None:
    tau_s = gantt_tau_s(record)
    if tau_s is None:
        return
    axes.axvline(tau_s, color=ALARM, linewidth=1, linestyle=(0, (4, 2)))
    rows = [row for row, k in enumerate(clients) if k in record.dropped]
    look = {"marker": "X", "color": ALARM, "markeredgecolor": "white", "markersize": font, "linestyle": "none"}
    axes.plot([tau_s] * len(rows), rows, **look, label=f"dropped at tau = {say_s(tau_s)}", zorder=5, clip_on=False)


def _gantt_title(record: RoundRecord, clients: list[int], title: str | None) -> str:
    name = title or (display_name(record.framework) if record.framework in FRAMEWORKS else record.framework)
    words = f"{name}, round {record.round}: {say_s(record.round_s)}"
    if len(clients) < len(record.cuts):
        words += f" ({len(clients)} of {len(record.cuts)} clients, those that wait least)"
    return words


def say_s(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"
