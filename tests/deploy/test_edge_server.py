"""The edge server's own promises: the rounds of two runs are kept apart, and a head that is complete stays."""

import asyncio
import io
import os
from contextlib import nullcontext
from pathlib import Path

import grpc
import pytest
import torch
from safetensors.torch import load_file

from hsfl.deploy.compute_queue import ComputeQueue
from hsfl.deploy.edge_server import EdgeProcess
from hsfl.deploy.logs import open_log
from hsfl.deploy.metrics import Metrics
from hsfl.deploy.settings import sent_settings
from hsfl.deploy.trust.identity import Identity, set_caller
from hsfl.deploy.wire.client_messages import Fetch, Upload, Uploaded
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.legal_state import MOST_CALLS
from hsfl.deploy.wire.messages import expect_message, pack_message
from hsfl.deploy.wire.model_chunks import chunks, state_bytes
from hsfl.deploy.wire.server_messages import Await, Begin, Done, Have, Open, Seat, Standing
from hsfl.models.state import UnitState
from tests.deploy.fleet import RUN, changed, simulated
from tests.deploy.inside import Inside
from tests.deploy.kits import small_kit
from tests.naming import names, raises

CUT = 2
ONE_ROUND = changed(RUN, fleet={"cuts": [2, 2, 2, 2]}, train={"rounds": 1})
RUNS = "0" * 16, "1" * 16
OPEN = pack_message(Open(0, "now", [Seat(0, "ada", CUT, 20, 20)], False))


def test_a_new_run_begins_with_its_own_weights_though_the_edge_server_holds_another_run(tmp_path: Path) -> None:
    """The same model, the same round, another seed: nothing of the first run comes into the second."""
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        inside = Inside(folder, ONE_ROUND | {"seed": seed})
        if seed == 2:
            os.rename(tmp_path / "1" / "edge", folder / "edge")
        assert inside.go().status == "finished"
        wanted, model = simulated(inside.run, [[0, 1, 2, 3]]).named(), load_file(folder / "run" / "model.safetensors")
        assert all(torch.equal(model[name], tensor) for name, tensor in wanted.items())


class Says:
    """A stream from a client that says these messages; what the server answers is in `heard`."""

    def __init__(self, messages: list[bytes]) -> None:
        self.messages, self.heard = messages, list[bytes]()

    async def read(self) -> object:
        return self.messages.pop(0) if self.messages else grpc.aio.EOF

    async def write(self, message: bytes) -> None:
        self.heard.append(message)


def begin(run: str) -> bytes:
    kit = small_kit()
    return pack_message(Begin(run, sent_settings(kit.config), list(kit.input_shape), kit.num_classes))


async def began(folder: Path) -> EdgeProcess:
    """An edge server that holds the first round."""
    edge = EdgeProcess(folder, ComputeQueue(1), open_log("edge", True, io.StringIO()), Metrics())
    await edge.begin_run(begin(RUNS[0]), None)
    await edge._save_state(0, small_kit().initial[0:CUT].clone())
    return edge


async def opened(folder: Path) -> EdgeProcess:
    """An edge server in the middle of a round with one client."""
    edge = await began(folder)
    expect_message(await edge.start_round(OPEN, None), Done)
    return edge


async def upload(edge: EdgeProcess, head: UnitState) -> Says:
    set_caller(Identity("ada", "client", 0))
    said = Says([pack_message(Upload("now")), *chunks(state_bytes(head))])
    await edge.take_head(said, said)
    return said


def test_a_head_that_is_complete_stays_whatever_is_uploaded_after_it(tmp_path: Path) -> None:
    """The servers may have agreed on it: a second upload, good or bad, neither replaces it nor takes it away."""

    async def story() -> None:
        edge = await opened(tmp_path)
        good, other = (small_kit().initial[0:CUT].clone() for _ in range(2))
        other.floats.mul_(1.01)
        bad = other.clone()
        bad.floats[0] = float("nan")
        for head in (good, other):
            expect_message((await upload(edge, head)).heard[0], Uploaded)
        with raises(WireError, "NaN"):
            await upload(edge, bad)
        have, _ = expect_message(await edge.await_heads(pack_message(Await("now", 0, 1.0)), None), Have)
        assert (have.seats, have.refused) == ([0], [])
        assert torch.equal(edge._round_of_attempt("now").finished[0].state.floats, good.floats)
        edge.compute.close()

    asyncio.run(story())


def test_a_head_that_is_refused_is_told_with_its_reason_and_is_the_last(tmp_path: Path) -> None:
    """The main server counts drops by reason; where all of them diverged, so did the run. A second head is not taken."""

    async def story() -> None:
        edge, good = await opened(tmp_path), small_kit().initial[0:CUT].clone()
        bad = good.clone()
        bad.floats[0] = float("nan")
        for head, parts in ((bad, ["NaN or infinite"]), (good, ["head of ada", "refused in this round"])):
            with raises(WireError, *parts):
                await upload(edge, head)
        assert not edge._round_of_attempt("now").finished
        have, _ = expect_message(await edge.await_heads(pack_message(Await("now", 0, 1.0)), None), Have)
        assert (have.refused, have.reasons) == ([0], ["not_finite"])
        names(have.words[0], "NaN")
        edge.compute.close()

    asyncio.run(story())


def test_a_head_may_grow_by_so_much_and_no_more(tmp_path: Path) -> None:
    """Any finite numbers below the bound are taken, honest or not."""

    async def story() -> None:
        edge, head = await opened(tmp_path), small_kit().initial[0:CUT].clone()
        most = edge._round_of_attempt("now").largest_values[0]
        assert most == 2.0**12 * max(1.0, float(head[0:1].floats.abs().max()))
        head.floats[0] = 1.001 * most
        with raises(WireError, "has grown"):
            await upload(edge, head)
        await edge.start_round(OPEN, None)
        head.floats[0] = most
        expect_message((await upload(edge, head)).heard[0], Uploaded)
        edge.compute.close()

    asyncio.run(story())


def test_batches_are_counted_by_what_a_client_holds_and_not_by_what_it_counts(tmp_path: Path) -> None:
    """An honest client that `max_samples` lets count little has trained on all that it holds."""

    async def story() -> None:
        edge, head = await opened(tmp_path), small_kit().initial[0:CUT].clone()
        head.ints.fill_(MOST_CALLS + 1)
        for num_samples, weight, taken in ((8, 8000, False), (8000, 8, True)):
            await edge.start_round(
                pack_message(Open(0, "now", [Seat(0, "ada", CUT, num_samples, weight)], False)), None
            )
            with nullcontext() if taken else raises(WireError, "num_batches_tracked", f"0 to {MOST_CALLS}"):
                await upload(edge, head)
        assert edge._round_of_attempt("now").finished[0].weight == 8
        edge.compute.close()

    asyncio.run(story())


def test_a_client_that_opens_many_uploads_has_one(tmp_path: Path) -> None:
    """Each would hold a head in memory for as long as its last chunk does not come, also when the round is over."""

    class Stalled(Says):
        async def read(self) -> object:
            if not self.messages:
                await asyncio.Event().wait()
            return await super().read()

    async def story() -> None:
        edge, head = await opened(tmp_path), small_kit().initial[0:CUT].clone()
        set_caller(Identity("ada", "client", 0))
        said = [Stalled([pack_message(Upload("now"))]) for _ in range(5)]
        uploads = []
        for each in said:
            uploads.append(asyncio.create_task(edge.take_head(each, each)))
            await asyncio.sleep(0)
        first_ones = await asyncio.wait_for(asyncio.gather(*uploads[:-1], return_exceptions=True), 30)
        assert [getattr(error, "reason", error) for error in first_ones] == ["replaced"] * 4
        assert not uploads[-1].done()
        assert not edge._round_of_attempt("now").refused
        await edge.start_round(OPEN, None)
        with raises(WireError, "upload again"):
            await asyncio.wait_for(uploads[-1], 30)
        expect_message((await upload(edge, head)).heard[0], Uploaded)
        edge.compute.close()

    asyncio.run(story())


def test_an_upload_during_which_the_round_is_opened_anew_is_asked_for_again(tmp_path: Path) -> None:
    """The main server opens the round anew after it had lost the edge server. A client that heard Uploaded would not upload again."""

    async def story() -> None:
        edge, head = await opened(tmp_path), small_kit().initial[0:CUT].clone()

        class Slow(Says):
            async def read(self) -> object:
                if len(self.messages) == 1:
                    await edge.start_round(OPEN, None)
                return await super().read()

        said = Slow([pack_message(Upload("now")), *chunks(state_bytes(head))])
        set_caller(Identity("ada", "client", 0))
        with pytest.raises(WireError, match="upload again"):
            await edge.take_head(said, said)
        expect_message((await upload(edge, head)).heard[0], Uploaded)
        assert list(edge._round_of_attempt("now").finished) == [0]
        edge.compute.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("name", "attempt", "parts"),
    [("bo", "now", ("bo", "no part in this round")), ("ada", "before", ("attempt", "not open"))],
)
def test_a_client_that_the_round_has_not_admitted_gets_and_gives_no_head(
    tmp_path: Path, name: str, attempt: str, parts: tuple[str, ...]
) -> None:
    """Nor does one that comes with an attempt that is over."""

    async def story() -> None:
        edge, head = await opened(tmp_path), small_kit().initial[0:CUT].clone()
        set_caller(Identity(name, "client", 0))
        for handle, message in ((edge.send_head, Fetch(attempt)), (edge.take_head, Upload(attempt))):
            said = Says([pack_message(message), *chunks(state_bytes(head))])
            with raises(WireError, *parts):
                await handle(said, said)
            assert not said.heard
        assert not edge._round_of_attempt("now").finished
        assert not edge._round_of_attempt("now").refused
        edge.compute.close()

    asyncio.run(story())


def test_a_run_finds_its_own_rounds_again_and_another_run_finds_none(tmp_path: Path) -> None:
    async def story() -> None:
        edge = await began(tmp_path)
        for run, rounds in zip((RUNS[0], RUNS[1], RUNS[0]), ([0], [], [0])):
            standing, _ = expect_message(await edge.begin_run(begin(run), None), Standing)
            assert (standing.rounds, standing.stops) == (rounds, [CUT][: len(rounds)])
        edge.compute.close()

    asyncio.run(story())


@pytest.mark.parametrize("run", ["", "../../../../etc", "0" * 15, "0" * 16 + "\n"])
def test_the_name_of_a_run_is_no_path(run: str) -> None:
    with pytest.raises(WireError, match="Begin: run"):
        expect_message(pack_message(Begin(run, "{}", [1], 2)), Begin)
