"""What a round took by the phases and parts in which real machines measure it, beside what the model said: `phases.csv` of a deployment,
`hsfl plan-check` and the page show the two side by side.

A client's phases are those of a plan: forward and backward are one, and the waiting for the main server is one of its own.
"""

from dataclasses import dataclass

from hsfl.network.round_end import END_PARTS
from hsfl.runs.run_folder.records import RoundRecord

LEVEL = 1e-6  # of a round: records are rounded, and less is no waiting
CLIENT_PARTS = {
    "upload": "model_up",
    "distribute": "model_down",
}  # parts of a round, each as long as this phase of the slowest client


@dataclass(frozen=True)
class PartOfRound:
    """Seconds of a part of a round in which no client trains; None where that is not known."""

    measured_s: float | None
    modelled_s: float | None


def modelled_phases_s(record: RoundRecord, client: int) -> dict[str, float]:
    """The modelled seconds of a client by phase, in the order in which they begin."""
    spent = dict.fromkeys(("client", "smashed", "waiting", "server", "gradient", "model_up", "model_down"), 0.0)
    down = record.phases.get("model_down")
    is_first = down is not None and down["start_s"][client] == 0  # as it is on a server that is one queue
    before_s = down["end_s"][client] if down and is_first else 0.0
    for name, times in record.phases.items():
        start_s, end_s = times["start_s"][client], times["end_s"][client]
        if name == "server_forward" and end_s > start_s:
            waited_s = start_s - before_s
            spent["waiting"] = waited_s if waited_s > LEVEL * record.round_s else 0.0
        before_s = end_s if end_s > start_s else before_s
        phase = name.removesuffix("_forward").removesuffix("_backward")
        spent[phase] = spent.get(phase, 0.0) + end_s - start_s
    return spent


def parts_of_round(record: RoundRecord) -> dict[str, PartOfRound]:
    """The parts of a round in which no client trains, in the order in which they happen; none where nothing of the round's end is known."""
    if record.ending_s is None and record.modelled_ending_s is None:
        return {}
    parts = {part: PartOfRound(*_ending_pair(record, part)) for part in END_PARTS}
    if not record.phases or not record.kept:
        return {name: part for name, part in parts.items() if part != PartOfRound(None, None)}
    modelled = [modelled_phases_s(record, client) for client in record.kept]
    for part, phase in CLIENT_PARTS.items():
        measured = [values[client] or 0.0 for values in _measured_phase(record, phase) for client in record.kept]
        parts[part] = PartOfRound(max(measured, default=None), max(client_s[phase] for client_s in modelled))
    order = ("open", "distribute", "upload", "swap", "average", "test", "checkpoint")
    return {name: parts[name] for name in order if parts[name] != PartOfRound(None, None)}


def _ending_pair(record: RoundRecord, part: str) -> tuple[float | None, float | None]:
    """Measured and modelled seconds; a part that one of the two leaves out took no time there."""
    known = [ending for ending in (record.ending_s, record.modelled_ending_s) if ending is not None]
    if not any(part in ending for ending in known):
        return None, None
    measured, modelled = record.ending_s, record.modelled_ending_s or {}
    return None if measured is None else measured.get(part, 0.0), modelled.get(part, 0.0)


def _measured_phase(record: RoundRecord, phase: str) -> list[list[float | None]]:
    return [] if record.measured is None or phase not in record.measured else [record.measured[phase]]
