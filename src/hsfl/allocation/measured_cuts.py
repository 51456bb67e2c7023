"""Cuts for links whose rates are given, by sample average: speeds (and rates, where they were recorded) vary.

Legend: K clients, C cuts, S samples, P candidates. Minimise over cuts the mean over samples of the optimal round. The
methods are those of `cut_methods`.

`optimistic` bounds, for every client and cut at once, the mean round after that single change: one Newton step for the
training of each sample, which never passes the root. So descent tries only changes that may help, and misses none.
The bound over all cuts is the mean over samples of the best round with cuts of its own in each (`measured.best_round`).
"""

from dataclasses import dataclass, replace

import numpy as np

from hsfl import rng as streams
from hsfl.allocation.cut_methods import (
    EXHAUSTIVE,
    CutChoice,
    CutRequest,
    Judge,
    SampledRounds,
    row_at,
    scls,
    with_proof,
)
from hsfl.allocation.measured import best_round, least_training
from hsfl.allocation.solving import TimeLimit

Array = np.ndarray
BOUND_GAP = 1e-5  # of each sample's best round
BLOCK = 2_000_000  # numbers at a time
PATIENCE = 10  # after so many vain changes since one that helped, what every change promises is computed anew


@dataclass(frozen=True)
class MeasuredRounds(SampledRounds):
    """S rounds of one fleet in explicit seconds and cycles, for every client and row of the cost table."""

    own_s: Array  # [S, K, C] the client's computation and its links, over the round
    work_cycles: Array  # [K, C] work for the main server, over the round
    down_s: Array  # [S, K, C] the download of the new model
    rows: Array  # [K, C] bool: the rows that each client may take
    main_hz: float

    @property
    def num_clients(self) -> int:
        return len(self.rows)

    def at(self, cuts: Array) -> tuple[Array, Array, Array]:
        """What cuts [..., K] take: own seconds [..., S, K], cycles [..., 1, K], download seconds [..., S, K]."""
        rows, each = np.arange(self.num_clients), np.asarray(cuts)[..., None, :]
        samples = np.arange(len(self.own_s))[:, None]
        return self.own_s[samples, rows, each], self.work_cycles[rows, each], self.down_s[samples, rows, each]

    def round_s(self, cuts: Array) -> Array:
        """The optimal round of every sample in seconds, cuts [..., K] -> [..., S]."""
        own_s, work, down_s = self.at(cuts)
        return least_training(own_s, work, self.main_hz) + down_s.max(axis=-1)

    def even_round_s(self, cuts: Array) -> Array:
        """The round of every sample if the server's cycles are divided evenly, in seconds, cuts [..., K] -> [..., S]."""
        own_s, work, down_s = self.at(cuts)
        return (own_s + work * self.num_clients / self.main_hz).max(axis=-1) + down_s.max(axis=-1)

    def mean_s(self, cuts: Array) -> Array:
        """The mean over samples of the optimal round, in seconds, candidates [P, K] -> [P]; in blocks, to save memory."""
        size = max(1, BLOCK // (len(self.own_s) * self.num_clients))
        parts = [self.round_s(cuts[i : i + size]).mean(axis=-1) for i in range(0, len(cuts), size)]
        return np.concatenate(parts)

    def judge(self, request: CutRequest) -> "MeasuredJudge":
        return MeasuredJudge(self, request)


class MeasuredJudge(Judge):
    """Values candidates exactly, and remembers the best. What a change of one cut can save at most is proven.

    On the samples the best is never worse than the cuts that a request begins with, such as the cuts for mean speeds.
    """

    at_a_time = EXHAUSTIVE  # `mean_s` makes its own blocks
    most_kicked = 10
    kicks_s = 3.0  # kicks repay small fleets

    def __init__(self, rounds: MeasuredRounds, request: CutRequest) -> None:
        self.clock, self.request = TimeLimit(request.settings.time_limit_s), request
        self.rounds = rounds = replace(rounds, rows=request.rows)
        self.tried, self.best, self.best_s = 0, scls(rounds.rows), np.inf
        solved = []
        for own_s, down_s in zip(rounds.own_s, rounds.down_s):
            solved.append(best_round(own_s, rounds.work_cycles, down_s, rounds.rows, rounds.main_hz, BOUND_GAP))
            request.on_progress("samples", len(solved), solved[-1].round_s)
        self.lower_bound_s = float(np.mean([each.lower_bound_s for each in solved]))
        starts = [] if request.start is None else [request.start]
        self(np.array([*starts, *(each.cuts for each in solved)]))

    @property
    def evaluations(self) -> int:
        return self.tried

    def __call__(self, cuts: Array) -> Array:
        values_s = self.rounds.mean_s(cuts)
        self.tried += len(cuts)
        if values_s.min() < self.best_s:
            self.best, self.best_s = cuts[values_s.argmin()].copy(), float(values_s.min())
        return values_s

    def value_s(self, cuts: Array) -> float:
        """The mean round of one candidate [K]."""
        return float(self(cuts[None])[0])

    def population(self) -> Array:
        settings, rows = self.request.settings, self.rounds.rows
        shape = (settings.population - 2, len(rows))
        places = streams.stream(settings.seed, "cuts").integers(0, rows.sum(axis=1), shape)
        return np.array([self.best, scls(rows), *row_at(rows, places)])

    def first_descent(self) -> tuple[Array, float]:
        return self.descend(self.best, self.clock)

    def choice(self) -> CutChoice:
        late = self.best_s * (1 - self.request.settings.gap) > self.lower_bound_s and self.clock.over()
        round_s = self.rounds.round_s(self.best)
        return with_proof(self.best, round_s, self.lower_bound_s, self.request, self, self.clock, late)

    def descend(self, cuts: Array, clock: TimeLimit) -> tuple[Array, float]:
        """Make many changes at once where they help together, else one at a time, until none can help; returns the best cuts seen."""
        value_s, improved = self.value_s(cuts), True
        while improved and not clock.over():
            saved_s = value_s - optimistic(self.rounds, cuts)
            saved_s[np.arange(len(cuts)), cuts] = 0.0
            improved = False
            for trial in _together(cuts, saved_s):
                new_s = self.value_s(trial)
                if new_s < value_s * (1 - 1e-9):
                    cuts, value_s, improved = trial, new_s, True
                    break
            if not improved:
                cuts, value_s, improved = self._one_by_one(cuts, value_s, saved_s, clock)
        return self.best, self.best_s

    def _one_by_one(self, cuts: Array, value_s: float, saved_s: Array, clock: TimeLimit) -> tuple[Array, float, bool]:
        """Change one client's cut after the other, the most promising change first: (cuts, their seconds, any better?).

        A change that cannot help is not tried, unless another change was made before it.
        """
        improved, in_vain = False, 0
        for flat in np.argsort(-saved_s, axis=None, kind="stable"):
            k, cut = divmod(int(flat), saved_s.shape[1])
            if saved_s[k, cut] <= 1e-9 * value_s or clock.over() or (improved and in_vain >= PATIENCE):
                break
            trial = cuts.copy()
            trial[k] = cut
            new_s = self.value_s(trial)
            in_vain += 1
            if new_s < value_s * (1 - 1e-9):
                cuts, value_s, improved, in_vain = trial, new_s, True, 0
        return cuts, value_s, improved


def _together(cuts: Array, saved_s: Array) -> list[Array]:
    """Candidates that change many cuts: for all clients with a promising cut, for the most promising half, and so on."""
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


def optimistic(rounds: MeasuredRounds, cuts: Array) -> Array:
    """A lower bound on the mean round, in seconds, if client k of cuts [K] took another cut, [K, C].

    Infinite where the client cannot take the cut. Where a cut leaves less time than its work takes with the whole server,
    the client gets that time, which only helps.
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
    return np.where(rounds.rows, mean_s, np.inf)


def _sum_of_others(values: Array) -> Array:
    """The sum over all other clients, [S, K, 1] -> [S, K, 1]."""
    return values.sum(axis=1, keepdims=True) - values


def _most_of_others(values: Array) -> Array:
    """The maximum over all other clients, [S, K] -> [S, K, 1]; 0 where there are no others."""
    ranked = np.sort(np.concatenate([np.zeros_like(values[:, :1]), values], axis=1), axis=1)
    return np.where(values == ranked[:, -1:], ranked[:, -2:-1], ranked[:, -1:])[..., None]
