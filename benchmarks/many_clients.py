"""500 clients with the small CNN on MNIST-sized images, 20 samples each, batch 10, against a bare loop of the same steps.

    python benchmarks/many_clients.py [--quick] [--repeats 15]

The bare loop trains one model with one fused Adam on the same batches, in the same process and thread. Wanted: at most 1.05 times its
wall time, and at most 3 % of a round for the exact sums.
"""

import argparse
import statistics
import time

import torch

from hsfl.frameworks import find_framework
from hsfl.frameworks.framework import Task
from hsfl.training.aggregate import PartialSum
from throughput import compare, make_task, spread_of, verdict


def sums_part(task: Task, framework: str, repeats: int) -> list[float]:
    """Which part of a round's seconds goes into counting clients into sums, of each round."""
    algorithm, add, parts = find_framework(framework)(task), PartialSum.add, []
    state, everyone = algorithm.init(), list(range(task.num_clients))
    sums_s = 0.0

    def timed(*given: object) -> None:
        nonlocal sums_s
        began = time.perf_counter()
        add(*given)  # type: ignore[arg-type]
        sums_s += time.perf_counter() - began

    PartialSum.add = timed  # type: ignore[method-assign]
    try:
        for round_index in range(repeats):
            sums_s, began = 0.0, time.perf_counter()
            state, _ = algorithm.round(state, everyone, round_index)
            parts.append(sums_s / (time.perf_counter() - began))
    finally:
        PartialSum.add = add  # type: ignore[method-assign]
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--framework", default="hsfl")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    num_clients = 5 if arguments.quick else 500
    repeats = 1 if arguments.quick else arguments.repeats
    task = make_task("cnn", num_clients, 2, 10, 28)
    ratios = compare(task, arguments.framework, repeats)
    parts = sums_part(task, arguments.framework, min(repeats, 3))
    print(f"sums: {spread_of(parts)} of a round")
    verdict("our wall time over the bare loop's", 1 / statistics.median(ratios), at_most=1.05)
    verdict("part of a round that goes into sums", statistics.median(parts), at_most=0.03)


if __name__ == "__main__":
    main()
