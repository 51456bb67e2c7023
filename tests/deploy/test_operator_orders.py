"""Orders of the operator to a running deployment: taken before the next round, told to whom they concern, not forgotten by a restart."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from hsfl.deploy.admin.operator_events import OperatorEvent, append_event, read_events
from hsfl.deploy.main.status import ask_status
from hsfl.deploy.settings import MainSettings
from tests.deploy.fleet import RUN, changed, simulated
from tests.deploy.inside import Inside
from tests.deploy.test_new_cuts import simulated_with
from tests.naming import names

SMALL = changed(RUN, data={"limit": 48}, train={"rounds": 3, "batch_size": 16})
MORE = {"evaluate": "none", "min_clients": 2, "first_clients": 4}


def order(inside: Inside, deed: str, client: str | None = None, rounds: int | None = None, **values: float) -> None:
    named = {name.replace("__", "."): value for name, value in values.items()}
    append_event(inside.folder / "run", OperatorEvent("now", deed, client, rounds, named, "spring cleaning"))


async def until(inside: Inside, name: str, event: str, times: int = 1, **fields: Any) -> None:
    """Until a process has logged an event so many times."""
    wanted = {"event": event} | fields
    while name not in inside.logs or sum(wanted.items() <= line.items() for line in inside.events(name)) < times:
        await asyncio.sleep(0.02)


def started(inside: Inside) -> list[list[int]]:
    return [record["started"] for record in inside.rounds()]


def operator(inside: Inside, orders: Callable[[], None]) -> Callable[[], Any]:
    """An operator who orders something in the middle of the first round."""

    async def give() -> None:
        await until(inside, "main", "round begins", round=1)
        orders()

    return give


def assert_model_is_simulated(inside: Inside) -> None:
    wanted = simulated(inside.run, [record["kept"] for record in inside.rounds()]).named()
    model = load_file(inside.folder / "run" / "model.safetensors")
    assert all(torch.equal(model[name], tensor) for name, tensor in wanted.items())


def test_kick_and_bench(tmp_path: Path) -> None:
    """The open round goes on. The kicked device ends with one line, the benched one is told for how long, and plays again then. Lines that are no
    orders stop nothing."""
    inside, ended = Inside(tmp_path, SMALL, more=MORE), []

    async def di() -> None:
        ended.append(await inside.client("di"))

    def orders() -> None:
        with (tmp_path / "run" / "events.jsonl").open("a") as file:
            file.write('{"deed": "explode"}\n')
        order(inside, "kick", "nobody")
        order(inside, "kick", "di")
        order(inside, "bench", "cy", rounds=1)

    assert inside.go(operator(inside, orders), di, honest=("ada", "bo", "cy")).status == "finished"
    assert started(inside) == [[0, 1, 2, 3], [0, 1], [0, 1, 2]]
    (line,) = [line for line in inside.events("cy") if line["event"] == "benched"]
    assert (line["rounds"], line["why"]) == (1, "spring cleaning")
    names(ended[0], "operator", "di", "spring cleaning")
    taken = [line["order"] for line in inside.events("main") if line["event"] == "order of the operator"]
    assert taken == ["kick di", "bench cy --rounds 1"]
    why = [line["why"] for line in inside.events("main") if line["event"] == "order of the operator refused"]
    names(why[0], "line 1", "events.jsonl")
    names(why[1], "client", "'nobody'", "ada, bo, cy, di")
    assert_model_is_simulated(inside)


def test_pause_and_resume_and_what_status_says(tmp_path: Path) -> None:
    inside, reports = Inside(tmp_path, SMALL, more=MORE), list[dict[str, Any]]()

    async def look_and_resume() -> None:
        await until(inside, "main", "round begins", round=1)
        order(inside, "pause")
        await until(inside, "main", "order of the operator", order="pause")
        await asyncio.sleep(0.3)
        order(inside, "bench", "di")
        order(inside, "set", tau_s=77, min_clients=3)
        await until(inside, "main", "order of the operator", times=3)
        reports.append(await ask_status(MainSettings(listen=inside.main), None))
        order(inside, "resume")

    assert inside.go(look_and_resume).status == "finished"
    (report,) = reports
    assert (report["paused"], report["open_round"], report["rounds_done"]) == (True, None, 1)
    assert (report["tau_s"], report["min_clients"], report["pending_orders"]) == (77, 3, [])
    (di,) = [client for client in report["clients"] if client["name"] == "di"]
    assert (di["doing"], di["benched"]) == ("benched", {"rounds": None, "why": "spring cleaning"})
    assert "127.0.0.1" in di["from"]
    assert started(inside) == [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2]]
    assert_model_is_simulated(inside)


def test_drain_ends_between_two_rounds_and_the_next_start_goes_on_with_the_orders(tmp_path: Path) -> None:
    """What was ordered before the restart holds after it, as what is ordered while the server is down."""
    first = Inside(tmp_path, SMALL, more=MORE)

    def orders() -> None:
        order(first, "kick", "di")
        order(first, "drain")

    assert first.go(operator(first, orders)).status == "interrupted"
    assert started(first) == [[0, 1, 2, 3]]
    order(first, "bench", "cy")
    second = Inside(tmp_path, SMALL, more=MORE | {"first_clients": 2})
    refused = []

    async def di() -> None:
        try:
            await second.client("di")
        except ValueError as error:
            refused.append(str(error))

    assert second.go(di, honest=("ada", "bo", "cy")).status == "finished"
    assert started(second) == [[0, 1, 2, 3], [0, 1], [0, 1]]
    names(refused[0], "refuses di", "operator", "spring cleaning")
    deeds = [event.deed for event in read_events(tmp_path / "run") if isinstance(event, OperatorEvent)]
    assert deeds == ["kick", "drain", "drained", "bench"]
    assert_model_is_simulated(second)


def test_a_seats_cut(tmp_path: Path) -> None:
    """From the next round on, and the model is the simulation's with these cuts."""
    run = changed(SMALL, fleet={"num_clients": 3, "cuts": [2, 2, 3]}, train={"rounds": 2})
    inside = Inside(tmp_path, run, ("ada", "bo", "cy"), more={"evaluate": "none"})
    assert inside.go(operator(inside, lambda: order(inside, "set", cut__bo=4))).status == "finished"
    cuts = [tuple(record["cuts"]) for record in inside.rounds()]
    assert cuts == [(2, 2, 3), (2, 4, 3)]
    wanted, model = simulated_with(inside.run, tuple(cuts)).named(), load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(model[name], tensor) for name, tensor in wanted.items())
