"""Profiles of units and delays of messages: a cut's seconds are sums, every step pays its messages, and plan and run say the same."""

import json
from pathlib import Path

import numpy as np
import pytest

from hsfl import fleet_file
from hsfl.config import RunConfig
from hsfl.errors import InputError
from hsfl.network.channel import RoundDraw
from hsfl.network.latency import phases
from hsfl.network.round_end import RoundEnd
from hsfl.planning.fleet_from_file import fleet_notes
from hsfl.planning.rounds.measured_queue import queued_rounds
from hsfl.planning.rounds.measured_round import measured_rounds
from hsfl.planning.rounds.participation import CutTask
from hsfl.planning.world import World, make_world
from tests.naming import names, raises
from tests.small_runs import hsfl, refused, tiny, tiny_words

pytest.importorskip("pyscipopt")
FORWARD_MS, BACKWARD_MS = [9.0, 1.0, 2.0, 0.5, 0.25], [3.0, 2.0, 4.0, 0.0, 0.75]
DEVICE = """
[[device]]
name = "{name}"
compute = "20 GFLOP/s"
up = "10Mbps"
down = "20Mbps"
"""
PROFILE = f"""
[device.profile]
model = "cnn"
batch_size = 16
forward_ms = {FORWARD_MS}
backward_ms = {BACKWARD_MS}
"""
SERVER = '[main_server]\ncompute = "90 GFLOP/s"\n' + PROFILE.replace("device", "main_server").replace(
    "[9.0", "[8.0"
).replace("[3.0", "[7.0")
WORDS = ("network.kind=measured", "train.batch_size=16", "fleet.num_clients=3", "network.speed_std=0")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three devices, of which the last has no profile and the second has a delay, and a server."""
    devices = [
        DEVICE.format(name="a") + PROFILE,
        DEVICE.format(name="b") + 'delay = "3ms"' + PROFILE,
        DEVICE.format(name="c"),
    ]
    (tmp_path / "fleet.toml").write_text("\n".join([*devices, SERVER]))
    return tmp_path / "fleet.toml"


def of_file(path: Path, *words: str) -> tuple[RunConfig, World]:
    config = tiny(f"fleet.file={path}", *WORDS, *words)
    return config, make_world(config, (1, 8, 8), 10)


def test_a_cut_s_seconds_are_sums_over_units(path: Path) -> None:
    _, world = of_file(path)
    cost, rates = world.cost, world.draw(0).rates
    assert rates is not None
    for cut in range(6):
        cuts = np.full(3, cut)
        times = phases(cost, cuts, 16, world.fleet.cpu_hz, 90e9, rates, world.fleet.work, world.servers.work)
        assert times.client_forward_s[0] == pytest.approx(sum(FORWARD_MS[:cut]) / 1e3)
        assert times.client_backward_s[1] == pytest.approx(sum(BACKWARD_MS[:cut]) / 1e3)
        assert times.client_forward_s[2] == pytest.approx(16 * cost.client_forward_flops[cut] / 20e9)  # as before
        server_ms = sum([8.0, *FORWARD_MS[1:]][cut:]), sum([7.0, *BACKWARD_MS[1:]][cut:])
        np.testing.assert_allclose(times.server_forward_s, server_ms[0] / 1e3, atol=1e-15)
        np.testing.assert_allclose(times.server_backward_s, server_ms[1] / 1e3, atol=1e-15)
        delays = np.array([0.0, 0.003, 0.0])
        np.testing.assert_allclose(times.smashed_s, 16 * cost.smashed_bits[cut] / 1e7 + delays * (0 <= cut < 5))
        np.testing.assert_allclose(times.model_up_s, cost.model_bits[cut] / 1e7 + delays * (cut > 0))


def test_a_device_that_holds_all_units_takes_the_whole_step(path: Path) -> None:
    """Its units' sum is 22.5 ms, its step in one piece 18; other cuts are sums as before."""
    _, before = of_file(path)
    path.write_text(path.read_text().replace(PROFILE, PROFILE + "step_ms = 18\n", 1))
    _, world = of_file(path)
    assert before.fleet.work is not None
    assert world.fleet.work is not None
    seconds = 16 * world.fleet.work.both / world.fleet.cpu_hz[:, None]
    np.testing.assert_allclose(seconds[:, :5], 16 * before.fleet.work.both[:, :5] / 20e9)
    np.testing.assert_allclose(seconds[:2, 5], [18e-3, 22.5e-3])
    shares = world.fleet.work.forward[:, 5] / world.fleet.work.both[:, 5]
    assert shares[0] == pytest.approx(12.75 / 22.5)
    whole = path.read_text()
    for wrong, way_out in (("-1", "0 or more"), ("0", "leave it out")):
        path.write_text(whole.replace("step_ms = 18", f"step_ms = {wrong}"))
        with raises(InputError, "step_ms", wrong, way_out):
            of_file(path)


@pytest.mark.parametrize("server", ["shares", "queue"])
def test_every_table_of_seconds_is_the_phases(path: Path, server: str) -> None:
    """Both ways to search cuts sum what `phases` gives for one batch."""
    config, world = of_file(path, f"network.server={server}")
    batches = np.array([2.0, 3.0, 1.5])
    task, draw = CutTask(config, world, batches), world.draw(0)
    assert draw.rates is not None
    stacked = RoundDraw(draw.cpu_hz[None], rates=draw.rates.map(lambda array: array[None]))
    for cut in range(1, 6):
        cuts = np.full(3, cut)
        times = phases(world.cost, cuts, 16, draw.cpu_hz, 90e9, draw.rates, world.fleet.work, world.servers.work)
        if server == "shares":
            own_s, cycles, down_s = measured_rounds(task, stacked).at(cuts)
            found = own_s + cycles / 90e9 + down_s
        else:
            rounds = queued_rounds(task, stacked)
            found, down_s = rounds.work(0, cuts).alone_s, rounds.down_s[:, np.arange(3), cuts]
        np.testing.assert_allclose(
            np.ravel(found), batches * times.batch_s + times.model_up_s + times.model_down_s, rtol=1e-12
        )
        np.testing.assert_allclose(np.ravel(down_s), times.model_down_s, rtol=1e-12)


def test_plan_and_run_agree(path: Path, tmp_path: Path) -> None:
    words = tiny_words(f"fleet.file={path}", *WORDS, "fleet.cuts=[1,2,3]", "train.rounds=1")
    plan = hsfl("plan", *words, "--json").json()
    assert plan["cuts"] == [1, 2, 3]
    assert hsfl("run", *words, "--out", tmp_path / "run").code == 0
    (record,) = map(json.loads, (tmp_path / "run" / "rounds.jsonl").read_text().splitlines())
    assert record["round_s"] == pytest.approx(plan["round_s"], rel=1e-9)


def test_profiles_of_something_else_are_left_aside_and_said(path: Path) -> None:
    config, _ = of_file(path)
    names(fleet_notes(config)[0], "not c", "one speed", "hsfl measure")
    other, plain = of_file(path, "train.batch_size=8")
    assert plain.fleet.work is None
    assert plain.servers.work is None
    names(fleet_notes(other)[0], "no machine", "batches of 8")
    path.write_text(path.read_text().replace("0.5, 0.25]", "0.5]").replace("0.0, 0.75]", "0.0]"))
    with raises(InputError, "profile of 'a'", "4 units", "cnn has 5"):
        of_file(path)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('model = "cnn"', "model = 3", ("'a': profile", "model and batch_size")),
        ("batch_size = 16", "batch_size = 0", ("model and batch_size",)),
        (f"forward_ms = {FORWARD_MS}", "forward_ms = []", ("forward_ms", "milliseconds")),
        (f"forward_ms = {FORWARD_MS}", "forward_ms = [1.0]", ("1 units in forward_ms", "5 in backward_ms")),
        (f"backward_ms = {BACKWARD_MS}", "backward_ms = [-1.0]", ("backward_ms has -1.0", "0 or more")),
        ("forward_ms", "forwards_ms", ("forwards_ms", "forward_ms")),
        ("batch_size = 16", 'batch_size = 16\ncodecs = "int8"', ("codecs is 'int8'", "names")),
        ("batch_size = 16", 'batch_size = 16\ncodecs = ["int8"]', ("encode_ns is None", "nanoseconds")),
        ("batch_size = 16", "batch_size = 16\nencode_ns = [1.0]\ndecode_ns = [1.0]", ("0 codecs", "encode_ns")),
        (
            "batch_size = 16",
            'batch_size = 16\ncodecs = ["int8"]\nencode_ns = [1.0]\ndecode_ns = [-1]',
            ("decode_ns has -1",),
        ),
        ('delay = "3ms"', 'delay = "-3ms"', ("device 'b'", "delay", "above 0")),
    ],
)
def test_a_wrong_profile_is_one_line(path: Path, old: str, new: str, parts: tuple[str, ...]) -> None:
    path.write_text(path.read_text().replace(old, new, 1))
    with raises(InputError, "fleet.toml", *parts):
        fleet_file.read_fleet_file(path)


def test_a_delay_is_for_measured_links() -> None:
    names(refused("run", *tiny_words("network.delay_s=0.1")), "network.delay_s", "network.kind=measured")
    wrong = ("network.kind=measured", "network.main_up_bps=1e6", "network.main_down_bps=1e6", "network.delay_s=[1,2]")
    names(refused("plan", *tiny_words(*wrong)), "network.delay_s", "3 clients")


ENDING = 'swap = "5Mbps"\nswap_delay = "4ms"\nopen = "0.2s"\naverage = "30ms"\ntest = "1s"\ncheckpoint = 0.05\n'


def test_a_fleet_file_gives_the_end_of_a_round(path: Path) -> None:
    """Where links are measured, part by part; without it a plan says that it takes no time."""
    config, plain = of_file(path)
    assert plain.servers.end == RoundEnd()
    assert any("swap, average" in note and "hsfl measure --server" in note for note in fleet_notes(config))
    path.write_text(path.read_text().replace("[main_server]\n", f"[main_server]\n{ENDING}"))
    config, world = of_file(path)
    assert world.servers.end == RoundEnd(5e6, 0.004, 0.2, 0.03, 1.0, 0.05)
    assert not any("swap, average" in note for note in fleet_notes(config))
    assert of_file(path, "network.server=shares")[1].servers.end is None
    with raises(InputError, "network.test_s", "[main_server]", "leave one"):
        of_file(path, "network.test_s=2")
    path.write_text(path.read_text().replace('"30ms"', '"30MB"'))
    with raises(InputError, "main_server", "average is '30MB'"):
        of_file(path)
