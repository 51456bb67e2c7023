"""A client that does not keep to the protocol is refused and dropped with a log line; the others go on, and the model is theirs."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file, save

from hsfl.deploy.admin.operator_events import OperatorEvent, append_event, time_now
from hsfl.deploy.client import ClientProcess
from hsfl.deploy.client_round import OpenRound, RoundWork
from hsfl.deploy.client_setup import ClientSetup
from hsfl.deploy.logs import Log
from hsfl.deploy.main import main_server
from hsfl.deploy.settings import ClientSettings
from hsfl.deploy.wire.client_messages import Batch, Chunk, Enter, Entered, Upload
from hsfl.deploy.wire.coded_heads import HeadFiles, PackedHead
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.messages import expect_message, pack_message, unpack_message
from hsfl.deploy.wire.transport import read_message
from hsfl.models.state import UnitState
from tests.deploy.barrage import barrage, messages
from tests.deploy.fleet import RUN, changed, simulated
from tests.deploy.inside import Inside

Deed = Callable[[RoundWork, UnitState], Awaitable[None]]
ONE_ROUND = changed(RUN, fleet={"cuts": [5, 1, 2, 3]}, train={"rounds": 1, "tau_s": 20.0})
MORE = {"min_clients": 3, "first_clients": 4}


class Hostile(ClientProcess):
    """A client that does its part until it comes to the deed."""

    def __init__(self, settings: ClientSettings, deed: Deed, log: Log) -> None:
        super().__init__(settings, None, log)
        self.deed = deed

    async def _fetch_train_upload(self, setup: ClientSetup, job: OpenRound) -> None:
        work = self._round_work(setup, job)
        await self.deed(work, await work.fetch_head())


async def bad_batch(work: RoundWork, change: dict[str, torch.Tensor], step: int = 0) -> None:
    _, y, _ = next(iter(work.setup.data.batches(0)))
    smashed = torch.rand(len(y), *work.setup.kit.shapes[work.job.order.cut])
    await work.exchange(step, pack_message(Batch(step), {"smashed": smashed, "labels": y} | change))


async def not_a_number(work: RoundWork, head: UnitState) -> None:
    shape = (8, *work.setup.kit.shapes[work.job.order.cut])
    await bad_batch(work, {"smashed": torch.full(shape, float("nan"))})


async def wrong_shape(work: RoundWork, head: UnitState) -> None:
    await bad_batch(work, {"smashed": torch.rand(8, 3)})


async def out_of_order(work: RoundWork, head: UnitState) -> None:
    await work.enter_round()
    await work.job.call.write(pack_message(Batch(5), {"smashed": torch.rand(1), "labels": torch.zeros(1).long()}))
    await read_message(work.job.call)


async def replayed(work: RoundWork, head: UnitState) -> None:
    await bad_batch(work, {})
    await bad_batch(work, {})


async def garbage(work: RoundWork, head: UnitState) -> None:
    await work.enter_round()
    await work.job.call.write(b"\x00" * 100)
    await read_message(work.job.call)


async def uploaded(work: RoundWork, pieces: list[bytes]) -> None:
    call = (await work.channels()).edge.stream("Upload")
    await call.write(pack_message(Upload(work.job.order.attempt)))
    for piece in pieces:
        await call.write(piece)
    await call.done_writing()
    await read_message(call)


async def infinite_head(work: RoundWork, head: UnitState) -> None:
    await work.end(await asyncio.get_running_loop().run_in_executor(None, work.train, head))
    assert work.job.head is not None
    work.job.head.floats[0] = float("inf")
    await work.upload_head()


async def changed_head(work: RoundWork, kind: str, value: float) -> None:
    """The honest client's head, in which one buffer of this kind has another value."""
    await work.end(await asyncio.get_running_loop().run_in_executor(None, work.train, await work.fetch_head()))
    assert work.job.head is not None
    next(tensor for name, tensor in work.job.head.named().items() if name.endswith(kind)).fill_(value)
    await work.upload_head()


async def negative_variance(work: RoundWork, head: UnitState) -> None:
    """All numbers are finite, and every output of the averaged model would be NaN."""
    await changed_head(work, "running_var", -1.0)


async def huge_count(work: RoundWork, head: UnitState) -> None:
    """The servers' sums of integers would overflow."""
    await changed_head(work, "num_batches_tracked", 2**62)


async def count_beyond_the_batches(work: RoundWork, head: UnitState) -> None:
    await changed_head(work, "num_batches_tracked", 10_000)


async def negative_count(work: RoundWork, head: UnitState) -> None:
    await changed_head(work, "num_batches_tracked", -1)


async def oversized_head(work: RoundWork, head: UnitState) -> None:
    content = torch.zeros(100, dtype=torch.uint8)
    await uploaded(work, [pack_message(Chunk(0, 1 << 40), {"bytes": content})])


async def other_head(work: RoundWork, head: UnitState) -> None:
    content = save({"x": torch.zeros(3)})
    piece = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    await uploaded(work, [pack_message(Chunk(0, len(content)), {"bytes": piece})])


async def good_head_and_bad_batch(work: RoundWork, head: UnitState) -> None:
    """The edge server holds a complete head of a client that the main server drops."""
    work.job.head = head
    await work.upload_head()
    await not_a_number(work, head)


DEEDS = {
    not_a_number: ("main", "not_finite"),
    wrong_shape: ("main", "shape"),
    out_of_order: ("main", "order"),
    replayed: ("main", "order"),
    garbage: ("main", "protocol"),
    infinite_head: ("edge", "not_finite"),
    oversized_head: ("edge", "too_large"),
    other_head: ("edge", "shape"),
    negative_variance: ("edge", "range"),
    huge_count: ("edge", "range"),
    count_beyond_the_batches: ("edge", "range"),
    negative_count: ("edge", "range"),
    good_head_and_bad_batch: ("main", "not_finite"),
}
QUICK = (good_head_and_bad_batch, oversized_head, negative_variance)


@pytest.mark.parametrize(
    "deed", [pytest.param(deed, marks=() if deed in QUICK else pytest.mark.slow, id=deed.__name__) for deed in DEEDS]
)
def test_the_client_is_dropped_and_the_others_go_on(tmp_path: Path, deed: Deed) -> None:
    check_dropped(Inside(tmp_path, ONE_ROUND, more=MORE), deed, *DEEDS[deed])


def check_dropped(inside: Inside, deed: Deed, where: str, reason: str) -> None:
    """The fourth client does the deed."""

    async def hostile() -> None:
        await Hostile(inside.client_settings("di"), deed, inside.log("di")).run_and_reconnect()

    summary = inside.go(hostile, honest=("ada", "bo", "cy"))
    assert summary.status == "finished"
    drops = [line for line in inside.events(where) if line["event"] == "client dropped"]
    assert [(line["client"], line["reason"]) for line in drops] == [("di", reason)], inside.events(where)
    (record,) = inside.rounds()
    assert record["kept"] == [0, 1, 2]
    assert record["dropped"] == [3]
    wanted, model = simulated(inside.run, [[0, 1, 2]]).named(), load_file(inside.folder / "run" / "model.safetensors")
    assert all(torch.equal(model[name], tensor) for name, tensor in wanted.items())


async def zero_scale(work: RoundWork, head: UnitState) -> None:
    """A payload of the right shapes that no encoder made."""
    await work.end(await asyncio.get_running_loop().run_in_executor(None, work.train, head))
    arrays = load(work.job.pack(work.setup.kit.head_files))
    next(array for name, array in arrays.items() if name.endswith(".scales")).zero_()
    work.job.upload = PackedHead(save(arrays), None)
    await work.upload_head()


async def uncoded_head(work: RoundWork, head: UnitState) -> None:
    await work.end(await asyncio.get_running_loop().run_in_executor(None, work.train, head))
    work.job.upload = HeadFiles().pack(None, head, None)
    await work.upload_head()


CODED_DEEDS = {
    zero_scale: "codec",
    uncoded_head: "too_large",
    infinite_head: "not_finite",
    oversized_head: "too_large",
    negative_variance: "range",
}


@pytest.mark.parametrize(
    "deed",
    [pytest.param(d, marks=() if d is zero_scale else pytest.mark.slow, id=d.__name__) for d in CODED_DEEDS],
)
def test_so_is_one_whose_coded_head_is_not_in_order(tmp_path: Path, deed: Deed) -> None:
    run = changed(ONE_ROUND, link={"model": "int8"})
    check_dropped(Inside(tmp_path, run, more=MORE), deed, "edge", CODED_DEEDS[deed])


@pytest.mark.slow
def test_one_device_that_spoils_every_round_ends_no_server_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All four make a round. One of them sends no numbers; after more tries than a server makes with nobody kept, the operator kicks it."""
    monkeypatch.setattr(main_server, "PAUSE_S", (0.0, 0.0))
    inside, tries = Inside(tmp_path, ONE_ROUND), 0

    async def spoilt(work: RoundWork, head: UnitState) -> None:
        nonlocal tries
        tries += 1
        if tries == main_server.MOST_TRIES + 1:
            values = {"min_clients": 3.0}
            append_event(tmp_path / "run", OperatorEvent(time_now(), "kick", "di"))
            append_event(tmp_path / "run", OperatorEvent(time_now(), "set", values=values))
        await not_a_number(work, head)

    async def hostile() -> None:
        await Hostile(inside.client_settings("di"), spoilt, inside.log("di")).run_and_reconnect()

    assert inside.go(hostile, honest=("ada", "bo", "cy")).status == "finished"
    assert tries > main_server.MOST_TRIES
    assert [record["kept"] for record in inside.rounds()] == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("num_calls", "evaluate"),
    [
        (60, "clients"),
        pytest.param(400, "clients", marks=pytest.mark.slow),
        pytest.param(400, "here", marks=pytest.mark.slow),
    ],
)
def test_a_barrage_of_any_messages_at_any_method_harms_nobody(tmp_path: Path, num_calls: int, evaluate: str) -> None:
    """Nothing comes that nobody thought of: no line of the servers is an error."""
    inside = Inside(tmp_path, changed(ONE_ROUND, train={"tau_s": 60.0}), more=MORE | {"evaluate": evaluate})

    async def hostile() -> None:
        deed = barrage(num_calls, seed=num_calls)
        await Hostile(inside.client_settings("di"), deed, inside.log("di")).run_and_reconnect()

    assert inside.go(hostile, honest=("ada", "bo", "cy")).status == "finished"
    assert [record["kept"] for record in inside.rounds()] == [[0, 1, 2]]
    for server in ("main", "edge"):
        lines = inside.events(server)
        assert [line for line in lines if line["level"] == "error"] == []
        assert len(lines) < 200


def test_messages_of_a_barrage_are_refused_for_many_reasons() -> None:
    """Of another version they would all be refused at the door, and show nothing of what is behind it."""
    sentences, content = Counter[str](), messages(random.Random(0), "attempt")
    for _ in range(2000):
        try:
            unpack_message(next(content))
            sentences["taken"] += 1
        except WireError as error:
            sentences[error.sentence[:12]] += 1
    assert sentences.total() == 2000
    assert len(sentences) > 50
    assert max(sentences.values()) < 1000
    assert sum(count for sentence, count in sentences.items() if "side speaks" in sentence) < 100


def test_a_second_stream_of_the_same_client_harms_nobody(tmp_path: Path) -> None:
    """An Enter that a broken link held back may arrive after the client's new stream. The client opens another stream and goes on."""
    inside = Inside(tmp_path, ONE_ROUND, more=MORE)

    async def entering_twice(work: RoundWork, head: UnitState) -> None:
        await work.enter_round()
        call = (await work.channels()).main.stream("Train")
        await call.write(pack_message(Enter(work.job.order.attempt)))
        expect_message(await read_message(call), Entered)
        await work.end(await asyncio.get_running_loop().run_in_executor(None, work.train, head))
        await work.upload_head()

    async def client() -> None:
        await Hostile(inside.client_settings("di"), entering_twice, inside.log("di")).run_and_reconnect()

    inside.go(client, honest=("ada", "bo", "cy"))
    refused = [line for line in inside.events("main") if line["event"] == "message refused"]
    assert [(line["client"], line["reason"]) for line in refused] == [("di", "replaced")]
    assert inside.rounds()[0]["kept"] == [0, 1, 2, 3]
    wanted, model = simulated(inside.run, [[0, 1, 2, 3]]).named(), load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(model[name], tensor) for name, tensor in wanted.items())
