"""Choosing cuts: time of a full and a small plan, GA beside descent, fitness evaluations a second, SCIP in the loop.

python benchmarks/allocation_plan.py [--quick] [--n 5]
"""

import argparse
import time
from dataclasses import replace

import numpy as np

from hsfl.allocation.cuts.packed_samples import evaluate_all
from hsfl.allocation.cuts.radio import Fitness, radio_request
from hsfl.allocation.cuts.search import CutSettings, rcls, scls, search_cuts
from hsfl.allocation.exact import exact
from hsfl.allocation.random_scenarios import gains, random_scenario
from hsfl.allocation.solvers import allocate


def fleet(seed, num_samples, clients=10, subchannels=10):
    """One fleet and S draws of gains and of speeds (10 % around their means)."""
    rng = np.random.default_rng(seed)
    scenario = random_scenario(rng, clients, subchannels)
    shape = (num_samples, clients, subchannels)
    speeds = scenario.cpu_hz * np.maximum(0.1, 1 + 0.1 * rng.standard_normal((num_samples, clients)))
    draws = zip(gains(rng, *shape), gains(rng, *shape), speeds)
    return [replace(scenario, main_gain=main, edge_gain=edge, cpu_hz=hz) for main, edge, hz in draws]


def exact_mean_s(samples, cuts):
    return np.mean([exact(sample, cuts, gap=1e-3, time_limit_s=1.0).round_s for sample in samples])


def plans(name, n, num_samples, population, subchannels=10, clients=10):
    results = {}
    for method in ("ga", "descent"):
        rows = []
        for seed in range(n):
            samples = fleet(seed, num_samples, clients, subchannels)
            plan = search_cuts(radio_request(samples, CutSettings(method=method, seed=seed, population=population)))
            rows.append(
                (plan.seconds, plan.mean_s, plan.gap, plan.evaluations, exact_mean_s(samples, scls(samples[0].rows)))
            )
        results[method] = np.array(rows)
        s, mean, gap, evaluations, shallow = results[method].T
        print(
            f"{name} plan, {method}, n={n}: {np.median(s):.2f} s (max {s.max():.2f}), "
            f"{np.median(evaluations):.0f} evaluations, "
            f"gap over all cuts median {np.median(gap):.2%} (max {gap.max():.2%}), "
            f"SCLS is longer by {np.median(shallow / mean - 1):.0%} in the median",
            flush=True,
        )
    ratio = results["ga"][:, 1] / results["descent"][:, 1] - 1
    print(
        f"  GA's mean round over descent's: median {np.median(ratio):+.3%}, "
        f"from {ratio.min():+.3%} to {ratio.max():+.3%}"
    )
    return float(np.median(results["ga"][:, 3]))


def fitness_rate(population=50):
    samples = fleet(0, 20)
    fitness, rng = Fitness(samples), np.random.default_rng(1)
    cuts = np.array([rcls(samples[0].rows, rng) for _ in range(population)])
    for threads in (1, 2):
        rates = []
        for _ in range(5):
            start = time.perf_counter()
            evaluate_all(fitness.samples, cuts, fitness.owners, threads)
            rates.append(population / (time.perf_counter() - start))
        print(
            f"fitness, K=I=10, S=20, {threads} thread(s): {np.median(rates):.0f} evaluations/s "
            f"({20 * np.median(rates):,.0f} solves/s), from {min(rates):.0f} to {max(rates):.0f}, n=5"
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--n", type=int, default=5)
    options = parser.parse_args()
    n = 1 if options.quick else options.n
    search_cuts(radio_request(fleet(0, 2, 3, 3), CutSettings(time_limit_s=1)))  # compile
    fitness_rate()
    plans("small (S=10, population 30)", n, 10, 30)
    evaluations = plans("full (S=20, population 50)", n, 20, 50)
    plans("full, K=5, I=10", n, 20, 50, clients=5)
    samples, limit = fleet(0, 2), 5.0 if options.quick else 60.0
    start = time.perf_counter()
    for sample in samples:
        allocate(sample, scls(sample.rows), "scip", time_limit_s=limit)
    each = (time.perf_counter() - start) / 2
    days = each * 20 * evaluations / 86400
    print(
        f"SCIP took {each:.1f} s a solve (n=2, limit {limit:.0f} s): "
        f"in the GA's loop the full plan would take {days:.1f} days"
    )


if __name__ == "__main__":
    main()
