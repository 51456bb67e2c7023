"""Linear assignment: the cheapest way to give every row a column of its own, by SciPy's shortest augmenting paths, O(n^3)."""

import math

import numpy as np
from scipy.optimize import linear_sum_assignment

Array = np.ndarray
TOO_MUCH = 4.0  # a price this high is as good as infinite, since sums of prices matter up to 1


def match(cost: Array) -> tuple[float, Array]:
    """(least sum, the column [n] of each row) for cost [n, m], n <= m.

    Costs may be infinite; where no assignment has a finite sum, the sum is infinite and the columns are -1.
    """
    try:
        rows, columns = linear_sum_assignment(cost)
    except ValueError:  # no assignment has a finite sum
        return math.inf, np.full(len(cost), -1)
    return float(cost[rows, columns].sum()), columns


def least_match(prices: Array) -> tuple[float, Array]:
    """The least sum of prices [n, m] >= 0, with TOO_MUCH in place of all higher prices (and of nan), and the columns [n].

    Far higher prices would cost the other prices their digits in the sum.
    """
    return match(np.fmin(prices, TOO_MUCH))
