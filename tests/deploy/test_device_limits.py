"""What a main server may tell a device, and send it: nothing that takes more memory than the device has, or has to hold."""

import asyncio
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hsfl.config import parse_config
from hsfl.deploy import device_limits
from hsfl.deploy.client_setup import prepare_setup
from hsfl.deploy.compute_queue import ComputeQueue
from hsfl.deploy.device_limits import OneHolder, made_within_memory
from hsfl.deploy.edge_server import EdgeProcess
from hsfl.deploy.logs import open_log
from hsfl.deploy.main.main_round import Tail
from hsfl.deploy.metrics import Metrics
from hsfl.deploy.settings import ClientSettings, read_settings, received_config, sent_settings
from hsfl.deploy.wire.client_messages import Welcome
from hsfl.deploy.wire.messages import pack_message
from hsfl.deploy.wire.server_messages import Begin
from hsfl.deploy.wire.transport import LEAST_MESSAGE_BYTES, Peer, ServedMethod, is_too_long, listen
from hsfl.errors import InputError
from hsfl.models.recipes import MODELS
from hsfl.runs.prepare import make_model
from tests.deploy.fleet import RUN, changed, samples, simulated
from tests.deploy.inside import Inside
from tests.deploy.trust_bench import in_loop
from tests.naming import names, raises

SMALL_MACHINE_BITS = 8.0 * (64 << 20)


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_limits, "machine_memory_bits", lambda: SMALL_MACHINE_BITS)


def told(folder: Path, seat: int = 0, **sections: dict[str, Any]) -> Any:
    """A device's answer to a Welcome with these settings."""
    config = parse_config(changed(RUN | {"data": {"name": "digits"}, "fleet": {"num_clients": 4}}, **sections))
    shape = list(config.model.input or (1, 8, 8))
    own = ClientSettings(name="ada", data={"name": f"npz:{samples(folder)}"})
    return prepare_setup(own, Welcome(seat, sent_settings(config), shape, 10, False))


def test_a_seat_takes_no_memory(tmp_path: Path) -> None:
    """Seat 1,999,999,999 of two billion once took 16 GB before anything else was looked at."""
    told(tmp_path)  # loads what is loaded once
    tracemalloc.start()
    setup = told(tmp_path, seat=1_999_999_999, fleet={"num_clients": 2_000_000_000})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert setup.data.num_samples == setup.feed.num_samples(1_999_999_999) == 400
    assert setup.feed.num_samples(0) == 0
    assert peak < 50 << 20


def test_a_seat_that_the_run_does_not_have_is_refused(tmp_path: Path) -> None:
    with raises(InputError, "seat 4", "4 seats", "operator"):
        told(tmp_path, seat=4)


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize(
    ("sections", "parts"),
    [
        ({"model": {"name": "mlp", "input": [1, 900, 900]}}, ("(1, 900, 900)", "model.input")),
        ({"train": {"local_epochs": 9999.0}}, ("9999 epochs", "train.local_epochs")),
        (
            {"model": {"name": "vit"}, "options": {"vit": {"width": 8192, "depth": 4, "patch": 2}}},
            ("model", "16.78 MB"),
        ),
    ],
)
def test_no_memory_is_taken_for_what_does_not_fit(
    tmp_path: Path, sections: dict[str, dict[str, Any]], parts: tuple[str, ...]
) -> None:
    with raises(InputError, *parts, "main server asks for", "ask the operator"):
        told(tmp_path, **sections)


@pytest.mark.usefixtures("small_machine")
def test_a_device_measures_itself_only_on_batches_that_it_can_hold(tmp_path: Path) -> None:
    setup = told(tmp_path, train={"batch_size": 10_000_000})
    with raises(InputError, "batches of 10000000", "train.batch_size"):
        setup.speed(0.0)
    assert told(tmp_path).speed(0.0).flops_per_s > 0


@pytest.mark.usefixtures("small_machine")
def test_the_edge_server_takes_no_model_that_it_cannot_hold(tmp_path: Path) -> None:
    model = {"model": {"name": "gpt"}, "options": {"gpt": {"width": 16384, "depth": 256}}}
    settings = sent_settings(parse_config(RUN | model | {"data": {"name": "digits"}, "fleet": {"num_clients": 4}}))

    async def story() -> None:
        edge = EdgeProcess(tmp_path, ComputeQueue(1), open_log("edge", True, io.StringIO()), Metrics())
        with raises(InputError, "main server asks for"):
            await edge.begin_run(pack_message(Begin("0" * 16, settings, [64], 256)), None)
        edge.compute.close()

    asyncio.run(story())


@pytest.mark.parametrize("name", ["cnn", "mlp", pytest.param("resnet18", marks=pytest.mark.slow)])
def test_a_model_is_the_same_to_the_bit_where_its_memory_is_counted(name: str) -> None:
    config = parse_config({"model": {"name": name}})
    assert name in MODELS
    usual = make_model(config, (3, 32, 32), 10).state_dict()
    counted = made_within_memory(lambda: make_model(config, (3, 32, 32), 10)).state_dict()
    assert all(torch.equal(tensor, counted[key]) for key, tensor in usual.items())
    num_bytes = sum(tensor.nbytes for tensor in usual.values())
    with raises(InputError, "model", "operator"):
        made_within_memory(lambda: make_model(config, (3, 32, 32), 10), limit=num_bytes // 2)


def test_settings_nested_beyond_all_depth_are_one_line() -> None:
    with raises(InputError, "settings", "same hsfl"):
        received_config("[" * 100_000)
    with raises(InputError, "settings", "same hsfl"):
        received_config(json.dumps({"data": 3}))


def test_no_file_of_a_device_is_opened_because_a_server_names_it(tmp_path: Path) -> None:
    """The name of a model of transformers is a path: each machine has its own, and hears the last part of the main server's."""
    config = parse_config({"model": {"name": "hf:/srv/main/gpt2.json"}})
    sent = sent_settings(config)
    assert "/srv" not in sent
    hostile = sent.replace("hf:gpt2.json", "hf:/etc/passwd")
    for settings in (sent, hostile):
        with raises(InputError, "hf:", "model is not given", "this machine's file"):
            received_config(settings)
        assert received_config(settings, model_path="/data/gpt2.json").model.name == "hf:/data/gpt2.json"
    file = tmp_path / "ada.toml"
    file.write_text('name = "ada"\nmodel = "gpt2"\n')
    assert read_settings(file, ClientSettings).model == str(tmp_path / "gpt2")


def test_one_holder_reads_like_the_list_that_it_stands_for() -> None:
    own = np.arange(5)
    usual, light = [np.empty(0, int)] * 3 + [own], OneHolder(3, own)
    assert len(light) == len(usual)
    assert all(np.array_equal(a, b) for a, b in zip(light, usual, strict=True))


# --- messages
TWO = changed(RUN, fleet={"num_clients": 2, "cuts": [1, 2]}, train={"rounds": 1})


@in_loop
async def test_a_device_takes_messages_as_long_as_it_was_told_to_hold() -> None:
    async def answer(request: bytes, context: Any) -> bytes:
        return bytes(int(request))

    methods = {"Ask": ServedMethod("unary_unary", ("client",), answer)}
    log = open_log("main", True, io.StringIO())
    listening = await listen("127.0.0.1:0", "hsfl.Main", methods, None, log, Metrics())
    for told_bytes, most_bytes in ((0, LEAST_MESSAGE_BYTES), (LEAST_MESSAGE_BYTES + 9, LEAST_MESSAGE_BYTES + 9)):
        peer = Peer(f"127.0.0.1:{listening.port}", "main", "ada", None, told_bytes)
        assert len(await peer.ask("Ask", b"%d" % most_bytes)) == most_bytes
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await peer.ask("Ask", b"%d" % (most_bytes + 1))
        assert is_too_long(refused.value)
        await peer.close()
    await listening.stop(0)


def test_an_answer_longer_than_a_gradient_ends_the_devices_part_in_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Tail.answer

    def answer(self: Tail, loss: torch.Tensor, gradient: dict[str, torch.Tensor], *seconds: Any) -> bytes:
        if self.name == "bo":
            gradient = {"gradient": torch.zeros(LEAST_MESSAGE_BYTES // 4)}
        return usual(self, loss, gradient, *seconds)

    monkeypatch.setattr(Tail, "answer", answer)
    more = {"min_clients": 1, "first_clients": 2}
    inside = Inside(tmp_path, changed(TWO, train={"tau_s": 4.0}), ("ada", "bo"), more=more)
    assert inside.go().status == "finished"
    (line,) = [line for line in inside.events("bo") if line["event"] == "left the round"]
    names(line["why"], "larger than max")
    assert inside.rounds()[0]["kept"] == [0]


def test_gradients_of_long_batches_arrive(tmp_path: Path) -> None:
    """Batches of more than the 8 MiB that every message may have."""
    train = {"batch_size": 120, "tau_s": 120.0}
    run = changed(TWO, model={"input": [1, 72, 72]}, fleet={"cuts": [1, 1]}, data={"limit": 240}, train=train)
    inside = Inside(tmp_path, run, ("ada", "bo"))
    assert inside.go().status == "finished"
    assert inside.rounds()[0]["bytes"]["client_main_down"] > 2 * LEAST_MESSAGE_BYTES  # a batch of each client
    wanted, model = simulated(inside.run, [[0, 1]]).named(), load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(model[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize("down", ["none", "topk:1.0", "int8"])
def test_a_device_is_told_how_long_the_longest_gradient_is(tmp_path: Path, down: str) -> None:
    """Top-k that keeps all numbers sends a mask besides, a bit for each."""
    size = 1 << 16
    kit = told(tmp_path, train={"batch_size": size}, link={"down": down}).kit
    numbers = size * max(int(np.prod(shape)) for shape in kit.shapes)
    assert kit.gradient_bytes >= 4 * numbers + numbers / 8 * (down == "topk:1.0")
