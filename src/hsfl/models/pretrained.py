"""`hf:PATH`: a model of the library `transformers`, built from a config of its, with first weights from safetensors where there are some.

PATH is a JSON config, or a folder with `config.json` and any `*.safetensors`. Nothing is fetched, no code of a folder is run, and no
pickle is read. The config's `architectures` choose the class; without them images are classified, and of tokens the next is guessed.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hsfl.errors import InputError
from hsfl.files import read_object
from hsfl.models.split import split
from hsfl.models.units import SplitModel

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
CLASSES = {3: "AutoModelForImageClassification", 1: "AutoModelForCausalLM"}  # by the axes of a sample
POSITIONS = ("n_positions", "max_position_embeddings")


def from_config(input_shape: tuple[int, ...], num_classes: int, *, stem: str, dropout: float, path: str) -> SplitModel:
    """The model of a config, split for samples of this shape; weights that no file holds are drawn."""
    where = Path(path).expanduser()
    folder = where if where.is_dir() else None
    file = where / "config.json" if folder else where
    if not file.is_file():
        raise InputError(
            f"{file} is no file; give model.name=hf:PATH, a folder with config.json, or such a file itself"
        )
    module = _module(file, input_shape, num_classes)
    if folder is not None:
        _load(module, folder)
    tokens = len(input_shape) == 1
    example = torch.zeros(2, *input_shape, dtype=torch.int64 if tokens else None)
    return split(module, example)


def _module(file: Path, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    try:
        import transformers  # here, because it is an extra and takes seconds to load
    except ImportError:
        raise InputError(f"hf:{file} needs the library transformers; pip install 'hsfl[transformers]'") from None
    transformers.logging.set_verbosity_error()
    tree: dict[str, Any] = read_object(file)
    if "auto_map" in tree:
        raise InputError(
            f"{file} asks for code of its folder (auto_map), which is never run; take a built-in model_type"
        )
    kind, named = tree.pop("model_type", None), tree.pop("architectures", None) or []
    if len(input_shape) not in CLASSES:
        raise InputError(f"hf:{file} takes images or tokens, not samples of {input_shape}; choose another model")
    try:
        config = transformers.AutoConfig.for_model(kind, **_fitted(tree, file, input_shape, num_classes))
        if named:
            return getattr(transformers, str(named[0]))(config)
        return getattr(transformers, CLASSES[len(input_shape)]).from_config(config)
    except InputError:
        raise
    except Exception as error:  # a config may ask for anything
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise InputError(f"{file} describes no model that can be built ({reason}); correct it") from None


def _fitted(tree: dict[str, Any], file: Path, input_shape: tuple[int, ...], num_classes: int) -> dict[str, Any]:
    """The config's fields for these samples: images of this size and classes, or blocks of tokens that are no longer than it takes."""
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


def _load(module: nn.Module, folder: Path) -> None:
    """First weights from all safetensors of a folder; a head for other classes keeps the weights that were drawn."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        if pickles := [file.name for pattern in PICKLES for file in sorted(folder.glob(pattern))]:
            raise InputError(
                f"{folder} holds {pickles[0]} and no safetensors; a pickle is never read: save the model with "
                "safe_serialization=True"
            )
        return
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError, json.JSONDecodeError) as error:
            raise InputError(f"{file} cannot be read ({' '.join(str(error).split())[:120]}); copy it again") from None
    wanted, prefix = module.state_dict(), f"{getattr(module, 'base_model_prefix', '')}."
    found = {name if name in wanted else prefix + name: tensor for name, tensor in tensors.items()}
    heads = {name for name in wanted if not name.startswith(prefix)}  # of the task, on top of the model
    fits = {name: t for name, t in found.items() if name in wanted and t.shape == wanted[name].shape}
    if missing := [name for name in wanted if name not in fits and name not in heads]:
        what = f"has {name_shape(found[missing[0]])} for" if missing[0] in found else "lacks"
        raise InputError(
            f"{folder} {what} {missing[0]} of {name_shape(wanted[missing[0]])}; its weights are of another model than its config"
        )
    if "lm_head.weight" in heads - fits.keys():  # saved tied to the embedding
        embedding = module.get_input_embeddings().weight  # type: ignore[operator, union-attr]
        if embedding.shape == wanted["lm_head.weight"].shape:
            fits["lm_head.weight"] = next(fits[n] for n, p in module.named_parameters() if p is embedding and n in fits)
    module.load_state_dict({name: tensor.clone() for name, tensor in fits.items()}, strict=False)


def name_shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"
