"""pymoo's genetic algorithm over cuts: whole numbers, many candidates at a time, an end where nothing improves.

Legend: K clients, P candidates. The variable of a client is the place of its cut among the rows that the client may take.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from pymoo.algorithms.soo.nonconvex.ga import GA
from pymoo.core.callback import Callback
from pymoo.core.duplicate import DefaultDuplicateElimination
from pymoo.core.mutation import Mutation
from pymoo.core.problem import Problem
from pymoo.core.termination import Termination
from pymoo.operators.crossover.ux import UX
from pymoo.optimize import minimize

from hsfl.allocation.stage.stage_answer import TimeLimit

Array = np.ndarray
Fitness = Callable[[Array], Array]  # mean rounds in seconds of places, [P, K] -> [P]


@dataclass(frozen=True)
class GeneticSettings:
    """When the algorithm ends: after `patience` generations in which the best mean round fell by less than `significant`, a fraction."""

    seed: int
    patience: int
    significant: float
    max_generations: int


class _Cuts(Problem):
    """The problem in pymoo's terms: a whole number for each client."""

    def __init__(self, fitness: Fitness, num_rows: Array) -> None:
        num_clients = len(num_rows)
        super().__init__(n_var=num_clients, n_obj=1, xl=np.zeros(num_clients, int), xu=num_rows - 1, vtype=int)
        self.fitness = fitness

    def _evaluate(self, x: Array, out: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        out["F"] = self.fitness(x.astype(np.int64))[:, None]


class _Redraw(Mutation):
    """Half of the mutations draw a new feasible cut, the others move a cut by one unit."""

    def _do(self, problem: Problem, x: Array, random_state: Any = None, **kwargs: Any) -> Array:
        rng = random_state if random_state is not None else np.random.default_rng()
        chance = rng.random(x.shape)
        fresh = rng.integers(problem.xl, problem.xu + 1, size=x.shape)
        near = np.clip(x + rng.choice([-1, 1], size=x.shape), problem.xl, problem.xu)
        rate = 1.0 / x.shape[1]
        return np.where(chance < rate / 2, fresh, np.where(chance < rate, near, x))


class _NoImprovement(Termination):
    """The end that the settings describe, or the clock's."""

    def __init__(self, settings: GeneticSettings, clock: TimeLimit) -> None:
        super().__init__()
        self.settings, self.clock = settings, clock
        self.best, self.stale, self.generations = np.inf, 0, 0

    def _update(self, algorithm: Any) -> float:
        best = float(algorithm.opt.get("F").min())
        self.generations += 1
        self.stale = 0 if best < self.best * (1 - self.settings.significant) else self.stale + 1
        self.best = min(best, self.best)
        if self.generations >= self.settings.max_generations or self.clock.over():
            return 1.0
        return min(1.0, self.stale / self.settings.patience)


class _Report(Callback):
    """Tells the caller the best of every generation."""

    def __init__(self, on_progress: Callable[[str, int, float], None]) -> None:
        super().__init__()
        self.on_progress = on_progress

    def notify(self, algorithm: Any) -> None:
        self.on_progress("generation", algorithm.n_iter, float(algorithm.opt.get("F").min()))


def run_genetic(
    fitness: Fitness,
    num_rows: Array,
    first_population: Array,
    settings: GeneticSettings,
    clock: TimeLimit,
    on_progress: Callable[[str, int, float], None],
) -> None:
    """Ask `fitness` for what the algorithm tries, from the places first_population [P, K] on; the caller remembers the best.

    num_rows: [K], how many rows each client may take. The population and its size come from `search.Judge.population`.
    """
    algorithm = GA(
        pop_size=len(first_population),
        sampling=first_population,
        crossover=UX(prob=0.9),
        mutation=_Redraw(),
        eliminate_duplicates=DefaultDuplicateElimination(),
    )
    minimize(
        _Cuts(fitness, num_rows),
        algorithm,
        _NoImprovement(settings, clock),
        seed=settings.seed,
        callback=_Report(on_progress),
        verbose=False,
    )
