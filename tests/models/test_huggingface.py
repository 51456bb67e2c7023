"""`hf:PATH`: models of transformers from a config or a folder of safetensors."""

import json

import pytest
import torch

from hsfl.errors import InputError
from hsfl.models.zoo import build
from tests.naming import names, raises
from tests.small_runs import refused

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
CONFIGS = {
    "gpt2": ({"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 40}, (8,), (8, 40)),
    "llama": (SMALL | {"vocab_size": 40}, (8,), (8, 40)),
    "bert": (SMALL | {"vocab_size": 40, "architectures": ["BertForSequenceClassification"]}, (8,), (5,)),
    "vit": (SMALL | {"patch_size": 4}, (3, 16, 16), (5,)),
}


def written(folder, kind: str, **more):
    own = CONFIGS[kind][0] | more
    (folder / "config.json").write_text(json.dumps({"model_type": kind} | own))
    return f"hf:{folder}"


def test_paths_that_hold_no_config_are_one_line(tmp_path):
    names(
        refused("run", "--set", f"model.name=hf:{tmp_path}", "--out", tmp_path / "o"), "no file", "model.name=hf:PATH"
    )
    names(refused("run", "--set", "model.name=hf:", "--out", tmp_path / "o"), "'hf:'", "path")


def test_an_index_without_its_files_is_refused(tmp_path):
    """Else the weights would be drawn, and nobody would hear of it."""
    index, name = tmp_path / "model.safetensors.index.json", written(tmp_path, "gpt2")
    for content, parts in [
        (
            {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}},
            ("2 files", "model-2-of-2"),
        ),
        ({"weight_map": ["model-1-of-2.safetensors"]}, ("no weight_map",)),
        ({}, ("no weight_map", "download it again")),
    ]:
        index.write_text(json.dumps(content))
        (tmp_path / "model-1-of-2.safetensors").write_bytes(b"x")
        with raises(InputError, "model.safetensors.index.json", *parts):
            build(name, (8,), 40)
    index.unlink()
    (tmp_path / "model-1-of-2.safetensors").unlink()
    (tmp_path / "pytorch_model.bin.index.json").write_text("{}")
    with raises(InputError, "pytorch_model.bin.index.json", "a pickle is never"):
        build(name, (8,), 40)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_weights_of_a_folder_are_the_models_first(kind, tmp_path):
    pytest.importorskip("transformers")
    _, shape, gives = CONFIGS[kind]
    drawn = build(written(tmp_path, kind), shape, gives[-1], seed=1).eval()
    x = torch.randint(0, 40, (3, *shape)) if len(shape) == 1 else torch.randn(3, *shape)
    assert drawn(x).shape == (3, *gives)
    assert drawn.num_units > 3
    whole = drawn.whole()
    whole.save_pretrained(tmp_path, safe_serialization=True)
    again = build(f"hf:{tmp_path}", shape, gives[-1], seed=2).eval()
    assert torch.allclose(again(x), whole.eval()(x)[0], atol=1e-6)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in drawn.state_dict().items())
    if kind == "vit":  # other classes: the body's weights, a new head
        other = build(f"hf:{tmp_path}", shape, 7, seed=2)
        assert torch.equal(other.state_dict()["vit.layernorm.weight"], drawn.state_dict()["vit.layernorm.weight"])


@pytest.mark.slow
def test_wrong_folders_are_one_line(tmp_path):
    pytest.importorskip("transformers")
    for name, more, parts in [
        ("code", {"auto_map": {"AutoModel": "evil.Model"}}, ("auto_map", "code of its folder")),
        ("long", {"n_positions": 4}, ("n_positions is 4", "8 tokens", "lower data.block")),
        ("odd", {"n_head": 3}, ("odd/config.json", "no model")),
        ("class", {"architectures": ["NoSuchModel"]}, ("no model", "NoSuchModel")),
    ]:
        (tmp_path / name).mkdir()
        with raises(InputError, *parts):
            build(written(tmp_path / name, "gpt2", **more), (8,), 40)
    for name, content, parts in [
        ("broken", "{", ("broken.json", "names and values in JSON")),
        ("strange", '{"model_type": "nonesuch"}', ("model_type is 'nonesuch'", "transformers", "does not know")),
    ]:
        (tmp_path / f"{name}.json").write_text(content)
        with raises(InputError, *parts):
            build(f"hf:{tmp_path / name}.json", (8,), 40)
    (tmp_path / "pickle").mkdir()
    (tmp_path / "pickle" / "pytorch_model.bin").write_bytes(b"x")
    with raises(InputError, "a pickle is never"):
        build(written(tmp_path / "pickle", "gpt2"), (8,), 40)
    (tmp_path / "pickle" / "model.safetensors").write_bytes(b"x")
    with raises(InputError, "pickle", "no model"):
        build(f"hf:{tmp_path / 'pickle'}", (8,), 40)
    (tmp_path / "pickle" / "model.safetensors").unlink()
    drawn = build(written(tmp_path / "long", "gpt2"), (8,), 40).whole()
    drawn.save_pretrained(tmp_path / "long")
    with raises(InputError, "weights", "config"):
        build(written(tmp_path / "long", "gpt2", n_embd=32), (8,), 40)
