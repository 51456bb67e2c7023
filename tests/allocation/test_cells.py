"""Cells that share the main server's cycles: the joint bound, the common deadline, and every assignment by hand."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from hsfl.allocation import cells as cells_module
from hsfl.allocation.answer import evaluate_allocation, violation
from hsfl.allocation.cells import LEAST_S, CellsAnswer, CellStages, _Turn, distribute_cells, solve_cells
from hsfl.allocation.cuts.search import rcls
from hsfl.allocation.divide_cycles import Cell, divide_cycles
from hsfl.allocation.exact import exact
from hsfl.allocation.policies import policy
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.stage import shared_bands
from hsfl.allocation.stage.client_prices import shares_of, solve_shares
from hsfl.allocation.stage.stage import Stage, distribution_stage, training_stage
from hsfl.allocation.stage.stage_answer import StageAnswer, StopWhen, TimeLimit
from hsfl.errors import InputError
from tests.naming import raises

Array = np.ndarray


def city(seed: int, sizes: list[int], subchannels: int, sharing: str = "exclusive", **changes: object):
    """Unequal cells with one main server, and cuts for their clients."""
    rng = np.random.default_rng(seed)
    cells = [replace(random_scenario(rng, size, subchannels, sharing), **changes) for size in sizes]
    return cells, [rcls(replace(cell, max_cut=np.minimum(cell.max_cut, 6)).rows, rng) for cell in cells]


def stages_s(cells: list[Scenario], answer: CellsAnswer) -> tuple[Array, Array]:
    """Seconds of training and of distribution in each cell, by the latency equations."""
    down_s, train_s = [], []
    for cell, own, hz in zip(cells, answer.cells, answer.cell_hz):
        phases, round_s = evaluate_allocation(replace(cell, main_hz=hz), own)
        down_s.append(phases["model_down_s"].max())
        train_s.append(round_s - down_s[-1])
    return np.array(train_s), np.array(down_s)


@pytest.mark.parametrize("sharing", ["exclusive", "bandwidth"])
def test_one_cell_is_the_exact_solver_to_the_bit(sharing: str) -> None:
    (cell,), (cuts,) = city(1, [4], 5, sharing)
    joint, alone = solve_cells([cell], [cuts], 1e-3, 10.0), exact(cell, cuts)
    assert (joint.round_s, joint.lower_bound_s) == (alone.round_s, alone.lower_bound_s)
    np.testing.assert_array_equal(joint.cells[0].server_hz, alone.server_hz)


@pytest.mark.parametrize(
    ("seed", "sizes", "subchannels", "sharing"),
    [(0, [3, 4, 5], 5, "exclusive"), (1, [12, 6, 9], 4, "bandwidth"), (2, [1, 8], 3, "bandwidth")],
)
def test_cells_end_together_within_the_gap_and_spend_one_server(seed, sizes, subchannels, sharing) -> None:
    cells, cuts = city(seed, sizes, subchannels, sharing)
    answer = solve_cells(cells, cuts, 5e-3, 20.0)
    train_s, down_s = stages_s(cells, answer)
    assert answer.gap <= 5e-3 * (1 + 1e-6)
    assert answer.status.value == "optimal"
    assert answer.round_s == pytest.approx(train_s.max() + down_s.max(), rel=1e-12)
    assert np.ptp(train_s) <= 1e-6 * train_s.max(), "all cells keep the same deadline"
    assert answer.cell_hz.sum() == pytest.approx(cells[0].main_hz, rel=1e-9)
    for cell, own, hz in zip(cells, answer.cells, answer.cell_hz):
        assert violation(replace(cell, main_hz=hz), own) <= 1e-9


@pytest.mark.parametrize("sharing", ["exclusive", "bandwidth"])
def test_no_division_and_no_rule_beats_the_joint_bound(sharing: str) -> None:
    cells, cuts = city(3, [3, 5, 4], 5, sharing)
    answer = solve_cells(cells, cuts, 5e-3, 20.0)
    rng = np.random.default_rng(0)
    sizes = np.array([cell.num_clients for cell in cells])
    even = sizes / sizes.sum()
    by_division = []
    for part in [even, *rng.dirichlet(50 * answer.cell_hz / answer.cell_hz.sum(), 4)]:
        parts = [replace(cell, main_hz=cell.main_hz * each) for cell, each in zip(cells, part)]
        for name in ("proposed", "even", "ecfa"):
            own = [policy(name).allocate(cell, c, 1e-3) for cell, c in zip(parts, cuts)]
            down_s = [each.phases["model_down_s"].max() for each in own]
            round_s = max(e.round_s - d for e, d in zip(own, down_s)) + max(down_s)
            assert answer.lower_bound_s <= round_s * (1 + 1e-9)
            if name == "proposed":
                by_division.append(round_s)
    assert answer.round_s < by_division[0] * (1 - 1e-3), "an even division is slower"
    assert answer.round_s <= min(by_division) * (1 + 5e-3)


@pytest.mark.parametrize("sharing", ["exclusive", "bandwidth"])
def test_the_bound_of_a_poor_division_holds_too(sharing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one turn cells end at different times, and the largest of their bounds would be wrong."""
    cells, cuts = city(9, [2, 9, 4], 9, sharing)
    best = solve_cells(cells, cuts, 1e-3, 20.0)
    monkeypatch.setattr(cells_module, "PASSES", 1)
    early = solve_cells(cells, cuts, 1e-3, 20.0)
    assert early.lower_bound_s <= best.round_s * (1 + 1e-9)
    assert early.gap > 1e-3


def test_the_least_of_the_cells_bounds_counts_and_cells_without_cycles_by_themselves() -> None:
    answers = [StageAnswer(np.zeros((1, 1)), 9.0, 0.0, 0.5, bound_s) for bound_s in (4.0, 6.0, 5.0)]
    bound = cells_module._least_bound_s
    assert bound(answers, np.array([True, True, True])) == pytest.approx(4.0)
    assert bound(answers, np.array([True, True, False])) == pytest.approx(5.0)
    assert bound(answers, np.array([False, False, False])) == pytest.approx(6.0)


def test_a_bound_that_the_round_refutes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, cuts = city(0, [3, 4], 5)
    right = solve_cells(cells, cuts, 1e-3, 10.0)
    monkeypatch.setattr(cells_module, "_least_bound_s", lambda answers, works: 1.1 * max(a.T_s for a in answers))
    wrong = solve_cells(cells, cuts, 1e-3, 10.0)
    assert wrong.status.value == "heuristic"
    assert wrong.lower_bound_s <= right.lower_bound_s


def by_hand_s(cells: list[Scenario], cuts: list[Array]) -> float:
    """The least round over every assignment of both cells, the division by halving: no code of `division` is used."""
    hz = cells[0].main_hz
    stages = [training_stage(cell, own) for cell, own in zip(cells, cuts)]

    def shares(stage) -> list[Array]:
        clients, subs = stage.start_w.shape
        every = (np.array(owner) for owner in product(range(clients), repeat=subs))
        return [shares_of(owner, clients) for owner in every if len(set(owner.tolist())) == clients]

    best = np.inf
    for left, right in product(shares(stages[0]), shares(stages[1])):
        low, high = 0.0, 1.0
        for _ in range(60):
            part = 0.5 * (low + high)
            first = solve_shares(stages[0]._replace(hz=hz * part), left, 0.0, 0.0)[0]
            second = solve_shares(stages[1]._replace(hz=hz * (1 - part)), right, 0.0, 0.0)[0]
            low, high = (part, high) if first > second else (low, part)
        best = min(best, max(first, second))
    last = [distribution_stage(cell, own) for cell, own in zip(cells, cuts)]
    return best + max(min(solve_shares(stage, s, 0.0, 0.0)[0] for s in shares(stage)) for stage in last)


@pytest.mark.parametrize("seed", range(3))
def test_tiny_cells_against_every_assignment(seed: int) -> None:
    cells, cuts = city(seed, [2, 2], 3)
    answer, best_s = solve_cells(cells, cuts, 1e-4, 10.0), by_hand_s(cells, cuts)
    assert answer.lower_bound_s <= best_s * (1 + 1e-9)
    assert best_s * (1 - 1e-9) <= answer.round_s <= best_s * (1 + 1e-4)


def test_a_cell_without_server_work_leaves_its_cycles_to_the_others() -> None:
    cells, cuts = city(4, [3, 3], 4)
    whole = np.full(3, cells[0].num_cuts - 1)
    cells[0] = replace(cells[0], max_cut=whole)
    answer = solve_cells(cells, [whole, cuts[1]], 1e-3, 10.0)
    assert answer.gap <= 1e-3 * (1 + 1e-6)
    assert answer.cells[0].server_hz.sum() == 0.0


def test_a_cell_that_cannot_be_faster_takes_what_is_left_and_the_bound_says_so() -> None:
    """One client that only uploads its whole model over a bad radio decides the round, whatever the division."""
    cells, cuts = city(5, [3, 3], 4)
    slow = np.full(3, cells[0].num_cuts - 1)
    slow[0] = 1
    gain = cells[0].main_gain.copy()
    cells[0] = replace(cells[0], max_cut=np.full(3, 10), edge_gain=0.01 * cells[0].edge_gain, main_gain=gain)
    answer = solve_cells(cells, [slow, cuts[1]], 1e-3, 20.0)
    assert answer.gap <= 1e-3 * (1 + 1e-6)


def test_clients_that_cannot_keep_tau_sit_out() -> None:
    cells, cuts = city(6, [4, 6], 3, "bandwidth")
    free = solve_cells(cells, cuts, 5e-3, 10.0)
    tau_s = 0.6 * free.round_s
    late = solve_cells([replace(cell, tau_s=tau_s) for cell in cells], cuts, 5e-3, 10.0)
    kept = np.concatenate([own.kept for own in late.cells])
    assert late.status.value == "dropped"
    assert 0 < kept.sum() < len(kept)
    assert stages_s(cells, late)[0].max() <= tau_s * (1 + 1e-9)


def test_needs_are_the_inverse_of_the_deadline() -> None:
    """With the cycles that a cell needs at T, the least T is T."""
    (cell,), (cuts,) = city(7, [5], 6)
    stage = training_stage(cell, cuts)
    share = shares_of(np.array([0, 1, 2, 3, 4, 0]), 5)
    T_s = 1.3 * solve_shares(stage, share, 0.0, 0.0)[0]
    hz = Cell.of(stage, share).needs_hz(T_s)
    assert solve_shares(stage._replace(hz=hz), share, 0.0, 0.0)[0] == pytest.approx(T_s, rel=1e-9)
    assert Cell.of(stage, share).needs_hz(1e-6 * T_s) == np.inf
    again_s, parts = divide_cycles([Cell.of(stage, share)], stage.hz, 0.0, T_s)
    assert again_s == pytest.approx(T_s / 1.3, rel=1e-9)
    assert parts.sum() == pytest.approx(stage.hz)


def test_cells_of_two_servers_are_refused() -> None:
    cells, cuts = city(8, [2, 2], 2)
    with raises(InputError, "cells[1].main_hz", "cells[0]"):
        solve_cells([cells[0], replace(cells[1], main_hz=1e9)], cuts, 1e-3, 1.0)


@pytest.mark.parametrize("seed", [9, 11])
def test_nobody_is_dropped_where_all_can_keep_tau(seed: int) -> None:
    """A T that is known to two per cent may lie above a tau_s that all clients can keep."""
    rng = np.random.default_rng(seed)
    drawn = [random_scenario(rng, 4, 5, "bandwidth") for _ in range(3)]
    one = {"main_hz": drawn[0].main_hz, "server_flops_per_cycle": drawn[0].server_flops_per_cycle, "tau_s": None}
    cells = [replace(cell, **one) for cell in drawn]
    cuts = [rcls(cell.rows, rng) for cell in cells]
    fine = solve_cells(cells, cuts, 2e-4, 5.0)
    tau_s = 1.002 * max(cell.round_s - cell.phases["model_down_s"].max() for cell in fine.cells)
    answer = solve_cells([replace(cell, tau_s=tau_s) for cell in cells], cuts, 2e-2, 5.0)
    assert all(cell.kept.all() for cell in answer.cells)
    assert answer.gap <= 2e-2 * (1 + 1e-6)


# Stages of many cells: the last cell keeps the goal, no other ends later, and the time limit is for all cells together.


def plain_city(seed: int, sizes: list[int], sharing: str):
    rng = np.random.default_rng(seed)
    cells = [random_scenario(rng, size, 6, sharing) for size in sizes]
    return cells, [rcls(cell.rows, rng) for cell in cells]


@pytest.mark.parametrize("sharing", ["exclusive", "bandwidth"])
@pytest.mark.parametrize("seed", range(4))
def test_distribution_ends_with_the_slowest_cell(seed: int, sharing: str) -> None:
    """The joint optimum is the largest of the cells' own optima, which the exact solver finds one by one."""
    cells, cuts = plain_city(seed, [4, 6, 5, 3], sharing)
    joint = distribute_cells(cells, cuts, 1e-3, 20.0)
    alone = [exact(cell, own, 1e-4, 20.0) for cell, own in zip(cells, cuts)]
    down_s = max(float(each.phases["model_down_s"].max()) for each in alone)
    assert joint.round_s == pytest.approx(down_s, rel=3e-3)
    assert joint.lower_bound_s <= down_s * (1 + 1e-9)
    assert joint.gap <= 1e-3 * (1 + 1e-6)
    assert not any(cell.kept.any() for cell in joint.cells)


def test_a_cell_that_is_ready_early_is_not_solved_further() -> None:
    """A cell with a tenth of the bits needs no proof: the solver is asked for it once, roughly."""
    cells, cuts = plain_city(5, [5, 5, 5], "bandwidth")
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
    (cell,), (cuts,) = plain_city(6, [6], "exclusive")
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
