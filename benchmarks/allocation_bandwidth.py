"""Shared bands to a proven 1 %: seconds as the cell grows.

python benchmarks/allocation_bandwidth.py [--quick] [--huge]     # --huge adds 10,000 x 1,000: about 2 GB, minutes
"""

import argparse

import numpy as np

from hsfl.allocation.cuts.search import rcls
from hsfl.allocation.exact import exact
from hsfl.allocation.random_scenarios import random_scenario


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--huge", action="store_true")
    options = parser.parse_args()
    sizes = [(10, 10, 5), (100, 10, 5), (100, 100, 3), (1000, 100, 3)]
    sizes = sizes[:2] if options.quick else sizes + [(3000, 300, 1)] + ([(10_000, 1000, 1)] if options.huge else [])
    for clients, subchannels, n in sizes:
        seconds, gaps = [], []
        for seed in range(n):
            rng = np.random.default_rng(seed)
            scenario = random_scenario(rng, clients, subchannels, sharing="bandwidth")
            answer = exact(scenario, rcls(scenario.rows, rng), gap=1e-2, time_limit_s=900.0)
            seconds.append(answer.seconds)
            gaps.append(answer.gap)
        print(
            f"{clients} x {subchannels}, n={n}: {np.median(seconds):.3g} s median, {np.max(seconds):.3g} s max, "
            f"{1e9 * np.median(seconds) / (clients * subchannels):.0f} ns a pair, gap at most {np.max(gaps):.2%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
