"""What must hold of every prediction of a round on measured links: queue and shares are one where nobody waits, bounds are below, and a plan,
a run and a deployment's model say the same of the same numbers."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hsfl
from hsfl.allocation.queued_rounds import QueuedRounds
from hsfl.config import RunConfig
from hsfl.deploy.logs import open_log
from hsfl.deploy.main.cut_planner import CutPlanner
from hsfl.deploy.main.learned_speeds import work_of_main
from hsfl.deploy.wire.client_messages import OwnSpeeds, Ready
from hsfl.network.clock import Timeline, timeline
from hsfl.network.latency import Phases, client_round_s, round_s
from hsfl.network.round_end import END_PARTS
from hsfl.network.server_queue import ORDERS, queued_round
from hsfl.planning.coded_cost import timed_coding
from hsfl.planning.rounds.round_clock import RoundClock
from hsfl.planning.world import model_cost
from hsfl.runs.prepare import prepare
from hsfl.training.speed import Speed
from tests.small_runs import tiny

SECONDS = st.integers(0, 12).map(lambda number: number / 4)
orders = st.sampled_from(sorted(ORDERS))


@st.composite
def rounds_of_phases(draw: st.DrawFn, most_clients: int = 4) -> tuple[Phases, np.ndarray]:
    size = draw(st.integers(1, most_clients))
    column = st.lists(SECONDS, min_size=size, max_size=size).map(np.array)
    phases = Phases(*(draw(column) for _ in range(8)))
    batches = draw(st.lists(st.integers(1, 8).map(lambda number: number / 2), min_size=size, max_size=size))
    return phases, np.array(batches)


@given(rounds_of_phases(), orders)
def test_with_a_server_that_takes_no_time_queue_and_shares_and_alone_are_one(
    made: tuple[Phases, np.ndarray], order: str
) -> None:
    """But for the paper's barrier before the download, which only shares have: with downloads that differ the queue's round is shorter."""
    phases, batches = made
    nothing = np.zeros(len(batches))
    fast = Phases(**(vars(phases) | {"server_forward_s": nothing, "server_backward_s": nothing}))
    _are_one(replace(fast, model_down_s=np.full(len(batches), fast.model_down_s[0])), batches, order)
    ends_s = fast.model_down_s + client_round_s(fast, batches)
    queue = _queued(fast, batches, order)
    assert queue.round_s == pytest.approx(ends_s.max())
    assert queue.round_s <= timeline("hsfl", fast, batches).round_s * (1 + 1e-9)


@given(rounds_of_phases(most_clients=1), orders)
def test_with_one_client_queue_and_shares_and_alone_are_one(made: tuple[Phases, np.ndarray], order: str) -> None:
    _are_one(*made, order)


def _queued(phases: Phases, batches: np.ndarray, order: str) -> Timeline:
    return timeline("hsfl", phases, batches, serve=lambda work: queued_round(work, order))


def _are_one(phases: Phases, batches: np.ndarray, order: str) -> None:
    shares, queue = timeline("hsfl", phases, batches), _queued(phases, batches, order)
    down_s = phases.model_down_s
    np.testing.assert_allclose(queue.end_s[:-1], shares.end_s[:-1] + down_s, atol=1e-12)
    np.testing.assert_allclose(queue.end_s[-1], down_s, atol=1e-12)
    np.testing.assert_allclose(queue.finish_s, down_s + client_round_s(phases, batches), atol=1e-12)
    assert queue.round_s == pytest.approx(shares.round_s) == pytest.approx(float(round_s(phases, batches)))


@given(rounds_of_phases(), orders, SECONDS.map(lambda tau_s: tau_s + 0.125))
def test_the_end_of_a_download_comes_first_and_counts_for_tau(
    made: tuple[Phases, np.ndarray], order: str, tau_s: float
) -> None:
    phases, batches = made
    whole = _queued(phases, batches, order)
    cut = timeline("hsfl", phases, batches, tau_s=tau_s, serve=lambda work: queued_round(work, order))
    np.testing.assert_array_equal(cut.kept, whole.finish_s <= tau_s)
    np.testing.assert_allclose(cut.end_s, np.minimum(whole.end_s, tau_s), atol=1e-12)
    assert (whole.start_s[-1] == 0).all()
    assert (whole.start_s[0] >= whole.end_s[-1] - 1e-12).all()
    assert cut.round_s <= tau_s


@given(st.data(), orders)
def test_no_cuts_beat_the_bound_over_all_cuts(data: st.DataObject, order: str) -> None:
    """Every choice of cuts is tried, with an end of the round whose swap depends on them."""
    num_clients, num_cuts = data.draw(st.integers(1, 3)), 3
    table = st.lists(SECONDS, min_size=num_clients * num_cuts, max_size=num_clients * num_cuts)
    before_s, serve_s, after_s, up_s, down_s = (
        np.array(data.draw(table)).reshape(num_clients, num_cuts) for _ in range(5)
    )
    batches = np.array(data.draw(st.lists(st.integers(1, 6), min_size=num_clients, max_size=num_clients))) / 2
    rounds = QueuedRounds(
        before_s[None], serve_s, after_s[None], up_s[None], down_s[None], batches, np.ones_like(serve_s, bool),
        lambda work: queued_round(work, order), swap_s=lambda cuts: float(np.ptp(cuts)), rest_of_end_s=0.75,
    )  # fmt: skip
    every = [rounds.round_s(np.array(cuts))[0] for cuts in product(range(num_cuts), repeat=num_clients)]
    assert rounds.least_s(0) <= min(every) * (1 + 1e-9)


DEVICE = """
[[device]]
name = "{name}"
compute = "{gigaflops} GFLOP/s"
up = "{up}Mbps"
down = "{down}Mbps"
delay = "{delay}ms"

[device.profile]
model = "cnn"
batch_size = 16
forward_ms = {forward}
backward_ms = {backward}
step_ms = {step}
{coding}
"""
Device = tuple[str, float, float, float, float, list[float], list[float]]
DEVICES: tuple[
    Device, ...
] = (  # names, GFLOP/s, Mbit/s up and down, milliseconds of a message, milliseconds of each unit
    ("a", 20.0, 10.0, 20.0, 3.0, [9.0, 1.0, 2.0, 0.5, 0.25], [3.0, 2.0, 4.0, 0.0, 0.75]),
    ("b", 5.0, 2.0, 4.0, 40.0, [30.0, 4.0, 6.0, 2.0, 1.0], [12.0, 8.0, 9.0, 1.0, 2.0]),
    ("c", 1.0, 40.0, 40.0, 0.5, [90.0, 9.0, 12.0, 4.0, 3.0], [40.0, 20.0, 30.0, 3.0, 8.0]),
)
CODING_NS = {"a": {"int8": (900.0, 300.0)}, "b": {"int8": (4000.0, 1000.0), "float16": (500.0, 200.0)}}  # c timed none
MAIN_CODING_NS = {"int8": (700.0, 100.0)}


def coding_lines(timed: dict[str, tuple[float, float]]) -> str:
    """Of a profile: nanoseconds to encode and decode a number, by codec."""
    encode_ns, decode_ns = ([of_codec[way] for of_codec in timed.values()] for way in (0, 1))
    return f"codecs = {json.dumps(list(timed))}\nencode_ns = {encode_ns}\ndecode_ns = {decode_ns}" if timed else ""


MAIN = 90.0, [8.0, 1.0, 2.0, 0.5, 0.25], [7.0, 2.0, 4.0, 0.0, 0.75]
ENDING = {"swap_bps": 5e6, "swap_delay_s": 0.004, "open_s": 0.2, "average_s": 0.03, "test_s": 0.5, "checkpoint_s": 0.05}
SERVER = f"""
[main_server]
compute = "{MAIN[0]} GFLOP/s"
swap = "5Mbps"
swap_delay = "4ms"
open = "0.2s"
average = "30ms"
test = "0.5s"
checkpoint = "50ms"

[main_server.profile]
model = "cnn"
batch_size = 16
forward_ms = {MAIN[1]}
backward_ms = {MAIN[2]}
{coding_lines(MAIN_CODING_NS)}
"""


def write_fleet(path: Path, devices: Sequence[Device], step_flops: float) -> Path:
    """step_flops: of a batch through all units; a device was measured to make it at its speed."""
    names = ("name", "gigaflops", "up", "down", "delay", "forward", "backward")
    tables = [
        DEVICE.format(
            **dict(zip(names, device)),
            step=step_flops / device[1] / 1e6,
            coding=coding_lines(CODING_NS.get(device[0], {})),
        )
        for device in devices
    ]
    path.write_text("\n".join([*tables, SERVER]))
    return path


ROUND = 1  # 0, 1, ...: after a round that was tested, and not the last one


def in_seconds(coding_ns: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    return {text: (encode_ns / 1e9, decode_ns / 1e9) for text, (encode_ns, decode_ns) in coding_ns.items()}


@dataclass(frozen=True)
class Predicted:
    """A round as the plan, the clock of a run, and the main server of a deployment predict it."""

    config: RunConfig
    plan: Any
    run: Timeline
    deployed: Timeline
    num_samples: np.ndarray


def predicted(path: Path, devices: Sequence[Device], *words: str) -> Predicted:
    """Of these devices. The deployment is told what the fleet file says as its clients and its operator would tell it."""
    measured = (
        "network.kind=measured",
        "network.speed_std=0",
        "train.batch_size=16",
        f"fleet.num_clients={len(devices)}",
    )
    step_flops = 16 * float(model_cost(tiny("train.batch_size=16"), (1, 8, 8), 10).client_flops[-1])
    file = write_fleet(path, devices, step_flops)
    config, everybody = tiny(f"fleet.file={file}", *measured, *words), tuple(range(len(devices)))
    bench = prepare(config)
    clock = RoundClock(config, bench.world, bench.task.cuts, bench.num_samples, codecs=bench.task.codecs)
    run, _ = clock.round(ROUND, everybody)

    flops_per_s, forward_ms, backward_ms = MAIN
    units_s = (tuple(unit_ms / 1e3 for unit_ms in side) for side in (forward_ms, backward_ms))
    main = Speed(16, 1, 1.0, 1.0, 1.0, *units_s, flops_per_sample=1e9 * flops_per_s / 16, memory_bits=0.0)
    network = config.network.model_copy(update={"kind": "ofdma"} | ENDING)
    told = config.model_copy(update={"network": network, "fleet": config.fleet.model_copy(update={"file": None})})
    cost, log = (
        model_cost(config, bench.task.feed.images.shape, bench.num_outputs),
        open_log("test", True, io.StringIO()),
    )
    main_coding = timed_coding(in_seconds(MAIN_CODING_NS), main.flops_per_s)
    planner = CutPlanner(told, cost, main.flops_per_s, log, work_of_main(main), main_coding)
    for seat, (_, gigaflops, up, down, delay, forward_ms, backward_ms) in enumerate(devices):
        units_s = ([unit_ms / 1e3 for unit_ms in side] for side in (forward_ms, backward_ms))
        timed = in_seconds(CODING_NS.get(devices[seat][0], {}))
        coding = list(timed), *([of_codec[way] for of_codec in timed.values()] for way in (0, 1))
        own = OwnSpeeds(1e9 * gigaflops, *[1e6 * up, 1e6 * down] * 2, None, delay / 1e3, *units_s, *coding)
        planner.join(seat, Ready("f", [int(bench.num_samples[seat])], own, None))
    deployed = planner.plan(ROUND, everybody, [device[0] for device in devices]).timeline
    return Predicted(config, hsfl.plan(config), run, deployed, bench.num_samples)


@pytest.mark.parametrize("cuts", [[1, 2, 4], [5, 5, 5]])
@pytest.mark.parametrize(("service", "beside"), [("turns", 0), ("longest", 0), ("turns", 3)])
def test_plan_and_run_and_deployment_say_the_same(tmp_path: Path, cuts: list[int], service: str, beside: int) -> None:
    """Of profiles, links with delays, a server that is one queue, and the end of a round, with its test beside the next one or not."""
    words = (
        f"fleet.cuts={cuts}",
        "train.local_epochs=2",
        f"network.service={service}",
        f"network.test_beside={beside}",
    )
    made = predicted(tmp_path / "fleet.toml", DEVICES, *words)
    plan, run, deployed = made.plan, made.run, made.deployed
    np.testing.assert_allclose(deployed.end_s, run.end_s, rtol=1e-9, atol=1e-12)
    assert deployed.ending_s == pytest.approx(run.ending_s, rel=1e-9)
    assert plan.ending_s == pytest.approx(run.ending_s, rel=1e-9)
    assert list(run.ending_s) == [
        part for part in END_PARTS if (part != "swap" or len(set(cuts)) > 1) and (part != "test" or not beside)
    ]
    assert deployed.round_s == pytest.approx(run.round_s, rel=1e-9)
    assert plan.round_s == pytest.approx(run.round_s, rel=1e-9)
    assert plan.lower_bound_s <= plan.round_s
    for client in plan.clients:
        for phase in ("smashed", "gradient", "model_up", "model_down"):
            assert client.seconds[phase] == pytest.approx(float(run.phase_s[phase][client.client]), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    "link",
    [
        ("link.up=int8", "link.down=int8", "link.model=int8"),
        ("link.up=topk:0.2", "link.down=float16"),
        ("link.codecs=int8,topk:0.2/int8,none", "link.model=float16"),
    ],
    ids=["int8", "topk", "mixed"],
)
def test_so_they_do_with_codecs(tmp_path: Path, link: tuple[str, ...]) -> None:
    """Of coded bits, and of seconds to encode and decode, timed on two devices and the server, stated on the third device and for top-k."""
    plain, made = (predicted(tmp_path / "fleet.toml", DEVICES, "fleet.cuts=[1, 2, 4]", *words) for words in ((), link))
    assert made.deployed.round_s == pytest.approx(made.run.round_s, rel=1e-9)
    assert made.plan.round_s == pytest.approx(made.run.round_s, rel=1e-9)
    for phase, seconds in made.run.phase_s.items():
        np.testing.assert_allclose(made.deployed.phase_s[phase], seconds, rtol=1e-9, atol=1e-12)
    uncoded = plain.run.phase_s
    assert (made.run.phase_s["smashed"][:2] < uncoded["smashed"][:2]).all()
    assert (made.run.phase_s["client_forward"][:2] > uncoded["client_forward"][:2]).all()


def test_what_was_timed_is_what_is_charged(tmp_path: Path) -> None:
    """Client a at cut 1 encodes 16x4x4 numbers of each sample in 900 ns each, and decodes as many in 300 ns; the server decodes in 100 ns."""
    plain, made = (
        predicted(tmp_path / "fleet.toml", DEVICES[:1], "fleet.cuts=1", *words)
        for words in ((), ("link.up=int8", "link.down=int8"))
    )
    numbers = made.num_samples[0] * 16 * 4 * 4
    for phase, nanoseconds in (
        ("client_forward", 900), ("client_backward", 300), ("server_forward", 100), ("server_backward", 700)
    ):  # fmt: skip
        took_s = made.run.phase_s[phase][0] - plain.run.phase_s[phase][0]
        assert took_s == pytest.approx(numbers * nanoseconds / 1e9, rel=1e-6), phase


@pytest.mark.parametrize("cut", [1, 4, 5])
def test_a_step_pays_its_round_trip_in_all_three(tmp_path: Path, cut: int) -> None:
    """A longer delay of a message lengthens a lone client's round by two messages for each step, and two for its model; a client that
    holds all units sends its model alone."""
    name, gigaflops, up, down, _, *units_ms = DEVICES[0]
    near, far = (
        predicted(tmp_path / "fleet.toml", [(name, gigaflops, up, down, delay, *units_ms)], f"fleet.cuts={cut}")
        for delay in (3.0, 103.0)
    )
    steps = near.num_samples[0] / 16 if cut < 5 else 0
    for of in (lambda made: made.plan.round_s, lambda made: made.run.round_s, lambda made: made.deployed.round_s):
        assert of(far) - of(near) == pytest.approx(0.1 * (2 * steps + 2), rel=1e-6)
