"""From outside: what a client with wild weights or a wild claim can do to a round, and what the settings of the operator stop."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hsfl.data.passes import RoundSteps
from hsfl.deploy.client import ClientProcess
from hsfl.deploy.client_round import OpenRound, RoundWork
from hsfl.deploy.client_setup import ClientSetup
from hsfl.deploy.logs import Log
from hsfl.deploy.settings import ClientSettings, MainSettings, run_config
from hsfl.deploy.wire.client_messages import End, Ended
from hsfl.deploy.wire.messages import expect_message, pack_message
from hsfl.errors import InputError
from hsfl.models.state import UnitState
from hsfl.runs.run_folder.folder import RunFolder
from tests.deploy.fleet import RUN, changed, simulated
from tests.deploy.inside import Inside
from tests.naming import names, raises

WHOLE_MODEL = changed(RUN, fleet={"cuts": [1, 2, 3, 5]}, train={"rounds": 1, "tau_s": 20.0})
HONEST = ("ada", "bo", "cy")
CLAIM = 1_000_000
BUFFER = re.compile("running_(mean|var)|num_batches_tracked")
Wild = Callable[[UnitState], None]  # changes a head


class Patched(ClientProcess):
    """A client that trains nothing: it changes the head that it got, sends it back, and claims as many samples as it likes."""

    def __init__(self, settings: ClientSettings, log: Log, wild: Wild, claim: int | None = None) -> None:
        super().__init__(settings, None, log)
        self.wild, self.claim = wild, claim

    async def _prepare(self, *arguments: Any) -> ClientSetup:
        setup = await super()._prepare(*arguments)
        counts = (self.claim, *[0] * (len(setup.class_counts) - 1)) if self.claim else setup.class_counts
        return replace(setup, class_counts=counts)

    async def _fetch_train_upload(self, setup: ClientSetup, job: OpenRound) -> None:
        work = self._round_work(setup, job)
        job.head = await work.fetch_head()
        self.wild(job.head)
        await work.upload_head()
        await self._end(work, sum(setup.class_counts))

    async def _end(self, work: RoundWork, num_samples: int) -> None:
        train = work.setup.kit.config.train
        steps = RoundSteps(num_samples, train.batch_size, train.local_epochs, work.job.order.round)
        end = End(steps.count, steps.total_samples, 1.0, 0.0, 0.0, 0.0)
        expect_message(await work.exchange(0, pack_message(end)), Ended)


def zeros(head: UnitState) -> None:
    head.floats.zero_()


def huge(head: UnitState) -> None:
    head.floats.mul_(40.0)


def deployed(inside: Inside, wild: Wild, claim: int | None = None) -> dict[str, torch.Tensor]:
    """The model of a deployment in which di, the fourth client, is patched."""

    async def patched() -> None:
        await Patched(inside.client_settings("di"), inside.log("di"), wild, claim).run_and_reconnect()

    assert inside.go(patched, honest=HONEST).status == "finished", inside.events("main")
    return dict(load_file(inside.folder / "run" / "model.safetensors"))


@pytest.mark.parametrize(
    ("max_samples", "weight", "why"),
    [
        (None, 48, "median of the others"),
        pytest.param({"di": 8}, 8, "max_samples", marks=pytest.mark.slow),
        pytest.param(100, 100, "max_samples", marks=pytest.mark.slow),
    ],
)
def test_a_million_samples_that_nobody_saw_count_little(
    tmp_path: Path, max_samples: Any, weight: int, why: str
) -> None:
    """The others have 24 samples each, and make the model M. Zeros of weight w leave 72 / (72 + w) of it."""
    inside = Inside(tmp_path, WHOLE_MODEL, more={"max_samples": max_samples})
    model = deployed(inside, zeros, CLAIM)
    honest = simulated(inside.run, [[0, 1, 2]]).named()
    for name, tensor in ((name, tensor) for name, tensor in honest.items() if tensor.is_floating_point()):
        torch.testing.assert_close(model[name], tensor * 72 / (72 + weight), rtol=1e-5, atol=1e-7)
    (told,) = [line for line in inside.events("main") if line["event"] == "client counts less than it claims"]
    assert (told["client"], told["claims"], told["counts_as"]) == ("di", CLAIM, weight)
    (note,) = RunFolder(tmp_path / "run").clients().notes
    for text in (note, told["why"]):
        names(text, why)
    names(note, "di", "1,000,000", str(weight))


def test_clipped_updates_are_the_simulations_to_the_bit(tmp_path: Path) -> None:
    """One number for each client crosses between the servers, for clients with cuts 1, 2, 3 and 5 of five units."""
    run = changed(RUN, train={"rounds": 2, "tau_s": 60.0, "clip_norm": 0.02})
    inside = Inside(tmp_path, run)
    assert inside.go().status == "finished", inside.events("main")
    wanted = simulated(inside.run, [[0, 1, 2, 3]] * 2).named()
    free = simulated(changed(inside.run, train={"clip_norm": None}), [[0, 1, 2, 3]] * 2).named()
    model = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(model[name], tensor) for name, tensor in wanted.items())
    assert not all(torch.equal(model[name], tensor) for name, tensor in free.items())
    clipped = [line for line in inside.events("main") if line["event"] == "updates clipped"]
    assert [set(line["clients"]) for line in clipped] == [{"ada", "bo", "cy", "di"}] * 2


@pytest.mark.slow
def test_a_huge_update_of_one_client_moves_a_clipped_model_by_its_share_of_the_norm(tmp_path: Path) -> None:
    run = changed(WHOLE_MODEL, train={"clip_norm": 0.1})
    inside = Inside(tmp_path, run)
    model, start = deployed(inside, huge), simulated(inside.run, [])
    weights = [(model[name], tensor) for name, tensor in start.named().items() if not BUFFER.search(name)]
    way = sum(float((after - before).double().square().sum()) for after, before in weights) ** 0.5
    assert 0 < way <= 0.1 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("on_jump", "kept"),
    [
        ("reject", [0, 1, 2]),
        pytest.param("warn", [0, 1, 2, 3], marks=pytest.mark.slow),
        pytest.param(None, [0, 1, 2, 3], marks=pytest.mark.slow),
    ],
)
def test_a_round_whose_loss_jumps_is_made_again_without_the_offender(
    tmp_path: Path, on_jump: str | None, kept: list[int]
) -> None:
    inside = Inside(tmp_path, WHOLE_MODEL, more={"on_jump": on_jump, "min_clients": 3, "first_clients": 4})
    model = deployed(inside, huge)
    (record,) = inside.rounds()
    assert record["kept"] == kept
    events = [line["event"] for line in inside.events("main") if line["level"] == "warning"]
    drops = [line for line in inside.events("main") if line["event"] == "client dropped"]
    assert events == {"reject": ["test loss jumped", "client dropped"], "warn": ["test loss jumped"]}.get(
        on_jump or "", []
    )
    assert [(line["client"], line["reason"]) for line in drops] == ([("di", "jump")] if on_jump == "reject" else [])
    if on_jump == "reject":
        wanted = simulated(inside.run, [[0, 1, 2]]).named()
        assert all(torch.equal(model[name], tensor) for name, tensor in wanted.items())
        assert record["dropped"] == [3]


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"run": {"train": {"average": "median"}}}, ("run.train.average", "median", "sums", "clip_norm")),
        ({"run": {"attack": {"kind": "noise"}}}, ("run.attack.kind", "noise", "hsfl run")),
        ({"on_jump": "warn", "evaluate": "clients"}, ("on_jump", "evaluate=here")),
    ],
)
def test_what_real_machines_cannot_do_is_refused(settings: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises(InputError, *parts):
        run_config(MainSettings(**settings))
