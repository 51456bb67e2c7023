"""Peak memory of rounds: 200 clients against 10, and ten HSFL clients against a bare loop of the same steps.

    python benchmarks/memory.py [--quick] [--only-bare]

Each figure is the peak resident size of a process of its own. 200 against 10: ResNet-18, 32x32, two batches of 4 a client, for
frameworks that stream clients through one working copy. Against the bare loop: two rounds, batch 256; wanted at most 1.25 times
its peak.
"""

import argparse
import resource
import statistics
import subprocess
import sys

import torch

from hsfl.engines.engine import Exam, Inline
from hsfl.frameworks import find_framework
from throughput import bare_s, make_task, verdict


def peak_mib(what: str, num_clients: int, batch_size: int) -> float:
    """what: a framework, or "bare"."""
    words = [sys.executable, __file__, "--child", what, str(num_clients), str(batch_size)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def child(what: str, num_clients: int, batch_size: int) -> None:
    torch.set_num_threads(1)
    task = make_task("resnet18", num_clients, 2, batch_size, 32)
    if what == "bare":
        task.initial.floats.untyped_storage().resize_(0)  # a bare loop holds one model
        for round_index in range(2):
            bare_s(task, task.model, round_index)
    else:
        algorithm = find_framework(what)(task)
        Inline().attach(algorithm, Exam(task.model, task.initial, task.feed.images, 10))
        state = algorithm.init()
        for round_index in range(2):
            state, _ = algorithm.round(state, list(range(num_clients)), round_index)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def compare(label: str, ours: float, reference: float, of: str) -> float:
    print(f"{label}: {ours:.0f} MiB, {of}: {reference:.0f} MiB, ratio {ours / reference:.3f}", flush=True)
    return ours / reference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=3, help="of the comparison with the bare loop")
    parser.add_argument("--only-bare", action="store_true", help="no comparison of 200 clients with 10")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        what, *numbers = arguments.child
        child(what, *map(int, numbers))
        return
    batch_size, ratios = 8 if arguments.quick else 256, []
    for _ in range(1 if arguments.quick else arguments.repeats):
        ours, bare = (peak_mib(what, 10, batch_size) for what in ("hsfl", "bare"))
        ratios.append(compare(f"hsfl, 10 clients, batch {batch_size}", ours, bare, "bare loop"))
    verdict(f"peak memory over the bare loop's (median of {len(ratios)})", statistics.median(ratios), at_most=1.25)
    if arguments.only_bare:
        return
    many = 12 if arguments.quick else 200
    for framework in ("hsfl",) if arguments.quick else ("hsfl", "fl", "splitfed_v1", "fsl"):
        few, lots = (peak_mib(framework, number, 4) for number in (10, many))
        compare(f"{framework}, {many} clients", lots, few, "10 clients")


if __name__ == "__main__":
    main()
