"""Ray trains on one node what one process trains, to the bit, whoever dies.

Ray opens ports, so each test runs in a network namespace of its own, with `lo` alone.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hsfl.engines.ray_leftovers import GONE
from hsfl.runs.loop import train_run
from hsfl.runs.run_folder.folder import RunFolder
from tests.engines import namespaces
from tests.engines.runs import DROPS, ROBUST, begun, command, config, ctrl_c, losses, model_bytes, until
from tests.naming import names
from tests.small_runs import assert_same_run

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not namespaces.can_make(), reason="network namespaces need root and ip"),
]
ON_RAY = ("engine.name=ray", "engine.threads=1")
ESTIMATED = ("train.norm_statistics=estimated", "train.norm_batches=2", "train.eval_every=2")
PART_OF_AN_EPOCH = ("train.local_epochs=0.4",)
PATIENCE_S = 600


@pytest.fixture
def lonely() -> Iterator[str]:
    with namespaces.alone() as name:
        yield name


def finished(words: list[str]) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(words, capture_output=True, text=True, env=env, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_ray_trains_the_same_bits_as_one_process(number: int, lonely: str, tmp_path: Path) -> None:
    train_run(config(*DROPS), tmp_path / "inline")
    words = command(tmp_path / "ray", *DROPS, *ON_RAY, f"engine.workers={number}")
    done = finished(namespaces.inside(lonely, words))
    assert done.returncode == 0, done.stderr
    assert model_bytes(tmp_path / "ray") == model_bytes(tmp_path / "inline")
    assert losses(tmp_path / "ray") == losses(tmp_path / "inline")
    assert "node 127.0.0.1" in (tmp_path / "ray" / "workers.log").read_text()
    assert until(20, lambda: not namespaces.processes_in(lonely))


MIXED = ("link.codecs=topk:0.2/int8,none,int8,float16", "fleet.num_clients=4", "fleet.cuts=[1,2,3,1]")


@pytest.mark.parametrize("codecs", [("link.up=topk:0.2", "link.down=int8"), MIXED], ids=["alike", "mixed"])
def test_ray_codes_what_travels_as_one_process_does(codecs: tuple[str, ...], lonely: str, tmp_path: Path) -> None:
    """What was lost of heads goes to whichever worker trains the client, and comes back."""
    words = (*DROPS, *codecs, "link.model=int8")
    train_run(config(*words), tmp_path / "inline")
    done = finished(namespaces.inside(lonely, command(tmp_path / "ray", *words, *ON_RAY, "engine.workers=2")))
    assert done.returncode == 0, done.stderr
    assert model_bytes(tmp_path / "ray") == model_bytes(tmp_path / "inline")
    assert losses(tmp_path / "ray") == losses(tmp_path / "inline")
    inline, ray = (RunFolder(tmp_path / name).rounds() for name in ("inline", "ray"))
    assert [(record.coded, record.bytes) for record in inline] == [(record.coded, record.bytes) for record in ray]


def test_ray_takes_the_median_of_clipped_updates_as_one_process_does(lonely: str, tmp_path: Path) -> None:
    train_run(config(*ROBUST), tmp_path / "inline")
    done = finished(namespaces.inside(lonely, command(tmp_path / "ray", *ROBUST, *ON_RAY, "engine.workers=2")))
    assert done.returncode == 0, done.stderr
    assert model_bytes(tmp_path / "ray") == model_bytes(tmp_path / "inline")
    assert losses(tmp_path / "ray") == losses(tmp_path / "inline")


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("words", [ESTIMATED, PART_OF_AN_EPOCH], ids=["estimated", "part of an epoch"])
def test_ray_estimates_and_counts_steps_as_one_process_does(
    words: tuple[str, ...], number: int, lonely: str, tmp_path: Path
) -> None:
    """Estimated statistics, and a fraction of an epoch, for which a round goes on where the last one stopped in a client's pass."""
    train_run(config(*DROPS, *words), tmp_path / "inline")
    done = finished(
        namespaces.inside(lonely, command(tmp_path / "ray", *DROPS, *words, *ON_RAY, f"engine.workers={number}"))
    )
    assert done.returncode == 0, done.stderr
    assert_same_run(tmp_path / "ray", tmp_path / "inline")
    assert len(set(re.findall(r"process \d+", (tmp_path / "ray" / "workers.log").read_text()))) == number


RUN = (
    "hsfl.run(None, name, data='digits', model='cnn', engine={'name': 'ray', 'workers': 2, 'threads': 1},"
    " train={'rounds': 1}, fleet={'num_clients': 2, 'cuts': 2}, progress=False)"
)


def script(lonely: str, folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """A script of the user's own, alone in a network."""
    file = folder / "script.py"
    file.write_text(code)
    return finished(namespaces.inside(lonely, ["env", "-C", str(folder), sys.executable, str(file)]))


@pytest.mark.parametrize("first", ["import hsfl", "import ray; import hsfl"])
def test_two_runs_of_one_process_have_a_cluster_each(first: str, lonely: str, tmp_path: Path) -> None:
    """Each cluster has a token of its own; Ray remembers the first token of a process, and reads its mode when it is imported."""
    code = f"{first}\nif __name__ == '__main__':\n    for name in ('one', 'two'):\n        print({RUN}.status, flush=True)\n"
    done = script(lonely, tmp_path, code)
    assert done.stdout.split() == ["finished", "finished"], done.stderr


def test_a_script_that_has_joined_a_cluster_keeps_it(lonely: str, tmp_path: Path) -> None:
    """The run uses the script's cluster and leaves it as it was, and the script's tensors are its own again."""
    code = (
        "import ray, torch, hsfl\n"
        "if __name__ == '__main__':\n"
        "    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address='127.0.0.1')\n"
        "    name = 'one'\n"
        f"    print({RUN}.status, ray.is_initialized(), flush=True)\n"
        "    print(ray.get(ray.put(torch.zeros(1))).add_(1).item(), flush=True)\n"
    )
    done = script(lonely, tmp_path, code)
    assert done.stdout.split() == ["finished", "True", "1.0"], done.stderr
    assert "node 127.0.0.1" in (tmp_path / "one" / "workers.log").read_text()


def test_a_model_whose_file_a_node_lacks_is_refused_in_words(lonely: str, tmp_path: Path) -> None:
    """A node looks for modules by itself, not where a script has told its own process to look."""
    (tmp_path / "aside").mkdir()
    (tmp_path / "aside" / "layers.py").write_text("from torch import nn\n\n\nclass Mine(nn.Linear):\n    pass\n")
    code = (
        "import sys, hsfl\n"
        "from torch import nn\n"
        "if __name__ == '__main__':\n"
        "    sys.path.insert(0, 'aside')\n"
        "    from layers import Mine\n"
        "    mine, name = nn.Sequential(nn.Flatten(), Mine(1024, 16), nn.ReLU(), nn.Linear(16, 10)), 'one'\n"
        "    try:\n"
        f"        {RUN}\n"
        "    except hsfl.InputError as error:\n"
        "        print(error)\n"
    )
    done = script(lonely, tmp_path, code.replace("'cnn'", "mine"))
    names(done.stdout, "model", "No module named 'layers'", "put the file")
    assert "node 127.0.0.1" in done.stdout


def test_ctrl_c_stops_a_run_that_goes_on_inline_and_leaves_nobody_behind(lonely: str, tmp_path: Path) -> None:
    rounds, out = "train.rounds=40", tmp_path / "run"
    train_run(config(rounds), tmp_path / "inline")
    process = begun(namespaces.inside(lonely, command(out, rounds, *ON_RAY, "engine.workers=2")))
    assert until(PATIENCE_S, lambda: (out / "rounds.jsonl").exists() and RunFolder(out).rounds())
    ctrl_c(process)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert RunFolder(out).ended().status == "interrupted", said
    assert until(20, lambda: not namespaces.processes_in(lonely))
    train_run(config(rounds), out, resume=True)
    assert model_bytes(out) == model_bytes(tmp_path / "inline")


@pytest.mark.parametrize("waits_for", ["raylet/raylet", "ray::IDLE"])
def test_ctrl_c_while_ray_starts_leaves_nobody_behind(waits_for: str, lonely: str, tmp_path: Path) -> None:
    """A cluster that has begun to start is ended when it has started; workers that are starting are awaited."""

    def is_there() -> bool:
        with suppress(OSError):  # a process that has just ended
            texts = [Path(f"/proc/{number}/cmdline").read_text() for number in namespaces.processes_in(lonely)]
            return any(waits_for in text for text in texts)
        return False

    process = begun(
        namespaces.inside(lonely, command(tmp_path / "run", "train.rounds=40", *ON_RAY, "engine.workers=2"))
    )
    assert until(PATIENCE_S, is_there)
    ctrl_c(process)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert until(5, lambda: not namespaces.processes_in(lonely))


def test_what_dies_on_ray_leaves_standard_output_to_the_answer(lonely: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = begun(
        namespaces.inside(lonely, [*command(out, "train.rounds=30", *ON_RAY, "engine.workers=2"), "--json"])
    )
    log = out / "workers.log"
    assert until(PATIENCE_S, lambda: log.exists() and "process" in log.read_text())
    os.kill(int(log.read_text().partition("process ")[2].split()[0]), signal.SIGKILL)
    told, said = process.communicate(timeout=PATIENCE_S)
    assert json.loads(told)["status"] == "finished", said


def test_a_killed_worker_is_replaced_and_the_numbers_stay(lonely: str, tmp_path: Path) -> None:
    rounds, out = "train.rounds=30", tmp_path / "run"
    train_run(config(rounds), tmp_path / "inline")
    process = begun(namespaces.inside(lonely, command(out, rounds, *ON_RAY, "engine.workers=2")))
    log = out / "workers.log"
    assert until(PATIENCE_S, lambda: log.exists() and "process" in log.read_text())
    os.kill(int(log.read_text().partition("process ")[2].split()[0]), signal.SIGKILL)
    told, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    names(" ".join((told + said).split()), "trained again")
    assert model_bytes(out) == model_bytes(tmp_path / "inline")


def test_an_address_that_is_no_cluster_is_told_within_15_seconds(lonely: str, tmp_path: Path) -> None:
    code = (
        "import socket, sys, time; from hsfl.engines.ray_cluster import connect\n"
        "from hsfl.errors import InputError\n"
        "silent = socket.socket(); silent.bind(('127.0.0.1', 7777)); silent.listen()\n"
        "for address in ('127.0.0.1:7778', '127.0.0.1:7777', 'nowhere'):\n"
        "    began = time.monotonic()\n"
        "    try: connect(address, 1)\n"
        "    except InputError as error: print(f'{time.monotonic() - began:.0f} s: {error}', flush=True)\n"
        "import os; os._exit(0)\n"
    )
    finished([sys.executable, "-c", "import ray"])  # so that its files are in the cache
    done = finished(namespaces.inside(lonely, [sys.executable, "-c", code]))
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    names(lines[0], "nothing answers", "engine.address 127.0.0.1:7778")
    names(lines[1], "engine.address 127.0.0.1:7777", "no Ray cluster")
    assert "give HOST:PORT" in lines[2]


LISTENERS = """
import json, sys
from pathlib import Path
import hsfl
from hsfl.engines.ray_cluster import connect

if __name__ == "__main__":
    cluster = connect(None, 1)
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    print(json.dumps([words[1] for words in lines if words[3] == "0A"]), flush=True)
    cluster.end()
"""
LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")


def test_a_cluster_of_one_machine_listens_on_loopback_alone(tmp_path: Path) -> None:
    """Where the machine has an address by which others reach it, too."""
    with namespaces.pair() as ((name, _), _):
        namespaces.ip("-n", name, "route", "add", "default", "via", "10.99.0.2")
        done = script(name, tmp_path, LISTENERS)
    places = json.loads(done.stdout.splitlines()[-1])
    assert places, done.stderr
    assert {place.partition(":")[0] for place in places} <= set(LOOPBACK), places


@pytest.mark.parametrize("who", ["the run", "an agent"])
def test_a_run_whose_cluster_is_gone_ends_with_a_line_and_leaves_nobody(who: str, lonely: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = begun(namespaces.inside(lonely, command(out, "train.rounds=1000", *ON_RAY, "engine.workers=1")))
    assert until(PATIENCE_S, lambda: (out / "rounds.jsonl").exists() and RunFolder(out).rounds())
    victims = [process.pid]
    if who == "an agent":
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in namespaces.processes_in(lonely)}
        victims = [pid for pid, text in commands.items() if "DashboardAgent" in text]
    os.kill(victims[0], signal.SIGKILL)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert GONE in said.splitlines()
    assert until(10, lambda: not namespaces.processes_in(lonely))  # Ray's own take a minute
