"""The least sum of prices over all assignments at one deadline, and the price lam at which that sum is largest.

Legend: K clients, I subchannels. Rows group[k] to group[k + 1] of a stage are the options of client k: one row for each of
its cuts, or only one row where cuts are given.

An oracle takes (T, rho, lam). It gives the least sum of prices over all assignments and options, or a lower bound on that
sum; the row [K] that each client takes; and the owner [I] of each subchannel. A sum above 1 proves that no assignment keeps
T. There are two oracles: matching, where every client owns one subchannel, and subsets, where there are
few subchannels. `lagrange` serves where neither does.
"""

from collections.abc import Callable, Iterator

import numpy as np

from hsfl.allocation import lagrange, subset_bounds
from hsfl.allocation.matching import least_match
from hsfl.allocation.prices import shares_of, single_prices
from hsfl.allocation.solving import TimeLimit
from hsfl.allocation.stage import Stage
from hsfl.allocation.subsets import PROOF

Array = np.ndarray
Oracle = Callable[[float, float, float], tuple[float, Array, Array]]
MOST_SETS = 512  # of one client that the oracle of subsets remembers
INSIDE = 1e-9  # how near lam may come to 0 and 1 where cycles and power can be traded


def rho_of(stage: Stage, lam: float) -> float:
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
    """The oracle for few subchannels: dynamic programming over subsets (`subset_bounds`).

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
            value, owner, rows, exact = subset_bounds.least_sum(
                stage, group, limit, known, num_known, T, rho, lam, rounds
            )
            if exact or value > PROOF or clock is None or clock.over() or num_known.max() == MOST_SETS:
                return value, rows, owner

    return oracle


def least_sums(
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
        value, rows, owner = oracle(T_s, rho_of(stage, lam), lam)
        yield lam, value, owner
        pull = lagrange.excess(stage, rows, shares_of(owner, len(rows)), T_s, rho_of(stage, lam))
        low, high = (lam, high) if pull > 0 else (low, lam)
        if high - low < narrow:
            return
        lam = 0.5 * (low + high)


def excluder(stage: Stage, oracle: Oracle, steps: int) -> Callable[[float], bool]:
    """A test of deadlines in seconds: does some price exclude T? It tries `steps` prices, first the price of the last proof."""
    first_lam = 0.5

    def excludes(T_s: float) -> bool:
        nonlocal first_lam
        for _, (lam, value, _) in zip(range(steps), least_sums(stage, oracle, T_s, first_lam, trade=True)):
            if value > PROOF:
                first_lam = lam
                return True
        return False

    return excludes
