"""Intervals and verdicts: ratios over fleets by bootstrap, differences over fleets and training seeds by a two-way analysis of variance.

Legend: F fleets, S training seeds. A value on a fleet with a seed is modelled as mean + fleet + seed + rest, all three random, so that an
interval is for other fleets of the same kind and other trainings, and not for these alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hsfl.report.curves import Estimate
from hsfl.report.tables import ValueCell
from hsfl.rng import stream

Array = np.ndarray
RESAMPLES = 10_000
YES, NO, UNDECIDED = "yes", "no", "undecided"
LEVEL = 0.05  # of an interval, and of all verdicts of a table together
LEAST_P = 1e-100  # smaller p values are not told apart


@dataclass(frozen=True)
class Ratio:
    """The geometric mean of ratios over fleets, and its 95 % interval by bootstrap over fleets."""

    mean: float
    low: float
    high: float
    num_fleets: int
    smallest: float
    largest: float
    below_one_per_cent: float  # share of fleets whose ratio is less than 1.01

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def cell(self, with_range: bool = False, more: str = "") -> ValueCell:
        """The ratio as a cell of a table, with its smallest and largest value over fleets, and more words, where they are wanted."""
        details = "; ".join(filter(None, (f"{self.smallest:.2f} to {self.largest:.2f}" if with_range else "", more)))
        estimate = Estimate(self.mean, self.low, self.high, self.num_fleets)
        return ValueCell(f"{self} ({details})" if details else str(self), estimate)


def ratio_over_fleets(ratios: Sequence[float] | Array) -> Ratio:
    """Ratios [F], one for each fleet. Resamples are drawn from a stream of their own, so that the interval is always the same."""
    logs = np.log(np.asarray(ratios, float))
    low, high = _bootstrap(logs)
    return Ratio(
        float(np.exp(logs.mean())),
        float(np.exp(low)),
        float(np.exp(high)),
        len(logs),
        float(np.exp(logs.min())),
        float(np.exp(logs.max())),
        float((logs < np.log(1.01)).mean()),
    )


def _bootstrap(values: Array, resamples: int = RESAMPLES) -> tuple[float, float]:
    """The 2.5 and 97.5 % quantiles of the mean of resampled values [F]."""
    picks = stream(0, "bootstrap", len(values)).integers(0, len(values), (resamples, len(values)))
    low, high = np.quantile(values[picks].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


# ---- fleets and seeds


def two_way_half_width(values: Array, level: float = LEVEL) -> Array:
    """Half of the interval of the mean of values [F, S, ...] over both fleets and seeds; NaN where there is one value alone.

    The variance of the mean is (MS_fleet + MS_seed - MS_rest) / (F S). Each mean square is multiplied by the squared t quantile of its
    own degrees of freedom, and the sum is at least its largest part: so the interval is never narrower than that over seeds alone, or
    over fleets alone. One t quantile for the sum, with Satterthwaite's degrees of freedom, would be too narrow for few seeds: at
    S = 3 it covers 92 to 93 % where fleets and seeds vary alike, and at the level 0.0042 it errs five times too often.
    Where there is one seed, only fleets vary, and the interval is for that training; where there is one fleet, only seeds do.
    """
    num_fleets, num_seeds = values.shape[:2]
    dof = {"fleet": num_fleets - 1, "seed": num_seeds - 1, "rest": (num_fleets - 1) * (num_seeds - 1)}
    parts = {
        name: square * _t_quantile(dof[name], level) ** 2
        for name, square in zip(dof, mean_squares(values))
        if dof[name] > 0
    }
    if not parts:
        return np.full(values.shape[2:], np.nan)
    rest = parts.pop("rest", 0.0)
    largest, total = np.maximum.reduce(list(parts.values())), np.sum(list(parts.values()), axis=0)
    return np.asarray(np.sqrt(np.maximum(total - rest, largest) / (num_fleets * num_seeds)))


def mean_squares(values: Array) -> tuple[Array, Array, Array]:
    """The mean squares of fleets, seeds and the rest, of values [F, S, ...]; those of fleets estimate S var(fleet) + var(rest)."""
    num_fleets, num_seeds = values.shape[:2]
    by_fleet, by_seed = values.mean(axis=1, keepdims=True), values.mean(axis=0, keepdims=True)
    mean = by_seed.mean(axis=1, keepdims=True)
    rest = values - by_fleet - by_seed + mean
    with np.errstate(invalid="ignore", divide="ignore"):  # no degree of freedom: 0 / 0, which nobody reads
        return (
            num_seeds * ((by_fleet - mean) ** 2).sum(axis=(0, 1)) / np.float64(num_fleets - 1),
            num_fleets * ((by_seed - mean) ** 2).sum(axis=(0, 1)) / np.float64(num_seeds - 1),
            (rest**2).sum(axis=(0, 1)) / np.float64((num_fleets - 1) * (num_seeds - 1)),
        )


def _t_quantile(dof: int, level: float) -> float:
    """Student's t that is exceeded in either direction with probability `level`."""
    from scipy.stats import t  # here, because it takes half a second to load

    return float(t.isf(level / 2, dof))


def over_fleets_and_seeds(values: Array) -> Estimate:
    """The mean of values [F, S] and its 95 % interval. A missing value (NaN) is left out, and then there is no interval: those
    that are left are a selection."""
    known_values = values[np.isfinite(values)]
    if not len(known_values):
        return Estimate(None, None, None, 0)
    mean, half, num_seeds = float(known_values.mean()), float(two_way_half_width(values)), values.shape[1]
    if not np.isfinite(half):
        return Estimate(mean, None, None, num_seeds)
    return Estimate(mean, mean - half, mean + half, num_seeds)


def p_value(values: Array) -> float:
    """The level at which the interval of the mean of values [F, S] just reaches zero."""
    mean = abs(float(values.mean()))
    if mean == 0.0 or two_way_half_width(values, LEAST_P) <= mean:
        return 1.0 if mean == 0.0 else LEAST_P
    low, high = np.log(LEAST_P), 0.0
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if two_way_half_width(values, float(np.exp(middle))) > mean else (low, middle)
    return float(np.exp(high))


# ---- verdicts


@dataclass(frozen=True)
class Verdict:
    """Whether a difference is above zero."""

    difference: Estimate
    corrected_p: (
        float | None
    )  # by Holm, over all verdicts of the table; None: not tested, because there is one training seed
    answer: str  # yes, no or undecided


def verdicts(differences: Sequence[Array]) -> list[Verdict]:
    """Verdicts on differences, each [F, S], that are read together: yes (above zero) or no (below zero) where Holm's correction over all
    of them leaves p below 5 %, else undecided. One training seed decides nothing, on however many fleets."""
    tested = [index for index, values in enumerate(differences) if values.shape[1] > 1]
    corrected = dict(zip(tested, holm([p_value(differences[index]) for index in tested])))
    return [_verdict(values, corrected.get(index)) for index, values in enumerate(differences)]


def _verdict(values: Array, corrected_p: float | None) -> Verdict:
    decided = corrected_p is not None and corrected_p < LEVEL
    answer = (YES if values.mean() > 0 else NO) if decided else UNDECIDED
    return Verdict(over_fleets_and_seeds(values), corrected_p, answer)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's corrected p values, in the order given: the i-th smallest of m, times m - i + 1, at least as large as those before it, at
    most 1. Claims with less than 0.05 are all right with probability 95 % or more, however they depend on each other."""
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, (len(p_values) - rank) * p_values[index])
        corrected[index] = min(1.0, float(largest))
    return corrected
