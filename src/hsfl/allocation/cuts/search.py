"""Which cut for which client: the methods that look for good cuts, for a radio and for measured links alike.

Legend: K clients, C rows of the cost table, S samples, P candidates; a candidate is a row for each client, [K]. A row is a cut.

A method is one function from a `CutRequest` to a `CutChoice`. It asks the request's rounds for a `Judge`, which values candidates by the
mean over samples of their round and knows how to improve one:

    descent     change cuts where the judge says that a change may help, from good starts and from kicks; the default
    ga          pymoo's genetic algorithm, as in the paper
    exhaustive  every candidate, for small fleets

Rules choose without a search: `random`, `smallest` and `single`. Large fleets answer to prices (`large_fleets`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from hsfl import rng as streams
from hsfl.allocation.answer import with_gap
from hsfl.allocation.stage.stage_answer import TimeLimit
from hsfl.errors import InputError

Array = np.ndarray
EXHAUSTIVE = 200_000  # candidates
OnProgress = Callable[[str, int, float], None]  # (what is counted, the count, the best mean round so far in seconds)


@dataclass(frozen=True)
class CutSettings:
    """How long and how hard to look for cuts.

    method: a name in METHODS. patience: a method ends after so many generations (or kicks) without an improvement by the
    relative amount `significant`. finalists: candidates that the exact solver values in the end. gap: of the exact solver.
    bound: whether to compute a lower bound over all cuts.
    """

    method: str = "descent"
    seed: int = 0
    population: int = 50
    patience: int = 10
    significant: float = 1e-4
    max_generations: int = 500
    finalists: int = 3
    threads: int = 1
    time_limit_s: float = 60.0
    gap: float = 1e-3
    bound: bool = True


@dataclass(frozen=True)
class CutChoice:
    """The cuts chosen, the exact mean of their rounds, and how far they can be from the best cuts at most.

    A rule values no rounds: round_s is empty then, and mean_s is nan.
    """

    cuts: Array  # [K]
    round_s: Array = field(default_factory=lambda: np.zeros(0))  # [S] with exact allocation
    mean_s: float = math.nan
    lower_bound_s: float = 0.0  # on the mean round, over all cuts
    gap: float = 1.0
    method: str = "rule"
    evaluations: int = 0
    seconds: float = 0.0
    timed_out: bool = False  # the time limit stopped the search: on a faster machine it may find other cuts


def ignore_progress(what: str, step: int, best_s: float) -> None:
    """The default of `on_progress`."""


@dataclass(frozen=True)
class CutRequest:
    """What a method chooses cuts for. A method may give client k any row r with rows[k, r], and no other."""

    rows: Array  # [K, C] bool: the rows of the cost table that each client may take
    rounds: "SampledRounds | None" = None  # to value candidates on; None where a rule values none
    settings: CutSettings = field(default_factory=CutSettings)
    start: Array | None = None  # [K] good cuts to begin with, where some are known
    on_progress: OnProgress = ignore_progress

    def judge(self) -> "Judge":
        """What values this request's candidates."""
        assert self.rounds is not None, "a search needs rounds"
        return self.rounds.judge(self)


class SampledRounds(ABC):
    """Sampled rounds of one fleet."""

    @abstractmethod
    def judge(self, request: CutRequest) -> "Judge":
        """A judge of candidates, whose clock runs from now on."""

    @abstractmethod
    def mean_s(self, cuts: Array) -> Array:
        """The mean rounds of a few candidates in seconds, [P, K] -> [P], without a time limit."""


class Judge(ABC):
    """Values candidates, remembers the best, and knows how to improve one."""

    clock: TimeLimit  # of the search
    at_a_time = 500  # candidates between looks at the clock
    most_kicked: float = math.inf  # clients that one kick changes at most
    kicks_s = math.inf  # seconds for all kicks together
    lower_bound_s = 0.0  # on the mean round: kicks end within `gap` of it

    @property
    @abstractmethod
    def evaluations(self) -> int:
        """How many candidates were valued."""

    @abstractmethod
    def __call__(self, cuts: Array) -> Array:
        """The mean rounds in seconds of candidates, [P, K] -> [P]."""

    @abstractmethod
    def population(self) -> Array:
        """The first candidates of the genetic algorithm, [population, K]."""

    @abstractmethod
    def first_descent(self) -> tuple[Array, float]:
        """Descend from good starts: (best cuts [K], their mean round in seconds)."""

    @abstractmethod
    def descend(self, cuts: Array, clock: TimeLimit) -> tuple[Array, float]:
        """Improve cuts [K] change by change: (cuts, their mean round in seconds)."""

    @abstractmethod
    def choice(self) -> CutChoice:
        """The best of all candidates that were valued, with its exact rounds and the bound."""


class MeanJudge(Judge):
    """A judge for rounds whose exact mean is quick: it asks `rounds.mean_s` for every candidate."""

    def __init__(self, rounds: SampledRounds, request: CutRequest) -> None:
        self.clock, self.request, self.rounds = TimeLimit(request.settings.time_limit_s), request, rounds
        self.tried, self.best, self.best_s = 0, scls(request.rows), np.inf

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
        settings, rows = self.request.settings, self.request.rows
        shape = (settings.population - 2, len(rows))
        places = streams.stream(settings.seed, "cuts").integers(0, rows.sum(axis=1), shape)
        return np.array([self.best, scls(rows), *row_at(rows, places)])


def row_at(rows: Array, places: Array) -> Array:
    """The rows [..., K] at places [..., K] among those that each client may take. rows: [K, C] bool."""
    return np.argsort(~rows, axis=1, kind="stable")[np.arange(len(rows)), places]


def place_of(rows: Array, cuts: Array) -> Array:
    """The places [..., K] of cuts [..., K] among the rows that each client may take: `row_at` gives the cuts back."""
    return (np.cumsum(rows, axis=1) - 1)[np.arange(len(rows)), cuts]


def scls(rows: Array) -> Array:
    """SCLS: the deepest cut that every client may take, for all clients, [K]; where there is none, the deepest of each client."""
    common = np.flatnonzero(rows.all(axis=0))
    return np.full(len(rows), common[-1]) if len(common) else row_at(rows, rows.sum(axis=1) - 1)


def rcls(rows: Array, rng: np.random.Generator) -> Array:
    """RCLS: a random feasible cut for each client, uniform, [K]."""
    return row_at(rows, rng.integers(0, rows.sum(axis=1)))


def single_cuts(rows: Array) -> Array:
    """All candidates with the same cut for all clients, [P, K]."""
    return np.flatnonzero(rows.all(axis=0))[:, None] * np.ones(len(rows), int)


def random_cuts(request: CutRequest) -> CutChoice:
    """A random cut for each client."""
    return CutChoice(rcls(request.rows, streams.stream(request.settings.seed, "rcls")))


def _smallest_cut(request: CutRequest) -> CutChoice:
    """The smallest max_cut, for all clients."""
    return CutChoice(scls(request.rows))


def best_single_cut(request: CutRequest) -> CutChoice:
    """The single cut, the same for all clients, with the shortest mean round."""
    assert request.rounds is not None, "single cuts are tried on rounds"
    candidates = single_cuts(request.rows)
    if not len(candidates):
        raise InputError(
            "no row of the cost table is legal for all clients (clients.rows); give each client a row of its own"
        )
    return CutChoice(candidates[int(np.argmin(request.rounds.mean_s(candidates)))])


def search_cuts(request: CutRequest) -> CutChoice:
    """The cuts that the method of the settings finds."""
    name = request.settings.method
    if name not in METHODS:
        raise InputError(f"method is {name!r}; choose {', '.join(METHODS)}")
    return METHODS[name](request)


def with_proof(
    cuts: Array, round_s: Array, lower_bound_s: float, request: CutRequest, judge: Judge, clock: TimeLimit, timed_out: bool
) -> CutChoice:  # fmt: skip
    """The choice of a judge with its gap; round_s [S] are the exact rounds of cuts [K]. clock: of the whole search."""
    mean_s = float(round_s.mean())
    bound_s, gap = with_gap(lower_bound_s, mean_s)
    method = request.settings.method
    return CutChoice(cuts, round_s, mean_s, bound_s, gap, method, judge.evaluations, clock.seconds(), timed_out)


def _exhaustive(request: CutRequest) -> CutChoice:
    """Every candidate, until the time is over."""
    count = np.prod(request.rows.sum(axis=1).astype(float))
    if count > EXHAUSTIVE:
        raise InputError(f"allocation.cuts=exhaustive would try {count:.3g} cut vectors; choose descent or ga")
    judge = request.judge()
    candidates = np.array(list(product(*map(np.flatnonzero, request.rows))))
    for step, block in enumerate(np.array_split(candidates, max(1, len(candidates) // judge.at_a_time))):
        request.on_progress("cut vectors", step, float(judge(block).min()))
        if judge.clock.over():
            break
    return judge.choice()


def descent(request: CutRequest) -> CutChoice:
    """Descend from the best starts, then from kicks of the best cuts, until no kick helps."""
    judge, settings = request.judge(), request.settings
    rng = streams.stream(settings.seed, "kicks")
    best, best_s = judge.first_descent()
    clock, failures = TimeLimit(min(judge.kicks_s, judge.clock.left_s())), 0
    while failures < settings.patience and best_s * (1 - settings.gap) > judge.lower_bound_s and not clock.over():
        cuts, value_s = judge.descend(_kicked(request.rows, judge.most_kicked, best, rng), clock)
        failures = 0 if value_s < best_s * (1 - settings.significant) else failures + 1
        if value_s < best_s:
            best, best_s = cuts, value_s
        request.on_progress("kicks", judge.evaluations, best_s)
    return judge.choice()


def _kicked(rows: Array, most_kicked: float, cuts: Array, rng: np.random.Generator) -> Array:
    """The cuts [K] with new random cuts for a few clients, at most `most_kicked`."""
    cuts = cuts.copy()
    size = int(min(len(cuts), 2 + len(cuts) // 5, most_kicked))
    kicked = rng.choice(len(cuts), size=size, replace=False)
    cuts[kicked] = rcls(rows[kicked], rng)
    return cuts


def _genetic(request: CutRequest) -> CutChoice:
    """The paper's way: pymoo's genetic algorithm, which asks the same judge."""
    from hsfl.allocation.cuts.genetic import GeneticSettings, run_genetic  # here, because pymoo takes seconds to load

    judge, settings, rows = request.judge(), request.settings, request.rows
    ends = GeneticSettings(settings.seed, settings.patience, settings.significant, settings.max_generations)
    first = place_of(rows, judge.population())
    run_genetic(
        lambda places: judge(row_at(rows, places)), rows.sum(axis=1), first, ends, judge.clock, request.on_progress
    )
    return judge.choice()


METHODS: dict[str, Callable[[CutRequest], CutChoice]] = {
    "descent": descent,
    "ga": _genetic,
    "exhaustive": _exhaustive,
}
RULES_FOR_CUTS: dict[str, Callable[[CutRequest], CutChoice]] = {  # by the names in `policy_table`
    "random": random_cuts,
    "smallest": _smallest_cut,
    "single": best_single_cut,
    "optimised": search_cuts,
}
