"""Sums of clients do not depend on their order or on who sums which clients, and lose nothing that a model could hold."""

import pickle
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.errors import InputError
from hsfl.models.state import UnitState, joined_view
from hsfl.rng import stream
from hsfl.training.aggregate import CHUNK, NEAR, Diverged, PartialSum, _add_rounded_floats, _stretches
from hsfl.training.link import Losses
from tests.laws.bench import make_task
from tests.naming import raises

BEFORE = make_task([1], [2], dtype=torch.float32).initial


def client(number: int, spread: float) -> UnitState:
    """A made-up state whose numbers lie within `spread` powers of ten."""
    state, rng = BEFORE.clone(), stream(number, "order-free")
    size = rng.normal(size=len(state.floats)) * 10.0 ** rng.uniform(-spread, 0, size=len(state.floats))
    state.floats.copy_(torch.from_numpy(size))
    state.ints.copy_(torch.from_numpy(rng.integers(0, 1000, size=len(state.ints))))
    return state


def total_of(states: list[UnitState], weights: list[float], order: list[int]) -> PartialSum:
    total = PartialSum.zero(BEFORE, sum(weights))
    for k in order:
        total.add(states[k], weights[k])
    return total


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.one_of(st.integers(1, 10**6), st.floats(1e-3, 1e3)), min_size=1, max_size=6),
    spread=st.floats(0, 8),
    data=st.data(),
)
def test_any_order_and_any_division_among_workers_give_the_same_bits(
    weights: list[float], spread: float, data: st.DataObject
) -> None:
    states = [client(k, spread) for k in range(len(weights))]
    everyone = list(range(len(weights)))
    plain = total_of(states, weights, everyone)
    shuffled = data.draw(st.permutations(everyone))
    where = data.draw(st.integers(0, len(weights)))
    merged = PartialSum.zero(BEFORE, sum(weights))
    for part in (shuffled[where:], shuffled[:where]):  # two workers, joined the other way round
        one = PartialSum.zero(BEFORE, sum(weights))
        for k in part:
            one.add(states[k], weights[k])
        merged.merge(one)
    for left, right in zip((plain.total.floats, plain.total.ints, plain.weight),
                           (merged.total.floats, merged.total.ints, merged.weight)):  # fmt: skip
        assert torch.equal(left, right)
    assert torch.equal(plain.mean(BEFORE).floats, merged.mean(BEFORE).floats)


def test_the_mean_is_exact_to_the_last_digit_of_a_weight() -> None:
    """Against rational arithmetic: as near as sums in float64, wherever a weight is above a millionth of the largest."""
    states, weights = [client(k, 3) for k in range(10)], [float(17 * k + 3) for k in range(10)]
    mean = total_of(states, weights, list(range(10))).mean(BEFORE)
    for at in range(0, len(mean.floats), 97):
        exact = sum(Fraction(w) * Fraction(float(s.floats[at])) for w, s in zip(weights, states)) / Fraction(
            sum(weights)
        )
        if abs(exact) > 1e-6:
            rounded = torch.tensor(float(exact), dtype=torch.float32)
            assert abs(mean.floats[at] - rounded) <= torch.finfo(torch.float32).eps * abs(rounded)
    double = sum(w * s.floats.double() for w, s in zip(weights, states)) / sum(weights)
    torch.testing.assert_close(mean.floats.double(), double, rtol=torch.finfo(torch.float32).eps, atol=1e-13)


@pytest.mark.parametrize(("value", "words"), [(float("nan"), "no number"), (1e6, "1e+06"), (-1e30, "grown")])
def test_what_a_sum_cannot_carry_is_refused(value: float, words: str) -> None:
    total, state = PartialSum.zero(BEFORE, 10), client(0, 1)
    state[2:3].floats[5] = value
    with raises(Diverged, "weight of unit 3", words):
        total.add(state, 10)


def test_the_largest_that_is_allowed_does_not_overflow() -> None:
    """A thousand clients that all bring the largest number they may."""
    total, state = PartialSum.zero(BEFORE, 1000 * 60), BEFORE.clone()
    state.floats.fill_(total.largest[0])
    for _ in range(1000):
        total.add(state, 60)
    assert torch.equal(total.mean(BEFORE).floats, state.floats)


def test_a_model_that_begins_with_infinity_has_no_grid() -> None:
    before = BEFORE.clone()
    before[1:2].floats[3] = float("-inf")
    with raises(Diverged, "weight of unit 2", "infinite"):
        PartialSum.zero(before, 10)


def test_more_weight_than_a_sum_was_made_for_is_noticed_before_it_is_used() -> None:
    total, state = PartialSum.zero(BEFORE, 10), BEFORE.clone()
    for _ in range(3):
        total.add(state, 10**6)
    with pytest.raises(AssertionError, match="weigh more"):
        total.mean(BEFORE)


@pytest.mark.parametrize("weights", [(3.0, 5.0, 2.0), (0.25, 1.5, 7.125)])
def test_counters_are_averaged_to_the_nearest_integer(weights: tuple[float, ...]) -> None:
    states = [client(k, 1) for k in range(3)]
    mean = total_of(states, list(weights), [2, 0, 1]).mean(BEFORE)
    for at, found in enumerate(mean.ints.tolist()):
        exact = sum(Fraction(w) * int(s.ints[at]) for w, s in zip(weights, states)) / Fraction(sum(weights))
        assert abs(found - exact) <= Fraction(1, 2) + Fraction(3, 2) / Fraction(sum(weights))


def test_integers_that_no_sum_can_carry_are_refused_and_the_largest_allowed_are_exact() -> None:
    """A seed in a buffer would come back as another number, or overflow."""
    total, state = PartialSum.zero(BEFORE, 1000), BEFORE.clone()
    state.ints.fill_(2**42)
    for _ in range(100):
        total.add(state, 10)
    assert torch.equal(total.mean(BEFORE).ints, state.ints)
    for value in (2**62, -(2**63), 2**50):
        state.ints.fill_(value)
        with raises(InputError, "averaged", "persistent=False"):
            PartialSum.zero(BEFORE, 1000).add(state, 10)


def test_neighbouring_units_with_one_scale_are_scaled_at_once() -> None:
    assert _stretches([2.0, 2.0, 4.0, 2.0], [3, 5, 9, 9]) == [(0, 5, 2.0), (5, 9, 4.0), (9, 9, 2.0)]


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(st.floats(-1.0, 1.0, width=32), min_size=1, max_size=20),
    weight=st.one_of(st.integers(1, 2**29), st.floats(2.0**-20, 2.0**29)),
    bits=st.integers(0, 50),
)
def test_the_quick_way_of_counting_rounds_as_python_does(parts: list[float], weight: float, bits: int) -> None:
    """Halves go to the even number; beyond NEAR the slow way takes over, and both agree."""
    scale, part = float(weight) * 2.0**bits, torch.tensor(parts)
    total = torch.full((len(parts),), 7)
    _add_rounded_floats(total, part, [scale], [len(parts)], max(map(abs, parts)))
    if scale <= 2.0**62:
        assert total.tolist() == [7 + round(number * scale) for number in part.tolist()]
    slow = torch.full((len(parts),), 7)
    _add_rounded_floats(slow, part, [scale], [len(parts)], float("inf"))
    assert torch.equal(total, slow) or scale > 2.0**62


def test_halves_and_the_last_number_that_is_near_and_pieces_of_a_long_vector() -> None:
    numbers = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, NEAR, -NEAR], dtype=torch.float64)
    for peak in (NEAR / 2, float("inf")):
        total = torch.zeros(7, dtype=torch.int64)
        _add_rounded_floats(total, numbers, [1.0], [7], peak)
        assert total.tolist() == [0, 2, 2, 0, -2, round(NEAR), -round(NEAR)]
    long, total = torch.linspace(-1, 1, CHUNK + 5), torch.zeros(CHUNK + 5, dtype=torch.int64)
    _add_rounded_floats(total, long, [1e6, 2e6], [100, CHUNK + 5], 1.0)
    wide = long.double() * torch.where(torch.arange(CHUNK + 5) < 100, 1e6, 2e6)
    assert torch.equal(total, wide.round().long())


def test_sides_are_joined_only_where_they_lie_one_behind_the_other() -> None:
    whole = BEFORE.clone()
    one = joined_view(whole[0:2], whole[2 : whole.stop])
    assert one is not None
    assert (one.start, one.stop) == (0, whole.stop)
    assert (one.floats.data_ptr(), len(one.floats)) == (whole.floats.data_ptr(), len(whole.floats))
    assert torch.equal(one.ints, whole.ints)
    assert joined_view(whole[0:1], whole[2 : whole.stop]) is None  # a unit is missing
    assert joined_view(whole[0:2].clone(), whole[2 : whole.stop]) is None  # as after a codec
    assert joined_view(whole[0:0], whole) is not None


def test_a_state_that_crosses_a_process_border_finds_its_layout_there() -> None:
    """Each process makes one layout for all states that come to it; a state is as it was."""
    one, two = (pickle.loads(pickle.dumps(BEFORE[0:number])) for number in (1, 2))
    assert one.layout is two.layout
    assert two.layout == BEFORE.layout
    assert (two.start, two.stop) == (0, 2)
    assert torch.equal(two.floats, BEFORE[0:2].floats)
    assert {name: view.shape for name, view in two.named().items()} == {
        name: view.shape for name, view in BEFORE[0:2].named().items()
    }


def test_losses_are_summed_in_their_order_in_double_precision() -> None:
    rng, losses, by_hand = stream(2, "losses"), Losses(), 0.0
    for _ in range(2500):
        loss, count = torch.tensor(10.0 ** rng.uniform(-8, 8)), int(rng.integers(1, 40))
        losses.add(loss, count)
        by_hand = by_hand + loss.item() * count
    assert losses.totals == [by_hand]


def test_a_state_that_is_in_training_and_a_loss_of_one_element_count_too() -> None:
    state = BEFORE.clone()
    state.floats.requires_grad_(True)
    total = PartialSum.zero(BEFORE, 1.0)
    total.add(state, 1.0)
    assert torch.equal(total.mean(BEFORE).floats, BEFORE.floats)
    losses = Losses()
    losses.add(torch.tensor([2.0]), 3)
    assert losses.mean == 2.0


def test_losses_merge_in_any_order() -> None:
    rng = stream(1, "losses")
    parts = []
    for _ in range(20):
        part = Losses()
        for _ in range(3):
            part.add(torch.tensor(10.0 ** rng.uniform(-8, 8)), int(rng.integers(1, 40)))
        parts.append(part)

    def mean(order: list[int]) -> float | None:
        whole = Losses()
        for k in order:
            whole.merge(parts[k])
        return whole.mean

    assert len({mean(rng.permutation(20).tolist()) for _ in range(50)}) == 1
    assert Losses().mean is None
