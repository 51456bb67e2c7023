"""Regions of a graph with or without gradients, and with or without autocast, written out as plain operations."""

from collections.abc import Sequence
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from hsfl.errors import InputError
from hsfl.models.exporting import IN_ORDER

GRAD, AUTOCAST = "wrap_with_set_grad_enabled", "wrap_with_autocast"


def write_out_regions(program: ExportedProgram, name: str) -> None:
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
            at = next(i for i, arg in enumerate(node.args) if isinstance(arg, fx.Node) and arg.op == "get_attr")
            region: Any = owner.get_submodule(str(node.args[at].target))
            detach = _name(node) == GRAD and not node.args[0]
            _write_out(graph, node, region, node.args[at + 1 :], plain if detach else None)
            owner.__dict__.setdefault("_regions", []).append(region)  # keeps the graph's values alive
    for node in reversed(list(graph.nodes)):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
    if left := [node for node in graph.nodes if node.op == "get_attr"]:
        used = next(iter(left[0].users))
        raise InputError(
            f"{name} cannot be split: its forward uses torch.{_name(used)}, whose branches are graphs of their own; compute both "
            f"ways and choose with torch.where, {IN_ORDER}"
        )


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", ""))


def _write_out(graph: fx.Graph, node: fx.Node, region: Any, args: Sequence[Any], plain: set[str] | None) -> None:
    """Write out one region. plain: names of inputs that need not be detached; None in a region that has gradients."""
    inner = [n for n in region.graph.nodes if n.op == "placeholder"]
    (answer,) = [n for n in region.graph.nodes if n.op == "output"]
    given = dict(zip(inner, args))
    mapped: dict[fx.Node, Any] = dict(given)
    with graph.inserting_before(node):
        if plain is not None:
            mapped = {n: _detached(graph, arg, plain) for n, arg in given.items()}
        graph.graph_copy(region.graph, mapped)
    results = answer.args[0] if isinstance(answer.args[0], list | tuple) else [answer.args[0]]
    # What was changed in place is the thing that entered, with the gradient that it had.
    outs = [given.get(_origin(one), mapped.get(one, one)) if isinstance(one, fx.Node) else one for one in results]
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
