"""`hsfl plan` and `hsfl allocate` as people and programs call them."""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hsfl.allocation.draw import random_scenario
from hsfl.allocation.measured import best_plan, optimal_cycles
from hsfl.commands.planning import read_device
from hsfl.errors import InputError
from hsfl.models.cost import CostTable
from hsfl.training.planning import _weights
from tests.runs import hsfl, refused

SMALL = ["--set", "fleet.num_clients=3", "--set", "network.num_subchannels=4", "--set", "allocation.samples=2"]


@pytest.fixture(scope="module")
def cost_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cost") / "cnn.json"
    assert hsfl("cost", "cnn", "--input", "1,28,28", "--batch-size", "32", "--save", path).code == 0
    return path


def test_plan_with_a_proof(cost_file: Path) -> None:
    plan = hsfl("plan", "--cost", cost_file, *SMALL, "--samples-per-client", "600", "--json").json()
    assert len(plan["clients"]) == 3
    assert plan["lower_bound_s"] <= plan["round_s"] * (1 + 1e-9)
    assert plan["gap"] == pytest.approx(1 - plan["lower_bound_s"] / plan["round_s"], abs=1e-6)
    for name, mean_s in plan["baselines_s"].items():
        assert plan["baselines_s"]["proposed"] <= mean_s * 1.002, name
    for client in plan["clients"]:
        assert client["seconds"][client["bottleneck"]] == max(client["seconds"].values())
        assert 1 <= client["main_up_power_w"] <= 10  # a client sends with all its power
        assert client["share"] is None
    assert sorted(i for client in plan["clients"] for i in client["subchannels"]) == [0, 1, 2, 3]
    for name in ("main_down_power_w", "edge_down_power_w"):
        assert sum(client[name] for client in plan["clients"]) == pytest.approx(100)
    shown = hsfl("plan", "--cost", cost_file, *SMALL)
    assert "down W" in shown.out
    assert "no cuts and no allocation can beat" in shown.out


@pytest.mark.parametrize("name", ["ecfa", "scls", "rcls", "scls+ecfa", "splitfed"])
@pytest.mark.parametrize("kind", ["ofdma", "measured"])
def test_a_plan_by_another_policy_says_that_policy_s_numbers(cost_file: Path, name: str, kind: str) -> None:
    links = (
        ["--set", "network.kind=measured", "--set", "network.main_up_bps=[1e6,5e6,2e7]"] if kind == "measured" else []
    )
    links += ["--set", "network.main_down_bps=2e7"] if kind == "measured" else []
    words = ["plan", "--cost", cost_file, *SMALL, *links, "--json"]
    proposed, plan = hsfl(*words).json(), hsfl(*words, "--set", f"allocation.policy={name}").json()
    assert plan["policy"] == name
    assert plan["round_s"] == plan["baselines_s"][name]
    assert plan["baselines_s"]["proposed"] == pytest.approx(proposed["round_s"], rel=2e-3)
    assert plan["round_s"] >= plan["lower_bound_s"]
    assert plan["gap"] == pytest.approx(1 - plan["lower_bound_s"] / plan["round_s"], abs=1e-9)
    assert plan["cuts"] == [client["cut"] for client in plan["clients"]]
    if "scls" in name or name == "splitfed":
        assert len(set(plan["cuts"])) == 1


def test_a_plan_says_what_it_leaves_aside(cost_file: Path) -> None:
    words = ["plan", "--cost", cost_file, *SMALL, "--json"]
    assert hsfl(*words).json()["notes"] == []
    notes = hsfl(*words, "--set", "train.tau_s=1e-3", "--set", "fleet.cuts=[1,1,1]").json()["notes"]
    assert "fleet.cuts is not used" in notes[0]
    assert "longer than train.tau_s = 0.001" in notes[1]


def test_weights_are_what_a_second_of_a_client_costs_the_round() -> None:
    own_s, work, hz = np.array([3.0, 1.0, 2.0]), np.array([4.0, 2.0, 7.0]), 5.0
    cycles = optimal_cycles(own_s, work, hz)
    weights = _weights(cycles, work / cycles)
    assert weights is not None
    assert weights.sum() == pytest.approx(1)
    for k in range(3):
        later = own_s + 1e-6 * (np.arange(3) == k)
        longer_s = (later + work / optimal_cycles(later, work, hz)).max() - (own_s + work / cycles).max()
        assert longer_s == pytest.approx(1e-6 * weights[k], rel=1e-4)


def test_plan_from_python(cost_file: Path) -> None:
    import hsfl as package

    changes = [word for word in SMALL if word != "--set"]
    plan = package.plan(package.read_config(None, changes), 600, CostTable.load(cost_file))
    said = hsfl("plan", "--cost", cost_file, *SMALL, "--samples-per-client", "600", "--json").json()
    assert plan.cuts == said["cuts"]
    assert plan.round_s == pytest.approx(said["round_s"], rel=1e-3)


def test_plan_of_shared_bands(cost_file: Path) -> None:
    small = ["--set", "fleet.num_clients=2", "--set", "network.num_subchannels=1", "--set", "allocation.samples=1"]
    words = ["plan", "--cost", cost_file, *small, "--set", "allocation.time_limit_s=0.5"]
    plan = hsfl(*words, "--json").json()
    shares = [client["share"] for client in plan["clients"]]
    np.testing.assert_allclose(np.sum(shares, axis=0), 1, rtol=1e-6)
    assert {client["subchannels"] is None for client in plan["clients"]} == {True}
    assert "share" in hsfl(*words).out


def test_plan_for_measured_links(cost_file: Path) -> None:
    links = ["--set", "network.kind=measured", "--set", "network.main_up_bps=[1e6,5e6,2e7]"]
    words = ["plan", "--cost", cost_file, *SMALL, *links, "--set", "network.main_down_bps=2e7"]
    plan = hsfl(*words, "--json").json()
    assert plan["num_samples"] == 2
    assert plan["lower_bound_s"] <= plan["round_s"]
    assert plan["gap"] == pytest.approx(1 - plan["lower_bound_s"] / plan["round_s"], abs=1e-12)
    assert list(plan["baselines_s"]) == ["proposed", "rcls", "scls", "ecfa"]  # even would be ecfa again
    assert plan["round_s"] == plan["baselines_s"]["proposed"] <= min(plan["baselines_s"].values()) * (1 + 1e-12)
    assert sum(client["server_hz"] for client in plan["clients"]) == pytest.approx(1e12)
    assert {client["main_up_power_w"] for client in plan["clients"]} == {None}
    still = hsfl(*words, "--set", "network.speed_std=0", "--json").json()
    assert still["gap"] <= 1e-5  # one sample over and over: solved exactly
    assert "up W" not in hsfl(*words).out


def test_samples_of_measured_links_come_from_a_history(cost_file: Path, tmp_path: Path) -> None:
    """Rates recorded in two rounds: the plan's mean is that of these rounds, each as if it were alone."""
    lines = ["round,client,cpu_hz,main_up_bps,main_down_bps,edge_up_bps,edge_down_bps"]
    lines += ["0,0,1e9,1e6,1e7,1e6,1e7", "1,0,1e9,5e5,1e7,5e5,1e7"]
    means = []
    for rows in ([0, 1], [0], [1]):
        texts = [lines[0], *(f"{new}{lines[1 + row][1:]}" for new, row in enumerate(rows))]
        (tmp_path / "rounds.csv").write_text("\n".join(texts) + "\n")
        plan = hsfl(
            *("plan", "--cost", cost_file, "--json", "--set", "fleet.num_clients=1", "--set", "fleet.max_cut=2"),
            *("--set", "fleet.min_cut=2", "--set", f"network.history={tmp_path / 'rounds.csv'}"),
            *("--set", "network.kind=measured", "--set", "network.main_up_bps=1", "--set", "network.main_down_bps=1"),
        ).json()
        assert plan["num_samples"] == len(rows)
        means.append(plan["round_s"])
    assert means[0] == pytest.approx((means[1] + means[2]) / 2, rel=1e-9)
    assert means[2] > 1.5 * means[1]


def test_measured_plan_equals_trying_everything() -> None:
    """All cuts by enumeration, cycles by the closed form's bisection on each."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        own, work, down = (rng.integers(0, 9, (3, 4)) / 2 for _ in range(3))  # half-integers, so that ties happen
        feasible = rng.random((3, 4)) < 0.8
        feasible[:, 0] = True
        best = best_plan(own, work, down, feasible, 2.0)
        rows = np.arange(3)
        assert feasible[rows, best.cuts].all()
        assert best.server_hz.sum() <= 2.0 * (1 + 1e-9)
        every = [
            _least(own[rows, c], work[rows, c], 2.0) + down[rows, c].max()
            for c in map(list, product(range(4), repeat=3))
            if feasible[rows, c].all()
        ]
        assert best.round_s == pytest.approx(min(every), rel=1e-9)


def _least(own: np.ndarray, work: np.ndarray, hz: float) -> float:
    """min over f of max own + work / f with sum f = hz, by plain bisection."""
    low, high = own.max(), own.max() + work.sum() / hz + 1e-12
    for _ in range(200):
        middle = (low + high) / 2
        left = middle - own
        need = sum(w / t if t > 0 else np.inf for w, t in zip(work, left) if w > 0)
        low, high = (low, middle) if need <= hz and (left >= 0).all() else (middle, high)
    return high


def test_one_device(cost_file: Path) -> None:
    words = ["plan", "--cost", cost_file, "--samples-per-client", "600"]
    answer = hsfl(*words, "--device", "cpu=5e9,memory=1GiB,up=5Mbps,down=20Mbps", "--json").json()
    cost = CostTable.load(cost_file)
    row = answer["cuts"][1]
    assert row["seconds"]["smashed"] == pytest.approx(600 * cost.smashed_bits[2] / 5e6)
    assert row["seconds"]["client"] == pytest.approx(600 * cost.client_flops[2] / 5e9)
    fastest = min(answer["cuts"], key=lambda row: row["round_s"])
    assert answer["best_cut"] == fastest["cut"]
    tiny = hsfl(*words, "--device", "cpu=5e9,memory=1KiB,up=5Mbps,down=20Mbps")
    assert tiny.code == 2
    assert "no cut fits" in tiny.out
    assert read_device("cpu=2.5GHz,memory=512MiB,up=1kbps,down=3e6") == {
        "cpu": 2.5e9, "memory": 2.0**32, "up": 1e3, "down": 3e6,
    }  # fmt: skip
    for wrong in (
        "cpu=fast,up=1,down=1",
        "cpu=5e9,up=1Mbps",
        "cpu=5e9,up=1,down=-2",
        "speed=3",
        "cpu=5e9,up=1e999,down=1",
    ):
        with pytest.raises(InputError, match="--device"):
            read_device(wrong)


def test_allocate_and_its_errors(tmp_path: Path) -> None:
    whole = random_scenario(np.random.default_rng(3), 3, 4).to_dict()
    (tmp_path / "scenario.json").write_text(json.dumps(whole))
    answer = hsfl("allocate", tmp_path / "scenario.json", "--json").json()
    assert answer["lower_bound_s"] <= answer["round_s"] * (1 + 1e-9)
    assert answer["cuts_lower_bound_s"] <= answer["round_s"] * (1 + 1e-9)
    fixed = hsfl("allocate", tmp_path / "scenario.json", "--cuts", "3,3,3", "--json").json()
    assert fixed["cuts"] == [3, 3, 3]
    assert fixed["round_s"] >= answer["cuts_lower_bound_s"] * (1 - 1e-9)
    whole["channel"]["noise_w"] = -1
    (tmp_path / "wrong.json").write_text(json.dumps(whole))
    assert "channel.noise_w" in refused("allocate", tmp_path / "wrong.json")
    refused("allocate", tmp_path / "missing.json")


def test_plan_and_allocate_from_files_import_no_torch(cost_file: Path, tmp_path: Path) -> None:
    whole = random_scenario(np.random.default_rng(3), 2, 2).to_dict()
    (tmp_path / "scenario.json").write_text(json.dumps(whole))
    commands = [["plan", "--cost", str(cost_file), *SMALL], ["allocate", str(tmp_path / "scenario.json")]]
    for words in commands:
        code = (
            "import sys; from typer.testing import CliRunner; from hsfl.cli import app; "
            f"assert CliRunner().invoke(app, {words!r}).exit_code == 0; assert 'torch' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
