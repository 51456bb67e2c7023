"""Real processes on loopback: both servers and some clients, started, watched, killed and ended by a test."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hsfl.config import RunConfig, parse_config
from hsfl.deploy.demo import free_port
from hsfl.files import read_json
from hsfl.frameworks import find_framework
from hsfl.models.state import UnitState
from hsfl.runs.prepare import prepare

RUN: dict[str, Any] = {
    "framework": "hsfl",
    "model": {"name": "cnn"},
    "data": {"limit": 96, "limit_test": 40},  # of the fleet's own samples
    "fleet": {"num_clients": 4, "cuts": [1, 2, 3, 5]},
    "train": {"rounds": 2, "batch_size": 8, "lr": 0.01, "tau_s": 60.0},
}


def changed(run: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    """The settings with some fields changed."""
    return run | {name: run.get(name, {}) | part for name, part in sections.items()}


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(part)}" for name, part in value.items()) + "}"
    return json.dumps(value)


def samples(folder: Path) -> Path:
    """Small images of ten classes; scikit-learn's digits would take every process a second more to load."""
    rng, path = np.random.default_rng(0), folder / "samples.npz"
    y = np.arange(400) % 10
    x = np.clip(rng.normal(60, 40, (400, 1, 8, 8)) + 12 * y[:, None, None, None], 0, 255).astype(np.uint8)
    np.savez(path, x=x, y=y)
    return path


@dataclass
class Running:
    """A process, and where its log goes."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def events(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


@dataclass
class Fleet:
    """Settings, ports and processes of one deployment."""

    folder: Path
    run: dict[str, Any]
    names: Sequence[str] = ("ada", "bo", "cy", "di")
    more: dict[str, Any] = field(default_factory=dict)  # of the main server's file
    certs: Path | None = None
    plugin: Path | None = None  # of every process
    ports: tuple[int, int] | None = None  # of main and edge server
    dial: dict[str, tuple[int, int]] = field(default_factory=dict)  # other ports of the servers, by client
    running: dict[str, Running] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "name" not in self.run["data"]:
            self.run = changed(self.run, data={"name": f"npz:{samples(self.folder)}"})
        self.main_port, self.edge_port = self.ports or (free_port(), free_port())
        main, edge = f"127.0.0.1:{self.main_port}", f"127.0.0.1:{self.edge_port}"
        count = len(self.names)
        files: dict[str, dict[str, Any]] = {
            "main": {
                "listen": main,
                "edge": edge,
                "out": "run",
                "clients": list(self.names),
                "threads": 1,
                "min_clients": count,
            }
            | self.more
            | {"run": self.run},
            "edge": {"listen": edge, "out": "edge", "threads": 1},
        }
        for k, name in enumerate(self.names):
            files[name] = {"name": name, "main": main, "edge": edge, "threads": 1, "measure_s": 0.0, "as_client": k}
            files[name]["data"] = {"name": self.run["data"]["name"]}
        for name, (main_port, edge_port) in self.dial.items():
            files[name] |= {"main": f"127.0.0.1:{main_port}", "edge": f"127.0.0.1:{edge_port}"}
        for name, tree in files.items():
            if self.plugin is not None:
                tree["plugins"] = [str(self.plugin)]
            if self.certs is not None:
                tree["certs"] = str(self.certs / name)
            text = "\n".join(
                f"{key} = {_toml(value)}" for key, value in sorted(tree.items(), key=lambda item: item[0] == "run")
            )
            (self.folder / f"{name}.toml").write_text(text + "\n")

    @property
    def out(self) -> Path:
        return self.folder / "run"

    def start(self, *names: str, **environment: str) -> None:
        for name in names:
            words = ["serve", name] if name in ("main", "edge") else ["client"]
            words += [str(self.folder / f"{name}.toml"), "--json-log"] + ([] if self.certs else ["--insecure"])
            log = self.folder / f"{name}.log"
            with log.open("ab") as file:
                process = subprocess.Popen(
                    [sys.executable, "-m", "hsfl", *words], stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                    env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
                )  # fmt: skip
            self.running[name] = Running(process, log)

    def start_all(self) -> None:
        self.start("edge", "main", *self.names)

    def kill(self, *names: str) -> None:
        for name in names:
            self.running[name].process.kill()
        for name in names:
            self.running[name].process.wait(10)

    def signal(self, name: str, number: int) -> None:
        self.running[name].process.send_signal(number)

    def wait(self, name: str = "main", timeout_s: float = 240.0) -> int:
        """Until a process has ended; its exit code."""
        try:
            return self.running[name].process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name} does not end:\n{self.logs()}") from None

    def until(self, found: Callable[[], Any], what: str, timeout_s: float = 300.0) -> Any:
        """Until something is the case."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            if answer := found():
                return answer
            time.sleep(0.02)
        raise AssertionError(f"no {what}:\n{self.logs()}")

    def event(self, name: str, event: str, **fields: Any) -> dict[str, Any] | None:
        """The first line of a process's log with this event and these fields."""
        wanted = {"event": event} | fields
        return next((line for line in self.running[name].events() if wanted.items() <= line.items()), None)

    def until_event(self, name: str, event: str, **fields: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.until(lambda: self.event(name, event, **fields), f"{event!r} {fields} of {name}")
        return found

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{run.log.read_text()[-3000:]}" for name, run in self.running.items())

    def end(self) -> None:
        for run in self.running.values():
            if run.process.poll() is None:
                run.process.send_signal(signal.SIGKILL)
        for run in self.running.values():
            run.process.wait(10)

    def rounds(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / "rounds.jsonl").read_text().splitlines()]


@contextmanager
def fleet(folder: Path, run: dict[str, Any], **settings: Any) -> Iterator[Fleet]:
    """A fleet whose processes end with the block."""
    made = Fleet(folder, run, **settings)
    try:
        yield made
    finally:
        made.end()


def simulated(run: dict[str, Any], kept: Sequence[Sequence[int]]) -> UnitState:
    """The model of a simulation that keeps these clients in its rounds."""
    config: RunConfig = parse_config(run)
    bench = prepare(config)
    framework = find_framework(config.framework)(bench.task)
    state = framework.init()
    for round_index, clients in enumerate(kept):
        state, _ = framework.round(state, clients, round_index)
    (whole,) = framework.models(state)
    return whole


def summary(folder: Path) -> dict[str, Any]:
    return dict(read_json(folder / "summary.json"))
