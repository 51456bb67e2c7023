"""Worker processes train what one process trains, to the bit, whatever their number and whoever dies."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from hsfl.config import RunConfig, read_config
from hsfl.engines import workers
from hsfl.errors import InputError
from hsfl.runs.folder import RunFolder
from hsfl.runs.loop import Observer, run

SMALL = ["data.name=digits", "data.limit=240", "data.limit_test=60", "model.name=cnn", "train.batch_size=16",
         "train.rounds=2", "fleet.num_clients=5", "fleet.cuts=[1,2,3,1,2]", "train.optimizer=adam"]  # fmt: skip


def config(*changes: str) -> RunConfig:
    return read_config(None, [*SMALL, *changes])


def model_bytes(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def losses(folder: Path) -> list[tuple[float | None, float | None, float | None]]:
    return [(r.train_loss, r.test_loss, r.test_accuracy) for r in RunFolder(folder).rounds()]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def children() -> set[int]:
    return {p.pid for p in workers.mp.active_children() if p.pid is not None}


DROPS = ("train.drop_rate=0.3", "train.rounds=3")
DRAWN = ("train.clients_per_round=3", "train.choose=samples", "train.receivers=chosen", "data.partition=quantity_skew")
OWN_HEADS = ("framework=fsl", "options.fsl.average=server")


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        (DROPS, 2),
        pytest.param(DRAWN, 2, marks=pytest.mark.slow),
        pytest.param(DROPS, 3, marks=pytest.mark.slow),
        pytest.param(OWN_HEADS, 2, marks=pytest.mark.slow),
    ],
)
def test_workers_train_the_same_bits_as_one_process(changes: tuple[str, ...], number: int, tmp_path: Path) -> None:
    run(config(*changes), tmp_path / "inline")
    out = tmp_path / "workers"
    run(config(*changes, "engine.name=workers", f"engine.workers={number}", "engine.threads=1"), out)
    assert model_bytes(out) == model_bytes(tmp_path / "inline")
    assert losses(out) == losses(tmp_path / "inline")
    assert not children()


class Killer(Observer):
    """Kills a worker in the middle of the second round."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.batches = 0

    def batch_starts(self, client: int, num_samples: int) -> None:
        self.batches += 1

    def round_starts(self, round_number: int, kept: object, num_samples: int) -> None:
        if round_number == 2:
            victim = min(children())
            threading.Timer(0.05, os.kill, (victim, signal.SIGKILL)).start()

    def warns(self, message: str) -> None:
        self.warnings.append(message)


def test_a_killed_worker_is_replaced_and_the_numbers_stay(tmp_path: Path) -> None:
    long = ["data.limit=800", "train.local_epochs=2"]
    run(config(*long), tmp_path / "inline")
    killer = Killer()
    settings = config(*long, "engine.name=workers", "engine.workers=2", "engine.threads=1")
    run(settings, tmp_path / "killed", observer=killer)
    assert any("a worker ended by itself (exit code -9" in text for text in killer.warnings)
    assert model_bytes(tmp_path / "killed") == model_bytes(tmp_path / "inline")
    assert losses(tmp_path / "killed") == losses(tmp_path / "inline")
    assert killer.batches > 0
    assert not children()


def test_a_run_goes_on_with_another_engine(tmp_path: Path) -> None:
    run(config("train.rounds=3"), tmp_path / "inline")
    run(config("train.rounds=1"), tmp_path / "moved")
    run(
        config("train.rounds=3", "engine.name=workers", "engine.workers=2", "engine.threads=1"),
        tmp_path / "moved",
        resume=True,
    )
    assert model_bytes(tmp_path / "moved") == model_bytes(tmp_path / "inline")


def test_what_goes_wrong_in_a_worker_is_told_here(tmp_path: Path) -> None:
    told = Killer()
    told.round_starts = lambda *_: None  # type: ignore[method-assign]
    summary = run(config("train.optimizer=sgd", "train.lr=1e30", "engine.name=workers", "engine.workers=2"),
                  tmp_path / "wild", observer=told)  # fmt: skip
    assert summary.status == "diverged"
    assert any("lower train.lr" in text for text in told.warnings)
    assert not children()


def test_workers_that_die_again_and_again_end_the_run_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "work", time.sleep)  # called with a pipe: dies at once
    with pytest.raises(InputError, match=r"lower engine\.workers"):
        run(config("engine.name=workers", "engine.workers=2"), tmp_path / "dying")
    assert not children()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("engine.workers=9", "fleet.num_clients=2", "fleet.cuts=1"), "engine.workers is 9 but a round has 2 clients"),
        (("framework=sl",), "sl trains its clients in turn or in step"),
    ],
)
def test_what_has_no_effect_is_said(changes: tuple[str, ...], words: str, tmp_path: Path) -> None:
    told = Killer()
    told.round_starts = lambda *_: None  # type: ignore[method-assign]
    run(config("train.rounds=1", "engine.name=workers", *changes), tmp_path / "run", observer=told)
    assert any(words in text for text in told.warnings)
