"""FLOPs, bits and memory of small models by hand, ResNet-18 against its published GMACs, and files."""

import json
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import nn

from hsfl.errors import InputError
from hsfl.models.cost_table import SIZES, CostTable, measure_cost, measure_module
from hsfl.models.units import SplitModel
from hsfl.models.zoo import build
from tests.naming import raises

CONV = 2 * 64 * 8 * 3 * 9  # FLOPs of 3 -> 8 channels, 3x3, on 8x8
LINEAR = 2 * 8 * 64 * 10


def small() -> SplitModel:
    """A convolution, a norm, an in-place ReLU, and a classifier: 3x8x8 -> 8x8x8 -> 10."""
    conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    return SplitModel(
        [conv, nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Sequential(nn.Flatten(), nn.Linear(8 * 64, 10))]
    )


def test_flops_by_hand():
    """Backward of a layer is as much as forward for its weights, and again for its input where that is wanted: not
    for the first layer of the whole model, but for the server's first at a cut."""
    cost = measure_cost(small(), (3, 8, 8), 4)
    assert cost.num_units == 4
    assert cost.client_forward_flops.tolist() == [0, CONV, CONV, CONV, CONV + LINEAR]
    assert cost.client_backward_flops.tolist() == [0, CONV, CONV, CONV, CONV + 2 * LINEAR]
    assert cost.server_forward_flops.tolist() == [CONV + LINEAR, LINEAR, LINEAR, LINEAR, 0]
    assert cost.server_backward_flops.tolist() == [CONV + 2 * LINEAR, 2 * LINEAR, 2 * LINEAR, 2 * LINEAR, 0]


def test_the_first_layer_may_stand_behind_units_without_parameters():
    """Flatten, Linear: no gradient flows before the first parameter, but the server at cut 1 returns one."""
    cost = measure_cost(SplitModel([nn.Flatten(), nn.Linear(12, 5)]), (3, 2, 2), 4)
    assert cost.client_backward_flops.tolist() == [0, 0, 120]
    assert cost.server_backward_flops.tolist() == [120, 240, 0]


def test_a_cut_costs_what_its_two_sides_cost():
    """The two sides, run as training runs them."""
    from torch.utils.flop_counter import FlopCounterMode

    model = build("cnn", (1, 12, 12), 4)
    cost = measure_cost(model, (1, 12, 12), 3)
    for cut in range(model.num_units + 1):
        head, tail, x = model.head(cut), model.tail(cut), torch.rand(3, 1, 12, 12)
        counts = []
        with FlopCounterMode(display=False) as counter:
            sent = head(x)
            counts.append(counter.get_total_flops())
            received = sent.detach().requires_grad_(0 < cut < model.num_units)
            output = tail(received.clone())
            counts.append(counter.get_total_flops())
            if cut < model.num_units:
                output.sum().backward()
            counts.append(counter.get_total_flops())
            if cut > 0:
                sent.backward(torch.ones_like(sent))
            counts.append(counter.get_total_flops())
        columns = ("client_forward", "server_forward", "server_backward", "client_backward")
        measured = [3 * getattr(cost, f"{name}_flops")[cut] for name in columns]
        assert measured == pytest.approx(np.diff([0, *counts]).tolist()), f"cut {cut}"


def test_bits_by_hand():
    cost = measure_cost(small(), (3, 8, 8), 4)
    assert cost.smashed_bits.tolist() == [192 * 32, 512 * 32, 512 * 32, 512 * 32, 0]
    assert cost.gradient_bits.tolist() == [0, 512 * 32, 512 * 32, 512 * 32, 0]
    conv, norm, linear = 3 * 8 * 9 * 32, 2 * 8 * 32, 5130 * 32
    assert cost.param_bits.tolist() == [0, conv, conv + norm, conv + norm, conv + norm + linear]
    buffers = norm + 64  # running mean and variance, and the int64 that counts batches
    assert (cost.model_bits - cost.param_bits).tolist() == [0, 0, buffers, buffers, buffers]


def test_memory_by_hand():
    """Four samples, Adam: parameters, gradients and two moments; the input for the convolution; its output for the
    norm, with the mean and deviation that BatchNorm saves; the ReLU's output, which the classifier saves as well;
    and one tensor of the smashed data's size."""
    cost = measure_cost(small(), (3, 8, 8), 4)
    conv, norm, linear, buffers = 3 * 8 * 9 * 32, 2 * 8 * 32, 5130 * 32, 2 * 8 * 32 + 64
    image, map_ = 4 * 192 * 32, 4 * 512 * 32
    by_hand = [
        image,
        4 * conv + image + map_,
        4 * (conv + norm) + buffers + image + (map_ + norm) + map_,
        4 * (conv + norm) + buffers + image + (map_ + norm) + map_ + map_,
        4 * (conv + norm + linear) + buffers + image + (map_ + norm) + map_,
    ]
    assert cost.memory_bits.tolist() == by_hand
    sgd = measure_cost(small(), (3, 8, 8), 4, optimizer_states=0)
    assert (cost.memory_bits - sgd.memory_bits).tolist() == (2 * cost.param_bits).tolist()


def test_resnet18_has_its_published_gmacs():
    """1.8 GMACs and 11.7 million parameters at 224x224 (He et al., Table 1; torchvision says 1.814)."""
    cost = measure_cost(build("resnet18", (3, 224, 224), 1000), (3, 224, 224), 2)
    assert cost.num_units == 10
    assert cost.client_forward_flops[-1] / 2e9 == pytest.approx(1.814, abs=0.001)
    assert cost.param_bits[-1] / 32 == 11_689_512
    # Both sides make the whole, at every cut; backward is twice forward, but for the first layer's input.
    np.testing.assert_allclose(cost.client_forward_flops + cost.server_forward_flops, cost.client_forward_flops[-1])
    stem = cost.client_forward_flops[1]
    assert cost.client_backward_flops[-1] == 2 * cost.client_forward_flops[-1] - stem
    np.testing.assert_allclose(cost.client_flops + cost.server_flops, cost.client_flops[-1])


@pytest.mark.parametrize("name", ["cnn", "mlp", "mobilenet_v2", "vgg11_bn"])
def test_every_model_of_the_zoo_has_a_table(name):
    cost = measure_cost(build(name, (3, 32, 32), 10), (3, 32, 32), 8)
    assert (np.diff(cost.client_forward_flops) >= 0).all()
    assert (np.diff(cost.model_bits) >= 0).all()
    assert (cost.memory_bits[1:] > cost.model_bits[1:]).all()


def test_measuring_changes_nothing():
    model = small()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    measure_cost(model, (3, 8, 8), 4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


class Peeks(nn.Linear):
    """A unit that looks at its values, which meta tensors do not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1.0 if x.sum().item() >= 0 else -1.0)


def test_a_unit_that_looks_at_values_is_measured_on_real_samples():
    peeking, plain = SplitModel([Peeks(6, 4), nn.Linear(4, 2)]), SplitModel([nn.Linear(6, 4), nn.Linear(4, 2)])
    one, other = measure_cost(peeking, (6,), 16), measure_cost(plain, (6,), 16)
    for field in fields(CostTable):
        if field.name not in ("memory_bits", *SIZES):
            np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))
    assert [getattr(one, name) for name in SIZES] == [getattr(other, name) for name in SIZES]
    assert (one.memory_bits >= other.memory_bits).all()  # it also saves its product


def test_a_decoder_by_hand():
    """Forward, and backward for weights and input."""
    flops, bits = measure_module(nn.Linear(6, 5), (6,))
    assert flops == 3 * 2 * 30
    assert bits == 35 * 32


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


def test_what_cannot_be_measured_says_so():
    with raises(InputError, "unit '1'", "tuple", "one tensor"):
        measure_cost(SplitModel([nn.Linear(2, 2), Pair()]), (2,), 4)
    with pytest.raises(InputError, match=r"input_shape \(3, 0\)"):
        measure_cost(small(), (3, 0), 4)
    with raises(InputError, "unit '3'", "(8, 9, 9)", "mat1 and mat2"):
        measure_cost(small(), (3, 9, 9), 4)


def test_a_table_comes_back_from_its_file(tmp_path):
    cost = measure_cost(small(), (3, 8, 8), 4)
    cost.save(tmp_path / "cost.json")
    read = CostTable.load(tmp_path / "cost.json")
    assert read.batch_size == 4
    for field in fields(CostTable):
        if field.name not in SIZES:
            np.testing.assert_array_equal(getattr(read, field.name), getattr(cost, field.name))
    assert [getattr(read, name) for name in SIZES] == [getattr(cost, name) for name in SIZES]
    assert [path.name for path in tmp_path.iterdir()] == ["cost.json"]


GOOD = {field.name: [0, 1, 2] for field in fields(CostTable)[:7]}


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ([1, 2], ("holds a list",)),
        ({**GOOD, "colour": 1}, ("unknown field 'colour'",)),
        ({name: GOOD[name] for name in list(GOOD)[:-1]}, ("lacks model_bits",)),
        ({**GOOD, "smashed_bits": [0, -1, 2]}, ("smashed_bits[1] is -1.0",)),
        ({**GOOD, "smashed_bits": [0, float("nan"), 2]}, ("smashed_bits[1] is nan",)),
        ({**GOOD, "smashed_bits": [0, 1]}, ("smashed_bits has shape (2,)", "model_bits has 3 cuts")),
        ({**GOOD, "smashed_bits": "many"}, ("smashed_bits", "not a list of numbers")),
        ({**GOOD, "batch_size": 0}, ("batch_size is 0",)),
    ],
)
def test_bad_files(tmp_path, table, parts):
    (tmp_path / "cost.json").write_text(json.dumps(table))
    with raises(InputError, *parts):
        CostTable.load(tmp_path / "cost.json")


def test_missing_and_broken_files(tmp_path):
    with raises(InputError, "cost table", "none.json"):
        CostTable.load(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{")
    with raises(InputError, "cost table", "broken.json"):
        CostTable.load(tmp_path / "broken.json")


class Looks(nn.Module):
    """An LSTM that looks at values, which a tensor on the meta device does not have."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.lstm, self.looks = nn.LSTM(2, 8, batch_first=True), looks

    def forward(self, x):
        assert not self.looks or x.detach().sum().item() == 0
        return self.lstm(x)[0][:, -1]


def test_an_lstm_costs_the_same_on_real_samples():
    """On the CPU, torch computes an LSTM in one operation of mkldnn, in which no FLOPs are counted."""
    assert measure_cost(SplitModel([Looks(False)]), (12, 2), 4).client_forward_flops[1] == 12 * 2 * 4 * 8 * (2 + 8)
    first, second = (measure_cost(SplitModel([Looks(looks), nn.Linear(8, 4)]), (12, 2), 4) for looks in (False, True))
    assert first.client_flops.tolist() == second.client_flops.tolist()
