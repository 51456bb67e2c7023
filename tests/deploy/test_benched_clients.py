"""Offenders and stragglers of a running deployment sit out, are told so, and are tried again; what is trained is the kept clients' model."""

import asyncio
import io
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from hsfl.deploy.admin.benching import BenchRules, Conduct
from hsfl.deploy.admin.fleet_control import FleetControl
from hsfl.deploy.admin.fleet_orders import judge_round, members_who_may
from hsfl.deploy.client_round import RoundWork
from hsfl.deploy.logs import open_log
from hsfl.deploy.main.roster import Member, Roster
from hsfl.deploy.settings import MainSettings
from hsfl.deploy.wire.client_messages import Benched
from hsfl.deploy.wire.messages import unpack_message
from hsfl.models.state import UnitState
from hsfl.runs.run_folder.folder import RunFolder
from tests.deploy.fleet import RUN, changed, simulated
from tests.deploy.inside import Inside
from tests.deploy.main.test_roster import READY
from tests.deploy.test_hostile_clients import Deed, Hostile, bad_batch
from tests.naming import names

HONEST = ("ada", "bo", "cy")
RUN_OF_FIVE = changed(RUN, data={"limit": 48}, fleet={"cuts": [5, 1, 2, 3]}, train={"rounds": 5, "batch_size": 16})
MORE = {"min_clients": 3, "first_clients": 4, "evaluate": "none", "bench_after": 1, "bench_rounds": 2}


async def not_numbers(work: RoundWork, head: UnitState) -> None:
    shape = (work.setup.data.num_samples, *work.setup.kit.shapes[work.job.order.cut])
    await bad_batch(work, {"smashed": torch.full(shape, float("nan"))})


def with_hostile(inside: Inside, deed: Deed) -> None:
    async def hostile() -> None:
        await Hostile(inside.client_settings("di"), deed, inside.log("di")).run_and_reconnect()

    assert inside.go(hostile, honest=HONEST).status == "finished"


def assert_model_is_simulated(inside: Inside) -> None:
    kept = [record["kept"] for record in inside.rounds()]
    wanted, model = simulated(inside.run, kept).named(), load_file(inside.folder / "run" / "model.safetensors")
    assert all(torch.equal(model[name], tensor) for name, tensor in wanted.items())


def test_an_offender_sits_out_and_is_tried_again(tmp_path: Path) -> None:
    """Its messages are refused in rounds 1 and 4; it sits out 2 rounds, then 4."""
    inside = Inside(tmp_path, RUN_OF_FIVE, more=MORE)
    with_hostile(inside, not_numbers)
    assert [3 in record["started"] for record in inside.rounds()] == [True, False, False, True, False]
    assert all(record["kept"] == [0, 1, 2] for record in inside.rounds())
    for name, level in (("main", "client benched"), ("di", "benched")):
        lines = [line for line in inside.events(name) if line["event"] == level]
        assert [line["rounds"] for line in lines] == [2, 4]
        names(lines[0]["why"], "update or message", "refused: smashed data", "NaN")
    assert_model_is_simulated(inside)


@pytest.mark.slow
def test_a_straggler_costs_tau_once(tmp_path: Path) -> None:
    async def sleeping(work: RoundWork, head: UnitState) -> None:
        await asyncio.sleep(10_000)

    inside = Inside(tmp_path, changed(RUN_OF_FIVE, train={"rounds": 3, "tau_s": 20.0}), more=MORE)
    with_hostile(inside, sleeping)
    assert [3 in record["started"] for record in inside.rounds()] == [True, False, False]
    (line,) = [line for line in inside.events("di") if line["event"] == "benched"]
    names(line["why"], "late")


def judged(folder: Path, drops: dict[int, str], rounds: int, kept: tuple[int, ...], **settings: int) -> SimpleNamespace:
    """A main server after rounds in which these seats were dropped. 0 to 2 are ada, bo and cy."""
    log, roster = io.StringIO(), Roster(folder, HONEST, 3)
    for seat, name in enumerate(HONEST):
        roster.join(Member(name, seat, READY))
    control = FleetControl(RunFolder(folder), BenchRules(), open_log("main", True, log))
    shared = SimpleNamespace(
        roster=roster, control=control, log=open_log("main", True, log), settings=MainSettings(**settings), heard=log
    )
    tails = {seat: SimpleNamespace(name=name, dropped="after tau") for seat, name in enumerate(HONEST)}
    for _ in range(rounds):
        judge_round(shared, SimpleNamespace(tails=tails, drops=drops), kept, is_complete=True)
    return shared


def test_a_seat_that_is_late_in_every_round_is_benched_after_three(tmp_path: Path) -> None:
    two, three = (judged(tmp_path, {2: "late"}, rounds, (0, 1), min_clients=2) for rounds in (2, 3))
    assert set(members_who_may(two)) == {0, 1, 2}
    assert set(members_who_may(three)) == {0, 1}
    message, _ = unpack_message(three.roster.members[2].outbox.get_nowait())
    assert message == Benched(2, "it was late in 3 rounds (3 kept in a row forgive that)")
    assert three.roster.members[0].outbox.empty()


def test_a_seat_that_is_late_in_two_of_three_rounds_is_benched(tmp_path: Path) -> None:
    """Over restarts, too: the late rounds that count are in the checkpoint."""
    shared = judged(tmp_path, {}, 0, (), min_clients=2)
    tails = {seat: SimpleNamespace(name=name, dropped="after tau") for seat, name in enumerate(HONEST)}
    for is_late in (True, True, False, True):
        assert set(members_who_may(shared)) == {0, 1, 2}
        drops = {2: "late"} if is_late else {}
        judge_round(
            shared, SimpleNamespace(tails=tails, drops=drops), (0, 1) if is_late else (0, 1, 2), is_complete=True
        )
        shared.control.restore(shared.control.to_json())
    assert set(members_who_may(shared)) == {0, 1}


def test_a_bench_does_not_end_a_run(tmp_path: Path) -> None:
    """Where too few would be left, the benched are taken in early."""
    assert set(members_who_may(judged(tmp_path, {2: "late"}, 3, (0, 1), min_clients=3))) == {0, 1, 2}


def test_where_nobody_is_kept_nobody_is_benched(tmp_path: Path) -> None:
    """The time limit is too short for all, the learning rate too high, or a server fails at every step or head (`other`)."""
    for reason in ("late", "diverged", "other"):
        assert judged(tmp_path, dict.fromkeys(range(3), reason), 9, ()).control.state.conducts == {}
    assert judged(tmp_path, dict.fromkeys(range(3), "shape"), 9, ()).control.state.conducts


def test_who_left_in_good_order_is_not_benched(tmp_path: Path) -> None:
    assert judged(tmp_path, {1: "disconnected", 2: "revoked"}, 9, (0,)).control.state.conducts == {}


def test_sentences_survive_a_restart(tmp_path: Path) -> None:
    before = judged(tmp_path, {2: "shape"}, 3, (0, 1)).control
    after = FleetControl(RunFolder(tmp_path), BenchRules(), before.log)
    after.restore(before.to_json())
    assert after.state == before.state
    assert isinstance(after.state.conducts["cy"], Conduct)
    assert after.state.benched("cy") == before.state.benched("cy") != None  # noqa: E711
    after.restore(None)  # a checkpoint of an older version
    assert after.state == before.state
