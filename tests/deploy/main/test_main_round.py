"""The main server's side of a client's round: what it refuses, and what it answers twice."""

import pytest
import torch

from hsfl.deploy.main.main_round import SpareTails, Tail
from hsfl.deploy.wire.client_messages import Batch, End, Gradient
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.messages import expect_message
from tests.deploy.kits import small_kit
from tests.naming import raises

CUT, SAMPLES = 2, 20  # batches of 8, 8 and 4


def tail() -> Tail:
    kit = small_kit()
    state = kit.initial[CUT : kit.num_units].clone()
    made = Tail(kit, 0, 0, "ada", CUT, SAMPLES, state, kit.make_part(CUT, kit.num_units), 0.01)
    made.enter(STREAM)
    return made


STREAM = object()


def batch(size: int = 8) -> dict[str, torch.Tensor]:
    return {"smashed": torch.rand(size, *small_kit().shapes[CUT]), "labels": torch.arange(size) % 10}


def step(made: Tail, number: int, tensors: dict[str, torch.Tensor], stream: object = STREAM) -> bytes:
    if made.is_repeated(Batch(number), stream):
        return made.last_answer
    loss, gradient = made.compute(tensors)
    return made.answer(loss, gradient, 0.0, 0.0, 0)


def done(steps: int = 3) -> End:
    return End(steps, SAMPLES, 1.0, 0.0, 0.0, 0.0)


def test_a_round_is_stepped_and_ended() -> None:
    made = tail()
    for number, size in enumerate((8, 8, 4)):
        answer, tensors = expect_message(step(made, number, batch(size)), Gradient, tensors=("gradient", "loss"))
        assert answer.step == number
        assert tensors["gradient"].shape == batch(size)["smashed"].shape
    made.finish(done())
    assert made.end is not None
    assert not torch.equal(made.side.state.floats, made.state.floats)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"smashed": torch.rand(8, 3)}, "shape"),
        ({"smashed": torch.rand(8, *small_kit().shapes[CUT]).double()}, "shape"),
        ({"smashed": torch.full((8, *small_kit().shapes[CUT]), float("nan"))}, "not_finite"),
        ({"smashed": torch.full((8, *small_kit().shapes[CUT]), float("inf"))}, "not_finite"),
        ({"labels": torch.zeros(7, dtype=torch.int64)}, "shape"),
        ({"labels": torch.zeros(8)}, "shape"),
        ({"labels": torch.full((8,), 10)}, "protocol"),
        ({"labels": torch.full((8,), -1)}, "protocol"),
    ],
)
def test_wrong_batches_are_refused_before_a_step(change: dict[str, torch.Tensor], reason: str) -> None:
    made = tail()
    before = made.side.state.floats.clone()
    with pytest.raises(WireError) as caught:
        step(made, 0, batch() | change)
    assert caught.value.reason == reason
    assert torch.equal(made.side.state.floats, before)


def test_a_batch_that_is_replayed_or_out_of_order_is_refused() -> None:
    made = tail()
    step(made, 0, batch())
    for number in (0, 2, 9):
        with raises(WireError, f"step {number}", "1 comes next"):
            step(made, number, batch())
    with raises(WireError, "replaced"):
        step(made, 1, batch(), stream=object())


def test_a_new_stream_gets_the_answer_of_the_last_step_once() -> None:
    made = tail()
    first = step(made, 0, batch())
    weights = made.side.state.floats.clone()
    fresh = object()
    assert made.enter(fresh) == 1
    assert step(made, 0, batch(), fresh) == first
    assert torch.equal(made.side.state.floats, weights), "stepped once"
    with raises(WireError, "step 0", "1 comes next"):
        step(made, 0, batch(), fresh)


def test_working_copies_follow_the_clients_that_are_active() -> None:
    kit = small_kit()
    parts = SpareTails(kit)
    taken = [parts.take(CUT) for _ in range(3)]
    for part in taken:
        parts.give_back(CUT, part)
    parts.keep_only([CUT, 1])
    assert parts.take(CUT) in taken
    assert parts.take(CUT) not in taken
    assert parts.take(kit.num_units) is None


def test_an_early_end_is_refused() -> None:
    made = tail()
    step(made, 0, batch())
    for end in (done(), done(1)):
        with raises(WireError, "3 are due"):
            made.finish(end)
    assert made.end is None


def test_a_tail_that_has_grown_beyond_sense_is_refused() -> None:
    made = tail()
    for number, size in enumerate((8, 8, 4)):
        step(made, number, batch(size))
    made.side.state.floats.mul_(1e9)
    with raises(WireError, "grown"):
        made.finish(done())


def test_a_client_that_was_restarted_begins_anew() -> None:
    made = tail()
    step(made, 0, batch())
    made.restart()
    assert made.step == 0
    assert torch.equal(made.side.state.floats, made.state.floats)
