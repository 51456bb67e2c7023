"""A lower bound over all cuts: how far a plan can be from the best one at most.

Legend: K clients, I subchannels, S samples; an option of a client is one of its feasible cuts, a row of the stage.

In every sample the cuts may be chosen anew (which only helps), and each client's price takes the minimum over its cuts
before the minimum over assignments: T is excluded if, for some price of power, no assignment keeps the sum of
min_l phi_k(S, l; T) within 1. Model distribution enters through a client alone: round >= T_k + M_k, and M_k is at least
the download with all subchannels and all of the edge server's power, so option l has only T - M_k(l) left to train.
The mean over samples bounds the mean round of any cuts. Where bands are shared, subchannels have prices too, and every
client buys by itself (`sharebound`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from hsfl.allocation import lagrange, priced_partitions
from hsfl.allocation.answer import Allocation
from hsfl.allocation.bandwidth import bound_over_options
from hsfl.allocation.draw import random_scenario
from hsfl.allocation.joint import exact
from hsfl.allocation.matching import least_match
from hsfl.allocation.partition import PROOF, few
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.search import TimeLimit, alone_each_s, single_prices
from hsfl.allocation.sharebound import Prices
from hsfl.allocation.stage import Stage, distribution_stage, training_stage

Array = np.ndarray
MOST_SHARES = 1_000_000  # rows times subchannels: beyond, each client alone in the cell is the bound
PRICED_SAMPLES = 3
LEAST_S = 0.02  # for a sample's bound; where less is left, each client alone in the cell is it


@cache
def warm_up_bound(sharing: str, many: bool) -> None:
    """Compile (or load) before any clock runs."""
    if sharing == "exclusive":
        for subs in (2, 3):
            tiny = random_scenario(np.random.default_rng(0), 2, subs)
            stage, group = options(tiny)
            tests = [_by_matching(stage, group)] if subs == 2 else [_by_tables(stage, group, 2)]
            if many:
                tests.append(_by_prices(stage, group, subs, 2))
            for test in tests:
                test(1e9)
        return
    tiny = random_scenario(np.random.default_rng(0), 2, 2, sharing)
    stage, group = options(tiny)
    _prices(tiny, exact(tiny, np.ones(2, int)), stage, group, TimeLimit(1.0)).exclude(1e9)


def options(scenario: Scenario) -> tuple[Stage, Array]:
    """The training stage with a row for every client and cut, and where each client's rows begin [K + 1]."""
    s = scenario
    per_client = [s.feasible_cuts(k) for k in range(s.num_clients)]
    rows = np.repeat(np.arange(s.num_clients), [len(c) for c in per_client])
    repeated = replace(
        s,
        cpu_hz=s.cpu_hz[rows],
        client_flops_per_cycle=s.client_flops_per_cycle[rows],
        max_power_w=s.max_power_w[rows],
        num_batches=s.num_batches[rows],
        max_cut=s.max_cut[rows],
        main_gain=s.main_gain[rows],
        edge_gain=s.edge_gain[rows],
    )
    cuts = np.concatenate(per_client)
    stage = training_stage(repeated, cuts)
    group = np.concatenate([[0], np.cumsum([len(c) for c in per_client])])
    return stage._replace(fixed_s=stage.fixed_s + download_s(repeated, cuts)), group


def download_s(scenario: Scenario, cuts: Array) -> Array:
    """The model's download with all subchannels and all of the edge server's power, for each row."""
    stage = distribution_stage(scenario, cuts)
    power_w = np.full(len(cuts), stage.power_w)
    return alone_each_s(
        stage._replace(given_bits=stage.down_bits, given_power_w=power_w, down_bits=np.zeros(len(cuts)))
    )


def bound_over_cuts(samples: Sequence[Scenario], cuts: Array, clock: TimeLimit) -> float:
    """Mean over samples of the bound; `cuts` are good ones, where the search starts from."""
    bounds = [_bound(sample, cuts, clock, len(samples) - index) for index, sample in enumerate(samples)]
    return float(np.mean(bounds))


def _bound(sample: Scenario, cuts: Array, clock: TimeLimit, num_left: int) -> float:
    stage, group = options(sample)
    seconds = (clock.limit_s - clock.seconds()) / num_left
    if seconds < LEAST_S:
        return bound_over_options(stage, group, math.inf)
    answer = exact(sample, cuts, time_limit_s=min(1.0, 0.3 * seconds))
    value_s = answer.round_s
    alone_s = bound_over_options(stage, group, value_s)
    if sample.sharing == "bandwidth":
        if stage.start_w.size > MOST_SHARES:
            return alone_s
        prices = _prices(sample, answer, stage, group, TimeLimit(seconds))
        return max(alone_s, _largest_excluded(prices.exclude, value_s, prices.clock))
    needy = _needy(stage, group)
    limit = sample.num_subchannels - max(needy - 1, 0)
    every_row = needy == sample.num_clients and _rows_need(stage).all()
    if limit == 1 and every_row:
        test = _by_matching(stage, group)
    elif every_row and few(*sample.main_gain.shape):
        test = _by_tables(stage, group, limit)
    else:
        test = _by_prices(stage, group, sample.num_subchannels, limit)
    return max(alone_s, _largest_excluded(test, value_s, TimeLimit(seconds)))


def _prices(sample: Scenario, answer: Allocation, stage: Stage, group: Array, clock: TimeLimit) -> Prices:
    assert answer.share is not None
    return Prices(stage, group, group[:-1] + answer.cuts - sample.min_cut, answer.share, clock)


def priced_cuts(samples: Sequence[Scenario], cuts: Array, clock: TimeLimit) -> Array:
    """Cuts that clients choose at the prices of shared bands, near a bound [P, K]: of some samples, and of most."""
    chosen = [cuts]
    for sample in samples[:PRICED_SAMPLES]:
        stage, group = options(sample)
        if clock.over() or stage.start_w.size > MOST_SHARES:
            break
        answer = exact(sample, cuts, time_limit_s=min(1.0, max(LEAST_S, clock.left_s())))
        prices = _prices(sample, answer, stage, group, clock)
        _largest_excluded(prices.exclude, answer.round_s, clock.part(0.2))
        chosen.append(prices.picks - group[:-1] + sample.min_cut)
    votes = np.sum([row[:, None] == np.arange(samples[0].num_cuts) for row in chosen[1:]], axis=0)
    return np.unique([*chosen, votes.argmax(axis=1)] if len(chosen) > 1 else chosen, axis=0)


def _rows_need(stage: Stage) -> Array:
    return (stage.up_bits > 0) | (stage.edge_bits > 0) | (stage.down_bits > 0)


def _needy(stage: Stage, group: Array) -> int:
    """Clients that need a subchannel whatever their cut."""
    return int(np.logical_and.reduceat(_rows_need(stage), group[:-1]).sum())


def _largest_excluded(test: Callable[[float], bool], value_s: float, clock: TimeLimit) -> float:
    """Bisection between nothing and a value that is attained; to 0.1 %, or until the time is over."""
    low, high, step = 0.0, value_s, 0.02
    while high - low > 1e-3 * high and not clock.over():
        middle = max(high * (1 - step), 0.5 * (low + high)) if low == 0.0 else 0.5 * (low + high)
        if low == 0.0 and step > 0.9:
            break
        if test(middle):
            low = middle
        else:
            high = middle
            step *= 2
    return low


def _trade(stage: Stage) -> bool:
    return bool(((stage.cycles > 0) & (stage.down_bits > 0)).any())


def _by_matching(stage: Stage, group: Array) -> Callable[[float], bool]:
    """Everyone owns one subchannel: cheapest cut for every pair, then a linear assignment; bisection on lam."""
    unit = stage.hz / stage.power_w
    start = [0.5]

    def test(T_s: float) -> bool:
        low, high, lam = 1e-9, 1.0 - 1e-9, start[0]
        for _ in range(12):
            rho = unit * lam / (1.0 - lam)
            prices = single_prices(stage, T_s, rho, lam)
            value, column = least_match(np.minimum.reduceat(prices, group[:-1], axis=0))
            if value > PROOF:
                start[0] = lam
                return True
            chosen = np.zeros((len(group) - 1, prices.shape[1]))
            chosen[np.arange(len(column)), column] = 1.0
            picks = np.array(
                [group[k] + prices[group[k] : group[k + 1], i].argmin() for k, i in enumerate(column)], np.int64
            )
            pull = lagrange.excess(stage, picks, chosen, T_s, rho)
            low, high = (lam, high) if pull > 0 else (low, lam)
            lam = 0.5 * (low + high)
        return False

    return test


def _by_tables(stage: Stage, group: Array, limit: int) -> Callable[[float], bool]:
    """Few subchannels: dynamic programming on subsets, with the minimum over cuts in the tables; bisection on lam."""
    clients = len(group) - 1
    pool, used = np.zeros((clients, 512), np.int64), np.zeros(clients, np.int64)
    unit = stage.hz / stage.power_w
    start = [0.5]

    def test(T_s: float) -> bool:
        low, high, lam = 1e-9, 1.0 - 1e-9, start[0]
        for _ in range(8):
            rho = unit * lam / (1.0 - lam)
            value, owner, picks, _ = priced_partitions.least_sum(stage, group, limit, pool, used, T_s, rho, lam, 200)
            if value > PROOF:
                start[0] = lam
                return True
            chosen = (np.arange(clients)[:, None] == owner).astype(float)
            pull = lagrange.excess(stage, picks, chosen, T_s, rho)
            low, high = (lam, high) if pull > 0 else (low, lam)
            lam = 0.5 * (low + high)
        return False

    return test


def _by_prices(stage: Stage, group: Array, subs: int, limit: int) -> Callable[[float], bool]:
    """Prices of subchannels, with the minimum over cuts inside what a client buys."""
    clients = len(group) - 1
    sets, allowed = np.zeros((len(stage.cycles), limit + 1, subs)), np.ones((clients, subs))
    state: list[Any] = [np.full(subs, 0.3 / subs), 0.5]

    def test(T_s: float) -> bool:
        value, lam, pi = lagrange.ascend(
            stage, group, state[0], state[1], T_s, limit, sets, allowed, 150, _trade(stage)
        )
        if np.isfinite(value):
            state[:] = [pi, lam]
        return value > 1.0 + 1e-9

    return test
