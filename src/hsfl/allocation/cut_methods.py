"""Which cut for which client: the methods that look for good cuts, for a radio and for measured links alike.

Legend: K clients, S samples, P candidates; a candidate is a cut for each client, [K].

A `Judge` values candidates by the mean over samples of their round. The methods ask it:

    descent     change cuts where the judge says that a change may help, from good starts and from kicks; the default
    ga          pymoo's genetic algorithm, as in the paper
    exhaustive  every candidate, for small fleets
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import numpy as np

from hsfl import rng as streams
from hsfl.allocation.answer import with_gap
from hsfl.allocation.solving import TimeLimit
from hsfl.errors import InputError

Array = np.ndarray
EXHAUSTIVE = 200_000  # candidates
OnProgress = Callable[
    [str, int, float], None
]  # is told what is counted, the count, and the best mean round so far in seconds


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
    """The cuts chosen, the exact mean of their rounds, and how far they can be from the best cuts at most."""

    cuts: Array  # [K]
    round_s: Array  # [S] with exact allocation
    mean_s: float
    lower_bound_s: float  # on the mean round, over all cuts
    gap: float
    method: str
    evaluations: int
    seconds: float
    timed_out: bool = False  # the time limit stopped the search: on a faster machine it may find other cuts


class CutRange(Protocol):
    """A fleet, as far as cuts are concerned: every client may take a cut from min_cut to its max_cut."""

    @property
    def min_cut(self) -> int: ...
    @property
    def max_cut(self) -> Array: ...  # [K]
    @property
    def num_clients(self) -> int: ...


class Judge(ABC):
    """Values candidates, and knows how to improve one."""

    fleet: CutRange
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
    def population(self, settings: CutSettings) -> Array:
        """The first candidates of the genetic algorithm, [population, K]."""

    @abstractmethod
    def first_descent(self, settings: CutSettings, clock: TimeLimit, on_progress: OnProgress) -> tuple[Array, float]:
        """Descend from good starts: (best cuts [K], their mean round in seconds)."""

    @abstractmethod
    def descend(self, cuts: Array, clock: TimeLimit) -> tuple[Array, float]:
        """Improve cuts [K] change by change: (cuts, their mean round in seconds)."""


def scls(fleet: CutRange) -> Array:
    """SCLS: the smallest max_cut for all clients, [K]."""
    return np.full(fleet.num_clients, fleet.max_cut.min())


def rcls(fleet: CutRange, rng: np.random.Generator) -> Array:
    """RCLS: a random feasible cut for each client, uniform, [K]."""
    return rng.integers(fleet.min_cut, fleet.max_cut + 1)


def single_cuts(fleet: CutRange) -> Array:
    """All candidates with the same cut for all clients, from min_cut to the largest cut that everyone can hold, [P, K]."""
    return np.arange(fleet.min_cut, fleet.max_cut.min() + 1)[:, None] * np.ones(fleet.num_clients, int)


def choose(judge: Judge, settings: CutSettings, clock: TimeLimit, on_progress: OnProgress | None = None) -> None:
    """Let a method try candidates; the judge remembers the best."""
    METHODS[settings.method](judge, settings, clock, on_progress or (lambda what, step, best: None))


def check_method(settings: CutSettings) -> None:
    """An error where there is no such method."""
    if settings.method not in METHODS:
        raise InputError(f"method is {settings.method!r}; choose {', '.join(METHODS)}")


def chosen(
    cuts: Array,
    round_s: Array,
    lower_bound_s: float,
    settings: CutSettings,
    judge: Judge,
    clock: TimeLimit,
    timed_out: bool,
) -> CutChoice:
    """The choice with its gap; round_s [S] are the exact rounds of cuts [K]."""
    mean_s = float(round_s.mean())
    bound_s, gap = with_gap(lower_bound_s, mean_s)
    return CutChoice(
        cuts, round_s, mean_s, bound_s, gap, settings.method, judge.evaluations, clock.seconds(), timed_out
    )


def _exhaustive(judge: Judge, settings: CutSettings, clock: TimeLimit, on_progress: OnProgress) -> None:
    """Every candidate, until the time is over."""
    low, high = judge.fleet.min_cut, judge.fleet.max_cut
    count = np.prod((high - low + 1).astype(float))
    if count > EXHAUSTIVE:
        raise InputError(f"allocation.cuts=exhaustive would try {count:.3g} cut vectors; choose descent or ga")
    everything = np.array(list(product(*(range(low, most + 1) for most in high))))
    for step, part in enumerate(np.array_split(everything, max(1, len(everything) // judge.at_a_time))):
        on_progress("cut vectors", step, float(judge(part).min()))
        if clock.over():
            break


def _descent(judge: Judge, settings: CutSettings, clock: TimeLimit, on_progress: OnProgress) -> None:
    """Descend from the best starts, then from kicks of the best cuts, until no kick helps."""
    rng = streams.stream(settings.seed, "kicks")
    best, best_s = judge.first_descent(settings, clock, on_progress)
    clock, failures = TimeLimit(min(judge.kicks_s, clock.left_s())), 0
    while failures < settings.patience and best_s * (1 - settings.gap) > judge.lower_bound_s and not clock.over():
        cuts, value_s = judge.descend(_kicked(judge, best, rng), clock)
        failures = 0 if value_s < best_s * (1 - settings.significant) else failures + 1
        if value_s < best_s:
            best, best_s = cuts, value_s
        on_progress("kicks", judge.evaluations, best_s)


def _kicked(judge: Judge, cuts: Array, rng: np.random.Generator) -> Array:
    """The cuts [K] with new random cuts for a few clients."""
    fleet, cuts = judge.fleet, cuts.copy()
    size = int(min(len(cuts), 2 + len(cuts) // 5, judge.most_kicked))
    some = rng.choice(len(cuts), size=size, replace=False)
    cuts[some] = rng.integers(fleet.min_cut, fleet.max_cut[some] + 1)
    return cuts


def _genetic(judge: Judge, settings: CutSettings, clock: TimeLimit, on_progress: OnProgress) -> None:
    """The paper's way: pymoo's genetic algorithm, which asks the same judge."""
    from hsfl.allocation.genetic import GeneticSettings, run  # here, because pymoo takes seconds to load

    ends = GeneticSettings(settings.seed, settings.patience, settings.significant, settings.max_generations)
    run(judge, judge.fleet.min_cut, judge.fleet.max_cut, judge.population(settings), ends, clock, on_progress)


METHODS: dict[str, Callable[[Judge, CutSettings, TimeLimit, OnProgress], None]] = {
    "descent": _descent,
    "ga": _genetic,
    "exhaustive": _exhaustive,
}
