"""The rounds of a run as the page stores them: a column for each quantity, an entry for each round.

Times are rounded to six digits. A phase that begins where the client's phase before it ended has no start of its own,
and what is the same for all clients is stored once: 200 rounds of 50 clients are then about a megabyte. Rounds on real machines also
hold the measured seconds of each client's phases beside the modelled seconds, and the error.

Legend: K clients, R rounds.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hsfl.formats import rounded
from hsfl.network.clock import PHASES
from hsfl.report.compared_runs import Run, framework_pools_data
from hsfl.report.gantt import end_together, named_straggler
from hsfl.report.page.page_words import straggler_sentence
from hsfl.runs.run_folder.records import PER_CLIENT, AllocationNote, RoundCrowd, RoundRecord
from hsfl.runs.run_folder.round_phases import modelled_phases_s, parts_of_round

Array = np.ndarray
MAX_CLIENTS = 200  # rows of a chart or table; a page that lists more is not read
MAX_BARS = 400_000  # of all Gantt charts of a page: above, some rounds have none
FOLLOWS = 1e-6  # of a round: a phase that starts this close to the end of the phase before follows that phase

# --- numbers


def short_number(value: float | None, digits: int = 4) -> float | None:
    """The number rounded to `digits` significant digits; a whole number becomes an int."""
    if value is None or not np.isfinite(value):
        return None
    near = rounded(value, digits)
    return int(near) if near == int(near) else near


def short_numbers(values: Sequence[float] | Array, digits: int = 4) -> list[float | None]:
    """Every value rounded as `short_number` does."""
    return [short_number(float(value), digits) for value in values]


# --- the columns


def round_columns(
    records: Sequence[RoundRecord],
    links: Sequence[str],
    stride: int | None,
    pooled: bool | None = None,
    names: Sequence[str] | None = None,
) -> dict[str, list[Any]]:
    """The quantities of all rounds by name, [R] each.

    stride: n keeps the Gantt chart of every n-th round, and of the first and the last; None keeps no chart.
    pooled: whether the data are on the server; by default as the built-in framework of the records has it.
    names: [K] of the clients, where they have names.
    """
    last_round = len(records) - 1
    drawn = [
        stride is not None and (r % stride == 0 or r == last_round) and record.crowd is None
        for r, record in enumerate(records)
    ]
    precise = ("sim_time_s", "round_s", "train_loss", "test_loss", "test_accuracy", "balanced_accuracy")
    columns: dict[str, list[Any]] = {
        name: [short_number(getattr(record, name), 7) for record in records] for name in precise
    }
    for name in dict.fromkeys(name for record in records for name in record.metrics):
        columns[name] = [
            None if (value := record.value(name)) is None else short_number(value, 7) for record in records
        ]
    columns["round"] = [record.round for record in records]
    columns["straggler"] = [named_straggler(record) for record in records]
    columns["together"] = [end_together(record) for record in records]
    columns["dropped"] = [record.dropped for record in records]
    columns["away"] = [sorted(set(range(len(record.cuts))) - set(record.started)) for record in records]
    columns["kept"] = [record.num_kept for record in records]
    columns["crowd"] = [None if record.crowd is None else _short_crowd(record.crowd) for record in records]
    columns["cuts"] = _changes([record.cut_labels if record.codecs else record.cuts for record in records])
    columns["bytes"] = [[record.bytes.get(link, 0) for link in links] for record in records]
    columns["allocation"] = [short_allocation(record.allocation) for record in records]
    rows = [shown_clients(record, pooled) if is_drawn else None for record, is_drawn in zip(records, drawn)]
    columns["rows"] = rows
    columns["why"] = [
        None if row is None and record.crowd is None else _why_sentence(record, names)
        for record, row in zip(records, rows)
    ]
    columns["waits"] = [None if row is None else _waiting_column(record, row) for record, row in zip(records, rows)]
    columns["phases"] = [None if row is None else phase_columns(record, row) for record, row in zip(records, rows)]
    if any(record.measured is not None for record in records):
        columns["measured"] = [_measured_rows(record, MAX_CLIENTS) for record in records]
    if any(endings := [_ending_rows(record) for record in records]):
        columns["ending"] = endings
    return columns


def _short_crowd(crowd: RoundCrowd) -> dict[str, Any]:
    """A round of a large fleet, to four digits."""
    quantiles = {"finish": crowd["finish_s"], "waiting": crowd["waiting_s"], **crowd["phases_s"]}
    return {
        "num_started": crowd["num_started"],
        "cuts": crowd["cuts"],
        "quantiles": {name: short_numbers(values) for name, values in quantiles.items()},
        "straggler": {name: short_number(value) for name, value in crowd["straggler_s"].items()},
    }


def _waiting_column(record: RoundRecord, clients: Sequence[int]) -> list[float | None]:
    """Seconds of waiting as recorded: differences of rounded bars would not have four right digits."""
    return short_numbers([value if (value := record.waiting_s[k]) > FOLLOWS * record.round_s else 0.0 for k in clients])


def _why_sentence(record: RoundRecord, names: Sequence[str] | None = None) -> str | None:
    """A sentence on what held the straggler up; None where that was not recorded, or where all clients end together. names: [K] of the clients, where they have names."""
    if record.why is None or (k := named_straggler(record)) is None:
        return None
    cut = f" (cut {record.cut_labels[k]})" if record.cuts else ""
    return straggler_sentence(record.why, f"{names[k] if names else f'client {k}'}{cut}")


def _changes(values: Sequence[Any]) -> list[Any]:
    """The values, with None in the place of a value that the round before has, too."""
    return [value if r == 0 or value != values[r - 1] else None for r, value in enumerate(values)]


def shown_clients(record: RoundRecord, pooled: bool | None = None) -> list[int]:
    """The clients that have a row: all or, of a large fleet, the straggler and the clients that wait least. CL has one row, the main server."""
    if framework_pools_data(record.framework) if pooled is None else pooled:
        return [0]
    everyone = list(range(len(record.cuts)))
    if len(everyone) <= MAX_CLIENTS:
        return everyone
    started = set(record.started)
    order = sorted(everyone, key=lambda k: (k != record.straggler, k not in started, record.waiting_s[k]))
    return sorted(order[:MAX_CLIENTS])


def phase_columns(record: RoundRecord, clients: Sequence[int]) -> dict[str, list[Any]]:
    """The start and the length in seconds of each phase of these clients, by phase.

    A start of None says that the phase follows the phase before it. One number in the place of a list is for all clients.
    """
    encoded: dict[str, list[Any]] = {}
    covered_s = np.zeros(len(clients))
    for phase in PHASES:
        if phase not in record.phases:
            continue
        start_s, end_s = (np.array(record.phases[phase][name], float)[list(clients)] for name in ("start_s", "end_s"))
        takes_time = end_s > start_s
        follows = bool((np.abs(start_s - covered_s)[takes_time] <= FOLLOWS * record.round_s).all())
        covered_s = np.where(takes_time, end_s, covered_s)
        length_s = np.where(takes_time, end_s - start_s, 0.0)
        encoded[phase] = [
            None if follows else _one_or_all(np.where(takes_time, start_s, 0.0), takes_time),
            _one_or_all(length_s),
        ]
    return encoded


def _one_or_all(values: Array, matters: Array | None = None) -> Any:
    """One number if all clients that matter have the same number, else the list of all numbers."""
    numbers = short_numbers(values, 6)
    distinct = {value for k, value in enumerate(numbers) if matters is None or matters[k]}
    return distinct.pop() if len(distinct) == 1 else numbers


def short_allocation(decided: AllocationNote) -> dict[str, Any] | None:
    """What the round's policy decided, to four digits; None for the even allocation, which decides nothing. decided: as recorded."""
    if "server_hz" not in decided and "cell_hz" not in decided:
        return None
    fields: dict[str, Any] = dict(decided)
    shortened: dict[str, Any] = {
        name: short_numbers(fields[name][:MAX_CLIENTS]) for name in PER_CLIENT if name in fields
    }
    shortened |= {name: short_number(fields.get(name)) for name in ("gap", "lower_bound_s", "seconds")}
    return shortened | {"status": str(fields.get("status", "")), "owner": fields.get("owner")}


def _measured_rows(record: RoundRecord, max_rows: int) -> list[dict[str, Any]] | None:
    """A row for each client that finished: [measured, modelled] seconds by phase, both sums, and the error; None in simulation."""
    if record.measured is None:
        return None
    rows = []
    for client in record.kept[:max_rows]:
        pairs, modelled_s = {}, modelled_phases_s(record, client)
        for phase, took_s in record.measured.items():
            if (measured := took_s[client]) is not None:
                pairs[phase] = [rounded(measured, 4), rounded(modelled_s.get(phase, 0.0), 4)]
        measured_total, modelled_total = (sum(pair[side] for pair in pairs.values()) for side in (0, 1))
        rows.append(
            {
                "client": client,
                "phases": pairs,
                "total": [measured_total, modelled_total],
                "error": measured_total / modelled_total - 1 if modelled_total else None,
            }
        )
    return rows


def _ending_rows(record: RoundRecord) -> list[dict[str, Any]]:
    """A row for each part of a round in which no client trains: [measured, modelled] seconds."""
    return [
        {"part": name, "seconds": [short_number(part.measured_s), short_number(part.modelled_s)]}
        for name, part in parts_of_round(record).items()
    ]


# --- which rounds have a Gantt chart


def gantt_strides(runs: Sequence[Run]) -> list[int | None]:
    """A number n for each run: the page holds the Gantt chart of every n-th round. None holds no chart.

    A page with few rounds holds all charts. Otherwise only the first seed of each label has charts, and as many of them as
    MAX_BARS allows.
    """
    bars = [_num_bars(run) for run in runs]
    if sum(bars) <= MAX_BARS:
        return [1] * len(runs)
    first: dict[str, int] = {}
    for place, run in enumerate(runs):
        first.setdefault(run.label, place)
    total = sum(bars[place] for place in first.values())
    stride = max(int(np.ceil(total / MAX_BARS)), 1)
    return [stride if place in first.values() else None for place in range(len(runs))]


def _num_bars(run: Run) -> int:
    return sum(len(record.phases) * min(len(record.cuts), MAX_CLIENTS) for record in run.records)


# --- the clients over all rounds


def client_counts(records: Sequence[RoundRecord]) -> dict[str, list[Any]]:
    """How many rounds each client was kept, dropped, left out or the straggler, and its seconds of waiting in all, [K] each; of a
    large fleet nothing is counted."""
    records = [record for record in records if record.crowd is None]
    num_clients = len(records[0].cuts) if records else 0
    kept, dropped, left_out, late = np.zeros((4, num_clients), int)
    waiting_s = np.zeros(num_clients)
    for record in records:
        kept[record.kept] += 1
        dropped[record.dropped] += 1
        left_out[sorted(set(range(num_clients)) - set(record.started))] += 1
        if (last := named_straggler(record)) is not None:
            late[last] += 1
        each_s = np.array(record.waiting_s, float)
        waiting_s += np.where(each_s > FOLLOWS * record.round_s, each_s, 0.0)  # less is rounding
    counts = {"kept": kept, "dropped": dropped, "left_out": left_out, "straggler": late}
    named: dict[str, list[Any]] = {name: value[:MAX_CLIENTS].tolist() for name, value in counts.items()}
    return named | {"waiting_s": short_numbers(waiting_s[:MAX_CLIENTS])}
