"""Trainings of `hsfl reproduce` side by side give the traces that one after another gives."""

from pathlib import Path

import pytest
import torch

from hsfl.experiments.table1 import tau_row
from hsfl.experiments.table1.traces import ONE_BY_ONE, Together, find_trace, trace_file_name, train_ahead
from hsfl.runs.progress import Observer
from hsfl.runs.studies.run_many import Piece, Show

WANTED = [("digits", "twins", 1), ("digits", "sl", 1)]


class Seen(Show):
    def __init__(self) -> None:
        self.ended: list[str] = []

    def ends(self, piece: Piece, place: int, total: int, left_s: float | None) -> None:
        self.ended.append(piece.name)


@pytest.mark.slow
def test_two_jobs_train_the_same_traces(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    seen = Seen()
    for name, together in (("apart", ONE_BY_ONE), ("beside", Together(2, seen))):
        out, said = tmp_path / name, list[str]()
        train_ahead(WANTED, "smoke", out, None, None, together)
        assert (out / "runs").exists() == (together.jobs > 1)
        for data, trace, seed in WANTED:
            find_trace(data, "smoke", seed, trace, out, None, None, said.append, lambda words: Observer())
    assert sorted(seen.ended) == ["digits, sl, seed 1", "digits, twins, seed 1"]
    for key in WANTED:
        apart, beside = (
            tmp_path / name / "traces" / trace_file_name(*key[:2], "smoke", key[2]) for name in ("apart", "beside")
        )
        assert apart.read_text() == beside.read_text()
    again = Seen()
    train_ahead(WANTED, "smoke", tmp_path / "beside", None, None, Together(2, again))
    assert again.ended == []


@pytest.mark.slow
def test_two_jobs_train_the_same_rows_with_tau(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tau so short that columns drop clients, there are several trainings to be made at a time."""
    monkeypatch.setattr(tau_row, "TAU_ROUNDS", 0.5)
    torch.set_num_threads(1)
    seen, rows = Seen(), []
    for name, together in (("apart", ONE_BY_ONE), ("beside", Together(2, seen))):
        words = (tmp_path / name, "smoke", [1, 2], lambda text: None, None, None, lambda words: Observer(), "digits")
        rows.append(tau_row.reproduce_tau_row(*words, together=together))
    assert rows[0] == rows[1]
    own = [f"digits, {row.column} with tau, seed {row.seed}" for row in rows[0] if row.first_drop is not None]
    assert sorted(seen.ended) == sorted(own)
    assert len(own) > 1
