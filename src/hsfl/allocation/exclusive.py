"""Exclusive subchannels: one stage of a round, solved to a proven gap or to the time limit.

Legend: K clients, I subchannels. Local search gives an assignment and so an upper bound on T. A lower bound comes from a
proof that no assignment keeps the target T = upper (1 - gap). Where the proof fails, it names the assignment that stopped
it. That assignment often is the better one; then the target moves. The proof depends on the size of the cell:

    few subchannels            dynamic programming over subsets, exact; what prices cannot exclude is walked through
    one subchannel per client  linear assignment, exact
    otherwise                  prices of subchannels (`lagrange`), a bound
"""

from dataclasses import replace

import numpy as np

from hsfl.allocation import lagrange, subsets
from hsfl.allocation.compiled import compiled
from hsfl.allocation.curve import CURVE_ROWS
from hsfl.allocation.local_search import first_owner, local_search
from hsfl.allocation.matching import match
from hsfl.allocation.oracles import Oracle, by_matching, by_subsets, least_sums, rho_of
from hsfl.allocation.prices import alone_s, price, shares_of
from hsfl.allocation.solving import StageAnswer, StopWhen, TimeLimit
from hsfl.allocation.stage import Stage, can_trade
from hsfl.allocation.subsets import PROOF

Array = np.ndarray
PRICES = 60  # tried for one proof
NARROW = 1e-5  # prices lam that lie closer together prove the same
FIRST_WALK = 1000  # assignments; every walk that ends too early is four times as long as the last
MOST_FAILURES = 200  # of dealing anew in a row


def solve_stage(stage: Stage, goal: StopWhen, clock: TimeLimit) -> StageAnswer:
    """The best assignment, with a proof that no other is better by more than the goal allows."""
    owner, T, rho, lam = local_search(stage, first_owner(stage), 0.0, 0.0)
    best = StageAnswer(shares_of(owner, len(stage.cycles)), T, rho, lam, alone_s(stage))
    if T <= 0.0 or goal.reached(best.T_s, best.lower_bound_s):
        return best
    if subsets.few(*stage.start_w.shape):
        return _prove_few(stage, best, goal, clock)
    if subsets.largest_set(stage) == 1:
        oracle = by_matching(stage, np.arange(len(stage.cycles) + 1))
        return _prove_by_prices(stage, best, goal, clock, oracle)[0]
    return _prove_many(stage, best, goal, clock)


def _adopt(stage: Stage, best: StageAnswer, owner: Array) -> StageAnswer:
    """The answer that local search finds from another owner [I] where it beats the best answer so far, else that answer."""
    owner, T, rho, lam = local_search(stage, owner, best.T_s, best.rho)
    if not best.T_s * (1.0 - 1e-13) > T:
        return best
    return replace(best, share=shares_of(owner, len(stage.cycles)), T_s=T, rho=rho, lam=lam)


def _prove_by_prices(
    stage: Stage, best: StageAnswer, goal: StopWhen, clock: TimeLimit, oracle: Oracle
) -> tuple[StageAnswer, float, bool]:
    """Try prices at the target until one excludes it: (best answer, the lam with the largest sum, is the goal reached?)."""
    target, top, top_lam = goal.target(best.T_s), -np.inf, best.lam
    sums = least_sums(stage, oracle, target, best.lam, can_trade(stage), NARROW)
    for _ in range(PRICES):
        lam, value, owner = next(sums, (0.0, np.nan, None))
        if owner is None:
            break
        if value > top:
            top, top_lam = value, lam
        if value > PROOF:
            return replace(best, lower_bound_s=max(best.lower_bound_s, target)), lam, True
        better = _adopt(stage, best, owner)
        if better is not best:
            best = better
            if goal.reached(best.T_s, best.lower_bound_s):
                return best, lam, True
            target, top, top_lam = goal.target(best.T_s), -np.inf, best.lam
            sums = least_sums(stage, oracle, target, best.lam, can_trade(stage), NARROW)
        elif clock.over():
            break
    return _bound_at(stage, best, goal, top_lam, oracle, clock), top_lam, False


def _bound_at(
    stage: Stage, best: StageAnswer, goal: StopWhen, lam: float, oracle: Oracle, clock: TimeLimit
) -> StageAnswer:
    """The answer with the largest deadline that one price excludes, by bisection; at least six steps, in time or not."""
    low, high, steps = best.lower_bound_s, best.T_s, 0
    while high - low > max(0.1 * goal.gap, 1e-9) * high and (steps < 6 or not clock.over()):
        steps += 1
        middle = 0.5 * (low + high)
        value, _, _ = oracle(middle, rho_of(stage, lam), lam)
        low, high = (middle, high) if value > PROOF else (low, middle)
    return replace(best, lower_bound_s=max(best.lower_bound_s, low))


def _prove_few(stage: Stage, best: StageAnswer, goal: StopWhen, clock: TimeLimit) -> StageAnswer:
    """Few subchannels: prove by prices; where prices cannot, walk through the assignments that they leave."""
    K, subs = stage.start_w.shape
    rounds = 200 if subs <= 12 else 4  # between looks at the clock
    oracle = by_subsets(stage, np.arange(K + 1), subsets.largest_set(stage), rounds, best.share, clock)
    own_s, num_leaves = None, FIRST_WALK
    while True:
        best, lam, proven = _prove_by_prices(stage, best, goal, clock, oracle)
        if proven or goal.reached(best.T_s, best.lower_bound_s):
            return best
        own_s = subsets.uplink_table(stage) if own_s is None else own_s
        best, ended, num_leaves = _walk(stage, best, goal, clock, own_s, lam, num_leaves)
        if ended:
            return best


def _walk(
    stage: Stage, best: StageAnswer, goal: StopWhen, clock: TimeLimit, own_s: Array, lam: float, num_leaves: int
) -> tuple[StageAnswer, bool, int]:
    """Walk through the assignments whose prices at lam allow the target: (best answer, is it final?, leaves to visit next).

    own_s [K, 2^I] are the seconds of `subsets.uplink_table`.
    """
    target, rho = goal.target(best.T_s), rho_of(stage, lam)
    phi = subsets.price_table(stage, own_s, target, rho, lam)
    after = subsets.complete(subsets.who_needs(stage), phi)
    while True:
        owner, T, exhausted = subsets.walk_assignments(stage, phi, after, target, rho, num_leaves)
        if exhausted:
            return replace(best, lower_bound_s=max(best.lower_bound_s, target)), True, num_leaves
        better = _adopt(stage, best, owner) if np.isfinite(T) else best
        if clock.over():
            return better, True, num_leaves
        if np.isfinite(T):  # where it is better by rounding alone, nothing more can be told apart
            return better, better.T_s >= best.T_s, num_leaves
        num_leaves *= 4


def _prove_many(stage: Stage, best: StageAnswer, goal: StopWhen, clock: TimeLimit) -> StageAnswer:
    """Many subchannels: in turn, improve the assignment and exclude a deadline between the bounds by subchannel prices."""
    K, subs = stage.start_w.shape
    limit = subsets.largest_set(stage)
    sets, allowed, group = np.zeros((K, limit + 1, subs)), np.ones((K, subs)), np.arange(K + 1)
    pi, lam, trade = np.full(subs, 0.3 / subs), best.lam, can_trade(stage)
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
    """The price of client given[a, 0] when its subchannel given[a, 1] is replaced by given[b, 1], [A, A]."""
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
    """For some seconds: every client gives one random subchannel, and a linear assignment deals them anew."""
    until = clock.seconds() + seconds
    K = len(stage.cycles)
    failures = 0
    while clock.seconds() < until and not clock.over() and failures < MOST_FAILURES:
        owned = [(k, rng.choice(np.flatnonzero(best.share[k]))) for k in range(K) if best.share[k].any()]
        given = np.array(owned, dtype=np.int64)
        phi = _exchange_prices(stage, best.share, given, best.T_s, best.rho, best.lam)
        value, column = match(phi)
        failures += 1
        if value < np.trace(phi) - 1e-9:
            owner = best.owner
            owner[given[column, 1]] = given[:, 0]
            better = _adopt(stage, best, owner)
            failures = 0 if better is not best else failures
            best = better
    return best
