"""The scenario file: what is read is what was written, and every mistake is one line that names the field."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from hsfl.allocation.answer import violation
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.solvers import allocate
from hsfl.cli import app
from hsfl.errors import InputError
from tests.naming import names, raises

GOOD = random_scenario(np.random.default_rng(0), 3, 4).to_dict()


def broken(path, value):
    """GOOD with one field changed; value `...` removes it."""
    data = copy.deepcopy(GOOD)
    *parents, last = path
    place = data
    for part in parents:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return data


def test_round_trip(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(GOOD))
    assert Scenario.read(tmp_path / "a.json").to_dict() == GOOD


def with_rows(rows: object) -> dict:
    data = broken(("clients", "max_cut"), ...)
    data["clients"]["rows"] = rows
    return data


def test_rows_instead_of_max_cut(tmp_path):
    """The same rows by name give the same answer, and other rows are obeyed."""
    scenario = Scenario.from_dict(GOOD)
    named = Scenario.from_dict(with_rows([list(range(1, cut + 1)) for cut in GOOD["clients"]["max_cut"]]))
    np.testing.assert_array_equal(named.rows, scenario.rows)
    found, expected = (allocate(one, time_limit_s=2) for one in (named, scenario))
    assert found.cuts.tolist() == expected.cuts.tolist()
    assert found.round_s == expected.round_s
    sparse = with_rows([[2, 7], [1, 9], [4]])
    answer = allocate(sparse, time_limit_s=2)
    assert all(cut in rows for cut, rows in zip(answer.cuts.tolist(), sparse["clients"]["rows"]))
    assert answer.cuts_lower_bound_s <= answer.round_s
    assert Scenario.from_dict(sparse).to_dict() == sparse
    with raises(InputError, "cuts[1] is 2", "[1, 9]", "clients.rows"):
        Scenario.from_dict(sparse).check_cuts([2, 2, 4])
    assert violation(Scenario.from_dict(sparse), replace(answer, cuts=np.array([2, 2, 4]))) >= 1


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (with_rows([[1], [99], [1]]), ("clients.rows[1]", "0 to 10")),
        (with_rows([[1], [], [1]]), ("clients.rows[1]", "at least one")),
        (with_rows([[1], [1]]), ("clients.rows", "2 entries", "clients.cpu_hz has 3")),
        (broken(("clients", "rows"), [[1], [1], [1]]), ("clients.max_cut", "clients.rows", "leave max_cut out")),
        (broken(("clients", "max_cut"), ...), ("clients.max_cut is missing", "clients.rows")),
    ],
)
def test_bad_rows(data, parts):
    with raises(InputError, *parts):
        Scenario.from_dict(data)


def test_defaults_are_the_documented_ones():
    data = copy.deepcopy(GOOD)
    for key in ("tau_s", "sharing", "min_cut"):
        del data[key]
    data["clients"]["flops_per_cycle"] = 2.0
    scenario = Scenario.from_dict(data)
    assert (scenario.tau_s, scenario.sharing, scenario.min_cut) == (None, "exclusive", 1)
    assert scenario.client_flops_per_cycle.tolist() == [2.0, 2.0, 2.0]


BAD = {
    "missing field": (("clients", "cpu_hz"), ..., "clients.cpu_hz is missing"),
    "missing part": (("channel",), ..., "channel is missing"),
    "unknown key": (("clients", "cpu_h"), [1], "'clients.cpu_h'", "did you mean 'clients.cpu_hz'"),
    "unknown top key": (("taus",), 1, "'taus'", "did you mean 'tau_s'"),
    "short list": (("clients", "max_power_w"), [1.0], "max_power_w has 1 entries", "clients.cpu_hz has 3"),
    "short cost": (("cost", "smashed_bits"), [1.0], "cost.smashed_bits has 1 entries"),
    "negative gain": (("channel", "main_gain", 1, 2), -1.0, "channel.main_gain[1][2] is -1.0"),
    "zero gain": (("channel", "edge_gain", 0, 0), 0.0, "channel.edge_gain[0][0] is 0.0"),
    "nan speed": (("clients", "cpu_hz", 0), float("nan"), "clients.cpu_hz[0] is nan"),
    "zero power": (("clients", "max_power_w", 2), 0, "clients.max_power_w[2] is 0"),
    "zero server power": (("servers", "main_power_w"), 0, "servers.main_power_w is 0"),
    "infinite cycles": (("servers", "main_hz"), float("inf"), "servers.main_hz is inf"),
    "text": (("servers", "main_hz"), "fast", "servers.main_hz is 'fast'", "give a number"),
    "ragged": (("channel", "main_gain", 1), [1.0], "channel.main_gain[1] has 1 entries"),
    "rows": (("channel", "edge_gain"), [[1.0] * 4], "channel.edge_gain has 1 rows", "3 clients"),
    "other width": (("channel", "edge_gain"), [[1.0] * 5] * 3, "channel.edge_gain has 5 subchannels"),
    "cut too deep": (("clients", "max_cut", 1), 99, "clients.max_cut[1] is 99", "cuts 0 to 10"),
    "no cut": (("clients", "max_cut", 1), 0, "clients.max_cut[1] is 0", "min_cut is 1", "client 1"),
    "fractional cut": (("clients", "max_cut", 1), 2.5, "clients.max_cut[1] is 2.5"),
    "sharing": (("sharing",), "free", "sharing is 'free'", "'exclusive' or 'bandwidth'"),
    "tau": (("tau_s",), -3, "tau_s is -3"),
    "negative cost": (("cost", "model_bits", 3), -8, "cost.model_bits[3] is -8"),
    "flops_per_cycle list": (("clients", "flops_per_cycle"), [1.0], "clients.flops_per_cycle has 1 entries"),
    "negative flops_per_cycle": (("clients", "flops_per_cycle"), -1.0, "clients.flops_per_cycle is -1.0"),
    "one negative flops_per_cycle": (("clients", "flops_per_cycle"), [1, -1, 1], "clients.flops_per_cycle[1] is -1"),
    "text flops_per_cycle": (("clients", "flops_per_cycle"), "x", "clients.flops_per_cycle is 'x'", "give a number\n"),
    "huge gain": (("channel", "main_gain", 1, 2), 1e300, "channel.main_gain[1][2] is 1e+300", "must be from"),
    "tiny gain": (("channel", "edge_gain", 0, 0), 1e-300, "channel.edge_gain[0][0] is 1e-300", "must be from"),
    "all signal": (("channel", "noise_w"), 1e-29, "channel.main_gain[0][0] is"),
    "all noise": (("channel", "edge_gain", 2, 1), 1e-29, "channel.edge_gain[2][1] is 1e-29", "of channel.noise_w"),
    "tiny noise": (("channel", "noise_w"), 1e-300, "channel.noise_w is 1e-300", "must be from"),
    "tiny speed": (("clients", "cpu_hz", 0), 1e-300, "clients.cpu_hz[0] is 1e-300", "from 1000 to"),
    "huge cost": (("cost", "smashed_bits", 2), 1e308, "cost.smashed_bits[2] is 1e+308", "be 0", "1e-09 to 1e+15"),
    "tiny cost": (("cost", "client_flops", 2), 1e-300, "cost.client_flops[2] is 1e-300", "be 0", "from 1e-09"),
    "one cut": (("cost", "model_bits"), [1.0], "cost.model_bits has 1 entries", "each cut"),
    "weak signal": (("channel", "main_gain", 1, 2), 1e-20, "main_gain[1][2] is 1e-20", "1e-12 to 1e+24", "the gain"),
    "no number at all": (("clients", "cpu_hz", 2), [], "clients.cpu_hz[2] is []", "give a number"),
    "huge batch": (("batch_size",), 10**400, "batch_size is 1000"),
    "huge max_cut": (("clients", "max_cut", 0), 10**400, "clients.max_cut[0] is 1000"),
    "huge min_cut": (("min_cut",), 10**400, "min_cut is 1000"),
    "huge whole speed": (("clients", "cpu_hz", 0), 10**400, "clients.cpu_hz[0] is 1000"),
    "not close to any": (("bandwith",), 3, "'bandwith'", "known here", "batch_size, tau_s"),
    "another place": (("noise_w",), 3, "'noise_w'", "did you mean 'channel.noise_w'"),
    "list for object": (("clients",), [], "clients is []", "section", "set its fields", "clients.cpu_hz"),
    "null": (("clients", "cpu_hz"), None, "clients.cpu_hz is None", "give a list"),
    "object for number": (("servers", "main_hz"), {}, "servers.main_hz is {}", "give a number"),
    "text for whole": (("batch_size",), "x", "batch_size is 'x'", "a whole number"),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_name_field_and_value(case, tmp_path):
    path, value, *parts = BAD[case]
    data = broken(path, value)
    with pytest.raises(InputError) as error:
        Scenario.from_dict(data)
    names(f"{error.value}\n", *parts)
    assert "\n" not in str(error.value)
    (tmp_path / "a.json").write_text(json.dumps(data))
    result = CliRunner().invoke(app, ["allocate", str(tmp_path / "a.json")])
    assert result.exit_code == 2
    names(result.stderr, *parts)
    assert result.stderr.count("\n") == 1


def test_numbers_that_cannot_be_computed_with_are_refused_in_arrays_too():
    good = random_scenario(np.random.default_rng(0), 3, 4)
    for field, value in (("batch_size", 10**400), ("main_hz", 1e300), ("main_gain", good.main_gain * 1e300)):
        with pytest.raises(InputError, match=field):
            replace(good, **{field: value}).checked()


def test_a_key_given_twice(tmp_path):
    text = json.dumps(GOOD).replace('"main_hz"', '"main_hz": 3, "main_hz"')
    (tmp_path / "a.json").write_text(text)
    with raises(InputError, "main_hz", "twice"):
        Scenario.read(tmp_path / "a.json")


def test_a_byte_order_mark_is_no_mistake(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(GOOD), encoding="utf-8-sig")
    assert Scenario.read(tmp_path / "a.json").to_dict() == GOOD


def test_a_file_of_null_is_no_scenario():
    with raises(InputError, "scenario is None", "object"):
        Scenario.from_dict(None)


def test_more_clients_than_subchannels():
    data = broken(("channel", "main_gain"), [[1.0]] * 3)
    data["channel"]["edge_gain"] = [[1.0]] * 3
    with raises(InputError, "sharing", '"bandwidth"'):
        Scenario.from_dict(data)
    data["sharing"] = "bandwidth"
    assert Scenario.from_dict(data).num_subchannels == 1


@pytest.mark.parametrize("content", ["", "[]", "{", "3", '"x"', "[" * 100_000, '{"batch_size": ' + "1" * 5000 + "}"])
def test_files_that_are_no_scenario(content, tmp_path):
    (tmp_path / "a.json").write_text(content)
    result = CliRunner().invoke(app, ["allocate", str(tmp_path / "a.json")])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_missing_file_and_directory(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        result = CliRunner().invoke(app, ["allocate", str(path)])
        assert result.exit_code == 2
        names(result.stderr, str(path), "read")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--cuts", "1,2"], ("cuts has 2 entries", "3 clients")),
        (["--cuts", "1,2,99"], ("cuts[2] is 99", "client 2", "1 to")),
        (["--cuts", "1,2,x"], ("--cuts is '1,2,x'",)),
        (["--cuts", "1,1,1", "--solver", "magic"], ("solver is 'magic'",)),
        (["--cuts", "1,1,1", "--gap", "2"], ("gap is 2.0",)),
        (["--cuts", "1,1,1", "--time-limit-s", "0"], ("time_limit_s is 0.0",)),
        (["--seed", "-1"], ("seed is -1", "0 or more")),
        (["--cuts", "1,1,1", "--out", "/dev/null/a.json"], ("/dev/null",)),
    ],
)
def test_bad_options(options, parts: tuple[str, ...], tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(GOOD))
    result = CliRunner().invoke(app, ["allocate", str(tmp_path / "a.json"), *options])
    assert result.exit_code == 2
    names(result.stderr, *parts)
    assert result.stderr.count("\n") == 1
