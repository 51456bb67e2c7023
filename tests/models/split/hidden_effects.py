"""Modules that do more than their graph says, or in another order: each of them either splits right or is refused.

All take samples of four numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 4


class Base(nn.Module):
    """Three layers and two buffers; what happens after the first layer is the subclass's, and so is what it draws."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.register_buffer("var", torch.linspace(0.5, 2, WIDTH))
        self.register_buffer("table", torch.linspace(1, 3, 2 * WIDTH).view(2, WIDTH))

    def then(self, h: Tensor) -> Tensor:
        return self.b(h)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.then(self.a(x)).relu())


# --- the order of effects
class ScaleThenChange(Base):
    def then(self, h: Tensor) -> Tensor:
        scale = self.var.rsqrt()
        if self.training:
            self.var.mul_(0.9).add_(h.detach().var(0), alpha=0.1)
        return self.b(h) * scale


class ScaleOfView(Base):
    def then(self, h: Tensor) -> Tensor:
        scale = self.table.view(-1)[:WIDTH].rsqrt()
        if self.training:
            self.table.mul_(0.9)
        return self.b(h) * scale


class ChangeOfView(Base):
    def then(self, h: Tensor) -> Tensor:
        total = self.table.sum(0)
        if self.training:
            self.table.t()[1:].mul_(0.5)
        return self.b(h) * total


class SeveralStepsBefore(Base):
    def then(self, h: Tensor) -> Tensor:
        mean = self.table.sum(0)
        scale = (mean * 2).exp()
        if self.training:
            self.table[0] = 3.0
        return self.b(h).mul(scale)


class CloneThenLerp(Base):
    def then(self, h: Tensor) -> Tensor:
        old = self.var.clone()
        if self.training:
            self.var.lerp_(h.detach().mean(0), 0.3)
        return self.b(h - old)


class NormReadBefore(Base):
    """BatchNorm changes its statistics without saying so in its schema."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def then(self, h: Tensor) -> Tensor:
        scale = (self.norm.running_var + 0.5).rsqrt()
        return self.b(self.norm(h) * scale)


class ReadBetweenTwoChanges(Base):
    def then(self, h: Tensor) -> Tensor:
        if self.training:
            self.var.mul_(0.5)
        middle = self.var + 1
        if self.training:
            self.var.mul_(0.5)
        return self.b(h) * middle + self.var


class ReadFarBefore(Base):
    """The value of before the change is used by the last layer."""

    def forward(self, x: Tensor) -> Tensor:
        scale = self.var.rsqrt()
        h = self.a(x)
        if self.training:
            self.var.mul_(0.9)
        return self.c(self.b(h).relu() * scale)


class BufferIsValue(Base):
    """The buffer is the value, so that it changes with the value."""

    def then(self, h: Tensor) -> Tensor:
        mean = h.detach().mean(0)
        if self.training:
            self.var = mean
            mean.add_(1)
        return self.b(h) + mean


class BufferIsBehindView(Base):
    def then(self, h: Tensor) -> Tensor:
        mean = h.detach().mean(0)
        rows = mean.view(2, 2)
        if self.training:
            self.var = mean
            rows[0].mul_(3)
        return self.b(h) + rows.view(-1)


class OldViewAfterNewValue(Base):
    def then(self, h: Tensor) -> Tensor:
        old = self.var.view(2, 2)
        if self.training:
            self.var = h.detach().mean(0)
        return self.b(h) + old.reshape(-1) + self.var


class ValueAfterNewValue(Base):
    def then(self, h: Tensor) -> Tensor:
        old = self.var * 2
        if self.training:
            self.var = h.detach().mean(0)
        return self.b(h) + old


class BuffersExchanged(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("other", torch.full((WIDTH,), -1.0))

    def then(self, h: Tensor) -> Tensor:
        if self.training:
            self.var, self.other = self.other, self.var
        return self.b(h) + self.var


class BufferWithGradient(Base):
    """The buffer keeps the graph of its step, so that the second step fails."""

    def then(self, h: Tensor) -> Tensor:
        self.var = 0.9 * self.var + 0.1 * h.mean(0)
        return self.b(h) + self.var


# --- gradients
class Doubles(torch.autograd.Function):
    """Its backward is not the derivative of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * gradient


doubles = Doubles.apply


class OtherName(Base):
    def then(self, h: Tensor) -> Tensor:
        return self.b(doubles(h))


class InferenceInside(Base):
    def then(self, h: Tensor) -> Tensor:
        with torch.inference_mode():
            gate = h.sigmoid()
        return self.b(h * gate)


class InferenceBetween(Base):
    def then(self, h: Tensor) -> Tensor:
        with torch.inference_mode():
            gate = h.mean(0)
        return self.b(h) + gate.sum().item() * 0 + gate.clone().detach()


class HookOnTensor(Base):
    def then(self, h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        return self.b(h)


class HookOnParameter(Base):
    def __init__(self) -> None:
        super().__init__()
        self.b.weight.register_hook(lambda gradient: gradient * 2)


class HookAfterGradient(Base):
    def __init__(self) -> None:
        super().__init__()
        self.b.weight.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.mul_(2))


class DetachBetween(Base):
    def then(self, h: Tensor) -> Tensor:
        return self.b(h.detach())


class DetachInPlace(Base):
    def then(self, h: Tensor) -> Tensor:
        h = h * 2
        h.detach_()
        return self.b(h)


class DetachAtEnd(Base):
    """Nothing but the last layer learns."""

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x)).relu().detach())


class GradientInForward(Base):
    def then(self, h: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.b(h)
        (slope,) = torch.autograd.grad(self.b(h).sum(), h, create_graph=True)
        return self.b(h) + slope


class LooksForGradients(Base):
    def then(self, h: Tensor) -> Tensor:
        return self.b(h) if torch.is_grad_enabled() else self.b(h) * 2


class DataOfValue(Base):
    """`.data` goes past autograd."""

    def then(self, h: Tensor) -> Tensor:
        h = h * 1
        h.data.mul_(2)
        return self.b(h).sigmoid()


class CheckpointWithDropout(Base):
    def then(self, h: Tensor) -> Tensor:
        def body(h: Tensor) -> Tensor:
            return F.dropout(self.b(h), 0.5, self.training)

        return torch.utils.checkpoint.checkpoint(body, h, use_reentrant=False)


class TogglesGradients(Base):
    """What is trained depends on the mode."""

    def then(self, h: Tensor) -> Tensor:
        self.b.weight.requires_grad_(not self.training)
        return self.b(h)


# --- what the state dict does not hold
class KeepsTensorsInAList(Base):
    def __init__(self) -> None:
        super().__init__()
        self.scales = [torch.ones(WIDTH)]

    def then(self, h: Tensor) -> Tensor:
        if self.training:
            self.scales[0].mul_(1.5)
        return self.b(h) * self.scales[0]


class WritesDownNumbers(Base):
    """Not a tensor that it keeps: the numbers are new in every pass."""

    def then(self, h: Tensor) -> Tensor:
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
        scale.mul_(2)
        return self.b(h) * scale


class MakesAWeight(Base):
    """Its first forward pass makes a parameter."""

    def then(self, h: Tensor) -> Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Parameter(torch.ones(WIDTH))
        return self.b(h) * self.late


class CountsItsCalls(Base):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def then(self, h: Tensor) -> Tensor:
        self.calls += 1
        return self.b(h) * self.calls


class RemembersTheBatch(Base):
    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def then(self, h: Tensor) -> Tensor:
        before = 0 if self.last is None else self.last
        self.last = h.detach().mean(0)
        return self.b(h) + before


class ClampsItsWeight(Base):
    def then(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            self.b.weight.clamp_(-0.1, 0.1)
        return self.b(h)


class ScalesDataOfWeight(Base):
    def then(self, h: Tensor) -> Tensor:
        self.b.weight.data.mul_(0.5)
        return self.b(h)


class CountsInEvaluation(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0))

    def then(self, h: Tensor) -> Tensor:
        self.count += 1
        return self.b(h) * self.count


class KeepsAList(Base):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, ...]] = []

    def then(self, h: Tensor) -> Tensor:
        self.seen.append(tuple(h.shape[1:]))
        return self.b(h)


class ChangesItsSample(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x.mul_(2))).relu())


# --- draws
class DropsWeights(Base):
    def then(self, h: Tensor) -> Tensor:
        return F.linear(h, F.dropout(self.b.weight, 0.5, self.training), self.b.bias)


class ShufflesTheBatch(Base):
    def then(self, h: Tensor) -> Tensor:
        return self.b(h + h[torch.randperm(h.shape[0])]) if self.training else self.b(h)


class NoiseBetweenDropouts(Base):
    def then(self, h: Tensor) -> Tensor:
        h = F.dropout(h, 0.2, self.training)
        h = h + torch.randn_like(h) if self.training else h
        return F.dropout(self.b(h), 0.2, self.training)


class SpreadsOverTheBatch(Base):
    def then(self, h: Tensor) -> Tensor:
        return self.b(h - h.mean(0)) / (h.std(0) + 1)


class HookOnForward(Base):
    def __init__(self) -> None:
        super().__init__()
        self.b.register_forward_hook(lambda part, given, answer: answer * 2)


# --- operations of one's own
@torch.library.custom_op("hsfl_tests::noisy", mutates_args=())
def noisy(x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


@torch.library.custom_op("hsfl_tests::dice", mutates_args=())
def dice(x: Tensor) -> Tensor:
    return x + float(np.random.rand())  # noqa: NPY002


GENERATOR = torch.Generator()


@torch.library.custom_op("hsfl_tests::own_dice", mutates_args=())
def own_dice(x: Tensor) -> Tensor:
    return x + torch.rand(x.shape[-1], generator=GENERATOR)


@torch.library.custom_op("hsfl_tests::secretly_adds", mutates_args=())
def secretly_adds(x: Tensor, total: Tensor) -> Tensor:
    total.add_(1)
    return x * 2


@torch.library.custom_op("hsfl_tests::openly_adds", mutates_args=("total",))
def openly_adds(x: Tensor, total: Tensor) -> Tensor:
    total.add_(1)
    return x * 2


@torch.library.custom_op("hsfl_tests::tripled", mutates_args=())
def tripled(x: Tensor) -> Tensor:
    return x * 3


def _three_times(ctx: Any, gradient: Tensor) -> Tensor:
    return 3 * gradient


for operation in (noisy, dice, own_dice, tripled):
    operation.register_fake(torch.empty_like)
    operation.register_autograd(_three_times if operation is tripled else lambda ctx, gradient: gradient)
for operation in (secretly_adds, openly_adds):
    operation.register_fake(lambda x, total: torch.empty_like(x))
secretly_adds.register_autograd(lambda ctx, gradient: (2 * gradient, None))


def with_operation(operation: Callable[..., Tensor], with_buffer: bool = False) -> type[Base]:
    class Operates(Base):
        def then(self, h: Tensor) -> Tensor:
            if not self.training:
                return self.b(h)
            return self.b(operation(h, self.var) if with_buffer else operation(h))

    return Operates


class SecretThenRead(Base):
    """A later unit reads the buffer of which the graph does not know that it changes."""

    def forward(self, x: Tensor) -> Tensor:
        h = secretly_adds(self.a(x), self.var) if self.training else self.a(x)
        return self.c(self.b(h).relu() + self.var)


class OpenlyAdds(Base):
    def then(self, h: Tensor) -> Tensor:
        return self.b(h) + openly_adds(h.detach(), self.var) if self.training else self.b(h)


MODULES: dict[str, Callable[[], nn.Module]] = {
    **{
        kind.__name__: kind
        for kind in list(globals().values())
        if isinstance(kind, type) and issubclass(kind, Base) and kind is not Base
    },
    "an operation that draws": with_operation(noisy),
    "an operation that draws from NumPy": with_operation(dice),
    "an operation with a generator of its own": with_operation(own_dice),
    "an operation that changes a buffer in secret": with_operation(secretly_adds, with_buffer=True),
    "an operation with a backward": with_operation(tripled),
}
