"""Worker processes train what one process trains, to the bit, whatever their number and whoever dies."""

import os
import pickle
import signal
import threading
import time
from multiprocessing.util import get_temp_dir
from pathlib import Path

import pytest
import torch

from hsfl.engines import process_engine
from hsfl.engines.worker import HandOver, Setup, Train, Worker
from hsfl.errors import InputError
from hsfl.frameworks.copy_per_client import FSL, HSFL
from hsfl.models.state import Packed
from hsfl.runs.loop import Observer, train_run
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.training.aggregate import sum_memory
from tests.engines.runs import DROPS, ROBUST, begun, command, config, ctrl_c, losses, model_bytes, session_of, until
from tests.laws.bench import make_task
from tests.naming import names, raises


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def children() -> set[int]:
    return {p.pid for p in process_engine.mp.active_children() if p.pid is not None}


DRAWN = ("train.clients_per_round=3", "train.choose=samples", "train.receivers=chosen", "data.partition=quantity_skew")
OWN_HEADS = ("framework=fsl", "options.fsl.average=server")


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        (DROPS, 2),
        pytest.param(DROPS, 1, marks=pytest.mark.slow),
        pytest.param(DRAWN, 2, marks=pytest.mark.slow),
        pytest.param(DROPS, 3, marks=pytest.mark.slow),
        pytest.param(OWN_HEADS, 2, marks=pytest.mark.slow),
        pytest.param(ROBUST, 2, marks=pytest.mark.slow),
        pytest.param((*ROBUST, *OWN_HEADS), 3, marks=pytest.mark.slow),
    ],
)
def test_workers_train_the_same_bits_as_one_process(changes: tuple[str, ...], number: int, tmp_path: Path) -> None:
    train_run(config(*changes), tmp_path / "inline")
    out = tmp_path / "workers"
    train_run(config(*changes, "engine.name=workers", f"engine.workers={number}", "engine.threads=1"), out)
    assert model_bytes(out) == model_bytes(tmp_path / "inline")
    assert losses(out) == losses(tmp_path / "inline")
    assert not children()
    trained = [line.partition(" trained clients ") for line in (out / "workers.log").read_text().splitlines()]
    for record in RunFolder(out).rounds():
        mine = [whom.split() for who, _, whom in trained if who.startswith(f"round {record.round}: process ")]
        assert sorted(int(client) for some in mine for client in some) == sorted(record.kept)


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
    train_run(config(*long), tmp_path / "inline")
    killer = Killer()
    settings = config(*long, "engine.name=workers", "engine.workers=2", "engine.threads=1")
    train_run(settings, tmp_path / "killed", observer=killer)
    assert any("exit code -9, killed, perhaps for want of memory" in text for text in killer.warnings)
    assert model_bytes(tmp_path / "killed") == model_bytes(tmp_path / "inline")
    assert losses(tmp_path / "killed") == losses(tmp_path / "inline")
    assert killer.batches > 0
    assert not children()


def test_a_killed_worker_leaves_no_folder_of_its_own() -> None:
    """Sockets by which workers hand over memory lie in a folder of multiprocessing, which a worker that is killed cannot remove. So all
    workers use that of the run, which is removed at its end."""
    workers = process_engine.Workers(1, 1, print)
    try:
        config_of_worker = workers.helpers[0].process._config  # type: ignore[attr-defined]
        assert config_of_worker["tempdir"] == get_temp_dir()
    finally:
        workers.close()


def test_a_run_goes_on_with_another_engine(tmp_path: Path) -> None:
    train_run(config("train.rounds=3"), tmp_path / "inline")
    train_run(config("train.rounds=1"), tmp_path / "moved")
    train_run(
        config("train.rounds=3", "engine.name=workers", "engine.workers=2", "engine.threads=1"),
        tmp_path / "moved",
        resume=True,
    )
    assert model_bytes(tmp_path / "moved") == model_bytes(tmp_path / "inline")


def test_what_goes_wrong_in_a_worker_is_told_here(tmp_path: Path) -> None:
    told = Killer()
    told.round_starts = lambda *_: None  # type: ignore[method-assign]
    summary = train_run(config("train.optimizer=sgd", "train.lr=1e30", "engine.name=workers", "engine.workers=2"),
                  tmp_path / "wild", observer=told)  # fmt: skip
    assert summary.status == "diverged"
    assert any("lower train.lr" in text for text in told.warnings)
    assert not children()


def test_workers_that_die_again_and_again_end_the_run_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_engine, "_worker_life", time.sleep)  # called with a pipe: dies at once
    with pytest.raises(InputError, match=r"lower engine\.workers"):
        train_run(config("engine.name=workers", "engine.workers=2"), tmp_path / "dying")
    assert not children()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("engine.workers=9", "fleet.num_clients=2", "fleet.cuts=1"), "engine.workers is 9"),
        (("framework=sl",), "sl trains its clients in turn or in step"),
    ],
)
def test_what_has_no_effect_is_said(changes: tuple[str, ...], words: str, tmp_path: Path) -> None:
    told = Killer()
    told.round_starts = lambda *_: None  # type: ignore[method-assign]
    train_run(config("train.rounds=1", "engine.name=workers", *changes), tmp_path / "run", observer=told)
    assert any(words in text for text in told.warnings)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["ctrl-c", "kill"])
def test_no_process_is_left_behind(end: str, tmp_path: Path) -> None:
    """After Ctrl-C the run can go on; after the death of the run itself its workers end, too."""
    out = tmp_path / "run"
    words = command(out, "engine.name=workers", "engine.workers=2", "engine.threads=1", "train.rounds=2000")
    process = begun(words)
    try:
        assert until(120, lambda: (out / "rounds.jsonl").exists() and RunFolder(out).rounds())
        assert len(session_of(process.pid)) >= 2
        if end == "ctrl-c":
            ctrl_c(process)
            process.wait(60)
            assert RunFolder(out).ended().status == "interrupted"
        else:
            process.kill()
            process.wait(10)
        assert until(20, lambda: not session_of(process.pid)), session_of(process.pid)
    finally:
        process.kill()
        process.communicate()


def test_ctrl_c_while_workers_import_prints_no_traceback(tmp_path: Path) -> None:
    """The whole session gets the signal, as in a terminal; the workers are in the midst of their imports."""
    process = begun(command(tmp_path / "run", "train.rounds=40", "engine.name=workers", "engine.workers=2"))
    assert until(60, lambda: len(session_of(process.pid)) >= 3)
    time.sleep(0.2)
    ctrl_c(process)
    told, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in told + said
    assert until(10, lambda: not session_of(process.pid))


@pytest.mark.parametrize(("own", "number", "threads"), [(1, 1, 1), (2, 1, 2), (2, 2, 1), (8, 1, 4)])
def test_a_worker_has_no_more_threads_than_the_run_would_have_inline(
    own: int, number: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_engine, "num_cores", lambda: 2 if own < 8 else 4)
    monkeypatch.setattr(process_engine.Workers, "_spawn", lambda self: None)
    torch.set_num_threads(own)
    engine = process_engine.Workers.start(config("engine.name=workers", f"engine.workers={number}"), print)
    assert engine.num_threads == threads


def test_a_finished_run_that_is_resumed_ends_its_workers_quietly(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The workers are told to end while they take over shared memory; multiprocessing prints what that breaks."""
    train_run(config("train.rounds=1"), tmp_path / "run")
    train_run(config("train.rounds=1", "engine.name=workers", "engine.workers=2"), tmp_path / "run", resume=True)
    assert "Traceback" not in capfd.readouterr().err


def test_more_workers_than_cores_are_started_and_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    monkeypatch.setattr(process_engine, "num_cores", lambda: 2)
    monkeypatch.setattr(process_engine.Workers, "_spawn", lambda self: None)
    engine = process_engine.Workers.start(config("engine.name=workers", "engine.workers=4"), said.append)
    (warning,) = said
    names(warning, "engine.workers is 4", "2 cores")
    assert (len(engine.helpers), engine.num_threads) == (4, 1)
    process_engine.Workers.start(config("engine.name=workers", "engine.workers=2", "engine.threads=2"), said.append)
    assert said[1:] == [
        "engine.workers is 2 and engine.threads 2 but this machine has 2 cores; the workers wait for each other"
    ]


def test_clients_with_heads_of_their_own_cross_as_two_tensors() -> None:
    """A tensor that crosses a process border takes a file descriptor, of which a process often has 1,024."""
    framework = FSL(make_task([1, 2, 3], [4, 4, 4], options={"fsl": {"average": "server"}}))
    shard = framework.train(framework.init(), [0, 1, 2], 0, 12)
    assert len(shard.heads) == 3
    again = pickle.loads(pickle.dumps(shard))
    assert again.heads.keys() == shard.heads.keys()
    for client, head in shard.heads.items():
        assert torch.equal(again.heads[client].floats, head.floats)
        assert torch.equal(again.heads[client].ints, head.ints)
    owners = {head.floats.untyped_storage().data_ptr() for head in again.heads.values()}
    assert len(owners) == 1
    assert Packed.of({}).states() == {}


def test_no_room_to_share_memory_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError(
            "unable to allocate shared memory(shm) for file </torch_1_2_3>: No space left on device (28)"
        )

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    with raises(InputError, "/dev/shm", "more room", "engine.name=inline"):
        train_run(config("engine.name=workers", "engine.workers=1"), tmp_path / "run")
    assert not children()
    assert process_engine._shared_memory_error(RuntimeError("something else")) is None


def test_a_second_shard_of_a_round_leaves_the_first_as_it_is() -> None:
    """Where a worker dies, another gets its clients, though it may have handed its own sum over already."""
    task = make_task([1, 2, 3, 5], [6, 8, 4, 7])
    framework = HSFL(task)
    memory = sum_memory(task.initial, 0, task.num_units)
    one = Worker(Setup(task, task.feed.images, 10), lambda begun: None, memory)
    one.state = framework.init()
    shards = []
    for clients in ((0, 1), (2,)):
        one.carry_out(Train(0, 100, clients))
        shards.append(one.carry_out(HandOver()).shard)
        assert process_engine._lies_in(memory, shards[-1]) == (len(shards) == 1)
    first = process_engine.Handed.of(shards[0]).shard(memory)
    assert torch.equal(first.total.total.floats, framework.train(one.state, (0, 1), 0, 100).total.total.floats)
    assert first.total.weight.tolist() == shards[0].total.weight.tolist()
    one.carry_out(Train(1, 100, (3,)))  # the next round has the memory again, from nothing
    again = one.carry_out(HandOver()).shard
    assert process_engine._lies_in(memory, again)
    assert torch.equal(again.total.total.floats, framework.train(one.state, (3,), 1, 100).total.total.floats)
