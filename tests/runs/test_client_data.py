"""Data and fleet that both name the machines: a device trains on its own samples, or an error or a note says otherwise."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import hsfl
from hsfl.config import read_config
from hsfl.errors import InputError
from hsfl.runs.client_data import client_names, data_notes, divide_samples, expected_samples, read_data
from hsfl.runs.run_folder.folder import RunFolder
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


PIXELS = np.linspace(0, 255, 24 * 3 * 4 * 4).reshape(24, 3, 4, 4)


@pytest.mark.parametrize(
    ("x", "normalise", "said"),
    [
        (PIXELS, False, True),
        (PIXELS[:, 0], False, True),  # grey
        (PIXELS / 255, False, False),
        (PIXELS.astype(np.uint8), False, False),  # images
        (PIXELS, True, False),
        (PIXELS - 128, False, False),  # somebody has moved them
        (PIXELS.reshape(24, -1), False, False),  # features of any kind
    ],
)
def test_floats_that_look_like_pixels(x: np.ndarray, normalise: bool, said: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        given = hsfl.dataset(x, np.arange(24) % 2, normalise=normalise)
    assert [warning.filename for warning in caught] == [__file__] * said
    notes = data_notes(read_config(None, ["data.name=own"]), given)
    assert bool(notes) == said
    if said:
        for note in (notes[0], caught[0].message):
            names(note, "from 0 to", "uint8", "255", "normalise=True")


def test_pixels_of_a_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=PIXELS, y=np.arange(24) % 2)
    name = f"data.name=npz:{tmp_path / 'own.npz'}"
    plain, normalised = read_config(None, [name]), read_config(None, [name, "data.normalise=true"])
    names(data_notes(plain, read_data(plain))[0], "own.npz", "data.normalise=true")
    assert data_notes(normalised, read_data(normalised)) == []


def test_a_plan_says_that_a_limit_is_charged() -> None:
    words = ["data.limit=60", "model.name=cnn", "fleet.num_clients=2"]
    (note,) = expected_samples(read_config(None, words)).notes
    names(note, "60 of 1,438", "network.sample_scale=")
    assert expected_samples(read_config(None, words), samples_per_client=50).notes == []  # the limit decides nothing


def test_a_plan_without_the_data_knows_their_number(tmp_path: Path) -> None:
    words = ["data.name=cifar10", "data.limit=5000", f"data.dir={tmp_path}"]
    names(expected_samples(read_config(None, words)).notes[-1], "5,000 of 50,000", "network.sample_scale=10")
