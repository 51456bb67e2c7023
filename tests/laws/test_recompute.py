"""A round under a policy, recomputed from its run folder alone: Eqs. (6) to (12) in plain loops.

What is read: config.json, clients.json and rounds.jsonl as JSON, and the cost table measured from the config's model.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hsfl.config import parse_config, read_config
from hsfl.planning.rounds import allocators
from hsfl.planning.world import measured_cost
from hsfl.report.page.page import write_page
from hsfl.runs.loop import train_run
from hsfl.runs.run_folder.folder import RunFolder
from tests.small_runs import read_strictly

WORDS = ["model.name=cnn", "model.input=[1,8,8]", "data.limit=150", "data.limit_test=20", "data.partition=dirichlet"]
WORDS += ["train.batch_size=8", "train.rounds=2", "allocation.policy=proposed", "allocation.time_limit_s=1"]
WORDS += ["network.main_hz=1e9", "fleet.num_clients=5", "fleet.cuts=[1,2,3,4,5]", "network.num_subchannels=7"]
POWERS = ("main_up_power_w", "main_down_power_w", "edge_up_power_w", "edge_down_power_w")
SHARED = ("network.num_subchannels=3",)
MEASURED = (
    "network.kind=measured",
    "network.server=shares",
    "network.main_up_bps=[1e6,2e6,4e6,3e6,5e6]",
    "network.main_down_bps=1e7",
)
CASES = {
    "exclusive": (),
    "shared": SHARED,
    "some away": ("train.clients_per_round=3",),
    "shared, some away": (*SHARED, "train.clients_per_round=3", "allocation.policy=etra"),
    "planned drops": ("fleet.cpu_floor_hz=1e7", "fleet.cpu_hz=[1e7,1e9]", "train.tau_s=0.5"),
    "rules": ("allocation.policy=gtra+etra", "network.full_batches=true", "train.local_epochs=2"),
    "own servers": ("framework=fsl", "fleet.cuts=2", "train.clients_per_round=4"),
    "whole models": ("framework=fl",),
    "measured": MEASURED,
    "measured, some away": (*MEASURED, "train.clients_per_round=3", "network.flops_per_cycle=2"),
}


def run_into(folder: Path, *words: str) -> Path:
    train_run(read_config(None, [*WORDS, *words]), folder)
    return folder


class Folder:
    """The three files as JSON, and the cost table of the config's model."""

    def __init__(self, path: Path) -> None:
        (self.config,), (self.clients,) = (read_strictly(path / name) for name in ("config.json", "clients.json"))
        self.records = read_strictly(path / "rounds.jsonl")
        model = parse_config(self.config).model
        assert model.input is not None
        self.cost = measured_cost(model, model.input, len(self.clients["class_names"]), self.batch_size, 2)

    @property
    def batch_size(self) -> int:
        return self.config["train"]["batch_size"]

    def num_batches(self, k: int) -> float:
        batches = self.clients["num_samples"][k] * self.config["network"]["sample_scale"] / self.batch_size
        batches = math.ceil(batches) if self.config["network"]["full_batches"] else batches
        return batches * self.config["train"]["local_epochs"]


def shares(given: dict[str, Any], name: str, k: int) -> list[float]:
    """What client k has of every subchannel on the link that this power serves."""
    which = "edge_down_" if name == "edge_down_power_w" else ""
    if given["sharing"] == "bandwidth":
        return given[f"{which}share"][k]
    return [float(owner == k) for owner in given[f"{which}owner"]]


def powers(folder: Folder, given: dict[str, Any], name: str, k: int) -> list[float]:
    """Client k's watts on every subchannel: as recorded for its owner, or its power filled like water into its shares."""
    parts = shares(given, name, k)
    if given["sharing"] == "exclusive":
        return [part * watts for part, watts in zip(parts, given[name], strict=True)]
    gains = given["main_gain" if name.startswith("main") else "edge_gain"][k]
    starts = [folder.config["network"]["noise_w"] / gain for gain in gains]
    width, filled, level = 0.0, given[name][k], 0.0
    for start, part in sorted(zip(starts, parts, strict=True)):
        if part > 0 and (width == 0 or level > start):
            width, filled = width + part, filled + part * start
            level = filled / width
    return [part * max(0.0, level - start) for part, start in zip(parts, starts, strict=True)]


def rate(folder: Folder, given: dict[str, Any], name: str, k: int) -> float:
    """Eq. (7), of the link that this power serves."""
    if "sharing" not in given:
        return given[name.removesuffix("_power_w") + "_bps"][k]
    network, bps = folder.config["network"], 0.0
    gains = given["main_gain" if name.startswith("main") else "edge_gain"][k]
    for part, watts, gain in zip(shares(given, name, k), powers(folder, given, name, k), gains, strict=True):
        if part > 0:
            signal = watts * gain / (part * network["noise_w"])
            bps += part * network["subchannel_hz"] * math.log1p(signal) / math.log(2)
    return bps


def seconds(amount: float, per_second: float) -> float:
    return amount / per_second if amount > 0 else 0.0


def phases_of(folder: Folder, record: dict[str, Any], k: int) -> dict[str, float]:
    """Eqs. (6) and (8) to (11): seconds of client k's phases over the whole round, in their order."""
    cost, cut, given = folder.cost, record["cuts"][k], record["allocation"]["resources"]
    samples = folder.num_batches(k) * folder.batch_size
    speed = given["flops_per_s"][k]
    server = record["allocation"]["server_hz"][k] * folder.config["network"]["flops_per_cycle"]
    bps = {name: rate(folder, given, name, k) for name in POWERS}
    return {
        "client_forward": samples * cost.client_forward_flops[cut] / speed,
        "smashed": seconds(samples * cost.smashed_bits[cut], bps["main_up_power_w"]),
        "server_forward": seconds(samples * cost.server_forward_flops[cut], server),
        "server_backward": seconds(samples * cost.server_backward_flops[cut], server),
        "gradient": seconds(samples * cost.gradient_bits[cut], bps["main_down_power_w"]),
        "client_backward": samples * cost.client_backward_flops[cut] / speed,
        "model_up": seconds(cost.model_bits[cut], bps["edge_up_power_w"]),
    }


def model_down_s(folder: Folder, record: dict[str, Any], k: int) -> float:
    bps = rate(folder, record["allocation"]["resources"], "edge_down_power_w", k)
    return seconds(folder.cost.model_bits[record["cuts"][k]], bps)


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-6, abs=1e-12)


def check_round(folder: Folder, record: dict[str, Any]) -> None:
    everyone, tau_s = range(len(record["cuts"])), folder.config["train"]["tau_s"] or math.inf
    barrier_s = 0.0
    for k in record["started"]:
        now_s = 0.0
        for phase, length_s in phases_of(folder, record, k).items():
            if length_s > 0:
                assert record["phases"][phase]["start_s"][k] == close(now_s)
                assert record["phases"][phase]["end_s"][k] == close(now_s + length_s)
            now_s += length_s
        barrier_s = max(barrier_s, min(now_s, tau_s))
    down = [model_down_s(folder, record, k) for k in everyone]
    for k, down_s in enumerate(down):
        assert record["phases"]["model_down"]["start_s"][k] == close(barrier_s)
        assert record["phases"]["model_down"]["end_s"][k] == close(barrier_s + down_s)
    assert record["round_s"] == pytest.approx(barrier_s + max(down), rel=1e-9)  # Eq. (12)


def check_budgets(folder: Folder, record: dict[str, Any]) -> None:
    """C2 to C5, and nobody has a part of a subchannel that is another's."""
    network, given, within = folder.config["network"], record["allocation"]["resources"], 1 + 1e-9
    assert sum(record["allocation"]["server_hz"]) <= network["main_hz"] * within
    if "sharing" not in given:
        return
    clients = range(len(record["cuts"]))
    watts = {name: [powers(folder, given, name, k) for k in clients] for name in POWERS}
    for name in ("main_up_power_w", "edge_up_power_w"):
        assert all(sum(watts[name][k]) <= folder.clients["max_power_w"][k] * within for k in clients)
    assert sum(map(sum, watts["main_down_power_w"])) <= network["main_power_w"] * within
    assert sum(map(sum, watts["edge_down_power_w"])) <= network["edge_power_w"] * within
    for name in POWERS:
        columns = zip(*(shares(given, name, k) for k in clients), strict=True)
        assert all(sum(column) <= within for column in columns)
        assert all(part >= 0 for k in clients for part in watts[name][k])
    away = set(clients) - set(record["started"])
    assert not any(sum(shares(given, "main_up_power_w", k)) for k in away)


@pytest.mark.parametrize("case", CASES)
def test_a_round_can_be_recomputed_from_its_folder(case: str, tmp_path: Path) -> None:
    folder = Folder(run_into(tmp_path / "run", *CASES[case]))
    assert len(folder.records) == 2
    for record in folder.records:
        check_round(folder, record)
        check_budgets(folder, record)
    if "away" in case or "drops" in case:
        assert len(record["started"]) < 5
    if "shared" in case:
        assert record["allocation"]["resources"]["sharing"] == "bandwidth"


def size(record: dict[str, Any]) -> int:
    return len(json.dumps(record["allocation"]["resources"], separators=(",", ":")))


def test_a_record_stays_small(tmp_path: Path) -> None:
    """Ten clients on ten subchannels, each with its own or with bands shared."""
    ten = ["fleet.num_clients=10", "fleet.cuts=2", "network.num_subchannels=10", "train.rounds=1"]
    (alone,) = Folder(run_into(tmp_path / "alone", *ten)).records
    (shared,) = Folder(run_into(tmp_path / "shared", *ten, "allocation.sharing=bandwidth")).records
    assert size(alone) < 4_000
    assert size(shared) < 8_000


@pytest.mark.parametrize("case", ["exclusive", "shared", "measured"])
def test_a_large_fleet_leaves_matrices_out_and_says_so(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocators, "MOST_PAIRS", 4)
    given = Folder(run_into(tmp_path / "run", *CASES[case])).records[0]["allocation"]["resources"]
    assert not set(given["left_out"]) & given.keys()
    assert ("main_up_bps" if case == "measured" else "main_gain") in given["left_out"]
    assert ("owner" in given) == (case == "exclusive")
    assert len(given["flops_per_s"]) == 5


def test_a_page_does_not_grow_and_old_folders_are_read(tmp_path: Path) -> None:
    path = run_into(tmp_path / "run")
    write_page([path], tmp_path / "new.html")
    folder = RunFolder(path)
    records = folder.rounds()
    for record in records:
        assert record.allocation.pop("resources")
    folder.rounds_path.write_text("")
    for record in records:
        folder.append(replace(record))
    assert folder.rounds() == records
    write_page([path], tmp_path / "old.html")
    assert (tmp_path / "new.html").read_bytes() == (tmp_path / "old.html").read_bytes()
