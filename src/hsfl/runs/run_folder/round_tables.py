"""A run's rounds as plain tables, for pandas or a spreadsheet: a row for each round, and a row for each phase of each client."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hsfl.files import write_csv
from hsfl.runs.run_folder.records import RoundRecord

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
    compared = any(record.averaged is not None for record in records)
    coded = any(record.coded is not None for record in records)
    return [
        blank
        | round_row(record)
        | {name: getattr(record, name) for name in MORE_ROUND_FIELDS}
        | {f"bytes_{link}": record.bytes.get(link, 0) for link in links}
        | (_averaged_row(record) if compared else {})
        | (_coded_row(record) if coded else {})
        for record in records
    ]


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
    return [row for record in records for row in _phases(record)]


def _phases(record: RoundRecord) -> list[dict[str, Any]]:
    rows = []
    for client, cut in enumerate(record.cuts):
        about: dict[str, Any] = {"round": record.round, "client": client, "cut": cut}
        about |= {name: client in getattr(record, name) for name in ("started", "kept", "dropped")}
        about |= {"waiting_s": record.waiting_s[client]}
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
    write_csv(folder / "phases.csv", PHASE_FIELDS, [list(row.values()) for row in phase_table(records)])
