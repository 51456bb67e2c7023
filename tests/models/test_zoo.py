"""The models: names and sizes of the published ones, and the law that a cut changes no number."""

import copy
from functools import cache

import pytest
import torch
from torch import nn

from hsfl.errors import InputError
from hsfl.models import zoo
from hsfl.models.layers import _num_groups, swap_norm
from hsfl.models.split.graph_split import split
from hsfl.models.units import SplitModel
from tests.naming import raises

NUM_UNITS = {"resnet18": 10, "cnn": 5, "mlp": 3, "vgg11_bn": 11, "mobilenet_v2": 33, "vit": 6}
OF_IMAGES = [name for name in zoo.MODELS if name != "gpt"]  # gpt takes tokens: tests/runs/test_runs_of_other_tasks.py
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def num_parameters(model: nn.Module) -> int:
    return sum(tensor.numel() for tensor in model.parameters())


@cache
def at_imagenet_size(name: str) -> SplitModel:
    """At 3x224x224 with 1000 classes, without data: vgg11_bn alone would be half a gigabyte."""
    with torch.device("meta"):
        return zoo.MODELS[name].make((3, 224, 224), 1000, stem="imagenet", dropout=0.0)


@cache
def _small(name: str) -> SplitModel:
    return zoo.build(name, (3, 32, 32), 10, seed=7)


def small(name: str) -> SplitModel:
    """A new model each time, since training moves it, without building it each time."""
    return copy.deepcopy(_small(name))


def norm_shapes(name: str, channels: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.{tensor}": () if tensor == "num_batches_tracked" else (channels,) for tensor in NORM}


def torchvision_resnet18() -> dict[str, tuple[int, ...]]:
    shapes = {"conv1.weight": (64, 3, 7, 7)} | norm_shapes("bn1", 64)
    inputs = 64
    for layer in (1, 2, 3, 4):
        width = 32 * 2**layer
        for block in (0, 1):
            at = f"layer{layer}.{block}"
            shapes |= {f"{at}.conv1.weight": (width, inputs, 3, 3)} | norm_shapes(f"{at}.bn1", width)
            shapes |= {f"{at}.conv2.weight": (width, width, 3, 3)} | norm_shapes(f"{at}.bn2", width)
            if layer > 1 and block == 0:
                shapes |= {f"{at}.downsample.0.weight": (width, inputs, 1, 1)}
                shapes |= norm_shapes(f"{at}.downsample.1", width)
            inputs = width
    return shapes | {"fc.weight": (1000, 512), "fc.bias": (1000,)}


def torchvision_vgg11_bn() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    index, inputs = 0, 3
    for layer in (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"):
        if layer == "M":
            index += 1
            continue
        shapes |= {f"features.{index}.weight": (layer, inputs, 3, 3), f"features.{index}.bias": (layer,)}
        shapes |= norm_shapes(f"features.{index + 1}", layer)
        index, inputs = index + 3, layer
    for index, inputs, outputs in ((0, 25088, 4096), (3, 4096, 4096), (6, 4096, 1000)):
        shapes |= {f"classifier.{index}.weight": (outputs, inputs), f"classifier.{index}.bias": (outputs,)}
    return shapes


def torchvision_mobilenet_v2() -> dict[str, tuple[int, ...]]:
    shapes = {"features.0.0.weight": (32, 3, 3, 3)} | norm_shapes("features.0.1", 32)
    shapes |= {"features.1.conv.0.0.weight": (32, 1, 3, 3)} | norm_shapes("features.1.conv.0.1", 32)
    shapes |= {"features.1.conv.1.weight": (16, 32, 1, 1)} | norm_shapes("features.1.conv.2", 16)
    inputs = 16
    for index, width in enumerate([24] * 2 + [32] * 3 + [64] * 4 + [96] * 3 + [160] * 3 + [320], start=2):
        at, hidden = f"features.{index}.conv", 6 * inputs
        shapes |= {f"{at}.0.0.weight": (hidden, inputs, 1, 1)} | norm_shapes(f"{at}.0.1", hidden)
        shapes |= {f"{at}.1.0.weight": (hidden, 1, 3, 3)} | norm_shapes(f"{at}.1.1", hidden)
        shapes |= {f"{at}.2.weight": (width, hidden, 1, 1)} | norm_shapes(f"{at}.3", width)
        inputs = width
    shapes |= {"features.18.0.weight": (1280, 320, 1, 1)} | norm_shapes("features.18.1", 1280)
    return shapes | {"classifier.1.weight": (1000, 1280), "classifier.1.bias": (1000,)}


@pytest.mark.parametrize(
    ("name", "expected", "entries", "parameters"),
    [
        ("resnet18", torchvision_resnet18, 122, 11_689_512),
        ("vgg11_bn", torchvision_vgg11_bn, 62, 132_868_840),
        ("mobilenet_v2", torchvision_mobilenet_v2, 314, 3_504_872),
    ],
)
def test_names_and_shapes_are_torchvisions(name, expected, entries, parameters):
    model = at_imagenet_size(name)
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    assert list(shapes.items()) == list(expected().items())  # in its order, too
    assert len(shapes) == entries
    assert num_parameters(model) == parameters


def test_shrinking_is_as_published():
    """Side of the square map after each unit at 224, from the papers' tables; batch of one, tensors without data."""
    expected = {
        "resnet18": [56, 56, 56, 28, 28, 14, 14, 7, 7],
        "vgg11_bn": [112, 56, 56, 28, 28, 14, 14, 7],
        "mobilenet_v2": [112] * 4 + [56] * 4 + [28] * 5 + [14] * 11 + [7] * 8,
    }
    for name, sides in expected.items():
        x = torch.empty(1, 3, 224, 224, device="meta")
        model = at_imagenet_size(name)
        for unit, side in zip(model.units, sides):
            x = unit(x)
            assert tuple(x.shape[2:]) == (side, side), name


@pytest.mark.parametrize("name", OF_IMAGES)
def test_a_recipe_says_what_is_built(name: str) -> None:
    built, recipe = zoo.build(name, (3, 32, 32), 10), zoo.MODELS[name]
    assert recipe.num_units in (None, len(built.units))
    assert any("BatchNorm" in type(layer).__name__ for layer in built.modules()) == recipe.has_norm


@pytest.mark.parametrize("name", OF_IMAGES)
@pytest.mark.parametrize("training", [False, True])
def test_every_cut_gives_the_whole_to_the_bit(name, training):
    """Tail of head is the whole, dropout and BatchNorm's statistics included, at every cut."""
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    model = small(name).train(training)
    assert model.num_units == NUM_UNITS[name]
    start = copy.deepcopy(model.state_dict())
    torch.manual_seed(1)
    whole = model(x)
    after = copy.deepcopy(model.state_dict())
    assert whole.shape == (3, 10)
    assert whole.isfinite().all()
    with torch.no_grad():
        for cut in range(model.num_units + 1):
            model.load_state_dict(start)
            torch.manual_seed(1)
            assert torch.equal(model.tail(cut)(model.head(cut)(x)), whole), cut
            for key, tensor in model.state_dict().items():
                assert torch.equal(tensor, after[key]), (cut, key)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_a_unit_takes_a_leaf_and_returns_its_gradient(name):
    """A tail starts from received data, a leaf: nothing may change it in place."""
    model = small(name).train()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for unit in model.units:
        received = x.detach()
        leaf = received.clone().requires_grad_()
        x = unit(leaf)
        x.sum().backward()
        assert torch.equal(leaf.detach(), received)
        assert leaf.grad is not None


@pytest.mark.parametrize("name", OF_IMAGES)
def test_unit_states_are_a_partition_of_the_state(name):
    model = small(name)
    names = [key for unit in range(model.num_units) for key in model.unit_state(unit)]
    assert len(names) == len(set(names))
    assert set(names) == set(model.state_dict())


@pytest.mark.parametrize("name", OF_IMAGES)
def test_unit_states_carry_a_model_over(name):
    model, other = small(name), zoo.build(name, (3, 32, 32), 10, seed=8)
    twin = copy.deepcopy(model)
    for unit in range(model.num_units):
        twin.load_state_dict(other.unit_state(unit), strict=False)
    for key, tensor in other.state_dict().items():
        assert torch.equal(twin.state_dict()[key], tensor), key
    assert {id(p) for p in twin.parameters()} == {id(p) for unit in twin.units for p in unit.parameters()}
    twin.double()
    assert all(p.dtype == torch.float64 for unit in twin.units for p in unit.parameters())


@pytest.mark.parametrize("name", OF_IMAGES)
def test_the_seed_gives_the_bits_and_nothing_else_does(name):
    torch.manual_seed(123)
    before = torch.get_rng_state()
    again = zoo.build(name, (3, 32, 32), 10, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    other = zoo.build(name, (3, 32, 32), 10, seed=8)
    fresh = small(name).state_dict()
    assert all(torch.equal(tensor, fresh[key]) for key, tensor in again.state_dict().items())
    assert not all(torch.equal(tensor, fresh[key]) for key, tensor in other.state_dict().items())


def test_first_weights_are_as_published():
    model = small("resnet18")
    weight = model.get_submodule("layer4.1.conv2").weight
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert weight.mean().item() == pytest.approx(0, abs=1e-4)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert torch.equal(layer.weight, torch.ones_like(layer.weight))
            assert not layer.bias.any()
    classifier = small("mobilenet_v2").get_submodule("classifier.1")
    assert classifier.weight.std().item() == pytest.approx(0.01, rel=0.03)
    assert not classifier.bias.any()


@pytest.mark.parametrize("name", ["resnet18", "cnn", "mlp", "mobilenet_v2"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (4, 20, 44)])
def test_channels_and_sizes(name, shape):
    assert zoo.build(name, shape, 7).eval()(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(("shape", "hidden_inputs"), [((1, 32, 32), 512), ((3, 64, 96), 512 * 6), ((3, 70, 70), 2048)])
def test_vgg_fits_its_classifier_to_small_images(shape, hidden_inputs):
    model = zoo.build("vgg11_bn", shape, 10)
    assert model.get_submodule("classifier.0").weight.shape == (512, hidden_inputs)
    assert num_parameters(model) < 12e6
    assert model.eval()(torch.zeros(2, *shape)).shape == (2, 10)


def test_small_models_are_small():
    assert num_parameters(zoo.build("cnn", (1, 28, 28), 10, norm="none")) == 60_874
    assert num_parameters(zoo.build("cnn", (1, 28, 28), 10)) == 60_874 + 2 * (16 + 32 + 64)
    assert num_parameters(zoo.build("mlp", (1, 28, 28), 10)) == 199_210  # as McMahan et al. (2017) count it
    assert split([nn.Flatten(), *zoo.mlp((1, 8, 8), 10, stem="cifar", dropout=0.0, hidden=()).units]).num_units == 2


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_cifar_stem_keeps_images_large(name):
    x = torch.zeros(1, 3, 32, 32)
    model = zoo.build(name, (3, 32, 32), 10, stem="cifar").eval()
    assert model.head(1)(x).shape[2:] == (32, 32)
    assert model(x).shape == (1, 10)
    if name == "resnet18":
        assert model.get_submodule("conv1").weight.shape == (64, 3, 3, 3)
        assert num_parameters(model) == 11_173_962
        assert list(model.state_dict()) == list(small(name).state_dict())
    assert small(name).head(1)(x).shape[2:] == ((8, 8) if name == "resnet18" else (16, 16))


@pytest.mark.parametrize("name", OF_IMAGES)
def test_group_norm_leaves_no_batch_norm(name):
    model = zoo.build(name, (3, 32, 32), 10, norm="group", seed=7)
    batch = small(name)
    norms = [layer for layer in model.modules() if isinstance(layer, nn.GroupNorm)]
    for tree in (model, *model.units):
        assert not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in tree.modules())
    assert len(norms) == sum(isinstance(layer, nn.BatchNorm2d) for layer in batch.modules())
    assert [key for key, _ in model.named_parameters()] == [key for key, _ in batch.named_parameters()]
    assert not list(model.buffers())
    assert {id(p) for p in model.parameters()} == {id(p) for unit in model.units for p in unit.parameters()}
    for key, tensor in model.named_parameters():  # the swap draws nothing
        assert torch.equal(tensor, batch.get_parameter(key)), key
    one = model.eval()(torch.ones(1, 3, 32, 32))
    assert one.isfinite().all()


@pytest.mark.parametrize(
    ("channels", "groups"), [(1, 1), (16, 16), (24, 24), (64, 32), (96, 32), (37, 1), (144, 24), (1280, 32)]
)
def test_num_groups(channels, groups):
    assert _num_groups(channels) == groups


def test_swap_norm_of_other_modules():
    assert isinstance(swap_norm(nn.BatchNorm2d(8)), nn.GroupNorm)
    sequence = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8))
    assert swap_norm(sequence) is sequence
    assert isinstance(sequence[1], nn.GroupNorm)


@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_no_norm(name):
    model = zoo.build(name, (1, 28, 28), 10, norm="none")
    assert not list(model.buffers())
    assert model(torch.zeros(1, 1, 28, 28)).shape == (1, 10)


def test_dropout():
    rates = {"vgg11_bn": [0.5, 0.5], "mobilenet_v2": [0.2], "cnn": [], "mlp": [], "resnet18": []}
    for name, expected in rates.items():
        assert [layer.p for layer in small(name).modules() if isinstance(layer, nn.Dropout)] == expected
    model = zoo.build("cnn", (1, 28, 28), 10, dropout=0.3)
    assert [layer.p for layer in model.modules() if isinstance(layer, nn.Dropout)] == [0.3]
    assert list(model.state_dict()) == list(small("cnn").state_dict())


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"name": "resnet81"}, ("model 'resnet81'", "did you mean resnet18?")),
        ({"name": "ResNet-18"}, ("model 'ResNet-18'", "did you mean resnet18?")),
        ({"name": "zzz"}, ("model 'zzz'", "choose one of resnet18", "mlp, vgg11_bn, mobilenet_v2")),
        ({"norm": "groups"}, ("norm 'groups'", "did you mean group?")),
        ({"stem": "cifar10"}, ("stem 'cifar10'", "did you mean cifar?")),
        ({"norm": "none"}, ("norm is none", "resnet18", "choose batch or group")),
        ({"dropout": 0.1}, ("dropout is 0.1", "resnet18 has none")),
        ({"name": "cnn", "dropout": 1.0}, ("dropout is 1.0",)),
        ({"num_classes": 0}, ("num_classes is 0",)),
        ({"input_shape": (3, 32)}, ("input_shape is (3, 32)",)),
        ({"input_shape": (0, 32, 32)}, ("input_shape is (0, 32, 32)", "each at least 1")),
        ({"name": "vgg11_bn", "input_shape": (3, 8, 8)}, ("images of 8x8", "vgg11_bn", "resize to 32x32")),
        ({"name": "vgg11_bn", "input_shape": (3, 64, 8)}, ("images of 64x8", "too small")),
        ({"name": "cnn", "input_shape": (1, 7, 7)}, ("images of 7x7", "resize to 8x8")),
    ],
)
def test_bad_input_gets_one_line(settings, parts, recwarn):
    with raises(InputError, *parts) as caught:
        zoo.build(**{"name": "resnet18", "input_shape": (3, 32, 32), "num_classes": 10} | settings)
    assert "\n" not in str(caught.value)
    assert not recwarn.list
