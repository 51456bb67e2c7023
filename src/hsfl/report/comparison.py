"""Several frameworks on the same seeds, summed up with confidence intervals.

A seed fixes fleet, channel, data and initial weights for every label, so labels are compared in pairs, seed by seed.
"""

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from hsfl.errors import InputError, known
from hsfl.files import write_atomic, write_json
from hsfl.formats import grouped, seconds
from hsfl.methods import PROPOSED
from hsfl.report.curves import Estimate, estimate, time_to_target_s
from hsfl.report.runs import Run, read_runs
from hsfl.runs.records import RoundRecord

CSV_FIELDS = (
    *("label", "seed", "round", "sim_time_s", "test_accuracy", "balanced_accuracy", "train_loss", "test_loss"),
    *("kept", "dropped", "bytes"),  # numbers of clients; bytes on all links
)

SENT = "Data sent"
ENDLESS_S = 1e15  # 30 million years: where a rate is next to nothing, seconds are no number that anybody reads
HOW_ENDED = {  # statuses that need more words
    "finished": "made all their rounds (train.rounds) before the budget was spent; the last model counts from there on"
}


@dataclass(frozen=True)
class LabelResult:
    """One label over its seeds. What is counted is counted over a whole run."""

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
    time_to_target_s: Estimate  # over those; no interval unless that is all
    drops: Estimate  # clients dropped, over all rounds
    drops_per_round: Estimate
    left_out: Estimate  # clients that did not start, over all rounds
    bytes: dict[str, Estimate]  # by link
    total_bytes: Estimate


@dataclass(frozen=True)
class Pair:
    """The reference against another label on the seeds that both have."""

    reference: str
    other: str
    seeds: list[int]
    final_accuracy: Estimate  # reference minus other
    common_accuracy: Estimate
    speedup: Estimate  # the other's time to target over the reference's: above 1 if the reference is faster


@dataclass(frozen=True)
class Comparison:
    runs: list[Run]
    target: float | None  # test accuracy
    common_s: float  # every run reached this simulated second
    reference: str
    results: list[LabelResult]
    pairs: list[Pair]
    notes: list[str]

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

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "common_s": self.common_s,
            "reference": self.reference,
            "labels": {result.label: asdict(result) for result in self.results},
            "pairs": [asdict(pair) for pair in self.pairs],
            "notes": self.notes,
        }

    def table(self) -> list[dict[str, Any]]:
        """A plain row for each label, seed and round, for `pandas.DataFrame`; rounds.csv has the same."""
        return [
            {"label": run.label, "seed": run.seed} | round_row(record) for run in self.runs for record in run.records
        ]

    def write_csv(self, path: str | Path) -> None:
        """A line for each label, seed and round."""
        rows = [csv_row(run, record) for run in self.runs for record in run.records]

        def write(scratch: Path) -> None:
            with scratch.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(CSV_FIELDS)
                writer.writerows(rows)

        write_atomic(Path(path), write)

    def write(self, out: str | Path) -> list[Path]:
        """comparison.json, comparison.md and rounds.csv."""
        paths = [Path(out) / name for name in ("comparison.json", "comparison.md", "rounds.csv")]
        write_json(paths[0], self.to_json())
        write_atomic(paths[1], lambda scratch: scratch.write_text(self.to_markdown(), "utf-8"))
        self.write_csv(paths[2])
        return paths

    def to_rich(self) -> Group:
        """Tables and notes for a terminal."""
        return Group(*(rich_table(*table) for table in self.tables()), *(Text(f"- {note}") for note in self.notes))

    def to_markdown(self) -> str:
        parts = [markdown_table(*table) for table in self.tables()]
        parts += ["\n".join(f"- {_escaped(note)}" for note in self.notes) + "\n"] if self.notes else []
        return "\n".join(parts)

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """(title, header, rows) of each table."""
        tables = [_accuracy_table(self), _time_table(self), _bytes_table(self)]
        return [*tables, _pairs_table(self)] if self.pairs else tables


def round_row(record: RoundRecord) -> dict[str, Any]:
    """A round as plain numbers; kept and dropped are numbers of clients, bytes are those of all links."""
    counts = {"kept": len(record.kept), "dropped": len(record.dropped), "bytes": sum(record.bytes.values())}
    return {name: counts[name] if name in counts else getattr(record, name) for name in CSV_FIELDS[2:]}


def csv_row(run: Run, record: RoundRecord) -> list[Any]:
    values = {"label": run.label, "seed": run.seed} | round_row(record)
    return ["" if values[name] is None else values[name] for name in CSV_FIELDS]


def check_target(target: float | None) -> None:
    if target is not None and not 0 < target <= 1:
        raise InputError(f"target is {target}; it is a test accuracy above 0 and at most 1, such as 0.6")


def compare(
    runs: Sequence[Run], target: float | None = None, reference: str | None = None, paired: bool = True
) -> Comparison:
    """Sum up runs; `reference` is what the others are paired with, by default HSFL, else the first label.

    `paired`: whether the labels are of one task, so that one may be set against another.
    """
    if not runs:
        raise InputError("there are no runs to compare; give at least one")
    check_target(target)
    labels = list(dict.fromkeys(run.label for run in runs))
    if reference is None:
        proposed = [label for label in labels if label.split(",", 1)[0] == PROPOSED]
        reference = PROPOSED if PROPOSED in labels else [*proposed, labels[0]][0]
    known("label", reference, labels)
    common_s = min(run.end_s for run in runs)
    by_label = {label: [run for run in runs if run.label == label] for label in labels}
    results = [_result(label, by_label[label], target, common_s) for label in labels]
    pairs = [
        _pair(by_label[reference], by_label[label], target, common_s)
        for label in labels
        if paired and label != reference and _common_seeds(by_label[reference], by_label[label])
    ]
    return Comparison(list(runs), target, common_s, reference, results, pairs, _notes(runs, results, pairs, target))


def read_comparison(
    out: str | Path, target: float | None = None, labels: Sequence[str] | None = None, reference: str | None = None
) -> Comparison:
    """The comparison in a folder."""
    return compare(read_runs(out, labels), target, reference)


def _result(label: str, runs: list[Run], target: float | None, common_s: float) -> LabelResult:
    times = [_time_to_target_s(run, target) for run in runs]
    links = dict.fromkeys(link for run in runs for link in run.bytes)
    return LabelResult(
        label=label,
        seeds=[run.seed for run in runs],
        final_accuracy=estimate(run.last("test_accuracy") for run in runs),
        best_accuracy=estimate(run.best("test_accuracy") for run in runs),
        common_accuracy=estimate(run.accuracy_at(common_s) for run in runs),
        final_balanced_accuracy=estimate(run.last("balanced_accuracy") for run in runs),
        best_balanced_accuracy=estimate(run.best("balanced_accuracy") for run in runs),
        rounds=estimate(len(run.records) for run in runs),
        sim_time_s=estimate(run.sim_time_s for run in runs),
        reached=sum(time is not None for time in times),
        time_to_target_s=estimate(times),
        drops=estimate(run.drops for run in runs),
        drops_per_round=estimate(run.drops / len(run.records) if run.records else None for run in runs),
        left_out=estimate(run.left_out for run in runs),
        bytes={link: estimate(run.bytes.get(link, 0) for run in runs) for link in links},
        total_bytes=estimate(sum(run.bytes.values()) for run in runs),
    )


def _time_to_target_s(run: Run, target: float | None) -> float | None:
    return None if target is None else time_to_target_s(run.records, target)


def _common_seeds(left: Iterable[Run], right: Iterable[Run]) -> list[int]:
    return sorted({run.seed for run in left} & {run.seed for run in right})


def _pair(reference: list[Run], other: list[Run], target: float | None, common_s: float) -> Pair:
    seeds = _common_seeds(reference, other)
    ours, theirs = ({run.seed: run for run in runs} for runs in (reference, other))

    def each(what: Callable[[Run], float | None], join: Callable[[float, float], float | None]) -> list[float | None]:
        values = [(what(ours[seed]), what(theirs[seed])) for seed in seeds]
        return [None if a is None or b is None else join(a, b) for a, b in values]

    return Pair(
        reference=reference[0].label,
        other=other[0].label,
        seeds=seeds,
        final_accuracy=estimate(each(lambda run: run.last("test_accuracy"), lambda a, b: a - b)),
        common_accuracy=estimate(each(lambda run: run.accuracy_at(common_s), lambda a, b: a - b)),
        speedup=estimate(each(lambda run: _time_to_target_s(run, target), _ratio), ratio=True),
    )


def _ratio(reference_s: float, other_s: float) -> float | None:
    return other_s / reference_s if reference_s > 0 and other_s > 0 else None


def _notes(runs: Sequence[Run], results: list[LabelResult], pairs: list[Pair], target: float | None) -> list[str]:
    """What a reader must know to read the numbers rightly."""
    names = {run.label: run.name for run in runs}
    notes = ["Mean over seeds ± half of the 95 % confidence interval (Student t)."]
    if max(len(result.seeds) for result in results) < 2:
        notes = ["One seed: no confidence interval; differences may be luck."]
    for result in results:
        ends = Counter(run.status for run in runs if run.label == result.label and not run.spent_its_time)
        notes += [
            f"{names[result.label]}: {num} of {len(result.seeds)} runs {HOW_ENDED.get(end, end)}."
            for end, num in ends.items()
        ]
        if target is not None and 0 < result.reached < len(result.seeds):
            notes.append(
                f"{names[result.label]}: {result.reached} of {len(result.seeds)} seeds reached the target; "
                "its time is the mean over those alone, so too short, and has no interval."
            )
    if any(pair.speedup.num < len(pair.seeds) for pair in pairs) and target is not None:
        notes.append(
            "A speed-up counts the seeds in which both reached the target; without an interval if not all did."
        )
    if any(result.drops.mean for result in results):
        notes.append("Data sent count the clients that were kept; what a dropped one sent before tau is not in them.")
    if len({tuple(result.seeds) for result in results}) > 1:
        notes.append("The labels were not all run with the same seeds; pairs use those they share.")
    return notes


# ---- tables


def _accuracy_table(comparison: Comparison) -> tuple[str, list[str], list[list[str]]]:
    header, columns = ["framework", "seeds", "final", "best"], ["final_accuracy", "best_accuracy"]
    if not comparison.end_together:
        header, columns = [*header, f"at {seconds(comparison.common_s)}"], [*columns, "common_accuracy"]
    header, columns = [*header, "balanced"], [*columns, "final_balanced_accuracy"]
    rows = [
        [
            comparison.name(result.label),
            str(len(result.seeds)),
            *(say(getattr(result, name), 100, 1) for name in columns),
        ]
        for result in comparison.results
    ]
    when = f" after {grouped(comparison.common_s)} simulated seconds" if comparison.end_together else ""
    return f"Test accuracy, %{when}", header, rows


def _time_table(comparison: Comparison) -> tuple[str, list[str], list[list[str]]]:
    target = comparison.target
    header = ["framework", "rounds", "seconds", *([f"seconds to {100 * target:.4g} %"] if target is not None else [])]
    some_left_out = any(result.left_out.mean for result in comparison.results)
    rows = [
        [
            comparison.name(result.label),
            *(say(result.rounds), say(result.sim_time_s)),
            *([say_time(result)] if target is not None else []),
            say(result.drops),
            *([say(result.left_out)] if some_left_out else []),
        ]
        for result in comparison.results
    ]
    return "Simulated time and dropped clients", [*header, "drops", *(["left out"] if some_left_out else [])], rows


def _bytes_table(comparison: Comparison) -> tuple[str, list[str], list[list[str]]]:
    links = dict.fromkeys(link for result in comparison.results for link in result.bytes)
    smallest = min((mean for result in comparison.results if (mean := result.total_bytes.mean)), default=0.0)
    power, unit = next(
        ((p, u) for p, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if smallest >= 10 * p), (1.0, "bytes")
    )
    rows = []
    for result in comparison.results:
        means = [Estimate(result.bytes[link].mean, None, None, 1) if link in result.bytes else None for link in links]
        cells = ["0" if mean is None else say(mean, 1 / power) for mean in means]  # intervals are in the JSON
        rows.append([comparison.name(result.label), *cells, say(result.total_bytes, 1 / power)])
    return (
        f"{SENT} in a run, {unit}",
        ["framework", *(link.removeprefix("client_").replace("_", " ") for link in links), "total"],
        rows,
    )


def _pairs_table(comparison: Comparison) -> tuple[str, list[str], list[list[str]]]:
    name, target = comparison.name(comparison.reference), comparison.target
    header, columns = ["against", "seeds", "final"], ["final_accuracy"]
    if not comparison.end_together:
        header, columns = [*header, f"at {seconds(comparison.common_s)}"], [*columns, "common_accuracy"]
    header += [f"faster to {100 * target:.4g} %, times"] if target is not None else []
    rows = [
        [
            *(comparison.name(pair.other), str(len(pair.seeds))),
            *(say(getattr(pair, column), 100, 2, sign=True) for column in columns),
            *([say_ratio(pair.speedup, len(pair.seeds))] if target is not None else []),
        ]
        for pair in comparison.pairs
    ]
    return f"{name} against the others, seed by seed: accuracy in points, and speed", header, rows


def say(value: Estimate, scale: float = 1.0, digits: int | None = None, sign: bool = False) -> str:
    """`61.20 ± 0.81`; a dash if unknown. Without `digits`, as many as small numbers need."""
    if value.mean is None:
        return "-"
    if abs(value.mean * scale) >= ENDLESS_S:
        return "over 10^15" if value.mean > 0 else "below -10^15"
    mean, half = value.mean * scale, 0.0 if value.high is None else (value.high - value.mean) * scale
    if digits is None:
        whole = mean == 0 or abs(mean) >= 100 or (half == 0 and mean == round(mean))
        digits = 0 if whole else min(2 - math.floor(math.log10(abs(mean))), 9)  # three that count
    return f"{mean:{'+' if sign else ''}z,.{digits}f}" + (f" ± {half:,.{digits}f}" if half else "")


def say_time(result: LabelResult) -> str:
    """The time to the target, and how many seeds reached it unless all did."""
    of = "" if result.reached == len(result.seeds) else f" ({result.reached} of {len(result.seeds)})"
    return say(result.time_to_target_s) + of if result.reached else "never"


def say_ratio(value: Estimate, num_seeds: int) -> str:
    if value.mean is None:
        return "-"
    interval = f" [{value.low:.2f}, {value.high:.2f}]" if value.low is not None else ""
    return f"{value.mean:.2f}{interval}" + (f" ({value.num} of {num_seeds})" if value.num < num_seeds else "")


def rich_table(title: str, header: list[str], rows: list[list[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(header):
        table.add_column(name, justify="right" if place else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def markdown_table(title: str, header: list[str], rows: list[list[str]]) -> str:
    align = [":--", *("--:" for _ in header[1:])]
    lines = [header, align, *([_escaped(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return f"**{_escaped(title)}**\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _escaped(text: str) -> str:
    """Words from folders as words: no markup of HTML, which Markdown would let through."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
