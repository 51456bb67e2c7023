"""The link is the one door: whatever comes out of it changed changes the model, on every route that carries bytes."""

import dataclasses

import pytest
import torch
from torch import Tensor

from hsfl.framework_table import METHODS
from hsfl.frameworks import find_framework
from hsfl.models.state import UnitState
from hsfl.training.aggregate import PartialSum
from hsfl.training.link import Link
from tests.laws.bench import in_clusters, make_task

OPTIONS = {"cpsl": {"cpsl": {"cut": "cluster"}}}
RAW = {("cl", "client_main_up")}  # raw data, uploaded once before the first round and counted then


def final(framework: str) -> tuple[Tensor, dict[str, int]]:
    """All numbers of the model after two rounds, and the bytes of the second."""
    task = make_task([2, 3, 4], [4, 8, 6], options=OPTIONS.get(framework))
    task = in_clusters(task, (1, 2, 0)) if framework == "cpsl" else task
    algorithm = find_framework(framework)(task)
    state = algorithm.init()
    for index in range(2):
        state, result = algorithm.round(state, [0, 1, 2], index)
    return torch.cat([model.floats for model in algorithm.models(state)]), vars(result.bytes)


def halved(load: object) -> object:
    if isinstance(load, Tensor):
        return load * 0.5
    if isinstance(load, UnitState):
        copy = load.clone()
        copy.floats.mul_(0.5)
        return copy
    assert isinstance(load, PartialSum)
    copy = dataclasses.replace(load, total=load.total.clone())
    copy.total.floats.floor_divide_(2)
    return copy


ROUTES = ["client_main_up", "client_main_down", "client_edge_up", "client_edge_down", "edge_main"]


@pytest.mark.parametrize("framework", [name for name, row in METHODS.items() if row.built_in])
def test_what_comes_out_changed_changes_the_model(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, sent = final(framework)
    arrive = Link.arrive
    for route in ROUTES:
        asked = []

        def changed(self: Link, name: str, load: object, route: str = route, asked: list = asked) -> object:
            asked.append(name)
            return halved(load) if name == route else arrive(self, name, load)

        with monkeypatch.context() as patch:
            patch.setattr(Link, "arrive", changed)
            other, _ = final(framework)
        if sent[route] > 0:
            assert not torch.equal(plain, other), f"{framework}: what arrives on {route} is not used"
        elif (framework, route) not in RAW:
            assert torch.equal(plain, other), f"{framework}: nothing is counted on {route}, but something arrives there"
