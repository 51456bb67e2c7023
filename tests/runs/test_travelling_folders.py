"""A run folder holds its inputs: it is resumed, reported and run again where the files it was made from are gone."""

import json
import shutil
from pathlib import Path

import pytest

from tests.naming import names
from tests.small_runs import hsfl, numbers, refused, tiny_words

DEVICE = '[[device]]\nname = "{name}"\ncpu = "{ghz}GHz"\npower = "1W"\nmax_cut = 5\n'


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A run of two rounds whose fleet file is gone, in a folder that has moved."""
    fleet = tmp_path / "first" / "devices.toml"
    fleet.parent.mkdir()
    fleet.write_text("".join(DEVICE.format(name=name, ghz=ghz) for name, ghz in zip("abc", (1, 2, 5))))
    words = tiny_words(f"fleet.file={fleet}", "train.rounds=2")
    assert hsfl("run", *words, "--out", tmp_path / "run").code == 0
    shutil.rmtree(fleet.parent)
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    return tmp_path / "elsewhere"


def test_a_folder_goes_on_elsewhere(made: Path, tmp_path: Path) -> None:
    assert json.loads((made / "config.json").read_text())["fleet"]["file"] == "inputs/fleet.toml"
    assert hsfl("run", "--resume", "--out", made, "--set", "train.rounds=3").code == 0
    assert len(numbers(made)) == 3
    assert hsfl("report", made).code == 0
    assert hsfl("evaluate", made).code == 0
    assert hsfl("run", made, "--out", tmp_path / "again").code == 0
    assert numbers(tmp_path / "again") == numbers(made)


def test_other_contents_are_noticed(made: Path) -> None:
    (made / "inputs" / "fleet.toml").write_text((made / "inputs" / "fleet.toml").read_text().replace("2GHz", "3GHz"))
    names(refused("run", "--resume", "--out", made, "--set", "train.rounds=3"), "other contents", "fleet.file")


def test_a_folder_that_holds_no_run(tmp_path: Path) -> None:
    names(refused("run", tmp_path), "config.json")


def test_a_config_in_a_folder_reaches_no_other_place(made: Path) -> None:
    path = made / "config.json"
    tree = json.loads(path.read_text())
    path.write_text(json.dumps(tree | {"fleet": tree["fleet"] | {"file": "inputs/../../../fleet.toml"}}))
    assert hsfl("run", made, "--out", made.parent / "again").code == 0  # the file of that name in its inputs
