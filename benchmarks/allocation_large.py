"""Larger cells: the proven gap of K=32, I=64 after 2 s and after 60 s, for cuts that descent chose.

python benchmarks/allocation_large.py [--quick] [--n 5]
"""

import argparse

import numpy as np

from hsfl.allocation.cuts.radio import radio_request
from hsfl.allocation.cuts.search import CutSettings, search_cuts
from hsfl.allocation.exact import exact
from hsfl.allocation.random_scenarios import random_scenario


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--n", type=int, default=5)
    options = parser.parse_args()
    n, limits = (2, (2.0,)) if options.quick else (options.n, (2.0, 60.0))
    for limit in limits:
        gaps = []
        for seed in range(n):
            rng = np.random.default_rng(seed)
            scenario = random_scenario(rng, 32, 64)
            cuts = search_cuts(radio_request([scenario], CutSettings(time_limit_s=2.0, bound=False))).cuts
            answer = exact(scenario, cuts, gap=1e-3, time_limit_s=limit)
            gaps.append(answer.gap)
            print(
                f"  seed {seed}, limit {limit:g} s: {answer.seconds:.2f} s, "
                f"round {answer.round_s:.4f} s, gap {answer.gap:.3%}"
            )
        print(f"K=32 I=64 after {limit:g} s, n={n}: gap median {np.median(gaps):.3%}, max {np.max(gaps):.3%}")


if __name__ == "__main__":
    main()
