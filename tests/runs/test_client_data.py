"""Data and fleet that both name the machines: a device trains on its own samples, or an error or a note says otherwise."""

from pathlib import Path

import numpy as np
from torch import nn

import hsfl
from hsfl.config import read_config
from hsfl.errors import InputError
from hsfl.runs.client_data import client_names, data_notes, divide_samples
from hsfl.runs.folder import RunFolder
from tests.naming import names, raises
from tests.report.fabricated import data_in

MODEL = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
MACHINES = np.repeat(["archive", "laboratory", "ward"], [4, 8, 12])


def config(tmp_path: Path, *devices: str):
    tables = [f'[[device]]\nname = "{name}"\ncompute = "1 GFLOP/s"\npower = "1W"\n' for name in devices]
    (tmp_path / "fleet.toml").write_text("\n".join(tables))
    return read_config(None, [f"fleet.file={tmp_path / 'fleet.toml'}", "data.partition=given"])


def data(clients=MACHINES):
    x = np.random.default_rng(0).normal(size=(24, 3))
    return hsfl.dataset(x, np.arange(24) % 2, x, np.arange(24) % 2, clients=clients)


def test_a_device_gets_the_samples_of_its_name(tmp_path: Path) -> None:
    settings = config(tmp_path, "ward", "archive", "laboratory")
    assert [len(part) for part in divide_samples(settings, data())] == [12, 4, 8]
    assert data_notes(settings, data()) == []


def test_a_name_that_only_one_of_them_knows(tmp_path: Path) -> None:
    with raises(InputError, "'laboratory'", "no device", "fleet.toml"):
        divide_samples(config(tmp_path, "ward", "archive", "labratory"), data())
    with raises(InputError, "'porter'", "fleet.toml", "no samples"):
        divide_samples(config(tmp_path, "ward", "archive", "laboratory", "porter"), data())


def test_other_names_are_taken_in_order_and_said(tmp_path: Path) -> None:
    settings = config(tmp_path, "north", "south", "west")
    assert [len(part) for part in divide_samples(settings, data())] == [4, 8, 12]
    (note,) = data_notes(settings, data())
    names(note, "archive is north", "laboratory is south", "ward is west", "same names")
    numbered = data(np.repeat([1, 2, 10], [4, 8, 12]))
    assert data_notes(settings, numbered) == []


def test_names_of_the_data_reach_the_folder_and_the_plan(tmp_path: Path) -> None:
    words = ["data.partition=given", "fleet.num_clients=3", "fleet.cuts=1", "train.rounds=1", "train.batch_size=4"]
    hsfl.run(read_config(None, words), tmp_path, data=data(), model=MODEL)
    assert RunFolder(tmp_path).clients().names == ["archive", "laboratory", "ward"]
    (run,) = data_in(tmp_path / "report.html")["runs"]
    assert run["clients"]["names"] == ["archive", "laboratory", "ward"]
    plan = hsfl.plan(None, [*words, "allocation.samples=1"], data=data(), model=MODEL)
    assert [client.name for client in plan.clients] == ["archive", "laboratory", "ward"]
    numbered = read_config(None, words)
    assert client_names(numbered, data(np.repeat([1, 2, 10], [4, 8, 12]))) == ()  # numbers are no names
