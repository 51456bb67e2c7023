"""Several runs of one fleet beside its plans: does the prediction rank the cuts as the measured rounds do?

Runs with the same cuts are repeats of one set. Two sets whose medians differ by no more than the spread of either cannot be told apart:
their pair is counted and left out of Kendall's tau. The regret says what the planned cuts cost in truth: their measured round over the best
measured round, less one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, median

from hsfl.errors import InputError
from hsfl.runs.prediction_check import (
    Compared,
    ComparedRun,
    RoundSpan,
    check_same_fleet,
    compare_run,
    compared,
    read_planned_round,
)

SAME = 1e-6  # of a round: what differs by less is the same


@dataclass(frozen=True)
class RankedCuts(Compared):
    """A set of cuts among others. Places count from 1, the fastest; equal sets share a place."""

    cuts: list[int]  # [K]
    framework: str
    runs: list[str]  # repeats
    planned: bool  # whether these are the cuts of the plan that is judged
    spread_s: float  # between the medians of repeats; of a single run between its rounds
    predicted_place: int
    measured_place: int


@dataclass(frozen=True)
class Ranking:
    """How well the predictions rank the sets."""

    sets: list[RankedCuts]  # the fastest measured first
    kendall_tau: float | None  # over the pairs that can be told apart; None where there are none
    num_pairs: int  # that can be told apart
    num_excluded: int  # that cannot
    regret: float | None  # None where no run has the planned cuts
    mean_abs_error: float | None  # of the rounds, over the sets


@dataclass(frozen=True)
class PlanCheck:
    """The answer of `hsfl plan-check`."""

    plans: list[str]
    runs: list[ComparedRun]
    ranking: Ranking | None  # None where all runs have the same cuts


def check_plans(plans: Sequence[str | Path], runs: Sequence[str | Path], span: RoundSpan) -> PlanCheck:
    """Compare each run with the plan that has its cuts. The first plan is the one that is judged; the others predict runs with other
    cuts of the same fleet."""
    if not plans or not runs:
        raise InputError("there is nothing to compare; give a plan, and the folders of runs")
    planned = [read_planned_round(path) for path in dict.fromkeys(map(Path, plans))]
    check_same_fleet(planned)
    compared_runs = [compare_run(planned, path, span) for path in dict.fromkeys(map(Path, runs))]
    return PlanCheck([plan.path for plan in planned], compared_runs, rank_cuts(compared_runs, planned[0].path))


def rank_cuts(runs: Sequence[ComparedRun], plan: str) -> Ranking | None:
    """The ranking of the runs' cuts. plan: the one that is judged."""
    groups: dict[tuple[str, tuple[int, ...]], list[ComparedRun]] = {}
    for run in runs:
        groups.setdefault((run.plan or f"{run.framework} by itself", tuple(run.cuts)), []).append(run)
    if len(groups) < 2:
        return None
    seconds = [_pooled(repeats) for repeats in groups.values()]
    sets = [
        RankedCuts(
            **vars(pooled),
            cuts=repeats[0].cuts,
            framework=repeats[0].framework,
            runs=[run.run for run in repeats],
            planned=repeats[0].plan == plan,
            spread_s=_spread_s(repeats),
            predicted_place=_place(pooled.predicted_s, [other.predicted_s for other in seconds]),
            measured_place=_place(pooled.measured_s, [other.measured_s for other in seconds]),
        )
        for pooled, repeats in zip(seconds, groups.values())
    ]
    sets.sort(key=lambda ranked: ranked.measured_s)
    agreements = [_agreement(ranked, other) for ranked, other in combinations(sets, 2)]
    told_apart = [agreement for agreement in agreements if agreement is not None]
    best_s = sets[0].measured_s
    errors = [abs(ranked.error) for ranked in sets if ranked.error is not None]
    return Ranking(
        sets=sets,
        kendall_tau=fmean(told_apart) if told_apart else None,
        num_pairs=len(told_apart),
        num_excluded=len(agreements) - len(told_apart),
        regret=next((ranked.measured_s / best_s - 1 for ranked in sets if ranked.planned and best_s > 0), None),
        mean_abs_error=fmean(errors) if errors else None,
    )


def _pooled(repeats: Sequence[ComparedRun]) -> Compared:
    """Repeats as one: all their rounds, and the median of their predictions, which differ where each run predicts for itself."""
    return compared(median(run.predicted_s for run in repeats), [value for run in repeats for value in run.rounds_s])


def _spread_s(repeats: Sequence[ComparedRun]) -> float:
    middles = [run.measured_s for run in repeats] if len(repeats) > 1 else repeats[0].rounds_s
    return max(middles) - min(middles)


def _place(value: float, values: Sequence[float]) -> int:
    return 1 + sum(other < value * (1 - SAME) for other in values)


def _agreement(first: RankedCuts, second: RankedCuts) -> int | None:
    """1 where the predictions order two sets as they were measured, -1 where they order them the other way round, 0 where they do not
    order them; None where they cannot be told apart."""
    if abs(first.measured_s - second.measured_s) <= max(first.spread_s, second.spread_s, SAME * first.measured_s):
        return None
    if abs(first.predicted_s - second.predicted_s) <= SAME * first.predicted_s:
        return 0
    return 1 if (first.predicted_s < second.predicted_s) == (first.measured_s < second.measured_s) else -1
