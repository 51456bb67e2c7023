"""Models by name. `build("resnet18", (3, 32, 32), 10)` gives a SplitModel; the same seed gives the same bits."""

import inspect
from collections.abc import Callable, Iterable
from math import prod
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from hsfl import plugins
from hsfl.errors import InputError, known_name
from hsfl.models.layers import init_weights, named, swap_norm
from hsfl.models.recipes import MODELS, NORMS, Recipe, find_recipe
from hsfl.models.split.certificate import certify_split
from hsfl.models.split.codegen import GraphUnit
from hsfl.models.split.graph_split import no_certificates, split
from hsfl.models.split.module_split import ModuleSplit
from hsfl.models.units import SplitModel

if TYPE_CHECKING:
    from pydantic import BaseModel

Shape = tuple[int, ...]  # of a sample: channels, height and width of an image

STEMS = ("imagenet", "cifar")
LARGEST_SIDE = 256  # how far to look for the smallest image that fits

CERTIFIED = set[object]()  # models by name that were certified in this process


def cnn(
    input_shape: Shape,
    num_classes: int,
    *,
    stem: str,
    dropout: float,
    widths: Iterable[int] = (16, 32, 64),
    hidden: int = 64,
) -> SplitModel:
    """A small CNN of five units: three convolutions (3x3, norm, ReLU, 2x2 max-pool), a dense layer, a classifier.

    For images of 8x8 and more; 61,098 parameters at 1x28x28 with ten classes.
    """
    in_channels, height, width = input_shape
    units: dict[str, nn.Module] = {}
    for i, channels in enumerate(widths, start=1):
        units[f"conv{i}"] = named(
            conv=nn.Conv2d(in_channels, channels, 3, padding=1),  # with a bias, so that norm = none works
            norm=nn.BatchNorm2d(channels),
            relu=nn.ReLU(inplace=True),
            pool=nn.MaxPool2d(2),
        )
        in_channels, height, width = channels, max(1, height // 2), max(1, width // 2)
    units["dense"] = _dense(in_channels * height * width, hidden, dropout)
    units["classifier"] = nn.Linear(hidden, num_classes)
    model = SplitModel(units)
    init_weights(model)
    return model


def mlp(
    input_shape: Shape, num_classes: int, *, stem: str, dropout: float, hidden: Iterable[int] = (200, 200)
) -> SplitModel:
    """Hidden layers, each a unit, and a classifier; by default the 2NN of McMahan et al. (2017), without norm."""
    inputs = prod(input_shape)
    units: dict[str, nn.Module] = {}
    for i, outputs in enumerate(hidden, start=1):
        units[f"hidden{i}"] = _dense(inputs, outputs, dropout)
        inputs = outputs
    units["classifier"] = named(flatten=nn.Flatten(), linear=nn.Linear(inputs, num_classes))
    return SplitModel(units)


def _dense(inputs: int, outputs: int, dropout: float) -> nn.Sequential:
    layers = named(flatten=nn.Flatten(), linear=nn.Linear(inputs, outputs), relu=nn.ReLU(inplace=True))
    if dropout > 0:  # a unit with dropout has its masks seeded every step, so no layer is better than one of rate 0
        layers.add_module("dropout", nn.Dropout(dropout))
    return layers


def register_model(name: str, make: Callable[..., Any], *, options: "type[BaseModel] | None" = None) -> None:
    """Add a user's model to the table of models.

    make: called as `make(input_shape, num_classes)`, with the shape of one sample. It returns an `nn.Module`, which is
        split for such samples, or units in order (a list, a mapping of names, an `nn.Sequential`), or what `hsfl.split`
        gives. First weights are drawn from the run's seed.
    options: a pydantic model. With it, `make` gets the settings under `options.<name>` as a third argument.
    """
    if not callable(make):
        raise InputError(f"model {name!r} is made by {make!r}; give a function of the input's shape and the classes")
    arguments = ("input_shape", "num_classes", "options") if options is not None else ("input_shape", "num_classes")
    plugins.check_call(f"model {name!r}", make, *arguments)

    def units(shape: Shape, num_classes: int, *, registered_options: Any, **_: Any) -> SplitModel:
        model = make(shape, num_classes) if options is None else make(shape, num_classes, registered_options)
        try:
            return _split_for(model, shape)
        except (TypeError, AttributeError):
            raise InputError(f"model {name!r} is a {type(model).__name__}; make an nn.Module or a list") from None

    plugins.register_name("model", MODELS, name, Recipe(units, NORMS, any_shape=True, registered=True), options)


def _split_for(model: Any, shape: Shape) -> SplitModel:
    """The model that a user's function returned, as a SplitModel for samples of this shape. Samples are floats, or tokens
    where the module has an embedding and takes no floats. Modules in order keep their order."""
    if not isinstance(model, nn.Module) or isinstance(model, nn.Sequential | SplitModel):
        return split(model)
    device = next(model.parameters(), torch.zeros(0)).device
    floats, tokens = (torch.zeros(2, *shape, device=device, dtype=dtype) for dtype in (None, torch.int64))
    if not any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in model.modules()):
        return split(model, floats)
    try:
        return split(model, floats)
    except InputError:
        return split(model, tokens)


def _takes_two(make: Callable[..., Any]) -> bool:
    """Whether a function is called with the input's shape and the number of classes; it may as well take nothing."""
    signature = inspect.signature(make)
    if not signature.parameters:
        return False
    name = getattr(make, "__name__", "the function")
    plugins.check_call(f"{name} of the file", make, "input_shape", "num_classes")
    return True


def build_from(make: Callable[..., Any], shape: Shape, num_classes: int, norm: str = "batch") -> SplitModel:
    """The model that a user's function returns. It is called without arguments, or with the input's shape and the number of
    classes. First weights are drawn from seed 0. A module that is split is certified."""
    with torch.random.fork_rng(devices=[]), no_certificates():
        torch.default_generator.manual_seed(0)
        model = make() if not _takes_two(make) else make(shape, num_classes)
        split_model = _with_norm(_split_for(model, shape), known_name("norm", norm, NORMS))
    if isinstance(split_model, ModuleSplit):
        certify_split(split_model)
    return split_model


def build(
    name: str,
    input_shape: Shape,
    num_classes: int,
    norm: str = "batch",
    stem: str = "imagenet",
    seed: int = 0,
    dropout: float | None = None,
    options: Any = None,
    certify: bool = False,
) -> SplitModel:
    """The model `name` for samples of `input_shape`, on the CPU, with weights drawn from `seed` alone.

    `norm` is "batch", "group" (every BatchNorm swapped for GroupNorm) or, for models that train without norm layers,
    "none". `stem` "cifar" keeps small images large in resnet18 and mobilenet_v2. A model without BatchNorm, or without
    a stem that shrinks images, ignores the setting. `dropout` None is the model's own rate. `options` are those of gpt,
    vit and registered models; None takes the model's defaults. `certify`: whether to certify a module that is split, unless it was
    certified in this process before. A run certifies once: its devices, workers and reports make the model again without.
    """
    recipe = find_recipe(name)
    known_name("stem", stem, STEMS)
    if known_name("norm", norm, NORMS) not in recipe.norms:
        raise InputError(f"norm is {norm} but {name} does not train without; choose {' or '.join(recipe.norms)}")
    if dropout is not None and recipe.dropout is None:
        raise InputError(f"dropout is {dropout} but {name} has none; leave it out or choose another model")
    if dropout is None:
        dropout = recipe.dropout or 0.0
    if not 0 <= dropout < 1:
        raise InputError(f"dropout is {dropout}; choose a number from 0 up to, not including, 1")
    if not input_shape or min(input_shape) < 1 or (len(input_shape) != 3 and not recipe.any_shape):
        allowed = "numbers of at least 1" if recipe.any_shape else "channels, height and width, each at least 1"
        raise InputError(f"input_shape is {tuple(input_shape)}; give {name} {allowed}, or choose another model")
    if num_classes < 1:
        raise InputError(f"num_classes is {num_classes}; a classifier needs at least 1")

    extra_arguments: dict[str, Any] = {}
    if recipe.registered:
        extra_arguments["registered_options"] = plugins.default_options(name) if options is None else options
    extra_arguments |= {"options": options} if recipe.has_options else {}
    extra_arguments |= {"path": recipe.path} if recipe.path is not None else {}

    def make(shape: Shape, device: str) -> SplitModel:
        with torch.device(device):  # whatever the default device, since each has a generator of its own
            return _with_norm(recipe.make(shape, num_classes, stem=stem, dropout=dropout, **extra_arguments), norm)

    def misfit(shape: Shape) -> str | None:
        """Why images of this shape do not pass, tried on tensors without data; None if they do."""
        try:
            make(shape, "meta").eval()(torch.empty(1, *shape, device="meta"))
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return None

    if not recipe.any_shape and (reason := misfit(input_shape)):
        channels, height, width = input_shape
        least = next((side for side in range(1, LARGEST_SIDE) if not misfit((channels, side, side))), None)
        way_out = f"resize to {least}x{least} or more" if least else reason
        raise InputError(f"images of {height}x{width} are too small for {name}; {way_out}, or choose another model")
    with torch.random.fork_rng(devices=[]), no_certificates():
        torch.default_generator.manual_seed(seed)
        model = make(input_shape, "cpu")
    if certify and isinstance(model, ModuleSplit):
        code = tuple(GraphUnit.codes(unit) for unit in model.units if isinstance(unit, GraphUnit))
        key = (name, recipe.code, tuple(input_shape), num_classes, norm, repr(options), code)
        if key not in CERTIFIED:
            certify_split(model)
            CERTIFIED.add(key)
    return model


def _with_norm(model: SplitModel, norm: str) -> SplitModel:
    if norm == "group":
        return cast(SplitModel, swap_norm(model))
    if norm == "none":
        return cast(SplitModel, swap_norm(model, into=lambda _: nn.Identity()))
    return model
