"""The stages of many cells, solved side by side by threads: compiled code lets them run at once.

Legend: N cells, K clients of a cell, I subchannels of a cell.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Lock
from types import TracebackType
from typing import Any, Self

import numpy as np

from hsfl.allocation import bandwidth
from hsfl.allocation.solving import StageAnswer, StageSolver, StopWhen, TimeLimit
from hsfl.allocation.stage import Stage
from hsfl.allocation.units import solve_in_own_units

Array = np.ndarray
LEAST_S = 0.02  # seconds that one cell gets, even when the time is over
ROUGH = 0.05  # the gap at which it is known well enough which cell takes longest


class CellStages:
    """Solves a stage of each cell by one solver. The time that is left is divided among the cells that have not begun."""

    def __init__(self, solve: StageSolver, threads: int) -> None:
        self.solve, self.threads = solve, threads
        self._pool = ThreadPoolExecutor(threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=kind is not None)

    def map(self, function: Callable[..., Any], *of: Iterable[Any]) -> list[Any]:
        """The function's value for each cell."""
        return list(self._pool.map(function, *of))

    def answers(
        self, stages: Sequence[Stage], shares: Sequence[Array | None], goal: StopWhen, clock: TimeLimit
    ) -> list[StageAnswer]:
        """Each stage to the goal, [N]. shares: to begin with, [K, I] each, where a turn before found some."""
        turn = _Turn(clock, len(stages), self.threads)
        return self.map(partial(self._answer, goal=goal, turn=turn), stages, shares)

    def longest_first(self, stages: Sequence[Stage], goal: StopWhen, clock: TimeLimit) -> list[StageAnswer]:
        """Stages that use nothing in common and end with the last cell, [N]: the longest T keeps the goal.

        The cell that takes longest is solved to the goal, and every other cell until it ends no later; where one cannot, it is the
        next to be solved.
        """
        found = self.answers(stages, [None] * len(stages), replace(goal, gap=max(goal.gap, ROUGH)), clock.part(0.5))
        solved = set[int]()
        while True:
            last = max(range(len(stages)), key=lambda index: found[index].T_s)
            bound_s = max(answer.lower_bound_s for answer in found)
            if goal.reached(found[last].T_s, bound_s) or clock.over() or last in solved:
                return found
            solved.add(last)
            self._improve(stages, found, [last], goal, clock.part(0.5))
            T_s = found[last].T_s
            later = [index for index, answer in enumerate(found) if answer.T_s > T_s]
            self._improve(stages, found, later, replace(goal, tau_s=T_s), clock)

    def _improve(
        self, stages: Sequence[Stage], found: list[StageAnswer], cells: Sequence[int], goal: StopWhen, clock: TimeLimit
    ) -> None:
        """Solve some cells further, from the answers that were found."""
        shares = [found[index].share for index in cells]
        for index, answer in zip(cells, self.answers([stages[index] for index in cells], shares, goal, clock)):
            found[index] = _better(found[index], answer)

    def _answer(self, stage: Stage, share: Array | None, goal: StopWhen, turn: "_Turn") -> StageAnswer:
        solve = self.solve
        if share is not None and solve is bandwidth.solve_stage:
            solve = partial(bandwidth.solve_stage, share=share)
        return solve_in_own_units(solve, stage, goal, TimeLimit(turn.next_s()))


class _Turn:
    """A turn of all cells within a time limit."""

    def __init__(self, clock: TimeLimit, num_cells: int, threads: int) -> None:
        self.clock, self.num_left, self.threads, self._lock = clock, num_cells, threads, Lock()

    def next_s(self) -> float:
        """The seconds that the next cell may take: an equal part of what is left, of all threads."""
        with self._lock:
            part, self.num_left = min(1.0, self.threads / self.num_left), self.num_left - 1
        return max(LEAST_S, part * self.clock.left_s())


def _better(before: StageAnswer, now: StageAnswer) -> StageAnswer:
    """The quicker of two answers of a stage, with the better of their bounds."""
    return replace(
        min(now, before, key=lambda answer: answer.T_s), lower_bound_s=max(before.lower_bound_s, now.lower_bound_s)
    )
