"""Fleets: the paper's ranges, heterogeneity at a constant mean, storage, files, and what they refuse."""

import json
from dataclasses import replace

import numpy as np
import pytest

from hsfl.errors import InputError
from hsfl.models.cost_table import CostTable
from hsfl.network import devices
from hsfl.network.devices import Fleet, Servers
from tests.naming import raises

ZEROS = np.zeros(4)
COST = CostTable(*[ZEROS] * 7, param_bits=[0, 10, 30, 60], memory_bits=[0, 100, 200, 150], batch_size=1)


def drawn(heterogeneity=1.0, num_clients=1000, **options):
    return devices.draw_fleet(num_clients, np.random.default_rng(3), heterogeneity, num_units=10, **options)


def test_a_drawn_fleet_has_the_papers_ranges():
    fleet = drawn()
    assert fleet.cpu_hz.min() == devices.PAPER_CPU_FLOOR_HZ  # the floor bites in a thousand draws
    assert 9.9e10 < fleet.cpu_hz.max() <= 10e10
    assert 1 <= fleet.max_power_w.min() < 1.1
    assert 9.9 < fleet.max_power_w.max() <= 10
    assert set(fleet.max_cut) == set(range(3, 11))
    assert (fleet.flops_per_cycle == 1).all()


def test_heterogeneity_scales_the_same_draws_around_the_same_mean():
    fleets = {level: drawn(level) for level in (0.0, 0.3, 1.0)}
    for name in ("cpu_hz", "max_power_w"):
        whole = getattr(fleets[1.0], name)
        for level, fleet in fleets.items():
            values = getattr(fleet, name)
            assert values.mean() == pytest.approx(whole.mean())
            np.testing.assert_allclose(values - values.mean(), level * (whole - whole.mean()), atol=1e-9 * whole.mean())
    assert (fleets[0.3].max_cut == fleets[1.0].max_cut).all()


def test_max_cut_stops_at_the_model():
    fleet = devices.draw_fleet(100, np.random.default_rng(0), num_units=4)
    assert set(fleet.max_cut) == {3, 4}


def test_the_floor_is_for_ranges_from_zero():
    assert drawn(cpu_hz=(1e7, 2e7)).cpu_hz.max() < 2e7
    assert drawn(cpu_hz=(0, 1e9)).cpu_hz.min() == 0.05e10
    with raises(InputError, "fleet.cpu_hz"):
        drawn(cpu_hz=(0, 1e7))


def test_a_range_of_nothing():
    with raises(InputError, "cpu_hz", "0..0"):
        drawn(cpu_hz=(0, 0))


def test_storage_means_parameters_or_training():
    assert devices.max_cuts(COST, [10, 59, 1e9], "parameters").tolist() == [1, 2, 3]
    # Training: cut 3 needs less than cut 2, but a max_cut promises every cut below it.
    assert devices.max_cuts(COST, [100, 160, 200]).tolist() == [1, 1, 3]


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: devices.max_cuts(COST, [200, 95]), ("client 1", "storage is 11.88 B", "cut 1")),
        (lambda: devices.max_cuts(COST, [200, -1]), ("storage_bits", "client 1 is -1")),
        (lambda: devices.max_cuts(COST, [200], "disk"), ("storage is 'disk'", "training or parameters")),
        (lambda: devices.max_cuts(replace(COST, memory_bits=None), [1]), ("cost table", "storage 'training'")),
        (lambda: Fleet([1e9, 0.0], 1, 1, 3), ("cpu_hz", "client 1 is 0.0", "positive")),
        (lambda: Fleet([1e9, 1e9], 1, [1, -2], 3), ("max_power_w", "client 1 is -2")),
        (lambda: Fleet([1e9, 1e9], [np.nan, 1], 1, 3), ("flops_per_cycle", "client 0 is nan")),
        (lambda: Fleet([1e9, np.inf], 1, 1, 3), ("cpu_hz", "client 1 is inf")),
        (lambda: Fleet([1e9, 1e9], 1, [1, 2, 3], 3), ("max_power_w has shape (3,)", "2 clients")),
        (lambda: Fleet([1e9], 1, 1, [2.5]), ("max_cut", "client 0 is 2.5")),
        (lambda: Fleet([], 1, 1, 1), ("no clients",)),
        (lambda: Fleet(["fast"], 1, 1, 1), ("cpu_hz is ['fast']",)),
        (lambda: Fleet([1.0, 1.0], 1, 1, [3, 2]).check_cuts([3, 3], 10), ("the cut", "client 1 is 3", "can hold 1..2")),
        (lambda: Servers(main_hz=0), ("servers.main_hz is 0",)),
        (lambda: drawn(1.5), ("heterogeneity is 1.5",)),
        (lambda: drawn(num_clients=0), ("num_clients is 0",)),
        (lambda: drawn(cpu_hz=(1, 5)), ("fleet.cpu_hz is [1, 5]", "slower than any", '["1GHz", "5GHz"]')),
        (lambda: drawn(cpu_hz=(5, 2)), ("range of cpu_hz", "5..2")),
        (lambda: drawn(min_cut=4), ("max_cut range (3, 10)", "no cut from 4")),
    ],
)
def test_bad_input_is_one_line_that_names_client_and_value(make, parts):
    with raises(InputError, *parts) as error:
        make()
    assert "\n" not in str(error.value)


def test_a_fleet_from_json_and_toml(tmp_path):
    rows = [{"name": "a", "cpu": "1GHz", "power": "1W", "max_cut": 1}, {"name": "b", "cpu": 2e9, "max_cut": 3}]
    (tmp_path / "fleet.json").write_text(json.dumps({"device": rows}))
    tables = [
        f'[[device]]\nname = "{name}"\ncpu = {hz}\nflops_per_cycle = 4\nmemory = "{memory}"\n'
        for name, hz, memory in (("a", 1e9, "13B"), ("b", 2e9, "25B"))
    ]
    (tmp_path / "fleet.toml").write_text("".join(tables))
    first, second = (devices.fleet_of_file(tmp_path / name, COST) for name in ("fleet.json", "fleet.toml"))
    assert first.cpu_hz.tolist() == second.cpu_hz.tolist() == [1e9, 2e9]
    assert first.max_cut.tolist() == [1, 3]
    assert second.max_cut.tolist() == [1, 3]
    assert second.flops_per_cycle.tolist() == [4, 4]
    assert first.take(np.array([1])).cpu_hz.tolist() == [2e9]
    assert first.can_hold(3).tolist() == [False, True]


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ({"device": [{"name": "a", "cpu": "1GHz", "max_cut": 4}]}, ("max_cut of a is 4", "3 units")),
        ({"device": [{"name": "a", "cpu": "1GHz", "max_cut": 0}]}, ("a has no feasible cut", "max_cut is 0")),
        ({"cpu_hz": [1], "max_cut": [1]}, ("fleet.json", "field 'cpu_hz'", "[[device]] table")),
        ([1], ("fleet.json holds a list",)),
    ],
)
def test_bad_fleet_files(tmp_path, table, parts):
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(table))
    with raises(InputError, *parts):
        devices.fleet_of_file(path, COST)


def test_missing_and_broken_fleet_files(tmp_path):
    with raises(InputError, "fleet", "no such file", "fleet.file", "hsfl measure"):
        devices.fleet_of_file(tmp_path / "none.json", COST)
    (tmp_path / "broken.toml").write_text("cpu_hz = ")
    with raises(InputError, "fleet", "broken.toml"):
        devices.fleet_of_file(tmp_path / "broken.toml", COST)
