"""Learning rates, dropout masks, and parts that have nothing to train or begin in place."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from hsfl.config import TrainConfig
from hsfl.framework_table import METHODS
from hsfl.models.state import Layout, read_state
from hsfl.models.units import SplitModel
from hsfl.training.step import Part, StepKey, learning_rate, run_backward
from tests.laws.bench import NUM_CLASSES, SHAPE, assert_same, make_task, train
from tests.naming import raises

PIXELS = SHAPE[1] * SHAPE[2]


def test_cosine_by_hand() -> None:
    """cos 0, pi/6, pi/3, pi/2, 2 pi/3, 5 pi/6: from the whole rate down, zero only after the last round."""
    train = TrainConfig(lr=0.2, schedule="cosine", rounds=6)
    half_root = 3**0.5 / 2
    expected = [0.2, 0.1 * (1 + half_root), 0.15, 0.1, 0.05, 0.1 * (1 - half_root)]
    assert [learning_rate(train, r) for r in range(6)] == pytest.approx(expected, rel=1e-12)


def test_step_by_hand() -> None:
    train = TrainConfig(lr=0.2, schedule="step", step_rounds=2, step_factor=0.1)
    expected = [0.2, 0.2, 0.02, 0.02, 0.002, 0.002, 0.0002]
    assert [learning_rate(train, r) for r in range(7)] == pytest.approx(expected, rel=1e-12)


def test_constant() -> None:
    assert [learning_rate(TrainConfig(lr=0.2, rounds=3), r) for r in range(3)] == [0.2] * 3


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_part_steps_with_the_rate_it_begins_with(optimizer: str) -> None:
    """The first step of SGD is lr times the gradient; that of Adam lr times its sign."""
    model = SplitModel([nn.Linear(3, 2, bias=False)]).double()
    part = Part(model, Layout.of(model), 0, 1, TrainConfig(optimizer=optimizer, lr=0.5))
    x = torch.tensor([[1.0, 2.0, -3.0]], dtype=torch.float64)
    for lr in (0.3, 0.01):
        part.begin(read_state(model), lr)
        part.forward(x, StepKey(0, 0, 0, 0)).sum().backward()
        part.update()
        moved = (read_state(model).floats - part.state.floats).view(2, 3)
        expected = lr * (x.sign() if optimizer == "adam" else x).expand(2, 3)
        torch.testing.assert_close(moved, expected, rtol=1e-6, atol=0)


# dropout


class Masks(nn.Dropout):
    """Dropout that writes its masks down."""

    seen: list[bytes] = []  # noqa: RUF012, shared by all copies on purpose

    def forward(self, x: Tensor) -> Tensor:
        mask = super().forward(torch.ones_like(x))
        if self.training:
            Masks.seen.append(mask.numpy().tobytes())
        return x * mask


def with_masks() -> SplitModel:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, 16), nn.Tanh(), Masks(0.5))
    return SplitModel([first, Masks(0.5), nn.Sequential(nn.Linear(16, NUM_CLASSES))])


def masks_of(framework: str, cuts: list[int]) -> list[bytes]:
    task = make_task(cuts, [12, 12, 12], model=with_masks())  # batches of 4, so that masks have one shape
    Masks.seen.clear()
    torch.manual_seed(len(framework) + sum(cuts))  # what was drawn before must not matter
    train(task, framework, [[0, 1, 2]] * 2)
    return sorted(Masks.seen)


def test_masks_differ_between_clients_rounds_steps_and_units() -> None:
    masks = masks_of("fl", [3, 3, 3])
    assert len(set(masks)) == len(masks) == 3 * 2 * 3 * 2


@pytest.mark.parametrize("framework", ["hsfl", "splitfed_v1", "fsl", "splitfed_v2", "sl"])
def test_masks_are_the_same_whichever_framework_draws_them(framework: str) -> None:
    expected = masks_of("fl", [3, 3, 3])
    for cuts in ([1, 2, 2], [0, 1, 3], [2, 2, 2]):
        assert masks_of(framework, cuts) == expected


@pytest.mark.parametrize("framework", ["psl", "cpsl", "locfedmix_sl"])
def test_masks_of_heads_are_the_same_in_joint_steps_too(framework: str) -> None:
    assert masks_of(framework, [2, 2, 2]) == masks_of("fl", [3, 3, 3])


# parts with nothing to train, and tails that begin in place


def odd_model(cut: int) -> SplitModel:
    """Cut 1: a head without parameters. 2: a tail that writes over what Tanh needs. 4: both for the tail."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(PIXELS, 8), nn.Tanh())
    classifier = nn.Sequential(nn.Linear(8, NUM_CLASSES), nn.Tanh())
    return SplitModel([nn.Flatten(), first, nn.ReLU(cut == 2), classifier, nn.LeakyReLU(0.3, cut == 4)])


@pytest.mark.parametrize("cut", [1, 2, 4])
@pytest.mark.parametrize("framework", [name for name in METHODS if name not in ("cl", "fl")])
def test_parts_without_parameters_and_tails_that_begin_in_place_train(framework: str, cut: int) -> None:
    """One client and plain SGD: a bare loop over the model that writes over nothing."""
    options = {"locfedmix_sl": {"reconstruction": 0.0}}
    task = make_task([cut], [9], model=odd_model(cut), lr=0.2, options=options)
    whole, _, _ = train(task, framework, [[0], [0]])
    model = odd_model(cut=0).double()
    sgd = optim.SGD(model.parameters(), 0.2)
    for round_index in range(2):
        for x, y, _ in task.data(0).batches(round_index):
            sgd.zero_grad()
            F.cross_entropy(model(x), y).backward()
            sgd.step()
    assert_same(whole, read_state(model), 1e-9)
    assert (whole.floats - task.initial.floats).abs().max() > 1e-3


class Theirs(nn.Identity):
    """A module of a stranger, which might do something else with the next batch."""


@pytest.mark.parametrize(
    ("units", "keeps"),
    [
        ([nn.Linear(4, 4), nn.ReLU(inplace=True)], True),
        ([nn.ReLU(inplace=True), nn.Linear(4, 4)], False),
        ([nn.Flatten(0), nn.ReLU(inplace=True)], False),  # a view, and then in place: the same memory
        ([nn.Flatten(0), nn.ReLU()], True),
        ([Theirs(), nn.Linear(4, 4)], False),
    ],
)
def test_what_arrives_is_copied_until_it_is_known_that_nothing_writes_over_it(
    units: list[nn.Module], keeps: bool
) -> None:
    model = SplitModel(units)
    part = Part(model, Layout.of(model), 0, 2, TrainConfig(optimizer="sgd"))
    part.begin(read_state(model), 0.1)
    x = torch.randn(3, 4).requires_grad_(True)
    before = x.detach().clone()
    gradients = []
    for step in range(3):
        x.grad = None
        part.forward(x, StepKey(0, 0, 0, step)).sum().backward()
        gradients.append(x.grad)
        assert torch.equal(x.detach(), before)
    assert ((0, 2) in part._input_safe) == keeps
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)


def test_backward_by_the_engine_alone_is_torchs_backward() -> None:
    net, x, gradient = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), torch.randn(5, 4), torch.randn(5, 2)

    def gradients(go: Callable[[Tensor], None]) -> list[Tensor]:
        net.zero_grad()
        go(net(x))
        return [parameter.grad for parameter in net.parameters() if parameter.grad is not None]

    pairs = [
        (lambda out: out.backward(gradient), lambda out: run_backward(out, gradient)),
        (lambda out: out.sum().backward(), lambda out: run_backward(out.sum())),
    ]
    for theirs, ours in pairs:
        assert all(map(torch.equal, gradients(theirs), gradients(ours)))
    with raises(AssertionError, "(2, 5)", "(5, 2)"):
        run_backward(net(x), gradient.T)
