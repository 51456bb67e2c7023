"""Exact joint solve beside SCIP on the same instances: seconds, ratio, and whether the two intervals meet.

python benchmarks/allocation_exact.py [--quick] [--n 20] [--scip-limit 120]
"""

import argparse
import time

import numpy as np

from hsfl.allocation.cuts.search import rcls
from hsfl.allocation.exact import exact
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.solvers import allocate

GAP = 1e-3


def instance(clients, subchannels, seed):
    rng = np.random.default_rng(seed)
    scenario = random_scenario(rng, clients, subchannels)
    return scenario, rcls(scenario.rows, rng)


def ours(scenario, cuts, repeats=5):
    """Median of repeats: another process on the machine would otherwise be measured."""
    answers = [exact(scenario, cuts, gap=GAP) for _ in range(repeats)]
    return answers[0], float(np.median([a.seconds for a in answers]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--scip-limit", type=float, default=120.0)
    options = parser.parse_args()
    n, limit = (2, 10.0) if options.quick else (options.n, options.scip_limit)
    for clients, subchannels in ((5, 10), (10, 10)):
        ratios, seconds, proven, meet = [], [], 0, 0
        for seed in range(n):
            scenario, cuts = instance(clients, subchannels, seed)
            answer, own_s = ours(scenario, cuts)
            start = time.perf_counter()
            other = allocate(scenario, cuts, "scip", time_limit_s=limit, gap=GAP)
            scip_s = time.perf_counter() - start
            ratios.append(scip_s / own_s)
            seconds.append((own_s, scip_s))
            proven += other.gap <= GAP * 1.01
            meet += answer.lower_bound_s <= other.round_s and other.lower_bound_s <= answer.round_s
            print(
                f"  K={clients} I={subchannels} seed {seed}: ours {own_s * 1e3:.2f} ms, {answer.round_s:.4f} s "
                f"(gap {answer.gap:.2g}); SCIP {scip_s:.1f} s, {other.round_s:.4f} s (gap {other.gap:.2g}); "
                f"ratio {ratios[-1]:,.0f}",
                flush=True,
            )
        own, scip = np.array(seconds).T
        print(
            f"K={clients} I={subchannels}, n={n}: "
            f"ours median {np.median(own) * 1e3:.2f} ms (max {own.max() * 1e3:.2f}), "
            f"SCIP median {np.median(scip):.1f} s (limit {limit:.0f} s, {proven} of {n} proven to {GAP:.1%}); "
            f"ratio median {np.median(ratios):,.0f}, least {np.min(ratios):,.0f}; intervals meet in {meet} of {n}"
        )


if __name__ == "__main__":
    main()
