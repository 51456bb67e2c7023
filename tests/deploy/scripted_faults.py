"""Scripted faults: a seeded driver strikes a small deployment of real processes on loopback, over mutual TLS, one fault after another.

After each fault every process that must run does, and a round follows that keeps every honest client. Then four things are looked at:

- no completed round is lost: the records of before are still the first ones, and no round was completed twice;
- every new round has the losses of a simulation that keeps the same clients, to the bit;
- what both servers have on their disks is that simulation's model, to the bit;
- memory and descriptors of the servers have not grown.

At the end the main server is told to end, and `hsfl replay` must find nothing that differs. FAULTS is the table of what may happen.
"""

import json
import os
import random
import resource
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from hsfl import plugins
from hsfl.deploy.demo import free_port
from hsfl.deploy.trust.authority import Authority
from hsfl.files import checked_record
from hsfl.runs.replay import RoundReplayer, begin_replay, replay_run, same_bits
from hsfl.runs.run_folder.checkpoint import load_tensors
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.run_folder.records import CheckedRound, RoundRecord
from tests.deploy.fleet import Fleet, Running, changed
from tests.deploy.proxy import Proxy

HERE = Path(__file__).parent
MODEL, HOSTILE, CLOCK = HERE / "slow_model.py", HERE / "hostile_head.py", HERE / "jumping_clock"
PAUSE_S = "0.02"  # of an honest client before each of its batches, so that most faults come in mid-round
HONEST, STRANGER = ("ada", "bo", "cy"), "mallory"
SERVERS = ("main", "edge")
CUTS = [1, 2, 3, 2]  # of the honest clients and the stranger
SETTLE_S = 600.0  # in which a round must keep everybody again; generous, for machines that do other things
TAU_S = 8.0
MORE_FILES = 8  # descriptors that a server may have more than after its first whole round
MOST_GROWTH = 0.05  # of a server's memory from the second to the last quarter of its samples
MOST_EARLY_GROWTH = 0.5  # of a server's memory, where there are too few samples for quarters
RUN: dict[str, Any] = {
    "framework": "hsfl",
    "model": {"name": "slow_cnn"},
    "data": {"limit": 96, "limit_test": 20},
    "allocation": {"policy": "even"},  # so that the main server loads no optimiser when it is started again
    "train": {"rounds": 10**6, "batch_size": 8, "lr": 0.01, "tau_s": TAU_S},
}


class PipedFleet(Fleet):
    """A fleet whose logs pass through pipes: a full disk stops files and not the logs, which say what happened."""

    def start(self, *names: str, **environment: str) -> None:
        for name in names:
            settings = self.folder / f"{name.partition('+')[0]}.toml"  # ada+ is a second process with ada's bundle
            words = ["serve", name] if name in SERVERS else ["client"]
            process = subprocess.Popen(
                [sys.executable, "-m", "hsfl", *words, str(settings), "--json-log"],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
            )  # fmt: skip
            log = self.folder / f"{name}.log"
            log.touch()
            assert process.stdout is not None
            threading.Thread(target=_copy_lines, args=(process.stdout, log), daemon=True).start()
            self.running[name] = Running(process, log)


def _copy_lines(source: IO[bytes], log: Path) -> None:
    with log.open("ab", buffering=0) as file:
        for line in source:
            file.write(line)


@dataclass(frozen=True)
class Sample:
    """What a server's process holds after a fault, when the fleet is whole again."""

    pid: int
    rss_mb: float
    files: int


def sample(pid: int) -> Sample:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    rss_kb = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return Sample(pid, rss_kb / 1024, len(list(Path(f"/proc/{pid}/fd").iterdir())))


def assert_flat(samples: Sequence[Sample]) -> None:
    """Memory and descriptors of a server have not grown in the life of any of its processes."""
    for pid in dict.fromkeys(one.pid for one in samples):
        of_process = [one for one in samples if one.pid == pid]
        first, memory = of_process[0], [one.rss_mb for one in of_process]
        assert of_process[-1].files <= first.files + MORE_FILES, f"descriptors are lost: {of_process}"
        quarter = len(memory) // 4
        if quarter >= 3:
            early, late = statistics.median(memory[quarter : 2 * quarter]), statistics.median(memory[-quarter:])
            assert late <= (1 + MOST_GROWTH) * early, f"memory grows: {of_process}"
        assert memory[-1] <= (1 + MOST_EARLY_GROWTH) * memory[0], f"memory grows: {of_process}"


def assert_kept(before: Sequence[bytes], now: Sequence[bytes]) -> None:
    """No completed round is lost. before, now: the records of the completed rounds, a line each."""
    assert list(now[: len(before)]) == list(before), f"of {len(before)} completed rounds {len(now)} are left, or others"


def assert_once(completed: Iterable[int]) -> None:
    """No round was completed a second time, as after a restart that has forgotten it. completed: rounds as the main server's log tells
    them when their checkpoints are on the disk."""
    again = [number for number, times in Counter(completed).items() if times > 1]
    assert not again, f"rounds {again} were completed, lost and made again"


@dataclass
class Driver:
    """A deployment, the random numbers that decide what strikes it, and what was seen of it."""

    folder: Path
    seed: int = 0
    honest: Sequence[str] = HONEST
    took_s: dict[str, list[float]] = field(
        default_factory=dict
    )  # seconds from each fault to the end of the look, by its kind

    def __post_init__(self) -> None:
        plugins.load_plugins_of([str(MODEL)])
        self.rng = random.Random(self.seed)
        self.clock_path = self.folder / "clock"
        self.lines: list[bytes] = []  # of the completed rounds
        self.samples: dict[str, list[Sample]] = {name: [] for name in SERVERS}
        self.replayer: RoundReplayer | None = None
        ports = free_port(), free_port()
        self.links = {name: [Proxy(port) for port in ports] for name in (*self.honest, STRANGER)}
        self.links["main"] = [Proxy(ports[1])]  # to the edge server
        authority = Authority.create(self.folder / "certs")
        for name in (*self.honest, STRANGER):
            authority.add(name)
        self.fleet = PipedFleet(
            self.folder,
            changed(RUN, fleet={"num_clients": len(self.honest) + 1, "cuts": CUTS[: len(self.honest) + 1]}),
            (*self.honest, STRANGER),
            more={
                "edge": f"127.0.0.1:{self.links['main'][0].port}",
                "min_clients": 1,
                "first_clients": len(self.honest),
            },
            certs=self.folder / "certs",
            plugin=MODEL,
            ports=ports,
            dial={name: (pair[0].port, pair[1].port) for name, pair in self.links.items() if name != "main"},
        )
        hostile = self.folder / f"{STRANGER}.toml"
        hostile.write_text(hostile.read_text().replace(f'"{MODEL}"', f'"{MODEL}", "{HOSTILE}"'))

    # --- processes

    @property
    def must_run(self) -> tuple[str, ...]:
        return (*SERVERS, *self.honest)

    def start(self, *names: str) -> None:
        """Start processes whose clock can jump."""
        path = os.pathsep.join(filter(None, (str(CLOCK), str(HERE.parents[1]), os.environ.get("PYTHONPATH"))))
        environment = {"PYTHONPATH": path, "HSFL_TEST_CLOCK": str(self.clock_path), "HSFL_TEST_PAUSE_S": PAUSE_S}
        self.fleet.start(*names, **environment)

    def pid(self, name: str) -> int:
        return self.fleet.running[name].process.pid

    def ended(self, name: str) -> bool:
        return self.fleet.running[name].process.poll() is not None

    def revive(self, may_end: Sequence[str]) -> None:
        """Start what has ended by the fault; what may not have ended by it is a failure."""
        for name in self.must_run:
            if self.ended(name):
                assert name in may_end, (
                    f"{name} ended with {self.fleet.running[name].process.returncode}:\n{self.fleet.logs()}"
                )
                self.start(name)

    def pause(self, least_s: float, most_s: float) -> None:
        time.sleep(self.rng.uniform(least_s, most_s))

    # --- the script

    def begin(self) -> None:
        """Start everything, and wait for a round that keeps everybody."""
        self.start(*self.must_run)
        self.settle(())
        self.look()

    def strike(self, kind: str, victim: str | None = None) -> None:
        """Let a fault happen and pass, and look at the deployment afterwards. victim: by default drawn."""
        fault, began_s = FAULTS[kind], time.monotonic()
        victim = victim or self.rng.choice(fault.victims(self.honest))
        self.pause(0.0, 0.3)
        fault.strike(self, victim)
        self.settle(fault.may_end(victim))
        self.look()
        self.took_s.setdefault(kind, []).append(time.monotonic() - began_s)

    def settle(self, may_end: Sequence[str]) -> None:
        """Wait for a round that begins from now on and keeps every honest client."""
        seats, until_s = set(range(len(self.honest))), time.monotonic() + SETTLE_S
        mark = len(self.all_lines()) + 1  # the round that is open now may have begun before
        while time.monotonic() < until_s:
            self.revive(may_end)
            if any(seats <= set(json.loads(line)["kept"]) for line in self.all_lines()[mark:]):
                return
            time.sleep(0.05)
        raise AssertionError(f"no round keeps everybody again:\n{self.fleet.logs()}")

    def all_lines(self) -> list[bytes]:
        """The whole lines of the run's records; the last one may be of a round that is not complete yet."""
        path = self.fleet.out / "rounds.jsonl"
        return path.read_bytes().splitlines(keepends=True)[: path.read_bytes().count(b"\n")] if path.exists() else []

    def look(self) -> None:
        """Look whether the deployment has kept its word."""
        lines, stored = self.stopped_view()
        assert_kept(self.lines, lines)
        assert_once(
            event["round"] for event in self.fleet.running["main"].events() if event["event"] == "round complete"
        )
        folder = RunFolder(self.fleet.out)
        for number in range(len(self.lines), len(lines)):
            record: RoundRecord = checked_record(lines[number], CheckedRound, f"round {number + 1}")
            self.replayer = self.replayer or begin_replay(folder, record)
            for name, value in self.replayer.advance(record).items():
                assert getattr(record, name) == value, f"round {number + 1}: {name}"
        assert self.replayer is not None
        whole = self.replayer.whole()
        for server, (tensors, start, stop) in stored.items():
            units = whole[start:stop]
            for name in ("floats", "ints"):
                assert same_bits(tensors[name], getattr(units, name).clone()), f"round {len(lines)}: {name} of {server}"
        assert {0, whole.layout.num_units} <= {edge for _, *ends in stored.values() for edge in ends}, (
            "units are missing"
        )
        self.lines = lines
        for name in SERVERS:
            self.samples[name].append(sample(self.pid(name)))
            assert_flat(self.samples[name])

    def stopped_view(self) -> tuple[list[bytes], dict[str, tuple[Mapping[str, Any], int, int]]]:
        """The records of the completed rounds, and each server's units after the last of them with their first and last. The main server
        stands still meanwhile, so that no round goes on."""
        os.kill(self.pid("main"), signal.SIGSTOP)
        try:
            (edge_folder,) = (path for path in (self.folder / "edge").iterdir() if path.is_dir())
            folders = {"main": self.fleet.out / "checkpoint", "edge": edge_folder}
            number = max(int(path.stem.removeprefix("round-")) for path in folders["main"].glob("round-*.safetensors"))
            stored = {}
            for server, folder in folders.items():
                tensors, notes = load_tensors(folder / f"round-{number}.safetensors")
                stored[server] = (tensors, int(notes["start"]), int(notes["stop"]))
            return self.all_lines()[:number], stored
        finally:
            os.kill(self.pid("main"), signal.SIGCONT)

    def finish(self) -> None:
        """Tell the main server to end, and replay its folder."""
        self.fleet.signal("main", signal.SIGTERM)
        assert self.fleet.wait("main") == 130, self.fleet.logs()
        assert_kept(self.lines, self.all_lines())
        assert (self.fleet.out / "report.html").is_file(), "the main server writes the page at its end"
        report = replay_run(self.fleet.out)
        assert report.agrees, report
        assert report.unchecked == []

    def close(self) -> None:
        self.fleet.end()
        for link in (link for links in self.links.values() for link in links):
            link.close()


@contextmanager
def driver(folder: Path, **settings: Any) -> Iterator[Driver]:
    """A driver whose processes end with the block."""
    made = Driver(folder, **settings)
    try:
        yield made
    finally:
        made.close()


# --- the faults


def _kill(there: Driver, victim: str) -> None:
    """A process is killed and, some time later, started again."""
    there.fleet.kill(victim)
    there.pause(0.0, 0.5)


def _stop(there: Driver, victim: str) -> None:
    """A process stands still for a while, as a machine that sleeps, once in a while for longer than tau."""
    there.fleet.signal(victim, signal.SIGSTOP)
    try:
        there.pause(0.2, 1.0)
        if there.rng.random() < 0.1:
            time.sleep(TAU_S)
    finally:
        there.fleet.signal(victim, signal.SIGCONT)


def _cut(there: Driver, victim: str) -> None:
    """All links of a client are cut for a while; the main server's is that to the edge server."""
    for link in there.links[victim]:
        link.cut()
    there.pause(0.1, 1.0)
    for link in there.links[victim]:
        link.mend()


def _slow(there: Driver, victim: str) -> None:
    """All links of a client are slow for a while."""
    for link in there.links[victim]:
        link.pause_s = there.rng.uniform(0.01, 0.1)
    there.pause(0.5, 2.0)
    for link in there.links[victim]:
        link.pause_s = 0.0


def _fill_disk(there: Driver, victim: str) -> None:
    """A server can write no file beyond some bytes: a record breaks off, or a checkpoint cannot be written. There is room again later."""
    records = there.fleet.out / "rounds.jsonl"
    mid_record = [records.stat().st_size + there.rng.randrange(1000)] if victim == "main" else []
    most = there.rng.choice((1, 1000, *mid_record))
    pid = there.pid(victim)
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        until_s = time.monotonic() + 3.0
        while time.monotonic() < until_s and not any(there.ended(name) for name in SERVERS):
            time.sleep(0.05)
        if not there.ended(victim):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _jump_clock(there: Driver, victim: str) -> None:
    """The wall clock of all processes jumps by up to a day, to and fro."""
    for _ in range(2):
        there.clock_path.write_text(str(there.rng.uniform(-3000.0, 86400.0)))
        there.pause(0.1, 0.5)
    there.clock_path.write_text("0")


def _flood(there: Driver, victim: str) -> None:
    """More connections are opened to a server than it has descriptors for, and nothing is said on them."""
    pid, port = there.pid(victim), there.fleet.main_port if victim == "main" else there.fleet.edge_port
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    most = sample(pid).files + 64
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, before[1]))
    doors = list[socket.socket]()
    try:
        for _ in range(most + 64):
            with suppress(OSError):
                doors.append(socket.create_connection(("127.0.0.1", port), timeout=0.5))
        there.pause(0.5, 1.5)
    finally:
        for door in doors:
            door.close()
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def _second_process(there: Driver, name: str, *events: str) -> str:
    """Let another process take part until its log has one of these events, or it ends; returns what it logged."""
    log = there.folder / f"{name}.log"
    before, until_s = log.stat().st_size if log.exists() else 0, time.monotonic() + SETTLE_S
    there.start(name)
    wanted = [f'"event": "{event}"' for event in events]
    while not any(map(there.ended, (name, *there.must_run))) and time.monotonic() < until_s:
        logged = log.read_bytes()[before:].decode()
        if any(event in logged for event in wanted):
            break
        time.sleep(0.05)
    there.pause(0.5, 2.0)
    process = there.fleet.running.pop(name).process
    process.kill()
    process.wait(10)
    return log.read_bytes()[before:].decode()


def _send_hostile_head(there: Driver, victim: str) -> None:
    """A client with a good certificate uploads heads with negative variances, for a round at least."""
    logged = _second_process(there, STRANGER, "round complete", "not in this round", "left the round")
    assert '"batches complete"' in logged, f"{STRANGER} has uploaded nothing:\n{logged[-2000:]}"


def _clone(there: Driver, victim: str) -> None:
    """A second process uses an honest client's bundle for a while, or is refused."""
    _second_process(there, f"{victim}+", "joined", f"another device is connected as {victim}; trying again")


@dataclass(frozen=True)
class Fault:
    """A kind of fault. victims: whom it may strike. ends: who may end by it; the others must stay."""

    strike: Callable[[Driver, str], None]
    victims: Callable[[Sequence[str]], Sequence[str]] = lambda honest: (*SERVERS, *honest)
    ends: str = "nobody"  # or victim, or servers

    def may_end(self, victim: str) -> tuple[str, ...]:
        return {"nobody": (), "victim": (victim,), "servers": SERVERS}[self.ends]


def _servers(honest: Sequence[str]) -> Sequence[str]:
    return SERVERS


def _with_links(honest: Sequence[str]) -> Sequence[str]:
    return ("main", *honest)


def _clients(honest: Sequence[str]) -> Sequence[str]:
    return honest


FAULTS = {
    "kill": Fault(_kill, ends="victim"),
    "stop": Fault(_stop),
    "cut link": Fault(_cut, _with_links),
    "slow link": Fault(_slow, _with_links),
    "full disk": Fault(_fill_disk, _servers, ends="servers"),
    "clock": Fault(_jump_clock),
    "half-open flood": Fault(_flood, _servers),
    "hostile head": Fault(_send_hostile_head, _clients),
    "cloned bundle": Fault(_clone, _clients),
}


def run_script(folder: Path, seed: int, count: int, kinds: Sequence[str] = tuple(FAULTS), **settings: Any) -> Driver:
    """So many faults of these kinds, drawn from a seed, on one deployment; every kind comes about as often."""
    with driver(folder, seed=seed, **settings) as there:
        there.begin()
        drawn = [kinds[index % len(kinds)] for index in range(count)]
        there.rng.shuffle(drawn)
        for number, kind in enumerate(drawn, 1):
            try:
                there.strike(kind)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, fault {number} of {count}, {kind}: {error}") from error
        there.finish()
    return there
