"""What each decision gained in a comparison: own cuts, the allocation, and splitting the model at all.

Each is told from two contenders that differ in this decision alone: a framework with a cut for each client beside one with one cut for
all under the same policy; one framework under two policies; a split model beside a whole one (FL) under the same policy. A
decision without such a pair is not told.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hsfl.formats import count, seconds, significant
from hsfl.report.compared_runs import built_in
from hsfl.report.comparison import Comparison, paired_estimate
from hsfl.report.curves import Estimate
from hsfl.report.tables import interval_text
from hsfl.tasks import ACCURACY

PROPOSED_POLICY = "proposed"
DECISIONS = ("allocation.policy", "fleet.cuts", "fleet.one_cut")  # the settings of the decisions that are told


@dataclass(frozen=True)
class _Contender:
    """What a label of a comparison decided. splits: whether the model is cut at all."""

    label: str
    framework: str
    policy: str
    has_own_cuts: bool
    splits: bool
    cuts: dict[int, list[int]]  # [K] by seed
    others: dict[str, Any]  # its own settings of anything else
    rounds_s: dict[int, float]  # the mean over rounds, by seed


@dataclass(frozen=True)
class DecisionGain:
    """Two contenders that differ in one decision: `label` made it, `without` did not. Means are over the seeds that both have."""

    decision: str
    label: str
    without: str
    round_s: float
    without_s: float
    ratio: Estimate  # how many times as long a round takes without it, over pairs of one seed


def decision_gains(comparison: Comparison) -> list[DecisionGain]:
    """What own cuts, the allocation and splitting changed about the mean round, where the comparison can tell them apart."""
    contenders = list(_contenders(comparison))
    pairs: dict[str, Callable[[_Contender, _Contender], bool]] = {
        "own cuts": lambda a, b: (
            a.has_own_cuts and not b.has_own_cuts and a.splits and b.splits and a.policy == b.policy
        ),
        "the allocation": lambda a, b: a.framework == b.framework and a.policy == PROPOSED_POLICY != b.policy,
        "splitting": lambda a, b: (
            a.splits and not a.has_own_cuts and not b.splits and a.policy == b.policy and a.cuts != b.cuts
        ),
    }
    return [
        _gain(comparison, _full_name(decision, a, b), a, b)
        for decision, differ in pairs.items()
        for a in contenders
        for b in contenders
        if differ(a, b) and a.others == b.others and a.rounds_s.keys() & b.rounds_s.keys()
    ]


def _gain(comparison: Comparison, decision: str, a: _Contender, b: _Contender) -> DecisionGain:
    seeds = a.rounds_s.keys() & b.rounds_s.keys()
    mean_s, without_s = (fmean(contender.rounds_s[seed] for seed in seeds) for contender in (a, b))
    ratio = paired_estimate(
        comparison.runs_of(b.label), comparison.runs_of(a.label), lambda run: run.round_s, ratio=True
    )
    return DecisionGain(decision, a.label, b.label, mean_s, without_s, ratio)


def _full_name(decision: str, a: _Contender, b: _Contender) -> str:
    """The decision, with the cuts where they came along: each allocation may have cuts that were chosen for it."""
    return "the allocation and its cuts" if decision == "the allocation" and a.cuts != b.cuts else decision


def decision_sentences(comparison: Comparison) -> list[str]:
    """A sentence for each pair of `decision_gains`, from the comparison's own numbers; what became longer or worse is no gain."""
    return [_sentence(comparison, gain) for gain in decision_gains(comparison)]


def _sentence(comparison: Comparison, gain: DecisionGain) -> str:
    name, other, ratio = comparison.name(gain.label), comparison.name(gain.without), gain.ratio
    changes, points_clause = [(ratio.mean or 1.0) - 1.0], ""
    if comparison.metric == ACCURACY:
        runs, other_runs = comparison.runs_of(gain.label), comparison.runs_of(gain.without)
        points = paired_estimate(runs, other_runs, lambda run: run.value_at(comparison.common_s))
        if points.mean is not None:
            changes.append(points.mean)
            points_text = interval_text(points, 100, 1, sign=True)
            points_clause = f"; at {seconds(comparison.common_s, 3)}, {points_text} points of last accuracy"
    verb = "gain" if min(changes) >= 0 < max(changes) else "cost" if min(changes) < 0 >= max(changes) else "change"
    times = f"{significant(ratio.mean or 1.0, 3)} times as long"
    if ratio.low is not None and ratio.high is not None:
        times += f" [{significant(ratio.low, 3)}, {significant(ratio.high, 3)}]"
    return (
        f"What {gain.decision} {verb}{'' if gain.decision.endswith('cuts') else 's'}: a round of {name} takes "
        f"{seconds(gain.round_s, 3)}, of {other} {seconds(gain.without_s, 3)} ({times}, n = {count(ratio.num, 'seed')}){points_clause}."
    )


def _contenders(comparison: Comparison) -> Iterator[_Contender]:
    """The labels whose frameworks keep a copy of the model for each client, which share all else."""
    for label in comparison.labels:
        runs = [run for run in comparison.runs_of(label) if run.records]
        row = built_in(runs[0].framework) if runs else None
        if row is None or not row.copy_per_client or row.timing.server == "own":
            continue
        records = [record for run in runs for record in run.records]
        yield _Contender(
            label,
            runs[0].framework,
            str(records[0].allocation.get("policy", "")),
            row.own_cuts,
            row.timing.cut == "any",
            {run.seed: first.cuts for run in runs for first in run.records[:1]},
            {name: value for name, value in runs[0].own_settings.items() if name not in DECISIONS},
            {run.seed: run.round_s for run in runs if run.round_s is not None},
        )
