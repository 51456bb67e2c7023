"""A module as a graph: what its forward pass computes, in order, found by `torch.export` without computing anything.

Training and evaluation mode have a graph each, over the same tensors. The batch size is a symbol; every other size is
the example's. Checks are left out. `torch.export` gives a region with or without gradients, or with or without
autocast, as one node; here the region's operations are written out in the place of the node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from hsfl.errors import InputError
from hsfl.models.split.torch_export import IN_ORDER, export_module

GRAD, AUTOCAST = "wrap_with_set_grad_enabled", "wrap_with_autocast"
CHECKS = ("_assert", "sym_constrain_range")  # operations that only look


def _write_out_regions(program: ExportedProgram, name: str) -> None:
    """Put the operations of every region in the place of the one node that stands for the region. What enters a region
    without gradients is detached. name: of the module, for errors."""
    graph, owner = program.graph, program.graph_module
    specs = program.graph_signature.input_specs
    plain = {spec.arg.name for spec in specs if spec.kind is not InputKind.PARAMETER}  # what has no gradient anyhow
    while regions := [node for node in graph.nodes if _name(node) in (GRAD, AUTOCAST)]:  # a region may hold another
        for node in regions:
            if _name(node) == AUTOCAST and node.args[2]:
                raise InputError(
                    f"{name} cannot be split: its forward turns autocast on; turn it off there, {IN_ORDER}"
                )
            region_index = next(
                i for i, arg in enumerate(node.args) if isinstance(arg, fx.Node) and arg.op == "get_attr"
            )
            region: Any = owner.get_submodule(str(node.args[region_index].target))
            detach = _name(node) == GRAD and not node.args[0]
            _write_out_region(graph, node, region, node.args[region_index + 1 :], plain if detach else None)
            owner.__dict__.setdefault("_regions", []).append(region)  # keeps the graph's values alive
    for node in reversed(list(graph.nodes)):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
    if left := [node for node in graph.nodes if node.op == "get_attr"]:
        user = next(iter(left[0].users))
        raise InputError(
            f"{name} cannot be split: its forward uses torch.{_name(user)}, whose branches are graphs of their own; compute both "
            f"ways and choose with torch.where, {IN_ORDER}"
        )


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", ""))


def _write_out_region(graph: fx.Graph, node: fx.Node, region: Any, args: Sequence[Any], plain: set[str] | None) -> None:
    """Write out one region. plain: names of inputs that need not be detached; None in a region that has gradients."""
    inner = [n for n in region.graph.nodes if n.op == "placeholder"]
    (answer,) = [n for n in region.graph.nodes if n.op == "output"]
    arguments = dict(zip(inner, args))
    mapped: dict[fx.Node, Any] = dict(arguments)
    with graph.inserting_before(node):
        if plain is not None:
            mapped = {n: _detached(graph, arg, plain) for n, arg in arguments.items()}
        graph.graph_copy(region.graph, mapped)
    results = answer.args[0] if isinstance(answer.args[0], list | tuple) else [answer.args[0]]
    # What was changed in place is the thing that entered, with the gradient that it had.
    outs = [
        arguments.get(_origin(result), mapped.get(result, result)) if isinstance(result, fx.Node) else result
        for result in results
    ]
    for user in list(node.users):
        assert user.target is getitem, user
        number: Any = user.args[1]
        user.replace_all_uses_with(outs[number])
        graph.erase_node(user)
    graph.erase_node(node)


def _origin(node: fx.Node) -> fx.Node:
    """The value that operations in place changed and gave back."""
    while getattr(getattr(node.target, "_schema", None), "is_mutable", False) and _name(node).partition(".")[
        0
    ].endswith("_"):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _detached(graph: fx.Graph, node: Any, plain: set[str]) -> Any:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, Tensor) or (not value.dtype.is_floating_point and not value.dtype.is_complex):
        return node
    if node.name in plain:
        return node
    out = graph.call_function(torch.ops.aten.detach.default, (node,))
    out.meta = dict(node.meta)
    return out


@dataclass(frozen=True)
class ModuleGraph:
    """The graph of a module in one mode."""

    graph: fx.Graph
    inputs: tuple[fx.Node, ...]  # the first is the sample, the others are side tensors
    output: fx.Node
    state: Mapping[fx.Node, str]  # parameters and persistent buffers, by their first name in the state dict
    parameters: frozenset[str]  # names of the state that are parameters
    constants: Mapping[fx.Node, Tensor]  # tensors that are no part of the state dict
    attributes: Mapping[fx.Node, str]  # the constants that the module holds, by their names

    @cached_property
    def matrices(self) -> frozenset[str]:
        """Names of the parameters that have two or more dimensions."""
        shapes = {name: node.meta["val"].dim() for node, name in self.state.items() if name in self.parameters}
        return frozenset(name for name, dimensions in shapes.items() if dimensions >= 2)

    @cached_property
    def calls(self) -> list[fx.Node]:
        """The operations, in order."""
        return [node for node in self.graph.nodes if node.op == "call_function"]


def trace(
    module: nn.Module,
    inputs: Sequence[Tensor],
    training: bool,
    output: str | int | None = None,
    names: Sequence[str] = (),
) -> ModuleGraph:
    """The graph of a module in one mode; the module is left as it was. output: which of several outputs to take. names: of the
    inputs, where the module is to get them by name."""
    program = export_module(module, inputs, names, training)
    graph = program.graph
    _write_out_regions(program, type(module).__name__)
    _drop_checks(graph)
    _hasten_assignments(graph)
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    first_names = _first_names(module)
    state, constants, attributes, samples = {}, {}, {}, []
    for spec in program.graph_signature.input_specs:
        node = placeholders[spec.arg.name]
        if spec.kind is InputKind.USER_INPUT:
            samples.append(node)
        elif spec.kind is InputKind.PARAMETER or (spec.kind is InputKind.BUFFER and spec.persistent):
            state[node] = first_names[str(spec.target)]
        else:
            constants[node] = _constant(program, module, str(spec.target))
            if not str(spec.target).startswith("lifted_"):  # lifted: a number written in the forward pass
                attributes[node] = str(spec.target)
    parameters = frozenset(first_names[name] for name, _ in module.named_parameters())
    if names:
        samples = [placeholders[name] for name in names]
    return ModuleGraph(
        graph, tuple(samples), _output(program, module, output), state, parameters, constants, attributes
    )


def _first_names(module: nn.Module) -> dict[str, str]:
    """Every name of a tensor of the state dict -> the first name of that tensor; a tied tensor has several."""
    first: dict[int, str] = {}
    tensors = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors}


def _constant(program: ExportedProgram, module: nn.Module, name: str) -> Tensor:
    """A tensor that the module holds outside of its state dict, or one that the forward pass writes down as numbers."""
    tensor = program.constants.get(name)
    if tensor is None:
        tensor = module.get_buffer(name)
    if not isinstance(tensor, Tensor):
        raise InputError(
            f"{type(module).__name__} cannot be split: its forward uses a {type(tensor).__name__} of its own, which no key of a step and "
            f"no weights reach; use tensors alone, {IN_ORDER}"
        )
    return tensor.detach()


def _drop_checks(graph: fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and any(word in str(node.target) for word in CHECKS):
            graph.erase_node(node)


def _hasten_assignments(graph: fx.Graph) -> None:
    """`self.buffer = value` stands as a copy at the end of a graph. Put the copy where the value is known and no longer changed, and
    the buffer's old value no longer read, so that it stands in the way of no cut."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten.copy_.default or node.users or node.args[0].op != "placeholder":
            continue
        buffer, value = node.args
        if isinstance(value, fx.Node) and _storage(value) == _storage(buffer):
            graph.erase_node(node)  # it was changed in place already
            continue
        before = [user for user in order if user is not node and _must_come_before(user, buffer, value)]
        max((*before, *node.all_input_nodes), key=order.__getitem__).append(node)


def _must_come_before(call: fx.Node, buffer: fx.Node, value: Any) -> bool:
    """Whether an operation uses the memory of a buffer, or changes that of the value which the buffer is to have."""
    if call.op != "call_function":
        return False
    memory = {_storage(arg) for arg in call.all_input_nodes if isinstance(arg.meta.get("val"), Tensor)}
    changes = getattr(getattr(call.target, "_schema", None), "is_mutable", False)
    return _storage(buffer) in memory or (changes and isinstance(value, fx.Node) and _storage(value) in memory)


def _storage(node: fx.Node) -> int:
    return node.meta["val"].untyped_storage()._cdata


def _output(program: ExportedProgram, module: nn.Module, choice: str | int | None) -> fx.Node:
    """The one tensor that the module returns."""
    (node,) = [node for node in program.graph.nodes if node.op == "output"]
    leaves = list(node.args[0])
    structure: Any = pytree.tree_unflatten(list(range(len(leaves))), program.call_spec.out_spec)
    name = type(module).__name__
    if choice is None and len(leaves) != 1:
        raise InputError(
            f"{name} returns {len(leaves)} tensors{_names_of(structure)}, and training needs one; return one, or name it: "
            "hsfl.split(..., output=...)"
        )
    index = 0 if choice is None else _pick(structure, choice, name)
    output_node = leaves[index] if isinstance(index, int) and not isinstance(index, bool) else None
    if not isinstance(output_node, fx.Node) or not isinstance(output_node.meta.get("val"), Tensor):
        raise InputError(f"{name} returns no tensor{'' if choice is None else f' as {choice!r}'}; return one")
    return output_node


def one_output(answer: Any, choice: str | int | None, name: str) -> Tensor:
    """The one tensor of what a module returned. name: of the module, for errors."""
    if choice is not None:
        chosen: Tensor = _pick(answer, choice, name)
        return chosen
    return next(leaf for leaf in pytree.tree_leaves(answer) if isinstance(leaf, Tensor))


def _names_of(structure: Any) -> str:
    names = list(structure) if isinstance(structure, Mapping) else list(getattr(structure, "_fields", ()))
    if not names and isinstance(structure, list | tuple):
        names = list(range(len(structure)))
    return f" ({', '.join(map(str, names))})" if names else ""


def _pick(structure: Any, choice: str | int, name: str) -> Any:
    try:
        return (
            getattr(structure, choice) if isinstance(choice, str) and hasattr(structure, choice) else structure[choice]
        )
    except (KeyError, IndexError, TypeError, AttributeError):
        raise InputError(
            f"{name} returns nothing called {choice!r}{_names_of(structure)}; name one of its outputs"
        ) from None
