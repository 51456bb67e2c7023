"""What a client says of its own losses and seconds: a number that the main server knows is not asked for, others have limits, and a
test loss that is no number is recorded as none."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest

from hsfl.config import parse_config
from hsfl.deploy import edge_server
from hsfl.deploy.client_round import RoundWork
from hsfl.deploy.edge_server import ClientAtFault, sum_kept_clients
from hsfl.deploy.main import main_server
from hsfl.deploy.main.coded_judgement import Judgement
from hsfl.deploy.main.main_round import MOST_LOSS, Tail, checked_loss
from hsfl.deploy.main.server_checkpoint import MainCheckpoint
from hsfl.deploy.wire.client_messages import End
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.messages import pack_message, unpack_message
from hsfl.frameworks import find_framework
from hsfl.models.state import UnitState
from hsfl.runs import loop
from hsfl.runs.prepare import prepare
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.training.evaluation import Quality
from hsfl.training.roles import FinishedSide
from tests.deploy.fleet import RUN, changed
from tests.deploy.inside import Inside
from tests.deploy.kits import small_kit
from tests.deploy.test_hostile_clients import Hostile
from tests.naming import raises
from tests.small_runs import tiny

ONE_ROUND = changed(RUN, fleet={"cuts": [1, 2, 3, 5]}, train={"rounds": 1, "tau_s": 20.0})


class Boasting(Hostile):
    """A client that trains honestly and then says other numbers at the end of its batches."""

    def __init__(self, inside: Inside, name: str, claims: dict[str, float]) -> None:
        super().__init__(inside.client_settings(name), self._train, inside.log(name))
        self.claims = claims

    async def _train(self, work: RoundWork, head: UnitState) -> None:
        usual = work.exchange

        async def exchange(step: int, message: bytes) -> bytes:
            record, tensors = unpack_message(message)
            if isinstance(record, End):
                message = pack_message(replace(record, **self.claims), tensors)
            return await usual(step, message)

        work.exchange = exchange  # type: ignore[method-assign]
        await work.end(await asyncio.get_running_loop().run_in_executor(None, work.train, head))
        await work.upload_head()


def with_boast(folder: Path, name: str, claims: dict[str, float], **more: int) -> Inside:
    """A deployment, run to its end, in which this client makes these claims."""
    inside = Inside(folder, ONE_ROUND, more=more)

    async def boast() -> None:
        await Boasting(inside, name, claims).run_and_reconnect()

    assert inside.go(boast, honest=[other for other in inside.names if other != name]).status == "finished"
    return inside


def test_the_loss_of_the_round_is_what_the_main_server_computed(tmp_path: Path) -> None:
    """The simulation's, to the bit. And seconds are at most those that have passed: a client's year is no phase of a round."""
    claims = {"loss_total": 1e300, "client_s": 3e7, "exchange_s": 3e7, "model_down_s": 3e7}
    inside = with_boast(tmp_path, "ada", claims)
    (record,) = inside.rounds()
    config = parse_config(inside.run)
    framework = find_framework(config.framework)(prepare(config).task)
    _, result = framework.round(framework.init(), [0, 1, 2, 3], 0)
    assert record["train_loss"] == result.train_loss
    assert record["kept"] == [0, 1, 2, 3]
    assert max(seconds[0] for seconds in record["measured"].values()) <= record["wall_s"]


@pytest.mark.parametrize("claim", [1e300, pytest.param(-1.0, marks=pytest.mark.slow)])
def test_a_loss_that_no_model_can_have_drops_the_client(tmp_path: Path, claim: float) -> None:
    """Its cut is the whole model, so that nobody else knows its losses."""
    inside = with_boast(tmp_path, "di", {"loss_total": claim}, min_clients=3, first_clients=4)
    drops = [line for line in inside.events("main") if line["event"] == "client dropped"]
    assert [(line["client"], line["reason"]) for line in drops] == [("di", "diverged")]
    (record,) = inside.rounds()
    assert record["kept"] == [0, 1, 2]
    assert 0 < record["train_loss"] < 10


def test_claimed_losses_have_limits() -> None:
    assert [checked_loss(total, 10) for total in (0.0, 23.0, 10 * MOST_LOSS)] == [0.0, 23.0, 10 * MOST_LOSS]
    for total in (-1e-9, 10.1 * MOST_LOSS, 1e300):
        with raises(WireError, "loss", "train.lr"):
            checked_loss(total, 10)
    with raises(WireError, "no loss"):
        checked_loss(None, 10)


# --- a test loss that is no number


@pytest.mark.parametrize("loss", [math.nan, pytest.param(math.inf, marks=pytest.mark.slow)])
def test_a_deployment_whose_test_loss_is_no_number_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: float
) -> None:
    two_rounds, usual = changed(ONE_ROUND, train={"rounds": 2}), MainCheckpoint._judge_on_test

    def first_is_none(self: MainCheckpoint, *arguments: object) -> Judgement:
        judgement = usual(self, *arguments)  # type: ignore[arg-type]
        assert judgement.quality is not None
        return judgement if self.round else replace(judgement, quality=replace(judgement.quality, loss=loss))

    monkeypatch.setattr(MainCheckpoint, "_judge_on_test", first_is_none)
    inside = Inside(tmp_path, two_rounds)
    assert inside.go().status == "finished"
    first, second = RunFolder(tmp_path / "run").rounds()
    assert (first.test_loss, first.test_accuracy, first.recall) == (None, None, None)
    assert "test loss" in (first.no_quality or "")
    assert second.test_loss is not None
    assert second.no_quality is None
    assert [line["level"] for line in inside.events("main") if line["event"] == "no quality"] == ["warning"]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_simulation_whose_test_loss_is_no_number_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: float
) -> None:
    usual, seen = loop.assess, list[Quality]()

    def second_is_none(*arguments: object) -> Quality:
        seen.append(usual(*arguments))  # type: ignore[arg-type]
        return replace(seen[-1], loss=loss) if len(seen) == 2 else seen[-1]

    monkeypatch.setattr(loop, "assess", second_is_none)
    summary = loop.train_run(tiny("train.rounds=3"), tmp_path / "run")
    assert (summary.status, summary.rounds) == ("finished", 3)
    rounds = RunFolder(tmp_path / "run").rounds()
    assert [record.test_loss is None for record in rounds] == [False, True, False]
    assert "test loss" in (rounds[1].no_quality or "")
    assert rounds[1].test_accuracy is None
    assert '"no_quality"' not in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[0]


# --- one client's part that cannot be summed


def test_a_side_that_cannot_be_summed_names_its_client() -> None:
    state = small_kit().initial
    bad = state.clone()
    bad.floats[0] = math.nan
    sides = {0: FinishedSide(state, 1.0), 3: FinishedSide(bad, 1.0)}
    with pytest.raises(ClientAtFault) as fault:
        sum_kept_clients(state, sides, [0, 3])
    assert fault.value.seat == 3


@pytest.mark.parametrize("where", [pytest.param("main", marks=pytest.mark.slow), "edge"])
def test_a_side_that_cannot_be_summed_drops_its_client_and_the_round_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Whatever the check on arrival may miss: the servers agree again, without this client."""
    usual = sum_kept_clients

    def failing(state, sides, kept, factors=None):  # type: ignore[no-untyped-def]
        if 2 in kept:
            raise ClientAtFault(2, "a number that nobody thought of")
        return usual(state, sides, kept, factors)

    module = "hsfl.deploy.edge_server" if where == "edge" else main_server.__name__
    monkeypatch.setattr(f"{module}.sum_kept_clients", failing)
    inside = Inside(tmp_path, ONE_ROUND, more={"min_clients": 3, "first_clients": 4})
    assert inside.go().status == "finished"
    (record,) = inside.rounds()
    assert (record["kept"], record["dropped"]) == ([0, 1, 3], [2])
    drops = [line for line in inside.events("main") if line["event"] == "client dropped"]
    assert [(line["client"], line["reason"]) for line in drops] == [("cy", "other")]


@pytest.mark.slow
def test_a_head_whose_check_fails_in_an_unforeseen_way_drops_its_client_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does a batch whose step does."""
    usual_check, usual_compute = edge_server._check_head, Tail.compute

    def check(content, open_round, seat, kit):  # type: ignore[no-untyped-def]
        if seat.name == "ada":
            raise ZeroDivisionError
        return usual_check(content, open_round, seat, kit)

    def compute(self, tensors):  # type: ignore[no-untyped-def]
        if self.name == "bo":
            raise RuntimeError("out of memory")
        return usual_compute(self, tensors)

    monkeypatch.setattr(edge_server, "_check_head", check)
    monkeypatch.setattr(Tail, "compute", compute)
    inside = Inside(tmp_path, ONE_ROUND, more={"min_clients": 2, "first_clients": 4})
    assert inside.go().status == "finished"
    (record,) = inside.rounds()
    assert (record["kept"], record["dropped"]) == ([2, 3], [0, 1])
    drops = {line["client"]: line["reason"] for line in inside.events("main") if line["event"] == "client dropped"}
    assert drops == {"ada": "other", "bo": "other"}
