"""`hsfl.split`: any module becomes a SplitModel, cut where its graph allows, with the names of its own state dict."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from hsfl.errors import InputError
from hsfl.models.cuts import Cut, cuts_after, find_cuts, unit_names
from hsfl.models.flow import Flow, draws, module_path
from hsfl.models.graph_unit import GraphUnit, Writer, Written, plant
from hsfl.models.message import Message, pack
from hsfl.models.trace import IN_ORDER, trace
from hsfl.models.units import SplitModel, in_order

Again = Callable[[nn.Module], SplitModel]
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

    example_input: a batch of two samples or more; its values do not matter. Of several tensors the first is the sample, and the
    others (an attention mask) travel beside whatever crosses a cut.
    at: cut only behind these parts of the module. most_tensors: how many tensors may cross a cut together. output: which of several
    outputs is the model's, by its name or number.
    """
    if example_input is None:
        return in_order(model)
    if not isinstance(model, nn.Module):
        raise InputError(f"the model to split is a {type(model).__name__}; give an nn.Module with an example of its input")
    if most_tensors < 1:
        raise InputError(f"most_tensors is {most_tensors}; at least one tensor crosses a cut")
    inputs = _inputs(example_input)
    _check(model, inputs)
    training, evaluation = (_flow(model, inputs, mode, output) for mode in (True, False))
    _check_draws(model, evaluation)
    cuts = find_cuts(training, evaluation, most_tensors)
    if not cuts:
        raise InputError(_why_no_cut(model, training, most_tensors))
    wanted = list(at)
    if wanted:
        cuts = cuts_after(cuts, wanted, training.trace.matrices)

    def again(module: nn.Module) -> SplitModel:
        return split(module, inputs, at=wanted, most_tensors=most_tensors, output=output)

    return ModuleSplit(model, training, evaluation, cuts, again)


def _inputs(example: Example) -> list[Tensor]:
    inputs = [example] if isinstance(example, Tensor) else list(example.values() if isinstance(example, Mapping) else example)
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
        raise InputError(f"the tensors of example_input have {[len(x) for x in inputs]} samples; give all the same number")
    return inputs


def _check(model: nn.Module, inputs: Sequence[Tensor]) -> None:
    name = type(model).__name__
    if any(isinstance(parameter, UninitializedParameter) for parameter in model.parameters()):
        raise InputError(f"{name} is lazy; show it one batch first, so that it has its weights")
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(f"{name} has no parameters to train; give it a layer with weights")
    if len(devices) > 1 or inputs[0].device not in devices:
        raise InputError(
            f"{name} is on {', '.join(map(str, devices))} but example_input is on {inputs[0].device}; move them to one device"
        )


def _flow(model: nn.Module, inputs: Sequence[Tensor], training: bool, output: str | int | None) -> Flow:
    found = trace(model, inputs, training, output)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    flow = Flow(found, (names[id(p)] for p in model.parameters() if p.requires_grad))
    if found.output not in flow.moving:
        raise InputError(f"{type(model).__name__} cannot be split: what it returns does not depend on its input")
    return flow


def _check_draws(model: nn.Module, evaluation: Flow) -> None:
    """Keys seed the steps of training alone."""
    for call in evaluation.order:
        if draws(call):
            where = f"its part {module_path(call)!r}" if module_path(call) else "its forward"
            raise InputError(
                f"{type(model).__name__} cannot be split: {where} draws random numbers ({call.target}) in evaluation mode too, "
                f"where no key reaches them; draw only where self.training, {IN_ORDER}"
            )


def _why_no_cut(model: nn.Module, flow: Flow, most_tensors: int) -> str:
    """One line on why a module has no cut."""
    name = type(model).__name__
    names: dict[int, list[str]] = {id(parameter): [] for parameter in model.parameters()}
    for own, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(own)
    widest = max(flow.tied.items(), key=lambda item: item[1][1] - item[1][0], default=None)
    if widest is not None:
        tied = next((group for group in names.values() if widest[0] in group), [widest[0]])
        what = " and ".join(tied) + " are one parameter, used" if len(tied) > 1 else f"{tied[0]} is used"
        first, last = (module_path(flow.order[place]) or "its forward" for place in widest[1])
        return (
            f"{name} has no cut: {what} from {first!r} to {last!r}, and a weight that is trained must lie on one side; untie it "
            "(tie_word_embeddings=False in transformers), or freeze it"
        )
    if most_tensors == 1 and flow.crossings(most_tensors=4):
        return f"{name} has no cut that one tensor crosses; allow more: hsfl.split(..., most_tensors=4)"
    return f"{name} has no cut: at every place the sample itself or more than one tensor is still needed; {IN_ORDER}"


class ModuleSplit(SplitModel):
    """A module cut by its graph. Its tensors are the module's own, by the module's own names.

    A sample that is made of several tensors is packed into one vector: `pack(tokens, mask)`.
    """

    def __init__(self, module: nn.Module, training: Flow, evaluation: Flow, cuts: Sequence[Cut], again: Again) -> None:
        tensors = {name: t for name, t in module.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
        owner = _owners(tensors, training, evaluation, cuts)
        units, message = _make_units(tensors, owner, training, evaluation, cuts)
        super().__init__(units, dict.fromkeys(units, ""))
        self._again, self._origin = again, (module,)  # in a tuple, so that torch does not take it for a part
        self.message, self.input_dtype = message, message.dtype
        for name, tensor in tensors.items():
            plant(self, name, tensor)
        self.train(module.training)

    def _register(self, unit: nn.Module, prefix: str) -> None:
        """Units stand beside the tree of names, since two units may have tensors under one part of the module."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return super().forward(self.pack(*inputs) if len(inputs) > 1 else inputs[0])

    def pack(self, *inputs: Tensor) -> Tensor:
        """What the module takes as one tensor, the input of the first unit; of a single tensor that tensor."""
        if len(inputs) != len(self.message.pieces):
            raise InputError(f"the model takes {len(self.message.pieces)} tensors, not {len(inputs)}")
        return inputs[0] if self.message.is_plain else pack(inputs, self.message.pieces, self.message.dtype)

    def whole(self) -> nn.Module:
        """The module that was split; of a copy, which does not know it, the units one after another."""
        return self._origin[0] if self._origin else self

    def changed(self, change: Callable[[nn.Module], nn.Module]) -> SplitModel:
        """The module after a change to its layers, split anew."""
        if not self._origin or self._again is None:
            raise InputError("the model is a copy of a split module; change the module's layers before it is split")
        return self._again(change(self._origin[0]))

    def train(self, mode: bool = True) -> "ModuleSplit":
        for unit in self.units:
            unit.train(mode)
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ModuleSplit":
        """Move or convert all tensors; the units take theirs from the tree of names again."""
        super()._apply(fn, recurse)
        for unit in self.units:
            unit._apply(fn)
        named = self.state_dict(keep_vars=True)
        for unit in self.units:
            for name in unit.state_dict():
                plant(unit, name, named[name])
        return self

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or what another process gets, has the units and no longer the module, whose class may be known here alone."""
        return self.__dict__ | {"_again": None, "_origin": ()}


def _owners(tensors: Mapping[str, Tensor], training: Flow, evaluation: Flow, cuts: Sequence[Cut]) -> dict[str, int]:
    """Which unit has which tensor of the state: the first that uses it. A tensor that is used nowhere stays with its
    neighbour; of the names of a tied tensor the first counts."""
    used: dict[str, int] = {}
    for flow, places in (
        (training, [cut.training.place for cut in cuts]),
        (evaluation, [cut.evaluation.place for cut in cuts]),
    ):
        for place, names in enumerate(flow.needs):
            for name in sorted(names):
                used.setdefault(name, bisect_left(places, place))
    owner: dict[str, int] = {}
    seen: set[int] = set()
    last = 0
    for name, tensor in tensors.items():
        if id(tensor) not in seen:
            owner[name] = last = used.get(name, last)
            seen.add(id(tensor))
    return owner


def _make_units(
    tensors: Mapping[str, Tensor], owner: Mapping[str, int], training: Flow, evaluation: Flow, cuts: Sequence[Cut]
) -> tuple[dict[str, nn.Module], Message]:
    """The units by name, and what the first of them takes."""
    writers = Writer(training, owner, "training"), Writer(evaluation, owner, "evaluation")
    borders = [None, *cuts, None]
    of_unit: list[list[str]] = [[] for _ in borders[1:]]
    for name, unit in owner.items():
        of_unit[unit].append(name)
    names = unit_names(of_unit, lambda name: name in training.trace.matrices)
    units: dict[str, nn.Module] = {}
    for i, (start, stop) in enumerate(pairwise(borders)):
        written = (
            writers[0].write(i, start and start.training, stop and stop.training),
            writers[1].write(i, start and start.evaluation, stop and stop.evaluation),
        )
        unit = GraphUnit(written[0].code, written[1].code, written[0].draws)
        for name in of_unit[i]:
            plant(unit, name, tensors[name])
        for writer, one in zip(writers, written):
            _plant_others(unit, one, writer, tensors)
        units[names[i]] = unit
    return units, writers[0].message(None)


def _plant_others(unit: GraphUnit, written: Written, writer: Writer, tensors: Mapping[str, Tensor]) -> None:
    """What a unit needs beside its own tensors; no part of its state, since nobody trains it."""
    for attribute, name in written.held.items():
        plant(unit, attribute, tensors[name].detach(), persistent=False)
    for attribute in written.constants:
        plant(unit, attribute, writer.constants[attribute], persistent=False)
