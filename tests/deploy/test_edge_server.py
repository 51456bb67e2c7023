"""The edge server's own promises: the rounds of two runs are kept apart, and a head that is complete stays."""

import asyncio
import io
import os
from pathlib import Path

import grpc
import pytest
import torch
from safetensors.torch import load_file

from hsfl.deploy.client_messages import Upload, Uploaded
from hsfl.deploy.compute import Compute
from hsfl.deploy.edge_server import Edge
from hsfl.deploy.frames import WireError
from hsfl.deploy.identity import Identity, set_caller
from hsfl.deploy.logs import open_log
from hsfl.deploy.messages import expect, pack
from hsfl.deploy.metrics import Metrics
from hsfl.deploy.server_messages import Await, Begin, EdgeTokens, Have, Open, Seat, Standing
from hsfl.deploy.settings import sent_settings
from hsfl.deploy.states import chunks, state_bytes
from hsfl.models.state import UnitState
from tests.deploy.fleet import RUN, changed, simulated
from tests.deploy.inside import Inside
from tests.deploy.kits import small_kit

CUT = 2
ONE_ROUND = changed(RUN, fleet={"cuts": [2, 2, 2, 2]}, train={"rounds": 1})
RUNS = "0" * 16, "1" * 16


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
    return pack(Begin(run, sent_settings(kit.config), list(kit.input_shape), kit.num_classes))


async def began(folder: Path) -> Edge:
    """An edge server in the middle of a round with one client."""
    edge = Edge(folder, Compute(1), open_log("edge", True, io.StringIO()), Metrics())
    await edge.begin(begin(RUNS[0]), None)
    await edge._keep(0, small_kit().initial[0:CUT].clone())
    return edge


async def opened(edge: Edge) -> EdgeTokens:
    answer = await edge.open(pack(Open(0, "now", [Seat(0, "ada", CUT, 20)], False)), None)
    return expect(answer, EdgeTokens)[0]


async def upload(edge: Edge, token: str, head: UnitState) -> Says:
    set_caller(Identity("ada", "client", 0))
    said = Says([pack(Upload("now", token)), *chunks(state_bytes(head))])
    await edge.upload(said, said)
    return said


def test_a_head_that_is_complete_stays_whatever_is_uploaded_after_it(tmp_path: Path) -> None:
    """The servers may have agreed on it: a second upload, good or bad, neither replaces it nor takes it away."""

    async def story() -> None:
        edge = await began(tmp_path)
        good, other = (small_kit().initial[0:CUT].clone() for _ in range(2))
        other.floats.mul_(1.01)
        bad = other.clone()
        bad.floats[0] = float("nan")
        for head, token in ((good, (await opened(edge)).upload[0]), (other, None), (bad, None)):
            token = token or expect(edge._tokens(edge._now("now"), [0]), EdgeTokens)[0].upload[0]
            if head is bad:
                with pytest.raises(WireError, match="NaN or infinite"):
                    await upload(edge, token, head)
            else:
                expect((await upload(edge, token, head)).heard[0], Uploaded)
        have, _ = expect(await edge.wait(pack(Await("now", 0, 1.0)), None), Have)
        assert (have.seats, have.refused) == ([0], [])
        assert torch.equal(edge._now("now").finished[0].state.floats, good.floats)
        edge.compute.close()

    asyncio.run(story())


def test_a_head_that_is_refused_is_told_with_its_reason(tmp_path: Path) -> None:
    """The main server counts drops by reason; where all of them diverged, so did the run."""

    async def story() -> None:
        edge = await began(tmp_path)
        bad = small_kit().initial[0:CUT].clone()
        bad.floats[0] = float("nan")
        with pytest.raises(WireError, match="NaN or infinite"):
            await upload(edge, (await opened(edge)).upload[0], bad)
        have, _ = expect(await edge.wait(pack(Await("now", 0, 1.0)), None), Have)
        assert (have.refused, have.reasons) == ([0], ["not_finite"])
        assert "NaN or infinite" in have.words[0]
        edge.compute.close()

    asyncio.run(story())


def test_a_run_finds_its_own_rounds_again_and_another_run_finds_none(tmp_path: Path) -> None:
    async def story() -> None:
        edge = await began(tmp_path)
        for run, rounds in zip((RUNS[0], RUNS[1], RUNS[0]), ([0], [], [0])):
            standing, _ = expect(await edge.begin(begin(run), None), Standing)
            assert (standing.rounds, standing.stops) == (rounds, [CUT][: len(rounds)])
        edge.compute.close()

    asyncio.run(story())


@pytest.mark.parametrize("run", ["", "../../../../etc", "0" * 15, "0" * 16 + "\n"])
def test_the_name_of_a_run_is_no_path(run: str) -> None:
    with pytest.raises(WireError, match="Begin: run"):
        expect(pack(Begin(run, "{}", [1], 2)), Begin)
