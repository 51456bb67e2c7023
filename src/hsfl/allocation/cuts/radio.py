"""Cuts for a radio: the long-timescale problem, by sample average over S rounds.

Legend: K clients, I subchannels, C cuts, S samples, P candidates. Minimise over cuts the mean over samples of the optimal round.
Candidates are valued by local search and remembered (`Fitness`), finalists by the exact solver, and the choice by a bound over all
cuts (`bound`). The methods are those of `search`, which ask a `RadioJudge`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from hsfl import rng as streams
from hsfl.allocation.cuts import packed_samples
from hsfl.allocation.cuts.bound import LEAST_S, bound_over_cuts, priced_cuts, warm_up_bound
from hsfl.allocation.cuts.search import (
    CutChoice,
    CutRequest,
    CutSettings,
    Judge,
    OnProgress,
    SampledRounds,
    ignore_progress,
    rcls,
    row_at,
    scls,
    with_proof,
)
from hsfl.allocation.exact import exact, warm_up
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.stage.stage_answer import TimeLimit
from hsfl.allocation.stage.subset_dp import few_subchannels
from hsfl.errors import InputError

Array = np.ndarray
STARTS = 12  # candidates that are valued before the descent; the two best of them are its starts


def radio_request(
    samples: Sequence[Scenario], settings: CutSettings | None = None, on_progress: OnProgress = ignore_progress
) -> CutRequest:
    """The request for cuts on samples of one fleet, which differ in gains and speeds.

    tau_s of the samples is left aside: if clients could be dropped, dropping them would look fast.
    """
    if not samples:
        raise InputError("samples is empty; give at least one scenario to choose cuts on")
    rounds = RadioRounds(tuple(replace(sample, tau_s=None) for sample in samples))
    return CutRequest(samples[0].rows, rounds, settings or CutSettings(), on_progress=on_progress)


# --- The mean round of candidates


class Fitness:
    """Mean rounds of candidates in seconds, [P, K] -> [P]: by local search where subchannels are exclusive, by shares to
    0.5 % where bands are shared. `limit_s`: seconds for one sample of shared bands.
    """

    def __init__(self, scenarios: Sequence[Scenario], threads: int = 1, limit_s: float = 5.0) -> None:
        self.samples = packed_samples.pack_samples(scenarios)
        _compile()
        self.scenarios = list(scenarios)
        self.scenario = scenarios[0]
        self.threads = threads
        self.limit_s = limit_s
        self.evaluations = 0
        self.clock = TimeLimit(np.inf)  # without time left, a candidate is not valued: its round is infinite
        self.pace_s = 0.0  # seconds that a candidate took the last time
        self.known: dict[tuple[int, ...], float] = {}
        self.rounds: dict[tuple[int, ...], Array] = {}  # [S] of each known candidate
        shape = (2, len(scenarios), self.scenario.num_subchannels)
        self.owners = np.full(shape, -1)
        if self.scenario.sharing == "exclusive":
            start = self.scenario.rows.argmax(axis=1)  # the first that each client may take
            packed_samples.warm_owners(self.samples, start, self.owners)

    def __call__(self, cuts: Array) -> Array:
        rows = [tuple(row) for row in np.asarray(cuts, np.int64).tolist()]
        new = list(dict.fromkeys(row for row in rows if row not in self.known))
        at_once = 2 * self.threads if self.scenario.sharing == "exclusive" else 1
        for first in range(0, len(new), at_once):
            if self.known and not self.has_time():
                break
            batch, began_s = new[first : first + at_once], self.clock.seconds()
            round_s = self._evaluate(np.array(batch, np.int64))
            self.evaluations += len(batch)
            self.known.update(zip(batch, round_s.mean(axis=1).tolist(), strict=True))
            self.rounds.update(zip(batch, round_s, strict=True))
            self.pace_s = (self.clock.seconds() - began_s) / len(batch)
        return np.array([self.known.get(row, np.inf) for row in rows])

    def has_time(self) -> bool:
        """Whether the clock leaves time for another candidate."""
        return self.clock.left_s() > self.pace_s

    def _evaluate(self, cuts: Array) -> Array:
        if self.scenario.sharing == "exclusive":
            return packed_samples.evaluate_all(self.samples, cuts, self.owners, self.threads)
        return np.array(
            [[exact(s, c, gap=5e-3, time_limit_s=self.limit_s).round_s for s in self.scenarios] for c in cuts]
        )

    def predict(self, cuts: Array) -> Array:
        """About how many seconds another cut of one client of cuts [K] would save, [K, C], also for cuts that it may not take."""
        shares = np.zeros((0, 0, 0, 0)) if self.scenario.sharing == "exclusive" else self._shares(cuts)
        return packed_samples.predict(self.samples, cuts, self.owners, shares)

    def _shares(self, cuts: Array) -> Array:
        """Shares of both stages for cuts [K], [2, S, K, I]."""
        answers = [exact(s, cuts, gap=5e-3, time_limit_s=self.limit_s) for s in self.scenarios]
        return np.stack([[a.share for a in answers], [a.edge_down_share for a in answers]])

    def best(self, count: int) -> list[Array]:
        """The best candidates [K] that were valued, from the best, all different."""
        ranked = sorted(self.known, key=lambda row: (self.known[row], row))
        return [np.array(row) for row in ranked[:count]]


@cache
def _compile() -> None:
    """Compile the functions of `packed_samples` (or load them) before any clock runs."""
    tiny = packed_samples.pack_samples([random_scenario(np.random.default_rng(0), 2, 2)])
    cuts, owners, none = np.ones((1, 2), np.int64), np.full((2, 1, 2), -1), np.zeros((0, 0, 0, 0))
    packed_samples.warm_owners(tiny, cuts[0], owners)
    packed_samples.evaluate_all(tiny, cuts, owners)
    packed_samples.predict(tiny, cuts[0], owners, none)


# --- Rounds and their judge


@dataclass(frozen=True)
class RadioRounds(SampledRounds):
    """Sampled rounds over a radio."""

    samples: tuple[Scenario, ...]

    def judge(self, request: CutRequest) -> "RadioJudge":
        return RadioJudge(self.samples, request)

    def mean_s(self, cuts: Array) -> Array:
        return Fitness(self.samples)(cuts)


class RadioJudge(Judge):
    """Values candidates by `Fitness`. What a change of one cut would save is predicted from prices, not proven."""

    def __init__(self, samples: Sequence[Scenario], request: CutRequest) -> None:
        self.samples, self.request, settings = samples, request, request.settings
        limit_s = min(5.0, max(LEAST_S, settings.time_limit_s / (20 * max(1, len(samples)))))
        self.fitness = Fitness(samples, settings.threads, limit_s)
        warm_up(samples[0])
        if settings.bound:
            warm_up_bound(samples[0].sharing, not few_subchannels(*samples[0].main_gain.shape))
        self.whole = TimeLimit(settings.time_limit_s)  # of search, finalists and bound
        self.clock = self.fitness.clock = self.whole.part(0.6)

    @property
    def evaluations(self) -> int:
        return self.fitness.evaluations

    def __call__(self, cuts: Array) -> Array:
        return self.fitness(cuts)

    def value_s(self, cuts: Array) -> float:
        """The mean round of one candidate [K]."""
        return float(self.fitness(cuts[None])[0])

    def population(self) -> Array:
        return first_candidates(self.request, self.request.settings.population)

    def first_descent(self) -> tuple[Array, float]:
        starts = first_candidates(self.request, STARTS)
        if self.request.start is not None:
            starts = np.concatenate([self.request.start[None], starts])
        order = np.argsort(self(starts), kind="stable")
        best, best_s = starts[order[0]], np.inf
        for start in starts[order[:2]]:
            cuts, value_s = self.descend(start, self.clock)
            if value_s < best_s:
                best, best_s = cuts, value_s
            self.request.on_progress("starts", self.evaluations, best_s)
        return best, best_s

    def descend(self, cuts: Array, clock: TimeLimit) -> tuple[Array, float]:
        """All promising changes at once, else one change, in the order of predicted savings, until no prediction holds."""
        value_s, improved = self.value_s(cuts), True
        while improved and self.fitness.has_time() and not clock.over():
            improved = False
            saved_s = np.where(self.request.rows, self.fitness.predict(cuts), -np.inf)
            saved_s[np.arange(len(cuts)), cuts] = -np.inf
            for trial in (*_all_at_once(cuts, saved_s), *_one_by_one(cuts, saved_s, -0.02 * value_s)):
                new_s = self.value_s(trial)
                if new_s < value_s * (1 - 1e-9):
                    cuts, value_s, improved = trial, new_s, True
                    break
        return cuts, value_s

    def choice(self) -> CutChoice:
        samples, fitness, settings = self.samples, self.fitness, self.request.settings
        timed_out = not fitness.has_time()
        if settings.bound and settings.method == "descent" and samples[0].sharing == "bandwidth":
            fitness.clock = self.whole.part(0.4)
            _follow_prices(samples, fitness, self.request.rows)
        cuts, round_s = _best_finalist(samples, fitness, settings, self.whole.part(0.5))
        bound_s = bound_over_cuts(samples, cuts, self.whole, self.request.rows) if settings.bound else 0.0
        return with_proof(cuts, round_s, bound_s, self.request, self, self.whole, timed_out)


def first_candidates(request: CutRequest, count: int) -> Array:
    """SCLS, the smallest cut of each client, the largest cut that each client can hold, and RCLS for the others, [count, K]."""
    rows, rng = request.rows, streams.stream(request.settings.seed, "cuts")
    random = [rcls(rows, rng) for _ in range(max(0, count - 3))]
    fixed = [scls(rows), row_at(rows, np.zeros(len(rows), int)), row_at(rows, rows.sum(axis=1) - 1)]
    return np.array((fixed + random)[: max(count, 1)])


def _follow_prices(samples: Sequence[Scenario], fitness: Fitness, rows: Array) -> None:
    """Try the cuts that clients would buy at the prices of the best cuts, again and again while that gives better cuts."""
    best = None
    while not fitness.clock.over() and (best is None or (best != fitness.best(1)[0]).any()):
        best = fitness.best(1)[0]
        fitness(priced_cuts(samples, best, fitness.clock, rows))


def _best_finalist(
    samples: Sequence[Scenario], fitness: Fitness, settings: CutSettings, clock: TimeLimit
) -> tuple[Array, Array]:
    """The best few candidates (fewer where time is short) solved exactly: (best cuts [K], their rounds [S]).

    Where the time is over, a round is as long as the search found it.
    """
    affordable = int(clock.limit_s / (5.0 * LEAST_S * len(samples)))
    best = fitness.best(max(1, min(settings.finalists, affordable)))
    limit_s = min(1.0, max(LEAST_S, clock.limit_s / (len(best) * len(samples))))

    def round_s(sample: Scenario, cuts: Array, valued_s: float) -> float:
        return valued_s if clock.over() else exact(sample, cuts, gap=settings.gap, time_limit_s=limit_s).round_s

    valued = [(cuts, fitness.rounds[tuple(cuts.tolist())]) for cuts in best]
    rounds = [np.array([round_s(sample, cuts, s) for sample, s in zip(samples, valued_s)]) for cuts, valued_s in valued]
    index = int(np.argmin([r.mean() for r in rounds]))
    return best[index], rounds[index]


def _all_at_once(cuts: Array, saved_s: Array) -> list[Array]:
    """The candidate in which every client whose best cut would save time takes that cut; none where at most one client would."""
    best = saved_s.argmax(axis=1)
    moving = saved_s[np.arange(len(cuts)), best] > 1e-6
    return [np.where(moving, best, cuts)] if moving.sum() > 1 else []


def _one_by_one(cuts: Array, saved_s: Array, least_s: float) -> list[Array]:
    """The 2 K most promising candidates that change one client's cut; none that is predicted to save less than least_s."""
    trials = []
    for flat in np.argsort(-saved_s, axis=None, kind="stable")[: 2 * len(cuts)]:
        k, cut = divmod(int(flat), saved_s.shape[1])
        if saved_s[k, cut] < least_s:
            break
        trial = cuts.copy()
        trial[k] = cut
        trials.append(trial)
    return trials
