"""Many clients in a few numbers: quantiles, and how often each whole number occurs."""

import numpy as np

from hsfl.formats import QUANTILES, all_rounded

DIGITS = 7


def quantiles(values: np.ndarray) -> list[float]:
    """The quantiles of values [n], from the least to the largest, [Q]; zeros where there are no values."""
    return all_rounded(np.percentile(values, QUANTILES) if len(values) else np.zeros(len(QUANTILES)), DIGITS)


def counted(values: np.ndarray) -> dict[str, int]:
    """How often each whole number occurs, by the number."""
    found, counts = np.unique(np.asarray(values, int), return_counts=True)
    return {str(value): int(count) for value, count in zip(found, counts)}
