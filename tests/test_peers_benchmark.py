"""The comparison with other packages: its work, its pairs, its memory and what it says of ratios. The smoke run is in test_benchmarks.py."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from hsfl.models.zoo import build

PEERS = Path(__file__).parent.parent / "benchmarks" / "peers"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of benchmarks/peers."""
    monkeypatch.syspath_prepend(str(PEERS))

    def module(name: str) -> ModuleType:
        return importlib.import_module(name)

    return module


# --- the work


def test_the_shared_resnet_is_the_network_of_hsfl(peers: Any) -> None:
    """With the same weights in the same order, the two give the same outputs up to rounding, for images of any size."""
    shared = peers("shared_work")
    own, torch_model = build("resnet18", (3, 32, 32), 10, seed=1).eval(), shared.resnet18(3).eval()
    shared.load_arrays(torch_model, shared.arrays_of(own))
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(own(x), torch_model(x), atol=1e-5)
    assert sum(p.numel() for p in shared.cnn(1).parameters()) == 582_026


@pytest.fixture
def prepared(peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Path]:
    shared = peers("shared_work")
    monkeypatch.setattr(shared, "WORKS", {"quick": shared.WORKS["quick"]})
    shared.prepare(tmp_path)
    return shared, shared.WORKS["quick"], tmp_path


def test_fedavg_of_one_client_is_its_training(prepared: tuple[Any, Any, Path]) -> None:
    shared, work, folder = prepared
    model, (x, y) = shared.make_model(work, folder), shared.read_tensors(work, folder)
    shared.train_batches(model, work.lr, shared.batches_of(work, x, y, 3))
    federated = shared.plain_fedavg(work, folder, "contiguous", shared.natural_plan(work, [[3]]))
    assert all(np.array_equal(a, b) for a, b in zip(federated, shared.arrays_of(model), strict=True))


def test_fedavg_of_two_clients_is_the_mean(prepared: tuple[Any, Any, Path]) -> None:
    shared, work, folder = prepared
    alone = [shared.plain_fedavg(work, folder, "contiguous", shared.natural_plan(work, [[k]])) for k in (1, 4)]
    both = shared.plain_fedavg(work, folder, "contiguous", shared.natural_plan(work, [[1, 4]]))
    assert all(np.allclose((a + b) / 2, mean, atol=1e-7) for a, b, mean in zip(*alone, both, strict=True))


def test_batches_are_counted_where_a_model_trains_and_nowhere_else(
    prepared: tuple[Any, Any, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shared, work, folder = prepared
    counts = tmp_path / "counts"
    counts.mkdir()
    model, (x, y) = shared.make_model(work, folder), shared.read_tensors(work, folder)
    monkeypatch.setattr(shared, "COUNTS", shared.Counts())
    monkeypatch.setenv(shared.COUNTS_VARIABLE, str(counts))
    shared.train_batches(model, work.lr, shared.batches_of(work, x, y, 0))
    model.eval()(x[:3])
    with torch.no_grad():
        model.train()(x[:3])
    steps, samples, first_update = shared.read_counts(counts)
    assert (steps, samples) == (2, 20)
    assert first_update is not None


def test_a_weight_that_is_off_is_seen(prepared: tuple[Any, Any, Path], tmp_path: Path) -> None:
    shared, work, folder = prepared
    clients = [work.clients_of(0), work.clients_of(1)]
    weights = shared.plain_fedavg(work, folder, "contiguous", shared.natural_plan(work, clients))
    (tmp_path / "trained.json").write_text(
        json.dumps({"work": "quick", "memory_format": "contiguous", "clients": clients})
    )
    for error in (0.0, 0.25):
        weights[0].flat[7] += error
        np.savez(tmp_path / "trained.npz", *weights)
        assert shared.check(tmp_path, folder)["largest_difference"] == pytest.approx(error, abs=1e-6)


# --- pairs


def test_rounds_and_bare_rounds_take_turns(peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peer, bare, bare, peer, peer, bare: each pair has its neighbours, and the bare loops begin after the warm-up."""
    paired, events = peers("paired_rounds"), list[str]()

    class Bare:
        def __init__(self, *given: object) -> None:
            events.append("bare starts")

        def round_s(self, memory_format: str) -> float:
            events.append(memory_format[0:2])
            return float(len(events))

        def close(self) -> None:
            events.append("bare ends")

    monkeypatch.setattr(paired, "Bare", Bare)
    spec = {
        "work": "quick",
        "folder": tmp_path,
        "shared": tmp_path,
        "rounds": 3,
        "processes": 1,
        "memory_format": "contiguous",
    }
    rounds = paired.PairedRounds(spec)
    rounds.begin()
    for index in range(rounds.total_rounds):
        events.append(f"peer {index}")
        rounds.round_done(None)
    bare, again = ["co", "ch"], ["ch", "co"]
    warm = ["peer 0", "peer 1", "bare starts", *bare]
    assert events == [*warm, "peer 2", *bare, *again, "peer 3", "peer 4", *bare, "bare ends"]
    pairs = json.loads((tmp_path / "pairs.json").read_text())["pairs"]
    assert [sorted(pair) for pair in pairs] == [["channels_last", "contiguous", "peer"]] * 3
    assert pairs[1]["channels_last"] < pairs[1]["contiguous"]  # of the second two, in the other order


# --- memory

ORPHAN = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    data = bytearray(80_000_000)
    open(sys.argv[1], "w").write(str(os.getpid()))
    time.sleep(60)
time.sleep(1.5)
"""
WATCH = """
import json, os, sys
from pathlib import Path
from process_tree import run_watched
folder = Path(sys.argv[1])
watched = run_watched([sys.executable, "-c", sys.argv[2], str(folder / "pid")], dict(os.environ), folder / "log", folder / "until", 30)
pid = int((folder / "pid").read_text())
print(json.dumps([watched.code, watched.peak_bytes, Path(f"/proc/{pid}").exists()]))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
def test_memory_counts_a_daemon_and_ends_it(tmp_path: Path) -> None:
    """A child that outlives its parent is counted while it lives, and killed at the end."""
    command = [sys.executable, "-c", WATCH, str(tmp_path), ORPHAN]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=PEERS, timeout=60)
    code, peak_bytes, lives = json.loads(done.stdout)
    assert code == 0
    assert 80e6 < peak_bytes < 200e6
    assert not lives


# --- what is said


def start(variant: str, ratios: list[float], **others: Any) -> dict[str, Any]:
    """A start with these ratios to the contiguous bare loop; the other bare loop takes half as long again."""
    pairs = [{"peer": 1.0, "contiguous": ratio, "channels_last": 1.5 * ratio} for ratio in ratios]
    return {
        "variant": variant, "work": "cnn", "memory_format": "contiguous", "load": [0.5, 0.5, 0.5], "pairs": pairs,
        "peak_bytes": 3e8, "first_update_s": 2.0, "largest_difference": 0.0, "largest_change": 0.1, **others,
    }  # fmt: skip


def result(**ratios: list[list[float]]) -> dict[str, Any]:
    variants = {
        name: {
            "name": name, "peer": "hsfl" if name == "hsfl_fl" else name, "title": name, "tuning": "-", "processes": 1,
            "settings": {"framework": "fl"} if name == "hsfl_fl" else {},
        }
        for name in ratios
    }  # fmt: skip
    return {
        "measured": "2026-11-19", "machine": {"processor": "one", "cores": 2, "memory_gb": 8, "system": "Linux"},
        "versions": {"pfl": {"pfl": "0.6.0"}}, "works": {"cnn": {"per_round": 50, "num_samples": 20}}, "variants": variants,
        "not_installed": [], "starts": [start(name, of_start) for name, starts in ratios.items() for of_start in starts],
    }  # fmt: skip


def test_only_an_interval_that_excludes_1_says_ahead_or_behind(peers: Any) -> None:
    report = peers("report")
    noisy = [[0.8, 1.1, 1.3], [0.7, 0.9, 1.2]]
    rows = report.rows_of(result(fast=[[1.2] * 4] * 3, slow=[[0.9] * 4] * 3, noisy=noisy), "cnn")
    assert [row.verdict for row in rows] == ["ahead", "behind", "not told apart"]


def test_few_rounds_say_nothing(peers: Any) -> None:
    report = peers("report")
    few, enough = report.rows_of(result(few=[[1.2] * 4], enough=[[1.2] * 5]), "cnn")
    assert (few.verdict, enough.verdict) == ("too few rounds", "ahead")


def test_a_peer_is_judged_by_the_faster_bare_loop(peers: Any) -> None:
    """1.2 of the contiguous loop and 1.8 of the slower one: the smaller ratio counts."""
    report = peers("report")
    (row,) = report.rows_of(result(fast=[[1.2] * 4] * 3), "cnn")
    assert (row.faster_bare, row.ratio("contiguous")) == ("contiguous", 1.2)


def test_starts_with_luck_of_their_own_widen_the_interval(peers: Any) -> None:
    """Three starts at 0.9, 1.1 and 1.3, each without spread: a bootstrap over pooled pairs alone would be surer than three starts allow."""
    report = peers("report")
    (row,) = report.rows_of(result(peer=[[0.9] * 20, [1.1] * 20, [1.3] * 20]), "cnn")
    assert report.interval(row.medians["contiguous"]) == (0.9, 1.3)


def test_where_hsfl_loses_is_said(peers: Any) -> None:
    report = peers("report")
    said = report.block(result(hsfl_fl=[[0.9, 0.91]] * 3, pfl=[[1.0, 1.01]] * 3, fluke=[[0.7, 0.71]] * 3))
    assert "hsfl_fl (contiguous) LOSES to pfl (contiguous)" in said
    assert "hsfl_fl (contiguous) is ahead of fluke (contiguous)" in said


def test_a_start_that_failed_is_named_and_not_counted(peers: Any) -> None:
    report = peers("report")
    found = result(pfl=[[1.0, 1.0]])
    found["starts"].append({"variant": "pfl", "work": "cnn", "load": [1, 1, 1], "failed": "trained 3 batches"})
    assert "| 2 in 1 |" in report.block(found)
    assert "Failed: pfl on cnn: trained 3 batches." in report.block(found)


def test_the_block_of_the_document_is_replaced_alone(peers: Any, tmp_path: Path) -> None:
    report = peers("report")
    document = tmp_path / "benchmarks.md"
    document.write_text(report.DOCUMENT.read_text())
    before = document.read_text()
    for text in ("other figures", report.NOT_MEASURED):
        report.write_block(text, document)
        assert text in document.read_text()
    measured = report.NOT_MEASURED not in before
    assert document.read_text() == before or measured
