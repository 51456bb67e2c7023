"""A run's rounds as plain tables, for pandas or a spreadsheet: a row for each round, and a row for each phase of each client.

Of a run on real machines the phases are those that are measured, forward and backward as one, with the modelled seconds (`seconds`) beside
the measured ones (`measured_s`). Rows without a client are the parts of the round in which no client trains.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hsfl.files import write_csv
from hsfl.runs.run_folder.records import RoundRecord
from hsfl.runs.run_folder.round_phases import PartOfRound, modelled_phases_s, parts_of_round

ROUND_FIELDS = (
    *("round", "sim_time_s", "test_accuracy", "balanced_accuracy", "train_loss", "test_loss"),
    *("kept", "dropped", "bytes"),  # numbers of clients; bytes on all links
)
MORE_ROUND_FIELDS = ("round_s", "wall_s", "num_samples", "lr", "straggler")
AVERAGED = ("test_loss", "test_accuracy", "balanced_accuracy")  # fields of `records.Averaged`
PHASE_FIELDS = (
    "round",
    "client",
    "cut",
    "started",
    "kept",
    "dropped",
    "waiting_s",
    "phase",
    "start_s",
    "end_s",
    "seconds",
)


def round_row(record: RoundRecord) -> dict[str, Any]:
    """A round as plain numbers; kept and dropped are numbers of clients, bytes are those of all links."""
    counts = {"kept": record.num_kept, "dropped": len(record.dropped), "bytes": sum(record.bytes.values())}
    row = {name: counts[name] if name in counts else getattr(record, name) for name in ROUND_FIELDS}
    return row | record.metrics


def metric_names(records: Sequence[RoundRecord]) -> list[str]:
    """The metrics that some of the rounds have besides the fields of every round."""
    return list(dict.fromkeys(name for record in records for name in record.metrics))


def round_table(records: Sequence[RoundRecord]) -> list[dict[str, Any]]:
    """A row for each round, with the bytes of every link."""
    links = dict.fromkeys(link for record in records for link in record.bytes)
    blank: dict[str, Any] = dict.fromkeys((*ROUND_FIELDS, *metric_names(records)))
    parts = list(dict.fromkeys(part for record in records for part in parts_of_round(record)))
    compared = any(record.averaged is not None for record in records)
    coded = any(record.coded is not None for record in records)
    return [
        blank
        | round_row(record)
        | {name: getattr(record, name) for name in MORE_ROUND_FIELDS}
        | {f"bytes_{link}": record.bytes.get(link, 0) for link in links}
        | _part_columns(record, parts)
        | (_averaged_row(record) if compared else {})
        | (_coded_row(record) if coded else {})
        for record in records
    ]


def _part_columns(record: RoundRecord, parts: Sequence[str]) -> dict[str, float | None]:
    """Measured and modelled seconds of these parts of a round."""
    known = parts_of_round(record)
    columns: dict[str, float | None] = {}
    for name in parts:
        part = known.get(name, PartOfRound(None, None))
        columns |= {f"{name}_s": part.measured_s, f"modelled_{name}_s": part.modelled_s}
    return columns


def _averaged_row(record: RoundRecord) -> dict[str, Any]:
    """What BatchNorm's averaged statistics would have given, and the seconds of estimating others."""
    values: dict[str, Any] = dict(record.averaged or {})
    return {f"averaged_{name}": values.get(name) for name in AVERAGED} | {"estimation_s": record.estimation_s}


def _coded_row(record: RoundRecord) -> dict[str, Any]:
    """How good the model is with the codec of smashed data at its cuts."""
    values: dict[str, Any] = dict(record.coded or {})
    return {f"coded_{name}": values.get(name) for name in AVERAGED}


def phase_table(records: Sequence[RoundRecord]) -> list[dict[str, Any]]:
    """A row for each round, client and phase that takes the client time; seconds count from the start of the round."""
    return [
        row for record in records for row in (_phases(record) if record.measured is None else _measured_phases(record))
    ]


def _measured_phases(record: RoundRecord) -> list[dict[str, Any]]:
    """The phases of the clients, and the parts of the round, on real machines: modelled and measured."""
    assert record.measured is not None
    rows = []
    for client in range(len(record.cuts)):
        modelled = modelled_phases_s(record, client)
        for phase, took_s in record.measured.items():
            if modelled.get(phase, 0.0) > 0 or (took_s[client] or 0.0) > 0:
                times = {"seconds": modelled.get(phase, 0.0), "measured_s": took_s[client]}
                rows.append(_about(record, client) | {"phase": phase, "start_s": None, "end_s": None} | times)
    nobody = dict.fromkeys(PHASE_FIELDS) | {"round": record.round}
    for name, part in parts_of_round(record).items():
        rows.append(nobody | {"phase": name, "seconds": part.modelled_s, "measured_s": part.measured_s})
    return rows


def _about(record: RoundRecord, client: int) -> dict[str, Any]:
    """The round, the client and what became of it."""
    about: dict[str, Any] = {"round": record.round, "client": client, "cut": record.cuts[client]}
    about |= {name: client in getattr(record, name) for name in ("started", "kept", "dropped")}
    return about | {"waiting_s": record.waiting_s[client]}


def _phases(record: RoundRecord) -> list[dict[str, Any]]:
    rows = []
    for client in range(len(record.cuts)):
        about = _about(record, client)
        for phase, times in record.phases.items():
            start_s, end_s = times["start_s"][client], times["end_s"][client]
            if end_s > start_s:
                rows.append(about | {"phase": phase, "start_s": start_s, "end_s": end_s, "seconds": end_s - start_s})
    return rows


def write_tables(folder: Path, records: Sequence[RoundRecord]) -> None:
    """rounds.csv and phases.csv of a run folder."""
    rounds = round_table(records)
    header = list(rounds[0]) if rounds else [*ROUND_FIELDS, *MORE_ROUND_FIELDS]
    write_csv(folder / "rounds.csv", header, [list(row.values()) for row in rounds])
    fields = (*PHASE_FIELDS, "measured_s") if any(record.measured is not None for record in records) else PHASE_FIELDS
    write_csv(folder / "phases.csv", fields, [list(row.values()) for row in phase_table(records)])
