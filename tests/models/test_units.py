"""SplitModel: names, cuts, states by unit, for any list of modules."""

import copy

import pytest
import torch
from torch import nn

from hsfl.errors import InputError
from hsfl.models.split.graph_split import split
from hsfl.models.units import SplitModel
from tests.naming import raises


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Flatten(), nn.Linear(12, 8)), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)]


def joined() -> SplitModel:
    """Units under the empty prefix, under a prefix in common, and under one of their own, as in ResNet and VGG."""
    torch.manual_seed(0)
    units = {
        "stem": nn.Sequential(nn.Flatten()),
        "a": nn.Sequential(),
        "b": nn.Sequential(),
        "top": nn.Sequential(),
    }
    units["stem"].add_module("fc0", nn.Linear(12, 8))
    units["a"].add_module("3", nn.Linear(8, 8))
    units["b"].add_module("5", nn.BatchNorm1d(8))
    units["top"].add_module("fc", nn.Linear(8, 3))
    return SplitModel(units, prefixes={"stem": "", "a": "features.", "b": "features.", "top": ""})


X = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(1))


def test_any_list_of_modules_makes_a_split_model():
    modules = layers()
    model = split(modules)
    assert model.unit_names == ("0", "1", "2", "3")
    assert torch.equal(model(X), nn.Sequential(*copy.deepcopy(modules))(X))
    assert list(model.state_dict()) == list(nn.Sequential(*modules).state_dict())
    assert split(nn.Sequential(*modules)).units == tuple(modules)
    assert split({"body": modules[0], "top.norm": modules[1]}).unit_names == ("body", "top.norm")
    assert split(model) is model


def test_head_and_tail_share_the_units():
    model = split(layers())
    assert list(model.head(2)) == list(model.units[:2])
    assert list(model.tail(2)) == list(model.units[2:])
    assert len(model.head(0)) == 0
    assert len(model.tail(4)) == 0
    assert torch.equal(model.head(0)(X), X)


@pytest.mark.parametrize("cut", [-1, 5])
def test_impossible_cut(cut):
    model = split(layers())
    for side in (model.head, model.tail, model.check_cut):
        with raises(InputError, f"cut is {cut}", "4 units", "choose 0..4"):
            side(cut)
    with pytest.raises(InputError, match=r"clients\.max_cut\[3\] is"):
        model.check_cut(cut, "clients.max_cut[3]")


def test_names_by_prefix():
    model = joined()
    assert [name for name, _ in model.named_parameters()] == [
        "fc0.weight",
        "fc0.bias",
        "features.3.weight",
        "features.3.bias",
        "features.5.weight",
        "features.5.bias",
        "fc.weight",
        "fc.bias",
    ]
    assert list(model.unit_state(2)) == [
        f"features.5.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    ]


@pytest.mark.parametrize("make", [lambda: split(layers()), joined])
def test_unit_states_are_a_partition_of_the_state(make):
    model = make()
    names = [name for unit in range(model.num_units) for name in model.unit_state(unit)]
    assert len(names) == len(set(names))
    assert set(names) == set(model.state_dict())
    for unit in range(model.num_units):
        for name, tensor in model.unit_state(unit).items():
            assert tensor.data_ptr() == model.state_dict()[name].data_ptr()  # the tensors themselves, not copies


@pytest.mark.parametrize("make", [lambda: split(layers()), joined])
def test_unit_states_carry_a_model_over(make):
    model, other = make(), make()
    for tensor in other.parameters():
        nn.init.normal_(tensor)
    other(X)  # moves BatchNorm's statistics
    for unit in range(model.num_units):
        model.load_state_dict(other.unit_state(unit), strict=False)
    for name, tensor in other.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert torch.equal(model.eval()(X), other.eval()(X))


@pytest.mark.parametrize("make", [lambda: split(layers()), joined])
def test_a_deep_copy_is_one_model(make):
    model = make()
    twin = copy.deepcopy(model)
    own = {id(tensor) for tensor in twin.parameters()}
    assert own == {id(tensor) for unit in twin.units for tensor in unit.parameters()}
    assert own.isdisjoint({id(tensor) for tensor in model.parameters()})
    for tensor in twin.parameters():
        nn.init.zeros_(tensor)
    assert not twin(X).any()
    assert model(X).any()


@pytest.mark.parametrize("make", [lambda: split(layers()), joined])
def test_casting_and_modes_reach_the_units(make):
    model = make().to(torch.float64)
    assert model.tail(1)(model.head(1)(X.double())).dtype == torch.float64
    assert all(tensor.dtype == torch.float64 for unit in model.units for tensor in unit.parameters())
    model.eval()
    assert not any(layer.training for unit in model.units for layer in unit.modules() if not list(layer.children()))


def test_bad_lists():
    with raises(InputError, "one unit"):
        split([])
    shared = nn.Linear(2, 2)
    with pytest.raises(InputError, match="stands twice"):
        split([shared, nn.ReLU(), shared])
    with raises(InputError, "Linear", "order"):
        split(shared)
    with raises(InputError, "head", "taken"):
        split({"head": nn.Linear(2, 2), "tail": nn.Linear(2, 2)})
    with raises(InputError, "features.0", "taken"):
        SplitModel(
            {"a": nn.Sequential(nn.Linear(2, 2)), "b": nn.Sequential(nn.Linear(2, 2))},
            prefixes={"a": "features.", "b": "features."},
        )
    with raises(InputError, "tensors of its own"):
        SplitModel({"a": nn.Linear(2, 2)}, prefixes={"a": ""})


def test_tied_weights_are_refused() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    with raises(InputError, "1.weight and 0.weight", "one parameter"):
        SplitModel([first, second])
