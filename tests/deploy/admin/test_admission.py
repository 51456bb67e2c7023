"""Two devices with one bundle: the one that was there first stays, and the other is refused in words until it is gone."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from safetensors.torch import load_file

from hsfl.deploy.admin import admission
from hsfl.deploy.admin.admission import is_alive
from hsfl.deploy.client import ClientProcess
from hsfl.deploy.main.roster import Member
from hsfl.deploy.processes import run_client
from hsfl.deploy.wire import transport
from hsfl.deploy.wire.messages import pack_message
from tests.deploy.fleet import RUN, changed, simulated
from tests.deploy.inside import Inside
from tests.deploy.main.test_roster import READY
from tests.deploy.test_operator_orders import until
from tests.naming import names

TWO = changed(RUN, data={"limit": 48}, fleet={"num_clients": 2, "cuts": [1, 3]}, train={"rounds": 2, "batch_size": 16})
NAMES = ("ada", "bo")


async def cloned(inside: Inside, **settings: Any) -> str:
    """A second device with bo's bundle and its own samples."""
    clone = inside.client_settings("bo").model_copy(update={"as_client": 0} | settings)
    return await run_client(clone, True, inside.log("clone"))


def events(inside: Inside, name: str, event: str) -> list[dict[str, Any]]:
    return [line for line in inside.events(name) if line["event"] == event]


def test_the_second_device_is_refused_in_words_and_the_first_is_not_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many times, and each side logs it once a minute."""
    inside, tries = Inside(tmp_path, TWO, NAMES, more={"evaluate": "none"}), []
    monkeypatch.setattr(transport, "BACKOFF_S", (0.02, 0.02))
    monkeypatch.setattr(admission, "ANSWER_S", 60.0)  # for slow machines
    check, enough = admission.Admission.check, asyncio.Event()

    async def counted(self: admission.Admission, name: str, context: Any) -> None:
        try:
            await check(self, name, context)
        except grpc.aio.AbortError:
            tries.append(name)
            if len(tries) == 5:
                enough.set()
            raise

    monkeypatch.setattr(admission.Admission, "check", counted)

    async def clone() -> None:
        await until(inside, "main", "client joined", client="bo")
        device = asyncio.create_task(cloned(inside))
        await asyncio.wait_for(enough.wait(), 100)
        device.cancel()

    async def ada() -> None:  # without whom there is no round
        await asyncio.wait_for(enough.wait(), 100)
        await inside.client("ada")

    assert inside.go(clone, ada, honest=("bo",)).status == "finished"
    assert set(tries) == {"bo"}
    assert len(events(inside, "main", "client joined")) == 2
    assert not events(inside, "main", "client's connection ended")
    (refusal,) = events(inside, "main", "second device refused")
    assert refusal["client"] == "bo"
    (line,) = events(inside, "clone", "another device is connected as bo; trying again")
    names(line["why"], "bo is connected from", "this address since 20", "UTC", "hsfl certs add")
    assert not events(inside, "clone", "the main server is away; trying again")
    assert [record["kept"] for record in inside.rounds()] == [[0, 1], [0, 1]]
    wanted, model = simulated(inside.run, [[0, 1]] * 2).named(), load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(model[name], tensor) for name, tensor in wanted.items())


def test_a_device_that_does_not_answer_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen device, or one behind a dead link: the next one takes its place, and makes the rounds."""
    monkeypatch.setattr(admission, "ANSWER_S", 0.3)
    inside = Inside(tmp_path, TWO, NAMES, more={"evaluate": "none"})

    async def frozen() -> None:
        """It joins, and reads nothing any more."""
        device = ClientProcess(inside.client_settings("bo"), None, inside.log("frozen"))

        async def nothing(setup: Any, call: Any) -> str:
            await asyncio.sleep(10_000)
            return ""

        device._follow_orders = nothing
        await device.run_and_reconnect()

    async def bo() -> None:
        await until(inside, "main", "client joined", client="bo")
        await inside.client("bo")

    async def ada() -> None:
        await until(inside, "main", "client joined", client="bo", times=2)
        await inside.client("ada")

    assert inside.go(frozen, bo, ada, honest=()).status == "finished"
    assert len(events(inside, "main", "another connection takes over from one that does not answer")) == 1
    assert [record["kept"] for record in inside.rounds()] == [[0, 1], [0, 1]]


@pytest.mark.parametrize("sign", ["answer", "end", "nothing"])
def test_signs_of_life(monkeypatch: pytest.MonkeyPatch, sign: str) -> None:
    """An answer, or an end of the connection, is known at once; silence after ANSWER_S."""
    monkeypatch.setattr(admission, "ANSWER_S", 0.05 if sign == "nothing" else 1000.0)

    async def story() -> None:
        member = Member("bo", 1, READY)
        asking = asyncio.create_task(is_alive(member))
        assert await member.outbox.get() == pack_message(admission.Knock())
        if sign == "answer":
            member.answered_s = asyncio.get_running_loop().time()
            member.answered.set()
        elif sign == "end":
            member.gone.set()
        assert await asking == (sign == "answer")
        if sign == "answer":
            assert await is_alive(member)  # without asking again
            assert member.outbox.empty()

    asyncio.run(story())
