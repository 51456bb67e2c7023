"""Trainings keep counting: they match by what changes learning, at the scale that they are of, and nothing is trained twice."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hsfl.config import flatten, read_config, with_changes
from hsfl.experiments.study_request import StudyRequest
from hsfl.experiments.table1 import learned_settings, tau_row, traces
from hsfl.experiments.table1.columns import DATASETS, SEVEN, base_config, seeds_of, trace_config, traces_of
from hsfl.experiments.table1.traces import (
    Trace,
    TraceRound,
    at_budget,
    find_trace,
    read_trace,
    trace_file_name,
    trace_fits,
    train_ahead,
)
from hsfl.runs.loop import train_run
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.studies.run_many import Piece, Show
from tests.small_runs import hsfl

RESULTS = Path(__file__).parents[3] / "docs" / "results"


def make_trace(data: str = "mnist", trace: str = "twins", every: int = 1, **changes: object) -> Trace:
    config = trace_config(data, "full", 1, trace)
    rounds = tuple(
        TraceRound(number, 1.0, *((0.5, number / 1000, 0.1) if number % every == 0 else (None, None, None)), ())
        for number in range(1, config.train.rounds + 1)
    )
    return replace(Trace(data, trace, 1, config, (10,) * 10, rounds, {}), **changes)


def test_every_setting_is_said_to_change_learning_or_not() -> None:
    """A new setting is put into one of the tables by whoever adds it."""
    tables = (learned_settings.LEARNED, learned_settings.CUTS, learned_settings.CLOCK, learned_settings.NEITHER)
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names))
    for setting in flatten(read_config("paper-mnist").model_dump(mode="json")):
        homes = [name for name in names if name == setting or (name.endswith(".") and setting.startswith(name))]
        assert len(homes) == 1, f"{setting} stands in {homes or 'no table'} of hsfl.experiments.table1.learned_settings"


@pytest.mark.parametrize(
    "change",
    ["train.lr=0.01", "train.local_epochs=0.4", "train.batch_size=16", "data.alpha=0.1", "model.norm=group", "seed=2",
     "fleet.num_clients=9", "train.drop_rate=0.1", "data.limit=100", "train.weight_decay=0.01"],
)  # fmt: skip
def test_a_trace_of_other_learning_does_not_count(change: str) -> None:
    made = make_trace()
    assert trace_fits(made, made.config)
    assert not trace_fits(made, with_changes(made.config, [change]))


@pytest.mark.parametrize(
    "change",
    ["network.main_hz=1e11", "allocation.policy=proposed", "fleet.cuts=2", "engine.name=workers", "log.model_every=3",
     "network.full_batches=true", "train.budget_s=60", "allocation.samples=7", "fleet.cpu_hz=[1e9, 2e9]"],
)  # fmt: skip
def test_a_trace_counts_whatever_only_changes_seconds(change: str) -> None:
    """The twins are one algorithm a round whatever their cuts; SL's optimiser begins anew in the head, so its cut matters."""
    made, sl = make_trace(), make_trace(trace="sl")
    assert trace_fits(made, with_changes(made.config, [change]))
    assert trace_fits(sl, with_changes(sl.config, [change])) == (not change.startswith("fleet."))


def test_a_trace_must_be_tested_as_often_and_trained_as_long() -> None:
    fifth, each = make_trace(every=5), make_trace(every=1)
    often = with_changes(fifth.config, ["train.eval_every=1"])
    assert fifth.config.train.eval_every == 5
    assert trace_fits(fifth, fifth.config)
    assert trace_fits(each, fifth.config)
    assert not trace_fits(fifth, often)
    assert not trace_fits(fifth, with_changes(fifth.config, ["train.rounds=51"]))


def test_the_last_tested_model_within_the_budget_counts() -> None:
    trace = make_trace(every=5)
    assert at_budget(trace, [1.0] * 50, 12.0).value == pytest.approx(0.010)
    assert at_budget(trace, [1.0] * 50, 12.0).rounds == 12
    assert at_budget(trace, [1.0] * 50, 4.0).value is None


@pytest.mark.parametrize("name", traces_of(SEVEN))
@pytest.mark.parametrize("data", DATASETS)
def test_committed_trainings_count(data: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hsfl reproduce table1 --seeds 3` trains nothing; the whole command is a slow test."""
    monkeypatch.setattr(traces, "run_or_resume", refuse)
    request = StudyRequest(tmp_path, "quick", 3, print, shipped=RESULTS)
    for seed in seeds_of("quick", 3):
        found = find_trace(request, data, name, seed)
        assert found.seed == seed


FULL = sorted(RESULTS.glob("*-full-seed-*.csv"))


@pytest.mark.parametrize("path", FULL, ids=lambda path: path.stem)
def test_committed_trainings_of_full_scale_count(path: Path) -> None:
    """Hours of training each."""
    trace = read_trace(path)
    assert path.name == trace_file_name(trace.data, trace.name, "full", trace.seed)
    assert trace_fits(trace, trace_config(trace.data, "full", trace.seed, trace.name))


def refuse(*words: object) -> None:
    raise AssertionError("a training was begun")


@pytest.mark.slow
def test_table1_of_the_committed_trainings_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "run_or_resume", refuse)
    monkeypatch.setattr("hsfl.experiments.table1.tau_row.run_or_resume", refuse)
    words = ["--seeds", 3, "--results", RESULTS, "--out", tmp_path, "--quiet"]
    assert hsfl("reproduce", "table1", *words).code == 0
    assert not (tmp_path / "table1" / "runs").exists()


def test_scales_are_never_mixed() -> None:
    assert trace_file_name("mnist", "twins", "full", 1) == "mnist-twins-full-seed-1.csv"
    assert trace_file_name("mnist", "fl,train.lr=0.1", "full", 1) == "mnist-fl_train.lr-0.1-full-seed-1.csv"
    quick = read_trace(RESULTS / trace_file_name("mnist", "twins", "quick", 1))
    assert not trace_fits(quick, trace_config("mnist", "full", 1, "twins"))


@pytest.mark.parametrize(
    ("data", "samples", "epochs"),
    [("cifar10", 3_000_000, 30), ("mnist", 600_000, 5), ("ham10000", 60 * 8009, 30)],
)
def test_full_scale_charges_what_it_trains(data: str, samples: int, epochs: int) -> None:
    num_train = {"cifar10": 50_000, "mnist": 60_000, "ham10000": 8009}[data]
    base = base_config(data, "full", 1)
    assert base.network.sample_scale == 1
    assert base.data.limit is None
    assert not base.network.full_batches
    assert base.train.rounds * base.train.local_epochs * num_train == pytest.approx(samples)
    sl = trace_config(data, "full", 1, "sl").train
    assert sl.rounds * sl.local_epochs == pytest.approx(epochs)


def test_both_accuracies_stand_in_a_trace_of_estimated_statistics(tmp_path: Path) -> None:
    changes = ["train.norm_statistics=estimated", "model.norm=batch", "train.eval_every=2"]
    train_run(with_changes(trace_config("digits", "smoke", 1, "twins"), changes), tmp_path / "run")
    trace = traces.write_trace(tmp_path / "trace.csv", tmp_path / "run", "digits", "twins")
    records = RunFolder(tmp_path / "run").rounds()
    assert [row.test_accuracy is None for row in trace.rounds] == [True, False, True, False]
    for row, record in zip(trace.rounds, records):
        if record.averaged is not None:
            assert row.averaged_accuracy == pytest.approx(record.averaged["test_accuracy"], abs=1e-6)
            assert row.averaged_loss == pytest.approx(record.averaged["test_loss"], rel=1e-5)
    assert trace.rounds[-1].averaged_loss != trace.rounds[-1].test_loss


# Trainings of `hsfl reproduce` side by side give the traces that one after another gives.


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
    for name, jobs, show in (("apart", 1, Show()), ("beside", 2, seen)):
        request = StudyRequest(tmp_path / name, "smoke", None, lambda text: None, jobs=jobs, show=show)
        train_ahead(request, WANTED)
        assert (request.out / "runs").exists() == (jobs > 1)
        for key in WANTED:
            find_trace(request, *key)
    assert sorted(seen.ended) == ["digits, sl, seed 1", "digits, twins, seed 1"]
    for key in WANTED:
        apart, beside = (
            tmp_path / name / "traces" / trace_file_name(*key[:2], "smoke", key[2]) for name in ("apart", "beside")
        )
        assert apart.read_text() == beside.read_text()
    again = Seen()
    train_ahead(StudyRequest(tmp_path / "beside", "smoke", None, print, jobs=2, show=again), WANTED)
    assert again.ended == []


@pytest.mark.slow
def test_two_jobs_train_the_same_rows_with_tau(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tau so short that columns drop clients, there are several trainings to be made at a time."""
    monkeypatch.setattr(tau_row, "TAU_ROUNDS", 0.5)
    torch.set_num_threads(1)
    seen, rows = Seen(), []
    for name, jobs, show in (("apart", 1, Show()), ("beside", 2, seen)):
        request = StudyRequest(tmp_path / name, "smoke", None, lambda text: None, jobs=jobs, show=show)
        rows.append(tau_row.reproduce_tau_row(request, [1, 2], "digits"))
    assert rows[0] == rows[1]
    own = [f"digits, {row.column} with tau, seed {row.seed}" for row in rows[0] if row.first_drop is not None]
    assert sorted(seen.ended) == sorted(own)
    assert len(own) > 1
