"""Table 1 in words and pictures: ratios of seconds over fleets, accuracies at a budget, verdicts over fleets and training seeds; and figures of
learning over simulated time, averaged over fleets, and over rounds.

Legend: F fleets, S training seeds, G places on the x-axis.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hsfl.experiments.common import Trend, machine, say_mean, trend_table
from hsfl.experiments.statistics import (
    NO,
    UNDECIDED,
    YES,
    Verdict,
    over_fleets_and_seeds,
    ratio_over_fleets,
    two_way_half_width,
    verdicts,
)
from hsfl.experiments.table1.columns import BUILT_IN, COLUMNS, PUBLISHED, TWIN_TRACE
from hsfl.experiments.table1.table1_study import FRACTIONS, ColumnTiming, Study, TableCell
from hsfl.experiments.table1.tau_row import TauRow
from hsfl.experiments.table1.traces import ends_s
from hsfl.framework_table import COMPARED, FREE_STYLES, METHODS, PROPOSED, Style
from hsfl.report.curves import Estimate, estimate
from hsfl.report.figure_style import FAINT, STYLE, add_side_legend, escape_dollars, legend_texts, matplotlib
from hsfl.report.plots import Y_LABELS
from hsfl.report.tables import SummaryTable, ValueCell, markdown_rows, spread_note

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER = {  # per cent
    "ham10000": {"hsfl": 75.31, "splitfed_v1": 75.09, "fl": 74.54, "sl": 76.29, "cl": 77.11},
    "cifar10": {"hsfl": 76.12, "splitfed_v1": 74.72, "fl": 74.04, "sl": 77.24, "cl": 82.61},
    "mnist": {"hsfl": 99.05, "splitfed_v1": 98.95, "fl": 98.27, "sl": 98.75, "cl": 98.93},
}
DATA_NAMES = {"ham10000": "HAM10000", "cifar10": "CIFAR-10", "mnist": "MNIST"}
REFERENCE = PROPOSED
SINGLE = "single_proposed"  # what HSFL is without cuts of each client's own
NO_ROUND = "no round fits on some fleet"
Array = np.ndarray
HOLDS = {YES: True, NO: False, UNDECIDED: None}


def name_of(data: str) -> str:
    """A data set as its authors write it: cifar10 -> CIFAR-10."""
    return DATA_NAMES.get(data, data)


# ---- verdicts


def table1_trends(cells: Sequence[TableCell]) -> list[Trend]:
    """The paper's order of HSFL and each other framework, data set by data set, at the whole budget; and what own cuts alone do, of which
    the paper says nothing. All verdicts are corrected together."""
    claims = _claims(cells)
    tested = iter(verdicts([values for _, values in claims if values is not None]))
    answers = [None if values is None else next(tested) for _, values in claims]
    return [
        Trend(
            claim,
            NO_ROUND if verdict is None else _say_points(verdict),
            None if verdict is None else HOLDS[verdict.answer],
        )
        for (claim, _), verdict in zip(claims, answers)
    ]


def _claims(cells: Sequence[TableCell]) -> list[tuple[str, Array | None]]:
    """Every claim in words, with the difference [F, S] that is above zero if the claim is right; None where it cannot be tested."""
    columns, claims = {cell.column for cell in cells}, []
    for data in dict.fromkeys(cell.data for cell in cells if cell.data in PAPER):
        for other in (name for name in (*COMPARED[1:], SINGLE) if {REFERENCE, name} <= columns):
            paper = PAPER[data][REFERENCE] - PAPER[data].get(other, 0.0)
            values = difference(cells, data, REFERENCE, other)
            claims.append((_claim(data, other, paper), None if values is None else np.sign(paper) * values))
    return claims


def _claim(data: str, other: str, paper: float) -> str:
    """The paper's order of HSFL and another column, in words. paper: HSFL's accuracy less the other's, in points."""
    high, low = (REFERENCE, other) if paper > 0 else (other, REFERENCE)
    order = f"{name_of(data)}: {COLUMNS[high].title} is more accurate than {COLUMNS[low].title}"
    return f"(not in the paper) {order}" if other == SINGLE else f"{order} ({abs(paper):.2f} points)"


def difference(cells: Sequence[TableCell], data: str, high: str, low: str, fraction: float = 1.0) -> Array | None:
    """The difference of two columns' accuracies, [F, S]; None where a fleet has made no round."""
    above, below = (_grid(cells, data, column, fraction) for column in (high, low))
    return None if np.isnan(above - below).any() else above - below


def _grid(
    cells: Sequence[TableCell], data: str, column: str, fraction: float,
    value: Callable[[TableCell], float | None] = lambda cell: cell.accuracy,
) -> Array:  # fmt: skip
    """A column's values on every fleet with every training seed, [F, S]; NaN where no round fits into the budget."""
    column_cells = [cell for cell in cells if (cell.data, cell.column, cell.fraction) == (data, column, fraction)]
    values = {(cell.fleet, cell.seed): value(cell) for cell in column_cells}
    fleets, seeds = (sorted({key[place] for key in values}) for place in (0, 1))
    return np.array([[values[fleet, seed] for seed in seeds] for fleet in fleets], float)


def _say_points(verdict: Verdict) -> str:
    """A difference in points with its interval and its verdict."""
    value = verdict.difference
    points = f"{100 * (value.mean or 0.0):+.2f} points"
    if value.low is not None and value.high is not None:
        points += f" [{100 * value.low:+.2f}, {100 * value.high:+.2f}]"
    if verdict.corrected_p is None:
        return f"{points} over fleets alone (n = 1 seed, which decides nothing)"
    return f"{points}, {say_p(verdict.corrected_p)}, {verdict.answer}"


def say_p(corrected_p: float) -> str:
    """A corrected p value as a phrase."""
    return "p < 0.001" if corrected_p < 0.001 else f"p = {corrected_p:.2g}"


def verdict_note(num_verdicts: int, num_fleets: int, num_seeds: int) -> str:
    """How intervals and verdicts come about, as a sentence or two."""
    if num_seeds == 1:
        return f"Intervals are over {num_fleets} fleets alone, for this one training (n = 1 seed), so that nothing is decided."
    return (
        f"Intervals are 95 % each, with fleets and training seeds both random (n = {num_fleets} x {num_seeds}); verdicts are by Holm's correction over "
        f"all {num_verdicts} of them (5 % together), whose p values are given."
    )


# ---- Markdown


def table1_tables(
    study: Study, cells: Sequence[TableCell], timings: Sequence[ColumnTiming], tau_rows: Sequence[TauRow]
) -> list[SummaryTable]:
    """Rounds, seconds to accuracies, accuracies from the whole budget to a quarter of it, and the row with tau where there is one."""
    accuracies = [_accuracies(study, cells, fraction) for fraction in reversed(FRACTIONS)]
    with_tau = [_tau_table(tau_rows)] if tau_rows else []
    return [_round_ratios(study), _target_ratios(study, timings), *accuracies, *with_tau]


def table1_markdown(
    study: Study, cells: Sequence[TableCell], tables: Sequence[SummaryTable], trends: Sequence[Trend], scale: str
) -> str:
    """The page of Table 1: the tables, trends, and the settings behind them. tables: as `table1_tables` gives them."""
    rounds, targets, *others = tables
    accuracies, with_tau = others[: len(FRACTIONS)], others[len(FRACTIONS) :]
    num_seeds, num_fleets = len(study.seeds), len({answer.fleet for answer in study.answers})
    num_tested = sum(values is not None for _, values in _claims(cells))
    over = f"n = {num_fleets} fleets x {num_seeds} training seed{'s' if num_seeds > 1 else ''}"
    paragraphs = [
        "### Table 1: accuracy and seconds of the frameworks\n",
        f"{over}. Primary measures, chosen before any of these numbers were known: how much longer than HSFL's (proposed) "
        "a column's rounds are, and its seconds to fixed accuracies; geometric means over fleets with 95 % bootstrap intervals.\n",
        "Round time over HSFL's:\n\n" + markdown_rows(rounds),
        "Seconds to a test accuracy, over HSFL's (an interval where every seed reaches it; `never`: in no seed's rounds):\n\n"
        + markdown_rows(targets),
        "Test accuracy in % when a budget is spent, mean ± half of the 95 % interval over "
        f"{'fleets alone (n = 1 seed)' if num_seeds == 1 else f'fleets and {num_seeds} training seeds, both random'} (none where a fleet has made no "
        "round); the last model, and in brackets the mean number of rounds. "
        f"The budget of a fleet is what SplitFed V1 as published needs there for R rounds ({_budgets(study)}).\n",
        *(
            f"{_fraction_name(fraction)}:\n\n{markdown_rows(table)}{_short_note(cells, fraction)}"
            for fraction, table in zip(reversed(FRACTIONS), accuracies)
        ),
        f"Verdicts at the whole budget. {verdict_note(num_tested, num_fleets, num_seeds)}\n\n"
        + trend_table(trends, undecided=True),
        *(f"{table.title}:\n\n{markdown_rows(table)}{TAU_NOTE}" for table in with_tau),
        _settings_note(study, scale),
    ]
    return "\n".join(paragraph for paragraph in paragraphs if paragraph)


def _fraction_name(fraction: float) -> str:
    return {1.0: "Whole budget", 0.5: "Half of it", 0.25: "A quarter of it"}[fraction]


def _budgets(study: Study) -> str:
    return ", ".join(f"{name_of(data)} {study.budget_rounds(data)}" for data in study.data_sets)


def means_of_fleets(values: Iterable[tuple[int, float]]) -> list[float]:
    """The geometric mean of each fleet over its seeds: fleets are what the interval is over."""
    logs: dict[int, list[float]] = {}
    for fleet, value in values:
        logs.setdefault(fleet, []).append(float(np.log(value)))
    return [float(np.exp(np.mean(fleet_logs))) for _, fleet_logs in sorted(logs.items())]


def spread_of(num_fleets: int, num_seeds: int) -> str:
    """How many fleets and seeds a mean is over, and what its interval is, for the caption of a table."""
    over = "fleets alone" if num_seeds == 1 else "fleets and training seeds, both random"
    seeds = f"{num_seeds} training seed{'s' if num_seeds > 1 else ''}"
    return f"n = {num_fleets} fleets x {seeds}; mean ± half of the 95 % interval over {over}."


def _ratios_note(study: Study) -> str:
    num_fleets, num_seeds = len({answer.fleet for answer in study.answers}), len(study.seeds)
    seeds = f"{num_seeds} training seed{'s' if num_seeds > 1 else ''}"
    return f"n = {num_fleets} fleets x {seeds}; geometric mean [95 % bootstrap interval over fleets]."


def _round_ratios(study: Study) -> SummaryTable:
    other_columns = [column for column in study.columns if column != REFERENCE]
    rows = []
    for column in other_columns:
        row = [COLUMNS[column].title]
        for data in study.data_sets:
            of_data = [a for a in study.answers if a.data == data]
            ratio = ratio_over_fleets(
                means_of_fleets((a.fleet, a.mean_s(column) / a.mean_s(REFERENCE)) for a in of_data)
            )
            row.append(ratio.cell(with_range=True))
        rows.append(row)
    header = ["", *map(name_of, study.data_sets)]
    return SummaryTable("table1-rounds", "Round time over HSFL's", header, rows, _ratios_note(study))


def _target_ratios(study: Study, timings: Sequence[ColumnTiming]) -> SummaryTable:
    keys = list(dict.fromkeys((timing.data, timing.target) for timing in timings))
    rows = []
    for column in (column for column in study.columns if column != REFERENCE):
        rows.append([COLUMNS[column].title, *(_target_ratio(timings, data, target, column) for data, target in keys)])
    header = ["", *(f"{name_of(data)} {100 * target:g} %" for data, target in keys)]
    title = "Seconds to a test accuracy, over HSFL's"
    return SummaryTable("table1-targets", title, header, rows, _ratios_note(study))


def _target_ratio(timings: Sequence[ColumnTiming], data: str, target: float, column: str) -> str:
    seconds_of = {
        name: {
            (t.seed, t.fleet): t.seconds_to_target
            for t in timings
            if (t.data, t.target, t.column) == (data, target, name)
        }
        for name in (column, REFERENCE)
    }
    pairs = [
        (fleet, column_s, seconds_of[REFERENCE][seed, fleet]) for (seed, fleet), column_s in seconds_of[column].items()
    ]
    both = [
        (fleet, column_s / reference_s)
        for fleet, column_s, reference_s in pairs
        if column_s is not None and reference_s is not None
    ]
    if not both:
        return "never" if all(column_s is None for _, column_s, _ in pairs) else "HSFL never"
    ratio = ratio_over_fleets(means_of_fleets(both))
    if len(both) == len(pairs):
        return ratio.cell()
    return ValueCell(
        f"{ratio.mean:.2f} ({len(both)} of {len(pairs)})", Estimate(ratio.mean, None, None, ratio.num_fleets)
    )


def _accuracies(study: Study, cells: Sequence[TableCell], fraction: float) -> SummaryTable:
    rows = []
    for data in study.data_sets:
        rows.append([name_of(data), *(_accuracy(cells, data, column, fraction) for column in study.columns)])
        if data == "ham10000":
            balanced = (
                _accuracy(cells, data, column, fraction, lambda cell: cell.balanced_accuracy)
                for column in study.columns
            )
            rows.append([f"{name_of(data)}, balanced", *balanced])
        if fraction == 1.0 and data in PAPER:
            numbers = [PAPER[data].get(column) for column in study.columns]
            rows.append([f"{name_of(data)}, the paper", *("-" if n is None else f"{n:.2f}" for n in numbers)])
    title = f"Test accuracy in % and rounds, {_fraction_name(fraction).lower()}".replace("of it", "of the budget")
    name = f"table1-accuracy-{100 * fraction:g}"
    note = spread_of(len({answer.fleet for answer in study.answers}), len(study.seeds))
    return SummaryTable(name, title, ["", *(COLUMNS[column].title for column in study.columns)], rows, note)


def _short_note(cells: Sequence[TableCell], fraction: float) -> str:
    return (
        "\n† on so many per cent of fleets the training was too short for the budget: the last trained model counts\n"
        if any(cell.short for cell in cells if cell.fraction == fraction)
        else ""
    )


def _accuracy(
    cells: Sequence[TableCell], data: str, column: str, fraction: float,
    value: Callable[[TableCell], float | None] = lambda cell: cell.accuracy,
) -> str:  # fmt: skip
    column_cells = [cell for cell in cells if (cell.data, cell.column, cell.fraction) == (data, column, fraction)]
    trained = [cell for cell in column_cells if value(cell) is not None]
    if not trained:
        return "no round"
    mean = say_mean(over_fleets_and_seeds(_grid(cells, data, column, fraction, value)), 100)
    text = f"{mean} [{np.mean([cell.rounds for cell in column_cells]):.0f}]"
    if len(trained) < len(column_cells):
        text += f" ({100 * len(trained) / len(column_cells):.0f} % of fleets have a round)"
    short = np.mean([cell.short for cell in column_cells])
    return ValueCell(text + (f" †{100 * short:.0f}" if short > 0 else ""), mean.value)


TAU_NOTE = (
    "\nUntil a column first drops a client it shares the twins' rounds. From then on it is trained by itself: from the twins' model "
    "where this folder has it, else from its first round. † all rounds that were trained fit into the budget\n"
)


def _tau_table(rows: Sequence[TauRow]) -> SummaryTable:
    """The row with stragglers dropped, a line for each column."""
    body = []
    for column in dict.fromkeys(row.column for row in rows):
        column_rows = [row for row in rows if row.column == column]
        accuracy: Estimate = estimate(row.accuracy for row in column_rows)
        balanced: Estimate = estimate(row.balanced_accuracy for row in column_rows)
        body.append(
            [
                COLUMNS[column].title,
                say_mean(accuracy, 100),
                say_mean(balanced, 100),
                " / ".join(f"{row.rounds}{' †' if row.short else ''}" for row in column_rows),
                " / ".join(str(row.drops) for row in column_rows),
                " / ".join("-" if row.first_drop is None else str(row.first_drop) for row in column_rows),
            ]
        )
    seeds = ", ".join(str(seed) for seed in sorted({row.seed for row in rows}))
    title = (
        f"HAM10000 with tau = twice the median round of SplitFed V1 as published, on the fleets of seeds {seeds} (fleet and "
        "training share the seed), at the whole budget"
    )
    header = ["", "accuracy, %", "balanced, %", "rounds", "clients dropped", "first drop in round"]
    return SummaryTable("table1-tau", title, header, body, spread_note([len({row.seed for row in rows})]))


def _settings_note(study: Study, scale: str) -> str:
    """A paragraph with the settings, the machine and the versions behind the numbers."""
    lines = []
    for data in study.data_sets:
        trace = study.traces[data, COLUMNS[PUBLISHED].trace, study.seeds[0]]
        config = trace.config
        size = f"{sum(trace.num_samples):,} training images"
        side = f"{config.model.input[1]}x{config.model.input[2]}" if config.model.input else "their own size"
        train = config.train
        lines.append(
            f"- {name_of(data)}: {config.model.name} (norm {config.model.norm}), {size} of {side}, augmentation {config.data.augment}, "
            f"{config.data.partition} {config.data.alpha:g}, {config.fleet.num_clients} clients, batches of {train.batch_size}, "
            f"{train.optimizer} {train.lr:g}, {train.local_epochs:g} local epoch{'s' if train.local_epochs > 1 else ''}, "
            f"{len(trace.rounds)} rounds trained for the twins."
        )
    return (
        f"Scale {scale}. The clock charges the whole data set's samples. SplitFed V1 as published, SL: cut at the smallest max_cut, even "
        "allocation; FL trains on every client, storage or not. " + machine() + "\n\n" + "\n".join(lines) + "\n"
    )


# ---- figures

LOOKS: dict[str, Style] = {
    **{name: row.style for name, row in BUILT_IN.items()},
    "hsfl_even": ("#D55E00", "D", (0, (1, 1.2))),
    "single_proposed": ("#009E73", "P", "solid"),
    "single_even": ("#009E73", "s", (0, (1, 1.2))),
}
GRID = 121


def _looks_of(columns: Sequence[str]) -> dict[str, Style]:
    """A colour and line style for each column: a plugin's framework brings its own, other contenders get unused styles."""
    looks = {column: LOOKS[column] for column in columns if column in LOOKS}
    for column in (column for column in columns if column not in LOOKS):
        framework_style = METHODS[COLUMNS[column].framework].style
        free = [
            style
            for style in (framework_style, *FREE_STYLES)
            if style not in looks.values() and style not in LOOKS.values()
        ]
        looks[column] = free[0] if free else framework_style
    return looks


def learning_over_fleets(study: Study, data: str, quantity: str = "test_accuracy") -> "Figure":
    """Left: over time in units of SplitFed V1's mean round (as published) on the same fleet. Right: over rounds."""
    mpl = matplotlib()
    scale = 100.0 if quantity.endswith("accuracy") else 1.0
    looks = LOOKS | _looks_of(study.columns)
    with mpl.rc_context(STYLE):
        figure = mpl.figure.Figure(figsize=(13.0, 4.0), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        x = np.linspace(0.0, study.budget_rounds(data), GRID)
        for column in study.columns:
            values = scale * np.stack([_over_time(study, data, column, seed, x, quantity) for seed in study.seeds], 1)
            _draw(left, x, values, looks[column], escape_dollars(COLUMNS[column].title))
        for trace in dict.fromkeys(COLUMNS[column].trace for column in study.columns):
            column = next(column for column in study.columns if COLUMNS[column].trace == trace)
            values = scale * np.array(
                [[_over_rounds(study, data, trace, seed, quantity) for seed in study.seeds]], float
            )
            title = "HSFL = SplitFed V1 = FL" if trace == TWIN_TRACE else escape_dollars(COLUMNS[column].title)
            look = looks[PROPOSED] if trace == TWIN_TRACE else looks[column]
            _draw(right, np.arange(1.0, values.shape[2] + 1), values, look, title)
        left.set(xlabel="simulated time (rounds of SplitFed V1 as published)", ylabel=Y_LABELS[quantity])
        right.set_xlabel("round")
        right.tick_params(labelleft=True)
        left.set_xlim(0, x[-1])
        right.set_xlim(left=0)
        add_side_legend(figure, *left.get_legend_handles_labels())
        handles, titles = right.get_legend_handles_labels()
        right.legend(handles, legend_texts(figure, titles), frameon=False, fontsize=8.5, handlelength=3.6)
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
