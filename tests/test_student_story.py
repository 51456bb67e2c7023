"""A student's afternoon, small: own data, own model, own policy from a plugin, a comparison, and its table read back."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hsfl
from tests.plugins.files import unload

POLICY = """
import numpy as np

import hsfl


def shallow_for_the_slow(samples):
    speed = np.mean([sample.cpu_hz for sample in samples], axis=0)
    return np.where(speed < np.median(speed), samples[0].min_cut, samples[0].max_cut)


hsfl.register_policy("slow_first", cuts=shallow_for_the_slow)
"""
MACHINES = 5


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Begins and ends without plugins."""
    unload()
    yield
    unload()


def recordings() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Windows of two sensors [n, 2, 16]: the class is which of three tones they hold; each machine records with its own noise."""
    rng = np.random.default_rng(0)
    labels, machines = rng.integers(0, 3, 300).astype(np.uint8), rng.integers(0, MACHINES, 300)
    time, phase = np.arange(16), rng.random((300, 1))
    tone = np.sin(2 * np.pi * ((labels[:, None] + 1) * time / 16 + phase))
    windows = np.stack([tone, np.roll(tone, 4, axis=1)], axis=1)
    return windows + 0.1 * (1 + machines[:, None, None]) * rng.standard_normal(windows.shape), labels, machines


def test_own_model_own_data_own_policy_and_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_policy.py").write_text(POLICY)
    windows, labels, machines = recordings()
    data = hsfl.dataset(windows, labels, clients=machines, classes=["low", "middle", "high"], name="tones")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(2, 8, 5, padding=2), nn.ReLU(), nn.AdaptiveMaxPool1d(4), nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3)
    )  # fmt: skip
    settings = ["data.partition=given", "fleet.cuts=planned", "allocation.samples=2", "train.batch_size=16"]
    own = {"data": data, "model": model, "plugins": ["my_policy.py"], "fleet": {"num_clients": MACHINES}}

    plan = hsfl.plan(None, settings, allocation={"policy": "slow_first"}, **own)
    contenders = [
        "hsfl,allocation.policy=slow_first",
        "hsfl,allocation.policy=proposed",
        "fl,allocation.policy=proposed",
    ]
    found = hsfl.compare(
        None, contenders, "runs/tones", settings, seeds=2, target=0.6, train={"rounds": 4, "lr": 0.02}, **own
    )

    with Path("runs/tones/rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found.table())
    assert {row["label"] for row in rows} == set(contenders)
    for label in contenders:
        last = max(
            (row for row in rows if (row["label"], row["seed"]) == (label, "0")), key=lambda row: int(row["round"])
        )
        assert float(last["test_accuracy"]) > 0.6, "three classes, so that a guess has a third"
    mine, best = (next(run for run in found.runs if run.label == label and run.seed == 0) for label in contenders[:2])
    assert mine.records[0].cuts == plan.cuts
    assert set(plan.cuts) != {plan.cuts[0]}, "the policy's cuts differ"
    assert mine.records[0].round_s >= best.records[0].round_s * (1 - 1e-3), "no policy beats the proposed one"
    assert {path.name for path in Path("runs/tones").glob("*.*")} >= {"report.html", "comparison.md", "comparison.json"}
