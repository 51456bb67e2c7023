"""Who takes part in a round: of the clients that are there, as many as the run asks for."""

import asyncio
import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from hsfl.config import parse_config
from hsfl.deploy.client_messages import Measured, Ready
from hsfl.deploy.kit import make_kit
from hsfl.deploy.logs import open_log
from hsfl.deploy.main_server import Main
from hsfl.deploy.roster import Member, Roster
from hsfl.deploy.settings import MainSettings, run_config
from hsfl.errors import InputError
from hsfl.planning.choice import choose_clients, choose_present
from tests.deploy.fleet import RUN, changed

FEW = changed(RUN, fleet={"num_clients": 8, "cuts": 2}, train={"clients_per_round": 2})


def test_with_everybody_there_they_are_those_of_a_simulation() -> None:
    config = parse_config(FEW)
    for round in range(20):
        assert choose_present(config, round, range(8)) == choose_clients(config, round)


@pytest.mark.parametrize("least", [1, 2, 3])
def test_a_round_waits_for_nobody_who_is_not_there(tmp_path: Path, least: int) -> None:
    """Eight seats, three devices, two a round: whoever is drawn is there."""
    config, roster = parse_config(FEW), Roster(tmp_path, (), 8)
    for name in ("ada", "bo", "cy"):
        ready = Ready("f", [5], Measured(*(1e9,) * 5, None), None)
        roster.join(Member(name, roster.seat(name), ready))
    settings = MainSettings(min_clients=1, first_clients=least)
    main = Main.__new__(Main)
    main.desk = SimpleNamespace(
        settings=settings, roster=roster, kit=SimpleNamespace(config=config), log=open_log("main", True, io.StringIO())
    )
    main.started, seen = False, set()
    for round in range(20):
        main.keeping = SimpleNamespace(round=round)
        seats = asyncio.run(asyncio.wait_for(main._enough(), 5))
        assert len(seats) == 2
        seen |= set(seats)
    assert seen == {0, 1, 2}


def test_a_minimum_that_no_round_can_keep_is_an_error() -> None:
    with pytest.raises(InputError, match=r"min_clients is 3 but run.train.clients_per_round is 2.*; lower min_clients"):
        run_config(MainSettings(min_clients=3, run=FEW))


def test_real_clients_drop_out_by_themselves() -> None:
    config = parse_config(changed(RUN, train={"drop_rate": 0.5}))
    with pytest.raises(InputError, match=r"train.drop_rate is 0.5; it is for simulated fleets"):
        make_kit(config, (1, 8, 8), 10)


def test_seats_and_the_runs_name_stay(tmp_path: Path) -> None:
    """Names of the main server's file have their seats from the start, even if the file names nobody after a restart."""
    first = Roster(tmp_path, ("ada", "bo"), 4)
    first.seat("cy")
    again = Roster(tmp_path, (), 4)
    assert again.names == ["ada", "bo", "cy"]
    assert again.run == first.run
    with pytest.raises(InputError, match="keep their order"):
        Roster(tmp_path, ("bo", "ada"), 4)
