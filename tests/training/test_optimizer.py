"""The optimiser makes the steps of `torch.optim`, to the bit."""

import pytest
import torch
from torch import nn, optim

from hsfl.config import TrainConfig
from hsfl.models.state import Layout, read_state
from hsfl.models.units import SplitModel
from hsfl.training.optimizer import MOMENTS
from hsfl.training.step import Part, StepKey


def model(dtype: torch.dtype) -> SplitModel:
    torch.manual_seed(0)
    return SplitModel([nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)]).to(dtype)


def of_torch(parameters: list[nn.Parameter], train: TrainConfig) -> optim.Optimizer:
    if train.optimizer == "adam":
        return optim.Adam(parameters, lr=train.lr, weight_decay=train.weight_decay, fused=True)
    momentum = train.momentum if train.optimizer == "momentum" else 0.0
    return optim.SGD(parameters, lr=train.lr, momentum=momentum, weight_decay=train.weight_decay, fused=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("name", list(MOMENTS))
def test_steps_are_those_of_torch(name: str, weight_decay: float, dtype: torch.dtype) -> None:
    """Two clients, one after the other, four steps each; the second must not remember the first. In step 2 the first unit has
    no gradient, so its parameters stay and count one step less."""
    train = TrainConfig(optimizer=name, lr=0.05, weight_decay=weight_decay)
    start = model(dtype)
    part = Part(start, Layout.of(start), 0, 3, train)
    for client in range(2):
        plain = model(dtype).train()
        theirs = of_torch(list(plain.parameters()), train)
        part.begin(read_state(start), train.lr)
        for step in range(4):
            x = torch.randn(6, 7, dtype=dtype, generator=torch.Generator().manual_seed(10 * client + step))
            for net, update in (
                (plain, theirs.step),
                (lambda x: part.forward(x, StepKey(0, 0, 0, 0)), part.update),
            ):
                net(x).square().sum().backward()
                if step == 2:
                    units = plain.units if net is plain else part.units
                    units[0].weight.grad = units[0].bias.grad = None
                update()
            theirs.zero_grad()
        assert torch.equal(part.state.floats, read_state(plain).floats)
    assert not torch.equal(part.state.floats, read_state(start).floats)


@pytest.mark.parametrize("name", list(MOMENTS))
def test_a_memory_that_was_saved_goes_on(name: str) -> None:
    train = TrainConfig(optimizer=name, lr=0.05)
    start = model(torch.float32)
    once, twice = (Part(start, Layout.of(start), 0, 3, train) for _ in range(2))

    def steps(part: Part, *numbers: int) -> None:
        for number in numbers:
            x = torch.randn(6, 7, generator=torch.Generator().manual_seed(number))
            part.forward(x, StepKey(0, 0, 0, 0)).square().sum().backward()
            part.update()

    once.begin(read_state(start), train.lr)
    assert once.optimizer_state() == {}
    steps(once, 1, 2)
    middle, memory = once.state.clone(), once.optimizer_state()
    steps(once, 3)
    twice.begin(middle, train.lr)
    twice.load_optimizer_state(memory)
    steps(twice, 3)
    assert torch.equal(once.state.floats, twice.state.floats)


def test_two_parts_of_one_working_copy_train_apart() -> None:
    train = TrainConfig(optimizer="adam", lr=0.05)
    start = model(torch.float32)
    whole = Part(start, Layout.of(start), 0, 3, train)
    tail = whole.twin()
    whole.begin(read_state(start)[0:2], train.lr)
    tail.begin(read_state(start)[2:3], train.lr)
    x = torch.randn(6, 7, generator=torch.Generator().manual_seed(0))
    tail.forward(whole.forward(x, StepKey(0, 0, 0, 0)), StepKey(0, 0, 0, 0)).square().sum().backward()
    whole.update()
    assert torch.equal(tail.state.floats, read_state(start)[2:3].floats)
    tail.update()
    plain = model(torch.float32).train()
    theirs = of_torch(list(plain.parameters()), train)
    plain(x).square().sum().backward()
    theirs.step()
    assert torch.equal(whole.state.floats, read_state(plain)[0:2].floats)
    assert torch.equal(tail.state.floats, read_state(plain)[2:3].floats)
