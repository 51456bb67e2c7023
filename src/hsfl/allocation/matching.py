"""Linear assignment: the cheapest way to give every row a column of its own, by shortest augmenting paths, O(n^3)."""

import math

import numpy as np

from hsfl.allocation.compiled import compiled

Array = np.ndarray
TOO_MUCH = 4.0  # a price this high is as good as infinite, since sums of prices matter up to 1


@compiled
def match(cost: Array) -> tuple[float, Array]:
    """(least sum, the column [n] of each row) for cost [n, m], n <= m. Hungarian method with duals.

    Costs may be infinite; where no assignment has a finite sum, the sum is infinite and the columns are -1.
    """
    n, m = cost.shape
    u, v = np.zeros(n + 1), np.zeros(m + 1)
    row_of = np.zeros(m + 1, np.int64)  # the row of each column, counted from 1; 0: the column is free
    way = np.zeros(m + 1, np.int64)
    for i in range(1, n + 1):
        row_of[0] = i
        at = 0
        least = np.full(m + 1, math.inf)
        used = np.zeros(m + 1, np.bool_)
        while True:
            used[at] = True
            row, delta, new = row_of[at], math.inf, -1
            for j in range(1, m + 1):
                if used[j]:
                    continue
                reduced = cost[row - 1, j - 1] - u[row] - v[j]
                if reduced < least[j]:
                    least[j] = reduced
                    way[j] = at
                if least[j] < delta:
                    delta, new = least[j], j
            if new < 0:
                return math.inf, np.full(n, -1)
            for j in range(m + 1):
                if used[j]:
                    u[row_of[j]] += delta
                    v[j] -= delta
                else:
                    least[j] -= delta
            at = new
            if row_of[at] == 0:
                break
        while at != 0:
            row_of[at] = row_of[way[at]]
            at = way[at]
    column = np.empty(n, np.int64)
    total = 0.0
    for j in range(1, m + 1):
        if row_of[j] > 0:
            column[row_of[j] - 1] = j - 1
            total += cost[row_of[j] - 1, j - 1]
    return total, column


@compiled
def least_match(prices: Array) -> tuple[float, Array]:
    """The least sum of prices [n, m] >= 0, with TOO_MUCH in place of all higher prices, and the columns [n].

    Far higher prices would cost the other prices their digits in the sum.
    """
    return match(np.minimum(prices, TOO_MUCH))
