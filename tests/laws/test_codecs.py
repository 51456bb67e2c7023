"""Laws of codecs: what loses nothing changes nothing, heads go on learning whatever is lost, engines and resumed runs agree to the bit."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from hsfl import codec_table, plugins
from hsfl.codec_table import register_codec
from hsfl.config import parse_config
from hsfl.errors import InputError
from hsfl.framework_table import METHODS
from hsfl.frameworks import find_framework
from hsfl.frameworks.framework import State, Task
from hsfl.models.state import TensorsByClient, UnitState
from hsfl.runs.loop import train_run
from hsfl.runs.prepare import prepare
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.training.codecs.codec import Codec, Draws, Payload
from hsfl.training.codecs.head_codec import REMEMBERED
from tests.laws.bench import assert_same, in_clusters, make_task
from tests.naming import raises
from tests.small_runs import assert_same_run, numbers, tiny

CODED = {"up": "int8", "down": "int8", "model": "int8"}
OPTIONS = {"cpsl": {"cpsl": {"cut": "cluster"}}}
SPLIT = [name for name, row in METHODS.items() if row.built_in and row.timing.cut == "any"]
OWN_HEADS = [("fsl", {"fsl": {"average": "server"}}), ("psl", {"psl": {"cut_gradient": True}})]


class Lossless(Codec):
    """Sends every number as it is, in a tensor of its own."""

    def encode(self, tensor: Tensor, direction: str, draws: Draws | None) -> Payload:
        return Payload({"values": tensor.clone()})

    def check(self, payload: Payload, shape: Sequence[int], dtype: torch.dtype) -> None: ...

    def decode(self, payload: Payload, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return payload.arrays["values"].clone()


@pytest.fixture
def _lossless() -> Iterator[None]:
    register_codec(
        "lossless", Lossless, num_bytes=lambda shape, number_bytes, _: number_bytes * torch.Size(shape).numel()
    )
    yield
    plugins.REGISTERED.pop(("codec", "lossless")).forget()
    assert "lossless" not in codec_table.CODECS


def coded(framework: str, link: dict[str, str], options: dict | None = None) -> Task:
    task = make_task([2, 3, 4], [4, 8, 6], options=options or OPTIONS.get(framework), dropout=0.2)
    task = in_clusters(task, (1, 2, 0)) if framework == "cpsl" else task
    tree = task.config.model_dump(mode="json") | {"framework": framework, "link": link}
    return dataclasses.replace(task, config=parse_config(tree))


def rounds(task: Task, count: int = 2) -> tuple[list[UnitState], dict[str, int], State]:
    algorithm = find_framework(task.config.framework)(task)
    state = algorithm.init()
    for index in range(count):
        state, result = algorithm.round(state, [0, 1, 2], index)
    return list(algorithm.models(state)), vars(result.bytes), state


CASES = [*((name, None) for name in SPLIT), *OWN_HEADS]


@pytest.mark.usefixtures("_lossless")
@pytest.mark.parametrize(("framework", "options"), CASES)
def test_a_codec_that_loses_nothing_changes_no_bit(framework: str, options: dict | None) -> None:
    """What was sent and what arrived are two tensors then, and every gradient finds its way all the same."""
    plain, sent, _ = rounds(coded(framework, {}, options))
    other, sent_coded, _ = rounds(coded(framework, {"up": "lossless", "down": "lossless"}, options))
    assert sent == sent_coded
    for left, right in zip(plain, other, strict=True):
        assert torch.equal(left.floats, right.floats)
        assert torch.equal(left.ints, right.ints)


@pytest.mark.usefixtures("_lossless")
@pytest.mark.parametrize(("framework", "options"), [*CASES, ("fl", None)])
def test_heads_as_differences_that_lose_nothing_change_only_digits(framework: str, options: dict | None) -> None:
    plain, sent, _ = rounds(coded(framework, {}, options))
    other, sent_coded, _ = rounds(coded(framework, {"model": "lossless"}, options))
    assert sent == sent_coded
    for left, right in zip(plain, other, strict=True):
        assert_same(left, right, 1e-12)


@pytest.mark.parametrize(
    "link", [CODED, {"up": "topk:0.5", "down": "topk:0.5", "model": "float16"}], ids=["int8", "topk"]
)
@pytest.mark.parametrize(("framework", "options"), CASES)
def test_heads_go_on_learning_near_the_uncoded_model(
    framework: str, options: dict | None, link: dict[str, str]
) -> None:
    """In frameworks that go in step, too, a head whose smashed data are coded must get its gradient."""
    task = coded(framework, link, options)
    models, sent, _ = rounds(task)
    plain, sent_plain, _ = rounds(coded(framework, {}, options))
    for model, uncoded in zip(models, plain, strict=True):
        first = model[0:1].floats - task.initial[0:1].floats
        way = uncoded[0:1].floats - task.initial[0:1].floats
        assert float(first @ way / (first.norm() * way.norm())) > (0.98 if link is CODED else 0.5)
        assert 0.3 < float(first.norm() / way.norm()) < 3
    for route in ("client_main_up", "client_main_down"):
        assert sent[route] < (0.25 if link is CODED else 0.6) * sent_plain[route]
    if sent_plain["client_edge_up"]:
        assert sent["client_edge_up"] < 0.7 * sent_plain["client_edge_up"]  # LocFedMix-SL's decoders travel uncoded
    for route in ("client_edge_down", "edge_main"):
        assert sent[route] == sent_plain[route]


@pytest.mark.parametrize("framework", ["hsfl", "fl", "sl", "splitfed_v2", "psl", "cpsl"])
def test_clients_remember_what_was_lost_of_their_heads(framework: str) -> None:
    """Error feedback: after many rounds the sum of what arrived is near what was sent, which needs memory from round to round."""
    _, _, state = rounds(coded(framework, {"model": "int8"}))
    assert sorted(state.memory) == [0, 1, 2]
    for client in state.memory.values():
        assert set(client) == {REMEMBERED}
        assert 0 < float(client[REMEMBERED].abs().max()) < 0.1
    _, _, plain = rounds(coded(framework, {"up": "int8"}))
    assert not plain.memory
    algorithm = find_framework(framework)(coded(framework, {"model": "int8"}))
    remembered, forgotten = (
        next(iter(algorithm.models(algorithm.round(before, [0, 1, 2], 2)[0])))
        for before in (state, dataclasses.replace(state, memory=TensorsByClient()))
    )
    assert not torch.equal(remembered.floats, forgotten.floats)


BOTH_WAYS = ("link.up=topk:0.2", "link.down=int8", "link.model=int8")


@pytest.mark.slow
def test_workers_and_one_process_give_the_same_bits(tmp_path: Path) -> None:
    words = (*BOTH_WAYS, "train.drop_rate=0.3", "train.rounds=4", "fleet.num_clients=4", "fleet.cuts=[1, 2, 3, 5]")
    train_run(tiny(*words), tmp_path / "inline")
    train_run(tiny(*words, "engine.name=workers", "engine.workers=2", "engine.threads=1"), tmp_path / "workers")
    assert numbers(tmp_path / "inline") == numbers(tmp_path / "workers")
    left, right = (load_file(tmp_path / name / "model.safetensors") for name in ("inline", "workers"))
    assert all(torch.equal(left[name], right[name]) for name in left)


MIXED = (
    "link.codecs=topk:0.2/int8,none,int8,float16",
    "link.model=int8",
    "fleet.num_clients=4",
    "fleet.cuts=[1, 2, 3, 5]",
)


def test_workers_and_one_process_give_the_same_bits_with_mixed_codecs(tmp_path: Path) -> None:
    words = (*MIXED, "train.drop_rate=0.3", "train.rounds=3")
    train_run(tiny(*words), tmp_path / "inline")
    train_run(tiny(*words, "engine.name=workers", "engine.workers=2", "engine.threads=1"), tmp_path / "workers")
    assert numbers(tmp_path / "inline") == numbers(tmp_path / "workers")
    left, right = (load_file(tmp_path / name / "model.safetensors") for name in ("inline", "workers"))
    assert all(torch.equal(left[name], right[name]) for name in left)
    record = RunFolder(tmp_path / "inline").rounds()[0]
    assert record.codecs == ["topk:0.2/int8", "none", "int8", "none"]  # at the last cut nothing travels
    assert record.coded is not None


def test_a_client_trains_with_its_own_codec(tmp_path: Path) -> None:
    """Alone in a round, a client of a mix learns and sends what it does where everybody has its codec."""
    one_each = ("fleet.num_clients=3", "fleet.cuts=[1, 2, 3]", "train.rounds=1")
    mixed = prepare(tiny("link.codecs=topk:0.2/int8,none,int8", *one_each)).task
    for client, link in enumerate((("topk:0.2", "int8"), ("none", "none"), ("int8", "int8"))):
        alike = prepare(tiny(f"link.up={link[0]}", f"link.down={link[1]}", *one_each)).task
        (one, one_sent), (other, other_sent) = (_round_of(task, client) for task in (mixed, alike))
        assert torch.equal(one.floats, other.floats)
        assert one_sent == other_sent


def _round_of(task: Task, client: int) -> tuple[UnitState, dict[str, int]]:
    algorithm = find_framework("hsfl")(task)
    state, result = algorithm.round(algorithm.init(), [client], 0)
    (model,) = algorithm.models(state)
    return model, vars(result.bytes)


def test_a_run_with_mixed_codecs_goes_on_and_refuses_others(tmp_path: Path) -> None:
    train_run(tiny(*MIXED), tmp_path / "whole")
    train_run(tiny(*MIXED, "train.rounds=2"), tmp_path / "parts")
    path = tmp_path / "parts" / "cuts.json"
    kept = path.read_text()
    path.write_text(kept.replace("topk:0.2/int8", "int8"))
    with raises(InputError, "codecs", "topk:0.2/int8", "cuts.json"):
        train_run(tiny(*MIXED), tmp_path / "parts", resume=True)
    path.write_text(kept.replace("topk:0.2/int8", "topk"))
    with raises(InputError, "client 0", "'topk'", "link.allowed"):
        train_run(tiny(*MIXED), tmp_path / "parts", resume=True)
    path.write_text(kept)
    train_run(tiny(*MIXED), tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("framework", ["hsfl", "sl", "psl"])
def test_a_run_that_goes_on_remembers_what_was_lost(framework: str, tmp_path: Path) -> None:
    words = (*BOTH_WAYS, f"framework={framework}", "fleet.one_cut=2" if framework != "hsfl" else "fleet.cuts=[1, 2, 3]")
    train_run(tiny(*words), tmp_path / "whole")
    train_run(tiny(*words, "train.rounds=2"), tmp_path / "parts")
    train_run(tiny(*words), tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_lossy_run_differs_from_an_uncoded_one(tmp_path: Path) -> None:
    """The guard of the tests above: the codecs were at work."""
    train_run(tiny("train.rounds=1"), tmp_path / "plain")
    train_run(tiny("train.rounds=1", *BOTH_WAYS), tmp_path / "coded")
    assert numbers(tmp_path / "plain") != numbers(tmp_path / "coded")
