"""`hsfl plan-check` as people and programs call it, and `hsfl.plan_check`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import hsfl as package
from hsfl.errors import InputError
from tests.deploy.fleet import RUN, changed, fleet
from tests.naming import names, raises
from tests.report.fabricated import record
from tests.runs.made_up_plans import PHASES, SECONDS, write_measured_run, write_plan, write_rounds
from tests.small_runs import hsfl, refused


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan, two runs with its cuts and one with the cuts of another plan."""
    monkeypatch.chdir(tmp_path)
    write_plan(Path("plan"), [1, 2], 10.0)
    write_plan(Path("deep"), [3, 3], 12.0)
    slower = {phase: [1.25 * value for value in values] for phase, values in SECONDS.items()}
    write_measured_run(Path("run-1"), [1, 2], [30.0, 8.0, 8.5])
    write_measured_run(Path("run-2"), [1, 2], [30.0, 7.5, 8.0], slower)
    write_measured_run(Path("run-3"), [3, 3], [30.0, 16.0, 15.0])
    return tmp_path


def test_tables_for_people(folders: Path) -> None:
    answer = hsfl("plan-check", "plan", "run-1", "run-2", "run-3", "--plan", "deep")
    assert answer.code == 0
    names(answer.out, "run-1 as plan predicts", "predicted 10 s", "measured 8.25 s", "+21.2%", "3 for all")
    names(answer.out, "-20.0%", "tau 1.00 over 1 pair", "regret of the planned cuts", "rounds from 2 to 3")
    alone = hsfl("plan-check", "plan/plan.json", "run-1").out
    assert "tau" not in alone


def test_json_for_programs(folders: Path) -> None:
    check = hsfl("plan-check", "plan", "run-1", "run-3", "--plan", "deep", "--rounds", "2", "--json").json()
    assert check["plans"] == ["plan", "deep"]
    assert [run["error"] for run in check["runs"]] == [0.25, -0.25]
    assert check["runs"][0]["clients"][1]["phases"]["smashed"] == {
        "predicted_s": 3.0,
        "measured_s": 3.0,
        "low_s": 3.0,
        "high_s": 3.0,
        "error": 0.0,
    }
    assert check["ranking"]["mean_abs_error"] == 0.25
    assert check["files"] == []
    result = package.plan_check(["plan", "deep"], ["run-1", "run-3"], rounds="2")
    assert result.to_json() == {name: value for name, value in check.items() if name != "files"}
    assert {(row["phase"], row["error"]) for row in result.table()} == {(phase, 0.0) for phase in (*PHASES, "all")}
    names(repr(result), "tau 1.00", "run-3")
    names(repr(package.plan_check("plan", Path("run-1"))), "predicted 10 s")


def test_a_page_a_figure_and_the_numbers(folders: Path) -> None:
    (folders / "run-3").rename(folders / "<b>run")
    words = ["plan-check", "plan", "run-1", "<b>run", "--json"]
    check = hsfl(*words, "-o", "check").json()
    assert [Path(file).name for file in check["files"]] == ["check.html", "check.png", "check.json"]
    page = Path("check/check.html").read_text()
    assert page.count("<b>run") == 0
    page = re.sub('base64,[^"]*', "", page)
    names(page, "&lt;b&gt;run as it predicted", "data:image/svg+xml;", "tau 0.00")  # both predict ten seconds
    assert not re.search(r"https?://", page)
    stored = json.loads(Path("check/check.json").read_text())
    assert stored == {name: value for name, value in check.items() if name != "files"}
    before = {path.name: path.read_bytes() for path in Path("check").iterdir()}
    hsfl(*words, "-o", "check")
    assert {path.name: path.read_bytes() for path in Path("check").iterdir()} == before
    assert hsfl(*words, "-o", "figure.pdf").json()["files"] == ["figure.pdf"]
    assert Path("figure.pdf").read_bytes().startswith(b"%PDF")
    names(refused(*words, "-o", "plan/plan.json"), "--out=plan/plan.json", "choose a folder")


def test_a_large_fleet_shows_the_clients_that_are_farthest_off(folders: Path) -> None:
    plan = write_plan(Path("many"), [1] * 20, 9.0, {"client": [5.0] * 20})
    measured: dict[str, Any] = {"client": [5.0 + (k % 3 == 0) * k for k in range(20)]}
    many = {"started": [*range(20)], "kept": [*range(20)], "waiting_s": [0.0] * 20, "phases": {}}
    run = write_measured_run(Path("run-many"), [1] * 20, [9.0] * 2, measured, **many)
    answer = hsfl("plan-check", plan, run)
    names(answer.out, "12 of 20 clients", "-78.3%")
    assert len(hsfl("plan-check", plan, run, "--json").json()["runs"][0]["clients"]) == 20


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["nowhere", "run-1"], ("nowhere is no plan", "hsfl plan --out DIR")),
        (["run-1", "run-1"], ("run-1 is no plan",)),
        (["plan", "nowhere"], ("nowhere is no folder", "hsfl run --out")),
        (["plan", "plan"], ("plan is no folder",)),
        (["plan", "run-1", "--rounds", "4-9"], ("run-1 has 3 rounds", "--rounds 4-9")),
        (["plan", "run-1", "--rounds", "six"], ("--rounds six", "2-6")),
        (["plan", "run-1", "--plan", "nowhere"], ("nowhere is no plan",)),
        (["plan", "three"], ("three has 3 clients", "plan 2")),
        (["named", "strangers"], ("strangers has no client", "'bo'")),
        (["plan", "empty"], ("empty has 0 rounds",)),
        (["large", "run-1"], ("large/plan.json has 0 clients",)),
        (["damaged", "run-1"], ("damaged/plan.json", "round_s")),
        (["plan", "moved"], ("moved has no round", "--rounds 2-")),
    ],
)
def test_wrong_input_is_a_line(folders: Path, words: list[str], parts: tuple[str, ...]) -> None:
    write_plan(Path("named"), [1, 2], 9.0, names=["ada", "bo"])
    three: dict[str, Any] = {"measured": None, "waiting_s": [0.0] * 3, "phases": {}}
    write_rounds(Path("three"), [record(cuts=[1, 2, 3], **three)])
    write_measured_run(Path("strangers"), [1, 2], [9.0] * 2, names=["ada", "cy"])
    write_rounds(Path("empty"), [])
    write_rounds(Path("moved"), [record(round=number, cuts=[4, number], sim_time_s=number) for number in (1, 2)])
    for name, change in (("large", {"clients": []}), ("damaged", {"round_s": "long"})):
        plan = json.loads((write_plan(Path(name), [1, 2], 9.0) / "plan.json").read_text())
        Path(name, "plan.json").write_text(json.dumps(plan | change))
    names(refused("plan-check", *words), *parts)


def test_errors_in_python_speak_of_arguments(folders: Path) -> None:
    with raises(InputError, "rounds= 4-9"):
        package.plan_check("plan", "run-1", rounds="4-9")
    with raises(InputError, "give a plan"):
        package.plan_check("plan", [])


def test_a_simulation_of_the_plan_is_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over links and on devices that do not vary, planned and simulated seconds are the same."""
    monkeypatch.chdir(tmp_path)
    rates = [f"network.{name}_bps={rate}" for name, rate in (("main_up", 2e7), ("main_down", 5e7))]
    settings = [
        "model.name=cnn",
        "data.name=digits",
        "data.limit=60",
        "data.limit_test=40",
        "fleet.num_clients=3",
        "train.rounds=3",
    ]
    settings += [
        "train.batch_size=8",
        "network.kind=measured",
        "network.speed_std=0",
        "fleet.cpu_hz=[1e9,4e9]",
        *rates,
    ]
    changes = [word for setting in [*settings, "network.main_hz=2e9"] for word in ("--set", setting)]
    assert hsfl("plan", *changes, "-o", "plan").code == 0
    assert hsfl("run", *changes, "--plan", "plan", "--out", "run", "--quiet").code == 0
    given = ["--set", "fleet.cuts=[4,1,1]"]
    assert hsfl("plan", *changes, *given, "-o", "given").code == 0
    assert hsfl("run", *changes, *given, "--out", "other", "--quiet").code == 0
    check = hsfl("plan-check", "plan", "run", "other", "--plan", "given", "--json").json()
    run, other = check["runs"]
    assert (run["plan"], other["plan"]) == ("plan", "given")
    assert (run["error"], other["error"]) == (pytest.approx(0.0, abs=1e-6), pytest.approx(0.0, abs=1e-6))
    for client in run["clients"] + other["clients"]:
        assert client["error"] == pytest.approx(0.0, abs=1e-6)
        for phase in client["phases"].values():
            assert phase["predicted_s"] == pytest.approx(phase["measured_s"], abs=1e-6 * run["measured_s"])
    assert (check["ranking"]["kendall_tau"], check["ranking"]["regret"]) == (1.0, 0.0)


@pytest.mark.slow
def test_a_deployment_of_the_plan(tmp_path: Path) -> None:
    """Real processes on loopback, whose seats are not in the plan's order. They are no fleet of the plan's speeds, so that errors are
    large; every phase is compared all the same."""
    plan = write_plan(tmp_path / "plan", [1, 3], 9.0, names=["bo", "ada"])
    run = changed(RUN, data={"limit": 48}, fleet={"num_clients": 2, "cuts": [3, 1]}, train={"rounds": 3})
    with fleet(tmp_path, run, names=("ada", "bo")) as there:
        there.start_all()
        assert there.wait() == 0, there.logs()
    check = hsfl("plan-check", plan, there.out, "-o", tmp_path / "check.png", "--json").json()
    (compared,) = check["runs"]
    assert (compared["plan"], compared["cuts"], compared["measured"], compared["rounds"]) == (
        str(plan),
        [1, 3],
        True,
        [2, 3],
    )
    assert compared["error"] > 0
    assert [client["name"] for client in compared["clients"]] == ["bo", "ada"]
    for client in compared["clients"]:
        assert client["phases"].keys() == set(PHASES)
        assert all(0 < phase["low_s"] <= phase["measured_s"] <= phase["high_s"] for phase in client["phases"].values())
    assert max(client["measured_s"] for client in compared["clients"]) <= compared["high_s"]
    assert (tmp_path / "check.png").stat().st_size > 10_000
