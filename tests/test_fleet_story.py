"""docs/fleet.md, line by line: an engineer's six workstations, from measuring them to a plan and a run."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from hsfl import fleet_file
from hsfl.report.page.page import page_data, render
from hsfl.report.page.page_sources import read_sources
from hsfl.runs.run_folder.folder import RunFolder
from tests.naming import names
from tests.small_runs import Answer, hsfl, refused

DOC = (Path(__file__).parents[1] / "docs" / "fleet.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", DOC, re.M | re.S)
FILES = {text.splitlines()[0].removeprefix("# "): text for kind, text in BLOCKS if kind == "toml"}
COMMANDS = [shlex.split(line)[1:] for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
NAMES = ["ward-1", "ward-2", "radiology", "laboratory", "archive", "reception"]


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the text, in which its commands are typed."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def typed(words: list[str], *more: str) -> Answer:
    answer = hsfl(*words, *more)
    assert answer.code == 0, (words, answer)
    return answer


def test_the_text_has_what_the_tests_run() -> None:
    assert list(FILES) == ["hospital.toml", "fleet.toml"]
    assert [words[0] for words in COMMANDS] == ["measure", "measure", "plan", "plan", "plan", "run", "plan-check"]
    assert [row["name"] for row in tomllib.loads(FILES["fleet.toml"])["device"]] == NAMES


def test_measure_the_machines(hospital: Path) -> None:
    """The fleet file does not exist yet, though the config names it."""
    (hospital / "fleet.toml").unlink()
    small = ["--seconds", "0.1", "--set", "model.name=mlp", "--set", "train.batch_size=8"]
    said = typed(COMMANDS[0], *small).out
    assert "compute: training reaches" in said
    assert said.startswith("mlp at 1x32x32, batches of 8")  # samples as the config's data have them
    names(said, "device 'ward-1'", "fleet.toml")
    text = (hospital / "fleet.toml").read_text()
    (device,) = fleet_file.read_fleet_file("fleet.toml").devices
    assert (device.name, device.up_bps, device.down_bps) == ("ward-1", 1e8, 1e8)
    assert device.memory_bits is not None
    names(typed(COMMANDS[1], *small).out, "main server", "fleet.toml")
    assert (hospital / "fleet.toml").read_text().startswith(text.rstrip())  # what stood there stays
    assert fleet_file.read_fleet_file("fleet.toml").main_server is not None
    names(refused(*COMMANDS[0], *small), "device 'ward-1'")
    names(refused(*COMMANDS[1], *small), "[main_server]")


def test_measure_trains_samples_of_the_config_s_data(hospital: Path) -> None:
    (hospital / "rows.csv").write_text("a,b,kind\n" + "".join(f"{i},{-i},{i % 3}\n" for i in range(30)))
    words = ["measure", "--seconds", "0.1", "--set", "data.name=csv:rows.csv", "--set", "data.target_column=kind"]
    words += ["--set", "model.name=mlp", "--set", "train.batch_size=8"]
    assert typed(words).out.startswith("mlp at 2, batches of 8")
    (hospital / "rows.csv").unlink()
    elsewhere = typed(words)  # a server holds no data
    assert elsewhere.out.startswith("mlp at 3x32x32, batches of 8")
    names(elsewhere.err, "warning:", "3x32x32", "10 classes")


def test_plan(hospital: Path) -> None:
    shown = typed(COMMANDS[2]).out
    assert all(name in shown for name in NAMES)
    assert "on which the round hangs most" in shown
    assert "the mean round would take" in shown
    assert "the paper's" not in shown  # the main server was measured
    assert "; a main server of 100 GFLOP/s.\n" in shown.split("\n\n")[0] + "\n"  # as the fleet file has it
    typed(COMMANDS[3])
    plan = json.loads((hospital / "plan" / "plan.json").read_text())
    assert [client["name"] for client in plan["clients"]] == NAMES
    held = plan["clients"][plan["why"]["client"]]
    assert f"{held['name']} (cut {held['cut']}), on which the round hangs most" in shown
    assert plan["other_cut"] not in (None, held["cut"])
    assert plan["other_round_s"] > plan["lower_bound_s"]
    assert {client["main_up_power_w"] for client in plan["clients"]} == {None}
    assert "seconds of a round" in typed(COMMANDS[4]).out
    cycles = re.sub(r'compute = "\d+ GFLOP/s"(?=\nmemory)', 'cpu = "3.6GHz"', FILES["fleet.toml"])
    (hospital / "cycles.toml").write_text(cycles)
    naive = typed(COMMANDS[2], "--set", "fleet.file=cycles.toml", "--json").json()
    assert set(naive["cuts"]) == {1}  # as the text says: one FLOP per cycle gives everybody cut 1
    assert max(plan["cuts"]) > 1
    assert naive["round_s"] > plan["round_s"]


def test_a_server_that_nobody_measured_is_said_aloud(hospital: Path) -> None:
    (hospital / "fleet.toml").write_text(FILES["fleet.toml"].partition("[main_server]")[0])
    names(typed(COMMANDS[2]).out, "note:", "the paper's")


def test_run(hospital: Path) -> None:
    typed(COMMANDS[5], "--quiet", "--set", "data.limit=60")
    folder = RunFolder(hospital / "runs" / "hospital")
    clients = folder.clients()
    assert clients is not None
    assert clients.names == NAMES
    assert clients.max_power_w == [None] * 6
    (record,) = folder.rounds()
    assert record.why is not None
    data = page_data(read_sources([folder.path]))
    (run,) = data["runs"]
    assert run["clients"]["names"] == NAMES
    assert "a main server of 100 GFLOP/s" in " ".join(run["words"])  # of the fleet file
    assert record.straggler == record.why.client
    assert run["rounds"]["why"][0] is not None, "on a server that is one queue somebody ends last"
    assert "ward-1" in render(data)


def test_check_the_plan(hospital: Path) -> None:
    typed(COMMANDS[3], "--set", "data.limit=60")
    typed(COMMANDS[5], "--quiet", "--set", "data.limit=60")
    answer = typed(COMMANDS[6])
    names(answer.out, "as plan predicts it", "the round: predicted", "error")
    assert all(name in answer.out for name in NAMES)
    for client in typed(COMMANDS[6], "--json").json()["runs"][0]["clients"]:
        assert abs(client["phases"]["smashed"]["error"]) < 1e-6  # links do not vary


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('"38 GFLOP/s"', '"38 GFLIP/s"', ("fleet.toml", "'ward-1'", "compute is '38 GFLIP/s'", "unit 'GFLIP/s'")),
        ('"38 GFLOP/s"', '"-38 GFLOP/s"', ("compute is '-38 GFLOP/s'", "above 0")),
        ('name = "ward-2"', 'name = "ward-1"', ("two devices", "name 'ward-1'")),
        ('memory = "4GiB"', 'memory = "4MiB"', ("device 'archive'", "no feasible cut", "storage is 4.194 MB", "cut 1")),
        ('up = "50Mbps"\n', "", ("device 'reception'", "has no up")),
        ("[[device]]", "[[devices]]", ("'devices' is unknown", "did you mean device?")),
    ],
)
def test_when_something_is_wrong(hospital: Path, old: str, new: str, parts: tuple[str, ...]) -> None:
    (hospital / "fleet.toml").write_text(FILES["fleet.toml"].replace(old, new, 6 if old == "[[device]]" else 1))
    names(refused(*COMMANDS[2]), *parts)
