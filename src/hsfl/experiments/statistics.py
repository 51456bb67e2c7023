"""Intervals and verdicts: over fleets by bootstrap, over training seeds by Student's t."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hsfl.report.curves import Estimate, estimate
from hsfl.rng import stream

Array = np.ndarray
RESAMPLES = 10_000
YES, NO, UNDECIDED = "yes", "no", "undecided"


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


def ratio_over_fleets(ratios: Sequence[float] | Array) -> Ratio:
    """Ratios [F], one for each fleet. Resamples are drawn from a stream of their own, so that the interval is always the same."""
    logs = np.log(np.asarray(ratios, float))
    low, high = bootstrap(logs)
    return Ratio(
        float(np.exp(logs.mean())),
        float(np.exp(low)),
        float(np.exp(high)),
        len(logs),
        float(np.exp(logs.min())),
        float(np.exp(logs.max())),
        float((logs < np.log(1.01)).mean()),
    )


def bootstrap(values: Array, resamples: int = RESAMPLES) -> tuple[float, float]:
    """The 2.5 and 97.5 % quantiles of the mean of resampled values [F]."""
    picks = stream(0, "bootstrap", len(values)).integers(0, len(values), (resamples, len(values)))
    low, high = np.quantile(values[picks].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True)
class Verdict:
    """Whether a difference is above zero, by its interval over training seeds."""

    difference: Estimate
    answer: str  # yes, no or undecided


def verdict(differences: Sequence[float]) -> Verdict:
    """One difference for each training seed. Yes if the 95 % interval lies above zero, no if below, else undecided; one seed
    has no interval and decides nothing."""
    found = estimate(differences)
    if found.low is None or found.high is None or found.low <= 0 <= found.high:
        return Verdict(found, UNDECIDED)
    return Verdict(found, YES if found.low > 0 else NO)
