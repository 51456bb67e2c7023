"""A run beside the plan that has its cuts: seconds of phases and rounds, predicted and measured."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hsfl.errors import InputError
from hsfl.network.clock import timeline
from hsfl.network.latency import Phases
from hsfl.network.server_queue import queued_round
from hsfl.report.prediction_tables import run_sentences
from hsfl.runs.prediction_check import ComparedRun, RoundSpan, compare_run, read_planned_round
from tests.naming import names, raises
from tests.report.fabricated import record, timed
from tests.runs.made_up_plans import SECONDS, write_measured_run, write_plan, write_rounds


def compare(plan: Path, run: Path, rounds: str = "2-") -> ComparedRun:
    return compare_run([read_planned_round(plan)], run, RoundSpan.parse(rounds))


def test_a_run_as_planned_has_no_error(tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "plan", [1, 2], 9.0)
    run = compare(plan, write_measured_run(tmp_path / "run", [1, 2], [9.0] * 3))
    assert (run.plan, run.measured, run.rounds) == (str(plan), True, [2, 3])
    assert (run.predicted_s, run.measured_s, run.low_s, run.high_s, run.error) == (9.0, 9.0, 9.0, 9.0, 0.0)
    for client in run.clients:
        assert client.error == 0.0
        assert list(client.phases) == list(SECONDS)
        assert {phase.error for phase in client.phases.values()} == {0.0}
    assert [client.predicted_s for client in run.clients] == [8.0, 8.5]


def test_the_median_of_the_rounds_counts_and_an_error_is_of_what_was_measured(tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "plan", [1, 2], 9.0)
    folder = write_measured_run(tmp_path / "run", [1, 2], [30.0, 8.0, 20.0, 10.0, 6.0])
    run = compare(plan, folder)
    assert (run.measured_s, run.low_s, run.high_s) == (9.0, 6.0, 20.0)
    assert run.error == 0.0
    run = compare(plan, folder, "2-3")
    assert run.rounds == [2, 3]
    assert run.error == pytest.approx(9.0 / 14.0 - 1)
    assert compare(plan, folder, "1").measured_s == 30.0


def test_a_plan_without_waiting_predicts_the_server_and_the_waiting_for_it(tmp_path: Path) -> None:
    measured = SECONDS | {"server": [0.5, 0.5], "waiting": [0.25, 0.75]}
    folder = write_measured_run(tmp_path / "run", [1, 2], [9.0] * 3, measured)
    run = compare(write_plan(tmp_path / "shares", [1, 2], 9.0), folder)
    assert [client.phases["server"].measured_s for client in run.clients] == [0.75, 1.25]
    assert "waiting" not in run.clients[0].phases
    assert any("waiting" in note for note in run.notes)
    run = compare(write_plan(tmp_path / "queue", [1, 2], 9.0, SECONDS | {"waiting": [0.5, 0.75]}), folder)
    assert [client.phases["server"].measured_s for client in run.clients] == [0.5, 0.5]
    assert [client.phases["waiting"].error for client in run.clients] == [1.0, 0.0]
    assert run.notes == []


def test_clients_are_found_by_their_names(tmp_path: Path) -> None:
    """A main server gives seats in an order of its own."""
    plan = write_plan(tmp_path / "plan", [1, 2], 9.0, names=["ada", "bo"])
    turned = {phase: values[::-1] for phase, values in SECONDS.items()}
    run = compare(plan, write_measured_run(tmp_path / "run", [2, 1], [9.0] * 2, turned, ["bo", "ada"]))
    assert (run.plan, run.cuts) == (str(plan), [1, 2])
    assert [(client.name, client.cut, client.error) for client in run.clients] == [("ada", 1, 0.0), ("bo", 2, 0.0)]
    nameless = compare(plan, write_measured_run(tmp_path / "nameless", [1, 2], [9.0] * 2))
    assert {client.error for client in nameless.clients} == {0.0}


def test_a_run_with_other_cuts_is_judged_by_its_own_model(tmp_path: Path) -> None:
    """What its first record modelled, fixed before round 1; later records know more."""
    plan = write_plan(tmp_path / "plan", [1, 2], 9.0)
    first = record(cuts=[3, 3], wall_s=7.0, round_s=12.0, measured=SECONDS)
    rounds = [first, replace(first, round=2, sim_time_s=20.0, round_s=7.5, wall_s=8.0)]
    run = compare(plan, write_rounds(tmp_path / "run", rounds))
    assert (run.plan, run.cuts, run.predicted_s, run.error) == (None, [3, 3], 12.0, 0.5)
    assert [client.phases["client"].predicted_s for client in run.clients] == [10.0, 6.0]  # client_forward
    names(run.notes[0], "other cuts", "12 s", "before round 1")


def test_other_plans_predict_runs_with_their_cuts(tmp_path: Path) -> None:
    plans = [read_planned_round(write_plan(tmp_path / f"plan-{cut}", [cut, 2], 9.0 + cut)) for cut in (1, 3)]
    run = compare_run(plans, write_measured_run(tmp_path / "run", [3, 2], [12.0] * 2), RoundSpan())
    assert (run.plan, run.predicted_s, run.error) == (plans[1].path, 12.0, 0.0)


def test_a_framework_whose_clients_go_round_otherwise_has_no_plan(tmp_path: Path) -> None:
    """FSL has the cuts of a plan and a server for each client; SplitFed V1 with one cut is planned like HSFL."""
    plan = write_plan(tmp_path / "plan", [2, 2], 9.0)
    for framework, is_planned in (("splitfed_v1", True), ("fsl", False)):
        folder = write_measured_run(
            tmp_path / framework, [2, 2], [9.0] * 2, settings=[f"framework={framework}"], framework=framework
        )
        assert (compare(plan, folder).plan is not None) == is_planned, framework


def test_rounds_with_other_cuts_and_clients_that_were_dropped_are_said(tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "plan", [1, 2], 9.0)
    one = record(measured=SECONDS, wall_s=9.0)
    late = SECONDS | {phase: [values[0], None] for phase, values in SECONDS.items()}
    rounds = [
        one,
        replace(one, round=2, sim_time_s=20.0, measured=late, kept=[0], dropped=[1]),
        replace(one, round=3, sim_time_s=30.0, cuts=[1, 3]),
    ]
    run = compare(plan, write_rounds(tmp_path / "run", rounds))
    assert (run.rounds, [client.client for client in run.clients]) == ([2], [0])
    names(" ".join(run.notes), "1 round with other cuts", "1 of 1 round did")


def test_another_batch_size_is_said(tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "plan", [1, 2], 9.0)
    text = (plan / "plan.json").read_text()
    (plan / "plan.json").write_text(
        text.replace('"num_samples"', '"config": {"train": {"batch_size": 7}}, "num_samples"')
    )
    run = compare(plan, write_measured_run(tmp_path / "run", [1, 2], [9.0] * 2, settings=["train.batch_size=8"]))
    names(run.notes[0], "train.batch_size is 8", "7 in the plan")


def test_the_end_of_a_round_is_told_where_it_was_timed(tmp_path: Path) -> None:
    """Predicted beside measured, part by part; a part that nobody predicted was predicted to take no time."""
    plan = write_plan(tmp_path / "plan", [1, 2], 9.0, ending_s={"swap": 0.75, "open": 0.25})
    run = compare(plan, write_measured_run(tmp_path / "untimed", [1, 2], [9.0] * 3))
    assert (run.ending_s, run.ending) == (None, {})
    ending_s, modelled_s = {"open": 0.25, "swap": 0.5, "test": 1.25, "average": 0.0}, {"swap": 1.0}
    changes = {"ending_s": ending_s, "modelled_ending_s": modelled_s}
    run = compare(plan, write_measured_run(tmp_path / "run", [1, 2], [9.0] * 3, **changes))
    assert run.ending_s == 2.0
    assert {part: (row.predicted_s, row.measured_s, row.error) for part, row in run.ending.items()} == {
        "open": (0.25, 0.25, 0.0), "swap": (0.75, 0.5, 0.5), "test": (0.0, 1.25, -1.0),
    }  # fmt: skip
    names(run_sentences(run)[1], "predicted 1 s", "measured 2 s", "0.75 s and 0.5 s")
    own = compare(plan, write_measured_run(tmp_path / "own", [3, 3], [9.0] * 3, **changes))
    assert (own.plan, own.ending["swap"].predicted_s) == (None, 1.0)


@pytest.mark.parametrize("queued", [False, True])
def test_a_simulated_round_has_the_phases_of_a_plan(tmp_path: Path, queued: bool) -> None:
    """Forward and backward together, and the waiting for a server that serves one batch at a time."""
    columns = [[1.0, 2.0], [0.5, 0.25], [3.0, 4.0], [2.0, 1.0], [0.5, 0.5], [1.0, 1.5], [0.25, 0.5], [0.5, 0.25]]
    fields = (
        "client_forward",
        "smashed",
        "server_forward",
        "server_backward",
        "gradient",
        "client_backward",
        "model_up",
        "model_down",
    )
    phases = Phases(**{f"{name}_s": np.array(values) for name, values in zip(fields, columns)})
    made = timeline("hsfl", phases, np.array([2.0, 3.0]), serve=queued_round if queued else None)
    one = timed(made, cuts=[1, 2])
    seconds = {
        "client": [4.0, 10.5], "smashed": [1.0, 0.75], "server": [10.0, 15.0], "gradient": [1.0, 1.5],
        "model_up": [0.25, 0.5], "model_down": [0.5, 0.25],
    }  # fmt: skip
    if queued:
        own_s = [sum(values[k] for values in seconds.values()) for k in (0, 1)]
        seconds["waiting"] = [made.finish_s[k] - own_s[k] for k in (0, 1)]
        assert max(seconds["waiting"]) > 0
    plan = write_plan(tmp_path / "plan", [1, 2], made.round_s, seconds)
    run = compare(plan, write_rounds(tmp_path / "run", [one, replace(one, round=2, sim_time_s=2 * made.round_s)]))
    assert not run.measured
    assert run.error == 0.0
    for client in run.clients:
        assert client.error == pytest.approx(0.0, abs=1e-9)
        errors = [phase.error for phase in client.phases.values() if phase.error is not None]
        assert errors == pytest.approx([0.0] * len(errors), abs=1e-6)


@pytest.mark.parametrize("text", ["", "0", "x", "3-2", "2-6-8", "-3", "1.5"])
def test_rounds_that_are_none_are_refused(text: str) -> None:
    with raises(InputError, "--rounds", "2-6"):
        RoundSpan.parse(text)
