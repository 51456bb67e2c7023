"""`hf:PATH`: a model of the library `transformers`, built from a config, with first weights from safetensors files if
there are any.

PATH is a JSON config, or a folder with `config.json` and any `*.safetensors`. Nothing is fetched, no code of a folder
is run, and no pickle is read. The config's `architectures` choose the class; without them the model classifies images
or guesses the next token.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from hsfl.errors import InputError, install_extra
from hsfl.files import read_object
from hsfl.models.split.graph_split import split
from hsfl.models.units import SplitModel

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.bin.index.json")
CLASSES = {3: "AutoModelForImageClassification", 1: "AutoModelForCausalLM"}  # by the number of axes of a sample
POSITIONS = ("n_positions", "max_position_embeddings")
REFUSED = {  # what a config may ask for, and why it is not done
    "auto_map": "code of its folder, which is never run; take a built-in model_type",
    "quantization_config": "quantised weights, which cannot be trained; take those of floats",
}
# Kernels and types are ours to choose.
DROPPED = ("attn_implementation", "_attn_implementation", "dtype", "torch_dtype")


def from_config(input_shape: tuple[int, ...], num_classes: int, *, stem: str, dropout: float, path: str) -> SplitModel:
    """The model of a config, split for samples of this shape; weights that no file holds are drawn."""
    config_path = Path(path).expanduser()
    file = config_path / "config.json" if config_path.is_dir() else config_path
    if not file.is_file():
        raise InputError(
            f"{file} is no file; give model.name=hf:PATH, a folder with config.json, or such a file itself"
        )
    if len(input_shape) not in CLASSES:
        raise InputError(f"hf:{file} takes images or tokens, not samples of {input_shape}; choose another model")
    weights = config_path if config_path.is_dir() and _has_weights(config_path) else None
    module = _module(file, weights, input_shape, num_classes)
    tokens = len(input_shape) == 1
    return split(module.float(), torch.zeros(2, *input_shape, dtype=torch.int64 if tokens else None))


def _has_weights(folder: Path) -> bool:
    """Whether there are safetensors; pickles alone are refused, and so is an adapter, which names another model."""
    if (folder / "adapter_config.json").exists():
        raise InputError(f"{folder} holds an adapter of another model; merge the two, and save the result there")
    for file in sorted(folder.glob("*.safetensors.index.json")):
        _check_shards(file)
    if any(folder.glob("*.safetensors")):
        return True
    if pickles := [file.name for pattern in PICKLES for file in sorted(folder.glob(pattern))]:
        raise InputError(
            f"{folder} holds {pickles[0]} and no safetensors; a pickle is never read: save the model as safetensors"
        )
    return False


def _check_shards(index: Path) -> None:
    """Refuse an index whose files are not all beside it: a part of the weights would be drawn."""
    shards = read_object(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise InputError(f"{index} has no weight_map with the files of the weights; download it again, or remove it")
    wanted = sorted(set(shards.values()))
    if missing := [name for name in wanted if not (index.parent / Path(name).name).is_file()]:
        raise InputError(
            f"{index} names {len(wanted)} files of weights, and {missing[0]} is not beside it; download what is missing, or remove "
            "the index to train from drawn weights"
        )


def _module(file: Path, weights: Path | None, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The module of a config file. weights: the folder of the first weights; None draws them."""
    try:
        import transformers  # here, because it is an extra and takes seconds to load
    except ImportError:
        raise InputError(f"hf:{file} needs the library transformers; {install_extra('transformers')}") from None
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        tree: dict[str, Any] = read_object(file)
    except InputError:
        raise InputError(f"{file} holds no names and values in JSON; give the config.json of a model") from None
    for name, why in REFUSED.items():
        if name in tree:
            raise InputError(f"{file} asks by {name} for {why}")
    tree = {name: value for name, value in tree.items() if name not in DROPPED}
    kind, architectures = tree.pop("model_type", None), tree.pop("architectures", None)
    if kind not in transformers.CONFIG_MAPPING:
        raise InputError(
            f"{file}: model_type is {kind!r}, which transformers {transformers.__version__} does not know; correct it"
        )
    try:
        config = transformers.AutoConfig.for_model(kind, **_fitted(tree, file, input_shape, num_classes))
        model_class = getattr(transformers, str(architectures[0]) if architectures else CLASSES[len(input_shape)])
        if weights is not None:
            return _with_weights_of(model_class, config, weights)
        return model_class.from_config(config) if not architectures else model_class(config)
    except InputError:
        raise
    except Exception as error:  # a config may ask for anything, and a file may hold anything
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise InputError(f"{weights or file} holds no model that can be built ({reason}); correct it") from None


def _with_weights_of(model_class: Any, config: Any, folder: Path) -> nn.Module:
    """The module with the weights of a folder; a head for other classes keeps the weights that were drawn."""
    module, loading_info = model_class.from_pretrained(
        folder,
        config=config,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    other_sizes = {str(entry if isinstance(entry, str) else entry[0]) for entry in loading_info["mismatched_keys"]}
    strange = [
        name
        for name in sorted({*loading_info["missing_keys"], *other_sizes})
        if name.startswith(f"{module.base_model_prefix}.")
    ]
    if strange:
        raise InputError(
            f"{folder}: {strange[0]} is missing or of another size; its weights are not those of its config"
        )
    if "lm_head.weight" in loading_info["missing_keys"]:  # the head's weights were saved tied to the embedding
        module.get_output_embeddings().weight.data.copy_(module.get_input_embeddings().weight.data)
    return module


def _fitted(tree: dict[str, Any], file: Path, input_shape: tuple[int, ...], num_classes: int) -> dict[str, Any]:
    """The config's fields for these samples: the size and classes of images, or a vocabulary where the config has none.
    Blocks with more tokens than the config allows are refused."""
    fixed = {"use_cache": False, "tie_word_embeddings": False}  # tied weights could not be cut apart
    if len(input_shape) == 3:
        channels, height, width = input_shape
        if height != width:
            raise InputError(f"hf:{file} takes square images, not {height}x{width}; set model.input")
        sized = {"num_channels": channels, "image_size": height, "num_labels": num_classes}
        return tree | fixed | sized
    for name in POSITIONS:
        if isinstance(tree.get(name), int) and tree[name] < input_shape[0]:
            raise InputError(
                f"{file}: {name} is {tree[name]} but a block has {input_shape[0]} tokens; lower data.block"
            )
    return {"vocab_size": num_classes, "num_labels": num_classes, "pad_token_id": 0} | tree | fixed
