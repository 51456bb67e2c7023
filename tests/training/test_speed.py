"""hsfl measure's clockwork: the median step, FLOPs that the cost table counts, memory, and the entry it becomes."""

import itertools
import json
from pathlib import Path

import pytest
from torch import nn

from hsfl import fleet_file
from hsfl.codec_table import CODECS
from hsfl.config import TrainConfig
from hsfl.errors import InputError
from hsfl.models.cost_table import measure_cost
from hsfl.models.units import SplitModel
from hsfl.models.zoo import build
from hsfl.training import speed
from hsfl.training.speed import machine_memory_bits, training_speed
from hsfl.training.step import Part
from tests.naming import names, raises
from tests.small_runs import hsfl, refused

SHAPE = (1, 8, 8)
PROFILE = fleet_file.Profile(
    "mlp", 8, (0.001, 0.02), (0.003, 0.0), 0.02, {"int8": (6e-10, 1.5e-10), "topk:0.1": (2e-8, 3e-10)}
)


def test_the_median_step_counts_and_warm_up_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by hand: steps of 2 s, by units of 3 s, the first two and one in the middle much longer."""
    by_kind = [[50.0, 50.0, length_s, length_s, 90.0, length_s, length_s] for length_s in (2.0, 3.0)]
    lengths_s = itertools.chain(*by_kind)
    now_s = 0.0

    def step(units: list[Part], *_: object) -> tuple[list[float], list[float]]:
        nonlocal now_s
        now_s += (length_s := next(lengths_s))
        return [0.25 * length_s / len(units)] * len(units), [0.75 * length_s / len(units)] * len(units)

    monkeypatch.setattr(speed, "_step", step)
    model = build("mlp", SHAPE, 10)
    found = training_speed(model, SHAPE, 10, TrainConfig(batch_size=4), 1.0, lambda: now_s)
    assert found.num_steps == speed.LEAST_STEPS
    assert found.step_s == 2.0
    cost = measure_cost(model, SHAPE, 4)
    assert found.flops_per_s == pytest.approx(4 * cost.client_flops[-1] / 2.0)
    assert found.samples_per_s == 2.0
    assert sum(found.unit_forward_s) == pytest.approx(0.75)
    assert sum(found.unit_backward_s) == pytest.approx(2.25)
    assert cost.memory_bits is not None
    assert found.memory_bits == cost.memory_bits[-1]


def test_units_sum_up_to_the_step_where_the_processor_is_taken_away_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In every step another unit is interrupted for 30 s, as by a quota: no unit's median shows it. One step takes much longer."""
    now_s, numbers, model = 0.0, itertools.count(), build("mlp", SHAPE, 10)

    def step(units: list[Part], *_: object) -> tuple[list[float], list[float]]:
        nonlocal now_s
        number, forward_s = next(numbers), [model.num_units / len(units)] * len(units)
        forward_s[number % len(units)] += 900.0 if number == 7 else 30.0
        now_s += sum(forward_s) + model.num_units
        return forward_s, [model.num_units / len(units)] * len(units)

    monkeypatch.setattr(speed, "_step", step)
    found = training_speed(model, SHAPE, 10, TrainConfig(batch_size=4), 5e3, lambda: now_s)
    assert sum(found.unit_forward_s) + sum(found.unit_backward_s) == pytest.approx(found.step_s)
    assert found.step_s == 2 * model.num_units + 30


def test_models_of_tokens_are_measured_too() -> None:
    found = training_speed(build("gpt", (8,), 16, norm="none"), (8,), 16, TrainConfig(batch_size=2), 0.01)
    assert found.flops_per_s > 0


def test_models_that_give_classes_of_pixels_are_measured_too() -> None:
    model = SplitModel({"a": nn.Conv2d(1, 2, 3), "b": nn.Conv2d(2, 5, 1)})
    assert training_speed(model, SHAPE, 5, TrainConfig(batch_size=2), 0.01).flops_per_s > 0


def test_measuring_leaves_the_model_alone() -> None:
    model = build("mlp", SHAPE, 10)
    before = [parameter.clone() for parameter in model.parameters()]
    found = training_speed(model, SHAPE, 10, TrainConfig(batch_size=4), 0.1)
    assert found.num_steps >= speed.LEAST_STEPS
    assert found.low_s <= found.step_s <= found.high_s
    assert all((old == new).all() for old, new in zip(before, model.parameters()))


def test_memory_is_the_machine_s_or_its_container_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = machine_memory_bits()
    assert whole is not None
    assert whole > 8 * 2**28
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "limit").write_text(str(2**20))
    monkeypatch.setattr(speed, "LIMITS", (str(tmp_path / "none"), str(tmp_path / "max"), str(tmp_path / "limit")))
    assert machine_memory_bits() == 8 * 2**20


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_an_entry_is_read_again(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"fleet.{suffix}"
    for name, up in (('a "quoted" one', "100Mbps"), ("b", None)):
        fleet_file.check_device_is_new(path, name)
        entry = fleet_file.device_entry(name, 35.4e9, 16.7 * 2**33, {"up": up, "delay": "2ms"}, PROFILE)
        path.write_text(fleet_file.with_device_added(path, entry, False, "as measured"))
    path.write_text(fleet_file.with_device_added(path, {"compute": "400 GFLOP/s"}, True, "as measured"))
    file = fleet_file.read_fleet_file(path)
    assert [device.name for device in file.devices] == ['a "quoted" one', "b"]
    assert file.devices[0].cpu_hz == 35.4e9
    assert file.devices[0].memory_bits == 17 * 8e9  # rounded down to whole GB
    assert [device.up_bps for device in file.devices] == [1e8, None]
    assert [device.delay_s for device in file.devices] == [0.002, 0.002]
    assert [device.profile for device in file.devices] == [PROFILE, PROFILE]
    assert file.main_server is not None
    for name in ("b", None):
        with pytest.raises(InputError, match="already"):
            fleet_file.check_device_is_new(path, name)


def test_a_file_that_is_no_fleet_takes_no_devices(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps({"cpu_hz": [1]}))
    with raises(InputError, "[[device]]", "[main_server]"):
        fleet_file.check_device_is_new(tmp_path / "other.json", "a")


QUICK = ("measure", "--seconds", "0.1", "--model", "mlp", "--input", "1,8,8", "--set", "train.batch_size=8")


def test_without_a_file_the_entry_is_printed() -> None:
    said = hsfl(*QUICK, "--name", "here").out
    assert 'name = "here"' in said
    assert '# up = "100Mbps"' in said
    answer = hsfl(*QUICK, "--json").json()
    profile = answer["entry"]["profile"]
    assert set(profile["codecs"]) == set(CODECS) - {"topk"} | {"topk:0.1"}
    assert all(0 < number_ns < 1e6 for way in ("encode_ns", "decode_ns") for number_ns in profile[way])
    assert "topk:0.25" in hsfl(*QUICK, "--set", "link.up=topk:0.25", "--json").json()["entry"]["profile"]["codecs"]
    assert answer["flops_per_s"] > 0
    assert answer["num_steps"] >= speed.LEAST_STEPS
    assert "[main_server]" in hsfl(*QUICK, "--server").out


def test_the_main_servers_entry_has_its_parts_of_a_rounds_end(tmp_path: Path) -> None:
    """A test only where there are samples to test on."""
    device, server = tmp_path / "device.toml", tmp_path / "server.toml"
    hsfl(*QUICK, "--name", "here", "--up", "1Mbps", "--down", "1Mbps", "-o", device)
    for words, parts in (
        ((), {"average_s", "checkpoint_s"}),
        (("--set", "data.name=digits"), {"average_s", "checkpoint_s", "test_s"}),
    ):
        server.unlink(missing_ok=True)
        hsfl(*QUICK, *words, "--server", "-o", server)
        (tmp_path / "fleet.toml").write_text(device.read_text() + server.read_text())
        ending = fleet_file.read_fleet_file(tmp_path / "fleet.toml").main_server.ending
        assert set(ending) == parts
        assert 0 < min(ending.values()) <= max(ending.values()) < 60
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_mistakes_of_measure(tmp_path: Path) -> None:
    names(refused(*QUICK, "--up", "100Mbsp"), "--up is '100Mbsp'", "'Mbsp'")
    names(refused(*QUICK, "--server", "--name", "x"), "--name x", "--server")
    names(refused(*QUICK, "--name", ""), "--name is ''", "up to 60")
    names(refused(*QUICK, "-o", tmp_path / "x.txt"), "x.txt", ".toml or .json")
    assert not (tmp_path / "x.txt").exists()
    (tmp_path / "broken.toml").write_text("[[device]\n")
    names(refused(*QUICK, "-o", tmp_path / "broken.toml"), str(tmp_path / "broken.toml"))
