"""A comparison of frameworks on the same seeds: its records, its files and its tables.

A seed fixes fleet, channel, data and initial weights for every label, so labels are compared in pairs, seed by seed. How runs become
a `Comparison` is in `comparison_summary`. Each table of a comparison is a function here: `_accuracy_table`, `_time_table`,
`_bytes_table`, `_pairs_table` and `contenders_table` give a `SummaryTable`, which terminal, Markdown, page, CSV and LaTeX all show.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from hsfl.config import RunConfig
from hsfl.files import write_atomic, write_csv, write_json
from hsfl.formats import grouped, seconds
from hsfl.report.compared_runs import Run, display_name
from hsfl.report.curves import Estimate, estimate
from hsfl.report.tables import (
    SummaryTable,
    ValueCell,
    escaped,
    interval_text,
    markdown_table,
    ratio_text,
    rich_table,
    scaled_estimate,
    spread_note,
    write_summary_tables,
)
from hsfl.runs.cuts_and_allocation import allocation_words, cuts_words, how_cuts_were_chosen
from hsfl.runs.run_folder.round_tables import ROUND_FIELDS, metric_names, round_row
from hsfl.tasks import ACCURACY, BALANCED, Metric

CSV_FIELDS = ("label", "name", "seed", *ROUND_FIELDS)

SENT = "Data sent"


@dataclass(frozen=True)
class LabelResult:
    """One label over its seeds. Rounds, drops and bytes are counted over a whole run."""

    label: str
    seeds: list[int]
    final_accuracy: Estimate
    best_accuracy: Estimate  # chosen on the test images, so a little flattering
    common_accuracy: Estimate  # at the last moment that every run of the comparison reached
    final_balanced_accuracy: Estimate
    best_balanced_accuracy: Estimate
    rounds: Estimate
    sim_time_s: Estimate
    reached: int  # seeds that reached the target
    time_to_target_s: Estimate  # over these seeds; no interval unless all seeds reached the target
    drops: Estimate  # clients dropped, over all rounds
    drops_per_round: Estimate
    left_out: Estimate  # clients that did not start, over all rounds
    bytes: dict[str, Estimate]  # by link
    total_bytes: Estimate
    round_s: Estimate  # the mean round
    metric: str  # the first of the task, by which labels are compared; in classification that is the accuracy
    final: Estimate  # of this metric
    best: Estimate
    common: Estimate
    others: dict[str, Estimate]  # final, of the task's other metrics


@dataclass(frozen=True)
class Pair:
    """The reference against another label on the seeds that both have."""

    reference: str
    other: str
    seeds: list[int]
    final_accuracy: Estimate  # reference minus other
    common_accuracy: Estimate
    final: Estimate  # reference minus other, of the task's first metric
    common: Estimate
    speedup: Estimate  # the other's time to target over the reference's: above 1 if the reference is faster
    round_ratio: Estimate  # the other's mean round over the reference's


@dataclass(frozen=True)
class ContenderWords:
    """What a contender's name stands for."""

    name: str
    framework: str
    cuts: str  # in words, such as `cuts planned (1 to 7)`
    allocation: str  # in words, such as `allocation proposed`
    settings: dict[str, Any]  # its own, where it differs from what all share


def contender_words(runs: Sequence[Run]) -> ContenderWords:
    """What the name of these runs, which are of one label, stands for."""
    first = runs[0]
    means = [(run.config, run.cuts, run.policy) for run in runs if run.config is not None]
    return ContenderWords(first.name, first.framework, *means_words(means), first.own_settings)


def means_words(means: Sequence[tuple[RunConfig, Sequence[int], str | None]]) -> tuple[str, str]:
    """Cuts and allocation of runs in words; all of them where the runs differ. means: settings, cuts and policy of each run."""
    groups: dict[str, list[tuple[RunConfig, Sequence[int]]]] = {}  # by how cuts were chosen
    for config, cuts, _ in means:
        groups.setdefault(how_cuts_were_chosen(config), []).append((config, cuts))
    cut_texts = [cuts_words(group[0][0], [cut for _, cuts in group for cut in cuts]) for group in groups.values()]
    allocation_texts = [allocation_words(config, policy) for config, _, policy in means]
    return " or ".join(dict.fromkeys(cut_texts)) or "-", " or ".join(dict.fromkeys(allocation_texts)) or "-"


def paired_estimate(
    runs: Sequence[Run], other_runs: Sequence[Run], value_of: Callable[[Run], float | None], ratio: bool = False
) -> Estimate:
    """The mean of one value less the other, or with `ratio` over the other, on the seeds in which both are known."""
    values = {run.seed: value for run in runs if (value := value_of(run)) is not None}
    others = {run.seed: value for run in other_runs if (value := value_of(run)) is not None}
    seeds = [seed for seed in values if seed in others and (not ratio or min(values[seed], others[seed]) > 0)]
    return estimate((values[s] / others[s] if ratio else values[s] - others[s] for s in seeds), ratio)


def contenders_table(contenders: Sequence[ContenderWords]) -> SummaryTable:
    """Which cuts and which allocation each contender had, and, where its name does not say it, its framework with its own settings."""
    header = ["framework", "cuts", "allocation"]
    rows = [
        [contender.name, contender.cuts.removeprefix("cuts "), contender.allocation.removeprefix("allocation ")]
        for contender in contenders
    ]
    if any(contender.settings or contender.name != display_name(contender.framework) for contender in contenders):
        header.append("own settings")
        for row, contender in zip(rows, contenders):
            settings = (f"{name}={setting_value(value)}" for name, value in contender.settings.items())
            row.append(", ".join([contender.framework, *settings]))
    return SummaryTable("contenders", "Cuts and allocation", header, rows)


def setting_value(value: Any) -> str:
    """The value of a setting as `--set` takes it."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


@dataclass(frozen=True)
class Comparison:
    """Runs of several labels, what each label reached over its seeds, and how it stands against the reference."""

    runs: list[Run]
    target: float | None  # of the metric
    common_s: float  # every run reached this simulated second
    reference: str
    results: list[LabelResult]
    pairs: list[Pair]
    notes: list[str]

    @property
    def metric(self) -> Metric:
        """The metric by which labels are compared: the first of the first run's task."""
        return self.runs[0].metric

    @property
    def target_text(self) -> str:
        """60 %, or `perplexity 20`."""
        assert self.target is not None
        return target_text(self.metric, self.target)

    @property
    def labels(self) -> list[str]:
        return [result.label for result in self.results]

    @property
    def end_together(self) -> bool:
        """All runs had the same budget of seconds, so their final accuracies are at the same time."""
        return all(run.end_s == self.common_s for run in self.runs)

    def runs_of(self, label: str) -> list[Run]:
        return [run for run in self.runs if run.label == label]

    def name(self, label: str) -> str:
        """The label as people read it."""
        return self.runs_of(label)[0].name

    def contenders(self) -> list[ContenderWords]:
        """What each label stands for."""
        return [contender_words(self.runs_of(label)) for label in self.labels]

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "common_s": self.common_s,
            "reference": self.reference,
            "contenders": {label: asdict(words) for label, words in zip(self.labels, self.contenders())},
            "labels": {result.label: asdict(result) for result in self.results},
            "pairs": [asdict(pair) for pair in self.pairs],
            "notes": self.notes,
        }

    def table(self) -> list[dict[str, Any]]:
        """A plain row for each label, seed and round, for `pandas.DataFrame`; rounds.csv has the same."""
        return [
            {"label": run.label, "name": run.name, "seed": run.seed} | round_row(record)
            for run in self.runs
            for record in run.records
        ]

    def write_csv(self, path: str | Path) -> None:
        """Write a CSV file with a line for each label, seed and round."""
        fields = [*CSV_FIELDS, *metric_names([record for run in self.runs for record in run.records])]
        rows = [[row.get(name) for name in fields] for row in self.table()]
        write_csv(Path(path), fields, rows)

    def write(self, out: str | Path, latex: bool = False) -> list[Path]:
        """Write comparison.json, comparison.md, rounds.csv and a CSV file for each table into a folder, with `latex` the tables as LaTeX,
        too; returns their paths."""
        paths = [Path(out) / name for name in ("comparison.json", "comparison.md", "rounds.csv")]
        write_json(paths[0], self.to_json())
        write_atomic(paths[1], lambda scratch: scratch.write_text(self.to_markdown(), "utf-8"))
        self.write_csv(paths[2])
        return paths + write_summary_tables(self.tables(), out, latex)

    def to_rich(self) -> Group:
        """Tables and notes for a terminal."""
        return Group(*(rich_table(table) for table in self.tables()), *(Text(f"- {note}") for note in self.notes))

    def to_markdown(self) -> str:
        parts = [markdown_table(table) for table in self.tables()]
        parts += ["\n".join(f"- {escaped(note)}" for note in self.notes) + "\n"] if self.notes else []
        return "\n".join(parts)

    def tables(self) -> list[SummaryTable]:
        """The tables; a column is an entry of the header and a cell of every row."""
        tables = [_accuracy_table(self), _time_table(self), _bytes_table(self)]
        return [*tables, *([_pairs_table(self)] if self.pairs else []), _contenders_table(self)]


def _contenders_table(comparison: Comparison) -> SummaryTable:
    """`contenders_table` with the mean round of each contender, and how many times as long as the reference's it is, seed by seed."""
    table = contenders_table(comparison.contenders())
    ratios = {pair.other: pair.round_ratio for pair in comparison.pairs}
    heads = ["round, s", *([f"times {comparison.name(comparison.reference)}"] if ratios else [])]
    none, rows = Estimate(None, None, None, 0), []
    for result, (name, *words) in zip(comparison.results, table.rows):
        ratio = ratios.get(result.label, none)
        is_reference = result.label == comparison.reference
        ratio_cells = [ValueCell("1", 1.0) if is_reference else ratio_text(ratio, len(result.seeds))] if ratios else []
        rows.append([name, interval_text(result.round_s), *ratio_cells, *words])
    note = _seeds_note(comparison) + (" Of ratios the geometric mean [95 % interval]." if ratios else "")
    title = "Mean round, cuts and allocation"
    return SummaryTable(table.name, title, [table.header[0], *heads, *table.header[1:]], rows, note)


def _accuracy_table(comparison: Comparison) -> SummaryTable:
    metric, other_metrics = comparison.metric, comparison.runs[0].metrics[1:]
    header, columns = ["framework", "seeds", "final", "best"], ["final", "best"]
    if not comparison.end_together:
        header, columns = [*header, f"at {seconds(comparison.common_s)}"], [*columns, "common"]
    header += ["balanced" if other == BALANCED else metric_title(other) for other in other_metrics]
    none = Estimate(None, None, None, 0)
    rows = [
        [
            comparison.name(result.label),
            _seeds_text(result.final.num, len(result.seeds)),
            *(interval_text(getattr(result, name), *_shown_scale(metric)) for name in columns),
            *(interval_text(result.others.get(other.name, none), *_shown_scale(other)) for other in other_metrics),
        ]
        for result in comparison.results
    ]
    when = f" after {grouped(comparison.common_s)} simulated seconds" if comparison.end_together else ""
    title = metric.title[:1].upper() + metric.title[1:]
    title += f"{', %' if metric.percent else ''}{when}"
    return SummaryTable("metrics", title, header, rows, _seeds_note(comparison))


def _seeds_text(num_known: int, num_seeds: int) -> ValueCell:
    """How many seeds count: `3`, or `2 of 3` where the others have no value."""
    text = f"{num_known} of {num_seeds}" if 0 < num_known < num_seeds else str(num_seeds)
    return ValueCell(text, num_known if 0 < num_known < num_seeds else num_seeds)


def _shown_scale(metric: Metric) -> tuple[float, int | None]:
    """What a number is multiplied by to be shown, and how many digits then follow the point."""
    return (100.0, 1) if metric.percent else (1.0, None)


def metric_title(metric: Metric) -> str:
    """The title of a metric, with its unit where it is shown in per cent."""
    return f"{metric.title}, %" if metric.percent else metric.title


def target_text(metric: Metric, target: float) -> str:
    """60 %, or `perplexity 20`."""
    return f"{100 * target:.4g} %" if metric.percent else f"{metric.title} {target:.4g}"


def _time_table(comparison: Comparison) -> SummaryTable:
    target = comparison.target
    header = [
        "framework",
        "rounds",
        "seconds",
        *([f"seconds to {comparison.target_text}"] if target is not None else []),
    ]
    some_left_out = any(result.left_out.mean for result in comparison.results)
    rows = [
        [
            comparison.name(result.label),
            *(interval_text(result.rounds), interval_text(result.sim_time_s)),
            *([_time_text(result)] if target is not None else []),
            interval_text(result.drops),
            *([interval_text(result.left_out)] if some_left_out else []),
        ]
        for result in comparison.results
    ]
    header += ["drops", *(["left out"] if some_left_out else [])]
    return SummaryTable("time", "Simulated time and dropped clients", header, rows, _seeds_note(comparison))


def _bytes_table(comparison: Comparison) -> SummaryTable:
    links = dict.fromkeys(link for result in comparison.results for link in result.bytes)
    smallest = min((mean for result in comparison.results if (mean := result.total_bytes.mean)), default=0.0)
    power, unit = next(
        ((p, u) for p, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if smallest >= 10 * p), (1.0, "bytes")
    )
    rows = []
    for result in comparison.results:
        none = Estimate(0.0, None, None, len(result.seeds))
        cells = [_mean_text(result.bytes.get(link, none), 1 / power) for link in links]
        rows.append([comparison.name(result.label), *cells, interval_text(result.total_bytes, 1 / power)])
    header = ["framework", *(link.removeprefix("client_").replace("_", " ") for link in links), "total"]
    return SummaryTable("bytes", f"{SENT} in a run, {unit}", header, rows, _seeds_note(comparison, "of the total "))


def _mean_text(value: Estimate, scale: float) -> ValueCell:
    """The mean without its interval, which the CSV has."""
    return ValueCell(interval_text(Estimate(value.mean, None, None, 1), scale), scaled_estimate(value, scale))


def _seeds_note(comparison: Comparison, where: str = "") -> str:
    return spread_note((len(result.seeds) for result in comparison.results), where)


def _pairs_table(comparison: Comparison) -> SummaryTable:
    name, target = comparison.name(comparison.reference), comparison.target
    header, columns, metric = ["against", "seeds", "final"], ["final"], comparison.metric
    if not comparison.end_together:
        header, columns = [*header, f"at {seconds(comparison.common_s)}"], [*columns, "common"]
    header += [f"faster to {comparison.target_text}, times"] if target is not None else []
    scale, digits = (100.0, 2) if metric.percent else (1.0, None)
    rows = [
        [
            *(comparison.name(pair.other), _seeds_text(pair.final.num, len(pair.seeds))),
            *(interval_text(getattr(pair, column), scale, digits, sign=True) for column in columns),
            *([ratio_text(pair.speedup, len(pair.seeds))] if target is not None else []),
        ]
        for pair in comparison.pairs
    ]
    speed = ", and speed" if target is not None else ""
    what = "accuracy" if metric == ACCURACY else metric.title
    unit = "in points" if metric.percent else f"({'more' if metric.higher_is_better else 'less'} is better)"
    title = f"{name} against the others, seed by seed: {what} {unit}{speed}"
    note = spread_note(len(pair.seeds) for pair in comparison.pairs)
    note += " Of ratios the geometric mean [95 % interval]." if target is not None else ""
    return SummaryTable("pairs", title, header, rows, note)


def _time_text(result: LabelResult) -> ValueCell:
    """The time to the target, and how many seeds reached it unless all did."""
    of = "" if result.reached == len(result.seeds) else f" ({result.reached} of {len(result.seeds)})"
    text = interval_text(result.time_to_target_s) + of if result.reached else "never"
    return ValueCell(text, result.time_to_target_s)
