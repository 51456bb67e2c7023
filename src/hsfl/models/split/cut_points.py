"""Where a module's graph may be cut, which of the legal cuts are kept, and what the units between them are called.

Legend: a *moving* operation depends on the sample (or draws random numbers, or changes a buffer); moving operations keep their
order, and a cut lies after one of them. Everything else (masks, rotary tables, position embeddings, sizes) is made where it is
needed, on either side of a cut. `place` counts moving operations; a cut at place i has the operations 0..i before it.

Several legal cuts may have the same weights (of two or more dimensions) before them. Of these, the cut with the
smallest message is kept. Of equally small ones, it is the last cut that does not part an operation from the layer it
belongs to: ReLU and pooling stay with their layer, and a classifier's own dropout stays with the classifier.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from hsfl.errors import InputError
from hsfl.models.split.trace import ModuleGraph

BITS_PER_BYTE = 8
RATES, MODES = (
    ("p", "dropout_p", "dropout"),
    ("train", "training"),
)  # what the arguments of dropout and its kin are called


# --- legal cuts
@dataclass(frozen=True)
class Crossing:
    """A legal cut: what crosses it, and what lies before it."""

    place: int
    values: tuple[fx.Node, ...]  # float tensors of the moving operations
    sides: tuple[int, ...]  # numbers of the side inputs that the operations after the cut need
    bits: int  # of the message, per sample
    weights: frozenset[str]  # parameters of two or more dimensions that are used before the cut
    owned: frozenset[str]  # tensors that are used before the cut and that training changes


class Flow:
    """A graph read for cuts. trained: names of the parameters that are trained."""

    def __init__(self, trace: ModuleGraph, trained: Iterable[str]) -> None:
        self.trace = trace
        main = trace.inputs[0]
        self.batch = _expression(main.meta["val"].shape[0])
        self.storage = {node: storages(node) for node in trace.graph.nodes}
        self.owned = set(trained) | {trace.state[node] for call in trace.calls for node in self._changed_state(call)}
        self._position = {node: i for i, node in enumerate(trace.graph.nodes)}
        self.moving = self._find_moving(main)
        self.order = [call for call in trace.calls if call in self.moving]
        self.place = {call: i for i, call in enumerate(self.order)}
        self.writers = [call for call in trace.calls if call not in self.moving and writes(call)]

    def _changed_state(self, call: fx.Node) -> list[fx.Node]:
        """The tensors of the state that an operation changes; running statistics are among them."""
        written = writes(call)
        if _is_norm(call):
            written = [node for node in call.all_input_nodes if self.trace.state.get(node) not in self.trace.parameters]
        storages = {s for node in written for s in self.storage[node]}  # a view of a buffer changes the buffer
        return [node for node in self.trace.state if self.storage[node] & storages]

    def _find_moving(self, main: fx.Node) -> set[fx.Node]:
        """Operations that depend on the sample, draw, or change the state; what they write into; and what reads a tensor that they
        change before the value is used."""
        moving = {main}
        while True:
            before = len(moving)
            written: set[int] = set()  # storages that a moving operation writes into
            writes_at: dict[int, list[int]] = defaultdict(list)  # by storage: the positions of these operations
            for call in self.trace.calls:
                if call in moving:
                    written |= {s for node in writes(call) for s in self.storage[node]}
                    for node in (*writes(call), *self._changed_state(call)):
                        for storage in self.storage[node]:
                            writes_at[storage].append(self._position[call])
            last_use = self._last_moving_uses(moving)
            for call in self.trace.calls:
                if call in moving or self.is_size(call):
                    continue
                if (
                    any(node in moving for node in call.all_input_nodes)
                    or draws(call)
                    or self._changed_state(call)
                    or self.storage[call] & written
                    or self._is_overtaken(call, writes_at, last_use)
                ):
                    moving.add(call)
            if len(moving) == before:
                return moving - {main}

    def _last_moving_uses(self, moving: set[fx.Node]) -> dict[fx.Node, int]:
        """The position of the last moving operation that needs a value, by itself or through operations that do not move. The output
        comes after all."""
        last: dict[fx.Node, int] = {}
        for node in reversed(self.trace.graph.nodes):
            users = [
                self._position[user] if user in moving or user.op == "output" else last.get(user, -1)
                for user in node.users
            ]
            last[node] = max(users, default=-1)
        return last

    def _is_overtaken(
        self, call: fx.Node, writes_at: Mapping[int, Sequence[int]], last_use: Mapping[fx.Node, int]
    ) -> bool:
        """Whether a moving operation changes what an operation reads before the operation's value is used for the last time.
        Made where it is needed, the value would be another one."""
        start, stop = self._position[call], last_use[call]
        storages_read = {s for node in call.all_input_nodes for s in self.storage[node]}
        return any(start < place < stop for storage in storages_read for place in writes_at.get(storage, ()))

    def is_size(self, node: fx.Node) -> bool:
        """Whether a node is a number that follows from the size of the batch alone."""
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and node.target is torch.ops.aten.sym_size.int:
            import sympy  # here, because it takes half a second, and only models that are split need it

            return sympy.Poly(_expression(value), self.batch).degree() <= 1 if self._of_batch(value) else False
        return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) and self._of_batch(value)

    def _of_batch(self, value: Any) -> bool:
        return _expression(value).free_symbols <= {self.batch}

    def closure(self, node: fx.Node) -> list[fx.Node]:
        """What must be made, in order, before a moving operation can run: all that the operation needs and that does
        not move, back to inputs, tensors of the state and constants, which are included."""
        position = self._position[node]
        needed: set[fx.Node] = set()
        waiting = [arg for arg in node.all_input_nodes if self.is_still(arg)]
        while waiting:
            current = waiting.pop()
            if current in needed:
                continue
            needed.add(current)
            if not self.is_size(current) or current.target is not torch.ops.aten.sym_size.int:
                waiting += [arg for arg in current.all_input_nodes if self.is_still(arg)]
            if current.op == "call_function":
                memory = self.storage[current]
                waiting += [c for c in self.writers if self._position[c] < position and memory & self.storage[c]]
        return sorted(needed, key=self._position.__getitem__)

    def is_still(self, node: fx.Node) -> bool:
        return node not in self.moving and node is not self.trace.inputs[0]

    @cached_property
    def needs(self) -> list[frozenset[str]]:
        """By place: the names of the state's tensors that the operation needs."""
        return [frozenset(self.trace.state[n] for n in closure if n in self.trace.state) for closure in self.closures]

    @cached_property
    def closures(self) -> list[list[fx.Node]]:
        return [self.closure(call) for call in self.order]

    @cached_property
    def needs_sides(self) -> list[frozenset[int]]:
        """By place: the numbers of the side inputs that the operation needs."""
        number = {node: i for i, node in enumerate(self.trace.inputs) if i}
        return [frozenset(number[n] for n in closure if n in number) for closure in self.closures]

    @cached_property
    def tied(self) -> dict[str, tuple[int, int]]:
        """Tensors that training changes and that several operations use: the first and the last place."""
        spans: dict[str, tuple[int, int]] = {}
        for place, names in enumerate(self.needs):
            for name in names & self.owned:
                spans[name] = (spans.get(name, (place, place))[0], place)
        return {name: span for name, span in spans.items() if span[0] < span[1]}

    def same(self, node: fx.Node) -> fx.Node:
        """The node by which a value is known: an operation in place gives back the value that it changed, which keeps
        its first node."""
        while node in self.moving and (changed := writes(node)) and changed[0] is node.args[0]:
            if changed[0] is self.trace.inputs[0] or not isinstance(node.meta.get("val"), Tensor):
                return node
            if changed[0] not in self.moving:
                return node
            node = changed[0]
        return node

    def crossings(self, most_tensors: int = 1) -> list[Crossing]:
        """All legal cuts, in order: at most `most_tensors` float tensors cross, the sample itself does not, nothing
        that crosses is changed afterwards, and no tensor that training changes is used on both sides."""
        return list(self._crossings(most_tensors))

    def _crossings(self, most_tensors: int) -> Iterator[Crossing]:
        last_use = self._last_uses()
        blocked = {place for first, last in self.tied.values() for place in range(first, last)}
        weights: set[str] = set()
        owned: set[str] = set()
        live: dict[fx.Node, None] = {self.trace.inputs[0]: None}
        sides_after = self._sides_after()
        matrices = self.trace.matrices
        for place, call in enumerate(self.order):
            weights |= self.needs[place] & matrices
            owned |= self.needs[place] & self.owned
            if self.same(call) is call:
                live[call] = None
            for value in [value for value in live if last_use.get(value, -1) <= place]:
                del live[value]
            values = tuple(live)
            if place in blocked or not 1 <= len(values) <= most_tensors or place == len(self.order) - 1:
                continue
            if all(self._may_cross(value, place) for value in values):
                sides = tuple(sorted(sides_after[place]))
                bits = sum(map(_bits_per_sample, (*values, *(self.trace.inputs[i] for i in sides))))
                yield Crossing(place, values, sides, bits, frozenset(weights), frozenset(owned))

    def _last_uses(self) -> dict[fx.Node, int]:
        """The last place at which each value is used; the output is used after all."""
        last: dict[fx.Node, int] = {}
        for place, call in enumerate(self.order):
            for arg in call.all_input_nodes:
                last[self.same(arg)] = place
        last[self.same(self.trace.output)] = len(self.order)
        return last

    def _sides_after(self) -> list[frozenset[int]]:
        after: list[frozenset[int]] = [frozenset()]
        for needed in reversed(self.needs_sides[1:]):
            after.append(after[-1] | needed)
        return after[::-1]

    def _may_cross(self, value: fx.Node, place: int) -> bool:
        tensor = value.meta.get("val")
        if value is self.trace.inputs[0] or not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            return False
        if self.batch_dim(value) is None:
            return False
        return not any(self._last_write.get(storage, -1) > place for storage in self.storage[value])

    @cached_property
    def _last_write(self) -> dict[int, int]:
        """By storage: the last place that writes into it."""
        return {s: place for place, call in enumerate(self.order) for n in writes(call) for s in self.storage[n]}

    def batch_dim(self, node: fx.Node) -> int | None:
        """The dimension of a tensor that counts samples; None if there is none, or if other sizes follow the batch, too."""
        sizes = [_expression(size) for size in node.meta["val"].shape]
        others = [size for size in sizes if not size.is_number]
        return sizes.index(self.batch) if others == [self.batch] else None


def _expression(size: Any) -> Any:
    if isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool):
        return size.node.expr
    import sympy  # as above

    return sympy.Integer(size)


def _bits_per_sample(node: fx.Node) -> int:
    tensor = node.meta["val"]
    return prod(int(size) for size in tensor.shape if isinstance(size, int)) * tensor.element_size() * BITS_PER_BYTE


def storages(node: fx.Node) -> frozenset[int]:
    """The memory behind a value; aliases have it in common. The graph keeps its fake tensors alive, so numbers are unique."""
    leaves = torch.utils._pytree.tree_leaves(node.meta.get("val"))
    return frozenset(leaf.untyped_storage()._cdata for leaf in leaves if isinstance(leaf, Tensor))


def writes(call: fx.Node) -> list[fx.Node]:
    """The arguments into which an operation writes, as its schema says."""
    schema = getattr(call.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    arguments = _arguments(call)
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    groups = [arguments[name] for name in written]
    values = [value for group in groups for value in (group if isinstance(group, list | tuple) else [group])]
    return [value for value in values if isinstance(value, fx.Node)]


def _is_norm(call: fx.Node) -> bool:
    """Whether an operation is a norm with running statistics, which it writes into without saying so."""
    return torch.Tag.maybe_aliasing_or_mutating in getattr(call.target, "tags", ()) and "norm" in str(call.target)


def draws(call: fx.Node) -> bool:
    """Whether an operation draws random numbers from torch's generator: dropout does not at rate 0 or in evaluation mode."""
    if torch.Tag.nondeterministic_seeded not in getattr(call.target, "tags", ()):
        return False
    arguments = _arguments(call)
    rates, modes = ([arguments[name] for name in names if name in arguments] for names in (RATES, MODES))
    return all(rate != 0 for rate in rates) and all(mode is not False for mode in modes)


def _arguments(call: fx.Node) -> dict[str, Any]:
    """The arguments of an operation by name, with the defaults of those that are left out."""
    arguments = call.target._schema.arguments  # type: ignore[union-attr]
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    return defaults | dict(zip((argument.name for argument in arguments), call.args)) | dict(call.kwargs)


def module_path(node: fx.Node) -> str:
    """The name of the part of the module in which an operation stands; empty at the top."""
    stack: Mapping[str, Any] = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return path if isinstance(path, str) and not path.startswith("_") else ""


# --- the cuts that are kept
@dataclass(frozen=True)
class Cut:
    """A cut of a module, in the graph of training and in that of evaluation."""

    training: Crossing
    evaluation: Crossing


def find_cuts(training: Flow, evaluation: Flow, most_tensors: int = 1) -> list[Cut]:
    """The cuts that are kept, in order. Both graphs must have a cut: before it lie the same tensors that training
    changes."""
    shared = _used(training) & _used(evaluation)
    whole = frozenset().union(*training.needs) & training.trace.matrices
    twins = defaultdict(list)
    for crossing in evaluation.crossings(most_tensors):
        twins[crossing.owned & shared].append(crossing)
    groups = defaultdict(list)
    for crossing in training.crossings(most_tensors):
        if crossing.owned & shared in twins and crossing.weights and crossing.weights != whole:
            groups[crossing.weights].append(crossing)
    chosen = [_best(training, group) for _, group in sorted(groups.items(), key=lambda item: len(item[0]))]
    return [Cut(crossing, _best(evaluation, twins[crossing.owned & shared])) for crossing in chosen]


def _used(flow: Flow) -> frozenset[str]:
    return frozenset().union(*flow.needs) & flow.owned


def _best(flow: Flow, group: Sequence[Crossing]) -> Crossing:
    smallest = min(crossing.bits for crossing in group)
    equal = [crossing for crossing in group if crossing.bits == smallest]
    belongs = [crossing for crossing in equal if not _belongs_to_next(flow, crossing.place)]
    return belongs[-1] if belongs else equal[0]


def _belongs_to_next(flow: Flow, place: int) -> bool:
    """Whether an operation's name has more in common with the next layer with weights than with the one before."""
    path = module_path(flow.order[place])
    last = next((_layer(flow, i) for i in range(place, -1, -1) if _layer(flow, i)), "")
    following = next((_layer(flow, i) for i in range(place + 1, len(flow.order)) if _layer(flow, i)), "")
    return _in_common([path, following]).count(".") > _in_common([path, last]).count(".")


def _layer(flow: Flow, place: int) -> str:
    """The name of the layer whose weights an operation uses; empty if it uses none."""
    names = sorted(flow.needs[place] & flow.trace.matrices)
    return _parent(names[0]) if names else ""


def cuts_after(cuts: Sequence[Cut], parts: Iterable[str], matrices: frozenset[str]) -> list[Cut]:
    """The cuts that lie right behind these parts of the module."""
    chosen, before = [], dict(zip(cuts, [frozenset[str](), *(cut.training.weights for cut in cuts)]))
    for name in parts:
        inside = {weight for weight in matrices if weight.startswith(f"{name}.")}
        candidates = [
            c for c in cuts if inside and inside <= c.training.weights and c.training.weights - before[c] <= inside
        ]
        if not candidates:
            names = ", ".join(_parent(max(cut.training.weights - before[cut])) for cut in cuts)
            raise InputError(f"there is no cut right behind {name!r}; the cuts lie behind {names}")
        chosen.append(candidates[0])
    return [cut for cut in cuts if cut in chosen]


# --- names of the units
def unit_names(units: Sequence[Sequence[str]], is_matrix: Callable[[str], bool]) -> list[str]:
    """A readable name for each unit from the names of its tensors: the part of the module that holds exactly these tensors,
    else what the names of its weights of two or more dimensions have in common, else the layer of the first weight."""
    owner = {name: unit for unit, names in enumerate(units) for name in names}
    uses: dict[str, int] = {}
    chosen = []
    for unit, names in enumerate(units):
        name = _unit_name(unit, names, [n for n in names if is_matrix(n)] or list(names), owner) or f"unit{unit}"
        uses[name] = uses.get(name, 0) + 1
        chosen.append(name if uses[name] == 1 else f"{name}~{uses[name]}")
    return chosen


def _unit_name(unit: int, names: Sequence[str], weights: Sequence[str], owner: Mapping[str, int]) -> str:
    def is_own(prefix: str) -> bool:
        return bool(prefix) and all(u == unit for name, u in owner.items() if name.startswith(prefix))

    for among in (names, weights):
        prefix = _in_common(among)
        if is_own(prefix):
            while is_own(wider := _parent(prefix[:-1]) + ".") and wider != ".":
                prefix = wider
            return prefix[:-1]
    return _parent(weights[0]) if weights else ""


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _in_common(names: Iterable[str]) -> str:
    """The leading parts that all names have in common, each with its dot; the last part of a name counts, too."""
    paths = [f"{name}.".split(".")[:-1] for name in names]
    common = []
    for level in zip(*paths):
        if len(set(level)) > 1:
            break
        common.append(level[0])
    return "".join(f"{word}." for word in common)
