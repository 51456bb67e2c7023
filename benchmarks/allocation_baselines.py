"""How much longer a round is under each baseline and under the paper's alternation than under the exact optimum.

python benchmarks/allocation_baselines.py [--quick] [--n 50] [--paper 10]
"""

import argparse

import numpy as np

from hsfl.allocation.cuts import CutSettings, choose_cuts
from hsfl.allocation.draw import random_scenario
from hsfl.allocation.joint import allocate, exact
from hsfl.allocation.policies import POLICIES, policy
from hsfl.allocation.powers import spend
from hsfl.allocation.search import Clock, Goal, solve_stage
from hsfl.allocation.spectrum import shares_of, solve_shares
from hsfl.allocation.stage import distribution_stage, training_stage


def spread(values):
    low, middle, high = np.percentile(values, [10, 50, 90])
    return f"median {middle:+.2%}, 10th to 90th percentile {low:+.2%} to {high:+.2%}, max {np.max(values):+.2%}"


def alternation_s(scenario, cuts, settle=1e-6):
    """The paper's alternation with perfect halves: P exact for given F, F in closed form for given P, from even F."""
    stage, clients = training_stage(scenario, cuts), scenario.num_clients
    hz, before_s = np.full(clients, stage.hz / clients), np.inf
    for _ in range(50):
        for_power = stage._replace(fixed_s=stage.fixed_s + stage.cycles / hz, cycles=np.zeros(clients))
        answer = solve_stage(for_power, Goal(1e-4), Clock(5.0))
        share = shares_of(answer.owner, clients)
        power_w = spend(for_power, share, answer.T_s, answer.rho)[2].sum(axis=1)
        for_cycles = stage._replace(given_bits=stage.down_bits, given_power_w=power_w, down_bits=np.zeros(clients))
        T_s, rho, _ = solve_shares(for_cycles, share, 0.0, 0.0)
        if before_s - T_s <= settle * T_s:
            break
        before_s, hz = T_s, np.maximum(spend(for_cycles, share, T_s, rho)[0], 1.0)
    return min(before_s, T_s) + solve_stage(distribution_stage(scenario, cuts), Goal(1e-4), Clock(5.0)).T_s


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
        alternation = []
        for seed in range(n):
            scenario = random_scenario(np.random.default_rng(seed), clients, subchannels)
            settings = CutSettings(seed=seed, bound=False, patience=5)
            proposed = choose_cuts([scenario], settings).cuts
            best = exact(scenario, proposed, gap=1e-3).round_s
            alternation.append(alternation_s(scenario, proposed) / best - 1)
            for name in longer:
                rule = policy(name)
                cuts = proposed if rule.cuts == "optimised" else rule.choose([scenario], settings)
                longer[name].append(rule.allocate(scenario, cuts).round_s / best - 1)
        for name, values in longer.items():
            print(f"K={clients} I={subchannels}, n={n}, {name}: {spread(values)}", flush=True)
        print(f"K={clients} I={subchannels}, n={n}, alternation with perfect halves: {spread(alternation)}", flush=True)
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
