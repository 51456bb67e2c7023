"""Network namespaces for tests of Ray, which must reach nothing but each other. They need root and `ip`."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_numbers = itertools.count()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def can_make() -> bool:
    """Whether this process may make namespaces."""
    if shutil.which("ip") is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return False
    try:
        with alone():
            return True
    except (subprocess.CalledProcessError, OSError):
        return False


@contextmanager
def alone() -> Iterator[str]:
    """A namespace with `lo` only."""
    name = f"hsfl-test-{os.getpid()}-{next(_numbers)}"
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        _end_all(name)
        ip("netns", "del", name)


@contextmanager
def pair() -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Two namespaces joined by a veth, each as (name, address)."""
    with alone() as left, alone() as right:
        one, two = (f"veth{os.getpid() % 10000}{side}" for side in "ab")
        ip("link", "add", one, "netns", left, "type", "veth", "peer", "name", two, "netns", right)
        for name, link, address in ((left, one, "10.99.0.1"), (right, two, "10.99.0.2")):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
        yield (left, "10.99.0.1"), (right, "10.99.0.2")


def inside(name: str, words: list[str]) -> list[str]:
    """A command as it runs in a namespace."""
    return ["ip", "netns", "exec", name, *words]


def processes_in(name: str) -> list[int]:
    """The processes of a namespace."""
    answer = subprocess.run(["ip", "netns", "pids", name], check=True, capture_output=True, text=True)
    return [pid for pid in map(int, answer.stdout.split()) if _is_alive(pid)]


def _is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _end_all(name: str) -> None:
    for pid in processes_in(name):
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue


def end_all(name: str) -> None:
    """Kill every process of a namespace, as when a machine loses power."""
    _end_all(name)
