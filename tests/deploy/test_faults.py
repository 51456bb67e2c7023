"""Real processes, real kills: after each fault the model is that of a simulation that kept the same clients."""

import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hsfl import plugins
from hsfl.deploy.demo import free_port
from tests.deploy.fleet import RUN, Fleet, changed, fleet, simulated, summary
from tests.deploy.proxy import Proxy
from tests.naming import names

pytestmark = pytest.mark.slow
PLUGIN = Path(__file__).with_name("slow_model.py")
PAUSE_S = "0.05"  # in every forward pass of a client's first unit
SLOW_RUN = changed(
    RUN,
    model={"name": "slow_cnn"},
    data={"limit": 240},
    fleet={"cuts": [1, 2, 3, 4]},
    train={"rounds": 3, "batch_size": 4, "tau_s": 30.0},
)
NAMES = ("ada", "bo", "cy", "di")


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Fleet]:
    """A fleet whose rounds last some seconds; three clients make a round, and the first waits for all four."""
    with fleet(tmp_path, SLOW_RUN, more={"min_clients": 3, "first_clients": 4}, plugin=PLUGIN) as made:
        yield made


def start(there: Fleet) -> None:
    there.start("edge", "main")
    there.start(*there.names, HSFL_TEST_PAUSE_S=PAUSE_S)


def in_round(there: Fleet, number: int, after_s: float = 0.5) -> None:
    """Wait until every client is in the middle of its batches of this round."""
    for name in there.names:
        there.until_event(name, "round begins", round=number)
    time.sleep(after_s)


def end(there: Fleet, kept: list[list[int]]) -> None:
    """The deployment ends, kept these clients, and its model is the simulation's."""
    assert there.wait() == 0, there.logs()
    assert [line["kept"] for line in there.rounds()] == kept, there.logs()
    assert summary(there.out)["status"] == "finished"
    plugins.load_plugins_of([str(PLUGIN)])
    wanted = simulated(there.run, kept).named()
    model = load_file(there.out / "model.safetensors")
    assert model.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(model[name], tensor), name


EVERYBODY, WITHOUT_DI = [0, 1, 2, 3], [0, 1, 2]


def test_a_client_killed_in_mid_batch(there: Fleet) -> None:
    start(there)
    in_round(there, 2)
    there.kill("di")
    there.until_event("main", "client dropped", client="di", round=2, reason="late")
    end(there, [EVERYBODY, WITHOUT_DI, WITHOUT_DI])


def test_a_client_killed_between_its_last_batch_and_its_upload(there: Fleet) -> None:
    start(there)
    in_round(there, 2)
    there.signal("edge", signal.SIGSTOP)  # so that uploads wait
    there.until_event("di", "batches complete", round=2)
    there.kill("di")
    there.signal("edge", signal.SIGCONT)
    end(there, [EVERYBODY, WITHOUT_DI, WITHOUT_DI])


def test_the_main_server_killed_in_mid_round(there: Fleet) -> None:
    start(there)
    in_round(there, 2)
    there.kill("main")
    there.start("main")
    there.until_event("main", "goes on from the last completed round", round=1)
    end(there, [EVERYBODY] * 3)


def test_devices_go_on_to_another_run_with_the_settings_of_that_run(there: Fleet) -> None:
    """The main server is killed, and begins another run at the same address: the devices do not train with the rate of the one before."""
    start(there)
    in_round(there, 2)
    there.kill("main")
    file = there.folder / "main.toml"
    text = file.read_text().replace("lr = 0.01", "lr = 0.03").replace('out = "run"', 'out = "other"')
    assert "0.01" not in text
    file.write_text(text)
    there.start("main")
    assert there.wait() == 0, there.logs()
    plugins.load_plugins_of([str(PLUGIN)])
    wanted = simulated(changed(there.run, train={"lr": 0.03}), [EVERYBODY] * 3).named()
    model = load_file(there.folder / "other" / "model.safetensors")
    assert all(torch.equal(model[name], tensor) for name, tensor in wanted.items())


def test_the_edge_server_killed_during_uploads(there: Fleet) -> None:
    start(there)
    in_round(there, 2)
    there.signal("edge", signal.SIGSTOP)
    for name in NAMES:
        there.until_event(name, "batches complete", round=2)
    there.kill("edge")
    there.start("edge")
    end(there, [EVERYBODY] * 3)
    assert there.event("main", "edge server is back", round=2)


def test_both_servers_restarted(there: Fleet) -> None:
    start(there)
    in_round(there, 3)
    there.kill("main", "edge")
    there.start("edge", "main")
    end(there, [EVERYBODY] * 3)


def test_devices_remember_what_was_lost_of_their_heads_when_both_servers_are_restarted(tmp_path: Path) -> None:
    """The main server's checkpoint says whose heads were counted; a head that was uploaded in the round that broke off was not."""
    run = changed(SLOW_RUN, link={"model": "int8"})
    with fleet(tmp_path, run, more={"min_clients": 3, "first_clients": 4}, plugin=PLUGIN) as there:
        start(there)
        there.until_event("ada", "batches complete", round=3)
        there.kill("main", "edge")
        there.start("edge", "main")
        end(there, [EVERYBODY] * 3)


def test_a_client_restarted_in_mid_round_begins_its_round_anew(there: Fleet) -> None:
    start(there)
    in_round(there, 2)
    there.kill("bo")
    there.start("bo", HSFL_TEST_PAUSE_S=PAUSE_S)
    end(there, [EVERYBODY] * 3)


def test_a_slow_client_past_tau(tmp_path: Path) -> None:
    run = changed(SLOW_RUN, train=SLOW_RUN["train"] | {"tau_s": 20.0})
    with fleet(tmp_path, run, more={"min_clients": 3, "first_clients": 4}, plugin=PLUGIN) as there:
        there.start("edge", "main", *NAMES[:3])
        there.start("di", HSFL_TEST_PAUSE_S="2.5")  # 15 batches a round
        there.until_event("main", "round begins", round=1)  # six processes take minutes to start on a busy machine
        there.until_event("main", "client dropped", client="di", round=1, reason="late")
        end(there, [WITHOUT_DI] * 3)


def test_a_link_that_is_cut_goes_on_within_the_round(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    links = [Proxy(port) for port in ports]
    dial = {"di": (links[0].port, links[1].port)}
    settings = {"min_clients": 3, "first_clients": 4}
    try:
        with fleet(tmp_path, SLOW_RUN, more=settings, plugin=PLUGIN, ports=ports, dial=dial) as there:
            start(there)
            in_round(there, 2)
            for link in links:
                link.cut()
            time.sleep(1)
            for link in links:
                link.mend()
            end(there, [EVERYBODY] * 3)
    finally:
        for link in links:
            link.close()


def test_a_full_disk_stops_the_round_and_keeps_the_last(there: Fleet) -> None:
    start(there)
    in_round(there, 2)
    pid = there.running["main"].process.pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
    assert there.wait() == 2  # what is larger than its log cannot be written
    names(there.running["main"].log.read_text(), "cannot be written")
    there.start("main")
    there.until_event("main", "goes on from the last completed round", round=1)
    end(there, [EVERYBODY] * 3)
