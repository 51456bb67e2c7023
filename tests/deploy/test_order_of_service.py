"""Who is next on a running main server: an order of service changes seconds, and no bit of the model."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hsfl.deploy import compute_queue
from hsfl.deploy.compute_queue import LongestFirst
from hsfl.deploy.settings import MainSettings, run_config
from hsfl.errors import InputError
from tests.deploy.fleet import RUN, changed, simulated
from tests.deploy.inside import Inside
from tests.naming import raises


class Watched(LongestFirst[Any]):
    """Notes who came with which way to go, and who was served while which ways waited."""

    came: list[tuple[int, float]] = []  # noqa: RUF012
    waiting: list[float] = []  # noqa: RUF012

    def push(self, client: Any, cost: float, weight: float, item: Any, way_s: float = float("inf")) -> None:
        if client is not None:
            self.came.append((client, way_s))
        super().push(client, cost, weight, (way_s, item), way_s)
        self.waiting.append(way_s)

    def pop(self) -> Any:
        way_s, item = super().pop()
        assert way_s == max(self.waiting)
        self.waiting.remove(way_s)
        return item


def test_the_longest_way_to_go_is_served_first_and_the_model_is_the_simulations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(compute_queue.QUEUES, "longest", Watched)
    monkeypatch.setattr(Watched, "came", [])
    monkeypatch.setattr(Watched, "waiting", [])
    inside = Inside(tmp_path, changed(RUN, network={"service": "longest"}, train={"rounds": 1}))
    assert inside.go().status == "finished"
    by_client = {client: [way_s for who, way_s in Watched.came if who == client] for client, _ in Watched.came}
    assert by_client.keys() == {0, 1, 2}  # the last client holds all units
    for ways_s in by_client.values():
        assert all(before > after > 0 for before, after in pairwise(ways_s))
        assert ways_s[0] < float("inf")
    run = changed(RUN, data=inside.run["data"], train={"rounds": 1})
    wanted, model = simulated(run, [[0, 1, 2, 3]]).named(), load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(model[name], tensor) for name, tensor in wanted.items())


def test_an_order_that_shares_leave_no_room_for_is_refused() -> None:
    run = changed(RUN, data={"name": "digits"}, network={"service": "longest"})
    assert run_config(MainSettings(run=run)).network.service == "longest"
    with raises(InputError, "run.network.service", "'longest'", "run.network.server", "'shares'"):
        run_config(MainSettings(run=changed(run, network={"server": "shares"})))
