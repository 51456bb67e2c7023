"""A round of several cells: every cell has its own radio, all cells share the main server's cycles.

Legend: N cells, K clients of a cell, I subchannels of a cell, T the seconds of training. A round is the maximum over all cells of
training, plus the maximum over all cells of distribution. Distribution uses nothing in common. Training is solved in turns:

1. each cell by itself, with its part of the cycles: shares, and a lower bound on the cell's T for this part;
2. all cells with these shares: the common T and the parts that keep it, by bisection (`divide_cycles`).

*The bound.* Whatever the division, some cell gets at most its part of ours, since parts sum to the same cycles. That cell needs at
least its lower bound, so the least of the cells' bounds bounds the joint problem; a cell that needs no cycles bounds it by itself.
At the common T all cells end together, so the least of their bounds is as near as the cells' own proofs are.

The stages of the cells are solved side by side by threads (`CellStages`): compiled code lets threads run at once.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from threading import Lock
from types import TracebackType
from typing import Any, Self

import numpy as np

from hsfl.allocation.answer import Allocation, SolveStatus, alone_bound_s, holds, with_gap, within_gap
from hsfl.allocation.divide_cycles import Cell, divide_cycles
from hsfl.allocation.drop_at_tau import DECIDED, keep_within_tau_in_cell
from hsfl.allocation.exact import assemble, distribution_alone, exact, stage_solver, warm_up
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.stage import shared_bands
from hsfl.allocation.stage.client_prices import solve_shares
from hsfl.allocation.stage.scaling import solve_in_own_units
from hsfl.allocation.stage.stage import Stage, distribution_stage, stage_of_clients, training_stage
from hsfl.allocation.stage.stage_answer import StageAnswer, StageSolver, StopWhen, TimeLimit
from hsfl.errors import InputError

Array = np.ndarray
LEAST_S = 0.02  # seconds that one cell gets, even when the time is over
ROUGH = 0.05  # the gap at which it is known well enough which cell takes longest


class CellStages:
    """Solves a stage of each cell by one solver, side by side in threads. Cells that have not begun divide the time that is left."""

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
        """Each stage to the goal, [N]. shares: to begin with, [K, I] each, where an earlier turn gave them."""
        turn = _Turn(clock, len(stages), self.threads)
        return self.map(partial(self._answer, goal=goal, turn=turn), stages, shares)

    def longest_first(self, stages: Sequence[Stage], goal: StopWhen, clock: TimeLimit) -> list[StageAnswer]:
        """Stages that use nothing in common and end with the last cell, [N]: the longest T keeps the goal.

        The cell that takes longest is solved to the goal, and every other cell until it ends no later; where one cannot, it is the
        next to be solved.
        """
        answers = self.answers(stages, [None] * len(stages), replace(goal, gap=max(goal.gap, ROUGH)), clock.part(0.5))
        solved = set[int]()
        while True:
            last = max(range(len(stages)), key=lambda index: answers[index].T_s)
            bound_s = max(answer.lower_bound_s for answer in answers)
            if goal.reached(answers[last].T_s, bound_s) or clock.over() or last in solved:
                return answers
            solved.add(last)
            self._improve(stages, answers, [last], goal, clock.part(0.5))
            T_s = answers[last].T_s
            later = [index for index, answer in enumerate(answers) if answer.T_s > T_s]
            self._improve(stages, answers, later, replace(goal, tau_s=T_s), clock)

    def _improve(
        self,
        stages: Sequence[Stage],
        answers: list[StageAnswer],
        cells: Sequence[int],
        goal: StopWhen,
        clock: TimeLimit,
    ) -> None:
        """Solve some cells further, from the answers so far."""
        shares = [answers[index].share for index in cells]
        for index, answer in zip(cells, self.answers([stages[index] for index in cells], shares, goal, clock)):
            answers[index] = _better(answers[index], answer)

    def _answer(self, stage: Stage, share: Array | None, goal: StopWhen, turn: "_Turn") -> StageAnswer:
        solve = self.solve
        if share is not None and solve is shared_bands.solve_shared:
            solve = partial(shared_bands.solve_shared, share=share)
        return solve_in_own_units(solve, stage, goal, TimeLimit(turn.next_s()))


class _Turn:
    """A turn of all cells within a time limit."""

    def __init__(self, clock: TimeLimit, num_cells: int, threads: int) -> None:
        self.clock, self.num_left, self.threads, self._lock = clock, num_cells, threads, Lock()

    def next_s(self) -> float:
        """The seconds that the next cell may take: an equal part of what is left, of all threads."""
        with self._lock:
            fraction, self.num_left = min(1.0, self.threads / self.num_left), self.num_left - 1
        return max(LEAST_S, fraction * self.clock.left_s())


def _better(earlier: StageAnswer, later: StageAnswer) -> StageAnswer:
    """The quicker of two answers of a stage, with the better of their bounds."""
    return replace(
        min(later, earlier, key=lambda answer: answer.T_s),
        lower_bound_s=max(earlier.lower_bound_s, later.lower_bound_s),
    )


PASSES = 12  # turns of shares and division, at most
INSIDE = 1.0 - 1e-12  # factor on a bound, since the parts sum to the whole only to rounding


@dataclass(frozen=True)
class CellsAnswer:
    """What every cell gives its clients. The bound is that of the joint problem; the bounds of single cells say nothing."""

    cells: tuple[Allocation, ...]  # [N]
    cell_hz: Array  # [N] of the main server's cycles
    status: SolveStatus
    round_s: float
    lower_bound_s: float
    gap: float
    seconds: float
    training_bound_s: float = 0.0  # the part of lower_bound_s that is proven for training alone

    @classmethod
    def of_one(cls, allocation: Allocation, main_hz: float) -> "CellsAnswer":
        """The answer where there is one cell, which has all cycles."""
        proven = (
            allocation.status,
            allocation.round_s,
            allocation.lower_bound_s,
            allocation.gap,
            allocation.seconds,
            allocation.training_bound_s,
        )
        return cls((allocation,), np.array([float(main_hz)]), *proven)


@dataclass(frozen=True)
class Training:
    """The training of all cells: a common T, its bound, and each cell's cycles and shares."""

    T_s: float
    lower_bound_s: float
    cell_hz: Array  # [N]
    shares: tuple[Array, ...]  # [K, I] of each cell


def solve_cells(
    scenarios: Sequence[Scenario], cuts: Sequence[Array], gap: float, time_limit_s: float, threads: int = 2
) -> CellsAnswer:
    """Allocate a round of cells that have clients, each with cuts [K], to a relative gap or a time limit in seconds.

    Every scenario has the whole main server in main_hz, and a radio of its own. Where T is above tau_s, each cell keeps clients for
    the part of the cycles that it has at the common T: the cheapest price per sample first.
    """
    _check(scenarios)
    cuts = [scenario.check_cuts(cell_cuts) for scenario, cell_cuts in zip(scenarios, cuts, strict=True)]
    if len(scenarios) == 1:
        return CellsAnswer.of_one(exact(scenarios[0], cuts[0], gap, time_limit_s), scenarios[0].main_hz)
    _compile()
    for scenario in scenarios:
        warm_up(scenario)
    stages = [training_stage(scenario, cell_cuts) for scenario, cell_cuts in zip(scenarios, cuts)]
    solve, main_hz, tau_s = stage_solver(scenarios[0]), float(scenarios[0].main_hz), scenarios[0].tau_s
    clock, kept = TimeLimit(time_limit_s), [np.ones(scenario.num_clients, bool) for scenario in scenarios]
    with CellStages(solve, threads) as cells:
        training = _train_cells(stages, main_hz, cells, StopWhen(0.9 * gap), clock.part(0.6))
        # Between the bounds it is not known yet whether all clients can keep tau_s.
        if tau_s is not None and training.lower_bound_s <= tau_s < training.T_s:
            goal = StopWhen(min(gap, DECIDED), tau_s=tau_s)
            decided = _train_cells(stages, main_hz, cells, goal, clock.part(0.5))
            proven_s = max(training.lower_bound_s, decided.lower_bound_s)
            training = replace(min(training, decided, key=lambda answer: answer.T_s), lower_bound_s=proven_s)
        if tau_s is not None and training.T_s > tau_s:
            cell_stages = [stage._replace(hz=max(float(hz), 1.0)) for stage, hz in zip(stages, training.cell_hz)]
            limit_s = clock.part(0.5).limit_s
            kept = cells.map(
                partial(keep_within_tau_in_cell, solve=solve, limit_s=limit_s / len(stages)), scenarios, cell_stages
            )
            training = _train_kept(stages, kept, main_hz, cells, StopWhen(0.9 * gap), clock.part(0.9))
        spare_s = max(0.0, gap * training.T_s - (training.T_s - training.lower_bound_s))
        distributions = cells.longest_first(_distribution_stages(scenarios, cuts), StopWhen(gap, spare_s), clock)
        allocations = cells.map(
            partial(_assemble, gap=gap, clock=clock),
            scenarios, cuts, kept, stages, training.cell_hz, training.shares, distributions,
        )  # fmt: skip
    bound_s = training.lower_bound_s + max(answer.lower_bound_s for answer in distributions)
    joined = _joined(scenarios, allocations, training.cell_hz, bound_s, gap, clock.seconds())
    proven = joined.lower_bound_s == min(bound_s, joined.round_s)
    return replace(joined, training_bound_s=training.lower_bound_s) if proven else joined


def distribute_cells(
    scenarios: Sequence[Scenario], cuts: Sequence[Array], gap: float, time_limit_s: float, threads: int = 2
) -> CellsAnswer:
    """The model's distribution alone, to all clients of the cells: nobody trains."""
    cuts = [scenario.check_cuts(cell_cuts) for scenario, cell_cuts in zip(scenarios, cuts, strict=True)]
    for scenario in scenarios:
        warm_up(scenario)
    clock = TimeLimit(time_limit_s)
    with CellStages(stage_solver(scenarios[0]), threads) as cells:
        distributions = cells.longest_first(_distribution_stages(scenarios, cuts), StopWhen(gap), clock)
        allocations = cells.map(partial(distribution_alone, gap=gap, clock=clock), scenarios, cuts, distributions)
    bound_s = max(answer.lower_bound_s for answer in distributions)
    return _joined(scenarios, allocations, np.zeros(len(scenarios)), bound_s, gap, clock.seconds())


def _distribution_stages(scenarios: Sequence[Scenario], cuts: Sequence[Array]) -> list[Stage]:
    return [distribution_stage(scenario, cell_cuts) for scenario, cell_cuts in zip(scenarios, cuts)]


def _train_cells(
    stages: Sequence[Stage], main_hz: float, cells: CellStages, goal: StopWhen, clock: TimeLimit
) -> Training:
    """Shares and division by turns, until the goal is reached, the time is over, or nothing changes."""
    needs_cycles = np.array([bool(stage.cycles.any()) for stage in stages])
    cycles = np.array([float(stage.cycles.sum()) for stage in stages])
    cell_hz = main_hz * cycles / cycles.sum() if needs_cycles.any() else np.full(len(stages), main_hz / len(stages))
    shares: Sequence[Array | None] = [None] * len(stages)
    best, bound_s, cell_gap = None, 0.0, goal.gap
    for turn in range(PASSES):
        cell_stages = [
            stage._replace(hz=float(hz) if needs else main_hz)
            for stage, hz, needs in zip(stages, cell_hz, needs_cycles)
        ]
        answers = cells.answers(cell_stages, shares, StopWhen(cell_gap), clock.part(0.5) if turn == 0 else clock)
        shares = new_shares = [answer.share for answer in answers]
        bound_s = max(bound_s, _least_bound_s(answers, needs_cycles))
        longest_s = max(answer.T_s for answer in answers)
        T_s, cell_hz = divide_cycles(list(map(Cell.of, cell_stages, new_shares)), main_hz, bound_s, longest_s)
        if best is None or T_s < best.T_s:
            best = Training(T_s, bound_s, cell_hz, tuple(new_shares))
        best = replace(best, lower_bound_s=bound_s)  # a bound above T is found out where answers are joined
        if goal.reached(best.T_s, bound_s) or clock.over() or not needs_cycles.any():
            break
        cell_gap = 0.5 * goal.gap if turn == 0 else max(0.7 * cell_gap, 0.05 * goal.gap)
    assert best is not None
    return best


def _least_bound_s(answers: Sequence[StageAnswer], needs_cycles: Array) -> float:
    """The bound of the joint problem that the cells' own bounds prove. needs_cycles: [N] bool, which cells need cycles."""
    bounds_s = np.array([answer.lower_bound_s for answer in answers])
    return INSIDE * max(
        float(bounds_s[needs_cycles].min(initial=np.inf)) if needs_cycles.any() else 0.0, *bounds_s[~needs_cycles], 0.0
    )


def _train_kept(
    stages: Sequence[Stage], kept: Sequence[Array], main_hz: float, cells: CellStages, goal: StopWhen, clock: TimeLimit
) -> Training:
    """`_train_cells` of the clients kept; a cell that keeps nobody has no cycles and no shares."""
    occupied = [index for index, cell_kept in enumerate(kept) if cell_kept.any()]
    cell_hz, shares = np.zeros(len(stages)), [np.zeros((0, stage.start_w.shape[1])) for stage in stages]
    if not occupied:
        return Training(0.0, 0.0, cell_hz, tuple(shares))
    training = _train_cells([stage_of_clients(stages[i], kept[i]) for i in occupied], main_hz, cells, goal, clock)
    cell_hz[occupied] = training.cell_hz
    for i, share in zip(occupied, training.shares):
        shares[i] = share
    return replace(training, cell_hz=cell_hz, shares=tuple(shares))


def _assemble(
    scenario: Scenario, cuts: Array, kept: Array, stage: Stage, hz: float, share: Array, distribution: StageAnswer,
    gap: float, clock: TimeLimit,
) -> Allocation:  # fmt: skip
    """The allocation of one cell with its cycles and shares. Its own bound is left out: the joint bound counts."""
    cell_scenario = replace(scenario, main_hz=max(float(hz), 1e-9 * scenario.main_hz))
    training = StageAnswer(share, 0.0, 0.0, 0.5)
    if kept.any():

        def spend_all(scaled: Stage, goal: StopWhen, clock: TimeLimit) -> StageAnswer:
            return StageAnswer(share, *solve_shares(scaled, share, 0.0, 0.0))

        training = solve_in_own_units(
            spend_all, stage_of_clients(stage, kept)._replace(hz=cell_scenario.main_hz), StopWhen(gap), clock
        )
    return assemble(cell_scenario, cuts, kept, training, replace(distribution, lower_bound_s=0.0), gap, clock)


def _joined(
    scenarios: Sequence[Scenario],
    cells: Sequence[Allocation],
    cell_hz: Array,
    bound_s: float,
    gap: float,
    seconds: float,
) -> CellsAnswer:
    """The answer of all cells together, its round by the latency equations."""
    down_s = [float(cell.phases["model_down_s"].max()) for cell in cells]
    train_s = [cell.round_s - last_s for cell, last_s in zip(cells, down_s)]
    round_s = max(train_s) + max(down_s)
    failed = any(cell.status is SolveStatus.HEURISTIC for cell in cells) or not holds(bound_s, round_s)
    if failed:  # numbers beyond the solver's digits: each client alone with everything
        bound_s = max(alone_bound_s(scenario, cell) for scenario, cell in zip(scenarios, cells))
    bound_s, reached = with_gap(bound_s, round_s)
    status = SolveStatus.OPTIMAL if within_gap(reached, gap) else SolveStatus.TIME_LIMIT
    if failed:
        status = SolveStatus.HEURISTIC
    if not all(cell.kept.all() for cell in cells):
        status = SolveStatus.DROPPED
    return CellsAnswer(tuple(cells), cell_hz, status, round_s, bound_s, reached, seconds)


@cache
def _compile() -> None:
    """Compile what only cells need (or load it), before any clock runs."""
    stage = training_stage(random_scenario(np.random.default_rng(0), 2, 2), np.ones(2, int))
    Cell.of(stage, np.eye(2)).needs_hz(1e9)


def _check(scenarios: Sequence[Scenario]) -> None:
    if not scenarios:
        raise InputError("there are no cells; give at least one scenario")
    first = scenarios[0]
    for index, other in enumerate(scenarios):
        for name in ("main_hz", "tau_s", "sharing", "server_flops_per_cycle"):
            if getattr(other, name) != getattr(first, name):
                raise InputError(f"cells[{index}].{name} differs from cells[0]; all cells have one main server")
