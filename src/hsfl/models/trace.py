"""A module as a graph: what its forward pass computes, in order, found by `torch.export` without computing anything.

A graph is of one mode, training or evaluation, which are two graphs over the same tensors. The batch is a symbol; every other
size is the example's. Regions without gradients are written out with a `detach` behind them, and checks are left out.
"""

import logging
import random
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from operator import getitem
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from hsfl.errors import InputError

IN_ORDER = "or pass its parts in order as a list of modules"  # the way out where a graph cannot be had
CHECKS = ("_assert", "sym_constrain_range")  # operations that only look
DATA_DEPENDENT = ("data-dependent", "data dependent", "DataDependent")
BATCH_FIXED = ("Constraints violated", "constraints violated", "not all values of batch", "specialized")


@dataclass(frozen=True)
class Trace:
    """The graph of a module in one mode."""

    graph: fx.Graph
    inputs: tuple[fx.Node, ...]  # the first is the sample, the others are side tensors
    output: fx.Node
    state: Mapping[fx.Node, str]  # parameters and persistent buffers, by their first name in the state dict
    parameters: frozenset[str]  # names of the state that are parameters
    constants: Mapping[fx.Node, Tensor]  # tensors that are no part of the state dict

    @cached_property
    def matrices(self) -> frozenset[str]:
        """Names of the parameters that have two or more dimensions."""
        shapes = {name: node.meta["val"].dim() for node, name in self.state.items() if name in self.parameters}
        return frozenset(name for name, dimensions in shapes.items() if dimensions >= 2)

    @cached_property
    def calls(self) -> list[fx.Node]:
        """The operations, in order."""
        return [node for node in self.graph.nodes if node.op == "call_function"]


def trace(module: nn.Module, inputs: Sequence[Tensor], training: bool, output: str | int | None = None) -> Trace:
    """The graph of a module in one mode; the module is left as it was. output: which of several outputs to take."""
    modes = {part: part.training for part in module.modules()}
    try:
        with _own_randomness(module):
            program = _export(module.train(training), inputs)
    finally:
        for part, mode in modes.items():
            part.training = mode
    graph = program.graph
    _inline(program)
    _drop_checks(graph)
    _hasten_assignments(graph)
    given = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    first_names = _first_names(module)
    state, constants, samples = {}, {}, []
    for spec in program.graph_signature.input_specs:
        node = given[spec.arg.name]
        if spec.kind is InputKind.USER_INPUT:
            samples.append(node)
        elif spec.kind is InputKind.PARAMETER or (spec.kind is InputKind.BUFFER and spec.persistent):
            state[node] = first_names[str(spec.target)]
        else:
            constants[node] = _constant(program, module, str(spec.target))
    parameters = frozenset(first_names[name] for name, _ in module.named_parameters())
    return Trace(graph, tuple(samples), _output(program, module, output), state, parameters, constants)


def _export(module: nn.Module, inputs: Sequence[Tensor]) -> ExportedProgram:
    batch = Dim("batch", min=1)
    try:
        with _quiet():
            return torch.export.export(
                module, tuple(inputs), dynamic_shapes=pytree.tree_map(lambda _: {0: batch}, tuple(inputs))
            )
    except InputError:
        raise
    except Exception as error:  # a module of one's own may raise anything
        raise InputError(_why_not(module, inputs, error)) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of attributes that LSTM sets, and no graphs on the screen where there is an error of one line."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _why_not(module: nn.Module, inputs: Sequence[Tensor], error: Exception) -> str:
    """One line that says why a module gives no graph, and where in it."""
    name, words = type(module).__name__, " ".join(str(error).split())
    where = _place(module, error)
    if any(word in words or word in type(error).__name__ for word in DATA_DEPENDENT):
        return (
            f"{name} cannot be split: {where} decides by values that are known only while it runs, so there is no one "
            f"order of its parts; compute both ways and choose with torch.where, {IN_ORDER}"
        )
    if any(word in words for word in BATCH_FIXED):
        return (
            f"{name} cannot be split: {where} takes batches of {len(inputs[0])} alone; write the batch as x.shape[0] or -1, "
            f"not as len(x) or as a number, {IN_ORDER}"
        )
    if "not a known type" in words:
        return (
            f"{name} cannot be split: it returns something else than tensors ({words[:90]}); return one tensor "
            "(use_cache=False in transformers)"
        )
    shapes = " and ".join(str(tuple(x.shape)) for x in inputs)
    reason = words[:200] or type(error).__name__
    return f"{name} cannot be split: {where} fails on the example of {shapes} ({reason}); change it, {IN_ORDER}"


def _place(module: nn.Module, error: BaseException) -> str:
    """The innermost part of the module that was at work when the error was raised."""
    names = {id(part): name for name, part in module.named_modules()}
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and names.get(id(owner)):
            return f"its part {names[id(owner)]!r} ({type(owner).__name__})"
    return "its forward"


@contextmanager
def _own_randomness(module: nn.Module) -> Iterator[None]:
    """Refuse a forward pass that draws from Python's or NumPy's generator: its draw would stand in the graph for ever."""
    before = random.getstate(), str(np.random.get_state())  # noqa: NPY002 -- the module may draw from the old generator
    yield
    if (random.getstate(), str(np.random.get_state())) != before:  # noqa: NPY002
        raise InputError(
            f"{type(module).__name__} cannot be split: its forward draws from Python's random or from numpy.random, which "
            f"no key of a step reaches; draw with torch.rand, {IN_ORDER}"
        )


def _first_names(module: nn.Module) -> dict[str, str]:
    """Every name of a tensor of the state dict -> the first name of that tensor; a tied tensor has several."""
    first: dict[int, str] = {}
    tensors = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors}


def _constant(program: ExportedProgram, module: nn.Module, name: str) -> Tensor:
    """A tensor that the module holds outside of its state dict, or one that the forward pass writes down as numbers."""
    found = program.constants.get(name)
    if found is None:
        found = module.get_buffer(name)
    if not isinstance(found, Tensor):
        raise InputError(f"{type(module).__name__} cannot be split: {name} is a {type(found).__name__}; {IN_ORDER}")
    return found.detach()


def _inline(program: ExportedProgram) -> None:
    """Write out regions with or without gradients; a region without them ends in `detach`."""
    graph, owner = program.graph, program.graph_module
    changed = True
    while changed:  # a region may hold another
        changed = False
        for node in list(graph.nodes):
            name = getattr(node.target, "__name__", "")
            if name not in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
                continue
            changed = True
            own_grad = name == "wrap_with_set_grad_enabled" and bool(node.args[0])
            at = next(i for i, arg in enumerate(node.args) if isinstance(arg, fx.Node) and arg.op == "get_attr")
            region: Any = owner.get_submodule(str(node.args[at].target))
            if name == "wrap_with_autocast" and node.args[2]:
                raise InputError(
                    f"the module turns autocast on in its forward; turn it off there, {IN_ORDER}, before it is split"
                )
            _write_out(graph, node, region, node.args[at + 1 :], detach=not own_grad and name != "wrap_with_autocast")
            owner.__dict__.setdefault("_regions", []).append(region)


def _write_out(graph: fx.Graph, node: fx.Node, region: Any, args: Sequence[Any], detach: bool) -> None:
    inner = [n for n in region.graph.nodes if n.op == "placeholder"]
    mapped: dict[fx.Node, Any] = dict(zip(inner, args))
    with graph.inserting_before(node):
        outs: Any = graph.graph_copy(region.graph, mapped)
        outs = list(outs) if isinstance(outs, list | tuple) else [outs]
        if detach:
            outs = [_detached(graph, out) if isinstance(out, fx.Node) else out for out in outs]
    for user in list(node.users):
        assert user.target is getitem, user
        user.replace_all_uses_with(outs[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)


def _detached(graph: fx.Graph, node: fx.Node) -> fx.Node:
    value = node.meta.get("val")
    if not (isinstance(value, Tensor) and value.is_floating_point()):
        return node
    out = graph.call_function(torch.ops.aten.detach.default, (node,))
    out.meta = dict(node.meta)
    return out


def _drop_checks(graph: fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and any(word in str(node.target) for word in CHECKS):
            graph.erase_node(node)


def _hasten_assignments(graph: fx.Graph) -> None:
    """`self.buffer = value` stands as a copy at the end of a graph; put it where the value is known, so that it parts nothing."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten.copy_.default or node.users or node.args[0].op != "placeholder":
            continue
        buffer, value = node.args
        if isinstance(value, fx.Node) and _storage(value) == _storage(buffer):
            graph.erase_node(node)  # it was changed in place already
            continue
        before = [user for user in (*buffer.users, value) if user is not node]
        max(before, key=order.__getitem__).append(node)


def _storage(node: fx.Node) -> int:
    return node.meta["val"].untyped_storage()._cdata


def _output(program: ExportedProgram, module: nn.Module, wanted: str | int | None) -> fx.Node:
    """The one tensor that the module returns."""
    (node,) = [node for node in program.graph.nodes if node.op == "output"]
    leaves = list(node.args[0])
    structure: Any = pytree.tree_unflatten(list(range(len(leaves))), program.call_spec.out_spec)
    name = type(module).__name__
    if wanted is None and len(leaves) != 1:
        raise InputError(
            f"{name} returns {len(leaves)} tensors{_names_of(structure)}, and training needs one; return one, or name it: "
            "hsfl.split(..., output=...)"
        )
    index = 0 if wanted is None else _pick(structure, wanted, name)
    found = leaves[index] if isinstance(index, int) and not isinstance(index, bool) else None
    if not isinstance(found, fx.Node) or not isinstance(found.meta.get("val"), Tensor):
        raise InputError(f"{name} returns no tensor{'' if wanted is None else f' as {wanted!r}'}; return one")
    return found


def _names_of(structure: Any) -> str:
    words = list(structure) if isinstance(structure, Mapping) else list(getattr(structure, "_fields", ()))
    return f" ({', '.join(map(str, words))})" if words else ""


def _pick(structure: Any, wanted: str | int, name: str) -> Any:
    try:
        return (
            getattr(structure, wanted) if isinstance(wanted, str) and hasattr(structure, wanted) else structure[wanted]
        )
    except (KeyError, IndexError, TypeError, AttributeError):
        raise InputError(
            f"{name} returns nothing called {wanted!r}{_names_of(structure)}; name one of its outputs"
        ) from None
