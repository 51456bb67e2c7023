"""Rounds of a peer and of bare loops in turn, so that a noisy machine hurts both alike.

A peer's program makes one `PairedRounds` and calls `round_done` in whatever hook the peer has between two rounds. A round of the peer
lasts from the end of one call to the beginning of the next: all that the peer does between two rounds is counted. Within the call,
bare loops make their rounds while the peer waits. The order is peer, bare, bare, peer, peer, bare, ..., so that a machine that drifts
favours nobody. The first rounds warm up and are not counted; the bare processes are started after them, so that they disturb neither
the start nor the memory that are measured.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from shared_work import CHECKED_ROUNDS, COUNTS_VARIABLE, FORMATS, WORKS

WARM_UP_ROUNDS = 2


def read_spec(path: str | None = None) -> dict[str, Any]:
    """What `run.py` asks of a peer's program, from a JSON file: the one argument of the program, where no path is given."""
    spec = json.loads(Path(path or sys.argv[1]).read_text())
    return spec | {"shared": Path(spec["shared"]), "folder": Path(spec["folder"])}


class Bare:
    """Bare loops in processes of their own, in this environment, of one thread each."""

    def __init__(self, work: str, shared: Path, parts: int) -> None:
        environment = {name: value for name, value in os.environ.items() if name != COUNTS_VARIABLE}
        environment = {name: value for name, value in environment.items() if not name.startswith("RAY_")}
        command = [sys.executable, str(Path(__file__).with_name("bare_loop.py")), work, str(shared)]
        self.processes = [
            subprocess.Popen([*command, str(part), str(parts)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            for part in range(parts)
        ]  # fmt: skip
        self._wait()

    def _wait(self) -> None:
        for process in self.processes:
            if not process.stdout.readline():
                raise RuntimeError("a bare loop ended; its error stands above")

    def round_s(self, memory_format: str) -> float:
        """The seconds until all loops have made their part of a round."""
        began = time.perf_counter()
        for process in self.processes:
            process.stdin.write(f"{memory_format}\n".encode())
            process.stdin.flush()
        self._wait()
        return time.perf_counter() - began

    def close(self) -> None:
        for process in self.processes:
            process.stdin.close()
            process.wait()


class PairedRounds:
    """Measures the rounds of a peer beside bare loops and writes them into the folder of the spec."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec, self.work, self.folder = spec, WORKS[spec["work"]], spec["folder"]
        self.memory_format = spec[
            "memory_format"
        ]  # a peer that cannot have the one that is asked for says which it has
        self.rounds = spec["rounds"]
        self.total_rounds = WARM_UP_ROUNDS + self.rounds
        self.rounds_done, self.bare = 0, None
        self.pairs: list[dict[str, float]] = [{} for _ in range(self.rounds)]
        self.clients: list[list[int]] = []
        self.plan: list[Any] = []
        self.resumed = time.perf_counter()

    def begin(self) -> None:
        """The first round begins now."""
        self.resumed = time.perf_counter()

    def round_done(
        self,
        arrays: Callable[[], Sequence[np.ndarray]] | None,
        clients: Sequence[int] | None = None,
        plan: list[Any] | None = None,
    ) -> None:
        """A round of the peer is over. arrays: gives the new weights (and, where the peer averages them, the buffers) in the model's order;
        None where nobody averages.
        clients: who trained, unless they are those of `Work.clients_of`. plan: who trained on which batches, where batches are not
        taken in the order of the samples."""
        peer_s = time.perf_counter() - self.resumed
        self.clients.append(list(self.work.clients_of(self.rounds_done) if clients is None else map(int, clients)))
        self.plan += [] if plan is None else [plan]
        self.rounds_done += 1
        if self.rounds_done == CHECKED_ROUNDS and arrays is not None:
            self._write_trained(arrays())
        pair = self.rounds_done - 1 - WARM_UP_ROUNDS
        if pair == -1:
            (self.folder / "measuring").touch()
            self.bare = Bare(self.work.name, self.spec["shared"], self.spec["processes"])
            for memory_format in FORMATS:
                self.bare.round_s(memory_format)
        if pair >= 0:
            self.pairs[pair]["peer"] = peer_s
        if pair >= 0 and pair % 2 == 0:
            for memory_format in FORMATS:
                self.pairs[pair][memory_format] = self.bare.round_s(memory_format)
            for memory_format in reversed(tuple(FORMATS)) if pair + 1 < self.rounds else ():
                self.pairs[pair + 1][memory_format] = self.bare.round_s(memory_format)
        if self.rounds_done == self.total_rounds:
            self._finish()
        self.resumed = time.perf_counter()

    def _write_trained(self, arrays: Sequence[np.ndarray]) -> None:
        np.savez(self.folder / "trained.npz", *arrays)
        note = {"work": self.work.name, "memory_format": self.memory_format, "clients": self.clients}
        if self.plan:
            note["plan"] = self.plan
        (self.folder / "trained.json").write_text(json.dumps(note))

    def _finish(self) -> None:
        self.bare.close()
        (self.folder / "pairs.json").write_text(json.dumps({"memory_format": self.memory_format, "pairs": self.pairs}))
