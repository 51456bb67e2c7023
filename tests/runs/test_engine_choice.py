"""Where clients are trained when nobody says where."""

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hsfl.config import EngineConfig
from hsfl.runs import engine_choice
from hsfl.runs.engine_choice import with_chosen_engine
from hsfl.runs.loop import train_run
from hsfl.runs.prepare import prepare
from tests.small_runs import tiny

WORKERS = EngineConfig(name="workers", workers=2, threads=1)
HERE = EngineConfig(name="inline", threads=1)


def became(*changes: str) -> EngineConfig:
    return with_chosen_engine(prepare(tiny(*changes))).task.config.engine


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is long, on a machine of two cores."""
    monkeypatch.setattr(engine_choice, "LONG_FLOPS", 0.0)
    monkeypatch.setattr(engine_choice, "num_cores", lambda: 2)


def test_a_short_run_stays_in_this_process() -> None:
    assert became() == HERE


def test_workers_are_for_long_runs_whose_clients_can_be_spread(long: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert became() == WORKERS
    assert became("framework=sl") == HERE
    assert became("train.clients_per_round=1") == HERE
    monkeypatch.setattr(engine_choice, "num_cores", lambda: 1)
    assert became() == HERE


def test_a_run_is_long_by_all_that_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flops of one sample x 60 samples x 3 rounds, two thirds of them where two of three clients take part."""
    monkeypatch.setattr(engine_choice, "num_cores", lambda: 2)
    bench = prepare(tiny())
    monkeypatch.setattr(engine_choice, "LONG_FLOPS", float(bench.world.cost.client_flops[-1]) * 60 * 3)
    assert became() == WORKERS
    assert became("train.rounds=2") == HERE
    assert became("train.clients_per_round=2") == HERE
    assert became("train.clients_per_round=2", "train.local_epochs=2") == WORKERS


def test_what_is_asked_for_is_given(long: None) -> None:
    assert became("engine.workers=3", "engine.threads=2") == EngineConfig(name="workers", workers=3, threads=2)
    assert became("framework=sl", "engine.threads=2") == EngineConfig(name="inline", threads=2)


def test_several_threads_are_for_large_batches_of_long_runs_in_one_process(
    long: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert became("framework=sl").threads == 1
    monkeypatch.setattr(engine_choice, "LARGE_FLOPS", 0.0)
    assert became("framework=sl").threads == 4
    assert became() == WORKERS
    monkeypatch.setattr(engine_choice, "LONG_FLOPS", 1e18)
    assert became("framework=sl").threads == 1


def test_no_workers_where_they_have_no_room(long: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    assert became() == HERE
    monkeypatch.undo()


def test_no_workers_in_a_process_of_many_runs(long: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    assert became() == HERE


@pytest.mark.parametrize(("guard", "name"), [('if __name__ == "__main__":\n    ', "workers"), ("", "inline")])
def test_a_script_that_would_run_again_gets_no_workers(
    guard: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: None
) -> None:
    script = tmp_path / "mine.py"
    script.write_text(f"{guard}print('train')\n")
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=str(script)))
    assert became().name == name


def test_config_json_says_what_it_became_and_threads_are_given_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        train_run(tiny("train.rounds=1"), tmp_path / "run")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["engine"]["name"] == "inline"
    assert json.loads((tmp_path / "run" / "config.json").read_text())["engine"]["threads"] == 1
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["num_threads"] == 1


@pytest.mark.slow
def test_a_script_without_a_guard_trains_as_it_is(tmp_path: Path) -> None:
    """A long run from a script's first level, where workers would run the script again."""
    (tmp_path / "mine.py").write_text(
        "from hsfl.runs import engine_choice\nimport hsfl\nengine_choice.LONG_FLOPS = 0\n"
        f"hsfl.run('demo', {str(tmp_path / 'run')!r}, ['data.limit=60', 'train.rounds=1', 'allocation.policy=even', 'fleet.cuts=2', 'model.name=cnn'])\n"
    )
    subprocess.run([sys.executable, tmp_path / "mine.py"], check=True, timeout=300)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["engine"]["name"] == "inline"
