"""A deployment with clients that come and go: memory stays flat, and no file descriptor is lost.

    python benchmarks/soak.py                  # ten minutes
    python benchmarks/soak.py --minutes 30
    python benchmarks/soak.py --quick          # a smoke run, which judges nothing

Two servers and four clients as processes of this machine, mutual TLS, digits. Every few seconds a client is killed, told to leave, or
started again. Memory and descriptors of the servers are compared between the second and the last quarter of the time.
"""

import argparse
import random
import signal
import statistics
import tempfile
import time
from pathlib import Path

from hsfl.deploy.demo import CLIENTS, Demo
from hsfl.runs.run_folder.folder import RunFolder

SERVERS = ("main", "edge")
MOST_GROWTH = 0.05  # of memory, from the second to the last quarter


def rss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def disturb(demo: Demo, rng: random.Random) -> None:
    """One client goes, in good order or not, or comes back; one always stays."""
    name = rng.choice(CLIENTS[1:])
    process = demo.processes[name]
    if process.poll() is not None:
        demo.start_one(name)
    else:
        process.send_signal(rng.choice((signal.SIGKILL, signal.SIGTERM)))


def soak(demo: Demo, seconds: float, pause_s: float) -> dict[str, list[tuple[float, int]]]:
    """Memory and descriptors of the servers over time."""
    rng, seen = random.Random(0), {name: list[tuple[float, int]]() for name in SERVERS}
    folder = RunFolder(demo.run_folder)
    while not folder.rounds_path.exists() or not folder.rounds():
        time.sleep(0.5)
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        disturb(demo, rng)
        time.sleep(pause_s)
        for name in SERVERS:
            assert demo.processes[name].poll() is None, f"{name} has ended"
            pid = demo.processes[name].pid
            seen[name].append((rss_mb(pid), descriptors(pid)))
    return seen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        demo = Demo(Path(place) / "soak", rounds=10**6, min_clients=1, tau_s=10.0)
        demo.prepare()
        try:
            demo.start()
            seen = soak(demo, 4.0 if given.quick else 60 * given.minutes, 1.0 if given.quick else 5.0)
            rounds = len(RunFolder(demo.run_folder).rounds())
        finally:
            demo.stop()
    print(f"{rounds} rounds")
    for name, samples in seen.items():
        quarter = max(len(samples) // 4, 1)
        early, late = samples[quarter : 2 * quarter] or samples[:1], samples[-quarter:]
        memory = [statistics.median(mb for mb, _ in part) for part in (early, late)]
        files = [statistics.median(count for _, count in part) for part in (early, late)]
        print(
            f"{name}: {memory[0]:.1f} to {memory[1]:.1f} MB, {files[0]:.0f} to {files[1]:.0f} descriptors (n = {len(samples)})"
        )
        if not given.quick:
            assert memory[1] < (1 + MOST_GROWTH) * memory[0], "memory grows"
            assert files[1] <= files[0] + 8, "descriptors are lost"  # a client more or less holds a few


if __name__ == "__main__":
    main()
