"""Starting from a file: what is copied, what may differ, and what people are told."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from hsfl.errors import InputError
from hsfl.models import zoo
from hsfl.models.units import SplitModel
from hsfl.models.weights_file import load_init_weights
from tests.naming import raises

SHAPE = (3, 32, 32)


def snapshot(model: SplitModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def moved(model: SplitModel) -> SplitModel:
    """With BatchNorm statistics that are not those of a new model."""
    model.train()(torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(0)))
    return model


@pytest.fixture
def cnn_file(tmp_path):
    path = tmp_path / "cnn.safetensors"
    save_file(moved(zoo.build("cnn", SHAPE, 10, seed=1)).state_dict(), path)
    return path


@pytest.mark.parametrize("name", ["resnet18", "cnn", "mlp", "vgg11_bn", "mobilenet_v2"])
def test_the_same_model_is_copied_whole(name, tmp_path):
    source = moved(zoo.build(name, SHAPE, 10, seed=1))
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    model = zoo.build(name, SHAPE, 10, seed=2)
    assert load_init_weights(model, tmp_path / "w.safetensors") == []
    for key, tensor in source.state_dict().items():
        assert torch.equal(model.state_dict()[key], tensor), key


@pytest.mark.parametrize(
    ("name", "classifier"),
    [
        ("resnet18", ["fc.weight", "fc.bias"]),
        ("vgg11_bn", ["classifier.6.weight", "classifier.6.bias"]),
        ("mobilenet_v2", ["classifier.1.weight", "classifier.1.bias"]),
    ],
)
def test_another_number_of_classes_keeps_the_new_classifier(name, classifier, tmp_path):
    source = moved(zoo.build(name, SHAPE, 12, seed=1))
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    model = zoo.build(name, SHAPE, 7, seed=2)
    before = snapshot(model)
    assert load_init_weights(model, str(tmp_path / "w.safetensors")) == classifier
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[key] if key in classifier else source.state_dict()[key]), key
    assert torch.equal(model.head(3)(torch.ones(2, *SHAPE)), source.head(3)(torch.ones(2, *SHAPE)))


def test_a_file_without_step_counters_loads(cnn_file, tmp_path):
    """As torchvision's older files are: 102 entries for ResNet-18, not 122."""
    state = {name: tensor for name, tensor in load_file(cnn_file).items() if "num_batches" not in name}
    save_file(state, tmp_path / "old.safetensors")
    model = zoo.build("cnn", SHAPE, 10)
    assert load_init_weights(model, tmp_path / "old.safetensors") == []
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in state.items())


def test_half_precision_is_cast(cnn_file, tmp_path):
    half = {
        name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in load_file(cnn_file).items()
    }
    save_file(half, tmp_path / "half.safetensors")
    model = zoo.build("cnn", SHAPE, 10)
    load_init_weights(model, tmp_path / "half.safetensors")
    assert torch.equal(model.get_parameter("dense.linear.weight"), half["dense.linear.weight"].float())


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"input_shape": (1, 32, 32)}, ("conv1.conv.weight is 16x3x3x3", "16x1x3x3 in the model")),
        ({"input_shape": (3, 28, 28)}, ("dense.linear.weight is 64x1024", "64x576 in the model")),
        ({"norm": "group"}, ("conv1.norm.running_mean (16)", "BatchNorm's", "norm = batch", "11 more")),
        ({"norm": "none"}, ("norm = batch", "17 more")),
        ({"name": "mlp"}, ("conv1.norm.running_mean (16)", "33 more")),
    ],
)
def test_another_model_is_refused_and_left_alone(settings, parts, cnn_file):
    model = zoo.build(**{"name": "cnn", "input_shape": SHAPE, "num_classes": 10} | settings)
    before = snapshot(model)
    with raises(InputError, str(cnn_file), *parts) as caught:
        load_init_weights(model, cnn_file)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", ["conv2.conv.bias", "classifier.weight"])
def test_a_missing_tensor_is_named(name, cnn_file):
    state = load_file(cnn_file)
    shape = "x".join(map(str, state.pop(name).shape))
    save_file(state, cnn_file)
    with raises(InputError, f"{name} ({shape})", "missing"):
        load_init_weights(zoo.build("cnn", SHAPE, 10), cnn_file)


def test_an_unknown_tensor_is_named(cnn_file):
    save_file(load_file(cnn_file) | {"extra.weight": torch.zeros(2, 3)}, cnn_file)
    with raises(InputError, "extra.weight (2x3)", "unknown"):
        load_init_weights(zoo.build("cnn", SHAPE, 10), cnn_file)


def test_any_split_model_can_start_from_a_file(tmp_path):
    source = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    model = SplitModel([nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 5)])
    assert load_init_weights(model, tmp_path / "w.safetensors") == ["2.weight", "2.bias"]
    assert torch.equal(model.get_parameter("0.weight"), source[0].weight)


def test_pickles_are_refused_unopened(tmp_path):
    path = tmp_path / "resnet18.pth"
    path.write_bytes(b"never read")
    with raises(InputError, "torch.load('resnet18.pth', weights_only=True)", "'resnet18.safete"):
        load_init_weights(zoo.build("cnn", SHAPE, 10), path)


def test_unreadable_files(cnn_file, tmp_path):
    model = zoo.build("cnn", SHAPE, 10)
    whole = cnn_file.read_bytes()
    for content in (b"", b"not safetensors at all", whole[:100], whole[:-1], b"\xff" * 64):
        cnn_file.write_bytes(content)
        with raises(InputError, "safetensors") as caught:
            load_init_weights(model, cnn_file)
        assert "\n" not in str(caught.value)
    for path in (tmp_path, tmp_path / "absent.safetensors"):
        with raises(InputError, "not a file"):
            load_init_weights(model, path)
