"""Modules that do unusual things compute the same when they are split: regions without gradients, views of buffers, odd names, memory
in another order, inputs by name; and what a graph would forget is refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hsfl
from hsfl.models.split.codegen import _memory_order, laid_out
from tests.models.whole import distance
from tests.naming import raises

X = torch.zeros(2, 4)


class Three(nn.Module):
    """Three layers; what happens after the first is the subclass's."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("kept", torch.ones(3, 4))

    def then(self, h: Tensor) -> Tensor:
        return self.b(h)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.then(self.a(x)))


class InPlaceWithoutGradient(Three):
    """The value changes, and its gradient stays."""

    def then(self, h: Tensor) -> Tensor:
        h = h * 1
        with torch.no_grad():
            h = h.mul_(2)
        return self.b(h)


class ViewOfBuffer(Three):
    """A buffer is changed through a view of it, and read by a later layer."""

    def then(self, h: Tensor) -> Tensor:
        first = self.kept.view(-1)[:4]
        if self.training:
            first.add_(1)
        return self.b(h) + self.kept[0]


class ReadInEvaluation(Three):
    """A statistic that the first layer changes in training, and the last one reads in evaluation alone."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if self.training:
            self.kept[0] = h.detach().mean(0)
            return self.c(self.b(h))
        return self.c(self.b(h)) + self.kept[0]


class Names(nn.Module):
    """Parts with names that a unit has for something else, or that are words of Python."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("held", "draws", "parts", "x", "class", "in", "my layer"):
            self.add_module(name, nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        for part in self._modules.values():
            x = part(x).relu()
        return x


class Attends(nn.Module):
    """What crosses before the last projection has its samples in the second dimension, and `view` follows."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.m = nn.Linear(4, 12), nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)
        self.c = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).view(-1, 3, 4)
        return self.c(self.m(h, h, h)[0].flatten(1))


class ChannelsLast(nn.Module):
    """What crosses has the channels last in memory, and `view` follows."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.m, self.c = nn.Linear(4, 36), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).view(-1, 9, 4)
        h = self.m(h).permute(0, 2, 1).relu()
        return self.c(h.permute(0, 2, 1).view(-1, 4)).view(-1, 27)


class TimeFirst(nn.Module):
    """Time in front, and `view` over time and batch: torch cannot show that it fits every batch, though it does."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 12), nn.Linear(4, 4), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).view(-1, 3, 4).transpose(0, 1).contiguous()
        h = self.b(h.relu()).relu()
        time, batch, width = h.shape
        h = h.view(time * batch, width).view(time, batch, width)
        return self.c(h.transpose(0, 1).flatten(1))


def spectral() -> nn.Module:
    module = Three()
    module.b = nn.utils.parametrizations.spectral_norm(module.b)
    return module


SAME = {
    "spectral norm": spectral,
    "in place without gradient": InPlaceWithoutGradient,
    "a view of a buffer": ViewOfBuffer,
    "a statistic read in evaluation": ReadInEvaluation,
    "names": Names,
    "attention": Attends,
    "channels last": ChannelsLast,
    "time first": TimeFirst,
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME.keys())
def test_odd_modules_compute_the_same(make):
    torch.manual_seed(0)
    module = make()
    model = hsfl.split(module, X)
    assert distance(module, model, [torch.randn(3, 4)]) < 1e-6
    assert torch.allclose(model.eval()(X[:1]), module.eval()(X[:1]), atol=1e-6)
    assert model.num_units > 1


def test_memory_keeps_its_order():
    x = torch.arange(24.0).view(2, 3, 4).permute(0, 2, 1)
    order = _memory_order(x.stride())
    assert order == (0, 2, 1)
    again = laid_out(x.clone(memory_format=torch.contiguous_format), order)
    assert (again.stride(), again.tolist()) == (x.stride(), x.tolist())
    assert laid_out(again, order).data_ptr() == again.data_ptr()  # nothing moves where the order is right
    assert _memory_order((0, 1)) == (0, 1)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.a, self.b = nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, tokens: Tensor, ids: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        h = self.a(self.e(tokens))
        h = h if ids is None else h + ids[..., None]
        h = h if mask is None else h * mask[..., None]
        return self.b(h).sum(1)


def test_inputs_of_a_mapping_go_to_the_module_by_name():
    module, tokens = Masked().eval(), torch.randint(0, 10, (3, 5))
    mask = (torch.arange(5) < torch.tensor([[2], [5], [3]])).float()
    model = hsfl.split(module, {"tokens": tokens[:2], "mask": mask[:2]}).eval()
    expected = module(tokens, mask=mask)
    assert torch.equal(model(tokens, mask), expected)
    assert torch.equal(model(tokens, mask=mask), expected)
    assert torch.equal(model(mask=mask, tokens=tokens), expected)
    with raises(hsfl.InputError, "tokens, mask", "tokens, ids"):
        model(tokens=tokens, ids=mask)


class Keeps(Three):
    def then(self, h: Tensor) -> Tensor:
        self.last = h
        return self.b(h)


def test_what_a_forward_keeps_is_left_as_it_was():
    module = Keeps()
    module.last = None
    hsfl.split(module, X)
    assert module.last is None


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Reverses(Three):
    def then(self, h: Tensor) -> Tensor:
        return Backward.apply(h)


class Recomputes(Three):
    def then(self, h: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(self.b, h, use_reentrant=True)


class Branches(Three):
    def then(self, h: Tensor) -> Tensor:
        return torch.cond(h.sum() > 0, lambda h: h.relu(), lambda h: h.tanh(), (h,))


class Forgets(Three):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def then(self, h: Tensor) -> Tensor:
        self.mean += h.detach().mean(0)
        return h + self.mean


class Draws(Three):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def then(self, h: Tensor) -> Tensor:
        return h + torch.randn(4, generator=self.generator) if self.training else h


class Maps(Three):
    def then(self, h: Tensor) -> Tensor:
        return torch.vmap(lambda row: row * 2)(h)


class Halves(Three):
    def then(self, h: Tensor) -> Tensor:
        half = h.shape[0] // 2
        return F.relu(torch.cat([h[:half] * 2, h[half:]]))


def hooked() -> nn.Module:
    module = Three()
    module.b.register_full_backward_hook(lambda part, given, got: None)
    return module


REFUSED = {
    "a backward of its own": (Reverses, ("calls Backward", "code of its own")),
    "reentrant checkpoints": (Recomputes, ("calls CheckpointFunction", "use_reentrant=False")),
    "a hook on the backward pass": (hooked, ("part 'b' (Linear)", "hook on its backward pass")),
    "torch.cond": (Branches, ("uses torch.cond", "torch.where")),
    "a state outside of the state dict": (Forgets, ("changes mean", "not in its state dict")),
    "a generator of its own": (Draws, ("uses a Generator",)),
    "what we do not know": (Maps, ("its graph", "do not know")),
    "a size computed from the batch's": (Halves, ("batches of every size",)),
}


@pytest.mark.parametrize(("make", "parts"), REFUSED.values(), ids=REFUSED.keys())
def test_what_a_graph_would_forget_is_refused(make, parts):
    apply = torch.autograd.Function.apply
    with raises(hsfl.InputError, *parts) as caught:
        hsfl.split(make(), X)
    assert "\n" not in str(caught.value)
    assert torch.autograd.Function.apply == apply  # as it was


def test_one_name_after_which_to_cut():
    assert hsfl.split(Three(), X, at="b").num_units == 2
    with pytest.raises(hsfl.InputError, match="most_tensors is '2'"):
        hsfl.split(Three(), X, most_tensors="2")
