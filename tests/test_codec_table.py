"""Codecs by their texts, in a few words that say what is wrong, and codecs of one's own."""

import pytest
import torch

from hsfl import plugins
from hsfl.codec_table import CODECS, checked_size, choose_codec, link_choices, num_kept, num_scales, register_codec
from hsfl.config import read_config
from hsfl.errors import InputError
from hsfl.training.codecs.codec import Codec
from tests.naming import raises


def size(shape: tuple[int, ...], number_bytes: int, number: float) -> float:
    return 2.0 * torch.Size(shape).numel()


class Mine(Codec):
    def encode(self, tensor, direction, draws): ...  # type: ignore[no-untyped-def]

    def check(self, payload, shape, dtype): ...  # type: ignore[no-untyped-def]

    def decode(self, payload, shape, dtype): ...  # type: ignore[no-untyped-def]


class WithNumber(Mine):
    def __init__(self, number: float) -> None:
        self.number = number


def test_texts_name_codecs() -> None:
    choices = link_choices(read_config(None, ["link.up=topk:0.25", "link.model=float16"]).link)
    assert choices.text() == "link.up=topk:0.25, link.model=float16"
    assert choices.lossy
    assert not link_choices(read_config(None, []).link).lossy
    usual = choose_codec("link.up", "topk", "up")
    assert usual is not None
    assert usual.number == 0.1


@pytest.mark.parametrize(
    ("text", "direction", "parts"),
    [
        ("int9", "up", ("link.up", "'int9'", "did you mean int8?", "--plugin")),
        ("topk:0.05", "up", ("link.up", "'topk:0.05'", "0.1..1", "10 %", "topk:0.1")),
        ("topk:many", "down", ("link.down", "'topk:many'", "0.1..1")),
        ("topk:nan", "down", ("link.down", "'topk:nan'", "0.1..1")),
        ("int8:4", "up", ("link.up", "'int8:4'", "takes no number", "write int8")),
        ("none:1", "up", ("link.up", "'none:1'", "write none")),
        ("topk", "model", ("link.model", "up and down", "none, float16, int8")),
        ("", "up", ("link.up", "''")),
    ],
)
def test_a_wrong_text_is_told(text: str, direction: str, parts: tuple[str, ...]) -> None:
    with raises(InputError, *parts):
        choose_codec(f"link.{direction}", text, direction)


def test_sizes_of_messages() -> None:
    assert num_kept((3, 30), 0.1) == 9
    assert num_kept((3, 31), 0.1) == 12
    assert num_kept((5,), 0.1) == 1
    assert num_scales(()) == 1
    for row in CODECS.values():
        choice = choose_codec("link.up", row.name, "up")
        assert choice is not None
        assert choice.num_bytes((0, 4), 4) == 0
        assert 0 < choice.num_bytes((4, 8, 8, 8), 4) < 4 * 4 * 512


@pytest.mark.parametrize(
    ("how", "parts"),
    [
        ({"codec": int}, ("'mine'", "no encode", "hsfl.Codec")),
        ({"codec": Mine, "num_bytes": lambda shape: 1}, ("num_bytes", "shape, number_bytes, number")),
        ({"codec": Mine, "directions": ("upp",)}, ("direction", "did you mean up?")),
        ({"codec": Mine, "encode_operations": -1}, ("-1", "not negative")),
        ({"codec": Mine, "number": (1, 2, 3)}, ("'mine'", "Mine", "with number")),
        ({"codec": WithNumber, "number": (1, 2, 3)}, ("(usual, lowest, highest)", "order of size")),
        ({"codec": WithNumber, "number": "few"}, ("'few'", "(usual, lowest, highest)")),
        ({"codec": WithNumber}, ("'mine'", "WithNumber")),
    ],
)
def test_a_codec_that_cannot_work_is_refused_when_it_is_registered(how: dict, parts: tuple[str, ...]) -> None:
    with raises(InputError, *parts):
        register_codec("mine", **{"num_bytes": size} | how)
    assert "mine" not in CODECS


def test_a_codec_of_ones_own_has_limits_and_a_size() -> None:
    register_codec("mine", WithNumber, num_bytes=size, directions=["up"], number=(4, 2, 8))
    try:
        choice = choose_codec("link.up", "mine:8", "up")
        assert choice is not None
        assert checked_size(choice, (3, 5), 4) == 30
        with raises(InputError, "mine:9", "2..8"):
            choose_codec("link.up", "mine:9", "up")
        with raises(InputError, "there already"):
            register_codec("topk", Mine, num_bytes=size)
    finally:
        plugins.REGISTERED.pop(("codec", "mine")).forget()
    register_codec("odd", Mine, num_bytes=lambda shape, number_bytes, number: float("nan"))
    try:
        odd = choose_codec("link.up", "odd", "up")
        assert odd is not None
        with raises(InputError, "'odd'", "num_bytes", "nan"):
            checked_size(odd, (3, 5), 4)
    finally:
        plugins.REGISTERED.pop(("codec", "odd")).forget()
