"""Streams that break at the worst moment: a step is made once, and what comes late harms nobody."""

import asyncio
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hsfl.deploy.client_round import Abandoned, OpenRound, RoundWork
from hsfl.deploy.compute_queue import ComputeQueue
from hsfl.deploy.main.handlers import AttendHandler, TrainHandler
from hsfl.deploy.main.main_round import Tail
from hsfl.deploy.trust.identity import Identity, set_caller
from hsfl.deploy.wire.client_messages import Batch, Enter, Round
from hsfl.deploy.wire.frames import WireError
from tests.deploy.fleet import RUN, changed, simulated
from tests.deploy.inside import Inside
from tests.deploy.main.test_main_round import STREAM, batch, step, tail
from tests.naming import raises

ONE_ROUND = changed(RUN, fleet={"cuts": [5, 1, 2, 3]}, train={"rounds": 1, "tau_s": 20.0})


def test_a_step_under_way_when_its_stream_breaks_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client sends the batch again on its next stream; the model is that of a simulation, to the bit."""
    computed, exchanged, broken = Tail.compute, RoundWork.exchange, []

    def compute(self: Tail, tensors: dict[str, torch.Tensor]) -> Any:
        answer = computed(self, tensors)
        time.sleep(0.5 if self.name == "di" and self.step == 1 else 0)
        return answer

    async def exchange(self: RoundWork, number: int, message: bytes) -> bytes:
        if self.setup.seat == 3 and number == 1 and not broken:
            broken.append(number)
            asyncio.get_running_loop().call_later(0.2, self.job.call.cancel)
        return await exchanged(self, number, message)

    monkeypatch.setattr(Tail, "compute", compute)
    monkeypatch.setattr(RoundWork, "exchange", exchange)
    inside = Inside(tmp_path, ONE_ROUND)
    inside.go()
    assert broken
    assert inside.rounds()[0]["kept"] == [0, 1, 2, 3]
    wanted, model = simulated(inside.run, [[0, 1, 2, 3]]).named(), load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(model[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize("ends_first", [False, True])
def test_a_round_that_is_over_frees_the_compute_thread(ends_first: bool) -> None:
    """Even if the stream's reader waits for ever, as gRPC's may after a device has slept: the next round needs the thread."""

    class Deaf:
        cancelled = False

        async def write(self, message: bytes) -> None:
            pass

        async def read(self) -> bytes:
            await asyncio.Event().wait()
            raise AssertionError

        def cancel(self) -> None:
            self.cancelled = True

    async def story() -> None:
        job = OpenRound(Round(0, "now", 2))
        work = RoundWork(SimpleNamespace(), job, SimpleNamespace(), SimpleNamespace())
        job.call = stream = Deaf()
        if ends_first:
            job.abandon()
        waiting = asyncio.create_task(asyncio.to_thread(lambda: work.wait(work.exchange(0, b""))))
        await asyncio.sleep(0.05)
        assert waiting.done() == ends_first
        job.abandon()
        with pytest.raises(Abandoned):
            await asyncio.wait_for(waiting, 5.0)
        assert stream.cancelled

    asyncio.run(story())


def test_a_step_that_waits_while_its_round_ends_is_not_made() -> None:
    """Its working copy may be another client's by then."""

    async def story() -> None:
        made, compute, going = tail(), ComputeQueue(1), threading.Event()
        open_round = SimpleNamespace(plan=SimpleNamespace(weight=lambda seat: 1.0, way_s=lambda seat, part_left: 1.0))
        planner = SimpleNamespace(cost=SimpleNamespace(server_flops=[1.0] * 6))
        metrics = SimpleNamespace(carried=lambda *words: None)
        shared = SimpleNamespace(open_round=open_round, compute=compute, planner=planner, metrics=metrics)
        before = made.side.state.floats.clone()
        busy = asyncio.create_task(compute.run(going.wait))
        waiting = asyncio.create_task(TrainHandler(shared)._step(open_round, made, Batch(0), batch(), STREAM))
        await asyncio.sleep(0.05)
        shared.open_round = None
        going.set()
        with raises(WireError, "round is over"):
            await waiting
        await busy
        assert torch.equal(made.side.state.floats, before)
        compute.close()

    asyncio.run(story())


def test_a_late_message_of_a_replaced_stream_drops_nobody() -> None:
    """A link that comes back may bring what was sent before the client had opened its new stream."""
    made = tail()
    made.enter(fresh := object())
    for late in (lambda: step(made, 0, batch()), lambda: made.check_stream(STREAM)):
        with raises(WireError, "replaced") as refused:
            late()
        assert refused.value.reason == "replaced"
    step(made, 0, batch(), fresh)
    assert made.step == 1


@pytest.mark.parametrize(
    ("name", "attempt", "dropped"), [("bo", "now", None), ("ada", "before", None), ("ada", "now", "it was late")]
)
def test_who_is_not_in_the_round_enters_no_stream(name: str, attempt: str, dropped: str | None) -> None:
    """Another client, an attempt that is over, a client that was dropped: refused, and nobody's stream is replaced."""
    made = tail()
    made.dropped = dropped
    train_handler = TrainHandler(SimpleNamespace(open_round=SimpleNamespace(attempt="now", tails={0: made})))
    set_caller(Identity(name, "client", 0))
    with pytest.raises(WireError) as refused:
        train_handler._find_tail(Enter(attempt))
    assert refused.value.reason == "stale"
    made.check_stream(STREAM)


@pytest.mark.parametrize("over", [False, True])
def test_a_client_that_comes_back_hears_nothing_of_a_round_that_ended_meanwhile(over: bool) -> None:
    """A step of its old stream may hold the round's lock until then; the order of the next round was sent before."""

    async def story() -> None:
        made, sent = tail(), []
        open_round = SimpleNamespace(
            attempt="now", tails={0: made}, is_complete=lambda seat: False, order=lambda seat: Round(0, "now", 2)
        )
        shared = SimpleNamespace(
            open_round=open_round,
            roster=SimpleNamespace(send=lambda seat, message: sent.append(message)),
            log=None,
        )
        member = SimpleNamespace(seat=0, ready=SimpleNamespace(holds=None))
        async with made.lock:
            back = asyncio.create_task(AttendHandler(shared)._resume_round(member))
            await asyncio.sleep(0)
            shared.open_round = None if over else open_round
        await back
        assert len(sent) == (not over)

    asyncio.run(story())


def test_a_round_that_is_begun_anew_counts_its_bytes_anew() -> None:
    made = tail()
    loss, gradient = made.compute(batch())
    made.answer(loss, gradient, 0.0, 0.0, 1000)
    made.restart()
    assert (made.up_bytes, made.down_bytes) == (0, 0)
