"""Fleet files: devices by name, with units; what is wrong is one line that names file and device."""

import json
from pathlib import Path

import numpy as np
import pytest

from hsfl import fleet_file
from hsfl.config import read_config
from hsfl.errors import InputError
from hsfl.models.cost_table import CostTable
from hsfl.network import devices
from hsfl.network.channel import Measured
from hsfl.planning.fleet_from_file import fleet_notes
from hsfl.planning.world import world_of
from tests.naming import names, raises

ZEROS = np.zeros(4)
MIB = 2**23
COST = CostTable(*[ZEROS] * 7, param_bits=[0, 10, 30, 60], memory_bits=[0, MIB, 2 * MIB, 4 * MIB], batch_size=1)
TWO = """
[[device]]
name = "ward-1"
compute = "35 GFLOP/s"
memory = "2MiB"
up = "100Mbps"
down = "1Gbps"

[[device]]
name = "ward-2"
cpu = "3.6GHz"
flops_per_cycle = 8
max_cut = 3
up = "10Mbps"
down = 20e6
edge_up = "5Mbps"
"""
SERVER = '\n[main_server]\ncompute = "400 GFLOP/s"\ncpu = "4GHz"\n'


def written(folder: Path, text: str, name: str = "fleet.toml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def world(path: Path, *changes: str):
    return world_of(read_config(None, [f"fleet.file={path}", *changes]), COST)


def test_devices_by_name_in_toml_and_json(tmp_path: Path) -> None:
    rows = [
        {"name": "ward-1", "compute": "35 GFLOP/s", "memory": "2MiB", "up": "100Mbps", "down": "1Gbps"},
        {
            "name": "ward-2",
            "cpu": 3.6e9,
            "flops_per_cycle": 8,
            "max_cut": 3,
            "up": 1e7,
            "down": "20Mbps",
            "edge_up": 5e6,
        },
    ]
    toml = fleet_file.read_fleet_file(written(tmp_path, TWO + SERVER))
    as_json = fleet_file.read_fleet_file(written(tmp_path, json.dumps({"device": rows}), "fleet.json"))
    assert toml.devices == as_json.devices
    assert [device.name for device in toml.devices] == ["ward-1", "ward-2"]
    assert toml.main_server is not None
    assert toml.main_server.cpu_hz * toml.main_server.flops_per_cycle == pytest.approx(400e9)
    fleet = devices.fleet_of_file(tmp_path / "fleet.toml", COST)
    assert (fleet.cpu_hz * fleet.flops_per_cycle).tolist() == pytest.approx([35e9, 28.8e9])
    assert fleet.max_cut.tolist() == [2, 3]
    assert fleet.name(1) == "ward-2"
    assert fleet.take(np.array([1])).name(0) == "ward-2"


def test_measured_links_need_no_power_and_count_their_clients(tmp_path: Path) -> None:
    made = world(written(tmp_path, TWO + SERVER), "network.kind=measured")
    assert made.fleet.num_clients == 2
    assert isinstance(made.links, Measured)
    rates = made.links.rates
    assert rates.main_up_bps.tolist() == [1e8, 1e7]
    assert rates.main_down_bps.tolist() == [1e9, 2e7]
    assert rates.edge_up_bps.tolist() == [1e8, 5e6]
    assert rates.edge_down_bps.tolist() == [1e9, 2e7]
    assert made.servers.main_hz * made.servers.flops_per_cycle == pytest.approx(400e9)
    assert np.isnan(made.fleet.max_power_w).all()


def test_one_rate_for_all_stands_in_for_devices_that_give_none(tmp_path: Path) -> None:
    path = written(tmp_path, TWO.replace('up = "10Mbps"\n', "", 1))
    assert world(path, "network.kind=measured", "network.main_up_bps=7Mbps").links.rates.main_up_bps.tolist() == [
        1e8,
        7e6,
    ]


def test_a_rate_to_one_server_stands_in_for_the_other(tmp_path: Path) -> None:
    """As in a config: FL needs no rates to the main server."""
    path = written(tmp_path, TWO.replace('up = "10Mbps"\n', "", 1))
    rates = world(path, "network.kind=measured", "network.edge_down_bps=7Mbps").links.rates
    assert rates.main_up_bps.tolist() == [1e8, 5e6]  # the second gives edge_up alone
    assert rates.edge_up_bps.tolist() == [1e8, 5e6]
    assert rates.edge_down_bps.tolist() == [7e6, 7e6]


def test_a_config_names_files_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    written(tmp_path / "there", TWO)
    text = '[fleet]\nfile = "fleet.toml"\n[network]\nhistory = "../june.csv"\n[data]\nname = "folder:images"\ndir = "~/x"\n'
    written(tmp_path / "there", text, "my.toml")
    monkeypatch.chdir(tmp_path)
    config = read_config("there/my.toml", ["model.init_weights=w.safetensors"])
    assert config.fleet.num_clients == 2
    assert config.fleet.file == "there/fleet.toml"
    assert config.network.history == "june.csv"
    assert config.data.name == "folder:there/images"
    assert config.data.dir == "~/x"
    assert config.model.init_weights == "w.safetensors"  # typed here, so from here


def test_a_main_server_that_nobody_described_is_said(tmp_path: Path) -> None:
    path = written(tmp_path, TWO)
    config = read_config(None, [f"fleet.file={path}"])
    (note,) = fleet_notes(config)
    names(note, "main server", "1e+12 cycles per second")
    names(note, "hsfl measure --server")
    assert fleet_notes(read_config(None, [f"fleet.file={path}", "network.main_hz=400GHz"])) == []
    written(tmp_path, TWO + SERVER)
    assert fleet_notes(config) == []
    assert fleet_notes(read_config(None)) == []


DEVICE = '[[device]]\nname = "a"\n'


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("lists no devices", "add a [[device]] table")),
        ("[main_server]\ncompute = 1e9\n", ("lists no devices",)),
        (DEVICE, ("device 'a'", "no speed", "give compute")),
        (DEVICE + 'cpu = "3GHy"\n', ("device 'a'", "cpu is '3GHy'", "unit 'GHy' is unknown")),
        (DEVICE + "cpu = -3e9\n", ("device 'a'", "cpu is -3000000000.0", "above 0")),
        (DEVICE + 'cpu = 1e9\nup = "100"\n', ("device 'a'", "up is '100'", "100 of what", "5Mbps")),
        (DEVICE + "cpu = 3.6\n", ("device 'a'", "cpu is 3.6", "3.6 of what")),
        (DEVICE + "cpu = 1e9\nmemory = 16\n", ("device 'a'", "memory is 16", "16 of what")),
        (DEVICE + "cpu = true\n", ("device 'a'", "cpu is True", "text with a number")),
        (DEVICE + "cpu = 1e9\n" + DEVICE + "cpu = 2e9\n", ("two devices", "name 'a'", "rename one")),
        (DEVICE + "cpu = 1e9\nmemroy = 3\n", ("device 'a'", "'memroy' is unknown", "did you mean memory")),
        (DEVICE + "cpu = 1e9\nmax_cut = 1.5\n", ("max_cut is 1.5", "a whole number")),
        (DEVICE + 'cpu = 1e9\nmax_cut = 1\nmemory = "1GiB"\n', ("both max_cut and memory",)),
        (DEVICE + "compute = 1e9\nflops_per_cycle = 2\n", ("both compute and flops_per_cycle",)),
        (DEVICE + "cpu = 1e9\nflops_per_cycle = 0\n", ("flops_per_cycle is 0",)),
        (DEVICE + 'cpu = 1e9\nmemory = "1KiB"\nup = 1e6\ndown = 1e6\n',
         ("device 'a'", "no feasible cut", "storage is 1.024 kB", "cut 1 needs 1.049 MB")),
        (DEVICE + "cpu = 1e9\nmax_cut = 4\nup = 1e6\ndown = 1e6\n", ("max_cut of a is 4", "3 units")),
        (DEVICE + "cpu = 1e9\nup = 1e6\n", ("device 'a' has no down", 'network.kind = "measured"')),
        ("[[device]]\ncpu = 1e9\n", ("device 1 has no name", "up to 60")),
        ("[[devices]]\ncpu = 1e9\n", ("'devices' is unknown", "did you mean device?")),
        ("device = 3\n", ("device is int", "a [[device]] table")),
        ("[[device]\n", ("cannot read the fleet",)),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line_that_names_it(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    path = written(tmp_path, text)
    with raises(InputError, *parts) as error:
        world(path, "network.kind=measured")
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ([], ("up and down of devices", 'network.kind is "ofdma"')),
        (["network.kind=measured", "network.main_up_bps=1e6"], ("network.main_up_bps", "no effect beside up")),
        (["network.kind=measured", "network.main_hz=5e9"], ("network.main_hz", "no effect", "[main_server]")),
        (["network.kind=measured", "fleet.num_clients=3"], ("fleet.num_clients is 3",)),
    ],
)
def test_what_the_file_says_is_not_overruled_in_silence(
    tmp_path: Path, changes: list[str], parts: tuple[str, ...]
) -> None:
    with raises(InputError, *parts):
        world(written(tmp_path, TWO + SERVER), *changes)


def test_a_radio_needs_power(tmp_path: Path) -> None:
    path = written(tmp_path, DEVICE + "cpu = 1e9\n")
    with raises(InputError, "device 'a'", "power", "radio"):
        world(path)
    assert world(written(tmp_path, DEVICE + 'cpu = 1e9\npower = "2W"\n')).fleet.max_power_w.tolist() == [2]
