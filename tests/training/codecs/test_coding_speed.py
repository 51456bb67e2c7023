"""Seconds of codecs: medians of one number, by codec, of messages that are not too large."""

import itertools

import pytest
import torch
from torch import Tensor

from hsfl.codec_table import CODECS, DOWN, UP, CodecChoice, usual_codecs
from hsfl.training.codecs import coding_speed
from hsfl.training.codecs.coding_speed import LEAST_TURNS, MOST_NUMBERS, WARM_UP, coding_seconds
from hsfl.training.codecs.int8 import Int8


def test_the_median_of_a_number_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by hand: encoding takes 3 s and decoding 1 s, the first turns and one later much longer."""
    now_s, lengths_s = 0.0, itertools.chain([50.0] * 2 * WARM_UP, [90.0, 90.0], itertools.cycle([3.0, 1.0]))

    class Timed(Int8):
        def encode(self, *words: object) -> object:  # type: ignore[override]
            nonlocal now_s
            now_s += next(lengths_s)

        def decode(self, *words: object) -> Tensor:
            nonlocal now_s
            now_s += next(lengths_s)
            return torch.zeros(0)

    monkeypatch.setattr(coding_speed, "make_codec", lambda choice: Timed())
    assert coding_seconds([CodecChoice(CODECS["int8"])], (2, 5), UP, 0.0, lambda: now_s) == {"int8": (0.3, 0.1)}
    assert now_s == 50.0 * 2 * WARM_UP + 180.0 + 4.0 * (LEAST_TURNS - 1)


def test_every_codec_is_timed_in_the_machines_own_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[int, str]]()
    encode = Int8.encode

    def note(self: Int8, tensor: Tensor, direction: str, draws: object) -> object:
        seen.append((tensor.numel(), direction))
        return encode(self, tensor, direction, draws)  # type: ignore[arg-type]

    monkeypatch.setattr(Int8, "encode", note)
    made = coding_seconds(usual_codecs(DOWN), (10**6, 16, 4, 4), DOWN, 0.0)
    assert list(made) == ["float16", "int8", "topk:0.1"]
    assert all(0 < number_s < 1e-3 for seconds in made.values() for number_s in seconds)
    assert set(seen) == {(MOST_NUMBERS, DOWN)}
    assert coding_seconds(usual_codecs(UP), None, UP) == {}
