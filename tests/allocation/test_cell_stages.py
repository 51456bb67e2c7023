"""Stages of many cells: the last cell keeps the goal, no other ends later, and the time limit is for all cells together."""

from dataclasses import replace

import numpy as np
import pytest

from hsfl.allocation.cells import LEAST_S, CellStages, _Turn, distribute_cells
from hsfl.allocation.cuts.search import rcls
from hsfl.allocation.exact import exact
from hsfl.allocation.policies import policy
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.stage import shared_bands
from hsfl.allocation.stage.stage import Stage, distribution_stage
from hsfl.allocation.stage.stage_answer import StageAnswer, StopWhen, TimeLimit


def city(seed: int, sizes: list[int], sharing: str):
    rng = np.random.default_rng(seed)
    cells = [random_scenario(rng, size, 6, sharing) for size in sizes]
    return cells, [rcls(cell.rows, rng) for cell in cells]


@pytest.mark.parametrize("sharing", ["exclusive", "bandwidth"])
@pytest.mark.parametrize("seed", range(4))
def test_distribution_ends_with_the_slowest_cell(seed: int, sharing: str) -> None:
    """The joint optimum is the largest of the cells' own optima, which the exact solver finds one by one."""
    cells, cuts = city(seed, [4, 6, 5, 3], sharing)
    joint = distribute_cells(cells, cuts, 1e-3, 20.0)
    alone = [exact(cell, own, 1e-4, 20.0) for cell, own in zip(cells, cuts)]
    down_s = max(float(each.phases["model_down_s"].max()) for each in alone)
    assert joint.round_s == pytest.approx(down_s, rel=3e-3)
    assert joint.lower_bound_s <= down_s * (1 + 1e-9)
    assert joint.gap <= 1e-3 * (1 + 1e-6)
    assert not any(cell.kept.any() for cell in joint.cells)


def test_a_cell_that_is_ready_early_is_not_solved_further() -> None:
    """A cell with a tenth of the bits needs no proof: the solver is asked for it once, roughly."""
    cells, cuts = city(5, [5, 5, 5], "bandwidth")
    cells[1:] = [replace(cell, model_bits=0.1 * cell.model_bits) for cell in cells[1:]]
    stages = [distribution_stage(cell, own) for cell, own in zip(cells, cuts)]
    asked: list[float] = []

    def counted(stage: Stage, goal: StopWhen, clock: TimeLimit) -> StageAnswer:
        asked.append(goal.gap)
        return shared_bands.solve_shared(stage, goal, clock)

    with CellStages(counted, threads=1) as pool:
        answers = pool.longest_first(stages, StopWhen(1e-3), TimeLimit(20.0))
    assert asked == [0.05, 0.05, 0.05, 1e-3]
    assert answers[0].gap <= 1e-3
    assert max(answer.T_s for answer in answers) == answers[0].T_s


def test_cells_that_are_nearly_alike_keep_the_gap_too() -> None:
    """A cell that cannot end as early as the one that was solved first becomes the last, and is solved in its turn."""
    missed = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        cells = [random_scenario(rng, int(rng.integers(4, 9)), 6, "bandwidth") for _ in range(12)]
        cuts = [rcls(cell.rows, rng) for cell in cells]
        alone_s = np.array([policy("proposed").distribute(*each, 1e-3, 5.0).round_s for each in zip(cells, cuts)])
        alike = alone_s.mean() / alone_s * rng.uniform(0.97, 1.0, 12)
        cells = [replace(cell, model_bits=cell.model_bits * factor) for cell, factor in zip(cells, alike)]
        missed.append(distribute_cells(cells, cuts, 1e-3, 20.0).gap > 1e-3 * (1 + 1e-6))
    assert not any(missed)


@pytest.mark.parametrize("name", ["ecfa", "etra", "even"])
def test_a_rule_distributes_as_it_does_in_a_round(name: str) -> None:
    (cell,), (cuts,) = city(6, [6], "exclusive")
    whole, alone = policy(name).allocate(cell, cuts), policy(name).distribute(cell, cuts, 1e-3, 5.0)
    assert alone.phases["model_down_s"].max() == pytest.approx(whole.phases["model_down_s"].max(), rel=2e-3)
    assert alone.round_s == alone.phases["model_down_s"].max()


def test_the_limit_is_divided_among_the_cells_that_have_not_begun() -> None:
    class Stopped(TimeLimit):
        def seconds(self) -> float:
            return 0.0

    turn = _Turn(Stopped(10.0), num_cells=5, threads=2)
    assert [turn.next_s() for _ in range(5)] == pytest.approx([4.0, 5.0, 20.0 / 3, 10.0, 10.0])
    late = _Turn(Stopped(0.0), num_cells=3, threads=2)
    assert late.next_s() == LEAST_S
