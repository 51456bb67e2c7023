"""Several sets of cuts in their order, predicted and measured: Kendall's tau, the regret, the spread of repeats."""

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsfl.errors import InputError
from hsfl.runs.prediction_check import ComparedRun, RoundSpan, compared
from hsfl.runs.prediction_ranking import Ranking, check_plans, rank_cuts
from tests.naming import raises
from tests.runs.made_up_plans import write_measured_run, write_plan


def a_run(cut: int, predicted_s: float, rounds_s: list[float], name: str = "run") -> ComparedRun:
    return ComparedRun(
        **vars(compared(predicted_s, rounds_s)), run=f"{name}-{cut}", plan=f"plan-{cut}", framework="hsfl", cuts=[cut], measured=True,
        rounds=[*range(2, 2 + len(rounds_s))], rounds_s=rounds_s, ending_s=None, ending={}, clients=[], notes=[],
    )  # fmt: skip


def ranked(*runs: ComparedRun) -> Ranking:
    ranking = rank_cuts(runs, "plan-0")
    assert ranking is not None
    return ranking


ROUNDS = st.lists(st.integers(1, 9).map(float), min_size=1, max_size=4)
SETS = st.lists(st.tuples(st.integers(1, 9).map(float), ROUNDS), min_size=2, max_size=6)


@given(SETS)
def test_the_ranking_as_its_definition_says(sets: list[tuple[float, list[float]]]) -> None:
    runs = [a_run(cut, predicted_s, rounds_s) for cut, (predicted_s, rounds_s) in enumerate(sets)]
    ranking = ranked(*runs)
    signs = []
    for one, other in combinations(runs, 2):
        spread_s = max(run.high_s - run.low_s for run in (one, other))
        if abs(one.measured_s - other.measured_s) > spread_s:
            product = (one.predicted_s - other.predicted_s) * (one.measured_s - other.measured_s)
            signs.append((product > 0) - (product < 0))
    assert ranking.num_pairs == len(signs)
    assert ranking.num_excluded == len(runs) * (len(runs) - 1) // 2 - len(signs)
    assert ranking.kendall_tau == (pytest.approx(sum(signs) / len(signs)) if signs else None)
    best_s = min(run.measured_s for run in runs)
    assert ranking.regret == pytest.approx(runs[0].measured_s / best_s - 1)
    assert ranking.regret >= 0
    assert ranking.mean_abs_error == pytest.approx(sum(abs(run.error or 0.0) for run in runs) / len(runs))
    assert [one.measured_s for one in ranking.sets] == sorted(run.measured_s for run in runs)


@given(SETS)
def test_runs_as_planned_are_ranked_as_planned(sets: list[tuple[float, list[float]]]) -> None:
    ranking = ranked(*(a_run(cut, predicted_s, [predicted_s] * 3) for cut, (predicted_s, _) in enumerate(sets)))
    assert ranking.kendall_tau in (1.0, None)
    assert ranking.mean_abs_error == 0.0
    assert [one.predicted_place for one in ranking.sets] == [one.measured_place for one in ranking.sets]


def test_repeats_of_the_same_cuts_are_one_set_whose_medians_spread() -> None:
    """The rounds of a run vary more than the medians of two runs."""
    one = [a_run(0, 10.0, [8.0, 10.0, 14.0]), a_run(0, 10.0, [7.0, 10.5, 15.0], "again")]
    other = a_run(1, 12.0, [11.5, 11.5])
    ranking = ranked(*one, other)
    assert [(place.runs, place.spread_s) for place in ranking.sets] == [(["run-0", "again-0"], 0.5), (["run-1"], 0.0)]
    assert (ranking.kendall_tau, ranking.num_pairs, ranking.num_excluded) == (1.0, 1, 0)
    assert ranking.sets[0].measured_s == 10.25
    assert ranked(one[0], other).num_excluded == 1


def test_a_plan_that_orders_all_sets_wrongly() -> None:
    ranking = ranked(*(a_run(cut, 10.0 + cut, [20.0 - cut]) for cut in range(4)))
    assert ranking.kendall_tau == -1.0
    assert ranking.regret == pytest.approx(20 / 17 - 1)
    assert [one.planned for one in ranking.sets] == [False, False, False, True]


def test_one_set_has_no_order() -> None:
    assert rank_cuts([a_run(0, 10.0, [9.0]), a_run(0, 10.0, [11.0], "again")], "plan-0") is None


def test_no_regret_where_no_run_has_the_planned_cuts() -> None:
    assert ranked(a_run(1, 10.0, [9.0]), a_run(2, 11.0, [12.0])).regret is None


def test_plans_and_runs_of_folders(tmp_path: Path) -> None:
    plans = [write_plan(tmp_path / f"plan-{cut}", [cut, 2], 9.0 + cut) for cut in (1, 2, 3)]
    runs = [write_measured_run(tmp_path / f"run-{cut}", [cut, 2], [9.0 + cut] * 3) for cut in (1, 2, 3)]
    check = check_plans(plans, [*runs, runs[0]], RoundSpan())
    assert [run.run for run in check.runs] == [str(run) for run in runs]  # each once
    assert check.ranking is not None
    assert (check.ranking.kendall_tau, check.ranking.regret, check.ranking.mean_abs_error) == (1.0, 0.0, 0.0)


def test_two_plans_with_the_same_cuts_and_plans_of_two_fleets_are_refused(tmp_path: Path) -> None:
    run = write_measured_run(tmp_path / "run", [1, 2], [9.0] * 2)
    plans = [write_plan(tmp_path / name, [1, 2], 9.0) for name in ("one", "other")]
    with raises(InputError, str(plans[0]), str(plans[1]), "same cuts"):
        check_plans(plans, [run], RoundSpan())
    plans[1] = write_plan(tmp_path / "other", [1, 3], 9.0, names=["ada", "bo"])
    with raises(InputError, str(plans[0]), str(plans[1]), "different fleets"):
        check_plans(plans, [run], RoundSpan())
