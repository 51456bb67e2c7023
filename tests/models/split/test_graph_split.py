"""`hsfl.split`: any module, cut by its graph, computes what the module computes."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

import hsfl
from hsfl.models.cost_table import measure_cost
from hsfl.models.state import Layout, bound_copy, read_state
from hsfl.models.zoo import build
from tests.models.architectures import ARCHITECTURES, GPT, QUICK, TWO_CROSS, ResNet, make, pictures
from tests.models.whole import distance, one_tensor
from tests.naming import raises

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES if name not in QUICK]
CUTS = {"resnet": 5, "vgg": 3, "densenet": 7, "gpt": 6, "bert": 6, "recurrent": 2, "table": 2}


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_every_cut_of_every_family_is_the_whole_module(name):
    module, example, batch = make(name)
    model = hsfl.split(module, example, most_tensors=2 if name in TWO_CROSS else 1)
    assert model.num_units > 2
    assert list(model.state_dict()) == list(module.state_dict())
    assert model.num_units - 1 == CUTS.get(name, model.num_units - 1)
    assert distance(module, model, batch) < 1e-6
    assert distance(module, pickle.loads(pickle.dumps(model)), batch) < 1e-6  # what a worker gets
    one = tuple(x[:1] for x in batch)  # the last batch of an evaluation may be a single sample
    assert torch.allclose(model.eval()(*one), module.eval()(*one), atol=1e-6)


def test_units_share_the_modules_own_tensors():
    module, example, batch = make("resnet")
    model = hsfl.split(module, example[0])
    parameters = dict(module.named_parameters())
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert model.unit_names == ("conv1", "layer1.0", "layer1.1", "layer2.0", "layer2.1", "fc")[: model.num_units]
    with torch.no_grad():
        module.fc.bias.fill_(3.0)
        module.bn1.running_mean.fill_(0.5)
    assert torch.equal(model.eval()(*batch), module.eval()(*batch))


def test_a_copy_in_another_type_stays_joined():
    module, example, batch = make("resnet")
    model = copy.deepcopy(hsfl.split(module, example)).double().eval()
    assert {t.dtype for unit in model.units for t in unit.state_dict().values()} == {torch.float64, torch.int64}
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(module.state_dict()[name] * 2)
    twice = copy.deepcopy(module).double().eval()
    twice.load_state_dict({name: tensor * 2 for name, tensor in module.state_dict().items()})
    assert torch.equal(model(batch[0].double()), twice(batch[0].double()))


def test_a_state_in_flat_vectors_trains_a_split_module():
    module, example, _ = make("resnet")
    model = hsfl.split(module, example)
    units, state = bound_copy(model, Layout.of(model), 1, 3)
    state.floats.zero_()
    assert not any(tensor.any() for unit in units for tensor in unit.parameters())
    assert set(read_state(model).named()) == set(module.state_dict())


def test_the_mask_travels_and_is_counted():
    module, example, batch = make("bert")
    model = hsfl.split(module, example)
    cost = measure_cost(model, model.message.shape, batch_size=4)
    width = 8 * 16 * 32  # numbers of a sample times 32 bits
    assert cost.smashed_bits.tolist() == [16 * 32] + [width + 8 * 32] * 5 + [
        16 * 32,
        0,
    ]  # the classifier needs it no longer
    assert model.head(2)(model.pack(*batch)).shape == (3, 8 * 16 + 8)
    unmasked = (batch[0], torch.ones_like(batch[1]))
    assert not torch.allclose(model.eval()(*batch), model(*unmasked))
    with raises(hsfl.InputError, "2 tensors, not 3"):
        model.pack(*batch, batch[1])


def plain(name: str) -> nn.Module:
    """The hand-written model as an ordinary module that knows no units: ResNet-18 as torchvision writes it."""
    if name == "resnet18":
        module: nn.Module = ResNet((64, 128, 256, 512), classes=10)
        module.load_state_dict(build(name, (3, 32, 32), 10).state_dict())
        return module
    return Hidden(build(name, (3, 32, 32), 10))


class Hidden(nn.Module):
    """A hand-written model whose units are out of sight: one flat list of layers or blocks under the names it has."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        for name, child in model.named_children():
            self.add_module(name, child)
        self.order = (model.units,)

    def forward(self, x):
        for unit in self.order[0]:
            x = unit(x)
        return x


HAND_WRITTEN = {"resnet18": 9, "vgg11_bn": 10, "mobilenet_v2": 32}


@pytest.mark.parametrize(
    "name", ["vgg11_bn", *(pytest.param(n, marks=pytest.mark.slow) for n in ("resnet18", "mobilenet_v2"))]
)
def test_the_cuts_found_are_the_hand_written_ones(name):
    by_hand, module, example = build(name, (3, 32, 32), 10), plain(name), torch.zeros(2, 3, 32, 32)
    model = hsfl.split(module, example)
    assert model.num_units - 1 == HAND_WRITTEN[name]
    assert model.state_dict().keys() == by_hand.state_dict().keys()
    assert model.unit_names[1:] == by_hand.unit_names[1:]
    for mine, theirs in zip(range(model.num_units), range(by_hand.num_units)):
        assert model.unit_state(mine).keys() == by_hand.unit_state(theirs).keys()
    found, expected = (measure_cost(each, (3, 32, 32), 16) for each in (model, by_hand))
    found_table, expected_table = found.to_dict(), expected.to_dict()
    found_shapes, expected_shapes = (table.pop("smashed_shapes") for table in (found_table, expected_table))
    assert found_table == expected_table
    # numbers alone: a graph is cut behind the last pooling's flatten, the hand-written units before it
    assert [math.prod(shape) for shape in found_shapes] == [math.prod(shape) for shape in expected_shapes]


def test_only_behind_named_parts():
    module, example, batch = make("resnet")
    model = hsfl.split(module, example, at=["layer1"])
    assert model.num_units == 2
    assert distance(module, model, batch) < 1e-6
    with raises(hsfl.InputError, "'bn1'", "conv1, layer1.0"):
        hsfl.split(module, example, at=["bn1"])


def test_a_frozen_weight_may_lie_on_both_sides():
    torch.manual_seed(0)
    module = GPT(tied=True)
    module.wte.weight.requires_grad_(False)
    batch = torch.randint(0, 32, (3, 8))
    model = hsfl.split(module, batch[:2])
    assert "lm_head.weight" in model.state_dict()
    assert "wte.weight" in model.unit_state(0)
    assert not model.unit_state(model.num_units - 1).keys() & {"wte.weight", "lm_head.weight"}
    assert distance(module, model, [batch]) < 1e-6
    wide = copy.deepcopy(model).double().eval()
    wide.load_state_dict({name: tensor.double() * 2 for name, tensor in model.state_dict().items()})
    twice = copy.deepcopy(module).double().eval()
    twice.load_state_dict(wide.state_dict())
    assert torch.allclose(wide(batch), twice(batch))


def test_a_single_value_per_channel_is_refused_as_the_module_refuses_it():
    module, example, batch = make("table")
    model = hsfl.split(module, example).train()
    for each in (module.train(), model):
        with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
            each(batch[0][:1])


CONFIGS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {"attention_dropout": 0.1}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {"num_key_value_heads": 1}),
    "bert": ("BertForSequenceClassification", "BertConfig", {}),
    "distilbert": (
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
    ),
    "vit": ("ViTForImageClassification", "ViTConfig", {"image_size": 32, "patch_size": 8, "hidden_dropout_prob": 0.1}),
    "swin": (
        "SwinForImageClassification",
        "SwinConfig",
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4},
    ),
    "convnext": (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2, "drop_path_rate": 0.2},
    ),
    "efficientnet": (
        "EfficientNetForImageClassification",
        "EfficientNetConfig",
        {"image_size": 32, "width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320},
    ),
    "mobilevit": (
        "MobileViTForImageClassification",
        "MobileViTConfig",
        {"image_size": 32, "hidden_sizes": [16, 16, 16], "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 32]},
    ),
}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 64}
WITH_MASK = ("bert", "distilbert")


def transformer(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """A small model of `transformers` from its config, an example batch of two and another batch of three."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    kind, config, own = CONFIGS[name]
    common = {} if "hidden_sizes" in own or "embed_dim" in own or "dim" in own else SMALL
    torch.manual_seed(0)
    module = getattr(transformers, kind)(
        getattr(transformers, config)(
            **{"vocab_size": 64, **common, **own, "use_cache": False, "tie_word_embeddings": False}
        )
    )
    if "image_size" in own or "num_stages" in own:
        return module, (torch.zeros(2, 3, 32, 32),), (torch.randn(3, 3, 32, 32),)
    ids, mask = torch.randint(0, 64, (3, 12)), (torch.arange(12) < torch.tensor([[12], [7], [9]])).long()
    return (module, (ids[:2], mask[:2]), (ids, mask)) if name in WITH_MASK else (module, (ids[:2],), (ids,))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_every_cut_of_a_model_of_transformers_is_the_whole_module(name):
    module, example, batch = transformer(name)
    model = hsfl.split(module, example)
    assert model.num_units > 4
    assert distance(module, model, batch) < 1e-6
    assert torch.allclose(model.eval()(*batch), one_tensor(module.eval()(*batch)), atol=1e-6)


def test_pictures_are_split_with_any_batch_in_the_example():
    module, _, batch = pictures(ResNet)()
    assert hsfl.split(module, torch.zeros(5, 3, 16, 16)).unit_names == hsfl.split(module, batch[0]).unit_names
