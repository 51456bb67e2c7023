"""A lower bound over all cuts: how far chosen cuts can be from the best cuts at most.

Legend: K clients, I subchannels, S samples. An option of a client is one of its feasible cuts; a stage has a row for each
option, and the rows of client k are group[k] to group[k + 1].

In every sample the cuts may be chosen anew (which only helps), and each client's price takes the minimum over its cuts
before the minimum over assignments: T is excluded if, for some price of power, no assignment keeps the sum of
min_l phi_k(S, l; T) within 1. Model distribution enters through each client alone: the round is at least T_k + M_k, and M_k is
at least the download with all subchannels and all of the edge server's power, so option l has only T - M_k(l) left to
train. The mean over samples bounds the mean round of any cuts. Where bands are shared, subchannels have prices too, and
every client buys for itself (`bound_shared`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from hsfl.allocation.answer import Allocation
from hsfl.allocation.cuts.bound_shared import BandPrices
from hsfl.allocation.cuts.search import place_of, row_at
from hsfl.allocation.exact import exact
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.stage import lagrangian
from hsfl.allocation.stage.client_prices import alone_each_s
from hsfl.allocation.stage.exclusive import by_matching, by_subsets, excluder
from hsfl.allocation.stage.shared_bands import bound_over_options
from hsfl.allocation.stage.stage import Stage, can_trade, distribution_stage, given_power, training_stage
from hsfl.allocation.stage.stage_answer import TimeLimit
from hsfl.allocation.stage.subset_dp import few_subchannels

Array = np.ndarray
MOST_SHARES = 1_000_000  # rows times subchannels; for more, the bound is that of each client alone in the cell
PRICED_SAMPLES = 3  # samples whose prices propose cuts
LEAST_S = 0.02  # seconds for a sample's bound or exact round, even when the time is over; in less, each client's bound is that alone in the cell
MATCHINGS, PROGRAMMES = 12, 8  # prices lam that are tried for one deadline, by matching and by programmes over subsets
PRICE_STEPS = 150  # steps of subchannel prices for one deadline
ROUNDS = 200  # of one programme over subsets


@cache
def warm_up_bound(sharing: str, many: bool) -> None:
    """Compile what the bound needs (or load it) before any clock runs. many: also for more subchannels than `few`."""
    if sharing == "exclusive":
        for subs in (2, 3):
            tiny = random_scenario(np.random.default_rng(0), 2, subs)
            stage, group = options(tiny)
            tests = [_one_subchannel_each(stage, group)] if subs == 2 else [_few_subchannels(stage, group, 2)]
            if many:
                tests.append(_many_subchannels(stage, group, 2))
            for test in tests:
                test(1e9)
        return
    tiny = random_scenario(np.random.default_rng(0), 2, 2, sharing)
    stage, group = options(tiny)
    _prices(tiny.rows, exact(tiny, np.ones(2, int)), stage, group, TimeLimit(1.0)).exclude(1e9)


def options(scenario: Scenario, rows: Array | None = None) -> tuple[Stage, Array]:
    """The training stage with a row for every option, and group [K + 1], where each client's rows begin.

    The download of the model, alone in the cell, is part of fixed_s. rows: [K, C] bool, the options; None: all that C1 allows.
    """
    s, rows = scenario, scenario.rows if rows is None else rows
    clients, cuts = np.nonzero(rows)
    repeated = replace(
        s,
        cpu_hz=s.cpu_hz[clients],
        client_flops_per_cycle=s.client_flops_per_cycle[clients],
        max_power_w=s.max_power_w[clients],
        num_batches=s.num_batches[clients],
        max_cut=s.max_cut[clients],
        main_gain=s.main_gain[clients],
        edge_gain=s.edge_gain[clients],
        legal_rows=rows[clients],
    )
    stage = training_stage(repeated, cuts)
    group = np.concatenate([[0], np.cumsum(rows.sum(axis=1))])
    return stage._replace(fixed_s=stage.fixed_s + _download_s(repeated, cuts)), group


def _download_s(scenario: Scenario, cuts: Array) -> Array:
    """Seconds of the model's download with all subchannels and all of the edge server's power, for each row."""
    stage = distribution_stage(scenario, cuts)
    return alone_each_s(given_power(stage, stage.power_w))


def bound_over_cuts(samples: Sequence[Scenario], cuts: Array, clock: TimeLimit, rows: Array | None = None) -> float:
    """A lower bound on the mean round over samples, in seconds, for any cuts; prices start from cuts [K], which are good.

    rows: as in `options`.
    """
    rows = samples[0].rows if rows is None else rows
    bounds = [_bound(sample, cuts, clock, len(samples) - index, rows) for index, sample in enumerate(samples)]
    return float(np.mean(bounds))


def _bound(sample: Scenario, cuts: Array, clock: TimeLimit, num_left: int, rows: Array) -> float:
    """The bound of one sample, in its part of the time: num_left samples are left, this one included."""
    stage, group = options(sample, rows)
    seconds = (clock.limit_s - clock.seconds()) / num_left
    if seconds < LEAST_S:
        return bound_over_options(stage, group, math.inf)
    answer = exact(sample, cuts, time_limit_s=min(1.0, 0.3 * seconds))
    value_s = answer.round_s
    alone_s = bound_over_options(stage, group, value_s)
    if sample.sharing == "bandwidth":
        if stage.start_w.size > MOST_SHARES:
            return alone_s
        prices = _prices(rows, answer, stage, group, TimeLimit(seconds))
        return max(alone_s, _largest_excluded(prices.exclude, value_s, prices.clock))
    return max(alone_s, _largest_excluded(_excluder(sample, stage, group), value_s, TimeLimit(seconds)))


def _excluder(sample: Scenario, stage: Stage, group: Array) -> Callable[[float], bool]:
    """A test whether a deadline is excluded for exclusive subchannels, by the size of the cell."""
    needs = (stage.up_bits > 0) | (stage.edge_bits > 0) | (stage.down_bits > 0)  # [rows]
    always = np.logical_and.reduceat(needs, group[:-1])  # [K] the client needs a subchannel, whatever its cut
    num_needy = int(always.sum())
    limit = sample.num_subchannels - max(num_needy - 1, 0)
    every_row = num_needy == sample.num_clients and needs.all()
    if limit == 1 and every_row:
        return _one_subchannel_each(stage, group)
    if every_row and few_subchannels(*sample.main_gain.shape):
        return _few_subchannels(stage, group, limit)
    return _many_subchannels(stage, group, limit)


def _one_subchannel_each(stage: Stage, group: Array) -> Callable[[float], bool]:
    """The test where every client owns one subchannel."""
    return excluder(stage, by_matching(stage, group), MATCHINGS)


def _few_subchannels(stage: Stage, group: Array, limit: int) -> Callable[[float], bool]:
    """The test for few subchannels, of which a client can own at most `limit`."""
    return excluder(stage, by_subsets(stage, group, limit, ROUNDS), PROGRAMMES)


def _prices(rows: Array, answer: Allocation, stage: Stage, group: Array, clock: TimeLimit) -> BandPrices:
    """Prices for shared bands, which start from an answer of the exact solver."""
    assert answer.share is not None
    return BandPrices(stage, group, group[:-1] + place_of(rows, answer.cuts), answer.share, clock)


def priced_cuts(samples: Sequence[Scenario], cuts: Array, clock: TimeLimit, rows: Array | None = None) -> Array:
    """Candidates [P, K] for shared bands: cuts [K], the cuts that clients buy in some samples at prices near the bound, and
    the cut that most of these samples have for each client. rows: as in `options`.
    """
    chosen, rows = [cuts], samples[0].rows if rows is None else rows
    for sample in samples[:PRICED_SAMPLES]:
        stage, group = options(sample, rows)
        if clock.over() or stage.start_w.size > MOST_SHARES:
            break
        answer = exact(sample, cuts, time_limit_s=min(1.0, max(LEAST_S, clock.left_s())))
        prices = _prices(rows, answer, stage, group, clock)
        _largest_excluded(prices.exclude, answer.round_s, clock.part(0.2))
        chosen.append(row_at(rows, prices.picks - group[:-1]))
    votes = np.sum([row[:, None] == np.arange(samples[0].num_cuts) for row in chosen[1:]], axis=0)
    return np.unique([*chosen, votes.argmax(axis=1)] if len(chosen) > 1 else chosen, axis=0)


def _largest_excluded(test: Callable[[float], bool], value_s: float, clock: TimeLimit) -> float:
    """The largest deadline in seconds that the test excludes: bisection up to value_s, a round that someone has.

    It ends within 0.1 %, or when the time is over. The first deadlines are near value_s, where the bound usually is.
    """
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


def _many_subchannels(stage: Stage, group: Array, limit: int) -> Callable[[float], bool]:
    """The test for many subchannels: prices of subchannels, with the minimum over cuts inside what a client buys."""
    clients, subs = len(group) - 1, stage.start_w.shape[1]
    sets, allowed = np.zeros((len(stage.cycles), limit + 1, subs)), np.ones((clients, subs))
    pi, lam = np.full(subs, 0.3 / subs), 0.5

    def excludes(T_s: float) -> bool:
        nonlocal pi, lam
        value, new_lam, new_pi = lagrangian.ascend(
            stage, group, pi, lam, T_s, limit, sets, allowed, PRICE_STEPS, can_trade(stage)
        )
        if np.isfinite(value):
            pi, lam = new_pi, new_lam
        return value > lagrangian.PROVEN

    return excludes
