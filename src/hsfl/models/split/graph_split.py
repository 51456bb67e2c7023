"""`hsfl.split`: any module becomes a SplitModel, cut where its graph allows, with the names of its own state dict.

This is the entrance of the folder. It traces the module in both modes, finds the cuts, decides which unit has which tensor
and makes the units; where there is no cut, an error says why.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from hsfl.errors import InputError
from hsfl.models.split.certificate import certify_split
from hsfl.models.split.codegen import GraphUnit, Message, Writer, Written, plant
from hsfl.models.split.cut_points import (
    Cut,
    Flow,
    cuts_after,
    draws,
    find_cuts,
    module_path,
    storages,
    unit_names,
    writes,
)
from hsfl.models.split.module_split import ModuleSplit, SplitRequest, state_of
from hsfl.models.split.torch_export import IN_ORDER
from hsfl.models.split.trace import ModuleGraph, trace
from hsfl.models.units import SplitModel, check_not_lazy, in_order

CERTIFIES = ContextVar("CERTIFIES", default=True)  # whether splits are certified where their callers do not say
Example = Tensor | Sequence[Tensor] | Mapping[str, Tensor]


def split(
    model: Any,
    example_input: Example | None = None,
    *,
    at: Iterable[str] = (),
    most_tensors: int = 1,
    output: str | int | None = None,
    certify: bool = True,
) -> SplitModel:
    """A SplitModel from a module and an example batch, or from modules in order (a list, a mapping of names, an `nn.Sequential`).

    example_input: a batch of two samples or more; its values do not matter. Of several tensors the first is the sample,
    and the others (an attention mask) travel beside whatever crosses a cut. Tensors of a mapping go to the module by
    their names.
    at: cut only behind these parts of the module. most_tensors: how many tensors may cross a cut together. output: which of several
    outputs is the model's, by its name or number. certify: whether to run the units beside the module, and refuse what differs: a few
    forward and backward passes. Modules that are given in order need no certificate.
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
    _check_trainable_on_one_device(model, inputs)

    names = tuple(map(str, example_input)) if isinstance(example_input, Mapping) else ()
    request = SplitRequest(inputs, names, (at,) if isinstance(at, str) else tuple(at), most_tensors, output)
    split_model = _split_by_graph(model, request)
    if certify and CERTIFIES.get():
        certify_split(split_model)
    return split_model


@contextmanager
def no_certificates() -> Iterator[None]:
    """Splits inside the block are not certified: whoever makes a model by its name certifies it afterwards, once, or knows that another
    process does."""
    token = CERTIFIES.set(False)
    try:
        yield
    finally:
        CERTIFIES.reset(token)


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


def _check_trainable_on_one_device(model: nn.Module, inputs: Sequence[Tensor]) -> None:
    name = type(model).__name__
    check_not_lazy(model, name)
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(f"{name} has no parameters to train; give it a layer with weights")
    if len(devices) > 1 or inputs[0].device not in devices:
        raise InputError(
            f"{name} is on {', '.join(map(str, devices))} but example_input is on {inputs[0].device}; move them to one device"
        )


def _split_by_graph(module: nn.Module, request: SplitRequest) -> ModuleSplit:
    """The module cut wherever its graph allows, or behind the parts `at`; see `hsfl.split`."""
    try:
        return _units_by_graph(module, request)
    except (NotImplementedError, AssertionError, KeyError, SyntaxError) as error:  # what no graph of ours has shown yet
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"{type(module).__name__} cannot be split: its graph has what we do not know ({type(error).__name__}: {reason}); write it "
            f"with plain operations of torch, {IN_ORDER}"
        ) from error


def _units_by_graph(module: nn.Module, request: SplitRequest) -> ModuleSplit:
    training, evaluation = (_flow(module, request, mode) for mode in (True, False))
    training.owned = evaluation.owned = training.owned | evaluation.owned  # a statistic may be read in one mode alone
    _check_draws(module, evaluation)
    cuts = find_cuts(training, evaluation, request.most_tensors)
    if not cuts:
        raise InputError(_why_no_cut(module, training, request.most_tensors))
    if request.at:
        cuts = cuts_after(cuts, request.at, training.trace.matrices)
    tensors = state_of(module)
    owner = _owners(tensors, training, evaluation, cuts)
    units, message = _make_units(tensors, owner, training, evaluation, cuts)

    def split_again(changed_module: nn.Module) -> SplitModel:
        return _split_by_graph(changed_module, request)

    return ModuleSplit(module, units, message, split_again, request)


def _flow(model: nn.Module, request: SplitRequest, training: bool) -> Flow:
    graph = trace(model, request.inputs, training, request.output, request.names)
    _check_changes_are_in_state(model, graph)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    flow = Flow(graph, (names[id(p)] for p in model.parameters() if p.requires_grad))
    if graph.output not in flow.moving:
        raise InputError(f"{type(model).__name__} cannot be split: what it returns does not depend on its input")
    return flow


def _check_changes_are_in_state(model: nn.Module, graph: ModuleGraph) -> None:
    """Refuse a module that changes a tensor outside of its state dict: only the state dict is averaged, saved in checkpoints and
    handed from client to client."""
    fresh = torch.ops.aten.lift_fresh_copy.default  # numbers in the text of the forward pass are new in every pass
    names = {
        node: graph.attributes.get(node, "a tensor in a list or a closure")
        for node in graph.constants
        if any(user.target is not fresh for user in node.users)
    }
    name_of_storage = {storage: name for node, name in names.items() for storage in storages(node)}
    for call in graph.calls:
        if changed := [name_of_storage[s] for node in writes(call) for s in storages(node) if s in name_of_storage]:
            raise InputError(
                f"{type(model).__name__} cannot be split: its forward changes {changed[0]}, which is not in its state dict, so no "
                "client's weights would hold it; make it a buffer: register_buffer(name, tensor)"
            )


def _check_draws(model: nn.Module, evaluation: Flow) -> None:
    """Refuse a module that draws random numbers in evaluation mode, since keys seed the steps of training alone."""
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
    for parameter_name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(parameter_name)
    matrices = flow.trace.matrices
    widest = max(
        flow.tied.items(), key=lambda item: (item[1][1] - item[1][0], item[0] in matrices, item[0]), default=None
    )
    if widest is not None:
        tied = next((group for group in names.values() if widest[0] in group), [widest[0]])
        use_clause = " and ".join(tied) + " are one parameter, used" if len(tied) > 1 else f"{tied[0]} is used"
        first, last = (module_path(flow.order[place]) or "its forward" for place in widest[1])
        return (
            f"{name} has no cut: {use_clause} from {first!r} to {last!r}, and a weight that is trained must lie on one side; untie it "
            "(tie_word_embeddings=False in transformers), or freeze it"
        )
    if most_tensors == 1 and flow.crossings(most_tensors=4):
        return f"{name} has no cut that one tensor crosses; allow more: hsfl.split(..., most_tensors=4)"
    return f"{name} has no cut: at every place the sample itself or more than one tensor is still needed; {IN_ORDER}"


def _owners(tensors: Mapping[str, Tensor], training: Flow, evaluation: Flow, cuts: Sequence[Cut]) -> dict[str, int]:
    """By name of a tensor of the state: the number of the first unit that uses the tensor.

    A tensor that is used nowhere goes to the unit of the tensor before it. A tied tensor counts by the first of its
    names.
    """
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
    """The units by name, and the message that the first unit takes."""
    writers = Writer(training, owner, "training"), Writer(evaluation, owner, "evaluation")
    borders = [[None, *(cut.training for cut in cuts), None], [None, *(cut.evaluation for cut in cuts), None]]
    names_of_unit: list[list[str]] = [[] for _ in range(len(cuts) + 1)]
    for name, number in owner.items():
        names_of_unit[number].append(name)
    units: dict[str, nn.Module] = {}
    for i, unit_name in enumerate(unit_names(names_of_unit, lambda name: name in training.trace.matrices)):
        written = [writer.write(i, crossings[i], crossings[i + 1]) for writer, crossings in zip(writers, borders)]
        unit = GraphUnit(written[0].code, written[1].code, written[0].draws)
        for name in names_of_unit[i]:
            plant(unit, name, tensors[name])
        for writer, mode_code in zip(writers, written):
            _plant_others(unit, mode_code, writer, tensors)
        units[unit_name] = unit
    return units, writers[0].message(None)


def _plant_others(unit: GraphUnit, written: Written, writer: Writer, tensors: Mapping[str, Tensor]) -> None:
    """Give a unit the tensors that it needs beside its own. They are no part of its state, since nobody trains them."""
    GraphUnit.held(unit).update(written.held)
    for attribute, name in written.held.items():
        plant(unit, attribute, tensors[name].detach(), persistent=False)
    for attribute in written.constants:
        plant(unit, attribute, writer.constants[attribute], persistent=False)
