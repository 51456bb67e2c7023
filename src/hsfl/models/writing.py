"""Stretches of a graph written as the code of units."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import add, getitem, mul
from types import ModuleType
from typing import Any

import sympy
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from hsfl.models.flow import Crossing, Flow, draws
from hsfl.models.graph_unit import Code, tensor_of
from hsfl.models.message import Layout, Message, laid_out, memory_order, pack, unpack


@dataclass
class Writer:
    """Writes stretches of one graph as code, and keeps the constants that the code needs."""

    flow: Flow
    owner: Mapping[str, int]  # by name of a tensor of the state: the unit that has the tensor
    mode: str  # training or evaluation; constants of the two modes have different names
    constants: dict[str, Tensor] = field(default_factory=dict)  # by attribute, of all units
    _made: dict[fx.Node, Tensor] = field(default_factory=dict)  # constants, computed once

    def message(self, crossing: Crossing | None) -> Message:
        """What a crossing carries; None is the model's input."""
        inputs = self.flow.trace.inputs
        nodes = inputs if crossing is None else (*crossing.values, *(inputs[i] for i in crossing.sides))
        return Message(tuple(self._layout(node) for node in nodes))

    def _layout(self, node: fx.Node) -> Layout:
        tensor, dim = node.meta["val"], self.flow.batch_dim(node)
        assert dim is not None, node
        sizes = tuple(int(size) for i, size in enumerate(tensor.shape) if i != dim)
        return dim, sizes, tensor.dtype, memory_order([_example(step) for step in tensor.stride()])

    def write(self, unit: int, start: Crossing | None, stop: Crossing | None) -> "Written":
        """The code of the operations between two crossings. None: the beginning or the end of the model."""
        return _Stretch(self, unit, start, stop).written()

    @cached_property
    def fixed(self) -> set[fx.Node]:
        """Nodes whose value is always the same: they follow from no input, no size of a batch and no tensor of the state."""
        flow = self.flow
        written = {s for call in flow.writers for s in flow.storage[call]}
        found = set(flow.trace.constants)
        for call in flow.trace.calls:
            is_tensor = bool(flow.storage[call]) and not flow.storage[call] & written
            if is_tensor and flow.is_still(call) and all(arg in found for arg in call.all_input_nodes):
                found.add(call)
        return found

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
        if node not in self._made:
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), self._value)
            self._made[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return self._made[node]


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
        parts = self.graph.call_function(unpack, (self.x, message.pieces))
        for i, node in enumerate(nodes):
            self.known[node] = self.graph.call_function(getitem, (parts, i))

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
        return self.graph.call_function(pack, (values, message.pieces, message.dtype))

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
        if same is not node and same in self.known and not self._is_here(node):
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

    def _is_here(self, node: fx.Node) -> bool:
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
        return self.graph.call_function(tensor_of, (self.owner, name))

    def _size(self, expression: Any) -> Any:
        """a * batch + b, from the batch in front of what arrived."""
        batch = self._once("batch", lambda: self.graph.call_function(torch.ops.aten.sym_size.int, (self.x, 0)))
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
