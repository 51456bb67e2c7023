"""Cuts for links whose rates are given, by sample average: speeds (and rates, where they were recorded) vary.

Legend: K clients, C cuts, S samples, P candidates. minimise over cuts the mean over samples of the optimal round.

`optimistic` bounds, for every client and cut at once, the mean round after that single change: one Newton step for the
training of each sample, which never passes the root. So descent tries only changes that may help, and misses none.
The bound over all cuts is the mean over samples of the best plan with cuts of its own in each (`measured.best_plan`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from hsfl import rng as streams
from hsfl.allocation.answer import with_gap
from hsfl.allocation.cuts import CutPlan, CutSettings, Progress
from hsfl.allocation.measured import best_plan, least_training
from hsfl.allocation.search import TimeLimit
from hsfl.errors import InputError

Array = np.ndarray
BOUND_GAP = 1e-5  # of each sample's best plan
BLOCK = 2_000_000  # numbers at a time
EXHAUSTIVE = 200_000  # cut vectors
PATIENCE = 10  # changes in vain after one that helped: then what they promise is computed anew
MOST_KICKED = 10  # clients
KICKS_S = 3.0  # of kicks in all: they repay small fleets


@dataclass(frozen=True)
class MeasuredRounds:
    """S rounds of one fleet in explicit seconds and cycles."""

    own_s: Array  # [S, K, C] computation and links, over the round
    work_cycles: Array  # [K, C] of the main server
    down_s: Array  # [S, K, C] the new model
    min_cut: int
    max_cut: Array  # [K]
    main_hz: float

    @property
    def num_clients(self) -> int:
        return len(self.max_cut)

    @property
    def feasible(self) -> Array:
        """[K, C] bool."""
        cuts = np.arange(self.work_cycles.shape[1])
        return (cuts >= self.min_cut) & (cuts <= self.max_cut[:, None])

    def at(self, cuts: Array) -> tuple[Array, Array, Array]:
        """own [..., S, K], work [..., 1, K] and down [..., S, K] of cuts [..., K]."""
        rows, each = np.arange(self.num_clients), np.asarray(cuts)[..., None, :]
        samples = np.arange(len(self.own_s))[:, None]
        return self.own_s[samples, rows, each], self.work_cycles[rows, each], self.down_s[samples, rows, each]

    def round_s(self, cuts: Array) -> Array:
        """The optimal round of every sample, [..., K] -> [..., S]."""
        own_s, work, down_s = self.at(cuts)
        return least_training(own_s, work, self.main_hz) + down_s.max(axis=-1)

    def even_round_s(self, cuts: Array) -> Array:
        """With the server's cycles divided evenly, [..., K] -> [..., S]."""
        own_s, work, down_s = self.at(cuts)
        return (own_s + work * self.num_clients / self.main_hz).max(axis=-1) + down_s.max(axis=-1)

    def mean_rounds(self, cuts: Array) -> Array:
        """Mean seconds of candidates [P, K] -> [P], some at a time."""
        size = max(1, BLOCK // (len(self.own_s) * self.num_clients))
        parts = [self.round_s(cuts[i : i + size]).mean(axis=-1) for i in range(0, len(cuts), size)]
        return np.concatenate(parts)


@dataclass
class _Judge:
    """Mean rounds of candidates [P, K] -> [P]; remembers the best. As `fitness.Fitness` for the searches."""

    scenario: MeasuredRounds
    tried: int = 0
    best: Array | None = None
    best_s: float = np.inf

    def __call__(self, cuts: Array) -> Array:
        values = self.scenario.mean_rounds(cuts)
        self.tried += len(cuts)
        if values.min() < self.best_s:
            self.best, self.best_s = cuts[values.argmin()].copy(), float(values.min())
        return values

    def one(self, cuts: Array) -> float:
        return float(self(cuts[None])[0])


def choose_measured_cuts(
    rounds: MeasuredRounds,
    first: Array,
    settings: CutSettings | None = None,
    progress: Progress | None = None,
) -> CutPlan:
    """Cuts over the samples, never worse there than `first` [K] (the plan for mean speeds, say)."""
    settings, say = settings or CutSettings(), progress or (lambda what, step, best: None)
    clock, plans = TimeLimit(settings.time_limit_s), []
    for own_s, down_s in zip(rounds.own_s, rounds.down_s):
        plans.append(best_plan(own_s, rounds.work_cycles, down_s, rounds.feasible, rounds.main_hz, BOUND_GAP))
        say("samples", len(plans), plans[-1].round_s)
    bound_s = float(np.mean([plan.lower_bound_s for plan in plans]))
    judge = _Judge(rounds)
    judge(np.array([first, *(plan.cuts for plan in plans)]))
    METHODS[settings.method](judge, bound_s, settings, clock, say)
    assert judge.best is not None
    round_s = rounds.round_s(judge.best)
    mean_s = float(round_s.mean())
    bound_s, gap = with_gap(bound_s, mean_s)
    return CutPlan(
        judge.best,
        round_s,
        mean_s,
        bound_s,
        gap,
        settings.method,
        judge.tried,
        clock.seconds(),
        gap > settings.gap and clock.over(),
    )


def best_single(rounds: MeasuredRounds) -> Array:
    """One cut for all, the best that everyone can hold, [K]."""
    same = np.arange(rounds.min_cut, rounds.max_cut.min() + 1)[:, None] * np.ones(rounds.num_clients, int)
    return same[int(np.argmin(rounds.mean_rounds(same)))]


def _exhaustive(judge: _Judge, bound_s: float, settings: CutSettings, clock: TimeLimit, say: Progress) -> None:
    rounds = judge.scenario
    count = np.prod((rounds.max_cut - rounds.min_cut + 1).astype(float))
    if count > EXHAUSTIVE:
        raise InputError(f"allocation.cuts=exhaustive would try {count:.3g} cut vectors; choose descent or ga")
    judge(np.array(list(product(*(range(rounds.min_cut, most + 1) for most in rounds.max_cut)))))


def _genetic(judge: _Judge, bound_s: float, settings: CutSettings, clock: TimeLimit, say: Progress) -> None:
    from hsfl.allocation.genetic import run

    rng, rounds, best = streams.stream(settings.seed, "cuts"), judge.scenario, judge.best
    random = rng.integers(rounds.min_cut, rounds.max_cut + 1, (settings.population - 2, rounds.num_clients))
    fitness: Any = judge
    run(fitness, np.array([best, np.full(rounds.num_clients, rounds.max_cut.min()), *random]), settings, clock, say)


def _descent(judge: _Judge, bound_s: float, settings: CutSettings, clock: TimeLimit, say: Progress) -> None:
    """From the best start, then from kicks of it, until none helps or `settings.gap` is proven."""
    rng = streams.stream(settings.seed, "kicks")
    assert judge.best is not None
    _descend(judge, judge.best, clock)
    failures, clock = 0, TimeLimit(min(KICKS_S, clock.limit_s - clock.seconds()))
    while failures < settings.patience and judge.best_s * (1 - settings.gap) > bound_s and not clock.over():
        before_s = judge.best_s
        _descend(judge, _kick(judge.scenario, judge.best, rng), clock)
        failures = 0 if judge.best_s < before_s * (1 - settings.significant) else failures + 1
        say("kicks", judge.tried, judge.best_s)


METHODS: dict[str, Callable[[_Judge, float, CutSettings, TimeLimit, Progress], None]] = {
    "descent": _descent,
    "ga": _genetic,
    "exhaustive": _exhaustive,
}


def _kick(rounds: MeasuredRounds, cuts: Array, rng: np.random.Generator) -> Array:
    """New random cuts for a few clients."""
    cuts = cuts.copy()
    some = rng.choice(len(cuts), size=min(len(cuts), 2 + len(cuts) // 5, MOST_KICKED), replace=False)
    cuts[some] = rng.integers(rounds.min_cut, rounds.max_cut[some] + 1)
    return cuts


def _descend(judge: _Judge, cuts: Array, clock: TimeLimit) -> None:
    """Many changes at once where they help together, else one at a time, until none can help."""
    value_s, improved = judge.one(cuts), True
    while improved and not clock.over():
        saved_s = value_s - optimistic(judge.scenario, cuts)
        saved_s[np.arange(len(cuts)), cuts] = 0.0
        improved = False
        for trial in _together(cuts, saved_s):
            new_s = judge.one(trial)
            if new_s < value_s * (1 - 1e-9):
                cuts, value_s, improved = trial, new_s, True
                break
        if not improved:
            cuts, value_s, improved = _one_by_one(judge, cuts, value_s, saved_s, clock)


def _together(cuts: Array, saved_s: Array) -> list[Array]:
    """Everyone's most promising cut, for all who have one, then for the most promising half of them, and so on."""
    best = saved_s.argmax(axis=1)
    gain_s = saved_s[np.arange(len(cuts)), best]
    order = np.argsort(-gain_s, kind="stable")
    size, trials = int((gain_s > 1e-9 * gain_s.max(initial=0.0)).sum()), []
    while size > 1:
        trial = cuts.copy()
        trial[order[:size]] = best[order[:size]]
        trials.append(trial)
        size //= 2
    return trials


def _one_by_one(
    judge: _Judge, cuts: Array, value_s: float, saved_s: Array, clock: TimeLimit
) -> tuple[Array, float, bool]:
    """Single changes, the most promising first; those that cannot help are not tried, unless others were made."""
    improved, in_vain = False, 0
    for flat in np.argsort(-saved_s, axis=None, kind="stable"):
        k, cut = divmod(int(flat), saved_s.shape[1])
        if saved_s[k, cut] <= 1e-9 * value_s or clock.over() or (improved and in_vain >= PATIENCE):
            break
        trial = cuts.copy()
        trial[k] = cut
        new_s = judge.one(trial)
        in_vain += 1
        if new_s < value_s * (1 - 1e-9):
            cuts, value_s, improved, in_vain = trial, new_s, True, 0
    return cuts, value_s, improved


def optimistic(rounds: MeasuredRounds, cuts: Array) -> Array:
    """A lower bound on the mean round when one client takes another cut, [K, C]; infinite where it cannot.

    Where a cut leaves less time than its work takes alone on the server, that much is given to it, which only helps.
    """
    hz, work = rounds.main_hz, rounds.work_cycles
    own_now_s, work_now, down_now_s = rounds.at(cuts)  # [S, K]
    training_s = least_training(own_now_s, work_now, hz)[:, None, None]
    left_s = np.where(work > 0, np.maximum(training_s - rounds.own_s, work / hz), 1.0)  # [S, K, C]
    need_hz = work / left_s
    slope = need_hz / left_s
    now_hz, now_slope = (np.take_along_axis(a, cuts[None, :, None], axis=2) for a in (need_hz, slope))
    total_hz = need_hz + _sum_of_others(now_hz)
    slope = slope + _sum_of_others(now_slope)
    step_s = np.divide(total_hz * (total_hz / hz - 1), slope, out=np.zeros(slope.shape), where=slope > 0)
    newton_s = np.where(slope > 0, training_s + step_s, 0.0)  # nobody needs the server: nothing to wait for
    alone_s = np.maximum(rounds.own_s + work / hz, _most_of_others(own_now_s + work_now / hz))
    down_s = np.maximum(rounds.down_s, _most_of_others(down_now_s))
    mean_s = (np.maximum(newton_s, alone_s) + down_s).mean(axis=0)
    return np.where(rounds.feasible, mean_s, np.inf)


def _sum_of_others(values: Array) -> Array:
    """[S, K, 1] -> [S, K, 1]."""
    return values.sum(axis=1, keepdims=True) - values


def _most_of_others(values: Array) -> Array:
    """The maximum over all other clients, [S, K] -> [S, K, 1]; 0 where there are none."""
    ranked = np.sort(np.concatenate([np.zeros_like(values[:, :1]), values], axis=1), axis=1)
    return np.where(values == ranked[:, -1:], ranked[:, -2:-1], ranked[:, -1:])[..., None]
