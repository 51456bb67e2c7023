"""On real machines: the seconds that each client's phases took, beside those that were modelled, and the error."""

from typing import Any

from hsfl.formats import rounded
from hsfl.runs.records import RoundRecord

MODELLED = {  # a measured phase, and the phases of the model that it holds
    "client": ("client_forward", "client_backward"),
    "smashed": ("smashed",),
    "server": ("server_forward", "server_backward"),
    "waiting": (),
    "gradient": ("gradient",),
    "model_up": ("model_up",),
    "model_down": ("model_down",),
}


def modelled_s(record: RoundRecord, client: int, phase: str) -> float:
    """The modelled seconds of a client's phase over the round."""
    found = [record.phases[name] for name in MODELLED.get(phase, ()) if name in record.phases]
    return sum(times["end_s"][client] - times["start_s"][client] for times in found)


def measured_rows(record: RoundRecord, most: int) -> list[dict[str, Any]] | None:
    """A row for each client that finished: by phase [measured, modelled], and both sums with their error; None in simulation."""
    if record.measured is None:
        return None
    rows = []
    for client in record.kept[:most]:
        pairs = {}
        for phase, took_s in record.measured.items():
            if (measured := took_s[client]) is not None:
                pairs[phase] = [rounded(measured, 4), rounded(modelled_s(record, client, phase), 4)]
        ours, model = (sum(pair[side] for pair in pairs.values()) for side in (0, 1))
        rows.append(
            {"client": client, "phases": pairs, "total": [ours, model], "error": ours / model - 1 if model else None}
        )
    return rows
