"""The nodes of a testbed on one Linux machine: a network namespace and a CPU quota for each, and links of stated rates to one bridge.

Everything is named after PREFIX, so that what a killed testbed left is found and removed at the next start: processes by the namespaces and
cgroups that hold them, then these. One testbed at a time: a lock in /run says so.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import hsfl
from hsfl.errors import InputError

PREFIX = "hsfltb-"
HUB = f"{PREFIX}hub"  # the namespace of the bridge
LOCK = Path("/run/hsfl-testbed.lock")
CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 10_000  # of CPU quotas; the usual 100 ms stops a device for longer than many of its batches take
LEAST_QUOTA_US = 1_000  # the kernel's
PACKET_BYTES = 1514
BURST_S = 5e-4  # of a link's bits are sent at once, at least two packets; with large bursts small messages are faster than the link
QUEUE_S = 0.2  # of packets before a link drops them
NETWORK = "10.77.0"
PORTS = {"main": 7433, "edge": 7434}
END_S = 10.0  # for processes to end when they are told to


@dataclass(frozen=True)
class Node:
    """A server or a device."""

    name: str
    cpu: float | None = None  # of a core; None: no quota
    up_bps: float | None = None  # of its link; None: as fast as the machine is
    down_bps: float | None = None
    delay_s: float = 0.0  # of every byte, each way
    slowdown: float = 1.0  # by sleeping, where there is no quota

    @property
    def namespace(self) -> str:
        return PREFIX + self.name


def lacking() -> str | None:
    """What this machine lacks for a testbed; None where there is all."""
    if not sys.platform.startswith("linux"):
        return "it needs Linux"
    if os.geteuid() != 0:
        return "it needs root, for network namespaces and cgroups"
    if missing := [name for name in ("ip", "tc") if shutil.which(name) is None]:
        return f"it needs iproute2: {missing[0]} is missing"
    if (root := _quota_root()) is None:
        return "it needs cgroups with CPU quotas (cpu.cfs_quota_us or cpu.max)"
    try:  # a container's root may not
        root.mkdir(exist_ok=True)
        _run("ip", "netns", "add", f"{PREFIX}probe")
        _run("ip", "netns", "delete", f"{PREFIX}probe")
    except (OSError, InputError) as error:
        return f"this user may not make cgroups and network namespaces here ({error})"
    finally:
        with suppress(OSError):  # it is not there, or another testbed uses it
            root.rmdir()
    return None


class Machine:
    """The nodes, from `with` to its end. Whatever happens, everything that was made goes again."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.addresses = {node.name: f"{NETWORK}.{place}" for place, node in enumerate(nodes, 2)}
        self.processes: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> "Machine":
        if reason := lacking():
            raise InputError(f"no testbed on this machine: {reason}")
        with self._stack:
            lock = self._stack.enter_context(LOCK.open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"another testbed runs on this machine and holds {LOCK}; wait for its end") from None
            clear()
            self._stack.callback(self._remove)
            self._build()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    def address(self, server: str, node: str) -> str:
        """Where a node reaches a server: directly, or through the relay that delays its bytes."""
        host = "127.0.0.1" if self.nodes[node].delay_s else self.addresses[server]
        return f"{host}:{PORTS[server]}"

    def start(self, node: str, words: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
        """Start a command of hsfl as this node."""
        here = self.nodes[node]
        options = ["--namespace", here.namespace, "--slowdown", str(here.slowdown)]
        options += ["--procs", str(_group(node) / "cgroup.procs")] if here.cpu is not None else []
        with log.open("ab") as file:
            return self._start(["enter.py", *options, "--", *words], file)

    def _start(self, words: Sequence[str], output: IO[bytes] | int) -> "subprocess.Popen[bytes]":
        package = str(Path(hsfl.__file__).parents[1])
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH")))),
        }
        script = str(Path(__file__).parent / words[0])
        process = subprocess.Popen(
            [sys.executable, script, *words[1:]], stdin=subprocess.DEVNULL, stdout=output,
            stderr=output if output != subprocess.PIPE else None, env=environment,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def _build(self) -> None:
        _run("ip", "netns", "add", HUB)
        _run("ip", "-n", HUB, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", HUB, "link", "set", "bridge", "up")
        for place, node in enumerate(self.nodes.values()):
            self._connect(node, f"node{place}")
            if node.cpu is not None:
                _make_group(node.name, node.cpu)
        rules = [
            {"namespace": node.namespace, "port": port, "target": (self.addresses[server], port), "delay_s": node.delay_s}
            for node in self.nodes.values() if node.delay_s
            for server, port in PORTS.items()
        ]  # fmt: skip
        if rules:
            relay = self._start(["relay.py", HUB, json.dumps(rules)], subprocess.PIPE)
            assert relay.stdout is not None
            if relay.stdout.readline() != b"ready\n":
                raise InputError("the relay that delays messages did not start; its error is above")

    def _connect(self, node: Node, port: str) -> None:
        _run("ip", "netns", "add", node.namespace)
        _run("ip", "-n", HUB, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", node.namespace)
        _run("ip", "-n", HUB, "link", "set", port, "master", "bridge", "up")
        _run("ip", "-n", node.namespace, "addr", "add", f"{self.addresses[node.name]}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run("ip", "-n", node.namespace, "link", "set", device, "up")
        if node.up_bps:
            _limit(node.namespace, "eth0", node.up_bps)
        if node.down_bps:
            _limit(HUB, port, node.down_bps)

    def _remove(self) -> None:
        """End all processes and remove what was made; signals that ask for the end are not heard meanwhile."""
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            end_processes(self.processes)
            clear()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def end_processes(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End those of our own processes that still run."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    until_s = time.monotonic() + END_S
    for process in processes:
        try:
            process.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def clear() -> None:
    """Remove what a testbed made: processes in its namespaces and cgroups, then these. Call this with the lock held."""
    spaces = [row.split()[0] for row in _run("ip", "netns", "list").splitlines() if row.startswith(PREFIX)]
    groups = list((_quota_root() or CGROUPS / "none").glob("*/cgroup.procs"))
    pids = {int(word) for space in spaces for word in _run("ip", "netns", "pids", space).split()}
    pids |= {int(word) for group in groups for word in group.read_text().split()}
    for pid in pids - {os.getpid()}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for space in spaces:
        _run("ip", "netns", "delete", space)
    for folder in [*(group.parent for group in groups), *([root] if (root := _quota_root()) else [])]:
        _remove_group(folder)


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"{' '.join(words)} failed: {done.stderr.strip()}")
    return done.stdout


def _limit(namespace: str, device: str, rate_bps: float) -> None:
    burst_bytes = max(int(rate_bps * BURST_S / 8), 2 * PACKET_BYTES)
    limit_bytes = max(int(rate_bps * QUEUE_S / 8), 100 * PACKET_BYTES)
    words = ("root", "tbf", "rate", f"{int(rate_bps)}bit", "burst", str(burst_bytes), "limit", str(limit_bytes))
    _run("tc", "-n", namespace, "qdisc", "add", "dev", device, *words)


# --- CPU quotas, by cgroups of version 1 or 2


def _is_unified() -> bool:
    return (CGROUPS / "cgroup.controllers").is_file()


def _quota_root() -> Path | None:
    """The cgroup above those of the nodes; None where quotas cannot be set."""
    if _is_unified():
        controllers = (CGROUPS / "cgroup.controllers").read_text().split()
        return CGROUPS / "hsfl-testbed" if "cpu" in controllers else None
    return CGROUPS / "cpu" / "hsfl-testbed" if (CGROUPS / "cpu" / "cpu.cfs_quota_us").is_file() else None


def _group(node: str) -> Path:
    root = _quota_root()
    assert root is not None, "lacking() said so"
    return root / node


def _make_group(node: str, cpu: float) -> None:
    folder = _group(node)
    period_us = max(PERIOD_US, int(LEAST_QUOTA_US / cpu) + 1)
    quota_us = round(cpu * period_us)
    if _is_unified():
        folder.parent.mkdir(exist_ok=True)
        for parent in (folder.parent.parent, folder.parent):
            (parent / "cgroup.subtree_control").write_text("+cpu")
        folder.mkdir()
        (folder / "cpu.max").write_text(f"{quota_us} {period_us}")
    else:
        folder.mkdir(parents=True)
        (folder / "cpu.cfs_period_us").write_text(str(period_us))
        (folder / "cpu.cfs_quota_us").write_text(str(quota_us))


def _remove_group(folder: Path) -> None:
    until_s = time.monotonic() + END_S
    while folder.is_dir():
        try:
            folder.rmdir()
        except OSError:  # killed processes take a moment to go
            if time.monotonic() > until_s:
                raise InputError(f"{folder} still holds processes; end those of its cgroup.procs") from None
            time.sleep(0.05)
