"""The certificate of a split: at every cut the units compute what the whole module computes.

A graph holds what a module's operations say of themselves. Hooks, backwards of one's own, attributes that a forward pass leaves for
the next one, and operations that draw or write in secret are not in it. So the units are run beside the module, for two training steps
and then in evaluation mode, and outputs, gradients of all parameters and of the sample, and the state after each step are compared.
What differs is refused.

The units run twice: with a wire between any two of them, each unit with memory of its own, and as one model without wires. Every
cut is a mixture of these two, so that the cost does not grow with the number of cuts: two training steps and two evaluations of the module, three
times over. Only where something differs is cut after cut tried, in order to name one.

Memory: one copy of the module's state, which is put back in the end, the module's gradients of a step, and those of one unit at a time.
"""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hsfl.errors import InputError
from hsfl.models.split.codegen import GraphUnit
from hsfl.models.split.module_split import ModuleSplit, state_of
from hsfl.models.split.torch_export import IN_ORDER, attributes_of, put_back
from hsfl.models.split.trace import one_output

MOST_SAMPLES = 8  # of the example that are compared
SEED = 1  # of the drawn batch, and of dropout in every pass
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.complex128: 1e-9, torch.complex64: 1e-5}
ROUGH = 1e-2  # the tolerance of shorter types
LEAST_SLOPE = 1e-2  # of the steepest gradient; smaller gradients may be rounding alone, and are compared on this scale
LEAST_PERCENT = 1e-3  # a smaller difference is no number of per cent
MOST_TRIED = 16  # cuts, in order to name one


@dataclass(frozen=True)
class Mismatch:
    """What the units give that is not the module's."""

    place: str  # the batch and the mode
    tensor: str  # or what fails
    relative: float | None  # the largest difference as a part of the largest number; None where there is no such number

    @property
    def clause(self) -> str:
        if self.relative is None:
            return f"{self.tensor} on {self.place}"
        if self.relative == float("inf"):
            return f"{self.tensor} has another shape, type or place of infinite numbers than the whole module's on {self.place}"
        percent = (
            f"{self.relative:.1%}" if self.relative >= LEAST_PERCENT else f"{self.relative:.0e} of the largest number"
        )
        return f"{self.tensor} differs from the whole module's by {percent} on {self.place}"


@dataclass(frozen=True)
class Step:
    """A batch that the module and its units are given, in one mode."""

    batch: str
    inputs: tuple[Tensor, ...]
    training: bool

    @property
    def place(self) -> str:
        return self.batch if self.training else f"{self.batch} in evaluation mode"


@dataclass(frozen=True)
class WholeAnswer:
    """What the module gave in a step."""

    output: Tensor
    slope: Tensor | None  # the gradient of the sample
    gradients: dict[str, Tensor]  # of the parameters that have one
    state: Mapping[str, Tensor]  # after the step: what is not trained


def certify_split(model: ModuleSplit) -> None:
    """Refuse a split whose units do not compute what their module computes. The module, its gradients, and all generators of random
    numbers are left as they were."""
    if model.is_copy:
        return  # it was certified before it was copied
    if any(tensor.is_meta for tensor in (*model.origin.parameters(), *model.origin.buffers())):
        return  # without numbers there is nothing to compare
    example = [x[:MOST_SAMPLES].detach() for x in model.request.inputs]
    batches = {"the example": tuple(example), "a drawn batch": _drawn_batch(model.origin, example)}
    with torch.inference_mode(False), torch.enable_grad():
        difference = _first_difference(model, batches, [range(1, model.num_units), ()])
        if difference is not None:
            raise InputError(_sentence(model, *_one_cut(model, batches, difference)))


def _one_cut(
    model: ModuleSplit, batches: Mapping[str, tuple[Tensor, ...]], difference: Mismatch
) -> tuple[int | None, Mismatch]:
    """The first cut at which something differs, with what differs there; None if it takes several wires."""
    for cut in range(1, min(model.num_units, MOST_TRIED) + 1):
        there = _first_difference(model, batches, [(cut,)])
        if there is not None:
            return cut, there
    return None, difference


def _sentence(model: ModuleSplit, cut: int | None, difference: Mismatch) -> str:
    name, place = type(model.origin).__name__, "with a cut behind every unit"
    if cut is not None:
        place = f"at cut {cut} (behind {model.unit_names[cut - 1]!r})"
    return (
        f"{name} cannot be split: {place} {difference.clause}; its forward does what no graph holds (a hook, an autograd.Function, an attribute "
        f"kept for the next step, an operation that writes or draws in secret); write it with torch's operations and buffers, {IN_ORDER}"
    )


# --- batches
def _drawn_batch(module: nn.Module, example: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """A batch of one sample more than the example's. Tokens are those of the module's first table, other whole numbers lie
    between the example's; floats that stand beside the sample lie between 0 and 1, as masks and weights do."""
    generator = torch.Generator().manual_seed(SEED)
    tables = [layer.num_embeddings for layer in module.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
    batch = []
    for i, x in enumerate(example):
        shape = (len(x) + 1, *x.shape[1:])
        if x.is_floating_point() or x.is_complex():
            drawn = torch.randn(shape, generator=generator) if i == 0 else torch.rand(shape, generator=generator)
        else:
            least, most = (int(bound) for bound in (x.min(), x.max())) if x.numel() else (0, 0)
            if i == 0 and tables and x.dtype != torch.bool:
                least, most = 0, tables[0] - 1
            drawn = torch.randint(least, most + 1, shape, generator=generator)
        batch.append(drawn.to(x.device, x.dtype))
    return tuple(batch)


# --- the module as it was
def _tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """All tensors of a module, also those that are no part of its state dict."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


@contextmanager
def _left_as_it_was(module: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Put back a module's tensors, gradients and attributes, and all generators of random numbers. Yields a copy of the tensors."""
    tensors = _tensors_of(module)
    backup = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    gradients = {parameter: parameter.grad for parameter in module.parameters()}
    trained = [(parameter, parameter.requires_grad) for parameter in gradients]
    attributes = attributes_of(module)
    devices = sorted({tensor.device.index or 0 for tensor in tensors.values() if tensor.is_cuda})
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 -- the module may draw from it
    try:
        with torch.random.fork_rng(devices):
            for parameter in gradients:
                parameter.grad = None
            yield dict(backup)
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        put_back(attributes)
        for name, tensor in tensors.items():
            _overwrite(tensor, backup[name])
        for parameter, is_trained in trained:
            parameter.requires_grad_(is_trained)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient


def _overwrite(tensor: Tensor, value: Tensor) -> None:
    if not torch.equal(tensor, value):
        tensor.data.copy_(value)


# --- the module and its units, step by step
def _first_difference(
    model: ModuleSplit, batches: Mapping[str, tuple[Tensor, ...]], runs: Sequence[Collection[int]]
) -> Mismatch | None:
    """What differs first when the module and its units make the same steps. runs: of the units; for each of them the cuts at which there
    is a wire. A batch on which the module itself fails is left out."""
    with _left_as_it_was(model.origin) as backup:
        whole = _Whole(model, backup)
        units = [_Units(model, cuts) for cuts in runs]
        for training in (True, False):
            steps = [Step(batch, inputs, training) for batch, inputs in batches.items()]
            for step, expected in _answers(whole, steps):
                for run in units:
                    whole.rewind()
                    difference = run.difference(step, expected) or whole.difference(step, expected)
                    if difference is not None:
                        return difference
                whole.advance(expected)
    return None


def _answers(whole: "_Whole", steps: Sequence[Step]) -> Iterator[tuple[Step, WholeAnswer]]:
    """The module's answers to the steps that it can make. The values of the example do not matter, so it may fail on one
    batch; it may not fail on all, nor on a batch on which it did not fail before."""
    done: list[Step] = []
    for step in steps:
        answer = whole.answer(step)
        if not isinstance(answer, Exception):
            done.append(step)
            yield step, answer
        elif step is steps[-1] and not done:
            raise InputError(_failure_sentence(whole.model, step, answer, "a"))
    if len(done) == 1:  # a step after a step
        answer = whole.answer(done[0])
        if isinstance(answer, Exception):
            raise InputError(_failure_sentence(whole.model, done[0], answer, "a second"))
        yield done[0], answer


def _failure_sentence(model: ModuleSplit, step: Step, error: Exception, which: str) -> str:
    kind = "training step" if step.training else "evaluation"
    return (
        f"{type(model.origin).__name__} cannot be split: {which} {kind} of the whole module fails on {step.batch} ({_reason(error)}); correct it, or "
        "give an example as the module takes it"
    )


def _reason(error: Exception) -> str:
    return (" ".join(str(error).split())[:120] or type(error).__name__).rstrip(".")


def _seed() -> None:
    """Dropout draws the same in every run."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002 -- the module may draw from it


def _leaves(inputs: Sequence[Tensor], training: bool) -> list[Tensor]:
    """The inputs of a step; the sample has a gradient where it can have one."""
    leaves = [x.detach().clone() for x in inputs]
    if training and (leaves[0].is_floating_point() or leaves[0].is_complex()):
        leaves[0].requires_grad_()
    return leaves


def _run_backward(output: Tensor) -> None:
    """The gradients of a sum of the output in which every number has another weight."""
    numbers = torch.view_as_real(output) if output.is_complex() else output
    weights = torch.linspace(-1, 1, numbers.numel(), dtype=torch.float32, device=numbers.device)
    numbers.backward(weights.to(numbers.dtype).view(numbers.shape))


class _Whole:
    """The module itself."""

    def __init__(self, model: ModuleSplit, before: dict[str, Tensor]) -> None:
        """before: a copy of the module's tensors."""
        self.model, self.module, self.before = model, model.origin, before
        self.flags = {name: p.requires_grad for name, p in self.module.named_parameters()}
        self.trained = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        self.changed: dict[str, Tensor] = {}  # trained weights that the forward pass changed in this step

    def answer(self, step: Step) -> WholeAnswer | Exception:
        """What the module gives in a step, or why it fails; then the module is as before the step."""
        attributes = attributes_of(self.module)
        tensors = {name: tensor for name, tensor in _tensors_of(self.module).items() if name not in self.trained}
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        leaves = _leaves(step.inputs, step.training)
        self.module.train(step.training)
        _seed()
        try:
            with torch.set_grad_enabled(step.training):
                output = self._output([leaf.clone() for leaf in leaves])
                if step.training:
                    _run_backward(output)
        except Exception as error:  # a user's module may raise anything
            put_back(attributes)
            for name, tensor in tensors.items():
                _overwrite(tensor, copies[name])
            for name, parameter in self.trained.items():
                parameter.grad = None
                _overwrite(parameter, self.before[name])
            return error
        self._check_parameters()
        gradients = {name: p.grad for name, p in self.trained.items() if p.grad is not None}
        for parameter in self.trained.values():
            parameter.grad = None
        self.changed = {
            name: p.detach().clone() for name, p in self.trained.items() if not torch.equal(p, self.before[name])
        }
        state = {name: t for name, t in state_of(self.module).items() if name not in self.trained}
        return WholeAnswer(output.detach(), leaves[0].grad, gradients, state)

    def _check_parameters(self) -> None:
        """Refuse a module whose forward pass decides which weights there are, or which of them are trained."""
        flags = {name: parameter.requires_grad for name, parameter in self.module.named_parameters()}
        for name in [name for name in flags | self.flags if flags.get(name) is not self.flags.get(name)]:
            deed = "changes requires_grad of" if name in flags.keys() & self.flags.keys() else "makes or takes away"
            raise InputError(
                f"{type(self.module).__name__} cannot be split: its forward {deed} the parameter {name}, which no graph holds; do that once, "
                f"before the split, {IN_ORDER}"
            )

    def _output(self, inputs: Sequence[Tensor]) -> Tensor:
        request = self.model.request
        answer = self.module(**dict(zip(request.names, inputs))) if request.names else self.module(*inputs)
        return one_output(answer, request.output, type(self.module).__name__)

    def rewind(self) -> None:
        """Give the trained weights, which the units share, the numbers that they had before the step."""
        for name in self.changed:
            self.trained[name].data.copy_(self.before[name])

    def difference(self, step: Step, expected: WholeAnswer) -> Mismatch | None:
        """The trained weights are changed by the forward pass of the units as by the module's."""
        for name, parameter in self.trained.items():
            wanted = self.changed.get(name, self.before[name])
            if (relative := _relative(parameter, wanted)) > _tolerance(parameter):
                return Mismatch(step.place, f"{name} after a step", relative)
        return None

    def advance(self, expected: WholeAnswer) -> None:
        """The next step goes on from this one."""
        for name, value in self.changed.items():
            self.trained[name].data.copy_(value)
            self.before[name] = value


class _Units:
    """The units of a split with wires between some of them. They share the trained weights with the module, and have everything else
    for themselves."""

    def __init__(self, model: ModuleSplit, wires: Collection[int]) -> None:
        self.model, self.wires = model, wires
        shared = {id(p): p for p in model.origin.parameters() if p.requires_grad}
        self.units: list[nn.Module] = []
        memo: dict[int, Any] = {}
        for i, unit in enumerate(model.units):
            memo = dict(shared) if i in wires or i == 0 else memo  # beyond a wire nothing else is shared
            self.units.append(deepcopy(unit, memo))

    def difference(self, step: Step, expected: WholeAnswer) -> Mismatch | None:
        """What the units give in a step that the module does not."""
        try:
            return self._difference(step, expected)
        except InputError:
            raise
        except Exception as error:  # the graph of a user's module may fail anywhere
            return Mismatch(step.place, f"the units fail ({_reason(error)})", None)

    def _difference(self, step: Step, expected: WholeAnswer) -> Mismatch | None:
        leaves = _leaves(step.inputs, step.training)
        _seed()
        with torch.set_grad_enabled(step.training):
            stretches = self._forward([leaf.clone() for leaf in leaves], step.training)
        output = stretches[-1].output
        if (relative := _relative(output, expected.output)) > _tolerance(output):
            return Mismatch(step.place, "the output", relative)
        if step.training:
            steepest = max((_largest(gradient) for gradient in expected.gradients.values()), default=0.0)
            for names, gradients in self._backward(stretches):
                for name in names:
                    given, wanted = gradients.get(name), expected.gradients.get(name)
                    if (relative := _relative(given, wanted, LEAST_SLOPE * steepest)) > _tolerance(given, wanted):
                        return Mismatch(step.place, f"the gradient of {name}", relative)
            if (relative := _relative(leaves[0].grad, expected.slope)) > _tolerance(leaves[0].grad, expected.slope):
                return Mismatch(step.place, "the gradient of the sample", relative)
        for unit in self.units:
            for name, tensor in unit.state_dict().items():
                if name in expected.state:
                    wanted = expected.state[name]
                    if (relative := _relative(tensor, wanted)) > _tolerance(tensor):
                        return Mismatch(step.place, f"{name} after a step", relative)
        return None

    def _forward(self, inputs: Sequence[Tensor], training: bool) -> list["_Stretch"]:
        x = self.model.pack(*inputs)
        stretches: list[_Stretch] = []
        for i, unit in enumerate(self.units):
            unit.train(training)
            wire = None
            if i in self.wires:
                wire = x.detach().clone(memory_format=torch.contiguous_format)  # as it arrives in one piece
                x = wire.requires_grad_(training and x.is_floating_point())
                x = x.clone() if x.requires_grad else x
            if i == 0 or wire is not None:
                stretches.append(_Stretch(wire, [], x))
            stretches[-1].units.append(unit)
            with self._draws_are_told(unit, i):
                x = unit(x)
            stretches[-1].output = x
        return stretches

    @contextmanager
    def _draws_are_told(self, unit: nn.Module, number: int) -> Iterator[None]:
        """Refuse a unit that draws random numbers of which its graph says nothing: no key of a step would seed it."""
        before = _generators()
        yield
        drawn = [name for name, earlier, later in zip(GENERATORS, before, _generators()) if earlier != later]
        if drawn and unit.training and isinstance(unit, GraphUnit) and GraphUnit.draws(unit):
            drawn = [name for name in drawn if name != GENERATORS[0]]
        if drawn:
            raise InputError(
                f"{type(self.model.origin).__name__} cannot be split: an operation of its unit {self.model.unit_names[number]!r} draws from {drawn[0]} and "
                f"does not say so, so no key of a step would seed it; tag it torch.Tag.nondeterministic_seeded, or draw with torch.rand, {IN_ORDER}"
            )

    def _backward(self, stretches: list["_Stretch"]) -> Iterator[tuple[list[str], dict[str, Tensor]]]:
        """The gradients, stretch by stretch from the last; each is freed before the next."""
        gradient: Tensor | None = None
        is_last = True
        while stretches:
            stretch = stretches.pop()
            if is_last:
                _run_backward(stretch.output)
            elif gradient is not None and stretch.output.requires_grad:
                stretch.output.backward(gradient)
            is_last, gradient = False, None if stretch.wire is None else stretch.wire.grad
            named = {name: p for unit in stretch.units for name, p in unit.named_parameters() if p.requires_grad}
            gradients = {name: p.grad for name, p in named.items() if p.grad is not None}
            for parameter in named.values():
                parameter.grad = None
            yield list(named), gradients


@dataclass
class _Stretch:
    """Units between two wires, and what they were given and gave."""

    wire: Tensor | None  # what arrived; None before the first unit
    units: list[nn.Module]
    output: Tensor


GENERATORS = ("torch's generator", "Python's random", "numpy.random")


def _generators() -> tuple[bytes, int, bytes]:
    """The state of each generator."""
    numpy_state: Any = np.random.get_state()  # noqa: NPY002
    return (
        torch.get_rng_state().numpy().tobytes(),
        hash(random.getstate()),
        numpy_state[1].tobytes() + str(numpy_state[2]).encode(),
    )


# --- numbers
def _largest(tensor: Tensor) -> float:
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0


def _relative(given: Tensor | None, wanted: Tensor | None, least: float = 0.0) -> float:
    """The largest difference as a part of the largest number that is wanted, or of `least` where that is more. None stands for zeros.
    Infinite where shapes or types differ, and where one is finite and the other is not."""
    if given is None or wanted is None:
        largest = max((_largest(tensor) for tensor in (given, wanted) if tensor is not None), default=0.0)
        return _share(largest, max(largest, least))
    if given.shape != wanted.shape or given.dtype != wanted.dtype:
        return float("inf")
    given, wanted = given.detach(), wanted.detach()
    if torch.equal(given, wanted) or not given.numel():
        return 0.0
    wide = torch.complex128 if given.is_complex() else torch.float64
    given, wanted = given.to(wide), wanted.to(wide)
    finite = wanted.isfinite()
    if not torch.equal(given.isfinite(), finite):
        return float("inf")
    if not bool(finite.any()):
        return 0.0
    given, wanted = given[finite], wanted[finite]
    return _share(_largest(given - wanted), max(_largest(wanted), least))


def _share(difference: float, scale: float) -> float:
    return difference / scale if scale > 0 else (float("inf") if difference > 0 else 0.0)


def _tolerance(*tensors: Tensor | None) -> float:
    dtype = next((tensor.dtype for tensor in tensors if tensor is not None), torch.float32)
    return TOLERANCE.get(dtype, ROUGH if dtype.is_floating_point else 0.0)
