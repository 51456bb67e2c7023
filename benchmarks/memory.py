"""Peak memory of a round with 200 clients against 10, for frameworks that stream clients through one working copy.

    python benchmarks/memory.py [--quick]

Each figure is the peak resident size of a process of its own; ResNet-18, 32x32, two batches of 4 a client.
"""

import argparse
import resource
import subprocess
import sys

import torch

from hsfl.frameworks import find_framework
from throughput import make_task


def peak_mib(framework: str, num_clients: int) -> float:
    answer = subprocess.run(
        [sys.executable, __file__, "--child", framework, str(num_clients)], capture_output=True, text=True, check=True
    )
    return float(answer.stdout)


def child(framework: str, num_clients: int) -> None:
    torch.set_num_threads(1)
    task = make_task("resnet18", num_clients, 2, 4, 32)
    algorithm = find_framework(framework)(task)
    state = algorithm.init()
    for round_index in range(2):
        state, _ = algorithm.round(state, list(range(num_clients)), round_index)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child[0], int(arguments.child[1]))
        return
    many = 12 if arguments.quick else 200
    for framework in ("hsfl",) if arguments.quick else ("hsfl", "fl", "splitfed_v1", "fsl"):
        few, lots = peak_mib(framework, 10), peak_mib(framework, many)
        print(
            f"{framework}: {few:.0f} MiB with 10 clients, {lots:.0f} MiB with {many}, ratio {lots / few:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
