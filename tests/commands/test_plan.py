"""`hsfl plan` and `hsfl allocate` as people and programs call them."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hsfl.allocation.measured_links import best_measured_round, optimal_cycles
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.solvers import allocate
from hsfl.commands.allocate import show_answer
from hsfl.commands.console import out_console, show_table
from hsfl.commands.plan import read_device
from hsfl.errors import InputError
from hsfl.models.cost_table import CostTable
from hsfl.planning.plans.plan_rounds import weights_of
from tests.naming import names, raises
from tests.small_runs import hsfl, refused

SMALL = ["--set", "fleet.num_clients=3", "--set", "network.num_subchannels=4", "--set", "allocation.samples=2"]

WIRED = [*SMALL[:2], *SMALL[4:]]  # measured links have no subchannels


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
    names(shown.out.partition("─")[0], "subchannel ", " no. ", "down W")  # numbers, not counts
    assert "end s: when training and upload are over" in " ".join(shown.out.split())
    names(shown.out, "can beat")


@pytest.mark.parametrize("name", ["ecfa", "scls", "rcls", "scls+ecfa", "splitfed"])
@pytest.mark.parametrize("kind", ["ofdma", "measured"])
def test_a_plan_by_another_policy_says_that_policy_s_numbers(cost_file: Path, name: str, kind: str) -> None:
    links = (
        ["--set", "network.kind=measured", "--set", "network.main_up_bps=[1e6,5e6,2e7]"] if kind == "measured" else []
    )
    links += ["--set", "network.main_down_bps=2e7"] if kind == "measured" else []
    words = ["plan", "--cost", cost_file, *(SMALL if kind == "ofdma" else WIRED), *links, "--json"]
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
    planned = [*words, "--set", "allocation.policy=proposed", "--set", "fleet.cuts=planned"]
    assert hsfl(*planned).json()["notes"] == []
    notes = hsfl(*planned, "--set", "train.tau_s=1e-3").json()["notes"]
    names(notes[0], "train.tau_s = 0.001")
    assert hsfl(*words).json()["notes"] == []  # a run plans by itself
    (note,) = hsfl(*words, "--set", "fleet.cuts=fastest").json()["notes"]
    names(note, "fleet.cuts is fastest", "keep the plan", "fleet.cuts=planned")
    (note,) = hsfl(*planned, "--set", "framework=fl", "--set", "train.tau_s=null").json()["notes"]
    names(note, "framework is fl", "set framework=hsfl")


def test_given_cuts_are_planned_as_they_are(cost_file: Path) -> None:
    words = ["plan", "--cost", cost_file, *SMALL, "--json"]
    free = hsfl(*words).json()
    for asked, cuts in (("2", [2, 2, 2]), ("[1,2,1]", [1, 2, 1]), ("max_cut", None)):
        plan = hsfl(*words, "--set", f"fleet.cuts={asked}").json()
        assert plan["cuts"] == [client["cut"] for client in plan["clients"]]
        assert cuts in (None, plan["cuts"])
        assert plan["lower_bound_s"] <= free["round_s"] <= plan["round_s"] * (1 + 1e-6)
        (note,) = plan["notes"]
        names(note, "fleet.cuts gives these cuts", "the planner would choose", *map(str, free["cuts"]))
    names(refused(*words, "--set", "fleet.cuts=[1,2]"), "fleet.cuts", "2 numbers", "3 clients")


def test_weights_are_what_a_second_of_a_client_costs_the_round() -> None:
    own_s, work, hz = np.array([3.0, 1.0, 2.0]), np.array([4.0, 2.0, 7.0]), 5.0
    cycles = optimal_cycles(own_s, work, hz)
    weights = weights_of(cycles, work / cycles)
    assert weights is not None
    assert weights.sum() == pytest.approx(1)
    for k in range(3):
        later = own_s + 1e-6 * (np.arange(3) == k)
        longer_s = (later + work / optimal_cycles(later, work, hz)).max() - (own_s + work / cycles).max()
        assert longer_s == pytest.approx(1e-6 * weights[k], rel=1e-4)


def test_plan_from_python(cost_file: Path) -> None:
    import hsfl as package

    changes = [word for word in SMALL if word != "--set"]
    plan = package.plan(None, changes, samples_per_client=600, cost=CostTable.load(cost_file))
    said = hsfl("plan", "--cost", cost_file, *SMALL, "--samples-per-client", "600", "--json").json()
    assert plan.cuts == said["cuts"]
    assert plan.round_s == pytest.approx(said["round_s"], rel=1e-3)


def test_plan_from_a_cost_table_imports_no_torch(cost_file: Path) -> None:
    code = (
        "import sys, hsfl\nfrom hsfl.models.cost_table import CostTable\n"
        f"hsfl.plan(None, ['allocation.samples=1'], samples_per_client=600, cost=CostTable.load({str(cost_file)!r}))\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_plan_of_shared_bands(cost_file: Path) -> None:
    small = ["--set", "fleet.num_clients=2", "--set", "network.num_subchannels=1", "--set", "allocation.samples=1"]
    words = ["plan", "--cost", cost_file, *small, "--set", "allocation.time_limit_s=0.5"]
    plan = hsfl(*words, "--json").json()
    shares = [client["share"] for client in plan["clients"]]
    np.testing.assert_allclose(np.sum(shares, axis=0), 1, rtol=1e-6)
    assert {client["subchannels"] is None for client in plan["clients"]} == {True}
    assert "share" in hsfl(*words).out


def test_plan_for_measured_links(cost_file: Path) -> None:
    links = [
        "--set",
        "network.kind=measured",
        "--set",
        "network.server=shares",
        "--set",
        "network.main_up_bps=[1e6,5e6,2e7]",
    ]
    words = ["plan", "--cost", cost_file, *WIRED, *links, "--set", "network.main_down_bps=2e7"]
    plan = hsfl(*words, "--set", "network.speed_std=0.1", "--json").json()
    assert plan["num_samples"] == 2
    assert plan["lower_bound_s"] <= plan["round_s"]
    assert plan["gap"] == pytest.approx(1 - plan["lower_bound_s"] / plan["round_s"], abs=1e-12)
    assert list(plan["baselines_s"]) == ["proposed", "rcls", "scls", "ecfa"]  # even would be ecfa again
    assert plan["round_s"] == plan["baselines_s"]["proposed"] <= min(plan["baselines_s"].values()) * (1 + 1e-12)
    assert sum(client["server_hz"] for client in plan["clients"]) == pytest.approx(1e12)
    assert {client["main_up_power_w"] for client in plan["clients"]} == {None}
    still = hsfl(*words, "--json").json()  # measured speeds are planned with as they are
    assert still["gap"] <= 1e-5  # one sample over and over: solved exactly
    assert still["clients"][0]["seconds"]["client"] != plan["clients"][0]["seconds"]["client"]
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
            *("--set", "network.kind=measured"),
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
        best = best_measured_round(own, work, down, feasible, 2.0)
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
    names(tiny.out, "no cut")
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


BYTES = {"5Mbps": 5e6, "5MBps": 40e6, "5MB/s": 40e6, "5Mb/s": 5e6, "5Mbit/s": 5e6, "2 KiB/s": 2**14, "7e6": 7e6}


@pytest.mark.parametrize("text", BYTES)
def test_a_large_b_is_bytes_and_a_small_b_bits(text: str) -> None:
    assert read_device(f"cpu=1GHz,up={text},down=1") == {"cpu": 1e9, "up": BYTES[text], "down": 1}


def test_a_device_as_people_type_it() -> None:
    device = {"cpu": 5e9, "memory": 64e9, "up": 1e3, "down": 2e6}
    assert read_device(" CPU = 5 GHz , Memory=8GB,up = 1Kbps, down=2M, ") == device


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("cpu=5 mHz,up=1,down=1", ("cpu is '5 mHz'", "m is milli", "5GHz")),
        ("cpu=1,up=5mbps,down=1", ("up is '5mbps'", "m is milli")),
        ("cpu=1,memory=8Gb,up=1,down=1", ("memory is '8Gb'", "bits or bytes", "1GB or 1GiB")),
        ("cpu=1,up=1,down=1,cpu=2", ("cpu twice",)),
        ("cpu=1,up=0,down=1", ("up is '0'", "above 0", "5Mbps")),
        ("cpu=-5GHz,up=1,down=1", ("cpu is '-5GHz'", "above 0", "such as 5GHz")),
        ("cpu=1,memory=0,up=1,down=1", ("memory is '0'", "above 0", "1GB or 1GiB")),
        ("cpu=1,up=5MHz,down=1", ("up is '5MHz'", "unit 'MHz' is unknown")),
        ("cpu=1,up,down=1", ("up has no value", "up=5Mbps")),
        ("cpu=1e-300,up=1,down=1", ("cpu is '1e-300'", "beyond any device")),
        ("", ("lacks cpu",)),
    ],
)
def test_a_device_that_cannot_be_read(text: str, parts: tuple[str, ...]) -> None:
    with raises(InputError, "--device", *parts):
        read_device(text)


DEVICE = "cpu=5e9,memory=1GiB,up=5Mbps,down=20Mbps"


def test_the_answer_for_a_device_says_what_it_assumes(cost_file: Path) -> None:
    words = ["plan", "--cost", cost_file, "--device", DEVICE, "--samples-per-client", "600"]
    shown = " ".join(hsfl(*words, "--set", "fleet.num_clients=4").out.split())
    names(shown, "600 samples", "mini-batch of 32", "1/4", "250")
    assumed = hsfl(*words, "--json").json()["assumed"]
    assert assumed["server_hz"] == 1e11
    assert (assumed["batch_size"], assumed["flops_per_cycle"]) == (32, 1)
    names(shown, "1 FLOP per cycle", "fleet.flops_per_cycle", "compute=..")
    assert "per cycle" not in hsfl(*words[:4], "compute=5e9,memory=1GiB,up=5Mbps,down=20Mbps").out


def test_a_device_and_tau(cost_file: Path) -> None:
    words = ["plan", "--cost", cost_file, "--device", DEVICE]
    assert "tau_s" not in hsfl(*words).out
    assert "within train.tau_s = 1e+06 s" in hsfl(*words, "--set", "train.tau_s=1e6").out
    late = " ".join(hsfl(*words, "--set", "train.tau_s=1e-3").out.split())
    names(late, "train.tau_s = 0.001 s", "no cut", "raise train.tau_s")


def test_tau_limits_training_and_upload_but_not_the_download(cost_file: Path) -> None:
    words = ["plan", "--cost", cost_file, "--device", "cpu=5e9,up=5Mbps,down=1kbps", "--set", "fleet.min_cut=5"]
    row = hsfl(*words, "--json").json()["cuts"][0]
    tau_s = (row["round_s"] + row["round_s"] - row["seconds"]["model_down"]) / 2
    assert "within train.tau_s" in hsfl(*words, "--set", f"train.tau_s={tau_s}").out


def test_tables_are_never_cut(cost_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_console, "_width", 40)
    whole = random_scenario(np.random.default_rng(3), 3, 4).to_dict()
    whole["clients"]["cpu_hz"][0] = 1e5
    (tmp_path / "scenario.json").write_text(json.dumps(whole))
    commands = (
        ["allocate", tmp_path / "scenario.json", "--cuts", "3,3,3"],
        ["plan", "--cost", cost_file, "--device", DEVICE],
        ["plan", "--cost", cost_file, *SMALL],
    )
    for words in commands:
        assert "…" not in hsfl(*words).out


def test_a_screen_narrower_than_its_numbers() -> None:
    text = io.StringIO()
    show_table(Console(file=text, width=10), ("first", "second"), [("1234567", "7654321")])
    assert text.getvalue().splitlines()[-1].split() == ["1234567", "7654321"]


def test_the_client_table_says_which_sample_it_shows(cost_file: Path) -> None:
    shown = " ".join(hsfl("plan", "--cost", cost_file, *SMALL).out.split())
    names(shown, "first of 2 samples", "mean")


def test_mistakes_of_plan(cost_file: Path) -> None:
    words = ["plan", "--cost", cost_file]
    names(refused(*words, "--input", "1,28,28"), "--input 1,28,28")
    names(refused(*words, "--classes", "10"), "--classes 10")
    exclusive = ["--set", "allocation.sharing=exclusive", "--set", "network.num_subchannels=2"]
    names(refused(*words, *exclusive), "allocation.sharing", '"exclusive"', "10 clients")
    assert "make room" not in refused(*words, *SMALL, "--out", "/proc/x")


def test_plan_without_torch_says_what_to_do() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from typer.testing import CliRunner; from hsfl.cli import app\n"
        f"answer = CliRunner().invoke(app, ['plan', '--device', {DEVICE!r}])\n"
        "assert answer.exit_code == 2, answer\n"
        "assert 'pip install torch, or give --cost' in answer.stderr, answer.stderr\n"
        "assert answer.stderr.count('\\n') == 1, answer.stderr"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def shown_of(scenario: Scenario) -> str:
    """What `hsfl allocate` prints for cuts of 3, on one line."""
    text = io.StringIO()
    answer = allocate(scenario, [3] * scenario.num_clients)
    show_answer(replace(answer, seconds=4.93), scenario, Console(file=text, width=120))
    return " ".join(text.getvalue().split())


def test_the_table_of_allocate_is_over_the_round() -> None:
    scenario = random_scenario(np.random.default_rng(3), 3, 4)
    answer = allocate(scenario, [3, 3, 3])
    shown = shown_of(scenario)
    for k in range(3):
        assert f" {scenario.num_batches[k] * answer.phases['client_s'][k]:.3g} " in shown
    assert "solved in 4.93 s:" in shown


def test_nobody_kept_is_said_in_words() -> None:
    shown = shown_of(random_scenario(np.random.default_rng(3), 3, 4, tau_s=1e-3))
    names(shown, "nobody", "tau_s = 0.001 s")
    assert "is needed" not in shown


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
