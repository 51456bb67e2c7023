"""How runs are summed up into a `Comparison`.

Each label gets means over its seeds, and is paired with the reference, seed by seed. `gain_sentences` says in up to three sentences
what the reference gained.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean

from hsfl.errors import InputError, known_name
from hsfl.formats import count, percent, seconds, significant, without_numbers
from hsfl.framework_table import PROPOSED
from hsfl.report.compared_runs import Run, read_runs
from hsfl.report.comparison import Comparison, LabelResult, Pair, paired_estimate
from hsfl.report.curves import estimate, time_to_target_s
from hsfl.report.decision_gains import decision_sentences
from hsfl.tasks import ACCURACY, Metric

HOW_ENDED = {  # statuses that need more words
    "finished": "made all their rounds (train.rounds) before the budget was spent; the last model counts from there on"
}


def check_target(target: float | None, metric: Metric = ACCURACY) -> None:
    """Refuse a target that the metric cannot reach: a fraction is above 0 and at most 1. None is no target."""
    if target is not None and metric.percent and not 0 < target <= 1:
        raise InputError(f"target is {target}; it is a {metric.title} above 0 and at most 1, such as 0.6")
    if target is not None and not math.isfinite(target):
        raise InputError(f"target is {target}; give a number of the {metric.title}")


def summarise_runs(
    runs: Sequence[Run], target: float | None = None, reference: str | None = None, paired: bool = True
) -> Comparison:
    """Sum up runs; `reference` is what the others are paired with: by default the first label where a person gave it as a name, else
    HSFL, else the first label.

    `paired`: whether all labels are of one task, so that labels may be set against each other.
    """
    if not runs:
        raise InputError("there are no runs to compare; give at least one")
    check_target(target, runs[0].metric)
    labels = list(dict.fromkeys(run.label for run in runs))
    if reference is None:
        proposed = list(dict.fromkeys(run.label for run in runs if run.framework == PROPOSED))
        first_is_named = runs[0].contender is not None and runs[0].contender.is_named
        reference = labels[0] if first_is_named else PROPOSED if PROPOSED in labels else [*proposed, labels[0]][0]
    known_name("label", reference, labels)
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
    return summarise_runs(read_runs(out, labels), target, reference)


def _result(label: str, runs: list[Run], target: float | None, common_s: float) -> LabelResult:
    trained = [run for run in runs if run.records]  # of the others a note tells
    times = [_time_to_target_s(run, target) for run in runs]
    links, metric, *other_metrics = dict.fromkeys(link for run in runs for link in run.bytes), *runs[0].metrics
    return LabelResult(
        label=label,
        seeds=[run.seed for run in runs],
        final_accuracy=estimate(run.last("test_accuracy") for run in trained),
        best_accuracy=estimate(run.best("test_accuracy") for run in trained),
        common_accuracy=estimate(run.value_at(common_s) for run in trained),
        final_balanced_accuracy=estimate(run.last("balanced_accuracy") for run in trained),
        best_balanced_accuracy=estimate(run.best("balanced_accuracy") for run in trained),
        rounds=estimate(len(run.records) for run in runs),
        sim_time_s=estimate(run.sim_time_s for run in runs),
        reached=sum(time is not None for time in times),
        time_to_target_s=estimate(times),
        drops=estimate(run.drops for run in runs),
        drops_per_round=estimate(run.drops / len(run.records) for run in trained),
        left_out=estimate(run.left_out for run in runs),
        bytes={link: estimate(run.bytes.get(link, 0) for run in runs) for link in links},
        total_bytes=estimate(sum(run.bytes.values()) for run in runs),
        round_s=estimate(run.round_s for run in trained),
        metric=metric.name,
        final=estimate(run.last(metric.name) for run in trained),
        best=estimate(run.best(metric.name) for run in trained),
        common=estimate(run.value_at(common_s, metric.name) for run in trained),
        others={other.name: estimate(run.last(other.name) for run in trained) for other in other_metrics},
    )


def _time_to_target_s(run: Run, target: float | None) -> float | None:
    return None if target is None else time_to_target_s(run.records, target, run.metric)


def _common_seeds(left: Iterable[Run], right: Iterable[Run]) -> list[int]:
    return sorted({run.seed for run in left} & {run.seed for run in right})


def _pair(reference: list[Run], other: list[Run], target: float | None, common_s: float) -> Pair:
    seeds, metric = _common_seeds(reference, other), reference[0].metric.name
    reference_runs, other_runs = ({run.seed: run for run in runs} for runs in (reference, other))

    trained = [seed for seed in seeds if reference_runs[seed].records and other_runs[seed].records]

    def by_seed(
        seeds: list[int], value_of: Callable[[Run], float | None], join: Callable[[float, float], float | None]
    ) -> list[float | None]:
        values = [(value_of(reference_runs[seed]), value_of(other_runs[seed])) for seed in seeds]
        return [None if a is None or b is None else join(a, b) for a, b in values]

    return Pair(
        reference=reference[0].label,
        other=other[0].label,
        seeds=seeds,
        final_accuracy=estimate(by_seed(trained, lambda run: run.last("test_accuracy"), lambda a, b: a - b)),
        common_accuracy=estimate(by_seed(trained, lambda run: run.value_at(common_s), lambda a, b: a - b)),
        final=estimate(by_seed(trained, lambda run: run.last(metric), lambda a, b: a - b)),
        common=estimate(by_seed(trained, lambda run: run.value_at(common_s, metric), lambda a, b: a - b)),
        speedup=estimate(by_seed(seeds, lambda run: _time_to_target_s(run, target), _ratio), ratio=True),
        round_ratio=paired_estimate(other, reference, lambda run: run.round_s, ratio=True),
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
        idle = [run.seed for run in runs if run.label == result.label and run.status == "budget" and not run.records]
        if idle:
            counted = len(result.seeds) - len(idle)
            means = (
                f"; its quality and mean round are over {counted} of {count(len(result.seeds), 'seed')}"
                if counted
                else ""
            )
            notes.append(
                f"{names[result.label]}, seed {', '.join(map(str, idle))}: no round fits the budget, so nothing was trained{means}."
            )
        if target is not None and 0 < result.reached < len(result.seeds):
            notes.append(
                f"{names[result.label]}: {result.reached} of {len(result.seeds)} seeds reached the target; "
                "its time is the mean over these seeds alone, so too short, and has no interval."
            )
    if any(pair.speedup.num < len(pair.seeds) for pair in pairs) and target is not None:
        notes.append(
            "A speed-up counts the seeds in which both reached the target; without an interval if not all did."
        )
    if any(result.drops.mean for result in results):
        notes.append("Data sent count the clients that were kept; what a dropped client sent before tau is left out.")
    if len({tuple(result.seeds) for result in results}) > 1:
        notes.append("The labels were not all run with the same seeds; a pair uses the seeds that both labels have.")
    return notes + _start_notes(runs)


def _start_notes(runs: Sequence[Run]) -> list[str]:
    """What the runs warned of when they began, once for each contender, whose seeds differ in numbers alone."""
    labels: dict[str, dict[str, None]] = {}  # by note
    first_notes: dict[tuple[str, str], str] = {}
    for run in runs:
        for note in run.start_notes:
            first = first_notes.setdefault((run.label, without_numbers(note)), note)
            labels.setdefault(first, {})[run.name] = None
    num_labels = len({run.label for run in runs})
    return [
        f"{note}." if len(names) == num_labels else f"{', '.join(names)}: {note}." for note, names in labels.items()
    ]


def gain_sentences(comparison: Comparison) -> list[str]:
    """Up to three sentences that set the reference against the other labels: the seconds of a round, the metric at the last moment that
    every run reached, and when the reference reached the last value of each other label; then what own cuts, the allocation and
    splitting gained, each by itself, where the labels tell it. No sentence where there is nothing to compare."""
    reference = comparison.reference
    other_labels = [label for label in comparison.labels if label != reference]
    if not other_labels or not comparison.pairs:
        return []
    names = {label: comparison.name(label) for label in comparison.labels}
    between = "; " if any("," in name for name in names.values()) else ", "
    ratios = {pair.other: pair.round_ratio.mean for pair in comparison.pairs}
    rounds_s = {result.label: result.round_s.mean for result in comparison.results}
    values, sentences = {result.label: result.common.mean for result in comparison.results}, []
    if reference_s := rounds_s[reference]:
        clauses = [
            f"{names[label]} {seconds(round_s, 3)}"
            + (f" ({significant(ratio, 3)} times)" if (ratio := ratios.get(label)) else "")
            for label in other_labels
            if (round_s := rounds_s[label])
        ]
        sentences.append(f"Mean round: {between.join([f'{names[reference]} {seconds(reference_s, 3)}', *clauses])}.")
    idle = [names[label] for label in (reference, *other_labels) if not rounds_s[label]]
    if idle:
        budget = f" within the budget of {seconds(comparison.common_s, 3)}" if comparison.end_together else ""
        sentences.append(f"{between.join(idle)} made no round{budget}.")
    if comparison.runs_of(reference)[0].framework != PROPOSED:
        sentences.append(f"The reference is {names[reference]}: the others are compared with it.")
    title = "accuracy" if comparison.metric == ACCURACY else comparison.metric.title
    if values[reference] is not None:
        clauses = [
            f"{names[label]} {_metric_text(comparison.metric, values[label])}" for label in (reference, *other_labels)
        ]
        sentences.append(
            f"After {seconds(comparison.common_s, 3)} of simulated time, last {title}: {between.join(clauses)}."
        )
    reached = {label: _times_reached(comparison, label) for label in other_labels}
    sooner = [
        f"{names[label]} after {reference_time} instead of {label_time}"
        for label, (reference_time, label_time) in reached.items()
        if reference_time != label_time
    ]
    sentences += [f"{names[reference]} reached the last {title} of {between.join(sooner)}."] if sooner else []
    return sentences + decision_sentences(comparison)


def _metric_text(metric: Metric, value: float | None) -> str:
    if value is None:
        return "no model yet"
    return percent(value, 1) if metric.percent else significant(value, 3)


def _times_reached(comparison: Comparison, label: str) -> tuple[str, str]:
    """When the reference and when the label itself reached the label's last value, as texts; empty texts if never.

    Means over the seeds in which both reached it and the label's last value is better than its first.
    """
    reference_runs = {run.seed: run for run in comparison.runs_of(comparison.reference)}
    metric, times = comparison.metric, []
    for run in comparison.runs_of(label):
        tested = [value for record in run.records if (value := record.value(metric.name)) is not None]
        if run.seed in reference_runs and tested and metric.is_better(tested[-1], tested[0]):
            reference_s = time_to_target_s(reference_runs[run.seed].records, tested[-1], metric)
            label_s = time_to_target_s(run.records, tested[-1], metric)
            times += [(reference_s, label_s)] if reference_s and label_s else []
    reference_time, label_time = (seconds(fmean(column), 3) for column in zip(*times)) if times else ("", "")
    return reference_time, label_time
