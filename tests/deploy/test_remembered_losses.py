"""What a codec loses of a device's head comes with its next head, once the main server says that the head was counted; and never twice."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hsfl.config import parse_config
from hsfl.deploy.client_round import LostOfHead, OpenRound
from hsfl.deploy.main.main_round import MainRound
from hsfl.deploy.main.main_server import MainProcess
from hsfl.deploy.main.roster import Roster
from hsfl.deploy.model_kit import make_kit
from hsfl.deploy.wire.client_messages import Round, RoundOver
from hsfl.deploy.wire.messages import unpack_message
from tests.deploy.fleet import RUN, changed, simulated
from tests.deploy.inside import Inside

NAMES = ("ada", "bo", "cy")
CODED = changed(
    RUN,
    fleet={"num_clients": 3, "cuts": [1, 2, 5]},
    train={"rounds": 4, "tau_s": 60.0},
    link={"model": "int8"},
)
DROPPED = 1  # bo, in the second round, with its head at the edge server
KEPT = [[0, 1, 2], [0, 2], [0, 1, 2], [0, 1, 2]]


@pytest.fixture
def _dropped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main server drops a client of its second round, both of whose sides are complete."""
    agree = MainProcess._agree_and_swap_sums

    async def agree_without_one(self: MainProcess, open_round: MainRound) -> Any:
        if open_round.round == 1:
            self.shared.drop(DROPPED, "late", "as the test wants it")
        return await agree(self, open_round)

    monkeypatch.setattr(MainProcess, "_agree_and_swap_sums", agree_without_one)


def assert_simulated(inside: Inside, kept: Sequence[Sequence[int]]) -> None:
    assert [record["kept"] for record in inside.rounds()] == list(kept), inside.events("main")
    wanted, model = simulated(inside.run, kept).named(), load_file(inside.folder / "run" / "model.safetensors")
    assert all(torch.equal(model[name], tensor) for name, tensor in wanted.items())


@pytest.mark.usefixtures("_dropped_once")
@pytest.mark.parametrize("codec", ["int8", pytest.param("float16", marks=pytest.mark.slow)])
def test_a_dropped_client_remembers_what_was_lost_before(tmp_path: Path, codec: str) -> None:
    """Its head came to the edge server and was not summed: what was lost of that head is forgotten, as in a simulation that keeps the same clients."""
    inside = Inside(tmp_path, changed(CODED, link={"model": codec}), NAMES, {"min_clients": 2, "first_clients": 3})
    assert inside.go().status == "finished", inside.events("main")
    assert_simulated(inside, KEPT)


def test_a_device_that_does_not_hear_how_a_round_ended_remembers_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RoundOver may be lost with a connection. The next Round says which head was counted."""
    send = Roster.send

    def send_no_end(self: Roster, seat: int, message: bytes) -> bool:
        return isinstance(unpack_message(message)[0], RoundOver) or send(self, seat, message)

    monkeypatch.setattr(Roster, "send", send_no_end)
    inside = Inside(tmp_path, changed(CODED, train={"rounds": 3}), NAMES)
    assert inside.go().status == "finished", inside.events("main")
    assert_simulated(inside, [[0, 1, 2]] * 3)


@pytest.mark.parametrize(
    "settings",
    [
        {"train": {"clip_norm": 0.02, "rounds": 3}},
        pytest.param({"framework": "fl", "fleet": {"cuts": 2}}, marks=pytest.mark.slow),
        pytest.param({"framework": "splitfed_v1", "fleet": {"cuts": 2}}, marks=pytest.mark.slow),
        pytest.param({"link": {"model": "float16", "codecs": ["int8", "topk:0.2/none", "none"]}}, marks=pytest.mark.slow),
    ],
    ids=["clipped", "fl", "splitfed_v1", "mixed"],
)  # fmt: skip
def test_coded_heads_are_the_simulations_to_the_bit(tmp_path: Path, settings: dict[str, Any]) -> None:
    sections = {name: part for name, part in settings.items() if isinstance(part, dict)}
    run = changed(CODED | {name: word for name, word in settings.items() if name not in sections}, **sections)
    inside = Inside(tmp_path, run, NAMES)
    assert inside.go().status == "finished", inside.events("main")
    assert_simulated(inside, [[0, 1, 2]] * run["train"]["rounds"])


def test_a_main_server_that_goes_on_knows_whose_head_was_counted(tmp_path: Path) -> None:
    """The attempt stands in its checkpoint, so that devices that stayed keep their memory."""
    inside = Inside(tmp_path, changed(CODED, train={"rounds": 1}), NAMES)
    assert inside.go().status == "finished"
    orders = list[Round]()
    send = Roster.send

    def note_orders(self: Roster, seat: int, message: bytes) -> bool:
        if isinstance(order := unpack_message(message)[0], Round):
            orders.append(order)
        return send(self, seat, message)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Roster, "send", note_orders)
        inside.run = changed(inside.run, train={"rounds": 2})
        inside.go()
    first_attempts = {order.counted for order in orders if order.round == 1}
    assert len(first_attempts) == 1
    assert None not in first_attempts


@pytest.mark.parametrize(("cut", "remembers"), [(2, True), (3, False)])
def test_another_cut_begins_with_nothing_lost(cut: int, remembers: bool) -> None:
    kit = make_kit(parse_config(CODED), (1, 8, 8), 10)
    sent = kit.initial[0:cut].clone()
    trained = sent.clone()
    trained.floats.add_(1e-3)
    count = sum(part.numel() for part in kit.head_files.codec.parameters(sent).values())
    before = LostOfHead("before", 2, torch.full((count,), 1e-4))
    packed = {}
    for name, lost in (("with", before), ("without", None)):
        job = OpenRound(Round(1, "now", cut, "before"), lost_before=lost, sent=sent, head=trained.clone())
        packed[name] = job.pack(kit.head_files)
        assert job.pack(kit.head_files) is packed[name], "coded once, however often it is sent"
        assert job.lost is not None
        assert (job.lost.attempt, job.lost.cut) == ("now", cut)
    assert (packed["with"] != packed["without"]) == remembers
