"""How much longer a round is under each baseline and under the paper's solver than under the exact optimum.

python benchmarks/allocation_baselines.py [--quick] [--n 30] [--first-seed 0] [--scip 3]

For the paper's solver also: what its F step misses of the optimal F, what the order and the first P change, what further
turns gain, and (--scip) whether SCIP in its P step finds the same.
"""

import argparse

import numpy as np

from hsfl.allocation import paper
from hsfl.allocation.cuts.radio import radio_request
from hsfl.allocation.cuts.search import CutSettings, search_cuts
from hsfl.allocation.exact import exact
from hsfl.allocation.policies import policy
from hsfl.allocation.policy_table import POLICIES
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.stage.client_prices import shares_of, solve_shares
from hsfl.allocation.stage.exclusive import solve_exclusive
from hsfl.allocation.stage.fixed_shares import water_fill_downlink
from hsfl.allocation.stage.stage import distribution_stage, training_stage
from hsfl.allocation.stage.stage_answer import StopWhen, TimeLimit

GOAL = StopWhen(1e-4)


def spread(values):
    low, middle, high = np.percentile(values, [10, 50, 90])
    return (
        f"median {middle:+.3%}, 10th to 90th percentile {low:+.3%} to {high:+.3%}, "
        f"range {np.min(values):+.3%} to {np.max(values):+.3%}"
    )


def optimal_cycles(stage, share, down_w):
    """The F step in closed form for a given P: (T, cycles)."""
    zero = np.zeros(len(stage.cycles))
    given = stage._replace(given_bits=stage.down_bits, given_power_w=down_w.sum(axis=1), down_bits=zero)
    T_s = solve_shares(given, share, 0.0, 0.0)[0]
    left_s = T_s - paper.without_server_s(stage, share, down_w)
    return T_s, np.divide(stage.cycles, left_s, out=zero.copy(), where=stage.cycles > 0)


def blind_transmission(stage):
    """Another first P: subchannel i to client i mod K, whatever its gain."""
    clients, subs = stage.start_w.shape
    share, down_w = shares_of(np.arange(subs) % clients, clients), np.zeros((clients, subs))
    water_fill_downlink(stage, share, np.full(clients, stage.power_w / clients), down_w)
    return share, down_w


def turns_s(stage, hz, num_turns=3):
    """T after P for these cycles, then after each further turn of F (closed form) and P."""
    found = []
    for _ in range(num_turns):
        answer = paper.transmission(stage, hz, GOAL, TimeLimit(5.0), solve_exclusive)
        found.append(min([answer.T_s, *found]))
        hz = optimal_cycles(stage, shares_of(answer.owner, len(hz)), answer.spent[2])[1]
    return found


def equal_steps(m, n, hz, step, max_steps=20_000, epsilon=1e-6):
    """The iteration with the same step for every mu, clipped at 0 as printed, the other repairs made: (best T, steps)."""
    f = np.full(len(m), 1.0 / len(m))
    mu, T = f, (m + n / (f * hz)).max()
    scale, best = T, T
    for number in range(1, max_steps + 1):
        f = np.sqrt(mu * n)
        f = f / f.sum()  # so that lambda does not matter
        finish = m + n / (f * hz)
        before, T = T, finish.max()
        mu = np.maximum(mu + step * (finish - T) / scale, 1e-9)
        mu = mu / mu.sum()
        best = min(best, T)
        if number > 1 and abs(T - before) <= epsilon * before:
            return best, number
    return best, max_steps


def instances(clients, subchannels, seeds):
    """(scenario, planned cuts, the exact round)."""
    for seed in seeds:
        scenario = random_scenario(np.random.default_rng(seed), clients, subchannels)
        cuts = search_cuts(radio_request([scenario], CutSettings(seed=seed, bound=False, patience=5))).cuts
        yield seed, scenario, cuts, exact(scenario, cuts, gap=1e-4).round_s


def baselines(found, scenario, cuts, best_s, seed):
    request = radio_request([scenario], CutSettings(seed=seed))
    for name in POLICIES:
        if name != "proposed":
            rule = policy(name)
            own = cuts if rule.cuts == "optimised" else rule.choose(request).cuts
            found.setdefault(name, []).append(rule.allocate(scenario, own).round_s / best_s - 1)


def paper_solver(found, steps, scenario, cuts, best_s):
    """The solver as it is, then with other halves, orders and first steps."""

    def note(name, round_s):
        found.setdefault(name, []).append(round_s / best_s - 1)

    note("paper's solver", paper.solve_as_paper(scenario, cuts).round_s)
    stage = training_stage(scenario, cuts)
    rest_s = solve_exclusive(distribution_stage(scenario, cuts), GOAL, TimeLimit(5.0)).T_s
    share, down_w = paper.even_transmission(stage)
    best_f_s, best_hz = optimal_cycles(stage, share, down_w)
    first, *more = turns_s(stage, best_hz)
    note("paper's order, both halves exact", first + rest_s)
    found.setdefault("gain of two further turns", []).append(more[-1] / first - 1)
    note("paper's order, first P blind to gains", turns_s(stage, optimal_cycles(stage, *blind_transmission(stage))[1])[0] + rest_s)  # fmt: skip
    first, *more = turns_s(stage, np.full(len(cuts), stage.hz / len(cuts)))
    note("P first, from even cycles", first + rest_s)
    found.setdefault("P first: gain of two further turns", []).append(more[-1] / first - 1)
    m, n = paper.without_server_s(stage, share, down_w), stage.cycles
    if not (n > 0).all():
        return
    for step in (0.1, 0.01):
        _, T_s, num = paper.cycles_by_multipliers(m, n, stage.hz, step, step)
        found.setdefault(f"F step with steps of {step:g} above optimal F", []).append(T_s / best_f_s - 1)
        steps.setdefault(f"F step with steps of {step:g}", []).append((num, paper.MAX_STEPS))
        T_s, num = equal_steps(m, n, stage.hz, step)
        found.setdefault(f"F step with equal steps of {step:g} above optimal F (best met)", []).append(
            T_s / best_f_s - 1
        )
        steps.setdefault(f"F step with equal steps of {step:g}", []).append((num, 20_000))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--n", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--scip", type=int, default=0, help="so many rounds with SCIP in the P step as well")
    parser.add_argument("--scip-limit", type=float, default=60.0)
    options = parser.parse_args()
    n = 2 if options.quick else options.n
    for clients, subchannels in ((5, 10), (10, 10)):
        found, steps, scip = {}, {}, []
        seeds = range(options.first_seed, options.first_seed + n)
        for seed, scenario, cuts, best_s in instances(clients, subchannels, seeds):
            baselines(found, scenario, cuts, best_s, seed)
            paper_solver(found, steps, scenario, cuts, best_s)
            if len(scip) < options.scip:
                by_scip = paper.solve_as_paper(scenario, cuts, time_limit_s=options.scip_limit, p_step="scip")
                scip.append(by_scip.round_s / paper.solve_as_paper(scenario, cuts).round_s - 1)
        where = f"K={clients} I={subchannels}"
        for name, values in found.items():
            print(f"{where}, n={len(values)}, {name}: {spread(values)}", flush=True)
        for name, values in steps.items():
            settled = [num for num, limit in values if num < limit]
            took = f"{min(settled)} to {max(settled)} steps" if settled else "-"
            print(f"{where}, {name}: settled in {len(settled)} of {len(values)}, {took}", flush=True)
        if scip:
            print(
                f"{where}, n={len(scip)}, SCIP in the P step, {options.scip_limit:.0f} s, beside ours: {spread(scip)}"
            )


if __name__ == "__main__":
    main()
