"""Which cut for which client: the long-timescale problem, by sample average over S rounds.

Legend: K clients, C cuts, S samples, P candidates. minimise over cuts the mean over samples of the optimal round time.
Candidates are judged by local search (`samples.evaluate`), finalists by the exact solver, and the plan by a bound over
all cuts (`cutbound`).

    descent     change one client's cut at a time, in the order of savings that prices predict; the default
    ga          pymoo's genetic algorithm, as in the paper
    exhaustive  every cut vector, for small cases
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from hsfl import rng as streams
from hsfl.allocation.answer import with_gap
from hsfl.allocation.cutbound import bound_over_cuts, priced_cuts, warm_up_bound
from hsfl.allocation.fitness import Fitness
from hsfl.allocation.joint import exact, warm_up
from hsfl.allocation.partition import few
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.search import TimeLimit
from hsfl.errors import InputError

Array = np.ndarray
LEAST_S = 0.02  # for one exact round, however late it is
Progress = Callable[[str, int, float], None]  # what, step, best mean round so far


@dataclass(frozen=True)
class CutSettings:
    """How long and how hard to look. `patience` generations (or kicks) without `significant` improvement end it."""

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
class CutPlan:
    """Chosen cuts, their exact mean round, and how far from the best cuts they can be at most."""

    cuts: Array  # [K]
    round_s: Array  # [S] with exact allocation
    mean_s: float
    lower_bound_s: float  # on the mean, over all cuts
    gap: float
    method: str
    evaluations: int
    seconds: float
    timed_out: bool = False  # the search was stopped by its limit: on a faster machine it may find other cuts


def scls(scenario: Scenario) -> Array:
    """SCLS: the smallest max_cut, for all."""
    return np.full(scenario.num_clients, scenario.max_cut.min())


def rcls(scenario: Scenario, rng: np.random.Generator) -> Array:
    """RCLS: a random feasible cut for each client."""
    return rng.integers(scenario.min_cut, scenario.max_cut + 1)


def choose_cuts(
    samples: Sequence[Scenario], settings: CutSettings | None = None, progress: Progress | None = None
) -> CutPlan:
    """Cuts for these samples of one fleet, by a named method; tau_s is left aside, else dropping clients would look fast."""
    settings, samples = settings or CutSettings(), [replace(sample, tau_s=None) for sample in samples]
    if settings.method not in METHODS:
        raise InputError(f"method is {settings.method!r}; choose {', '.join(METHODS)}")
    limit_s = min(5.0, max(LEAST_S, settings.time_limit_s / (20 * max(1, len(samples)))))
    fitness = Fitness(samples, settings.threads, limit_s)
    warm_up(samples[0])
    if settings.bound:
        warm_up_bound(samples[0].sharing, not few(*samples[0].main_gain.shape))
    clock = TimeLimit(settings.time_limit_s)
    fitness.clock = clock.part(0.6)
    METHODS[settings.method](fitness, settings, fitness.clock, progress or (lambda what, step, best: None))
    timed_out = not fitness.has_time()
    if settings.bound and settings.method == "descent" and samples[0].sharing == "bandwidth":
        fitness.clock = clock.part(0.4)
        _follow_prices(samples, fitness, fitness.clock)
    cuts, round_s = _finalists(samples, fitness, settings, clock.part(0.5))
    mean_s = float(round_s.mean())
    bound_s = bound_over_cuts(samples, cuts, clock) if settings.bound else 0.0
    bound_s, gap = with_gap(bound_s, mean_s)
    return CutPlan(
        cuts, round_s, mean_s, bound_s, gap, settings.method, fitness.evaluations, clock.seconds(), timed_out
    )


def _follow_prices(samples: Sequence[Scenario], fitness: Fitness, clock: TimeLimit) -> None:
    """What clients would buy at the prices of the best cuts, again while that is better."""
    best = None
    while not clock.over() and (best is None or (best != fitness.best(1)[0]).any()):
        best = fitness.best(1)[0]
        fitness(priced_cuts(samples, best, clock))


def exact_rounds(samples: Sequence[Scenario], cuts: Array, gap: float = 1e-3, limit_s: float = 1.0) -> Array:
    """The optimal round of every sample [S]; where limit_s ends a proof, the best one found."""
    return np.array([exact(sample, cuts, gap=gap, time_limit_s=limit_s).round_s for sample in samples])


def _finalists(
    samples: Sequence[Scenario], fitness: Fitness, settings: CutSettings, clock: TimeLimit
) -> tuple[Array, Array]:
    """The best few by local search (fewer where time is short), judged exactly, each for its part of the time; where the time
    is over, a round is what the search found for it."""
    affordable = int(clock.limit_s / (5.0 * LEAST_S * len(samples)))
    best = fitness.best(max(1, min(settings.finalists, affordable)))
    limit_s = min(1.0, max(LEAST_S, clock.limit_s / (len(best) * len(samples))))
    rounds = [
        np.array(
            [
                found_s if clock.over() else exact(sample, cuts, gap=settings.gap, time_limit_s=limit_s).round_s
                for sample, found_s in zip(samples, fitness.rounds[tuple(cuts.tolist())])
            ]
        )
        for cuts in best
    ]
    index = int(np.argmin([r.mean() for r in rounds]))
    return best[index], rounds[index]


def _starts(fitness: Fitness, seed: int, count: int) -> Array:
    """SCLS, the cuts that are best for each client alone, and RCLS [count, K]."""
    rng, scenario = streams.stream(seed, "cuts"), fitness.scenario
    random = [rcls(scenario, rng) for _ in range(max(0, count - 3))]
    fixed = [scls(scenario), np.full(scenario.num_clients, scenario.min_cut), scenario.max_cut.copy()]
    return np.array((fixed + random)[: max(count, 1)])


def exhaustive(fitness: Fitness, settings: CutSettings, clock: TimeLimit, progress: Progress) -> None:
    """Every cut vector."""
    s = fitness.scenario
    count = np.prod((s.max_cut - s.min_cut + 1).astype(float))
    if count > 200_000:
        raise InputError(f"exhaustive would try {count:.3g} cut vectors; choose descent or ga")
    everything = np.array(list(product(*(s.feasible_cuts(k) for k in range(s.num_clients)))))
    for step, part in enumerate(np.array_split(everything, max(1, len(everything) // 500))):
        progress("cut vectors", step, float(fitness(part).min()))
        if clock.over():
            break


def descent(fitness: Fitness, settings: CutSettings, clock: TimeLimit, progress: Progress) -> None:
    """Steepest predicted change first, from the best starts; then kicks of a few clients until none helps."""
    rng = streams.stream(settings.seed, "kicks")
    starts = _starts(fitness, settings.seed, 12)
    order = np.argsort(fitness(starts), kind="stable")
    best, best_s = starts[order[0]], np.inf
    for start in starts[order[:2]]:
        cuts, value = _descend(fitness, start, clock)
        if value < best_s:
            best, best_s = cuts, value
        progress("starts", fitness.evaluations, best_s)
    failures = 0
    while failures < settings.patience and not clock.over():
        cuts, value = _descend(fitness, _kick(fitness, best, rng), clock)
        failures = 0 if value < best_s * (1 - settings.significant) else failures + 1
        if value < best_s:
            best, best_s = cuts, value
        progress("kicks", fitness.evaluations, best_s)


def _kick(fitness: Fitness, cuts: Array, rng: np.random.Generator) -> Array:
    """New random cuts for a few clients."""
    s, cuts = fitness.scenario, cuts.copy()
    some = rng.choice(len(cuts), size=min(len(cuts), 2 + len(cuts) // 5), replace=False)
    cuts[some] = rng.integers(s.min_cut, s.max_cut[some] + 1)
    return cuts


def _descend(fitness: Fitness, cuts: Array, clock: TimeLimit) -> tuple[Array, float]:
    """Change one client's cut at a time, in the order of predicted savings, until no prediction comes true."""
    value = float(fitness(cuts[None])[0])
    improved = True
    while improved and fitness.has_time() and not clock.over():
        improved = False
        saved = fitness.predict(cuts)
        saved[np.arange(len(cuts)), cuts] = -np.inf
        ranked = np.argsort(-saved, axis=None, kind="stable")
        together = _all_at_once(cuts, saved)
        if together is not None and fitness(together[None])[0] < value * (1 - 1e-9):
            cuts, value, improved = together, float(fitness(together[None])[0]), True
            continue
        for flat in ranked[: 2 * len(cuts)]:
            k, cut = divmod(int(flat), saved.shape[1])
            if saved[k, cut] < -0.02 * value:
                break
            trial = cuts.copy()
            trial[k] = cut
            new = float(fitness(trial[None])[0])
            if new < value * (1 - 1e-9):
                cuts, value, improved = trial, new, True
                break
    return cuts, value


def _all_at_once(cuts: Array, saved: Array) -> Array | None:
    """Everyone takes the cut predicted best for it, where that saves anything; None where nobody would move."""
    best = saved.argmax(axis=1)
    gain = saved[np.arange(len(cuts)), best]
    moving = gain > 1e-6
    return np.where(moving, best, cuts) if moving.sum() > 1 else None


def genetic(fitness: Fitness, settings: CutSettings, clock: TimeLimit, progress: Progress) -> None:
    """The paper's way: pymoo's GA on the same fitness, SCLS and RCLS in the first population."""
    from hsfl.allocation.genetic import run

    first = _starts(fitness, settings.seed, settings.population)
    run(fitness, first, settings, clock, progress)


METHODS: dict[str, Callable[[Fitness, CutSettings, TimeLimit, Progress], None]] = {
    "descent": descent,
    "ga": genetic,
    "exhaustive": exhaustive,
}
