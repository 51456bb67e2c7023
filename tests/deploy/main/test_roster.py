"""Who takes part in a round: of the clients that are there, as many as the run asks for."""

import asyncio
import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from hsfl.config import parse_config
from hsfl.deploy.admin.benching import BenchRules
from hsfl.deploy.admin.fleet_control import FleetControl
from hsfl.deploy.admin.fleet_state import FleetState
from hsfl.deploy.logs import open_log
from hsfl.deploy.main.main_server import MainProcess
from hsfl.deploy.main.roster import Member, Roster
from hsfl.deploy.model_kit import make_kit
from hsfl.deploy.settings import MainSettings, run_config
from hsfl.deploy.wire.client_messages import OwnSpeeds, Ready
from hsfl.errors import InputError
from hsfl.planning.rounds.participation import choose_clients, choose_present
from hsfl.runs.run_folder.folder import RunFolder
from tests.deploy.fleet import RUN, changed
from tests.naming import raises

FEW = changed(RUN, fleet={"num_clients": 8, "cuts": 2}, train={"clients_per_round": 2})
READY = Ready("f", [5], OwnSpeeds(*(1e9,) * 5, None), None)


def control(folder: Path) -> FleetControl:
    return FleetControl(RunFolder(folder), BenchRules(), open_log("main", True, io.StringIO()))


def test_with_everybody_there_they_are_those_of_a_simulation() -> None:
    config = parse_config(FEW)
    for round in range(20):
        assert choose_present(config, round, range(8)) == choose_clients(config, round)


@pytest.mark.parametrize("least", [1, 2, 3])
def test_a_round_waits_for_nobody_who_is_not_there(tmp_path: Path, least: int) -> None:
    """Eight seats, three devices, two a round: whoever is drawn is there."""
    config, roster = parse_config(FEW), Roster(tmp_path, (), 8)
    for name in ("ada", "bo", "cy"):
        roster.join(Member(name, roster.seat(name), READY))
    settings = MainSettings(min_clients=1, first_clients=least)
    main = MainProcess.__new__(MainProcess)
    main.shared = SimpleNamespace(
        settings=settings,
        roster=roster,
        kit=SimpleNamespace(config=config),
        log=open_log("main", True, io.StringIO()),
        waits_for=None,
        control=control(tmp_path),
        planner=SimpleNamespace(),
    )
    main.started, seen = False, set()
    for round in range(20):
        main.checkpoint = SimpleNamespace(round=round)
        seats = asyncio.run(asyncio.wait_for(main._wait_for_clients(), 5))
        assert len(seats) == 2
        seen |= set(seats)
    assert seen == {0, 1, 2}


def main_with(folder: Path, names: tuple[str, ...], round: int, tau_s: float) -> MainProcess:
    """A main server that has just started, with these clients there; three make the first round, two the others."""
    config, roster = parse_config(changed(RUN, train={"tau_s": tau_s})), Roster(folder, (), 4)
    for name in names:
        roster.join(Member(name, roster.seat(name), READY))
    main = MainProcess.__new__(MainProcess)
    main.shared = SimpleNamespace(
        settings=MainSettings(min_clients=2, first_clients=3), roster=roster, kit=SimpleNamespace(config=config),
        log=open_log("main", True, io.StringIO()), waits_for=None,
        control=control(folder), planner=SimpleNamespace(),
    )  # fmt: skip
    main.started, main.checkpoint = False, SimpleNamespace(round=round)
    return main


def test_after_a_restart_who_stays_away_does_not_stop_the_run(tmp_path: Path) -> None:
    """The clients of before have tau to come back; then the minimum makes a round. A new run waits for all that it wants."""
    seats = asyncio.run(asyncio.wait_for(main_with(tmp_path, ("ada", "bo"), 5, tau_s=0.2)._wait_for_clients(), 5))
    assert set(seats) == {0, 1}
    new = main_with(tmp_path, ("ada", "bo"), 0, tau_s=0.2)
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(new._wait_for_clients(), 0.6))


def test_the_operators_min_clients_holds_for_the_first_round_after_a_start_too(tmp_path: Path) -> None:
    """A round of fewer would be made again and again, and then end the server."""
    main = main_with(tmp_path, ("ada", "bo", "cy"), 0, tau_s=0.2)
    main.shared.control.state = FleetState(min_clients=4)
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(main._wait_for_clients(), 0.6))


def test_a_minimum_that_no_round_can_keep_is_an_error() -> None:
    with raises(InputError, "min_clients is 3", "run.train.clients_per_round is 2", "lower min_clients"):
        run_config(MainSettings(min_clients=3, run=FEW))


def test_real_clients_drop_out_by_themselves() -> None:
    config = parse_config(changed(RUN, train={"drop_rate": 0.5}))
    with raises(InputError, "train.drop_rate is 0.5", "simulated"):
        make_kit(config, (1, 8, 8), 10)


def test_seats_and_the_runs_name_stay(tmp_path: Path) -> None:
    """Names of the main server's file have their seats from the start, even if the file names nobody after a restart."""
    first = Roster(tmp_path, ("ada", "bo"), 4)
    first.seat("cy")
    again = Roster(tmp_path, (), 4)
    assert again.run == first.run
    assert again.names == ["ada", "bo"]  # cy was never ready
    first.join(Member("cy", 2, READY))
    assert Roster(tmp_path, (), 4).names == ["ada", "bo", "cy"]
    with raises(InputError, "order"):
        Roster(tmp_path, ("bo", "ada"), 4)


def test_who_tries_again_has_the_seat_of_before(tmp_path: Path) -> None:
    """Two devices come and go while the edge server is away, each with its data read for its seat."""
    roster = Roster(tmp_path, (), 4)
    for _ in range(3):
        assert [roster.seat(name) for name in ("ada", "bo")] == [0, 1]
        roster.give_up("ada")
        assert roster.seat("cy") == 2
        for name in ("bo", "cy"):
            roster.give_up(name)
        assert roster.seat("bo") == 1


def test_a_client_that_is_refused_takes_no_seat(tmp_path: Path) -> None:
    roster = Roster(tmp_path, (), 2)
    assert [roster.seat(name) for name in ("wrong", "ada")] == [0, 1]
    roster.join(Member("ada", 1, READY))
    roster.give_up("wrong")
    roster.give_up("ada")  # a second connection of a client that has its seat
    assert roster.labels() == ["seat 0", "ada"]
    assert [roster.seat(name) for name in ("bo", "ada")] == [0, 1]
    roster.give_up("bo")
    assert [roster.seat(name) for name in ("bo", "ada")] == [0, 1]
    with raises(InputError, "2 seats", "seats.json"):
        roster.seat("cy")


def test_statistics_that_are_estimated_again_are_refused() -> None:
    with raises(InputError, "norm_statistics is 'estimated'", "real machines"):
        run_config(MainSettings(run={"train": {"norm_statistics": "estimated"}}))
