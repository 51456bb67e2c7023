"""A cluster of two nodes, set up as docs/scale.md does: two network namespaces joined by a cable. Of files that only one node has, or has
otherwise, each node has a view of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory

import pytest

import hsfl.errors
from hsfl.config import read_config
from hsfl.runs.loop import train_run
from tests.engines import namespaces
from tests.engines.runs import command, config, model_bytes, until
from tests.naming import names
from tests.plugins.files import twice

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not namespaces.can_make(), reason="network namespaces need root and ip"),
]
PATIENCE_S = 600
HEAD, OTHER = "10.99.0.1", "10.99.0.2"
ON_BOTH = ("engine.name=ray", "engine.threads=1", "engine.workers=2", f"engine.address={HEAD}:6379")
ENV = os.environ | {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}


@dataclass(frozen=True)
class Nodes:
    """The namespaces of the head node and of the other."""

    head: str
    other: str

    def start(self, words: list[str]) -> subprocess.Popen[str]:
        """A command on the head node."""
        pipe = subprocess.PIPE
        return subprocess.Popen(namespaces.inside(self.head, words), stdout=pipe, stderr=pipe, text=True, env=ENV)


@contextmanager
def two_nodes(before: str = "true") -> Iterator[Nodes]:
    """A cluster. before: a command for the other node before Ray starts there; what it mounts, that node alone sees."""
    with TemporaryDirectory("ray", ignore_cleanup_errors=True) as name, namespaces.pair() as ((left, _), (right, _)):
        quiet = ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={name}"]  # sockets need short names
        start_node(left, HEAD, ["--head", "--port=6379", *quiet], "true")
        start_node(right, OTHER, [f"--address={HEAD}:6379"], before)
        yield Nodes(left, right)


def start_node(name: str, address: str, how: list[str], before: str) -> None:
    """A node of one CPU."""
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", *how, f"--node-ip-address={address}", "--num-cpus=1"]
    chain = ["sh", "-ec", f'{before}; exec "$@"', "sh", *ray]
    for _ in range(3):  # Ray gives its own processes 30 s, which a busy machine may exceed
        done = subprocess.run(
            namespaces.inside(name, chain), capture_output=True, text=True, env=ENV, timeout=PATIENCE_S, check=False
        )
        if "timed out during startup" not in done.stdout + done.stderr:
            break
        namespaces.end_all(name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_of_two_nodes_is_killed(tmp_path: Path) -> None:
    rounds, out = "train.rounds=30", tmp_path / "run"
    train_run(config(rounds), tmp_path / "inline")
    with two_nodes() as nodes:
        process = nodes.start(command(out, rounds, *ON_BOTH))
        log = out / "workers.log"
        assert until(PATIENCE_S, lambda: log.exists() and f"node {OTHER}" in log.read_text()), process.communicate()
        namespaces.end_all(nodes.other)
        told, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
        assert f"node {HEAD}" in log.read_text()
    names(" ".join((told + said).split()), "trained again")
    assert model_bytes(out) == model_bytes(tmp_path / "inline")


def test_a_node_without_the_data_folder_trains_as_well(data_dir: Path, tmp_path: Path) -> None:
    words = ["data.name=mnist", f"data.dir={data_dir}", "data.limit=240", "data.limit_test=60", "model.name=cnn",
             "train.batch_size=16", "train.rounds=2", "fleet.num_clients=4", "fleet.cuts=[1,2,3,1]"]  # fmt: skip
    train_run(read_config(None, words), tmp_path / "inline")
    out, changes = tmp_path / "run", [word for change in (*words, *ON_BOTH) for word in ("--set", change)]
    with two_nodes(f"mount -t tmpfs none {quote(str(data_dir))}") as nodes:
        process = nodes.start([sys.executable, "-m", "hsfl", "run", *changes, "--out", str(out)])
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert f"node {OTHER}" in (out / "workers.log").read_text()
    assert model_bytes(out) == model_bytes(tmp_path / "inline")


def metadata_file() -> Path:
    (found,) = (file for file in metadata.distribution("hsfl").files or [] if file.name == "METADATA")
    return Path(str(found.locate()))


@pytest.mark.parametrize(
    ("which", "old", "new", "words"),
    [
        ("plugin", "Twice", "Double", "has another plugin"),
        ("source", "class", " class", "cannot start a worker"),
        ("source", "InputError", "InputError ", "has other files of hsfl"),
        ("version", "\nVersion: ", "\nVersion: 9.", "has hsfl 9."),
    ],
)
def test_a_node_that_differs_is_refused_in_words(which: str, old: str, new: str, words: str, tmp_path: Path) -> None:
    """Before the first round, and nothing is left of the run."""
    plugin = twice(tmp_path / "mine.py")
    file = {"plugin": plugin, "source": Path(hsfl.errors.__file__), "version": metadata_file()}[which]
    theirs = tmp_path / "theirs"
    theirs.write_text(file.read_text().replace(old, new))
    with two_nodes(f"mount --bind {quote(str(theirs))} {quote(str(file))}") as nodes:
        process = nodes.start([*command(tmp_path / "run", "framework=twice", *ON_BOTH), "--plugin", str(plugin)])
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2, said
    assert f"node {OTHER}" in said
    assert words in " ".join(said.split())
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()
