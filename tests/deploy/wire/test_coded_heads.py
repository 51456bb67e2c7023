"""Coded heads on the wire: what arrives is what a simulation gives, and a file that nobody encoded is refused before memory is taken."""

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from hsfl.config import parse_config
from hsfl.deploy.model_kit import ModelKit, make_kit
from hsfl.deploy.settings import MainSettings, received_config, run_config, sent_settings
from hsfl.deploy.wire.coded_heads import HeadFiles
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.model_chunks import most_state_bytes, state_bytes
from hsfl.models.state import UnitState
from tests.deploy.fleet import RUN, changed
from tests.deploy.kits import small_kit
from tests.naming import raises

CODECS = ("float16", "int8")


@cache
def coded_kit(codec: str) -> ModelKit:
    return make_kit(parse_config(changed(RUN, link={"model": codec})), (1, 8, 8), 10)


def heads(cut: int) -> tuple[UnitState, UnitState]:
    """A head as it came down, and as it was trained."""
    sent = small_kit().initial[0:cut].clone()
    trained = sent.clone()
    trained.floats.add_(torch.randn(len(trained.floats), generator=torch.Generator().manual_seed(cut)) * 1e-3)
    trained.floats.abs_()  # variances, too
    trained.ints.add_(3)
    return sent, trained


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5])
def test_what_arrives_is_what_a_simulation_gives(codec: str, cut: int) -> None:
    """To the bit, with the bytes of the simulation and its memory, in a second round, too."""
    files, lost, lost_there = coded_kit(codec).head_files, None, None
    assert files.codec is not None
    for _ in range(2):
        sent, trained = heads(cut)
        packed = files.pack(sent, trained, lost)
        arrived = files.unpack(packed.content, sent)
        num_bytes, lost_there = files.codec.carry(sent, trained, lost_there)
        assert torch.equal(arrived.head.floats, trained.floats)
        assert torch.equal(arrived.head.ints, trained.ints)
        assert packed.lost is not None
        assert torch.equal(packed.lost, lost_there)
        assert arrived.num_bytes == num_bytes
        assert num_bytes < len(packed.content) <= files.most_bytes(sent)
        lost = packed.lost
    assert lost is not None
    assert float(lost.abs().max()) > 0


def test_without_a_codec_heads_travel_as_they_are() -> None:
    sent, trained = heads(2)
    for files, head in ((HeadFiles(), trained), (coded_kit("int8").head_files, trained[0:0])):
        packed = files.pack(sent[0 : head.stop], head, None)
        assert (packed.content, packed.lost) == (state_bytes(head), None)
        arrived = files.unpack(packed.content, sent[0 : head.stop])
        assert torch.equal(arrived.head.floats, head.floats)
        assert arrived.num_bytes == head.num_bytes
        assert files.most_bytes(head) == most_state_bytes(head)


Change = Callable[[dict[str, Tensor]], None]


def first(arrays: dict[str, Tensor], ending: str) -> str:
    return next(name for name in arrays if name.endswith(ending))


def scale(number: float) -> Change:
    return lambda arrays: arrays[first(arrays, ".scales")].fill_(number)


def without(ending: str) -> Change:
    return lambda arrays: [arrays.pop(first(arrays, ending))].clear()


def replaced(ending: str, tensor: Tensor) -> Change:
    return lambda arrays: arrays.update({first(arrays, ending): tensor})


def beside(ending: str, array: str, tensor: Tensor) -> Change:
    return lambda arrays: arrays.update({first(arrays, ending).rpartition(".")[0] + array: tensor})


HOSTILE = {
    "nan": (scale(math.nan), "codec", ("scale", "nan")),
    "infinite": (scale(math.inf), "codec", ("scale", "inf")),
    "zero": (scale(0.0), "codec", ("scale", "above 0")),
    "negative": (scale(-1.0), "codec", ("scale", "-1")),
    "no scale": (without(".scales"), "codec", ("without scales",)),
    "no parameter": (lambda arrays: [arrays.pop(f"conv1.conv.bias.{name}") for name in ("values", "scales")].clear(), "codec", ("without values",)),
    "another codec": (replaced(".values", torch.zeros(9, dtype=torch.float16)), "codec", ("values", "float16")),
    "too many": (replaced(".values", torch.zeros(100_000, dtype=torch.int8)), "codec", ("values", "100000")),
    "one more array": (beside(".values", ".more", torch.zeros(9)), "codec", ("'more'",)),
    "uncoded": (beside(".values", "", torch.zeros(9)), "codec", ("uncoded", "link.model")),
    "uncoded nan": (beside(".values", "", torch.full((1,), math.nan)), "not_finite", ("NaN",)),
    "no buffer": (without("running_mean"), "shape", ("running_mean",)),
    "one more": (lambda arrays: arrays.update({"more": torch.zeros(3)}), "shape", ("'more'",)),
    "long buffer": (replaced("running_mean", torch.zeros(1000)), "shape", ("running_mean", "(1000,)")),
    "coded buffer": (replaced("running_mean", torch.zeros(8, dtype=torch.int8)), "shape", ("running_mean", "int8")),
}  # fmt: skip


@pytest.mark.parametrize(("change", "reason", "parts"), HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_file_is_refused_with_a_reason_before_memory_is_taken(
    monkeypatch: pytest.MonkeyPatch, change: Change, reason: str, parts: tuple[str, ...]
) -> None:
    files, (sent, trained) = coded_kit("int8").head_files, heads(2)
    arrays = load(files.pack(sent, trained, None).content)
    change(arrays)
    content = save(arrays)

    def no_memory(*_: object) -> None:
        raise AssertionError("memory for a head that is not in order")

    monkeypatch.setattr(UnitState, "empty", no_memory)
    with raises(WireError, *parts) as caught:
        files.unpack(content, sent)
    assert caught.value.reason == reason


@pytest.mark.parametrize("codec", CODECS)
def test_numbers_that_are_none_are_refused_there(codec: str) -> None:
    """A difference, a buffer, or what comes of a huge difference."""
    files, (sent, trained) = coded_kit(codec).head_files, heads(2)
    for name, number in (
        (first(trained.named(), "weight"), math.nan),
        (first(trained.named(), "running_mean"), math.inf),
    ):
        spoilt = trained.clone()
        spoilt.named()[name].view(-1)[0] = number
        with raises(WireError, "NaN") as caught:
            files.unpack(files.pack(sent, spoilt, None).content, sent)
        assert caught.value.reason == "not_finite"
    arrays = load(files.pack(sent, trained, None).content)
    if codec == "float16":
        arrays[first(arrays, ".values")].fill_(math.inf)
        with raises(WireError, "NaN") as caught:
            files.unpack(save(arrays), sent)
        assert caught.value.reason == "not_finite"


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"\xff" * 8 + b"{}", save({})])
def test_what_is_no_file_of_a_head_is_refused(content: bytes) -> None:
    with pytest.raises(WireError):
        coded_kit("int8").head_files.unpack(content, heads(2)[0])


def test_a_file_is_no_longer_than_codec_and_shapes_allow() -> None:
    """The server refuses the announcement of a longer one."""
    sent = coded_kit("int8").initial
    coded, plain = (
        make.most_bytes(sent) - make.most_bytes(sent[0:0]) for make in (coded_kit("int8").head_files, HeadFiles())
    )
    count = sum(part.numel() for part in coded_kit("int8").head_files.codec.parameters(sent).values())
    names = len(sent.named())
    assert plain - coded > 3 * count - 4 * names - 512 * 3 * names - 1


def test_devices_get_the_codec_of_heads() -> None:
    config = run_config(MainSettings(run=changed(RUN, link={"model": "int8", "up": "float16"})))
    assert received_config(sent_settings(config)).link.model == "int8"
