"""The small transformers of the package: units, causality, costs, and the presets that train them."""

import pytest
import torch

from hsfl.config import presets, read_config
from hsfl.config.options import GPTOptions, ViTOptions
from hsfl.errors import InputError
from hsfl.models.cost_table import measure_cost
from hsfl.models.zoo import build
from tests.naming import raises

SMALL = {"width": 16, "depth": 2, "heads": 2}


def test_gpt_is_its_units_one_after_another_and_sees_no_later_token():
    model = build("gpt", (12,), 30, options=GPTOptions(**SMALL)).eval()
    assert model.unit_names == ("embedding", "block1", "block2", "classifier")
    assert model.input_dtype == torch.int64
    tokens = torch.randint(0, 30, (3, 12))
    later = tokens.clone()
    later[:, 7:] = 0
    seen, other = model(tokens), model(later)
    assert seen.shape == (3, 12, 30)
    assert torch.equal(seen[:, :7], other[:, :7])
    assert not torch.equal(seen[:, 7:], other[:, 7:])
    assert torch.equal(model.tail(2)(model.head(2)(tokens)), seen)


def test_vit_takes_images_and_refuses_patches_that_do_not_fit():
    model = build("vit", (3, 16, 16), 10, options=ViTOptions(**SMALL)).eval()
    assert model(torch.randn(2, 3, 16, 16)).shape == (2, 10)
    assert model.num_units == 4
    with raises(InputError, "options.vit.patch is 4", "18x18"):
        build("vit", (3, 18, 18), 10, options=ViTOptions(**SMALL))
    with raises(InputError, "gpt", "tokens"):
        build("gpt", (3, 16, 16), 10)


def test_costs_of_gpt_are_those_of_its_matrices():
    """A token in a block: 12 D^2 multiply-adds of four matrices, 2 T D of attention; the classifier D V. Forward alone."""
    length, width, vocabulary = 12, 16, 30
    table = measure_cost(build("gpt", (length,), vocabulary, options=GPTOptions(**SMALL)), (length,), 2)
    block = 2 * length * (12 * width**2 + 2 * length * width)
    assert table.client_forward_flops[1] == 0  # an embedding looks up
    assert table.client_forward_flops[2] == block
    assert table.server_forward_flops[3] == 2 * length * width * vocabulary
    assert table.smashed_bits.tolist() == [64 * length, *[32 * length * width] * 3, 0]
    assert table.gradient_bits[0] == 0


def test_first_weights_depend_on_the_seed_alone():
    first, again, other = (build("gpt", (4,), 8, options=GPTOptions(**SMALL), seed=s).state_dict() for s in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["block1.dense.layers.wide.weight"], other["block1.dense.layers.wide.weight"])


@pytest.mark.parametrize(("preset", "model"), [("gpt-text", "gpt"), ("vit-cifar10", "vit")])
def test_presets(preset, model):
    assert preset in presets()
    assert read_config(preset).model.name == model
