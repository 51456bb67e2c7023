"""phases.csv holds every phase of every client, as rounds.jsonl does."""

import csv
from pathlib import Path

import pytest

from hsfl.runs.loop import train_run
from tests.small_runs import numbers, tiny


def test_a_row_for_each_phase_of_each_client(tmp_path: Path) -> None:
    train_run(tiny("train.rounds=2", "train.clients_per_round=2"), tmp_path / "run")
    with (tmp_path / "run" / "phases.csv").open(newline="") as file:
        rows = {(int(row["round"]), int(row["client"]), row["phase"]): row for row in csv.DictReader(file)}
    spent = {
        (record["round"], client, phase): (record, times["start_s"][client], times["end_s"][client])
        for record in numbers(tmp_path / "run")
        for phase, times in record["phases"].items()
        for client in range(3)
        if times["end_s"][client] > times["start_s"][client]
    }
    assert rows.keys() == spent.keys()
    assert {phase for _, _, phase in rows} >= {"client_backward", "smashed"}
    for key, (record, start_s, end_s) in spent.items():
        row, client = rows[key], key[1]
        assert float(row["seconds"]) == pytest.approx(end_s - start_s)
        assert (float(row["start_s"]), float(row["end_s"])) == (start_s, end_s)
        assert (int(row["cut"]), float(row["waiting_s"])) == (record["cuts"][client], record["waiting_s"][client])
        assert [row[who] == "True" for who in ("started", "kept")] == [
            client in record[who] for who in ("started", "kept")
        ]
