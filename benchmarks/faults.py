"""Scripted faults against deployments of real processes: after each fault no completed round is lost, the model is that of a simulation with
the same kept clients, and memory and descriptors stay flat (tests/deploy/scripted_faults.py says how this is looked at).

    python benchmarks/faults.py                         # 1,000 faults on 20 deployments, one after another
    python benchmarks/faults.py --faults 100 --seed 7   # fewer, and others
    python benchmarks/faults.py --kinds "kill,full disk"
    python benchmarks/faults.py --quick                 # a smoke run: two faults

Ends at the first fault after which a promise is broken, and names its seed and number. Prints the seconds of each kind of fault.
"""

import argparse
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # the driver lies among the tests

from tests.deploy.scripted_faults import FAULTS, run_script


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--each", type=int, default=50, help="faults on one deployment")
    parser.add_argument("--seed", type=int, default=0, help="of the first deployment; the next ones count on")
    parser.add_argument("--kinds", default=",".join(FAULTS), help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    kinds, left, seed = given.kinds.split(","), 2 if given.quick else given.faults, given.seed
    if unknown := set(kinds) - set(FAULTS):
        parser.error(f"--kinds names {', '.join(sorted(unknown))}; choose of {', '.join(FAULTS)}")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # with the deployment, in good order
    took_s: dict[str, list[float]] = {}
    began_s, num_rounds, total = time.monotonic(), 0, left
    while left:
        with tempfile.TemporaryDirectory() as place:
            there = run_script(Path(place), seed, min(left, given.each), kinds)
        for kind, seconds in there.took_s.items():
            took_s.setdefault(kind, []).extend(seconds)
        num_rounds += len(there.lines)
        left -= min(left, given.each)
        seed += 1
        done = total - left
        print(
            f"{done} of {total} faults, {num_rounds} rounds, {(time.monotonic() - began_s) / 60:.1f} minutes",
            flush=True,
        )
    for kind, seconds in sorted(took_s.items()):
        print(
            f"{kind}: {statistics.median(seconds):.1f} s in the median, {max(seconds):.1f} s at most (n = {len(seconds)})"
        )


if __name__ == "__main__":
    main()
