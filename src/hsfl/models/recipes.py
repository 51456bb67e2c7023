"""The models, one row each: who makes it, and what about it may be chosen. Imports no torch; `zoo` builds."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hsfl import plugins
from hsfl.config import ModelConfig
from hsfl.errors import InputError, known_name

if TYPE_CHECKING:
    from hsfl.models.units import SplitModel

NORMS = ("batch", "group", "none")


@dataclass(frozen=True)
class Recipe:
    """How to make a model (with BatchNorm, if it has a norm that can be exchanged), and what about it may be chosen."""

    code: "str | Callable[..., SplitModel]"  # "module:function", which is imported when it is needed, or the function
    norms: tuple[str, ...] = ("batch", "group")
    has_norm: bool = True  # whether it has BatchNorm, which another norm may replace
    num_units: int | None = None  # None where it depends on the input or on options
    dropout: float | None = None  # as published; None where the model has no dropout
    stem: bool = False  # whether its first layers shrink an image, so that another stem may be chosen
    any_shape: bool = False  # takes samples of any shape, else images alone
    has_options: bool = False  # whether it takes the settings under options.<name>
    path: str | None = None  # of the file or folder that describes the model (hf:PATH)
    channels_last: bool = (
        False  # whether it trains faster where the channels of a pixel lie side by side (docs/models.md)
    )
    registered: bool = False  # by a user: then `make(input_shape, num_classes)` makes it, and the data try it

    @property
    def is_split(self) -> bool:
        """Whether the model may be a module that is split by its graph, and no list of units that is written by hand."""
        return self.registered or self.path is not None

    @property
    def make(self) -> "Callable[..., SplitModel]":
        """The function that makes the model; it takes the input's shape and the number of classes."""
        if not isinstance(self.code, str):
            return self.code
        module, _, name = self.code.partition(":")
        function: Any = getattr(import_module(module), name)
        return function


MODELS = {
    "resnet18": Recipe("hsfl.models.resnet:resnet18", num_units=10, stem=True),  # contiguous: the paper's trainings are
    "cnn": Recipe("hsfl.models.zoo:cnn", norms=NORMS, num_units=5, dropout=0.0, channels_last=True),
    "mlp": Recipe("hsfl.models.zoo:mlp", norms=NORMS, has_norm=False, num_units=3, dropout=0.0, any_shape=True),
    "vgg11_bn": Recipe("hsfl.models.vgg:vgg11_bn", num_units=11, dropout=0.5),
    "mobilenet_v2": Recipe(
        "hsfl.models.mobilenet:mobilenet_v2", num_units=33, dropout=0.2, stem=True, channels_last=True
    ),
    "gpt": Recipe(
        "hsfl.models.transformer:gpt", norms=NORMS, has_norm=False, dropout=0.0, any_shape=True, has_options=True
    ),
    "vit": Recipe("hsfl.models.transformer:vit", norms=NORMS, has_norm=False, dropout=0.0, has_options=True),
}

BY_PATH = {  # name:PATH
    "hf": Recipe("hsfl.models.huggingface:from_config", norms=NORMS, has_norm=False, any_shape=True),
}


def find_recipe(name: str) -> Recipe:
    """The row of the model with this name, or of `hf:PATH`."""
    kind, _, path = name.partition(":")
    if kind in BY_PATH:
        if not path:
            raise InputError(f"model {name!r} needs a path: write {kind}:PATH")
        return replace(BY_PATH[kind], path=path)
    return MODELS[known_name("model", name, MODELS, plugins.WAY_OUT)]


def memory_format_of(model: ModelConfig) -> str:
    """How the numbers of an image lie in memory: as the setting says, or what `auto` stands for, which the model alone decides."""
    if model.memory_format != "auto":
        return model.memory_format
    return "channels_last" if model.name in MODELS and MODELS[model.name].channels_last else "contiguous"
