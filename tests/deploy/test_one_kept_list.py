"""One kept list: from the moment the servers agree on it, the sums and the record hold the same clients, whoever goes meanwhile."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hsfl.deploy.main.edge_link import EdgeLink, EdgeLost
from hsfl.deploy.main.handlers import SharedState
from hsfl.deploy.main.main_server import MainProcess
from tests.deploy.fleet import RUN, changed, simulated
from tests.deploy.inside import Inside

ONE_ROUND = changed(RUN, train={"rounds": 1, "tau_s": 20.0})


def test_an_edge_server_that_is_away_during_an_evaluation_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round is on its disk and is not made again."""
    given, opened, lost, opens = EdgeLink.give_units, EdgeLink.open_round, [1], list[int]()

    async def give_units(self: EdgeLink, round: int, like: Any) -> Any:
        if lost:
            lost.clear()
            raise EdgeLost("gone")
        return await given(self, round, like)

    async def open_round(self: EdgeLink, round: int, *rest: Any) -> Any:
        opens.append(round)
        return await opened(self, round, *rest)

    monkeypatch.setattr(EdgeLink, "give_units", give_units)
    monkeypatch.setattr(EdgeLink, "open_round", open_round)
    inside = Inside(tmp_path, ONE_ROUND)
    assert inside.go().status == "finished"
    assert not lost
    assert opens == [0]
    assert inside.rounds()[0]["test_accuracy"] is not None
    assert [line["event"] for line in inside.events("main") if line["level"] == "warning"] == ["evaluation made again"]


@pytest.mark.parametrize(("lost", "kept"), [(False, [0, 1, 2, 3]), (True, [0, 1, 2])])
def test_who_leaves_while_sums_are_swapped_has_taken_part_unless_the_swap_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool, kept: list[int]
) -> None:
    desks, swapped, init, swaps = list[SharedState](), EdgeLink.swap_sums, MainProcess.__init__, list[list[int]]()

    def begin(self: MainProcess, shared: SharedState, checkpoint: Any) -> None:
        desks.append(shared)
        init(self, shared, checkpoint)

    async def swap(self: EdgeLink, message: Any, mine: Any, finish: Any) -> Any:
        swaps.append(message.kept)
        if len(swaps) == 1:
            desks[0].drop(3, "disconnected", "it left")
            if lost:
                raise EdgeLost("gone")
        return await swapped(self, message, mine, finish)

    monkeypatch.setattr(MainProcess, "__init__", begin)
    monkeypatch.setattr(EdgeLink, "swap_sums", swap)
    inside = Inside(tmp_path, ONE_ROUND, more={"min_clients": 3, "first_clients": 4})
    inside.go()
    assert swaps == [[0, 1, 2, 3], kept][: 1 + lost]
    (record,) = inside.rounds()
    assert record["kept"] == kept
    assert desks[0].drops == ({"di": 1} if lost else {})
    wanted, model = simulated(inside.run, [kept]).named(), load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(model[name], tensor) for name, tensor in wanted.items())
