"""Exclusive subchannels: one stage of a round, solved to a proven gap or to the time limit.

Legend: K clients, I subchannels, T the seconds of the stage; rho the price of a watt in cycles per second, and lam the same price
between 0 and 1 (see `client_prices`). Rows group[k] to group[k + 1] of a stage are the options of client k: one row for each of its cuts, or
only one row where cuts are given.

Local search gives an assignment and so an upper bound on T. A lower bound comes from a proof that no assignment keeps the target
T = upper (1 - gap). Where the proof fails, it names the assignment that stopped it. That assignment often is the better one; then
the target moves. The proof depends on the size of the cell:

    few subchannels            dynamic programming over subsets (`subset_dp`), exact; what prices cannot exclude is walked through
    one subchannel per client  linear assignment (`assignment`), exact
    otherwise                  prices of subchannels (`lagrangian`), a bound

The first two proofs ask an oracle, which takes (T, rho, lam). It gives the least sum of prices over all assignments and options, or
a lower bound on that sum; the row [K] that each client takes; and the owner [I] of each subchannel. A sum above 1 proves that no
assignment keeps T.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from hsfl.allocation.numba_cache import compiled
from hsfl.allocation.stage import lagrangian, subset_dp
from hsfl.allocation.stage.assignment import least_match, match
from hsfl.allocation.stage.client_prices import alone_s, price, shares_of, single_prices
from hsfl.allocation.stage.local_search import first_owner, local_search
from hsfl.allocation.stage.stage import Stage, can_trade
from hsfl.allocation.stage.stage_answer import StageAnswer, StopWhen, TimeLimit
from hsfl.allocation.stage.subset_dp import PROOF
from hsfl.allocation.stage.water_filling import CURVE_ROWS

Array = np.ndarray
Oracle = Callable[[float, float, float], tuple[float, Array, Array]]
MOST_SETS = 512  # of one client that the oracle of subsets remembers
INSIDE = 1e-9  # how near lam may come to 0 and 1 where cycles and power can be traded
PRICES = 60  # tried for one proof
NARROW = 1e-5  # prices lam that lie closer together prove the same
FIRST_WALK = 1000  # assignments; every walk that ends too early is four times as long as the last
MOST_FAILURES = 200  # of dealing anew in a row


def solve_exclusive(stage: Stage, goal: StopWhen, clock: TimeLimit) -> StageAnswer:
    """The best assignment, with a proof that no other is better by more than the goal allows."""
    owner, T, rho, lam = local_search(stage, first_owner(stage), 0.0, 0.0)
    best = StageAnswer(shares_of(owner, len(stage.cycles)), T, rho, lam, alone_s(stage))
    if T <= 0.0 or goal.reached(best.T_s, best.lower_bound_s):
        return best
    if subset_dp.few_subchannels(*stage.start_w.shape):
        return _prove_few(stage, best, goal, clock)
    if subset_dp.largest_set(stage) == 1:
        oracle = by_matching(stage, np.arange(len(stage.cycles) + 1))
        return _prove_by_prices(stage, best, goal, clock, oracle)[0]
    return _prove_many(stage, best, goal, clock)


def _adopt(stage: Stage, best: StageAnswer, owner: Array) -> StageAnswer:
    """The answer that local search finds from another owner [I] where it beats the best answer so far, else that answer."""
    owner, T, rho, lam = local_search(stage, owner, best.T_s, best.rho)
    if not best.T_s * (1.0 - 1e-13) > T:
        return best
    return replace(best, share=shares_of(owner, len(stage.cycles)), T_s=T, rho=rho, lam=lam)


# --- Proofs, by the size of the cell


def _prove_by_prices(
    stage: Stage, best: StageAnswer, goal: StopWhen, clock: TimeLimit, oracle: Oracle
) -> tuple[StageAnswer, float, bool]:
    """Try prices at the target until one excludes it: (best answer, the lam with the largest sum, is the goal reached?)."""
    target, top, top_lam = goal.target(best.T_s), -np.inf, best.lam
    sums = _least_sums(stage, oracle, target, best.lam, can_trade(stage), NARROW)
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
            sums = _least_sums(stage, oracle, target, best.lam, can_trade(stage), NARROW)
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
        value, _, _ = oracle(middle, _rho_of(stage, lam), lam)
        low, high = (middle, high) if value > PROOF else (low, middle)
    return replace(best, lower_bound_s=max(best.lower_bound_s, low))


def _prove_few(stage: Stage, best: StageAnswer, goal: StopWhen, clock: TimeLimit) -> StageAnswer:
    """Few subchannels: prove by prices; where prices cannot, walk through the assignments that they leave."""
    K, subs = stage.start_w.shape
    rounds = 200 if subs <= 12 else 4  # between looks at the clock
    oracle = by_subsets(stage, np.arange(K + 1), subset_dp.largest_set(stage), rounds, best.share, clock)
    own_s, num_leaves = None, FIRST_WALK
    while True:
        best, lam, proven = _prove_by_prices(stage, best, goal, clock, oracle)
        if proven or goal.reached(best.T_s, best.lower_bound_s):
            return best
        own_s = subset_dp.uplink_table(stage) if own_s is None else own_s
        best, ended, num_leaves = _walk(stage, best, goal, clock, own_s, lam, num_leaves)
        if ended:
            return best


def _walk(
    stage: Stage, best: StageAnswer, goal: StopWhen, clock: TimeLimit, own_s: Array, lam: float, num_leaves: int
) -> tuple[StageAnswer, bool, int]:
    """Walk through the assignments whose prices at lam allow the target: (best answer, is it final?, leaves to visit next).

    own_s [K, 2^I] are the seconds of `subset_dp.uplink_table`.
    """
    target, rho = goal.target(best.T_s), _rho_of(stage, lam)
    phi = subset_dp.price_table(stage, own_s, target, rho, lam)
    after = subset_dp.complete(subset_dp.needs_subchannels(stage), phi)
    while True:
        owner, T, exhausted = subset_dp.walk_assignments(stage, phi, after, target, rho, num_leaves)
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
    limit = subset_dp.largest_set(stage)
    sets, allowed, group = np.zeros((K, limit + 1, subs)), np.ones((K, subs)), np.arange(K + 1)
    pi, lam, trade = np.full(subs, 0.3 / subs), best.lam, can_trade(stage)
    rng = np.random.default_rng(0)
    fraction, steps, pace = 1.0, 60, 0.0
    while not (goal.reached(best.T_s, best.lower_bound_s) or clock.over()):
        best = improve(stage, best, rng, clock, max(0.02, pace))
        target = goal.target(best.T_s)
        level = best.lower_bound_s + fraction * (target - best.lower_bound_s)
        began = clock.seconds()
        value, new_lam, new_pi = lagrangian.ascend(stage, group, pi, lam, level, limit, sets, allowed, steps, trade)
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
        k, replaced = given[a]
        row = share[k].copy()
        row[replaced] = 0.0
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


# --- Oracles: the least sum of prices at one deadline, and the price lam at which it is largest


def _rho_of(stage: Stage, lam: float) -> float:
    """The price of a watt in cycles per second that goes with lam; of no importance where lam is 0 or 1."""
    return stage.hz / stage.power_w * lam / (1.0 - lam) if 0.0 < lam < 1.0 else stage.hz / stage.power_w


def by_matching(stage: Stage, group: Array) -> Oracle:
    """The oracle where every client owns one subchannel: the cheapest option of every pair, then a linear assignment."""

    def oracle(T: float, rho: float, lam: float) -> tuple[float, Array, Array]:
        prices = single_prices(stage, T, rho, lam)  # [rows, I]
        value, column = least_match(np.minimum.reduceat(prices, group[:-1], axis=0))
        owner = np.full(prices.shape[1], -1)
        owner[column] = np.arange(len(column))
        if len(prices) == len(column):  # every client has one option
            return value, group[:-1], owner
        rows = [group[k] + prices[group[k] : group[k + 1], i].argmin() for k, i in enumerate(column)]
        return value, np.array(rows, np.int64), owner

    return oracle


def by_subsets(
    stage: Stage, group: Array, limit: int, rounds: int, start: Array | None = None, clock: TimeLimit | None = None
) -> Oracle:
    """The oracle for few subchannels: dynamic programming over subsets (`subset_dp.least_sum`).

    limit: the most subchannels that one client can own. rounds: of one programme. start: shares [K, I] of a good assignment,
    whose sets are priced first. With a clock, programmes follow each other until the sum is exact or the time is over.
    """
    num_clients = len(group) - 1
    known = np.zeros((num_clients, MOST_SETS), np.int64)
    num_known = np.full(num_clients, 0 if start is None else 1)
    if start is not None:
        known[:, 0] = start @ (1 << np.arange(start.shape[1]))

    def oracle(T: float, rho: float, lam: float) -> tuple[float, Array, Array]:
        while True:
            value, owner, rows, exact = subset_dp.least_sum(stage, group, limit, known, num_known, T, rho, lam, rounds)
            if exact or value > PROOF or clock is None or clock.over() or num_known.max() == MOST_SETS:
                return value, rows, owner

    return oracle


def _least_sums(
    stage: Stage, oracle: Oracle, T_s: float, lam: float, trade: bool, narrow: float = 0.0
) -> Iterator[tuple[float, float, Array]]:
    """Bisection over lam at one deadline: (lam, least sum, owner [I]) for prices that approach the largest sum.

    The least sum is concave in lam, and its slope is what the assignment needs of power minus what it needs of cycles.
    The first price is `lam`. trade: whether lam must stay inside (0, 1), as where a client trades cycles for power. The
    bisection ends where the prices that are left lie closer together than `narrow`.
    """
    low, high = (INSIDE, 1.0 - INSIDE) if trade else (0.0, 1.0)
    lam = min(max(lam, low), high)
    while True:
        value, rows, owner = oracle(T_s, _rho_of(stage, lam), lam)
        yield lam, value, owner
        pull = lagrangian.excess(stage, rows, shares_of(owner, len(rows)), T_s, _rho_of(stage, lam))
        low, high = (lam, high) if pull > 0 else (low, lam)
        if high - low < narrow:
            return
        lam = 0.5 * (low + high)


def excluder(stage: Stage, oracle: Oracle, steps: int) -> Callable[[float], bool]:
    """A test of deadlines in seconds: does some price exclude T? It tries `steps` prices, first the price of the last proof."""
    first_lam = 0.5

    def excludes(T_s: float) -> bool:
        nonlocal first_lam
        for _, (lam, value, _) in zip(range(steps), _least_sums(stage, oracle, T_s, first_lam, trade=True)):
            if value > PROOF:
                first_lam = lam
                return True
        return False

    return excludes
