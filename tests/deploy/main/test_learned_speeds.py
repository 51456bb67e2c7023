"""What a deployment learns of speeds: the model of the next round approaches what the last ones measured, whatever was said at first."""

import asyncio
import io
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsfl.deploy.logs import open_log
from hsfl.deploy.main.learned_speeds import exchange_s, learned, learned_end, learned_main, work_of_client
from hsfl.deploy.metrics import Metrics
from hsfl.deploy.wire.client_messages import OwnSpeeds
from hsfl.deploy.wire.link_probe import answer_probe, probe_link
from hsfl.deploy.wire.message_fields import HIGHEST_RATE
from hsfl.deploy.wire.transport import ServedMethod, listen
from hsfl.errors import InputError
from hsfl.models.cost_table import CostTable
from hsfl.network.latency import UnitWork
from hsfl.network.round_end import RoundEnd
from tests.naming import names, raises
from tests.small_runs import hsfl, refused

STEPS, SAMPLES, SENT = 5, 160, {"up": 400_000, "down": 300_000, "head_up": 90_000, "head_down": 90_000}
SAID = OwnSpeeds(1e9, 1e7, 1e7, 1e7, 1e7, None, 0.002)
speeds = st.floats(1e6, 1e12)


def modelled(own: OwnSpeeds, sample_flops: float) -> dict[str, float]:
    """Seconds of each phase with these speeds."""
    up_s, down_s = exchange_s(own, SENT["up"], SENT["down"], STEPS)
    edge_s = [8 * SENT["head_up"] / bps + own.delay_s for bps in (own.edge_up_bps, own.edge_down_bps)]
    client_s = sample_flops * SAMPLES / own.flops_per_s
    return {"client": client_s, "smashed": up_s, "gradient": down_s, "model_up": edge_s[0], "model_down": edge_s[1]}


@given(speeds, speeds, speeds, st.floats(1e-5, 1.0))
def test_the_model_approaches_what_is_measured(
    flops_per_s: float, main_bps: float, edge_bps: float, delay_s: float
) -> None:
    """The phases, which are all that is seen, and not the rate and the delay apart, of which only the sum is."""
    truth = OwnSpeeds(flops_per_s, main_bps, main_bps / 2, edge_bps, edge_bps, None, delay_s)
    own, seen = SAID, modelled(truth, 1e6)
    for _ in range(40):
        own = learned(own, 1e6, SAMPLES, STEPS, seen, SENT)
    for phase, seconds in modelled(own, 1e6).items():
        assert seconds == pytest.approx(seen[phase], rel=1e-3), phase


def test_once_learned_nothing_moves() -> None:
    again = learned(SAID, 1e6, SAMPLES, STEPS, modelled(SAID, 1e6), SENT)
    for name in ("flops_per_s", "main_up_bps", "main_down_bps", "edge_up_bps", "edge_down_bps", "delay_s"):
        assert getattr(again, name) == pytest.approx(getattr(SAID, name), rel=1e-12)


def test_nothing_sent_teaches_nothing_and_claims_are_bounded() -> None:
    idle = dict.fromkeys(modelled(SAID, 1.0), 0.0)
    assert learned(SAID, 0.0, 0, 0, idle, dict.fromkeys(SENT, 0)) == SAID
    wild = learned(SAID, 1e6, SAMPLES, STEPS, dict.fromkeys(idle, 1e-300), SENT)
    for name in ("flops_per_s", "main_up_bps", "edge_down_bps"):
        assert getattr(wild, name) <= np.sqrt(getattr(SAID, name) * HIGHEST_RATE) * (1 + 1e-9)
    assert 0 < wild.delay_s <= SAID.delay_s


def test_units_keep_their_proportions() -> None:
    cost = CostTable(*[np.array([0.0, 5.0, 10.0])] * 2, *[np.array([10.0, 5.0, 0.0])] * 2, *[np.ones(3)] * 3)
    own = replace(SAID, unit_forward_s=[0.3, 0.1], unit_backward_s=[0.2, 0.4])
    work = work_of_client(own, cost, 8)
    step_s = 8 * 20.0 / own.flops_per_s  # of all units in one piece, as the client measured its speed
    np.testing.assert_allclose(8 * work.both / own.flops_per_s, [0.0, 0.5, step_s])
    np.testing.assert_allclose(work.forward[2] / work.both[2], 0.4)
    for few in ([0.3], []):
        assert work_of_client(replace(own, unit_forward_s=few), cost, 8).forward is cost.client_forward_flops


def test_the_main_server_learns_its_own_speed() -> None:
    work = UnitWork.after_cuts([0.3, 0.1], [0.2, 0.4], 1e9)
    speed = 8e9
    for _ in range(40):  # it takes twice as long as it thought
        served = [(cut, 160.0, 2 * 160 * float(work.both[cut]) / 8e9) for cut in (0, 1)]
        speed = learned_main(speed, work, served)
    assert speed == pytest.approx(4e9)
    assert learned_main(speed, work, [(2, 160.0, 0.0)]) == speed  # nobody needed the server


@pytest.fixture
def address(addresses: tuple[str, str]) -> str:
    """The main server's."""
    return addresses[0]


@pytest.fixture(scope="module")
def addresses() -> Iterator[tuple[str, str]]:
    """A main and an edge server that answer probes, in plaintext, in a loop of their own."""
    loop, started, ports = asyncio.new_event_loop(), threading.Event(), list[int]()

    async def serve() -> None:
        methods = {"Probe": ServedMethod("unary_unary", ("main", "client"), answer_probe)}
        log = open_log("main", True, io.StringIO())
        servers = [
            await listen("127.0.0.1:0", service, methods, None, log, Metrics(), 1 << 21)
            for service in ("hsfl.Main", "hsfl.Edge")
        ]
        ports.extend(server.port for server in servers)
        started.set()
        await over.wait()
        for server in servers:
            await server.stop(0)

    over = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(20)
    yield f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"
    loop.call_soon_threadsafe(over.set)
    thread.join(20)
    loop.close()


QUICK = ("measure", "--seconds", "0.1", "--model", "mlp", "--input", "1,8,8", "--set", "train.batch_size=8")


def test_a_link_is_measured_from_outside(address: str, tmp_path: Path) -> None:
    found = probe_link(address, "ward-1", None)
    assert min(found.up_bps, found.down_bps) > 1e6
    assert 0 < found.delay_s < 1
    path = tmp_path / "fleet.toml"
    said = hsfl(*QUICK, "--main", address, "--insecure", "--name", "ward-1", "-o", path)
    assert said.code == 0, said
    text = path.read_text()
    assert all(f"\n{field} = " in text for field in ("up", "down", "delay", "forward_ms", "backward_ms"))
    answer = hsfl(*QUICK, "--main", address, "--insecure", "--name", "ward-1", "--json").json()
    assert set(answer["entry"]) >= {"up", "down", "delay", "profile"}


def test_the_link_between_the_servers_is_measured(addresses: tuple[str, str], tmp_path: Path) -> None:
    entry = hsfl(*QUICK, "--server", "--edge", addresses[1], "--insecure", "--json").json()["entry"]
    assert set(entry) == {"compute", "swap", "swap_delay", "average", "checkpoint", "profile"}
    names(refused(*QUICK, "--server", "--edge", addresses[1]), "--edge needs --certs", "--insecure")
    names(refused(*QUICK, "--edge", addresses[1], "--insecure"), "--edge", "give --server")


ENDS = st.fixed_dictionaries(
    {name: st.floats(1e-3, 10.0) for name in ("open", "swap", "average", "test", "checkpoint")}
)


@given(ENDS, st.integers(1, 20), st.floats(0.0, 1.0))
def test_the_end_of_a_round_approaches_what_is_measured(
    seen: dict[str, float], num_clients: int, delay_s: float
) -> None:
    """From nothing but the link between the servers, and from seconds that are far off."""
    cost = CostTable(*[np.ones(4)] * 6, np.array([0.0, 1e6, 4e6, 5e6]))
    cuts = np.array([1, *[3] * num_clients])
    bits = float(cost.swapped_bits[3] - cost.swapped_bits[1])
    for end in (RoundEnd(swap_bps=1e6, swap_delay_s=delay_s), RoundEnd(1e12, 0.0, 100.0, 1e-5, 100.0, 100.0)):
        for _ in range(40):
            end = learned_end(end, seen, bits, len(cuts))
        assert end.parts(cost, cuts, 1.0) == pytest.approx(seen, rel=1e-3)
    assert learned_end(end, {}, bits, 3) == end
    assert learned_end(end, {"swap": 1.0}, 0.0, 3) == end, "nothing was swapped"


def test_a_link_that_cannot_be_measured_is_one_line() -> None:
    with raises(InputError, "127.0.0.1:9", "hsfl serve main"):
        probe_link("127.0.0.1:9", "ward-1", None)
    names(refused(*QUICK, "--main", "127.0.0.1:9"), "--main needs --certs", "--insecure")
    names(refused(*QUICK, "--main", "127.0.0.1:9", "--insecure", "--up", "1Mbps"), "--up", "leave one")
    names(refused(*QUICK, "--insecure"), "--main HOST:PORT")
    names(refused(*QUICK, "--server", "--main", "127.0.0.1:9", "--insecure"), "--main", "--server")
