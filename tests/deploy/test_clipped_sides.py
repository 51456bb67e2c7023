"""The edge server's part of clipping: what it tells, what it takes, and what it refuses."""

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest

from hsfl.config import parse_config
from hsfl.deploy.clipped_sides import Factors, side_norms
from hsfl.deploy.compute_queue import ComputeQueue
from hsfl.deploy.edge_server import EdgeProcess, EdgeRound
from hsfl.deploy.logs import open_log
from hsfl.deploy.metrics import Metrics
from hsfl.deploy.model_kit import make_kit
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.messages import expect_message, pack_message
from hsfl.deploy.wire.server_messages import AskNorms, Clipped, Done, Norms, Swap
from hsfl.training.roles import FinishedSide
from tests.deploy.fleet import RUN, changed
from tests.naming import raises

CUT = 2


def edge_server(folder: Path, clip_norm: float | None) -> EdgeProcess:
    """An edge server with an open round and the complete heads of seats 0 and 1; that of seat 1 has moved far."""
    edge = EdgeProcess(folder, ComputeQueue(1), open_log("edge", True, io.StringIO()), Metrics())
    kit = edge.kit = make_kit(parse_config(changed(RUN, train={"clip_norm": clip_norm})), (1, 8, 8), 10)
    state = kit.initial[0:CUT].clone()
    edge.open_round = EdgeRound(0, "now", state, {}, (1e9,) * CUT)
    for seat, factor in ((0, 1.0), (1, 1e30)):
        head = state.clone()
        head.floats.mul_(factor)
        edge.open_round.finished[seat] = FinishedSide(head, 24.0)
    return edge


def asked(edge: EdgeProcess, message: Any) -> Any:
    answer = {AskNorms: edge.tell_norms, Clipped: edge.take_factors}[type(message)]

    async def story() -> bytes:
        try:
            return await answer(pack_message(message), None)
        finally:
            edge.compute.close()

    return asyncio.run(story())


def test_lengths_cross_whole_however_long_they_are(tmp_path: Path) -> None:
    edge = edge_server(tmp_path, 0.01)
    assert edge.kit is not None
    assert edge.kit.clip is not None
    assert edge.open_round is not None
    norms, _ = expect_message(asked(edge, AskNorms("now", [1, 0])), Norms)
    state, heads = edge.open_round.state, edge.open_round.finished
    assert norms.squared == side_norms(edge.kit.clip, state, heads, [1, 0])
    assert norms.squared[0] > 2**63
    assert norms.squared[1] == 0
    factor = edge.kit.clip.factor(norms.squared[0])
    scaled = Factors(edge.kit.clip, {1: factor}).scaled(1, state, heads[1])
    assert heads[1].state.floats.max() > 1e20, "the head itself stays, as sums may be made again"
    assert scaled.state.floats.max() > 1e20, "BatchNorm's buffers are not clipped"


def test_factors_are_taken_for_the_swap_that_follows(tmp_path: Path) -> None:
    edge = edge_server(tmp_path, 0.01)
    expect_message(asked(edge, Clipped("now", [0, 1], [1.0, 0.25])), Done)
    assert edge.open_round is not None
    assert edge.open_round.factors is not None
    assert edge.open_round.factors.by_seat == {0: 1.0, 1: 0.25}


@pytest.mark.parametrize(
    ("message", "clip_norm", "parts"),
    [
        (AskNorms("now", [0, 7]), 0.01, ("head is not complete",)),
        (AskNorms("now", [0, 0]), 0.01, ("head is not complete",)),
        (AskNorms("then", [0]), 0.01, ("attempt",)),
        (AskNorms("now", [0]), None, ("train.clip_norm",)),
        (Clipped("now", [0, 1], [1.0]), 0.01, ("1 factors", "2 clients")),
        (Clipped("now", [0, 1], [1.0, 1.5]), 0.01, ("factors",)),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, message: Any, clip_norm: float | None, parts: tuple[str, ...]
) -> None:
    with raises(WireError, *parts):
        asked(edge_server(tmp_path, clip_norm), message)


def test_sums_are_not_made_before_the_factors_are_known(tmp_path: Path) -> None:
    edge = edge_server(tmp_path, 0.01)

    class Says:
        async def read(self) -> bytes:
            return pack_message(Swap(0, "now", [0, 1], 0, 1))

    async def story() -> None:
        with raises(WireError, "factor is not known"):
            await edge.swap_sums(None, Says())
        edge.compute.close()

    asyncio.run(story())
