"""Models and sums on the wire: what arrives is what was sent, and what does not fit the model is refused."""

import pytest
import torch
from safetensors.torch import load, save

from hsfl.deploy.edge_server import sum_kept_clients
from hsfl.deploy.unit_store import UnitStore
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.model_chunks import most_state_bytes, read_sum, state_bytes, sum_bytes, unpack_state
from hsfl.errors import InputError
from hsfl.training.roles import FinishedSide
from tests.deploy.kits import small_kit
from tests.naming import raises


def test_units_arrive_to_the_bit() -> None:
    kit = small_kit()
    for start, stop in ((0, 5), (1, 3), (2, 2)):
        units = kit.initial[start:stop]
        content = state_bytes(units)
        assert len(content) <= most_state_bytes(units)
        back = unpack_state(content, kit.empty(start, stop))
        assert torch.equal(back.floats, units.floats)
        assert torch.equal(back.ints, units.ints)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_model_that_is_not_finite_is_refused(bad: float) -> None:
    units = small_kit().initial.clone()
    units.floats[7] = bad
    with raises(WireError, "NaN") as caught:
        unpack_state(state_bytes(units), units)
    assert caught.value.reason == "not_finite"


def test_other_names_shapes_and_types_are_refused() -> None:
    units = small_kit().initial[0:1]
    tensors = load(state_bytes(units))
    name = next(iter(tensors))
    for changed in (
        {other: tensor for other, tensor in tensors.items() if other != name},
        tensors | {"more": torch.zeros(1)},
        tensors | {name: torch.zeros(3)},
        tensors | {name: tensors[name].double()},
    ):
        with pytest.raises(WireError) as caught:
            unpack_state(save(changed), units)
        assert caught.value.reason == "shape"
    with raises(WireError, "safetensors"):
        unpack_state(b"\x00" * 100, units)


def test_sums_of_another_beginning_are_refused() -> None:
    kit = small_kit()
    sides = {0: FinishedSide(kit.initial, 10.0), 1: FinishedSide(kit.initial, 30.0)}
    mine, other = sum_kept_clients(kit.initial, sides, [0, 1]).total, sum_kept_clients(kit.initial, sides, [0]).total
    back = read_sum(sum_bytes(mine), mine)
    assert torch.equal(back.total.floats, mine.total.floats)
    assert torch.equal(back.weight, mine.weight)
    assert other.bits != mine.bits
    with raises(WireError, "different models"):
        read_sum(sum_bytes(other), mine)


def test_only_agreed_clients_are_summed() -> None:
    kit = small_kit()
    far = kit.initial.clone()
    far.floats.add_(1.0)
    sides = {0: FinishedSide(kit.initial, 10.0), 1: FinishedSide(far, 30.0)}
    assert torch.equal(sum_kept_clients(kit.initial, sides, [0]).close().floats, kit.initial.floats)
    assert not torch.equal(sum_kept_clients(kit.initial, sides, [0, 1]).close().floats, kit.initial.floats)


def test_the_last_two_rounds_stay(tmp_path) -> None:
    kit, store = small_kit(), UnitStore(tmp_path)
    for round in (0, 1, 2, 3):
        store.save(round, kit.initial[0:3], {"note": str(round)})
    assert store.rounds() == [2, 3]
    state, notes = store.load(2, kit)
    assert (state.start, state.stop, notes["note"]) == (0, 3, "2")
    store.save(3, kit.initial[0:3], {})
    store.save(2, kit.initial[0:3], {})  # the third round is made again
    assert store.rounds() == [2]
    (tmp_path / "round-2.safetensors").write_bytes(b"damaged")
    with raises(InputError, "round 2"):
        store.load(2, kit)
