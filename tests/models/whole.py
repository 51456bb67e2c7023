"""The law of a split module: at every cut its outputs, gradients and buffers are the whole module's."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hsfl.models.units import SplitModel


def one_tensor(answer: Any) -> Tensor:
    """What a module returned; a record of `transformers` has it as its first value."""
    return answer if isinstance(answer, Tensor) else answer[0]


def loss(answer: Tensor) -> Tensor:
    return (answer * torch.linspace(-1, 1, answer.numel(), dtype=answer.dtype).view(answer.shape)).sum()


def whole_step(module: nn.Module, inputs: Sequence[Tensor], training: bool) -> dict[str, Tensor]:
    """Output, gradients and state of the module itself after a step without an update."""
    module = copy.deepcopy(module).train(training)
    torch.manual_seed(5)
    answer = one_tensor(module(*inputs))
    loss(answer).backward()
    return _result(answer, module)


def split_step(model: SplitModel, cut: int, inputs: Sequence[Tensor], training: bool) -> dict[str, Tensor]:
    """The same from head and tail: every unit is a copy of its own, as at a client and at a server, so that no memory is shared.
    What the head gives arrives in one piece of memory, as from a wire, and its gradient comes back."""
    units = [copy.deepcopy(unit).train(training) for unit in model.units]
    torch.manual_seed(5)
    smashed = nn.Sequential(*units[:cut])(model.pack(*inputs))  # type: ignore[operator]
    sent = smashed.detach().clone(memory_format=torch.contiguous_format)
    if cut > 0:
        sent.requires_grad_()
    answer = nn.Sequential(*units[cut:])(sent.clone() if sent.requires_grad else sent)
    loss(answer).backward()
    if smashed.requires_grad and sent.grad is not None:  # None where the tail detaches what it gets
        smashed.backward(sent.grad)
    return _result(answer, *units)


def _result(answer: Tensor, *parts: nn.Module) -> dict[str, Tensor]:
    found = {"output": answer.detach()}
    for part in parts:
        named = part.named_parameters()
        found |= {f"gradient of {name}": p.grad for name, p in named if p.grad is not None} | dict(part.state_dict())
    return found


def is_tied(module: nn.Module) -> bool:
    """Whether a tensor has several names; units know it by the first."""
    return len(list(module.named_parameters(remove_duplicate=False))) > len(list(module.parameters()))


def distance(module: nn.Module, model: SplitModel, inputs: Sequence[Tensor]) -> float:
    """The largest difference over all cuts and both modes, relative to the largest number of the same tensor or to the
    largest gradient (the bias before a norm has a gradient of nothing but rounding). Names and types are compared exactly."""
    worst = 0.0
    for training in (True, False):
        expected = whole_step(module, [x.clone() for x in inputs], training)
        steepest = max(float(t.abs().max()) for name, t in expected.items() if name.startswith("gradient"))
        for cut in range(model.num_units + 1):
            found = split_step(model, cut, [x.clone() for x in inputs], training)
            first = dict.fromkeys(found) if is_tied(module) else expected
            assert found.keys() == first.keys(), found.keys() ^ first.keys()
            for name in first:
                tensor = expected[name]
                assert found[name].shape == tensor.shape, name
                assert found[name].dtype == tensor.dtype, name
                size = max(float(tensor.abs().max()), steepest * name.startswith("gradient"), 1e-12)
                worst = max(worst, float((found[name].double() - tensor.double()).abs().max()) / size)
    return worst
