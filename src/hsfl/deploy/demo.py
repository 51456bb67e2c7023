"""`hsfl deploy-demo`: both servers and four clients as processes of this machine, with mutual TLS, on scikit-learn's digits."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hsfl.config import parse_config
from hsfl.deploy.trust.authority import Authority
from hsfl.errors import InputError
from hsfl.files import write_atomic
from hsfl.runs.run_folder.folder import RunFolder, holds_something
from hsfl.runs.run_folder.records import RoundRecord

CLIENTS = ("ward-1", "ward-2", "ward-3", "ward-4")
RUN: dict[str, Any] = {
    "framework": "hsfl",
    "seed": 1,
    "model": {"name": "cnn"},
    "data": {"name": "digits", "partition": "dirichlet", "alpha": 1.0},
    "fleet": {"num_clients": len(CLIENTS), "cuts": [1, 2, 3, 5]},
    "train": {"rounds": 10, "batch_size": 32, "lr": 0.002},
}
LOOK_S = 0.1  # between two looks at the run folder
PORTS = range(
    20_000, 32_000
)  # below those that systems give to connections, one of which might take it before a server does
END_S = 5.0  # for a process to end when it is told to


def free_port() -> int:
    """A port of this machine that nobody listens at, from PORTS."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with suppress(OSError), socket.socket() as probe_socket:
            probe_socket.bind(("127.0.0.1", port))
            return port


def toml_lines(tree: dict[str, Any]) -> str:
    """Plain data as TOML, a line for each key, tables written inline."""
    return "".join(f"{name} = {_toml_value(value)}\n" for name, value in tree.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml_value(item)}" for name, item in value.items()) + "}"
    return json.dumps(value)


def _write(path: Path, text: str) -> None:
    write_atomic(path, lambda scratch: scratch.write_text(text))


@dataclass
class Demo:
    """A deployment in a folder. rounds: the number of rounds. insecure: plaintext instead of TLS. min_clients: fewer
    clients make no round. tau_s: the time limit of a round."""

    folder: Path
    rounds: int = int(RUN["train"]["rounds"])
    insecure: bool = False
    min_clients: int = len(CLIENTS)
    tau_s: float = 120.0
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def run_folder(self) -> Path:
        return self.folder / "run"

    def prepare(self) -> None:
        """Write the certificates, and one small TOML for each process."""
        if holds_something(self.folder):
            raise InputError(f"{self.folder} already holds something; choose another folder (--out)")
        self.folder.mkdir(parents=True, exist_ok=True)
        main, edge = (f"127.0.0.1:{free_port()}" for _ in range(2))
        run = RUN | {"train": RUN["train"] | {"rounds": self.rounds, "tau_s": self.tau_s}}
        parse_config(run)
        trees: dict[str, dict[str, Any]] = {
            "main": {
                "listen": main,
                "edge": edge,
                "out": "run",
                "clients": CLIENTS,
                "min_clients": self.min_clients,
                "threads": 1,
            },
            "edge": {"listen": edge, "out": "edge", "threads": 1},
        }
        for k, name in enumerate(CLIENTS):
            trees[name] = {"name": name, "main": main, "edge": edge, "threads": 1, "as_client": k, "measure_s": 0.2}
            trees[name]["data"] = {"name": RUN["data"]["name"]}
        if not self.insecure:
            self._certify(trees)
        for name, tree in trees.items():
            _write(self.folder / f"{name}.toml", toml_lines(tree | ({"run": run} if name == "main" else {})))

    def _certify(self, trees: dict[str, dict[str, Any]]) -> None:
        authority = Authority.create(self.folder / "certs")
        for name, tree in trees.items():
            if name in CLIENTS:
                authority.add(name)
            tree["certs"] = f"certs/{name}"

    def start(self) -> None:
        """Start every process, each with its log beside its settings."""
        for name in ("edge", "main", *CLIENTS):
            self.start_one(name)

    def start_one(self, name: str) -> None:
        """Start one process; its lines are added to the log of an earlier process of this name."""
        arguments = ["serve", name] if name in ("main", "edge") else ["client"]
        arguments += [str(self.folder / f"{name}.toml")] + (["--insecure"] if self.insecure else [])
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "hsfl", *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    def follow(self, show: Callable[[RoundRecord], None], say: Callable[[str], None] = lambda line: None) -> None:
        """Show rounds as they end, until the main server has ended. say: is told each line of the main server's log before the first round."""
        folder, shown, num_lines = RunFolder(self.run_folder), 0, 0
        while True:
            ended = self.processes["main"].poll() is not None
            if not shown:
                whole_lines = (self.folder / "main.log").read_text("utf-8", "replace").split("\n")[:-1]
                for line in whole_lines[num_lines:]:
                    say(line)
                num_lines = len(whole_lines)
            for record in folder.rounds()[shown:] if folder.rounds_path.exists() else ():
                show(record)
                shown += 1
            if ended:
                break
            self._check_alive()
            time.sleep(LOOK_S)
        if self.processes["main"].returncode:
            raise InputError(f"the main server ended with an error; see {self.folder / 'main.log'}")

    def _check_alive(self) -> None:
        for name, process in self.processes.items():
            if name != "main" and process.poll():
                raise InputError(f"{name} ended with an error; see {self.folder / f'{name}.log'}")

    def stop(self) -> None:
        """End every process that still runs."""
        left = [process for process in self.processes.values() if process.poll() is None]
        for process in left:
            process.send_signal(signal.SIGTERM)
        for process in left:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
