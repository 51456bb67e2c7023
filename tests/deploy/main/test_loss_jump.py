"""A round whose test loss jumps is mended by leaving one client out, or stays as it was."""

import asyncio
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hsfl.deploy.admin.fleet_state import FleetState
from hsfl.deploy.edge_server import ClientAtFault
from hsfl.deploy.main.edge_link import HeadWithdrawn
from hsfl.deploy.main.loss_jump import JumpWatch, is_jump


@pytest.mark.parametrize(
    ("before", "after", "jumps"),
    [
        (1.0, 2.0, False),
        (1.0, 2.01, True),
        (1.0, math.nan, True),
        (1.0, math.inf, True),
        (math.nan, 5.0, False),
        (0.0, 0.1, True),
    ],
)
def test_a_jump_is_more_than_so_many_times_the_loss_or_no_number(before: float, after: float, jumps: bool) -> None:
    assert is_jump(before, after, 2.0) is jumps


class Servers:
    """Two servers whose model is the sum of what its clients bring, and whose loss is that sum."""

    def __init__(self, brought: dict[int, float], ordered: int | None = None, **settings: Any) -> None:
        self.brought, self.swaps = brought, list[list[int]]()
        self.broken: tuple[list[int], Exception] | None = None  # clients whose sum cannot be made, and what is raised
        self.drops, self.told = list[tuple[int, str]](), list[str]()
        usual = {"on_jump": "reject", "jump": 2.0, "min_clients": 1}
        self.shared = SimpleNamespace(
            settings=SimpleNamespace(**usual | settings),
            control=SimpleNamespace(state=FleetState(min_clients=ordered)),
            log=SimpleNamespace(event=lambda event, level, **words: self.told.append(event)),
            drop=lambda seat, reason, sentence: self.drops.append((seat, reason)),
        )
        self.open_round = SimpleNamespace(round=3, agreed=list(brought))

    async def swap(self, open_round: Any, kept: Sequence[int]) -> Any:
        self.swaps.append(list(kept))
        if self.broken is not None and self.broken[0] == list(kept):
            raise self.broken[1]
        return math.fsum(self.brought[seat] for seat in kept)

    async def test(self, round: int, state: Any) -> float:
        return float(state)

    def settle(self) -> float:
        watch = JumpWatch(cast(Any, self.shared), cast(Any, self.swap), cast(Any, self.test))

        async def story() -> Any:
            after = await self.swap(self.open_round, self.open_round.agreed)
            return await watch.settle(cast(Any, self.open_round), cast(Any, 1.0), after)

        return float(asyncio.run(story()))


def test_the_client_whose_leaving_out_mends_it_is_dropped() -> None:
    servers = Servers({0: 0.2, 4: 9.0, 7: 0.3})
    assert servers.settle() == 0.5
    assert servers.drops == [(4, "jump")]
    assert servers.open_round.agreed == [0, 7]
    assert servers.swaps == [[0, 4, 7], [4, 7], [0, 7], [0, 4], [0, 7]]


def test_the_operators_last_word_on_min_clients_holds() -> None:
    """`hsfl admin set min_clients=...`, in the place of the setting."""
    more, fewer = Servers({0: 0.2, 4: 9.0, 7: 0.3}, ordered=3), Servers({0: 0.2, 4: 9.0}, ordered=1, min_clients=2)
    assert (more.settle(), more.told) == (9.5, ["test loss jumped", "round not mended"])
    assert (fewer.settle(), fewer.drops) == (0.2, [(4, "jump")])


@pytest.mark.parametrize("error", [ClientAtFault(7, "too large"), HeadWithdrawn("too large")])
def test_clients_that_cannot_be_summed_without_another_end_no_server(error: Exception) -> None:
    servers = Servers({0: 0.2, 4: 9.0, 7: 0.3})
    servers.broken = [4, 7], error
    assert (servers.settle(), servers.drops) == (0.5, [(4, "jump")])


@pytest.mark.parametrize(
    ("brought", "settings"),
    [
        ({0: 0.2, 4: 9.0, 7: 9.0}, {}),
        ({0: math.nan, 4: math.nan}, {}),
        ({0: 0.2, 4: 9.0, 7: 0.3}, {"min_clients": 3}),
        ({4: 9.0}, {}),
    ],
    ids=["two attackers", "no numbers", "too few left", "one client"],
)
def test_a_round_that_nobody_alone_has_spoilt_counts_with_all(brought: dict[int, float], settings: Any) -> None:
    servers = Servers(brought, **settings)
    servers.settle()
    assert servers.told == ["test loss jumped", "round not mended"]
    assert (servers.drops, servers.open_round.agreed) == ([], list(brought))
    assert servers.swaps[-1] == list(brought), "the edge server's disk holds the round of all"


def test_a_warning_changes_nothing_and_a_round_without_a_jump_is_not_told() -> None:
    warned, quiet = Servers({0: 9.0}, on_jump="warn"), Servers({0: 0.2, 1: 0.3})
    assert (warned.settle(), warned.told, len(warned.swaps)) == (9.0, ["test loss jumped"], 1)
    assert (quiet.settle(), quiet.told, len(quiet.swaps)) == (0.5, [], 1)
