"""The length of an update is one number, whatever the cut, the memory and the order in which its parts are added."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.models.state import UnitState
from hsfl.models.zoo import build
from hsfl.training import clipping
from hsfl.training.aggregate import Diverged
from hsfl.training.clipping import WHOLE, Clip, clip_of, scale_update
from tests.laws.bench import NUM_CLASSES, SHAPE, make_task

MODEL = build("cnn", SHAPE, NUM_CLASSES, seed=5)
TASK = make_task([1], [4], model=MODEL, dtype=torch.float32)


def update(seed: int) -> tuple[UnitState, UnitState]:
    sent, trained = TASK.initial.clone(), TASK.initial.clone()
    trained.floats.add_(torch.randn(len(trained.floats), generator=torch.Generator().manual_seed(seed)))
    return sent, trained


def moved(state: UnitState, offset: int) -> UnitState:
    """The state at another place in memory."""
    memory = torch.zeros(len(state.floats) + offset)
    memory[offset:] = state.floats
    return UnitState(state.layout, state.start, state.stop, memory[offset:], state.ints)


def clip(norm: float) -> Clip:
    made = clip_of(norm, TASK.model, TASK.layout)
    assert made is not None
    return made


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-6, 1e6), st.integers(0, 7))
def test_head_and_tail_make_the_whole_to_the_bit(seed: int, norm: float, offset: int) -> None:
    (sent, trained), made, stop = update(seed), clip(norm), TASK.num_units
    whole = made.squared_norm(sent, trained)
    shifted = moved(trained, offset)
    for cut in range(stop + 1):
        parts = [made.squared_norm(sent[a:b], shifted[a:b]) for a, b in ((0, cut), (cut, stop))]
        assert sum(parts) == whole
    factor = made.factor(whole)
    joined = [made.scaled(sent[a:b], shifted[a:b], factor).floats for a, b in ((0, 2), (2, stop))]
    assert torch.equal(torch.cat(joined), made.scaled(sent, trained, factor).floats)


@pytest.mark.parametrize("norm", [0.01, 1.0, 30.0])
def test_the_clipped_update_is_as_long_as_it_may_be(norm: float) -> None:
    sent, trained = update(1)
    names = {name for name, _ in MODEL.named_parameters()}

    def length(state: UnitState) -> float:
        named = zip(state.named().items(), sent.named().values())
        return float(np.sqrt(sum(float((t - s).double().square().sum()) for (name, t), s in named if name in names)))

    made = clip(norm)
    factor = made.factor(made.squared_norm(sent, trained))
    assert factor == pytest.approx(min(1.0, norm / length(trained)), rel=1e-9)
    assert length(made.scaled(sent, trained, factor)) == pytest.approx(min(norm, length(trained)), rel=1e-6)


def test_the_longest_update_that_may_be_keeps_its_bits() -> None:
    sent, trained = update(2)
    made = clip(1.0)
    assert made.factor(WHOLE) == 1.0
    assert 0.999999 < made.factor(WHOLE + (WHOLE >> 20)) < 1.0
    assert made.scaled(sent, trained, 1.0) is trained


def test_pieces_of_a_unit_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, trained = update(3)
    whole = trained.clone()
    scale_update(clip(1.0).stretches, sent, whole, 0.3)
    monkeypatch.setattr(clipping, "CHUNK", 7)
    scale_update(clip(1.0).stretches, sent, trained, 0.3)
    assert torch.equal(whole.floats, trained.floats)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_ends_the_round_in_words(value: float) -> None:
    sent, trained = update(4)
    trained[1:2].floats.fill_(value)
    with pytest.raises(Diverged, match="unit 2"):
        clip(1.0).squared_norm(sent, trained)
