"""One cut for all beside planned cuts: what a plan says of it is what a plan with that cut takes, and only proven distances are told."""

import json
from typing import Any

import numpy as np
import pytest

import hsfl as package
from hsfl.network.devices import MANY_CLIENTS
from hsfl.planning.plans.single_cut import SingleCut, single_cut_sentence, try_single_rows
from tests.naming import names
from tests.small_runs import TINY

pytest.importorskip("numba")
UNEQUAL = ("allocation.policy=proposed", "allocation.samples=2", "fleet.cpu_hz=[1e8,4e9]", "network.main_hz=1e9")


def planned(*changes: str) -> Any:
    words = [word for word in (*TINY, *UNEQUAL, *changes) if not word.startswith("fleet.cuts=[")]
    return package.plan(settings=words)


def test_the_single_cut_of_a_plan_is_the_best_of_the_plans_with_one_cut() -> None:
    """Each cut for all is planned by itself, on the same samples."""
    plan = planned()
    assert plan.single is not None
    alone_s = {cut: planned(f"fleet.cuts={cut}").round_s for cut in range(1, 6)}
    assert plan.single.round_s == pytest.approx(min(alone_s.values()), rel=2e-3)  # each is allocated to a gap of 0.1 %
    assert alone_s[plan.single.cut] == pytest.approx(min(alone_s.values()), rel=2e-3)
    assert plan.single.round_s == pytest.approx(plan.round_s * (1 + plan.single.over_planned))
    assert plan.single.over_best == pytest.approx(plan.single.round_s / plan.lower_bound_s - 1)
    assert plan.single.num_tried == plan.single.num_legal
    names(" ".join(plan.screen().sentences), f"one cut for all, {plan.single.cut}", "cuts there can be")
    assert json.loads(json.dumps(plan.to_json()))["single"]["cut"] == plan.single.cut


def test_of_a_crowd_nothing_is_proven_beyond_its_cuts() -> None:
    few = ("train.clients_per_round=12", "train.receivers=chosen", "network.cells=3", "data.limit=600")
    plan = planned(f"fleet.num_clients={MANY_CLIENTS + 100}", *few)
    assert plan.single is not None
    assert plan.single.over_best is None
    assert plan.single.over_planned == pytest.approx(plan.single.round_s / plan.round_s - 1)
    assert plan.single.over_planned > -0.02  # cuts that one cut for all beats would not be planned, but for the gap
    assert ("one cut for all" in " ".join(plan.screen().sentences)) != plan.single.is_planned


def test_only_rows_that_everybody_may_take_are_tried() -> None:
    rows = np.array([[False, True, True, True], [False, True, False, True]])
    tried = try_single_rows(rows, np.array([3, 1]), lambda cuts: float(cuts.sum()))
    assert tried == {1: 2.0, 3: 6.0}


def single(**changes: object) -> SingleCut:
    values = {"cut": 3, "codec": None, "round_s": 2.0, "over_planned": 0.01, "over_best": 0.02, "is_planned": False}
    return SingleCut(**values | {"num_tried": 4, "num_legal": 4} | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, ("cut for all, 3,", "1.0% longer", "within 2.0%")),
        ({"over_planned": -0.01}, ("1.0% shorter",)),
        ({"codec": "int8"}, ("3 with int8,",)),
        ({"num_tried": 2}, ("best of 2",)),
        ({"over_best": None}, ("1.0% longer", "not proven")),
        ({"is_planned": True}, ("cut for all, 3,", "within 2.0%")),
    ],
)
def test_words(changes: dict[str, object], parts: tuple[str, ...]) -> None:
    names(single_cut_sentence(single(**changes)), *parts)


def test_a_single_cut_that_is_planned_and_not_proven_is_not_worth_a_word() -> None:
    assert single_cut_sentence(single(is_planned=True, over_best=None)) is None
    assert single_cut_sentence(None) is None
