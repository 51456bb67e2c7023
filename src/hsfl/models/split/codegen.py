"""The code of units: a stretch of a module's graph becomes plain Python over the module's own tensors.

A unit (`GraphUnit`) has its code twice, once for training and once for evaluation. `Writer` writes the code of the operations
between two cuts. The functions that the written code calls (`unit_tensor`, `pack_pieces`, `unpack_pieces`, `laid_out`) stand here, too.

What crosses a cut is one tensor whose first dimension counts samples. Several tensors, or one with the samples in
another dimension, are packed into a `Message` `[batch, numbers]` in the type of the first piece. Side tensors (an attention mask)
travel in it as floats, so that every link counts them; whole numbers are exact up to 2 ** 24.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from math import prod
from operator import add, getitem, mul
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from hsfl.models.split.cut_points import Crossing, Flow, draws

Function = Callable[[None, nn.Module, Tensor], Tensor]


# --- a unit and its code
@dataclass(frozen=True)
class Code:
    """The forward pass of a unit in one mode, as text, so that a unit can be sent to another process."""

    source: str
    names: tuple[tuple[str, str, str], ...]  # for each name in the text: the name, its module, its name there


@cache
def _compiled_function(code: Code) -> Function:
    """The function that the text defines."""
    namespace: dict[str, Any] = {"inf": float("inf"), "nan": float("nan"), "NoneType": type(None)}
    for name, module, dotted_name in code.names:
        value: Any = import_module(module)
        for attribute in dotted_name.split(".") if dotted_name else ():
            value = getattr(value, attribute)
        namespace[name] = value
    exec(compile(code.source, "<unit of a split module>", "exec"), namespace)
    return namespace["forward"]


class GraphUnit(nn.Module):
    """A unit whose tensors have the names that they have in the module. `plant` gives it its tensors.

    The unit's own attributes have two underscores, since a part of the module may be called anything.
    """

    def __init__(self, training: Code, evaluation: Code, draws_numbers: bool) -> None:
        super().__init__()
        self.__codes = (evaluation, training)
        self.__draws = draws_numbers
        self.__held: dict[str, str] = {}
        self.__compile()

    def __compile(self) -> None:
        self.__functions = tuple(map(_compiled_function, self.__codes))
        self.__parts: dict[str, tuple[nn.Module, str]] = {}

    def forward(self, x: Tensor) -> Tensor:
        return self.__functions[self.training](None, self, x)

    @staticmethod
    def codes(unit: "GraphUnit") -> tuple[Code, Code]:
        """The code of a unit in evaluation and in training."""
        return unit.__codes

    @staticmethod
    def draws(unit: "GraphUnit") -> bool:
        """Whether a unit draws random numbers in training."""
        return unit.__draws

    @staticmethod
    def held(unit: "GraphUnit") -> dict[str, str]:
        """Attribute -> name of a tensor of the state that another unit has and nobody trains."""
        return unit.__held

    @staticmethod
    def parts(unit: "GraphUnit") -> dict[str, tuple[nn.Module, str]]:
        """By name of a tensor: the part of the unit that has it, and its name there; filled as tensors are asked for."""
        return unit.__parts

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in REMADE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.__compile()


REMADE = ("_GraphUnit__functions", "_GraphUnit__parts")  # attributes that a copy makes anew


def unit_tensor(unit: GraphUnit, name: str) -> Tensor:
    """The tensor of a unit by its dotted name. The words of the name are looked up among submodules and tensors
    alone, since a submodule may be called anything, even like a method."""
    holders = GraphUnit.parts(unit)
    if name not in holders:
        *path, leaf = name.split(".")
        holder: nn.Module = unit
        for child in path:
            holder = holder._modules[child]  # type: ignore[assignment]
        holders[name] = holder, leaf
    holder, leaf = holders[name]
    return holder._parameters[leaf] if leaf in holder._parameters else holder._buffers[leaf]  # type: ignore[return-value]


def plant(root: nn.Module, name: str, tensor: Tensor, persistent: bool = True) -> None:
    """Put a tensor under a module by its dotted name. This goes past `add_module`, which would refuse a part called
    `head` in a class that has a method of this name. persistent: whether a buffer is part of the state dict."""
    *path, leaf = name.split(".")
    for child in path:
        root = root._modules.setdefault(child, nn.Module())  # type: ignore[assignment]
    if isinstance(tensor, nn.Parameter):
        root._parameters[leaf] = tensor
    else:
        root._buffers[leaf] = tensor
        if not persistent:
            root._non_persistent_buffers_set.add(leaf)


# --- what crosses a cut
# Of a piece: the dimension of the samples, its other sizes, its type, and the order of its dimensions in memory.
Layout = tuple[int, tuple[int, ...], torch.dtype, tuple[int, ...]]


@dataclass(frozen=True)
class Message:
    """The pieces that cross a cut (or enter the model) together."""

    pieces: tuple[Layout, ...]

    @property
    def is_plain(self) -> bool:
        """Whether the message is a single piece that crosses as it is."""
        return len(self.pieces) == 1 and self.pieces[0][0] == 0

    @property
    def dtype(self) -> torch.dtype:
        """The type of the tensor that travels; a packed message has a floating type."""
        first = self.pieces[0][2]
        return first if self.is_plain or first.is_floating_point else torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that travels, for one sample."""
        if self.is_plain:
            return self.pieces[0][1]
        return (sum(prod(sizes) for _, sizes, *_ in self.pieces),)


def pack_pieces(tensors: Sequence[Tensor], pieces: Sequence[Layout], dtype: torch.dtype) -> Tensor:
    """One tensor `[batch, numbers]` that holds the pieces."""
    flat = [
        tensor.movedim(dim, 0).reshape(tensor.shape[dim], prod(sizes)).to(dtype)
        for tensor, (dim, sizes, *_) in zip(tensors, pieces)
    ]
    return torch.cat(flat, dim=1)


def unpack_pieces(packed: Tensor, pieces: Sequence[Layout]) -> list[Tensor]:
    """The pieces again, each with its own shape, type and order in memory."""
    columns = packed.split([prod(sizes) for _, sizes, *_ in pieces], dim=1)
    return [
        laid_out(column.reshape(packed.shape[0], *sizes).movedim(0, dim).to(dtype), order)
        for column, (dim, sizes, dtype, order) in zip(columns, pieces)
    ]


def laid_out(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    """A tensor with its dimensions in this order in memory, as the module has it, so that `view` works on what arrived."""
    return tensor.permute(order).contiguous().permute([order.index(dim) for dim in range(len(order))])


def _memory_order(strides: Sequence[int]) -> tuple[int, ...]:
    """The dimensions in the order of their steps in memory, the widest first. A repeated tensor, which has a step of 0,
    keeps its order."""
    plain = range(len(strides))
    return tuple(plain) if 0 in strides else tuple(sorted(plain, key=lambda dim: -strides[dim]))


# --- the writer
@dataclass
class Writer:
    """Writes stretches of one graph as code, and keeps the constants that the code needs."""

    flow: Flow
    owner: Mapping[str, int]  # by name of a tensor of the state: the unit that has the tensor
    mode: str  # training or evaluation; constants of the two modes have different names
    constants: dict[str, Tensor] = field(default_factory=dict)  # by attribute, of all units
    _constant_values: dict[fx.Node, Tensor] = field(default_factory=dict)  # constants, computed once

    def message(self, crossing: Crossing | None) -> Message:
        """What a crossing carries; None is the model's input."""
        inputs = self.flow.trace.inputs
        nodes = inputs if crossing is None else (*crossing.values, *(inputs[i] for i in crossing.sides))
        return Message(tuple(self._layout(node) for node in nodes))

    def _layout(self, node: fx.Node) -> Layout:
        tensor, dim = node.meta["val"], self.flow.batch_dim(node)
        assert dim is not None, node
        sizes = tuple(int(size) for i, size in enumerate(tensor.shape) if i != dim)
        return dim, sizes, tensor.dtype, _memory_order([_example(step) for step in tensor.stride()])

    def write(self, unit: int, start: Crossing | None, stop: Crossing | None) -> "Written":
        """The code of the operations between two crossings. None: the beginning or the end of the model."""
        return _Stretch(self, unit, start, stop).written()

    @cached_property
    def fixed(self) -> set[fx.Node]:
        """Nodes whose value is always the same: they follow from no input, no size of a batch and no tensor of the state."""
        flow = self.flow
        written = {s for call in flow.writers for s in flow.storage[call]}
        fixed_nodes = set(flow.trace.constants)
        for call in flow.trace.calls:
            is_tensor = bool(flow.storage[call]) and not flow.storage[call] & written
            if is_tensor and flow.is_still(call) and all(arg in fixed_nodes for arg in call.all_input_nodes):
                fixed_nodes.add(call)
        return fixed_nodes

    def constant(self, node: fx.Node) -> str:
        """The attribute that holds a fixed value."""
        name = f"_{self.mode}_{node.name}"
        if name not in self.constants:
            with torch.no_grad():
                self.constants[name] = self._value(node)
        return name

    def _value(self, node: fx.Node) -> Any:
        if node in self.flow.trace.constants:
            return self.flow.trace.constants[node]
        if node not in self._constant_values:
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), self._value)
            self._constant_values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return self._constant_values[node]


@dataclass(frozen=True)
class Written:
    """The code of a unit in one mode, and what it needs beside the tensors of its own."""

    code: Code
    held: Mapping[str, str]  # attribute -> name of a tensor of the state that another unit has and nobody trains
    constants: Sequence[str]
    draws: bool


class _Stretch:
    """The operations after `start` up to `stop`, written into a graph of their own."""

    def __init__(self, writer: Writer, unit: int, start: Crossing | None, stop: Crossing | None) -> None:
        self.writer, self.flow, self.unit, self.stop = writer, writer.flow, unit, stop
        first = 0 if start is None else start.place + 1
        last = len(self.flow.order) - 1 if stop is None else stop.place
        self.places = range(first, last + 1)
        self.graph = fx.Graph()
        self.owner, self.x = (self.graph.placeholder(name) for name in ("unit", "x"))
        self.known: dict[fx.Node, fx.Node] = {}
        self.held: dict[str, str] = {}
        self.constants: list[str] = []
        self._shared: dict[Any, fx.Node] = {}
        inputs = self.flow.trace.inputs
        arriving = inputs if start is None else (*start.values, *(inputs[i] for i in start.sides))
        self._take(arriving, writer.message(start))

    def _take(self, nodes: Sequence[fx.Node], message: Message) -> None:
        if message.is_plain:
            order = message.pieces[0][3]
            in_order = order == tuple(range(len(order)))
            self.known[nodes[0]] = self.x if in_order else self.graph.call_function(laid_out, (self.x, order))
            return
        pieces = self.graph.call_function(unpack_pieces, (self.x, message.pieces))
        for i, node in enumerate(nodes):
            self.known[node] = self.graph.call_function(getitem, (pieces, i))

    def written(self) -> Written:
        flow = self.flow
        for place in self.places:
            for node in flow.closures[place]:
                if node not in self.writer.fixed:
                    self._node(node)
            self._node(flow.order[place])
        self.graph.output(self._leaving())
        drawn = any(draws(flow.order[place]) for place in self.places)
        return Written(_code(self.graph), self.held, self.constants, drawn)

    def _leaving(self) -> fx.Node:
        if self.stop is None:
            return self._node(self.flow.trace.output)
        inputs, message = self.flow.trace.inputs, self.writer.message(self.stop)
        values = [self._node(node) for node in (*self.stop.values, *(inputs[i] for i in self.stop.sides))]
        if message.is_plain:
            return values[0]
        return self.graph.call_function(pack_pieces, (values, message.pieces, message.dtype))

    def _node(self, node: fx.Node) -> fx.Node:
        """The node of our graph that has the value of a node of the whole graph."""
        if node not in self.known:
            self.known[node] = self._make(node)
        return self.known[node]

    def _make(self, node: fx.Node) -> fx.Node:
        if (name := self.flow.trace.state.get(node)) is not None:
            return self._state(name)
        if node in self.writer.fixed:
            attribute = self.writer.constant(node)
            self.constants.append(attribute)
            return self._tensor(attribute)
        if node.target is torch.ops.aten.sym_size.int and self.flow.is_size(node):
            return self._size(node.meta["val"].node.expr)
        same = self.flow.same(node)
        if same is not node and same in self.known and not self._is_inside(node):
            return self.known[same]  # changed in place before the cut
        assert node.op == "call_function", node
        if node.target is torch.ops.aten.batch_norm.default:
            return self._batch_norm(node)
        args, kwargs = fx.node.map_aggregate((node.args, dict(node.kwargs)), self._argument)
        return self.graph.call_function(node.target, args, kwargs)  # type: ignore[arg-type]

    def _batch_norm(self, node: fx.Node) -> fx.Node:
        """Call torch's function, which refuses a single value per channel, as the module itself would."""
        x, weight, bias, mean, variance, training, momentum, eps, _ = (self._argument(value) for value in node.args)
        return self.graph.call_function(F.batch_norm, (x, mean, variance, weight, bias, training, momentum, eps))

    def _is_inside(self, node: fx.Node) -> bool:
        return self.flow.place[node] in self.places

    def _argument(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self._node(value)
        if isinstance(value, torch.device):  # wherever the sample is
            return self._once("device", lambda: self.graph.call_function(getattr, (self.x, "device")))
        return value

    def _state(self, name: str) -> fx.Node:
        if self.writer.owner[name] == self.unit:
            return self._tensor(name)
        attribute = "_held_" + name.replace(".", "_")
        self.held[attribute] = name
        return self._tensor(attribute)

    def _tensor(self, name: str) -> fx.Node:
        return self.graph.call_function(unit_tensor, (self.owner, name))

    def _size(self, expression: Any) -> Any:
        """a * batch + b, from the batch in front of what arrived."""
        batch = self._once("batch", lambda: self.graph.call_function(torch.ops.aten.sym_size.int, (self.x, 0)))
        import sympy  # here, because it takes half a second, and only models that are split need it

        slope, offset = (int(c) for c in sympy.Poly(expression, self.flow.batch).all_coeffs())
        size = batch if slope == 1 else self.graph.call_function(mul, (batch, slope))
        return size if offset == 0 else self.graph.call_function(add, (size, offset))

    def _once(self, key: str, make: Callable[[], fx.Node]) -> fx.Node:
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]


def _example(step: Any) -> int:
    """A number of the graph as it is for the example."""
    return step.node.hint if isinstance(step, torch.SymInt) else step


def _code(graph: fx.Graph) -> Code:
    """A graph as text, with the names that the text uses."""
    python = graph.python_code(root_module="self")
    names = []
    for name, value in python.globals.items():
        if isinstance(value, ModuleType):
            names.append((name, value.__name__, ""))
        elif hasattr(value, "__qualname__") and value is not type(None):
            names.append((name, value.__module__, value.__qualname__))
    return Code(python.src, tuple(names))
