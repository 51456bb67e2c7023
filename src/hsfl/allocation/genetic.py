"""pymoo's genetic algorithm over cut vectors: integers, vectorised fitness, stops when nothing significant improves."""

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

from hsfl.allocation.fitness import Fitness
from hsfl.allocation.search import TimeLimit

Array = np.ndarray


class _Cuts(Problem):
    def __init__(self, fitness: Fitness) -> None:
        s = fitness.scenario
        super().__init__(n_var=s.num_clients, n_obj=1, xl=np.full(s.num_clients, s.min_cut), xu=s.max_cut, vtype=int)
        self.fitness = fitness

    def _evaluate(self, x: Array, out: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        out["F"] = self.fitness(x.astype(np.int64))[:, None]


class _Redraw(Mutation):
    """Half of the mutations draw a new feasible cut, the others move it by one unit."""

    def _do(self, problem: Problem, x: Array, random_state: Any = None, **kwargs: Any) -> Array:
        rng = random_state if random_state is not None else np.random.default_rng()
        chance = rng.random(x.shape)
        fresh = rng.integers(problem.xl, problem.xu + 1, size=x.shape)
        near = np.clip(x + rng.choice([-1, 1], size=x.shape), problem.xl, problem.xu)
        rate = 1.0 / x.shape[1]
        return np.where(chance < rate / 2, fresh, np.where(chance < rate, near, x))


class _NoImprovement(Termination):
    """Ends after `patience` generations in which the best fell by less than a significant part."""

    def __init__(self, patience: int, significant: float, max_generations: int, clock: TimeLimit) -> None:
        super().__init__()
        self.patience, self.significant, self.max_generations, self.clock = (
            patience,
            significant,
            max_generations,
            clock,
        )
        self.best, self.stale, self.generations = np.inf, 0, 0

    def _update(self, algorithm: Any) -> float:
        best = float(algorithm.opt.get("F").min())
        self.generations += 1
        self.stale = 0 if best < self.best * (1 - self.significant) else self.stale + 1
        self.best = min(best, self.best)
        if self.generations >= self.max_generations or self.clock.over():
            return 1.0
        return min(1.0, self.stale / self.patience)


class _Report(Callback):
    def __init__(self, progress: Any) -> None:
        super().__init__()
        self.progress = progress

    def notify(self, algorithm: Any) -> None:
        self.progress("generation", algorithm.n_iter, float(algorithm.opt.get("F").min()))


def run(fitness: Fitness, first: Array, settings: Any, clock: TimeLimit, progress: Any) -> None:
    """Fill `fitness` with what the GA tries; the best is read from there."""
    algorithm = GA(
        pop_size=len(first),
        sampling=first,
        crossover=UX(prob=0.9),
        mutation=_Redraw(),
        eliminate_duplicates=DefaultDuplicateElimination(),
    )
    minimize(
        _Cuts(fitness),
        algorithm,
        _NoImprovement(settings.patience, settings.significant, settings.max_generations, clock),
        seed=settings.seed,
        callback=_Report(progress),
        verbose=False,
    )
