"""A sweep, read from its folder: a row of numbers for each point, contender and seed, and means over seeds.

A point is a value of each field that is varied. A contender is a framework's label. The numbers of a run come from its rounds
or, where nothing was trained (`--plan-only`), from its timing.json. `METRICS` says what each number is called in tables and figures.
A seed is the same fleet, channel and data at every point and for every contender, so two of them are set against each other seed by
seed (`Difference`).
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from hsfl.config import RunConfig, parse_stored
from hsfl.errors import InputError, known_name
from hsfl.files import read_object, read_record, write_atomic, write_csv
from hsfl.formats import si
from hsfl.framework_table import Style
from hsfl.report.compared_runs import ACCURACIES, SWEEP_FILE, Run, display_name, read_run
from hsfl.report.comparison import ContenderWords, contenders_table, means_words, target_text
from hsfl.report.curves import Estimate, estimate, time_to_target_s
from hsfl.report.tables import (
    SummaryTable,
    ValueCell,
    escaped,
    interval_text,
    markdown_table,
    rich_table,
    spread_note,
    write_summary_tables,
)
from hsfl.runs.run_folder.folder import TIMING, RunFolder, run_path
from hsfl.runs.run_folder.records import ContendersRecord, RoundRecord
from hsfl.tasks import ACCURACY, DEFAULT, TASKS, Metric

UNITS = {"_hz": "Hz", "_bps": "bit/s", "_bits": "bit", "_s": "s", "_w": "W", "_m": "m"}


# --- the metrics


@dataclass(frozen=True)
class SweepMetric:
    """A number of each run, as tables and figures show it; `tasks.Metric` is what a task measures."""

    title: str  # with its unit, as an axis says it
    scale: float = 1.0  # the factor that brings the number into that unit


METRICS = {
    "final_accuracy": SweepMetric("final test accuracy (%)", 100),
    "best_accuracy": SweepMetric("best test accuracy (%)", 100),
    "final_balanced_accuracy": SweepMetric("final balanced accuracy (%)", 100),
    "best_balanced_accuracy": SweepMetric("best balanced accuracy (%)", 100),
    **{
        f"{which}_{task_metric.name}": SweepMetric(
            f"{which} {task_metric.title}{' (%)' if task_metric.percent else ''}", 100 if task_metric.percent else 1
        )
        for row in TASKS.values()
        if row.name != DEFAULT
        for task_metric in row.metrics
        for which in ("final", "best")
    },
    "train_loss": SweepMetric("final training loss"),
    "test_loss": SweepMetric("final test loss"),
    "round_s": SweepMetric("mean round (simulated s)"),
    "sim_time_s": SweepMetric("all rounds (simulated s)"),
    "time_to_target_s": SweepMetric("time to the target (simulated s)"),
    "rounds": SweepMetric("rounds"),
    "drops": SweepMetric("clients dropped at tau, over all rounds"),
    "left_out": SweepMetric("clients left out, over all rounds"),
    "mean_cut": SweepMetric("mean cut (units on the client)"),
    "gap": SweepMetric("mean proven gap (%)", 100),
    "megabytes": SweepMetric("data sent (MB)"),
    "client_main_up_megabytes": SweepMetric("client to main server (MB)"),
    "client_main_down_megabytes": SweepMetric("main server to client (MB)"),
    "client_edge_up_megabytes": SweepMetric("client to edge server (MB)"),
    "client_edge_down_megabytes": SweepMetric("edge server to client (MB)"),
    "edge_main_megabytes": SweepMetric("between the servers (MB)"),
    "wall_s": SweepMetric("computed in (real s)"),
}
TIMED = ("round_s", "sim_time_s", "rounds", "drops", "left_out", "mean_cut", "gap")  # known without training


def find_metric(name: str) -> SweepMetric:
    """A metric by name; the title of a metric of a plugin's task is its name."""
    return METRICS.get(name) or SweepMetric(name.replace("_", " "))


def default_metrics(plan_only: bool, target: float | None, metric: Metric = ACCURACY) -> list[str]:
    """The metrics that are drawn where none are asked for."""
    if plan_only:
        return ["round_s"]
    final = "final_accuracy" if metric == ACCURACY else f"final_{metric.name}"
    return [final, "round_s", *(["time_to_target_s"] if target is not None else [])]


def check_metrics(names: Sequence[str], plan_only: bool, target: float | None) -> None:
    """Refuse an unknown metric before hours of training, not after."""
    for name in names:
        known_name("metric", name, [*METRICS, *_plugin_metrics()])
        if plan_only and name not in TIMED:
            raise InputError(f"metric {name} needs training; with --plan-only there are {', '.join(TIMED)}")
        if name == "time_to_target_s" and target is None:
            raise InputError("metric time_to_target_s needs --target, a test accuracy such as 0.6")


def _plugin_metrics() -> list[str]:
    """The metrics of plugins' tasks."""
    names = [metric.name for row in TASKS.values() for metric in row.metrics if metric.function is not None]
    return [f"{which}_{name}" for name in names for which in ("final", "best")]


# --- the numbers of a run


@dataclass(frozen=True)
class SweepRow:
    """One run of a sweep."""

    point: int
    label: str
    seed: int
    status: str
    numbers: dict[str, float | None]  # by metric
    policy: str = ""  # of the allocation; empty where an older folder does not say


def _trained_row(run: Run, point: int, target: float | None) -> SweepRow:
    """The row of a run that was trained. point: the number of its point. target: of the task's first metric, or None."""
    return SweepRow(point, run.label, run.seed, run.status, _run_numbers(run, target), run.policy or "")


def _timed_row(path: Path, point: int, label: str, seed: int) -> SweepRow:
    """The row of a run that was timed without training. path: its timing.json."""
    timing = read_object(path)
    try:
        rounds_s = [float(seconds) for seconds in timing["round_s"]]
        numbers: dict[str, float | None] = {
            "round_s": _mean(rounds_s),
            "sim_time_s": sum(rounds_s),
            "rounds": len(rounds_s),
            "drops": sum(map(int, timing["dropped"])),
            "left_out": sum(map(int, timing["left_out"])),
            "mean_cut": _mean([float(cut) for cut in timing["cuts"]]),
            "gap": _mean([float(gap) for gap in timing["gap"] if gap is not None]),
        }
        return SweepRow(point, label, seed, str(timing["status"]), numbers, str(timing.get("policy", "")))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error}); delete it, and run the sweep again") from None


def _timed_means(path: Path) -> list[tuple[RunConfig, Sequence[int], str | None]]:
    """Settings and cuts of a run that was timed without training; none where timing.json holds no settings."""
    timing = read_object(path)
    if not isinstance(timing.get("config"), dict):
        return []
    return [(parse_stored(timing["config"], path), [int(cut) for cut in timing["cuts"]], None)]


def _run_numbers(run: Run, target: float | None) -> dict[str, float | None]:
    """The numbers of a run by metric; None where a number is not known."""
    gaps = [gap for record in run.records if (gap := record.allocation.get("gap")) is not None]
    cuts = [cut for record in run.records[-1:] for cut in _cuts(record)]
    sent = {f"{link}_megabytes": count / 1e6 for link, count in run.bytes.items()}
    task_metrics = [metric.name for metric in run.metrics if metric not in ACCURACIES]
    return {
        "final_accuracy": run.last("test_accuracy"),
        "best_accuracy": run.best("test_accuracy"),
        "final_balanced_accuracy": run.last("balanced_accuracy"),
        "best_balanced_accuracy": run.best("balanced_accuracy"),
        **{f"final_{name}": run.last(name) for name in task_metrics},
        **{f"best_{name}": run.best(name) for name in task_metrics},
        "train_loss": run.last("train_loss"),
        "test_loss": run.last("test_loss"),
        "round_s": _mean([record.round_s for record in run.records]),
        "sim_time_s": run.sim_time_s,
        "time_to_target_s": None if target is None else time_to_target_s(run.records, target, run.metric),
        "rounds": len(run.records),
        "drops": run.drops,
        "left_out": run.left_out,
        "mean_cut": _mean(cuts),
        "gap": _mean(gaps),
        "megabytes": sum(sent.values()),
        **sent,
        "wall_s": sum(record.wall_s for record in run.records),
    }


def _cuts(record: RoundRecord) -> list[int]:
    """The cuts of all clients or, of a large fleet, the cuts of the clients that took part."""
    if record.crowd is None:
        return list(record.cuts)
    return [int(cut) for cut, count in record.crowd["cuts"].items() for _ in range(count)]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


# --- the sweep


@dataclass(frozen=True)
class Difference:
    """A contender at a point less another contender there, or less the same contender at the field's first value, on the seeds
    that both have."""

    point: int
    label: str
    other_point: int
    other_label: str
    seeds: list[int]


@dataclass(frozen=True)
class Sweep:
    """The rows of a sweep, with the points, contenders and seeds that it is made of."""

    fields: list[str]
    values: list[list[Any]]  # of each point, one for each field
    folders: list[str]  # of each point, below the sweep's
    labels: list[str]
    names: dict[str, str]  # labels as people read them
    styles: dict[str, Style]  # of frameworks that are not built in
    seeds: list[int]
    plan_only: bool
    target: float | None
    config: dict[str, Any]
    rows: list[SweepRow]
    num_missing: int  # runs that are still to be made
    metric: Metric = ACCURACY  # the first of the task
    frameworks: dict[str, str] = field(default_factory=dict)  # by label
    contenders: list[ContenderWords] = field(default_factory=list)  # what each label stands for

    @property
    def metrics(self) -> list[str]:
        """The metrics that some run has."""
        names = dict.fromkeys([*METRICS, *(name for row in self.rows for name in row.numbers)])
        return [name for name in names if any(row.numbers.get(name) is not None for row in self.rows)]

    @property
    def policies(self) -> list[str]:
        """The policies of the runs, each once."""
        return list(dict.fromkeys(row.policy for row in self.rows if row.policy))

    def estimate(self, point: int, label: str, metric: str) -> Estimate:
        """The mean of a metric over the seeds of a point and contender, with its interval."""
        return estimate(row.numbers.get(metric) for row in self._by_seed(point, label).values())

    def drawn_estimate(self, point: int, label: str, metric: str) -> Estimate:
        """`estimate` as figures show it: two seeds have their range in place of an interval, and nothing goes beyond what a value can be."""
        value, is_fraction = self.estimate(point, label, metric), find_metric(metric).scale == 100
        if value.low is None or value.high is None:
            return value
        low, high = value.low, value.high
        if value.num == 2:
            values = (row.numbers.get(metric) for row in self._by_seed(point, label).values())
            numbers = [number for number in values if number is not None]
            low, high = min(numbers), max(numbers)
        least = 0.0 if is_fraction or metric.endswith(("_s", "_loss")) else -math.inf
        return replace(value, low=max(low, least), high=min(high, 1.0 if is_fraction else math.inf))

    def _by_seed(self, point: int, label: str) -> dict[int, SweepRow]:
        return {row.seed: row for row in self.rows if row.point == point and row.label == label}

    def between_contenders(self) -> list[Difference]:
        """At each point the first contender less each other one, where they share two seeds or more."""
        pairs = [
            (point, self.labels[0], point, label) for point in range(len(self.values)) for label in self.labels[1:]
        ]
        return self._differences(pairs)

    def between_values(self) -> list[Difference]:
        """Each contender at each value of the first field less itself at the first of these values, the other fields being equal, where
        they share two seeds or more."""
        firsts: dict[str, int] = {}
        points = [(point, firsts.setdefault(repr(others), point)) for point, (_, *others) in enumerate(self.values)]
        pairs = [(point, label, first, label) for point, first in points if point != first for label in self.labels]
        return self._differences(pairs)

    def _differences(self, pairs: Sequence[tuple[int, str, int, str]]) -> list[Difference]:
        seeds = [sorted(self._by_seed(*pair[:2]).keys() & self._by_seed(*pair[2:]).keys()) for pair in pairs]
        return [Difference(*pair, common) for pair, common in zip(pairs, seeds) if len(common) > 1]

    def difference(self, pair: Difference, metric: str) -> Estimate:
        """The mean difference of a metric over the seeds of a pair, with its interval."""
        ours, theirs = self._by_seed(pair.point, pair.label), self._by_seed(pair.other_point, pair.other_label)
        values = [(ours[seed].numbers.get(metric), theirs[seed].numbers.get(metric)) for seed in pair.seeds]
        return estimate(None if a is None or b is None else a - b for a, b in values)

    def title(self, metric: str) -> str:
        if metric == "time_to_target_s" and self.target is not None:
            if self.metric == ACCURACY:
                return f"time to {100 * self.target:.4g} % accuracy (simulated s)"
            return f"time to {target_text(self.metric, self.target)} (simulated s)"
        return find_metric(metric).title

    def notes(self) -> list[str]:
        """What a reader must know to read the numbers rightly."""
        one_seed_note = "One seed: no interval; differences may be luck."
        notes = [
            one_seed_note
            if len(self.seeds) == 1
            else "Mean over seeds ± half of the 95 % confidence interval (Student t)."
        ]
        if self.plan_only:
            notes.append("Rounds were timed, and nothing was trained.")
        if self.num_missing:
            missing = "1 run is" if self.num_missing == 1 else f"{self.num_missing} runs are"
            notes.append(
                f"{missing} still to be made; the same command makes {'it' if missing == '1 run is' else 'them'}."
            )
        ends = [row for row in self.rows if row.status in ("diverged", "unfinished", "interrupted")]
        notes += [f"{self._run(row)}: {row.status}." for row in ends]
        return notes

    def _run(self, row: SweepRow) -> str:
        return f"{self.names[row.label]} at {', '.join(self._settings(row.point))}, seed {row.seed}"

    def tables(self, metrics: Sequence[str]) -> list[SummaryTable]:
        """The means, the differences, and which cuts and allocation each contender had."""
        return [self.means_table(metrics), *self.difference_tables(metrics), contenders_table(self.contenders)]

    def difference_tables(self, metrics: Sequence[str]) -> list[SummaryTable]:
        """What is known seed by seed; no table where there is one seed, one contender or one value."""
        return [table for table in (self._contenders_table(metrics), self._values_table(metrics)) if table.rows]

    def means_table(self, metrics: Sequence[str]) -> SummaryTable:
        """A row for each point and contender."""
        rows = [
            [
                *self._settings(point),
                self.names[label],
                *(interval_text(self.estimate(point, label, name), find_metric(name).scale) for name in metrics),
            ]
            for point in range(len(self.values))
            for label in self.labels
        ]
        header = [*self.fields, "contender", *(self.title(name) for name in metrics)]
        note = spread_note([len(self.seeds)])
        return SummaryTable("means", f"A sweep over {' and '.join(self.fields)}", header, rows, note)

    def _contenders_table(self, metrics: Sequence[str]) -> SummaryTable:
        """A row for each point and each contender after the first."""
        pairs = self.between_contenders()
        rows = [
            [*self._settings(pair.point), self.names[pair.other_label], *self._difference_cells(pair, metrics)]
            for pair in pairs
        ]
        title = f"{self.names[self.labels[0]]} minus the other contenders, seed by seed"
        return self._difference_table("between-contenders", title, ["against"], pairs, rows, metrics)

    def _values_table(self, metrics: Sequence[str]) -> SummaryTable:
        """A row for each contender and each point whose first field has not its first value."""
        pairs = self.between_values()
        rows = [
            [
                *self._settings(pair.point),
                self._settings(pair.other_point)[0],
                self.names[pair.label],
                *self._difference_cells(pair, metrics),
            ]
            for pair in pairs
        ]
        title = f"Each value of {self.fields[0]} minus the first one, seed by seed"
        return self._difference_table("between-values", title, ["against", "contender"], pairs, rows, metrics)

    def _difference_table(
        self, name: str, title: str, heads: list[str], pairs: list[Difference], rows: list[list[str]], metrics: Sequence[str]
    ) -> SummaryTable:  # fmt: skip
        titles = [self.title(metric).replace("(%)", "(points)") for metric in metrics]
        header = [*self.fields, *heads, "seeds", *titles]
        return SummaryTable(name, title, header, rows, spread_note(len(pair.seeds) for pair in pairs))

    def _difference_cells(self, pair: Difference, metrics: Sequence[str]) -> list[str]:
        scales = {name: find_metric(name).scale for name in metrics}
        cells = [interval_text(self.difference(pair, name), scale, sign=True) for name, scale in scales.items()]
        return [str(len(pair.seeds)), *cells]

    def _settings(self, point: int) -> list[str]:
        """The point's value of each field, as a table shows it."""
        return [ValueCell(say_setting(field, value), value) for field, value in zip(self.fields, self.values[point])]

    def to_rich(self, metrics: Sequence[str]) -> Group:
        return Group(*map(rich_table, self.tables(metrics)), *(Text(f"- {note}") for note in self.notes()))

    def to_json(self) -> dict[str, Any]:
        points = [dict(zip(self.fields, values)) for values in self.values]
        runs = [
            points[row.point]
            | {"contender": row.label, "name": self.names[row.label], "seed": row.seed, "status": row.status}
            | row.numbers
            for row in self.rows
        ]
        means = [
            points[point]
            | {"contender": label, "name": self.names[label]}
            | {name: asdict(self.estimate(point, label, name)) for name in self.metrics}
            for point in range(len(points))
            for label in self.labels
        ]
        differences = [
            points[pair.point]
            | {"contender": pair.label, "less": points[pair.other_point] | {"contender": pair.other_label}}
            | {"seeds": pair.seeds}
            | {name: asdict(self.difference(pair, name)) for name in self.metrics}
            for pair in (*self.between_contenders(), *self.between_values())
        ]
        about = {"fields": self.fields, "contenders": self.labels, "seeds": self.seeds, "plan_only": self.plan_only}
        about |= {"contender_words": {label: asdict(words) for label, words in zip(self.labels, self.contenders)}}
        results = {"runs": runs, "means": means, "differences": differences}
        return about | {"target": self.target} | results | {"notes": self.notes()}

    def write(self, out: Path, metrics: Sequence[str], latex: bool = False) -> list[Path]:
        """sweep.csv, a line for each point, contender and seed with every metric; sweep.md, the tables of means and differences; and a
        CSV file for each table, with `latex` the tables as LaTeX, too."""
        known_metrics = self.metrics
        header = [*self.fields, "contender", "name", "seed", "status", *known_metrics]
        rows = [
            [
                *(*self.values[row.point], row.label, self.names[row.label], row.seed, row.status),
                *(row.numbers.get(m) for m in known_metrics),
            ]
            for row in self.rows
        ]

        tables = self.tables(metrics)
        markdown = "\n".join([*map(markdown_table, tables), "".join(f"- {escaped(note)}\n" for note in self.notes())])
        write_csv(out / "sweep.csv", header, rows)
        write_atomic(out / "sweep.md", lambda scratch: scratch.write_text(markdown, "utf-8"))
        return [out / "sweep.csv", out / "sweep.md", *write_summary_tables(tables, out, latex)]


def say_setting(field: str, value: Any) -> str:
    """A value with its field's unit: 5e5 of `network.subchannel_hz` is `500 kHz`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value if isinstance(value, str) else json.dumps(value)
    unit = next((unit for ending, unit in UNITS.items() if field.endswith(ending)), "")
    return f"{si(value)}{unit}" if unit else f"{value:.10g}"


def read_sweep(out: str | Path) -> Sweep:
    """Read all runs that a sweep's folder holds by now."""
    path = Path(out) / SWEEP_FILE
    record = read_object(path)
    try:
        fields, labels = [str(name) for name in record["fields"]], [str(label) for label in record["labels"]]
        points = [(list(point["values"]), str(point["folder"])) for point in record["points"]]
        seeds, plan_only, target = [int(seed) for seed in record["seeds"]], bool(record["plan_only"]), record["target"]
        config = dict(record["config"])
        if target is not None:
            target = float(target)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} does not describe a sweep ({error}); run hsfl sweep into a new folder") from None
    contenders = read_record(path, ContendersRecord).contenders
    rows, names = (
        [],
        {label: contenders[label].name if label in contenders else display_name(label) for label in labels},
    )
    frameworks = {
        label: contenders[label].framework if label in contenders else label.split(",")[0] for label in labels
    }
    means: dict[str, list[tuple[RunConfig, Sequence[int], str | None]]] = {label: [] for label in labels}
    styles: dict[str, Style] = {}
    metric = ACCURACY
    for point, (_, folder) in enumerate(points):
        for label in labels:
            for seed in seeds:
                contender = contenders.get(label)
                path_of_run = run_path(Path(out) / folder, label if contender is None else contender.folder, seed)
                if plan_only and (path_of_run / TIMING).exists():
                    rows.append(_timed_row(path_of_run / TIMING, point, label, seed))
                    means[label] += _timed_means(path_of_run / TIMING)
                elif RunFolder(path_of_run).config_path.exists() and not plan_only:
                    run = read_run(path_of_run, label, seed, contender)
                    rows.append(_trained_row(run, point, target))
                    names[label], metric = run.name, run.metric
                    means[label] += [(run.config, run.cuts, run.policy)] if run.config is not None else []
                    styles |= {run.framework: run.look.style} if run.look is not None and run.look.style else {}
    num_missing = len(points) * len(labels) * len(seeds) - len(rows)
    contender_rows = [
        ContenderWords(
            *(names[label], frameworks[label], *means_words(means[label])),
            settings=contenders[label].settings if label in contenders else {},
        )
        for label in labels
    ]
    values, folders = [point_values for point_values, _ in points], [folder for _, folder in points]
    return Sweep(
        *(fields, values, folders, labels, names, styles, seeds, plan_only, target, config, rows, num_missing),
        metric=metric,
        frameworks=frameworks,
        contenders=contender_rows,
    )
