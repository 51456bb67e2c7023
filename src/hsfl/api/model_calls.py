"""`hsfl.cost`: what every cut of a model costs."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hsfl.api.arguments import Plugins, split_given
from hsfl.codec_table import link_choices
from hsfl.config import read_config, read_options, set_name
from hsfl.errors import InputError
from hsfl.models.cost_table import CostTable, check_sample_shape, measure_cost
from hsfl.models.model_checks import check_example, example
from hsfl.models.split.module_split import ModuleSplit
from hsfl.models.units import SplitModel
from hsfl.models.zoo import build, build_from
from hsfl.planning.coded_cost import coded_cost
from hsfl.plugins import function_of

IMAGE = (3, 32, 32)  # a sample, where no shape is given


def cost(
    model: Any = "resnet18",
    input_shape: Sequence[int] | None = None,
    num_classes: int = 10,
    batch_size: int = 256,
    norm: str = "batch",
    stem: str = "imagenet",
    settings: Iterable[str] = (),
    *,
    plugins: Plugins = (),
) -> CostTable:
    """What every cut of a model costs: FLOPs, bits on the links, memory. `hsfl.plan(cost=...)` takes the answer.

    model: a name such as "resnet18", "FILE.py:FUNCTION", or a model as `hsfl.run` takes it. input_shape: of one sample;
    by default that of the example that `hsfl.split` was given, else (3, 32, 32). num_classes, norm, stem: of a model that is named. batch_size: of the mini-batch for which memory is counted.
    settings: options of the model, such as "options.gpt.width=64", and codecs, such as "link.up=int8". plugins: files that register models or codecs.
    """
    return cost_with_model(model, input_shape, num_classes, batch_size, norm, stem, settings, plugins)[0]


def cost_with_model(
    model: Any,
    input_shape: Sequence[int] | None,
    num_classes: int,
    batch_size: int,
    norm: str,
    stem: str,
    settings: Iterable[str],
    plugins: Plugins,
) -> tuple[CostTable, SplitModel]:
    """As `cost`, with the model that was measured."""
    for name, value, most in (("--batch-size", batch_size, 2**20), ("--classes", num_classes, 10**6)):
        if not 1 <= value <= most:
            raise InputError(f"{name} is {value}; choose 1..{most}")
    shape = IMAGE if input_shape is None else tuple(input_shape)
    check_sample_shape(shape)
    files = [plugins] if isinstance(plugins, str | Path) else list(plugins)
    names = [model] if isinstance(model, str) else ["own"]
    changes = [settings] if isinstance(settings, str) else list(settings)
    codecs = [change for change in changes if set_name(change).partition(".")[0] == "link"]
    options = read_options([change for change in changes if change not in codecs], files, names)
    choices = link_choices(read_config(None, codecs, files).link)
    if not isinstance(model, str):
        split_model = split_given(model)
        if input_shape is None and isinstance(split_model, ModuleSplit):
            shape = split_model.message.shape
    elif ".py:" in model:
        split_model = build_from(function_of(model), shape, num_classes, norm)
    else:
        split_model = build(model, shape, num_classes, norm, stem, options=options.of(model))
    try:
        check_example(split_model, example(shape, split_model.input_dtype))
        return coded_cost(measure_cost(split_model, shape, batch_size), choices, batch_size), split_model
    except InputError as error:
        raise InputError(f"{error}; --input gives the shape of a sample") from None
