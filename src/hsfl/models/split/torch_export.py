"""`torch.export` of a module, and why it cannot be done, in one line that names the module and the place in it."""

import inspect
import logging
import random
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.export import Dim, ExportedProgram

from hsfl.errors import InputError

IN_ORDER = "or pass its parts in order as a list of modules"  # the way out where a graph cannot be had
DATA_DEPENDENT = ("data-dependent", "data dependent", "DataDependent")
BATCH_FIXED = ("specialized it to be a constant",)
BATCH_GUARDED = ("Constraints violated", "constraints violated", "not all values of batch")
MOST_TRIED = 300  # a condition is tried for all batch sizes below this
HOOKS = ("_backward_hooks", "_backward_pre_hooks")
HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def export_module(module: nn.Module, inputs: Sequence[Tensor], names: Sequence[str], training: bool) -> ExportedProgram:
    """The module's program in one mode; the module is left as it was. names: of the inputs, where they are given by name."""
    _check_hooks(module)
    before = attributes_of(module)
    try:
        with _other_generators_refused(module), _autograd_functions_refused(module):
            return _export(module.train(training), inputs, names)
    finally:
        put_back(before)


# For each part of a module its attributes, and a copy of those that are lists, sets or mappings.
Attributes = list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]


def attributes_of(module: nn.Module) -> Attributes:
    """What `put_back` needs after a forward pass: modes, what the pass keeps of a batch, and parameters that it makes."""
    saved = []
    for submodule in module.modules():
        attributes = vars(submodule)
        copies = {name: value.copy() for name, value in attributes.items() if isinstance(value, list | dict | set)}
        saved.append((attributes, dict(attributes), copies))
    return saved


def put_back(saved: Attributes) -> None:
    for attributes, values, copies in saved:
        attributes.clear()
        attributes.update(values)
        for name, content in copies.items():
            container = values[name]
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)


def _export(module: nn.Module, inputs: Sequence[Tensor], names: Sequence[str]) -> ExportedProgram:
    """Export with the batch size as a symbol. If torch cannot prove its conditions on the batch size and the module has
    one input, the symbol is left to torch, provided that the conditions hold for every batch size that is tried."""
    from torch._dynamo.exc import UserError  # here, because it loads sympy, and only models that are split need it

    args, by_name = ((), dict(zip(names, inputs))) if names else (tuple(inputs), {})

    def with_batch(batch: Any) -> ExportedProgram:
        sizes: Any = {name: {0: batch} for name in names}
        sizes = sizes or sizes_by_place(module, [{0: batch}] * len(inputs))
        with _quiet():
            return torch.export.export(module, args, by_name, dynamic_shapes=sizes)

    try:
        try:
            return with_batch(Dim("batch", min=1))
        except UserError as error:
            if len(inputs) > 1 or not _holds_for_every_batch(str(error)):
                raise
            return with_batch(Dim.DYNAMIC)
    except InputError:
        raise
    except Exception as error:  # a user's module may raise anything
        raise InputError(_error_sentence(module, inputs, error)) from error


def _holds_for_every_batch(error_text: str) -> bool:
    """Whether torch's error names nothing but conditions on the batch size that torch could not prove, and all of them
    hold for every batch size that is tried."""
    guards = [
        re.sub(r"L\['\w+'\]\.size\(\)\[0\]", "b", guard) for guard in re.findall(r"generated guard (.*)\.", error_text)
    ]
    if (
        not guards
        or "pecializ" in error_text
        or not all(re.fullmatch(r"(?:[b\d\s()+*/,<>=!-]|min|max)*", g) for g in guards)
    ):
        return False
    names = {"__builtins__": {}, "min": min, "max": max}
    return all(eval(guard, names, {"b": batch}) for guard in guards for batch in range(1, MOST_TRIED))


def sizes_by_place(module: nn.Module, sizes: Sequence[Any]) -> tuple[Any, ...]:
    """The sizes of the inputs as `torch.export` wants them: the inputs that `*args` takes stand together in one
    tuple."""
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    stars = kinds.index(inspect.Parameter.VAR_POSITIONAL) if inspect.Parameter.VAR_POSITIONAL in kinds else len(sizes)
    return (*sizes[:stars], tuple(sizes[stars:])) if stars < len(sizes) else tuple(sizes)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings about attributes that an LSTM sets, and the graphs that it prints beside our one-line
    error."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _error_sentence(module: nn.Module, inputs: Sequence[Tensor], error: Exception) -> str:
    """One line that says why a module gives no graph, and where in it."""
    name, error_text = type(module).__name__, " ".join(str(error).split())
    place = _place(module, error)
    if any(word in error_text or word in type(error).__name__ for word in DATA_DEPENDENT):
        return (
            f"{name} cannot be split: {place} decides by values that are known only while it runs, so there is no one "
            f"order of its parts; compute both ways and choose with torch.where, {IN_ORDER}"
        )
    if any(word in error_text for word in BATCH_FIXED):
        return (
            f"{name} cannot be split: {place} takes batches of {len(inputs[0])} alone; write the batch as x.shape[0] or -1, "
            f"not as len(x) or as a number, {IN_ORDER}"
        )
    if any(word in error_text for word in BATCH_GUARDED):
        return (
            f"{name} cannot be split: {place} may not take batches of every size ({_guard(error_text)}); write view as reshape, "
            f"and no sizes that are computed from the batch's, {IN_ORDER}"
        )
    if "not a known type" in error_text:
        return (
            f"{name} cannot be split: it returns something else than tensors ({error_text[:90]}); return one tensor "
            "(use_cache=False in transformers)"
        )
    if "nn_module_stack" in error_text:
        return f"{name} cannot be split: {place} gives a buffer the tensor of another one; copy it instead, self.a = self.b.clone(), {IN_ORDER}"
    if "fake tensor in the exported program" in error_text:
        return (
            f"{name} cannot be split: {place} does what no graph can hold, such as .data or torch.autograd.grad; write it with torch's "
            f"operations (under torch.no_grad() instead of .data), {IN_ORDER}"
        )
    shapes = " and ".join(f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}" for x in inputs)
    reason = re.sub(r"\bs\d+\b", "batch", error_text)[:200] or type(error).__name__
    return (
        f"{name} cannot be split: {place} fails on the example of {shapes} ({reason}); give an example as the module takes it, "
        f"{IN_ORDER}"
    )


def _guard(error_text: str) -> str:
    """The condition on the batch size that torch could not prove, in short."""
    guard = error_text.partition("generated guard ")[2].partition(" - ")[0].partition(". ")[0] or error_text
    return re.sub(r"L\['\w+'\]\.size\(\)\[0\]", "batch", guard)[:120].rstrip(".")


def _place(module: nn.Module, error: BaseException) -> str:
    """The innermost part of the module that was at work when the error was raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return _part_at_work(module, [frame.f_locals.get("self") for frame in reversed(frames)])


def _part_at_work(module: nn.Module, owners: Sequence[Any]) -> str:
    """The first of the owners of some frames, innermost first, that is a part of the module."""
    names = {id(submodule): name for name, submodule in module.named_modules()}
    for owner in owners:
        if isinstance(owner, nn.Module) and names.get(id(owner)):
            return f"its part {names[id(owner)]!r} ({type(owner).__name__})"
    return "its forward"


@contextmanager
def _other_generators_refused(module: nn.Module) -> Iterator[None]:
    """Refuse a forward pass that draws from Python's or NumPy's generator: its draw would stand in the graph for ever."""
    before = random.getstate(), str(np.random.get_state())  # noqa: NPY002 -- the module may draw from the old generator
    yield
    if (random.getstate(), str(np.random.get_state())) != before:  # noqa: NPY002
        raise InputError(
            f"{type(module).__name__} cannot be split: its forward draws from Python's random or from numpy.random, which "
            f"no key of a step reaches; draw with torch.rand, {IN_ORDER}"
        )


@contextmanager
def _autograd_functions_refused(module: nn.Module) -> Iterator[None]:
    """Refuse a forward pass that calls an `autograd.Function`: the graph would hold its forward and forget its backward."""
    plain: Callable[..., Any] = vars(Function)["apply"]

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.startswith("torch.") and cls.__name__ != "CheckpointFunction":
            return plain.__get__(None, cls)(*args, **kwargs)
        owners = [frame.frame.f_locals.get("self") for frame in inspect.stack(0)]
        way_out = "use_reentrant=False" if cls.__name__ == "CheckpointFunction" else "write it with torch's operations"
        raise InputError(
            f"{type(module).__name__} cannot be split: {_part_at_work(module, owners)} calls {cls.__name__}, whose backward is "
            f"code of its own, which a graph does not hold; {way_out}, {IN_ORDER}"
        )

    Function.apply = classmethod(refuse)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Function.apply = plain  # type: ignore[method-assign]


def _check_hooks(module: nn.Module) -> None:
    """Refuse hooks on the backward pass, which are no part of a graph."""
    for name, submodule in module.named_modules():
        if any(getattr(submodule, hooks, None) for hooks in HOOKS):
            raise InputError(
                f"{type(module).__name__} cannot be split: its part {name!r} ({type(submodule).__name__}) has a hook on its backward "
                f"pass, which a graph does not hold; remove it, {IN_ORDER}"
            )
    for name, parameter in module.named_parameters():
        if any(getattr(parameter, hooks, None) for hooks in HOOKS_OF_TENSORS):
            raise InputError(
                f"{type(module).__name__} cannot be split: its parameter {name!r} has a hook on its gradient, which a copy of the parameter does "
                "not have, and clients train copies; remove it"
            )
