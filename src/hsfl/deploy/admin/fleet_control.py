"""The fleet's state as the main server holds it: read from the checkpoint, moved on by orders and rounds, written into the next
checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from hsfl.deploy.admin.benching import BenchRules, Conduct, RoundOutcome, without_common_faults
from hsfl.deploy.admin.fleet_state import (
    FleetState,
    after_attempt,
    after_completed_round,
    after_event,
    check_event,
    read_facts,
)
from hsfl.deploy.admin.operator_events import EVENTS_FILE, OperatorEvent, append_event, read_events, time_now
from hsfl.deploy.logs import LineLimit, Log
from hsfl.errors import InputError
from hsfl.files import checked_record, stamp
from hsfl.runs.run_folder.folder import RunFolder


class FleetControl:
    """The state, and where its orders come from. num_units: of the model; None: cuts are not checked against it."""

    def __init__(self, folder: RunFolder, rules: BenchRules, log: Log, num_units: int | None = None) -> None:
        self.folder, self.rules, self.log, self.num_units = folder, rules, log, num_units
        self.state = FleetState()
        self._seldom = LineLimit(log, 1)
        self._stamp: Any = None  # of the file of orders when it was read last

    def restore(self, content: str | None) -> None:
        """Take the state of a checkpoint; None where the checkpoint has none."""
        if content is not None:
            self.state = checked_record(content, FleetState, "the checkpoint's fleet")

    def to_json(self) -> str:
        """The state for a checkpoint."""
        return json.dumps(asdict(self.state), allow_nan=False)

    def take_events(self) -> list[OperatorEvent]:
        """Apply the orders that came since the last call; returns those that were taken. An order that cannot be meant is logged and
        changes nothing."""
        now = stamp(self.folder.path / EVENTS_FILE)
        if now == self._stamp:
            return []
        taken = []
        for event in self._new_events():
            try:
                if isinstance(event, InputError):
                    raise event
                check_event(event, replace(read_facts(self.folder), num_units=self.num_units))
                self.state = after_event(self.state, event)
                taken.append(event)
                self.log.event("order of the operator", order=str(event), why=event.why or None)
            except InputError as error:
                self.log.event("order of the operator refused", "warning", why=str(error))
            self._count_event()
        self._stamp = now
        return taken

    def _new_events(self) -> list[OperatorEvent | InputError]:
        """What came since the last look. A file that cannot be read, or was made shorter, is logged and ends nothing."""
        try:
            events = read_events(self.folder.path)
        except InputError as error:
            self._seldom.event("orders of the operator cannot be read", why=str(error))
            return []
        if len(events) < self.state.num_events:
            why = f"{EVENTS_FILE} was made shorter; orders taken before hold, and newer ones must be given again"
            self.log.event("orders of the operator were removed", "warning", why=why)
            self.state = replace(self.state, num_events=len(events))
        return events[self.state.num_events :]

    def _count_event(self) -> None:
        self.state = replace(self.state, num_events=self.state.num_events + 1)

    def pending(self) -> list[str]:
        """Orders that the next round will take, in words."""
        try:
            return [str(event) for event in read_events(self.folder.path)[self.state.num_events :]]
        except InputError as error:
            return [str(error)]

    def note_drained(self) -> None:
        """Write down that the server ends as the operator asked, so that the next start goes on."""
        append_event(self.folder.path, OperatorEvent(time_now(), "drained"))

    def judge(
        self,
        outcomes: Mapping[str, RoundOutcome],
        reasons: dict[str, str],
        sentences: dict[str, str],
        is_complete: bool,
    ) -> dict[str, Conduct]:
        """Count how a round, or a try at one, ended for its clients; returns who is benched for it. reasons: of drops (`metrics.REASONS`),
        by client; sentences: the same in words."""
        before, step = self.state.conducts, after_completed_round if is_complete else after_attempt
        fair = without_common_faults(dict(outcomes), reasons)
        self.state = step(self.state, self.rules, fair, sentences)
        newly = {
            name: conduct for name, conduct in self.state.conducts.items() if name in outcomes and conduct.is_benched
        }
        return {
            name: conduct
            for name, conduct in newly.items()
            if conduct.sentences > before.get(name, Conduct()).sentences
        }
