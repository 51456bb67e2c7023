"""The optimiser of a party: torch's fused kernels, called directly.

`torch.optim` gives every client a new memory, tensor by tensor, and for small models takes longer around the kernel than in it.
Here the memory is a few flat vectors that are zeroed when a client begins. The numbers are those of `torch.optim`, to the bit.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from hsfl.config import TrainConfig

MOMENTS = {"sgd": (), "momentum": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq")}  # as torch calls them
BETAS, EPS = (0.9, 0.999), 1e-8  # of Adam


class Memory:
    """What the optimiser remembers of some parameters: a flat vector for each kind of moment, made when it is first needed."""

    def __init__(self, parameters: Sequence[nn.Parameter], kinds: Sequence[str]) -> None:
        self.parameters, self.kinds = list(parameters), tuple(kinds)
        self.starts = list(accumulate((parameter.numel() for parameter in parameters), initial=0))
        self.vectors: list[Tensor] | None = None

    def zeroed_vectors(self) -> list[Tensor]:
        """The vectors, made of zeros at the first call."""
        if self.vectors is None:
            like = self.parameters[0]
            self.vectors = [torch.zeros(self.starts[-1], dtype=like.dtype, device=like.device) for _ in self.kinds]
        return self.vectors

    def views(self, first: int, last: int) -> list[list[Tensor]]:
        """For each kind of moment: views of the parameters `[first, last)`, in their shapes."""
        return [
            [vector[self.starts[i] : self.starts[i + 1]].view_as(self.parameters[i]) for i in range(first, last)]
            for vector in self.zeroed_vectors()
        ]

    def clear(self, first: int, last: int) -> None:
        for vector in self.zeroed_vectors():
            vector[self.starts[first] : self.starts[last]].zero_()


class Optimizer:
    """Adam, or SGD with or without momentum, of the parameters `[first, last)` of a memory."""

    def __init__(self, memory: Memory, first: int, last: int, train: TrainConfig) -> None:
        self.memory, self.first, self.last, self.train = memory, first, last, train
        self.parameters: list[Tensor] = [*memory.parameters[first:last]]
        self.moments = memory.views(first, last)
        self.counts = torch.zeros(last - first, device=self.parameters[0].device)  # steps of each parameter
        self.steps = list(self.counts)
        self.lr, self.has_stepped = train.lr, False

    def forget(self) -> None:
        """Remember nothing from now on."""
        self.memory.clear(self.first, self.last)
        self.counts.zero_()
        self.has_stepped = False

    @torch.no_grad()
    def step(self) -> None:
        """One step on the gradients that backward left, which are then cleared. A parameter without a gradient stays."""
        self.has_stepped = True
        grads = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if len(grads) == len(self.parameters):
            self.counts.add_(1)
            self._step(self.parameters, grads, self.moments, self.steps)
        elif grads:
            used = [i for i, parameter in enumerate(self.parameters) if parameter.grad is not None]
            moments, steps = [[kind[i] for i in used] for kind in self.moments], [self.steps[i] for i in used]
            torch._foreach_add_(steps, 1)
            self._step([self.parameters[i] for i in used], grads, moments, steps)
        for parameter in self.parameters:
            parameter.grad = None

    def _step(
        self, parameters: list[Tensor], grads: list[Tensor], moments: list[list[Tensor]], steps: list[Tensor]
    ) -> None:
        train = self.train
        if train.optimizer == "adam":
            first, second = moments
            torch._fused_adam_(
                parameters, grads, first, second, [], steps, lr=self.lr, beta1=BETAS[0], beta2=BETAS[1],
                weight_decay=train.weight_decay, eps=EPS, amsgrad=False, maximize=False,
            )  # fmt: skip
        else:
            torch._fused_sgd_(
                parameters, grads, moments[0] if moments else [], weight_decay=train.weight_decay,
                momentum=train.momentum if moments else 0.0, lr=self.lr, dampening=0.0, nesterov=False, maximize=False,
                is_first_step=False,
            )  # fmt: skip

    def state(self) -> dict[str, Tensor]:
        """A copy of the memory as named tensors; empty before the first step."""
        kinds = dict(zip(self.memory.kinds, self.moments)) if self.has_stepped else {}
        if "exp_avg" in kinds:
            kinds = {"step": self.steps} | kinds
        return {f"{i}.{kind}": views[i].clone() for i in range(self.last - self.first) for kind, views in kinds.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over a memory that `state` gave."""
        self.forget()
        kinds = {"step": self.steps} | dict(zip(self.memory.kinds, self.moments))
        for key, value in tensors.items():
            index, _, kind = key.partition(".")
            kinds[kind][int(index)].copy_(value)
            self.has_stepped = True
