"""The end of a round on real machines: timed by parts, modelled from what was measured, learned, and told everywhere."""

import asyncio
import csv
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hsfl.deploy.client_round import RoundWork
from hsfl.deploy.main.main_round import Tail
from hsfl.deploy.wire.client_messages import End
from hsfl.network.round_end import END_PARTS
from hsfl.report.page.page import write_page
from tests.deploy.fleet import RUN, changed
from tests.deploy.inside import Inside
from tests.report.fabricated import data_in

ROUNDS = 6


@dataclass
class Deployed:
    """A deployment that has ended."""

    folder: Path
    rounds: list[dict[str, Any]]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    folder = tmp_path_factory.mktemp("deployed")
    inside = Inside(folder, changed(RUN, train={"rounds": ROUNDS, "eval_every": 2}, fleet={"cuts": [1, 2, 3, 5]}))
    inside.go()
    return Deployed(folder / "run", inside.rounds())


def test_every_part_is_timed_and_together_they_are_no_more_than_the_round(deployed: Deployed) -> None:
    for record in deployed.rounds:
        ending_s, longest_s = record["ending_s"], max(client_seconds(record))
        assert next(iter(ending_s)) == "open"
        assert set(ending_s) == {part for part in END_PARTS if part != "test" or record["round"] % 2 == 0}
        assert min(ending_s.values()) > 0
        assert sum(ending_s.values()) < record["wall_s"]
        assert longest_s < record["wall_s"] - sum(ending_s.values()) + record["ending_s"]["open"], (
            "clients begin after it"
        )


def test_the_end_of_a_client_does_not_wait_for_somebody_elses_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here ada's first step waits until di, which holds all units, is done: di's upload would be late by a step if its end stood in the queue."""
    has_begun, is_done, was_done = threading.Event(), threading.Event(), list[bool]()
    finish, compute, tell_end = Tail.finish, Tail.compute, RoundWork.end

    def finish_and_tell(tail: Tail, message: End) -> None:
        finish(tail, message)
        if tail.name == "di":
            is_done.set()

    def compute_after_di(tail: Tail, tensors: dict[str, Any]) -> Any:
        if tail.name == "ada" and not was_done:
            has_begun.set()
            was_done.append(is_done.wait(5))
        return compute(tail, tensors)

    async def end_after_ada_has_begun(work: RoundWork, end: End) -> None:
        if work.setup.seat == 3:
            await asyncio.to_thread(has_begun.wait, 20)
        await tell_end(work, end)

    monkeypatch.setattr(RoundWork, "end", end_after_ada_has_begun)
    monkeypatch.setattr(Tail, "finish", finish_and_tell)
    monkeypatch.setattr(Tail, "compute", compute_after_di)
    inside = Inside(tmp_path, changed(RUN, train={"rounds": 1}, fleet={"cuts": [1, 2, 3, 5]}))
    assert inside.go().status == "finished"
    assert was_done == [True]


def client_seconds(record: dict[str, Any]) -> list[float]:
    return [sum(values[client] for values in record["measured"].values()) for client in record["kept"]]


def test_the_model_of_a_round_is_what_the_rounds_before_measured(deployed: Deployed) -> None:
    """Nothing is known of the first round but the link between the servers; then each part goes half of the way to what was measured."""
    first, second, *later = deployed.rounds
    assert set(first["modelled_ending_s"]) == {"swap"}
    for part in ("open", "average", "checkpoint"):
        assert second["modelled_ending_s"][part] == pytest.approx(first["ending_s"][part])
    known, measured = second["modelled_ending_s"], second["ending_s"]
    for record in later:
        for part in ("open", "average", "checkpoint"):
            between = (known[part] * measured[part]) ** 0.5
            assert record["modelled_ending_s"][part] == pytest.approx(between, rel=1e-6), part
        known, measured = record["modelled_ending_s"], record["ending_s"]
    assert [("test" in record["modelled_ending_s"]) for record in deployed.rounds] == [
        False,
        False,
        False,
        True,
        False,
        True,
    ]
    assert deployed.rounds[3]["modelled_ending_s"]["test"] == pytest.approx(second["ending_s"]["test"])


def test_the_modelled_round_holds_its_end(deployed: Deployed) -> None:
    for record in deployed.rounds:
        last_s = max(max(times["end_s"]) for times in record["phases"].values())
        assert record["round_s"] == pytest.approx(last_s + sum(record["modelled_ending_s"].values()), rel=1e-6)
        assert record["allocation"]["lower_bound_s"] <= record["round_s"] * (1 + 1e-9)


def test_tables_and_page_have_measured_and_modelled_side_by_side(deployed: Deployed, tmp_path: Path) -> None:
    with (deployed.folder / "phases.csv").open(newline="") as file:
        rows = {(int(row["round"]), row["client"], row["phase"]): row for row in csv.DictReader(file)}
    with (deployed.folder / "rounds.csv").open(newline="") as file:
        rounds = {int(row["round"]): row for row in csv.DictReader(file)}
    page = data_in(write_page([deployed.folder], tmp_path / "page.html"))["runs"][0]["rounds"]
    for record in deployed.rounds:
        number = record["round"]
        for client in record["kept"]:
            for phase, values in record["measured"].items():
                if values[client]:
                    assert float(rows[number, str(client), phase]["measured_s"]) == values[client]
        times = record["phases"]
        modelled_s = sum(
            times[f"client_{way}"]["end_s"][0] - times[f"client_{way}"]["start_s"][0] for way in ("forward", "backward")
        )
        assert float(rows[number, "0", "client"]["seconds"]) == pytest.approx(modelled_s)
        for part, part_s in record["ending_s"].items():
            assert float(rows[number, "", part]["measured_s"]) == float(rounds[number][f"{part}_s"]) == part_s
        assert float(rounds[number]["modelled_swap_s"]) == pytest.approx(record["modelled_ending_s"]["swap"])
        shown = {row["part"]: row["seconds"] for row in page["ending"][number - 1]}
        assert shown["swap"] == pytest.approx(
            [record["ending_s"]["swap"], record["modelled_ending_s"]["swap"]], rel=1e-3
        )
        assert list(shown)[:3] == ["open", "distribute", "upload"]
        assert float(rounds[number]["upload_s"]) == max(record["measured"]["model_up"])
        assert float(rounds[number]["distribute_s"]) == max(record["measured"]["model_down"])


class Killed(BaseException):
    """Stands for the end of the process."""


def test_a_round_counts_when_its_checkpoint_is_in_place_and_not_when_its_record_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main server is killed once the record of round 2 is written and before its checkpoint counts: round 2 is made again, and the
    model is that of a run that nobody killed."""
    run = changed(RUN, train={"rounds": 3}, fleet={"cuts": [1, 2, 3, 5]})
    (tmp_path / "killed").mkdir()
    (tmp_path / "whole").mkdir()
    killed, whole = Inside(tmp_path / "killed", run), Inside(tmp_path / "whole", run)
    replace = os.replace

    def dying(source: Any, target: Any) -> None:
        if Path(target).name == "round-2.safetensors" and Path(target).parent.parent.name == "run":
            raise Killed
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", dying)
        with pytest.raises(Killed):
            killed.go()
    assert [record["round"] for record in killed.rounds()] == [1, 2]
    assert [path.name for path in (tmp_path / "killed" / "run" / "checkpoint").glob("round-*")] == [
        "round-1.safetensors"
    ]
    killed.go()
    whole.go()
    assert [record["round"] for record in killed.rounds()] == [1, 2, 3]
    assert (tmp_path / "killed/run/model.safetensors").read_bytes() == (
        tmp_path / "whole/run/model.safetensors"
    ).read_bytes()
    records = [[record["test_loss"] for record in inside.rounds()] for inside in (killed, whole)]
    assert records[0] == records[1]
