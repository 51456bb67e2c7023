"""What each decision gained in a comparison: own cuts, the allocation, and splitting the model at all.

Each is told from two contenders that differ in this decision alone: a framework with a cut for each client beside one with one cut for
all under the same policy; one framework under two policies; a split model beside a whole one (FL) under the same policy. A
decision without such a pair is not told.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hsfl.formats import percent, seconds, significant
from hsfl.report.compared_runs import built_in
from hsfl.report.comparison import Comparison
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
    round_s: float  # the mean over runs and rounds


@dataclass(frozen=True)
class DecisionGain:
    """Two contenders that differ in one decision: `label` made it, `without` did not."""

    decision: str
    label: str
    without: str
    round_s: float
    without_s: float


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
        DecisionGain(_full_name(decision, a, b), a.label, b.label, a.round_s, b.round_s)
        for decision, differ in pairs.items()
        for a in contenders
        for b in contenders
        if differ(a, b) and a.others == b.others
    ]


def _full_name(decision: str, a: _Contender, b: _Contender) -> str:
    """The decision, with the cuts where they came along: each allocation may have cuts that were chosen for it."""
    return "the allocation and its cuts" if decision == "the allocation" and a.cuts != b.cuts else decision


def decision_sentences(comparison: Comparison) -> list[str]:
    """A sentence for each gain of `decision_gains`, from the comparison's own numbers."""
    values = {result.label: result.common.mean for result in comparison.results}
    sentences = []
    for gain in decision_gains(comparison):
        name, other = comparison.name(gain.label), comparison.name(gain.without)
        ratio = significant(gain.without_s / gain.round_s, 3)
        sentence = (
            f"What {gain.decision} gain{'' if gain.decision.endswith('cuts') else 's'}: a round of {name} takes "
            f"{seconds(gain.round_s, 3)}, of {other} {seconds(gain.without_s, 3)} ({ratio} times as long)"
        )
        value, other_value = values[gain.label], values[gain.without]
        if value is not None and other_value is not None and comparison.metric == ACCURACY:
            points = percent(value - other_value, 1, sign=True).removesuffix("%").strip()
            sentence += f"; at {seconds(comparison.common_s, 3)}, {points} points of last accuracy"
        sentences.append(f"{sentence}.")
    return sentences


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
            fmean(run.sim_time_s / len(run.records) for run in runs),
        )
