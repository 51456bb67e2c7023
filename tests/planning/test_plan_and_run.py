"""A plan and the run that follows it agree: the same data, cuts and policy, and on recorded rounds the same seconds."""

import json
from pathlib import Path

import numpy as np
import pytest

import hsfl as package
from hsfl.planning.world import make_world, sample_draws
from hsfl.runs.prepare import prepare
from tests.naming import names
from tests.small_runs import hsfl, refused, tiny, tiny_words

pytest.importorskip("pyscipopt")
PLANNED = (
    "fleet.cuts=planned",
    "allocation.samples=6",
    "train.rounds=6",
    "network.main_hz=1e9",
    "fleet.cpu_hz=[1e8,1e9]",
)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Six recorded rounds of three clients."""
    from hsfl.network.history import write_history

    config = tiny("network.num_subchannels=4")
    draws = sample_draws(make_world(config, (1, 8, 8), 10), 6)
    path = tmp_path / "rounds.csv"
    write_history(draws, path)
    return path


@pytest.mark.parametrize("policy", ["proposed", "even", "scls+ecfa"])
def test_the_mean_round_of_a_plan_is_that_of_the_run(policy: str, history: Path, tmp_path: Path) -> None:
    planned = [word for word in PLANNED if not word.startswith("fleet.cpu_hz")]  # the history has the speeds
    words = tiny_words(
        *planned, f"allocation.policy={policy}", "network.num_subchannels=4", f"network.history={history}"
    )
    plan = hsfl("plan", *words, "--out", tmp_path / "plan", "--json").json()
    run = hsfl("run", "--plan", tmp_path / "plan" / "plan.json", "--out", tmp_path / "run", "--json").json()
    rounds = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert run["rounds"] == 6
    assert rounds[0]["cuts"] == plan["cuts"]
    assert np.mean([each["round_s"] for each in rounds]) == pytest.approx(plan["round_s"], rel=2e-3)
    words = [word for word in words if policy == "proposed" or word != "allocation.samples=6"]  # others search nothing
    words = [part for word in words if word != "--set" for part in ("--set", word)]
    assert hsfl("run", *words, "--out", tmp_path / "same").code == 0
    again = [json.loads(line) for line in (tmp_path / "same" / "rounds.jsonl").read_text().splitlines()]
    assert [each["cuts"] for each in again] == [each["cuts"] for each in rounds]


def test_a_plan_takes_the_data_of_the_config() -> None:
    words = tiny_words("data.partition=dirichlet", "data.alpha=0.3", "allocation.samples=1")
    plan = hsfl("plan", *words)
    counts = prepare(tiny("data.partition=dirichlet", "data.alpha=0.3")).num_samples
    said = f"{min(counts):.0f} to {max(counts):.0f} samples each"
    assert plan.out.startswith(
        f"assumed: A round of cnn on digits (samples of 1x8x8 in 10 classes), among 3 clients with {said}"
    )


def test_a_data_set_that_is_not_here(tmp_path: Path) -> None:
    words = [
        "paper-mnist",
        "--set",
        "allocation.samples=1",
        "--set",
        "model.name=cnn",
        "--data-dir",
        tmp_path,
        "--json",
    ]
    plan = hsfl("plan", *words).json()
    names(plan["assumed"][0], "10 clients", "6,000 samples")
    names(plan["notes"][0], "mnist", "even part", "60,000")
    names(plan["notes"][0], "hsfl data fetch mnist")


def test_even_plans_are_the_fastest_under_the_even_allocation(tmp_path: Path) -> None:
    config = tiny("fleet.cuts=planned")
    cuts = prepare(config).task.cuts
    assert cuts == prepare(tiny("fleet.cuts=fastest")).task.cuts
    plan = package.plan(None, settings(), fleet={"cuts": "planned"}, allocation={"policy": "even", "samples": 3})
    assert (plan.policy, tuple(plan.cuts)) == ("even", cuts)
    assert plan.round_s == plan.baselines_s["even"] >= plan.baselines_s["proposed"] * (1 - 1e-6)


def settings() -> list[str]:
    from tests.small_runs import TINY

    return [word for word in TINY if not word.startswith("fleet.cuts")]


def test_one_cut_for_all_is_said_with_the_reason() -> None:
    same = ["fleet.cpu_hz=[1e9,1e9]", "fleet.max_cut=3", "allocation.samples=1", "fleet.heterogeneity=0"]
    plan = package.plan(None, [*settings(), *same])
    assert len(set(plan.cuts)) == 1
    (note,) = (note for note in plan.notes if note.startswith("all clients have cut"))
    names(note, "HSFL is SplitFed V1 here")
    assert "another allocation" not in note
    assert " would take " in note
    published = package.plan(None, [*settings(), "fleet.max_cut=1", "allocation.samples=1", "allocation.policy=own"])
    assert any("SplitFed V1 here, with another allocation" in note for note in published.notes)
    only = package.plan(None, [*settings(), "fleet.max_cut=1", "allocation.samples=1"])
    assert any("no client may have another cut" in note for note in only.notes)
    ruled = package.plan(None, [*settings(), "allocation.policy=scls", "allocation.samples=1"])
    assert any("the rule of scls gave everyone this cut" in note for note in ruled.notes)


def test_samples_that_are_given_count_as_the_clock_charges_them() -> None:
    plans = [
        package.plan(None, [*settings(), "allocation.samples=1", f"network.sample_scale={scale}"], samples_per_client=n)
        for scale, n in ((1, 200), (10, 20))
    ]
    assert plans[0].round_s == plans[1].round_s


def test_wrong_plans(tmp_path: Path) -> None:
    names(refused("run", "--plan", tmp_path / "none.json"), "no file", "--out DIR")
    (tmp_path / "plan.json").write_text('{"policy": "proposed", "cuts": [1, 2, "x"]}')
    names(refused("run", "demo", "--plan", tmp_path / "plan.json"), "plan.json")
    (tmp_path / "plan.json").write_text('{"policy": "proposed", "cuts": [1, 2, 2]}')
    names(refused("run", "--plan", tmp_path), "no config", "give CONFIG")
    names(refused("run", "demo", "--plan", tmp_path, "--out", tmp_path / "r"), "fleet.cuts", "3 numbers", "10 clients")
    (tmp_path / "plan.json").write_text('{"policy": "clever", "cuts": [1, 2, 2]}')
    names(refused("run", "demo", "--plan", tmp_path), "policy 'clever'", "unknown")


def test_run_alone_is_the_demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from hsfl.commands import run

    assert run._run_config(None, [], [], None, None, False) == package.read_config("demo")
    names(refused("run", "--resume"), "--resume", "--out")


def test_what_a_plan_decides_cannot_be_typed_beside_it(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"policy": "even", "cuts": [1, 2, 2]}')
    words = ["run", "demo", "--plan", tmp_path, "--out", tmp_path / "r"]
    for setting in ("fleet.cuts=[1,1,1]", "allocation.policy=even"):
        names(refused(*words, "--set", setting), "no effect", "--plan")
    names(refused(*words, "--framework", "fl"), "framework fl", "set framework=hsfl")


def test_a_plan_says_what_a_run_does_otherwise() -> None:
    words = [*settings(), "allocation.samples=1"]
    plan = package.plan(None, [*words, "framework=sl", "train.clients_per_round=2", "allocation.policy=auto"])
    assert plan.policy == "proposed"
    told = (
        "a run of this config is not the run that is planned, since its framework is sl",
        "a plan takes all clients to take part",
    )
    assert all(any(note.startswith(start) for note in plan.notes) for start in told)
    plan = package.plan(None, [*words, "allocation.policy=proposed", "fleet.cuts=planned"])
    assert not any(note.startswith(told) for note in plan.notes)


def test_a_config_that_is_given_is_planned_as_the_words_it_was_read_from() -> None:
    words = [*settings(), "allocation.samples=1"]
    for more in ([], ["allocation.policy=even"]):
        given, read = package.plan(tiny("fleet.cuts=auto", *words[-1:], *more)), package.plan(None, [*words, *more])
        assert (given.policy, given.cuts, given.round_s) == (read.policy, read.cuts, read.round_s)
