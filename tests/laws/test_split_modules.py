"""The laws of training hold for a module that was split by its graph: HSFL = SplitFed V1 = FSL = FL per round."""

import copy
import math
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import hsfl
from hsfl.models.split.codegen import GraphUnit
from hsfl.models.units import SplitModel
from tests.laws.bench import NUM_CLASSES, SHAPE, assert_same, in_clusters, make_task, train, with_cuts

COUNTS = [9, 3, 16, 5, 2]
SCHEDULE = [[0, 1, 3, 4], [0, 1, 2, 3, 4]]  # the client with the deepest cut is dropped in the first round


class Net(nn.Module):
    """BatchNorm, dropout, a skip and ReLU in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 6, 3, 2, 1), nn.BatchNorm2d(6)
        self.left, self.right = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)
        self.drop, self.hidden, self.head = nn.Dropout(0.3), nn.Linear(6 * 9, 8), nn.Linear(8, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu_()
        x = self.drop(self.left(x).relu() + self.right(x))
        x = nn.functional.max_pool2d(x, 2).flatten(1)
        return self.head(self.drop(self.hidden(x).relu()))


@cache
def made() -> SplitModel:
    torch.manual_seed(5)
    return hsfl.split(Net(), torch.zeros(2, *SHAPE))


def split_net() -> SplitModel:
    return copy.deepcopy(made())


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adam", marks=pytest.mark.slow)])
def test_one_algorithm_whatever_the_cuts(optimizer: str) -> None:
    model = split_net()
    assert model.unit_names == ("stem", "left", "hidden", "head")
    task = make_task([2, 3, 4, 1, 2], COUNTS, model=model, optimizer=optimizer, lr=0.01)
    tolerance = 1e-7 if optimizer == "adam" else 1e-11
    expected, losses, _ = train(task, "fl", SCHEDULE)
    for framework in ("hsfl", "splitfed_v1", "fsl"):
        whole, framework_losses, _ = train(task, framework, SCHEDULE)
        assert_same(whole, expected, tolerance)
        assert framework_losses == pytest.approx(losses, rel=1e-8)
    assert_same(train(with_cuts(task, [0, 4, 3, 2, 1]), "hsfl", SCHEDULE)[0], expected, tolerance)


class Detached(nn.Module):
    """Nothing but the last layer learns: of the others the whole model has no gradients, so that not even weight decay moves them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(math.prod(SHAPE), 6), nn.Linear(6, 6), nn.Linear(6, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x.flatten(1)).relu()).relu().detach())


def test_a_detach_between_units_stops_the_gradient_at_every_cut() -> None:
    torch.manual_seed(5)
    model = hsfl.split(Detached(), torch.zeros(2, *SHAPE))
    task = make_task([1, 2, 3, 1, 2], COUNTS, model=model, weight_decay=0.1, momentum=0.9)
    expected, losses, _ = train(task, "fl", SCHEDULE)
    for framework in ("hsfl", "splitfed_v1"):
        whole, framework_losses, _ = train(task, framework, SCHEDULE)
        assert_same(whole, expected, 1e-11)
        assert framework_losses == pytest.approx(losses, rel=1e-8)
    assert torch.equal(whole.named()["first.weight"].float(), model.first.weight)


def test_dropout_is_drawn_by_unit() -> None:
    """Units draw where their graph does, and only there; the classifier draws nothing."""
    assert [GraphUnit.draws(unit) for unit in split_net().units] == [False, True, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["sl", "psl", "splitfed_v2", "cpsl", "locfedmix_sl"])
def test_every_other_framework_trains_it(framework: str) -> None:
    task = make_task([2, 2], [8, 8], model=split_net())
    if framework == "cpsl":
        task = in_clusters(task, (0, 1))
    _, losses, _ = train(task, framework, [[0, 1], [0, 1]])
    assert losses[1] is not None
    assert losses[1] < losses[0]  # type: ignore[operator]
