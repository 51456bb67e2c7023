"""The split step: what a client and the main server compute for one batch.

A `Part` is a stretch of consecutive units that one party trains. Client: forward its units, send the smashed data;
main server: forward the rest, loss, backward, update, send the gradient of the smashed data; client: backward,
update. At every cut this gives, to rounding, the gradients of the whole model.
"""

import copy
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward

from hsfl.config import TrainConfig
from hsfl.models.split.codegen import GraphUnit
from hsfl.models.state import Layout, UnitState, bound_copy
from hsfl.models.units import SplitModel
from hsfl.rng import torch_seed
from hsfl.training.losses import CLASSIFY, Goal
from hsfl.training.optimizer import MOMENTS, Memory, Optimizer

# Torch has one generator for all threads: between seeding and drawing no other thread may draw.
GENERATOR_LOCK = threading.Lock()


@dataclass(frozen=True)
class StepKey:
    """The name of one step, from which dropout draws the same masks whichever party runs a unit.

    Torch draws masks from its global generator, which is seeded by this key before every unit that may draw.
    """

    seed: int
    client: int
    pass_index: int  # the client's pass over its samples (0, 1, ...); with one epoch a round, the round
    step: int  # within the pass

    def torch_seed(self, unit: int) -> int:
        return torch_seed(self.seed, "dropout", self.client, self.pass_index, self.step, unit)


def learning_rate(train: TrainConfig, round_index: int) -> float:
    """The learning rate of a round (0, 1, ...) under the schedule."""
    if train.schedule == "cosine":
        return train.lr * 0.5 * (1 + math.cos(math.pi * round_index / train.rounds))
    if train.schedule == "step":
        return train.lr * train.step_factor ** (round_index // train.step_rounds)
    return train.lr


def _draws(unit: nn.Module) -> bool:
    """Whether a unit may draw random numbers: its graph says so, it has dropout, or modules that are neither torch's nor ours."""
    if isinstance(unit, GraphUnit):
        return GraphUnit.draws(unit)
    return any(_may_draw(module) for module in unit.modules())


def _may_draw(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd | nn.RReLU) or bool(getattr(module, "dropout", None)):
        return True
    return not _is_known(module)


def _is_known(module: nn.Module) -> bool:
    """Whether a module is torch's or ours, so that it does the same with every batch."""
    return type(module).__module__.startswith(("torch.nn.", "hsfl.models."))


class Part:
    """Units `[start, stop)` in training: their state, forward pass and optimiser.

    One Part serves many clients in turn: `begin` loads a state (of all its units or a stretch of them) and starts a
    fresh optimiser, so memory does not grow with the number of clients.
    """

    # Is given the parameters that have a gradient, by name, before each step; it may change the gradients.
    before_step: Callable[[dict[str, nn.Parameter]], None] | None = None

    def __init__(
        self, model: SplitModel, layout: Layout, start: int, stop: int, train: TrainConfig, goal: Goal = CLASSIFY
    ) -> None:
        self.start, self.stop = start, stop
        self.train, self.goal = train, goal
        self.units, self._memory = bound_copy(model, layout, start, stop)
        self._prefixes = model.prefixes[start:stop]
        self._draws = tuple(_draws(unit) for unit in self.units)
        modules = [module for unit in self.units for module in unit.modules()]
        self._all_known = all(
            _is_known(module) and not module._forward_pre_hooks and not module._forward_hooks for module in modules
        )
        self._input_safe: set[tuple[int, int]] = set()  # stretches of units that leave their input as it is
        self._views: dict[tuple[int, int], UnitState] = {}  # of the states of stretches of units
        self._moments = Memory(self.parameters(), MOMENTS[train.optimizer])
        self._optimizer: Optimizer | None = None
        self._optimizers: dict[tuple[int, int], Optimizer | None] = {}
        for unit in self.units:
            unit.train()

    def twin(self) -> "Part":
        """Another part over the same working copy, for a party that at no time trains the same units as this one."""
        twin = copy.copy(self)
        twin._optimizer, twin._optimizers = None, {}
        return twin

    @property
    def state(self) -> UnitState:
        """The units now in training; a view."""
        units = self.start, self.stop
        if units not in self._views:
            self._views[units] = self._memory[self.start : self.stop]
        return self._views[units]

    def begin(self, state: UnitState, lr: float) -> None:
        """Load the state of some of our units and train these units from now on, with an optimiser that remembers nothing."""
        self.start, self.stop = state.start, state.stop
        self.state.copy_(state)
        self._optimizer = self._optimizer_of(state.start, state.stop)
        self.forget()
        if self._optimizer is not None:
            self._optimizer.lr = lr
        self._anchor = self._anchor_of(state) if self.train.proximal_mu else []

    def forget(self) -> None:
        """Start the optimiser anew; the weights stay."""
        if self._optimizer is not None:
            self._optimizer.forget()

    def parameters(self) -> list[nn.Parameter]:
        first = self._memory.start
        units = self.units[self.start - first : self.stop - first]
        return [parameter for unit in units for parameter in unit.parameters() if parameter.requires_grad]

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters by their names in the whole model."""
        first = self._memory.start
        units = slice(self.start - first, self.stop - first)
        return {
            prefix + name: parameter
            for unit, prefix in zip(self.units[units], self._prefixes[units])
            for name, parameter in unit.named_parameters()
            if parameter.requires_grad
        }

    def _optimizer_of(self, start: int, stop: int) -> Optimizer | None:
        if (start, stop) not in self._optimizers:
            first, last = (self._num_parameters_before(unit) for unit in (start, stop))
            self._optimizers[start, stop] = Optimizer(self._moments, first, last, self.train) if first < last else None
        return self._optimizers[start, stop]

    def _num_parameters_before(self, end_unit: int) -> int:
        units_before = self.units[: end_unit - self._memory.start]
        return sum(parameter.requires_grad for unit in units_before for parameter in unit.parameters())

    def _anchor_of(self, state: UnitState) -> list[Tensor]:
        """The weights at the start of the round, in the order of `parameters`; FedProx pulls towards them."""
        name_at = {view.data_ptr(): name for name, view in self.state.named().items()}
        views = state.clone().named()
        return [views[name_at[parameter.data_ptr()]] for parameter in self.parameters()]

    def forward(self, x: Tensor, key: StepKey) -> Tensor:
        """Run a batch through the units. On a client this is stage 1, i, Eq. (1)."""
        first, copied = self._memory.start, None
        if x.is_leaf and x.requires_grad and (self.start, self.stop) not in self._input_safe:
            x = copied = x.clone()  # a unit may begin in place, and the smashed data must stay as they are
        for unit in range(self.start, self.stop):
            if self._draws[unit - first]:
                with GENERATOR_LOCK:
                    torch.manual_seed(key.torch_seed(unit))
                    x = self.units[unit - first](x)
            else:
                x = self.units[unit - first](x)
        if copied is not None and copied._version == 0 and self._all_known:
            self._input_safe.add((self.start, self.stop))
        return x

    def update(self) -> None:
        """One step of the optimiser on the gradients that backward left; the gradients are cleared."""
        if self._optimizer is None:
            return
        if self._anchor:
            for parameter, anchor in zip(self.parameters(), self._anchor):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - anchor, alpha=self.train.proximal_mu)
        if self.before_step is not None:
            with torch.no_grad():
                self.before_step({n: p for n, p in self.named_parameters().items() if p.grad is not None})
        self._optimizer.step()

    @property
    def optimizer_bytes(self) -> int:
        """The bytes of the optimiser's memory on a link; Adam also keeps a counter of 4 bytes for each tensor."""
        states, counters = {"sgd": (0, 0), "momentum": (1, 0), "adam": (2, 4)}[self.train.optimizer]
        return sum(states * parameter.nbytes + counters for parameter in self.parameters())

    def optimizer_state(self) -> dict[str, Tensor]:
        """A copy of the optimiser's memory as named tensors, for frameworks whose optimiser lasts longer than a round."""
        return self._optimizer.state() if self._optimizer is not None else {}

    def load_optimizer_state(self, tensors: dict[str, Tensor]) -> None:
        if self._optimizer is not None:
            self._optimizer.load(tensors)


def run_backward(output: Tensor, gradient: Tensor | None = None) -> None:
    """`output.backward(gradient)`, by torch's engine alone: what torch does in Python around its engine takes as long as a small
    layer. gradient: None for a loss."""
    assert gradient is not None or output.ndim == 0, "a loss is one number"
    gradient = torch.ones_like(output) if gradient is None else gradient
    assert gradient.shape == output.shape, f"a gradient of {tuple(gradient.shape)} for {tuple(output.shape)}"
    _engine_run_backward((output,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def apply_gradient_on_client(head: Part, smashed: Tensor, gradient: Tensor) -> None:
    """Stage 2, iii: the gradient of the smashed data has returned to the client, which runs its backward pass and updates its
    head, Eq. (5). Nothing happens if no weight of the head is trained, or if the gradient is empty, since the tail detaches what
    it gets."""
    if smashed.requires_grad and (gradient.numel() or not smashed.numel()):
        run_backward(smashed, gradient)
        head.update()


def whole_step(model: Part, x: Tensor, y: Tensor, key: StepKey) -> Tensor:
    """One step of a party that holds the whole model: a client whose cut is num_units, or the server of CL. Returns the loss."""
    loss = model.goal(model.forward(x, key), y)
    run_backward(loss)
    model.update()
    return loss.detach()
