"""Many runs: how far they are, side by side, and stopped under way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hsfl.errors import InputError
from hsfl.runs.loop import Observer
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.studies.compare_runs import has_ended, run_contenders, run_piece
from hsfl.runs.studies.run_many import ConsoleShow, ManyRuns, Pace, Piece, Show, run_all
from tests.naming import names, raises
from tests.small_runs import assert_same_run, hsfl, tiny, tiny_words

KINDS = st.lists(st.sampled_from("abc"), max_size=8)


@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(st.floats(0.1, 100), min_size=1)), KINDS, KINDS, st.integers(1, 4)
)
def test_the_time_left_grows_with_the_work_and_shrinks_with_the_jobs(
    seconds: dict[str, list[float]], kinds: list[str], more: list[str], jobs: int
) -> None:
    pace = Pace(seconds)
    if not seconds:
        assert pace.left_s(kinds, jobs) is None
        return
    left_s, with_more_s, alone_s = pace.left_s(kinds, jobs), pace.left_s(kinds + more, jobs), pace.left_s(kinds)
    assert left_s is not None
    assert with_more_s is not None
    assert alone_s is not None
    assert with_more_s >= left_s * (1 - 1e-12)
    assert left_s <= alone_s * (1 + 1e-12) <= jobs * left_s * (1 + 1e-9)


def pieces_in(out: Path, *labels: str) -> list[Piece]:
    return [Piece(label, label, tiny("train.rounds=1", f"framework={label}"), out / label) for label in labels]


def test_what_is_told_of_runs_one_after_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pieces = pieces_in(tmp_path, "fl", "hsfl", "cl")
    run_all(pieces[:1], run_piece, has_ended)
    run_all(pieces, run_piece, has_ended, show=ConsoleShow(Console(width=200)))
    said = capsys.readouterr().out
    names(said, "1 of 3 runs")
    names(said, "run 2 of 3: hsfl", "cnn on digits")  # no run has ended that the time left could be told from
    names(said, "run 3 of 3, about")
    run_all(pieces, run_piece, has_ended, show=ConsoleShow(Console(width=200), quiet=True))
    assert capsys.readouterr().out == ""


def test_side_by_side_gives_the_same_bits(tmp_path: Path) -> None:
    pieces = pieces_in(tmp_path / "one", "hsfl", "fl")
    run_all(pieces, run_piece, has_ended)
    ends: list[str] = []

    class Ends(Show):
        def ends(self, piece: Piece, place: int, total: int, left_s: float | None) -> None:
            ends.append(f"{place} of {total}")

    run_all(pieces_in(tmp_path / "two", "hsfl", "fl"), run_piece, has_ended, 2, Ends())
    assert ends == ["1 of 2", "2 of 2"]
    for label in ("hsfl", "fl"):
        assert_same_run(tmp_path / "one" / label, tmp_path / "two" / label)


def dies(piece: Piece, observer: Observer) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuses(piece: Piece, observer: Observer) -> None:
    raise InputError(f"{piece.name} is refused")


@pytest.mark.slow
def test_a_process_that_dies_or_refuses_is_one_line(tmp_path: Path) -> None:
    with raises(InputError, "--jobs", "goes on"):
        run_all(pieces_in(tmp_path, "hsfl", "fl"), dies, has_ended, 2)
    with pytest.raises(InputError, match="is refused"):
        run_all(pieces_in(tmp_path, "hsfl", "fl"), refuses, has_ended, 2)


LONG = ("train.rounds=100000", "train.budget_s=1e9", "log.checkpoint_every=100000")


def begun(out: Path) -> list[RunFolder]:
    """Two endless runs side by side, each of which has made a round."""
    folders = [RunFolder(out / label / "seed-0") for label in ("hsfl", "fl")]
    for _ in range(1800):
        if all(folder.rounds_path.exists() and folder.rounds_path.stat().st_size for folder in folders):
            return folders
        time.sleep(0.1)
    raise AssertionError("no round within three minutes")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_stopped_side_by_side_every_run_saves_its_state(tmp_path: Path, how: signal.Signals) -> None:
    """Also where the caller dies without a word: no process stays behind."""
    out = tmp_path / "out"
    words = ["compare", *tiny_words(*LONG), "-f", "hsfl", "-f", "fl", "--jobs", "2", "--out", str(out)]
    started = subprocess.Popen([sys.executable, "-m", "hsfl", *words], stdout=subprocess.PIPE, text=True)
    try:
        folders = begun(out)
        started.send_signal(how)
        said, _ = started.communicate(timeout=60)
    finally:
        started.kill()
    if how == signal.SIGINT:
        assert started.returncode == 130
        names(said, "same command")
    for folder in folders:
        for _ in range(300):
            if folder.summary_path.exists():
                break
            time.sleep(0.1)
        assert '"interrupted"' in folder.summary_path.read_text()
        assert folder.checkpoint_path.exists()  # written at the stop: none was due for 100,000 rounds


def test_the_start_says_where_the_budget_comes_from(tmp_path: Path) -> None:
    told: list[str] = []

    class Says(Show):
        def says(self, message: str) -> None:
            told.append(message)

    base = tiny("train.rounds=2")
    for config in (base, base, tiny("train.rounds=2", "train.budget_s=50")):
        run_contenders(config, ["fl"], tmp_path / str(len(told) // 2), ManyRuns(show=Says()))
    names(told[0], "FL needs", "2 rounds", "seed 0", "train.budget_s")
    names(told[1], f"{tmp_path / '0'}")
    names(told[2], "50 simulated seconds", "train.budget_s")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.slow
def test_compare_side_by_side(tmp_path: Path) -> None:
    words = [*tiny_words("train.rounds=1"), "-f", "hsfl", "-f", "fl", "--out", str(tmp_path / "out")]
    answer = hsfl("compare", *words, "--jobs", "2")
    assert answer.code == 0, answer.err
    names(answer.out, "2 runs", "2 processes", "one thread")
    assert "run 2 of 2: " in answer.out
    names(hsfl("compare", *words).out, "2 of 2 runs")
