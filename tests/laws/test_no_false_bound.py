"""No false bound, whatever the numbers: wide scenarios end in an answer that no plain rule refutes, or in one line."""

import json
import re
import time
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from hsfl.allocation.answer import SolveStatus, evaluate_allocation, violation
from hsfl.allocation.cuts.bound import bound_over_cuts
from hsfl.allocation.cuts.search import CutRequest, CutSettings, search_cuts
from hsfl.allocation.exact import exact, warm_up
from hsfl.allocation.measured_links import best_measured_round, keep_within_tau_measured, least_training, optimal_cycles
from hsfl.allocation.policies import policy
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.solvers import allocate
from hsfl.allocation.stage.stage_answer import TimeLimit
from hsfl.errors import InputError
from tests.laws.wide_scenarios import KINDS, wide_rounds, wide_scenario

GAP = 1e-3
ROUNDING = 1 + 1e-9
RULES = {"exclusive": ("even", "ecfa", "gtra", "etra", "etra_even"), "bandwidth": ("even", "ecfa", "etra", "etra_even")}
FIELD = re.compile(r"^(batch_size|tau_s|cost\.|clients\.|servers\.|channel\.)\S+ is .*; .+$")


def accepted(scenario):
    """The scenario through its file; None where it is refused in one line that names the field."""
    try:
        return Scenario.from_dict(json.loads(json.dumps(scenario.to_dict())))
    except InputError as error:
        message = str(error)
    assert FIELD.match(message), message
    return None


def check(scenario, answer):
    """Feasible, finite, valued by the equations, kept clients within tau, and a bound that its own round allows."""
    json.dumps(answer.to_dict(), allow_nan=False)
    assert violation(scenario, answer) <= 1e-9
    assert answer.round_s == evaluate_allocation(scenario, answer)[1]
    assert 0 <= answer.lower_bound_s <= answer.round_s
    assert 0 <= answer.gap <= 1
    if scenario.tau_s is not None and answer.kept.any():
        training_s = answer.round_s - answer.phases["model_down_s"].max()
        assert training_s <= max(scenario.tau_s * ROUNDING, answer.round_s * 1e-9)


def judge(kind, seed):
    """One case: whether it was accepted."""
    scenario, cuts = wide_scenario(kind, seed)
    scenario = accepted(scenario)
    if scenario is None:
        return False
    warm_up(scenario)
    began = time.process_time()
    answer = exact(scenario, cuts, GAP, time_limit_s=0.1)
    assert time.process_time() - began < 2.0
    check(scenario, answer)
    assert answer.status is not SolveStatus.HEURISTIC  # no solver gave up
    if not answer.kept.all():
        return True
    free = replace(scenario, tau_s=None)
    for name in RULES[scenario.sharing]:
        ruled = policy(name).allocate(free, cuts, GAP, time_limit_s=0.02)
        check(free, ruled)
        assert answer.lower_bound_s <= ruled.round_s * ROUNDING, name
        assert ruled.lower_bound_s <= answer.round_s * ROUNDING, name
        if answer.status is SolveStatus.OPTIMAL:
            assert ruled.round_s >= answer.round_s * (1 - GAP) / ROUNDING, name
    return True


def judge_cuts(kind, seed):
    """Chosen cuts: no cuts are faster than the bound, wherever the search for it begins."""
    scenario = accepted(wide_scenario(kind, seed)[0])
    if scenario is None:
        return
    free, rng = replace(scenario, tau_s=None), np.random.default_rng(seed)
    answer = allocate(free, time_limit_s=0.2)
    check(free, answer)
    some = [rng.integers(0, scenario.max_cut + 1) for _ in range(3)]
    best_s = min(answer.round_s, *(exact(free, cuts, GAP, time_limit_s=0.03).round_s for cuts in some))
    assert answer.cuts_lower_bound_s <= best_s * ROUNDING
    assert bound_over_cuts([free], some[0], TimeLimit(0.1)) <= best_s * ROUNDING


def can_end(own_s, work_cycles, hz, T_s):
    """Whether cycles exist with which everyone ends by T_s, in exact arithmetic."""
    own, work = [Fraction(x) for x in own_s.tolist()], [Fraction(x) for x in work_cycles.tolist()]
    T, need = Fraction(T_s), Fraction(0)
    for o, w in zip(own, work):
        if o > T or (w > 0 and o == T):
            return False
        need += w / (T - o) if w > 0 else 0
    return need <= Fraction(hz)


def judge_measured(seed):
    """Cycles and cuts of measured links: right to 1e-9 by exact arithmetic, and no bound above any cuts."""
    rounds, cuts = wide_rounds(seed)
    hz, rows = rounds.main_hz, np.arange(rounds.num_clients)
    work = rounds.work_cycles[rows, cuts]
    for all_own_s, all_down_s in zip(rounds.own_s, rounds.down_s):
        own_s, down_s = all_own_s[rows, cuts], all_down_s[rows, cuts]
        T_s, cycles = float(least_training(own_s, work, hz)), optimal_cycles(own_s, work, hz)
        assert can_end(own_s, work, hz, T_s * ROUNDING)
        assert T_s == 0 or not can_end(own_s, work, hz, T_s / ROUNDING)
        assert cycles.sum() <= hz
        ends_s = own_s + np.divide(work, cycles, out=np.zeros(len(rows)), where=work > 0)
        assert ends_s.max() <= T_s * ROUNDING
        plan = best_measured_round(all_own_s, rounds.work_cycles, all_down_s, rounds.rows, hz)
        assert plan.lower_bound_s <= plan.round_s <= (T_s + down_s.max()) * ROUNDING
        assert plan.round_s <= plan.lower_bound_s * ROUNDING  # no gap was allowed
        for even in (False, True):
            kept = keep_within_tau_measured(own_s, work, np.ones(len(rows)), hz, 2 * T_s, even)
            assert kept.all() or even or T_s == 0
    chosen = search_cuts(CutRequest(rounds.rows, rounds, CutSettings(time_limit_s=0.1), cuts))
    assert chosen.lower_bound_s <= chosen.mean_s <= rounds.round_s(cuts).mean() * ROUNDING


@pytest.mark.parametrize("kind", KINDS)
def test_no_rule_refutes_a_wide_answer(kind):
    assert sum(judge(kind, seed) for seed in range(32)) >= 16


@pytest.mark.parametrize("kind", KINDS)
def test_no_cuts_refute_a_wide_bound(kind):
    for seed in range(1000, 1004):
        judge_cuts(kind, seed)


def test_wide_measured_links():
    for seed in range(20):
        judge_measured(seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", range(4))
def test_no_rule_refutes_many_wide_answers(kind, part):
    assert sum(judge(kind, seed) for seed in range(10_000 + 80 * part, 10_080 + 80 * part)) >= 40
    for seed in range(20_000 + 10 * part, 20_010 + 10 * part):
        judge_cuts(kind, seed)
    for seed in range(100 * KINDS.index(kind) + 10 * part, 100 * KINDS.index(kind) + 10 * part + 10):
        judge_measured(30_000 + seed)
