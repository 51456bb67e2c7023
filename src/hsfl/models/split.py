"""`hsfl.split`: any module becomes a SplitModel, cut where its graph allows, with the names of its own state dict."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from hsfl.errors import InputError
from hsfl.models.units import SplitModel, check_not_lazy, in_order

Example = Tensor | Sequence[Tensor] | Mapping[str, Tensor]


def split(
    model: Any,
    example_input: Example | None = None,
    *,
    at: Iterable[str] = (),
    most_tensors: int = 1,
    output: str | int | None = None,
) -> SplitModel:
    """A SplitModel from a module and an example batch, or from modules in order (a list, a mapping of names, an `nn.Sequential`).

    example_input: a batch of two samples or more; its values do not matter. Of several tensors the first is the sample,
    and the others (an attention mask) travel beside whatever crosses a cut. Tensors of a mapping go to the module by
    their names.
    at: cut only behind these parts of the module. most_tensors: how many tensors may cross a cut together. output: which of several
    outputs is the model's, by its name or number.
    """
    if example_input is None or isinstance(model, list | tuple | Mapping):
        return in_order(model)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"the model to split is a {type(model).__name__}; give an nn.Module with an example of its input"
        )
    if not isinstance(most_tensors, int) or most_tensors < 1:
        raise InputError(f"most_tensors is {most_tensors!r}; at least one tensor crosses a cut")
    inputs = _inputs(example_input)
    _check(model, inputs)
    from hsfl.models.by_graph import Wanted, split_by_graph  # here, because sympy takes a second to load

    names = tuple(map(str, example_input)) if isinstance(example_input, Mapping) else ()
    wanted = Wanted(inputs, names, (at,) if isinstance(at, str) else tuple(at), most_tensors, output)
    return split_by_graph(model, wanted)


def _inputs(example: Example) -> list[Tensor]:
    inputs = (
        [example]
        if isinstance(example, Tensor)
        else list(example.values() if isinstance(example, Mapping) else example)
    )
    for i, x in enumerate(inputs):
        if not isinstance(x, Tensor):
            raise InputError(f"example_input holds a {type(x).__name__} at {i}; give a tensor, or several")
        if x.dim() < 1 or len(x) < 2:
            raise InputError(
                f"example_input has shape {tuple(x.shape)}; give a batch of two samples or more, so that sizes that follow "
                "the batch can be told from others"
            )
    if not inputs:
        raise InputError("example_input is empty; give a batch of two samples or more")
    if len({len(x) for x in inputs}) > 1:
        raise InputError(
            f"the tensors of example_input have {[len(x) for x in inputs]} samples; give all the same number"
        )
    return inputs


def _check(model: nn.Module, inputs: Sequence[Tensor]) -> None:
    name = type(model).__name__
    check_not_lazy(model, name)
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(f"{name} has no parameters to train; give it a layer with weights")
    if len(devices) > 1 or inputs[0].device not in devices:
        raise InputError(
            f"{name} is on {', '.join(map(str, devices))} but example_input is on {inputs[0].device}; move them to one device"
        )
