"""How much longer a round is under each baseline and under the paper's alternation than under the exact optimum.

python benchmarks/allocation_baselines.py [--quick] [--n 50] [--paper 10]
"""

import argparse

import numpy as np

from hsfl.allocation.cuts import CutSettings, choose_cuts
from hsfl.allocation.draw import random_scenario
from hsfl.allocation.joint import allocate, exact
from hsfl.allocation.policies import POLICIES, policy


def spread(values):
    low, middle, high = np.percentile(values, [10, 50, 90])
    return f"median {middle:+.2%}, 10th to 90th percentile {low:+.2%} to {high:+.2%}, max {np.max(values):+.2%}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--n", type=int, default=50)
    parser.add_argument("--paper", type=int, default=6)
    parser.add_argument("--paper-limit", type=float, default=40.0)
    options = parser.parse_args()
    n, few = (3, 0) if options.quick else (options.n, options.paper)
    for clients, subchannels in ((5, 10), (10, 10)):
        longer = {name: [] for name in POLICIES if name != "proposed"}
        for seed in range(n):
            scenario = random_scenario(np.random.default_rng(seed), clients, subchannels)
            settings = CutSettings(seed=seed, bound=False, patience=5)
            proposed = choose_cuts([scenario], settings).cuts
            best = exact(scenario, proposed, gap=1e-3).round_s
            for name in longer:
                rule = policy(name)
                cuts = proposed if rule.cuts == "optimised" else rule.choose([scenario], settings)
                longer[name].append(rule.allocate(scenario, cuts).round_s / best - 1)
        for name, values in longer.items():
            print(f"K={clients} I={subchannels}, n={n}, {name}: {spread(values)}", flush=True)
        if not few:
            continue
        gains = []
        for seed in range(few):
            scenario = random_scenario(np.random.default_rng(seed), clients, subchannels)
            cuts = choose_cuts([scenario], CutSettings(seed=seed, bound=False, patience=5)).cuts
            theirs = allocate(scenario, cuts, "paper", time_limit_s=options.paper_limit)
            gains.append(theirs.round_s / exact(scenario, cuts).round_s - 1)
        limit = options.paper_limit
        print(
            f"K={clients} I={subchannels}, n={few}, paper's alternation (limit {limit:.0f} s): {spread(gains)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
