"""What a comparison says in a few lines: how long a round takes, how far everyone comes, and how much sooner the reference does."""

import math
from collections.abc import Sequence
from statistics import fmean

from hsfl.formats import percent, seconds, significant
from hsfl.report.comparison import Comparison
from hsfl.report.curves import time_to_target_s
from hsfl.runs.round_records import RoundRecord
from hsfl.tasks import ACCURACY, Metric


def gained(comparison: Comparison) -> list[str]:
    """Up to three sentences about the reference and the others; none where there is nothing to set it against."""
    others = [label for label in comparison.labels if label != comparison.reference]
    if not others or not comparison.pairs:
        return []
    sentences = [_rounds(comparison, others), _accuracies(comparison, others), _sooner(comparison, others)]
    return [sentence for sentence in sentences if sentence]


def _short(comparison: Comparison, label: str) -> str:
    """The framework's name, or all of the label where two labels are of one framework."""
    names = [comparison.name(each).split(",")[0] for each in comparison.labels]
    name = comparison.name(label)
    return name.split(",")[0] if names.count(name.split(",")[0]) == 1 else name


def _round_s(comparison: Comparison, label: str) -> float:
    """The mean round in simulated seconds, over all runs of the label; NaN where none was made."""
    made = [run.sim_time_s / len(run.records) for run in comparison.runs_of(label) if run.records]
    return fmean(made) if made else math.nan


def _rounds(comparison: Comparison, others: list[str]) -> str:
    own_s = _round_s(comparison, comparison.reference)
    if not own_s > 0:
        return ""
    parts = []
    for label in others:
        round_s = _round_s(comparison, label)
        if round_s > 0:
            name = _short(comparison, label)
            times = significant(round_s / own_s, 3)
            parts.append(f"{seconds(round_s, 3)} with {name} ({'as' if times == '1' else f'{times} times as'} long)")
    name = _short(comparison, comparison.reference)
    return f"A round takes {seconds(own_s, 3)} with {name}, {', '.join(parts)}." if parts else ""


def _accuracies(comparison: Comparison, others: list[str]) -> str:
    by_label = {result.label: result.common.mean for result in comparison.results}
    own = by_label[comparison.reference]
    if own is None:
        return ""
    parts = [f"{_short(comparison, label)} {_share(comparison.metric, by_label[label])}" for label in others]
    name = _short(comparison, comparison.reference)
    what = f"{_article(comparison.metric)} of {_share(comparison.metric, own)}"
    return f"After {seconds(comparison.common_s, 3)} {name} has {what}, {', '.join(parts)}."


def _article(metric: Metric) -> str:
    title = _title(metric)
    return f"{'an' if title[0].lower() in 'aeiou' else 'a'} {title}"


def _title(metric: Metric) -> str:
    return "accuracy" if metric == ACCURACY else metric.title


def _share(metric: Metric, value: float | None) -> str:
    if value is None:
        return "no model yet"
    return percent(value, 1) if metric.percent else significant(value, 3)


def _has_learned(records: Sequence[RoundRecord], last: float, metric: Metric) -> bool:
    """Whether a run ends better than it was when it was first tested; to reach less says nothing."""
    first = next((value for record in records if (value := record.value(metric.name)) is not None), None)
    return first is not None and metric.is_better(last, first)


def _sooner(comparison: Comparison, others: list[str]) -> str:
    """When the reference reached what the others have at the end, in the seeds in which it did."""
    ours, parts = {run.seed: run for run in comparison.runs_of(comparison.reference)}, []
    for label in others:
        times = []
        for run in comparison.runs_of(label):
            last = run.last(comparison.metric.name)
            if run.seed in ours and last is not None and _has_learned(run.records, last, comparison.metric):
                own_s = time_to_target_s(ours[run.seed].records, last, comparison.metric)
                their_s = time_to_target_s(run.records, last, comparison.metric)
                times += [(own_s, their_s)] if own_s and their_s else []
        own_s, their_s = (fmean(values) for values in zip(*times)) if times else (0.0, 0.0)
        if seconds(own_s, 3) != seconds(their_s, 3):
            parts.append(
                f"that of {_short(comparison, label)} after {seconds(own_s, 3)} instead of {seconds(their_s, 3)}"
            )
    return (
        f"{_short(comparison, comparison.reference)} reached the last {_title(comparison.metric)} of the others: {', '.join(parts)}."
        if parts
        else ""
    )
