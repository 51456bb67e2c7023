"""The assignment search: one stage of a round, solved to a proven gap or to the time limit.

Legend: K clients, I subchannels. An upper bound comes from local search, a lower bound from a proof that no
assignment keeps the target T = upper (1 - gap). Where the proof fails it hands over the assignment that stopped it,
which often is the better one, and the target moves. Three oracles for the least sum of prices at (T, lam):

    few subchannels      dynamic programming on subsets, exact; what prices cannot exclude is walked through
    one for each client  linear assignment, exact
    otherwise            subchannel prices (`lagrange`), a bound
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hsfl.allocation import lagrange, partition, priced_partitions
from hsfl.allocation.compiled import compiled
from hsfl.allocation.curve import CURVE_ROWS, fill_curve
from hsfl.allocation.frequency import uplink_s
from hsfl.allocation.matching import least_match, match
from hsfl.allocation.partition import PROOF
from hsfl.allocation.spectrum import first_owner, local_search, price, shares_of
from hsfl.allocation.stage import Stage

Array = np.ndarray
Oracle = Callable[[float, float, float], tuple[float, Array]]
Spent = tuple[Array, Array, Array, Array]  # server_hz [K]; main up, main down, edge up [K, I]


class TimeLimit:
    """Seconds since the start, and whether the limit has passed."""

    def __init__(self, limit_s: float) -> None:
        self.start = time.perf_counter()
        self.limit_s = limit_s

    def seconds(self) -> float:
        return time.perf_counter() - self.start

    def over(self) -> bool:
        return self.seconds() >= self.limit_s

    def left_s(self) -> float:
        return max(0.0, self.limit_s - self.seconds())

    def part(self, fraction: float) -> "TimeLimit":
        """A clock for this part of what is left."""
        return TimeLimit(self.left_s() * fraction)


@dataclass(frozen=True)
class Goal:
    """When to stop: a relative gap, plus seconds that another stage left over; or as soon as tau_s is decided."""

    gap: float
    spare_s: float = 0.0
    tau_s: float | None = None

    def target(self, T_s: float) -> float:
        """The deadline to exclude."""
        return T_s * (1.0 - self.gap) - self.spare_s if self.tau_s is None else self.tau_s

    def reached(self, T_s: float, lower_bound_s: float) -> bool:
        if self.tau_s is not None and (T_s <= self.tau_s or lower_bound_s >= self.tau_s):
            return True
        return T_s - lower_bound_s <= (self.gap * T_s + self.spare_s) * (1.0 + 1e-9)


@dataclass(frozen=True)
class StageAnswer:
    """An assignment, its optimal T, the price that proves it optimal for the assignment, and a bound over all."""

    owner: Array  # [I]
    T_s: float
    rho: float
    lam: float
    lower_bound_s: float = 0.0
    spent: Spent | None = None  # where cycles and powers are not the optimal ones of (T_s, rho)

    def shares(self, num_clients: int) -> Array:
        """Who owns how much of each subchannel, [K, I]."""
        return shares_of(self.owner, num_clients)

    @property
    def gap(self) -> float:
        return (self.T_s - self.lower_bound_s) / self.T_s if self.T_s > 0 else 0.0


def solve_stage(stage: Stage, goal: Goal, clock: TimeLimit) -> StageAnswer:
    """The best assignment, with a proof that no other is better by more than the goal allows."""
    owner, T, rho, lam = local_search(stage, first_owner(stage), 0.0, 0.0)
    best = StageAnswer(owner, T, rho, lam, alone_s(stage))
    if T <= 0.0 or goal.reached(best.T_s, best.lower_bound_s):
        return best
    limit = partition.largest_set(stage)
    if partition.few(*stage.start_w.shape):
        return _prove_small(stage, best, goal, clock)
    if limit == 1:
        return _prove_by_prices(stage, best, goal, clock, _one_each(stage))[0]
    return _prove_large(stage, best, goal, clock, limit)


def alone_s(stage: Stage) -> float:
    """Every client alone in the cell: a first lower bound."""
    return float(alone_each_s(stage).max())


@compiled
def alone_each_s(stage: Stage) -> Array:
    """c_k with all subchannels [K]."""
    K, subs = stage.start_w.shape
    b = stage.subchannel_hz / math.log(2.0)
    curve, spare, share, c = np.empty((CURVE_ROWS, subs)), np.empty((CURVE_ROWS, subs)), np.ones(subs), np.empty(K)
    for k in range(K):
        count = fill_curve(curve, stage.order[k], stage.start_w[k], stage.log_start[k], share)
        c[k] = uplink_s(stage, k, curve, count, spare, share, b)
    return c


def _rho(stage: Stage, lam: float) -> float:
    return stage.hz / stage.power_w * lam / (1.0 - lam) if 0.0 < lam < 1.0 else stage.hz / stage.power_w


def _has_trade(stage: Stage) -> bool:
    """Whether some client may trade cycles for power; then lam stays inside (0, 1)."""
    return bool(((stage.cycles > 0) & (stage.down_bits > 0)).any())


def _adopt(stage: Stage, best: StageAnswer, owner: Array) -> StageAnswer:
    """The better of the incumbent and local search from another owner."""
    owner, T, rho, lam = local_search(stage, owner, best.T_s, best.rho)
    return replace(best, owner=owner, T_s=T, rho=rho, lam=lam) if best.T_s * (1.0 - 1e-13) > T else best


def _prove_by_prices(
    stage: Stage, best: StageAnswer, goal: Goal, clock: TimeLimit, oracle: Oracle
) -> tuple[StageAnswer, float, bool]:
    """Bisection on lam at the target: (best, the lam with the largest sum of prices, proven?)."""
    K = len(stage.cycles)
    low, high = (1e-9, 1.0 - 1e-9) if _has_trade(stage) else (0.0, 1.0)
    lam, top, top_lam = min(max(best.lam, low), high), -np.inf, best.lam
    target = goal.target(best.T_s)
    for _ in range(60):
        value, owner = oracle(target, _rho(stage, lam), lam)
        if value > top:
            top, top_lam = value, lam
        if value > PROOF:
            return replace(best, lower_bound_s=max(best.lower_bound_s, target)), lam, True
        better = _adopt(stage, best, owner)
        if better is not best:
            best = better
            if goal.reached(best.T_s, best.lower_bound_s):
                return best, lam, True
            low, high = (1e-9, 1.0 - 1e-9) if _has_trade(stage) else (0.0, 1.0)
            lam, top, top_lam = min(max(best.lam, low), high), -np.inf, best.lam
            target = goal.target(best.T_s)
            continue
        pull = lagrange.excess(stage, np.arange(K), shares_of(owner, K), target, _rho(stage, lam))
        low, high = (lam, high) if pull > 0 else (low, lam)
        if high - low < 1e-5 or clock.over():
            break
        lam = 0.5 * (low + high)
    return _bound_at(stage, best, goal, top_lam, oracle, clock), top_lam, False


def _bound_at(stage: Stage, best: StageAnswer, goal: Goal, lam: float, oracle: Oracle, clock: TimeLimit) -> StageAnswer:
    """The largest T that one price excludes, by bisection; a few steps even where the time is over."""
    low, high, steps = best.lower_bound_s, best.T_s, 0
    while high - low > max(0.1 * goal.gap, 1e-9) * high and (steps < 6 or not clock.over()):
        steps += 1
        middle = 0.5 * (low + high)
        value, _ = oracle(middle, _rho(stage, lam), lam)
        low, high = (middle, high) if value > PROOF else (low, middle)
    return replace(best, lower_bound_s=max(best.lower_bound_s, low))


def _prove_small(stage: Stage, best: StageAnswer, goal: Goal, clock: TimeLimit) -> StageAnswer:
    K, subs = stage.start_w.shape
    pool, used = np.zeros((K, 512), np.int64), np.ones(K, np.int64)
    pool[:, 0] = shares_of(best.owner, K) @ (1 << np.arange(subs))
    group, limit = np.arange(K + 1), partition.largest_set(stage)

    rounds = 200 if subs <= 12 else 4  # between looks at the clock

    def oracle(T: float, rho: float, lam: float) -> tuple[float, Array]:
        while True:
            value, owner, _, exact = priced_partitions.least_sum(stage, group, limit, pool, used, T, rho, lam, rounds)
            if exact or value > PROOF or clock.over() or used.max() == pool.shape[1]:
                return value, owner

    leaves, c = 1000, None
    while True:
        best, lam, proven = _prove_by_prices(stage, best, goal, clock, oracle)
        if proven or goal.reached(best.T_s, best.lower_bound_s):
            return best
        target = goal.target(best.T_s)
        c = partition.uplink_table(stage) if c is None else c
        phi = partition.price_table(stage, c, target, _rho(stage, lam), lam)
        after = partition.complete(partition.who_needs(stage), phi)
        while True:
            owner, T, exhausted = partition.search_leaves(stage, phi, after, target, _rho(stage, lam), leaves)
            if exhausted:
                return replace(best, lower_bound_s=max(best.lower_bound_s, target))
            if clock.over():
                return _adopt(stage, best, owner) if np.isfinite(T) else best
            if np.isfinite(T):
                before, best = best, _adopt(stage, best, owner)
                if best.T_s >= before.T_s:  # better by rounding alone: nothing more can be told apart
                    return best
                break
            leaves *= 4


@compiled
def single_prices(stage: Stage, T: float, rho: float, lam: float) -> Array:
    """phi_k({i}) [K, I]."""
    K, subs = stage.start_w.shape
    curve, spare, share = np.empty((CURVE_ROWS, subs)), np.empty((CURVE_ROWS, subs)), np.zeros(subs)
    phi = np.empty((K, subs))
    for k in range(K):
        for i in range(subs):
            share[i] = 1.0
            phi[k, i] = price(stage, k, share, curve, spare, T, rho, lam)
            share[i] = 0.0
    return phi


def _one_each(stage: Stage) -> Oracle:
    def oracle(T: float, rho: float, lam: float) -> tuple[float, Array]:
        value, column = least_match(single_prices(stage, T, rho, lam))
        owner = np.full(stage.start_w.shape[1], -1)
        owner[column] = np.arange(len(column))
        return value, owner

    return oracle


def _prove_large(stage: Stage, best: StageAnswer, goal: Goal, clock: TimeLimit, limit: int) -> StageAnswer:
    """Levels of T between the bounds: prove one by prices of subchannels, or improve the assignment, in turn."""
    K, subs = stage.start_w.shape
    sets, allowed, group = np.zeros((K, limit + 1, subs)), np.ones((K, subs)), np.arange(K + 1)
    pi, lam, trade = np.full(subs, 0.3 / subs), best.lam, _has_trade(stage)
    rng = np.random.default_rng(0)
    fraction, steps, pace = 1.0, 60, 0.0
    while not (goal.reached(best.T_s, best.lower_bound_s) or clock.over()):
        best = improve(stage, best, rng, clock, max(0.02, pace))
        target = goal.target(best.T_s)
        level = best.lower_bound_s + fraction * (target - best.lower_bound_s)
        began = clock.seconds()
        value, new_lam, new_pi = lagrange.ascend(stage, group, pi, lam, level, limit, sets, allowed, steps, trade)
        pace = clock.seconds() - began
        if np.isfinite(value):
            pi, lam = new_pi, new_lam
        if value > PROOF:
            best = replace(best, lower_bound_s=level)
            fraction = min(1.0, 2.0 * fraction)
        elif fraction > 0.05:
            fraction *= 0.5
        else:
            fraction, steps = 0.4, min(2 * steps, 2000)
    return best


@compiled
def _exchange_prices(stage: Stage, share: Array, given: Array, T: float, rho: float, lam: float) -> Array:
    """Price of client given[a, 0] when its subchannel given[a, 1] is replaced by given[b, 1], [A, A]."""
    A, subs = given.shape[0], share.shape[1]
    curve, spare = np.empty((CURVE_ROWS, subs)), np.empty((CURVE_ROWS, subs))
    phi = np.empty((A, A))
    for a in range(A):
        k, own = given[a]
        row = share[k].copy()
        row[own] = 0.0
        for j in range(A):
            i = given[j, 1]
            row[i] = 1.0
            phi[a, j] = price(stage, k, row, curve, spare, T, rho, lam)
            row[i] = 0.0
    return phi


def improve(stage: Stage, best: StageAnswer, rng: np.random.Generator, clock: TimeLimit, seconds: float) -> StageAnswer:
    """Everyone puts one subchannel on the table and a linear assignment deals them anew, for some seconds."""
    until = clock.seconds() + seconds
    K = len(stage.cycles)
    failures = 0
    while clock.seconds() < until and not clock.over() and failures < 200:
        share = shares_of(best.owner, K)
        owned = [(k, rng.choice(np.flatnonzero(share[k]))) for k in range(K) if share[k].any()]
        given = np.array(owned, dtype=np.int64)
        phi = _exchange_prices(stage, share, given, best.T_s, best.rho, best.lam)
        value, column = match(phi)
        failures += 1
        if value < np.trace(phi) - 1e-9:
            owner = best.owner.copy()
            owner[given[column, 1]] = given[:, 0]
            better = _adopt(stage, best, owner)
            failures = 0 if better is not best else failures
            best = better
    return best
