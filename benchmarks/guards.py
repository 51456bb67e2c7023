"""What a deployment's guards cost honest clients: samples per second and memory with them, in pairs with a deployment without.

    python benchmarks/guards.py                      # 12 pairs, about 15 minutes on 2 quiet cores
    python benchmarks/guards.py --against ../before  # instead: another checkout of HSFL, such as a git worktree of an older commit
    python benchmarks/guards.py --quick              # a smoke run

Guards are the limits of connections, calls and messages, the knock at a client that is connected already, the legal ranges of heads, and what
a device checks before it takes memory (`GUARDS`). A deployment is both servers and two clients, real processes on loopback with mutual TLS
and a thread each. They train a small CNN in small batches, so that messages are many and steps are short. One deployment runs at a time; with
and without take turns (ABBA). The first rounds warm up, the next are timed, and in the last ones memory is read, which disturbs
no timing: the proportional set sizes (PSS) of the four processes, at their peak. A ratio is with over without; its interval is the t
interval of the pairs' logarithms. Cheap guards are an interval that includes 1.
"""

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hsfl.cli import app
from hsfl.deploy.demo import free_port, toml_lines
from hsfl.report.curves import estimate
from hsfl.runs.run_folder.folder import RunFolder
from peers.process_tree import memory_bytes
from wire import certificates, end, settings, write_images

NAMES = ("one", "two")
WARM_ROUNDS, MEMORY_ROUNDS = 2, 4
SIDE = 32  # of an image
SAMPLE_S = 0.05
START_S = 300.0  # for a deployment to make its first round
THIS = Path(__file__).parents[1]


# --- a process without guards
def nothing(*arguments: Any, **words: Any) -> None:
    pass


async def nothing_later(*arguments: Any, **words: Any) -> None:
    pass


GUARDS: dict[str, Any] = {  # what stands in the place of each guard
    "hsfl.deploy.wire.connection_limits:ConnectionWatch.start": nothing,
    "hsfl.deploy.wire.connection_limits:ConnectionWatch.admit": nothing,
    "hsfl.deploy.wire.connection_limits:ConnectionLimits.options": (),
    "hsfl.deploy.wire.transport:_longest_taken": lambda largest_bytes: 256 << 20,
    "hsfl.deploy.trust.gate:Gate._check_num_calls": nothing,
    "hsfl.deploy.admin.admission:Admission.check": nothing_later,
    "hsfl.deploy.wire.legal_state:LegalRanges.check": nothing,
    "hsfl.deploy.edge_server:made_within_memory": lambda make: make(),
    "hsfl.deploy.client_setup:made_within_memory": lambda make: make(),
    "hsfl.deploy.client_setup:check_seat": nothing,
    "hsfl.deploy.client_setup:check_images": nothing,
    "hsfl.deploy.client_setup:check_visits": nothing,
    "hsfl.deploy.client_setup:check_training": nothing,
}


def take_away(guard: str) -> None:
    """Replace a guard of this process; one that is not there is an error, so that this list stays whole."""
    module, _, path = guard.partition(":")
    *places, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for place in places:
        owner = getattr(owner, place)
    getattr(owner, name)
    setattr(owner, name, GUARDS[guard])


def run_process(guarded: bool, words: Sequence[str]) -> None:
    """`hsfl` with these words, with or without guards."""
    if not guarded:
        for guard in GUARDS:
            take_away(guard)
    app(list(words), prog_name="hsfl")


# --- a deployment
@dataclass(frozen=True)
class Side:
    """How the processes of a deployment are started: with these words in front, from this checkout."""

    words: tuple[str, ...]
    checkout: Path

    def start(self, folder: Path, name: str, tree: dict[str, Any]) -> "subprocess.Popen[bytes]":
        (folder / f"{name}.toml").write_text(toml_lines(tree))
        words = ["serve", name] if name in ("main", "edge") else ["client"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(self.checkout / "src")}
        with (folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, *self.words, *words, str(folder / f"{name}.toml")],
                stdout=log, stderr=log, env=environment,
            )  # fmt: skip


@dataclass(frozen=True)
class Block:
    """What one deployment gave."""

    samples_per_s: float
    memory_bytes: dict[str, int]  # peaks, by process


def deployment(side: Side, folder: Path, certs: Path, run: dict[str, Any]) -> Block:
    """Run a deployment to its end."""
    folder.mkdir()
    main, edge = (f"127.0.0.1:{free_port()}" for _ in range(2))
    common = {"threads": 1}
    trees: dict[str, dict[str, Any]] = {
        "edge": {"listen": edge, "out": "edge"},
        "main": {"listen": main, "edge": edge, "out": "run", "clients": NAMES, "min_clients": len(NAMES)}
        | {"evaluate": "none", "input": [3, SIDE, SIDE], "classes": 10, "run": run},
    }
    for seat, name in enumerate(NAMES):
        trees[name] = {"name": name, "main": main, "edge": edge, "as_client": seat, "measure_s": 0.0}
        trees[name]["data"] = {"name": run["data"]["name"]}
    processes = {}
    try:
        for name, tree in trees.items():
            processes[name] = side.start(folder, name, common | {"certs": str(certs / name)} | tree)
        peaks = watched(folder, processes, run["train"]["rounds"] - MEMORY_ROUNDS)
    finally:
        end(list(processes.values()))
    rounds = RunFolder(folder / "run").rounds()
    assert len(rounds) == run["train"]["rounds"], (folder / "main.log").read_text()
    assert all(peaks.values()), "the last rounds were too short to read the memory"
    timed = rounds[WARM_ROUNDS:-MEMORY_ROUNDS]
    seconds = sum(record.wall_s or 0.0 for record in timed)
    return Block(sum(record.num_samples for record in timed) / seconds, peaks)


def watched(folder: Path, processes: dict[str, Any], quiet_rounds: int) -> dict[str, int]:
    """The peak memory of each process after so many rounds, until the main server ends."""
    peaks, records, began_s = dict.fromkeys(processes, 0), folder / "run" / "rounds.jsonl", time.monotonic()
    while processes["main"].poll() is None:
        num_rounds = records.read_bytes().count(b"\n") if records.exists() else 0
        if not num_rounds and time.monotonic() - began_s > START_S:
            break
        if num_rounds >= quiet_rounds:
            for name, process in processes.items():
                peaks[name] = max(peaks[name], memory_bytes(process.pid))
        time.sleep(SAMPLE_S)
    return peaks


# --- pairs of deployments
def print_ratio(label: str, ratios: list[float]) -> None:
    ratio = estimate(ratios, ratio=True)
    if ratio.low is None or ratio.high is None:
        print(f"{label}: ratio {ratio.mean:.3f} (n = {ratio.num} pair)", flush=True)
        return
    words = "includes 1" if ratio.low <= 1 <= ratio.high else "excludes 1"
    interval = f"95 %: {ratio.low:.3f} to {ratio.high:.3f}, which {words}"
    print(f"{label}: ratio {ratio.mean:.3f} ({interval}; n = {ratio.num} pairs)", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--process"]:
        run_process(sys.argv[2] == "with", sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=12, help="timed rounds of a deployment")
    parser.add_argument("--batches", type=int, default=40, help="of each client in a round")
    parser.add_argument("--against", type=Path, help="another checkout, instead of this one without its guards")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    pairs, rounds, batches = (1, 2, 2) if given.quick else (given.pairs, given.rounds, given.batches)
    if given.against is None:
        process = (__file__, "--process")
        sides = {"with": Side((*process, "with"), THIS), "without": Side((*process, "without"), THIS)}
    else:
        sides = {"with": Side(("-m", "hsfl"), THIS), "without": Side(("-m", "hsfl"), given.against.resolve())}
    blocks: dict[str, list[Block]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        certs = certificates(folder / "certs")
        images = folder / "images.npz"
        write_images(images, len(NAMES) * batches * 16, SIDE)
        run = settings("cnn", [1, 3], batches, 16, WARM_ROUNDS + rounds + MEMORY_ROUNDS, images)
        for pair in range(pairs):
            for name in sorted(sides, reverse=bool(pair % 2)):
                block = deployment(sides[name], folder / f"{pair}-{name}", certs, run)
                blocks[name].append(block)
                memory = ", ".join(f"{process} {size / 2**20:.0f}" for process, size in block.memory_bytes.items())
                load = os.getloadavg()[0]
                print(f"{name}: {block.samples_per_s:.0f} samples/s, {memory} MiB, load {load:.1f}", flush=True)
    print_ratio("samples/s", [a.samples_per_s / b.samples_per_s for a, b in zip(*blocks.values())])
    for process in blocks["with"][0].memory_bytes:
        print_ratio(
            f"memory of {process}",
            [a.memory_bytes[process] / b.memory_bytes[process] for a, b in zip(*blocks.values())],
        )
    whole = {name: [sum(block.memory_bytes.values()) for block in side] for name, side in blocks.items()}
    print_ratio("memory of all", [a / b for a, b in zip(*whole.values())])


if __name__ == "__main__":
    main()
