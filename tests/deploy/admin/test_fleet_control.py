"""The main server's hold on the fleet's state: what a restart reads again, and files that cannot be read."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from hsfl.config import parse_config
from hsfl.deploy.admin.benching import BenchRules, RoundOutcome
from hsfl.deploy.admin.fleet_control import FleetControl
from hsfl.deploy.admin.operator_events import EVENTS_FILE, OperatorEvent, append_event
from hsfl.deploy.logs import open_log
from hsfl.deploy.main.roster import Roster
from hsfl.runs.run_folder.folder import RunFolder
from tests.deploy.fleet import RUN
from tests.naming import names


class Server:
    """A main server's control of a run folder, and what it logs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stream = RunFolder(folder / "run"), io.StringIO()
        if not self.folder.config_path.exists():
            self.folder.create(parse_config(RUN), 1)
            Roster(self.folder.path, ("ada", "bo"), 4)
        self.control = FleetControl(self.folder, BenchRules(after=1), open_log("main", True, self.stream))

    def order(self, deed: Any, client: str | None = None) -> None:
        append_event(self.folder.path, OperatorEvent("now", deed, client))

    def warnings(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [line for line in lines if line["level"] == "warning"]


def test_a_restart_has_the_orders_before_and_after_its_checkpoint(tmp_path: Path) -> None:
    """Wherever the server is killed: what the checkpoint lacks is read again from the file."""
    server = Server(tmp_path)
    checkpoints = [server.control.to_json()]
    for deed, client in (("pause", None), ("bench", "ada"), ("resume", None), ("kick", "bo"), ("drain", None)):
        server.order(deed, client)
        server.control.take_events()
        checkpoints.append(server.control.to_json())
    for checkpoint in checkpoints:
        again = Server(tmp_path).control
        again.restore(checkpoint)
        again.take_events()
        assert again.state == server.control.state
        assert again.take_events() == []


def test_who_ended_as_ordered_goes_on_at_the_next_start(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.order("drain")
    server.control.take_events()
    assert server.control.state.draining
    server.control.note_drained()
    again = Server(tmp_path).control
    again.take_events()
    assert not again.state.draining


def test_what_a_round_and_an_order_say_is_joined(tmp_path: Path) -> None:
    server = Server(tmp_path)
    late = {"ada": RoundOutcome.KEPT, "bo": RoundOutcome.LATE}
    assert server.control.judge(late, {"bo": "late"}, {}, is_complete=True).keys() == {"bo"}
    assert server.control.state.benched("bo") is not None
    server.order("resume", "bo")
    server.control.take_events()
    assert server.control.state.benched("bo") is None


def test_a_file_that_cannot_be_read_ends_nothing(tmp_path: Path) -> None:
    """It is logged once a minute; when it can be read again, its orders are taken."""
    server = Server(tmp_path)
    path = server.folder.path / EVENTS_FILE
    path.mkdir()
    for _ in range(3):
        server.control._stamp = None
        assert server.control.take_events() == []
    (line,) = server.warnings()
    names(line["why"], EVENTS_FILE, "cannot be read", "user of the main server")
    path.rmdir()
    server.order("pause")
    server.control.take_events()
    assert server.control.state.paused


def test_a_file_that_was_made_shorter_is_told(tmp_path: Path) -> None:
    server = Server(tmp_path)
    for _ in range(3):
        server.order("pause")
    server.control.take_events()
    (server.folder.path / EVENTS_FILE).unlink()
    server.control.take_events()
    names(server.warnings()[0]["why"], EVENTS_FILE, "made shorter")
    assert server.control.state.paused
    server.order("resume")
    server.control.take_events()
    assert not server.control.state.paused


@pytest.mark.parametrize("content", ["[]", '{"paused": 3}'])
def test_a_checkpoint_of_another_kind_is_an_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(ValueError, match="checkpoint's fleet"):
        Server(tmp_path).control.restore(content)
