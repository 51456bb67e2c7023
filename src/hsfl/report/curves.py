"""Curves of a run over simulated seconds or rounds, and means over seeds with Student's t intervals.

Legend: n points of a curve, G points of a grid, S seeds. Unknown is NaN in arrays and None in records.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hsfl.errors import InputError, known_name
from hsfl.runs.run_folder.records import RECORDED, ROUND_S, RoundRecord
from hsfl.tasks import ACCURACY, Metric

Array = np.ndarray

QUANTITIES = RECORDED  # of every run; a task other than classification has metrics besides
AXES = {"time": "sim_time_s", "rounds": "round"}

# The 97.5 % quantile of Student's t by degrees of freedom; between those listed, linear in 1/dof (within 0.0001).
T_DOF = (*range(1, 31), 40, 60, 120, np.inf)
T_QUANTILE = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
    *(2.0211, 2.0003, 1.9799, 1.9600),
)


@dataclass(frozen=True)
class Curve:
    """A step function: `value[i]` holds from `x[i]` until `x[i + 1]`, the last one until `end`. Unknown elsewhere."""

    x: Array  # [n], ascending
    value: Array  # [n]
    end: float

    def at(self, grid: Array) -> Array:
        """The values on a grid, [G]; NaN before the first point and after `end`."""
        grid = np.asarray(grid, float)
        if not len(self.x):
            return np.full(grid.shape, np.nan)
        step = np.searchsorted(self.x, grid, side="right") - 1
        return np.where((step >= 0) & (grid <= self.end), self.value[np.maximum(step, 0)], np.nan)


def curve(
    records: Sequence[RoundRecord],
    quantity: str = "test_accuracy",
    over: str = "time",
    end: float | None = None,
    metrics: Iterable[str] = (),
) -> Curve:
    """A quantity at the end of each round in which it is known.

    over: "time" (simulated seconds) or "rounds". metrics: those of the task, which are quantities, too.
    end: how far the last value holds; by default to the last round. A run that a budget of seconds ended still has
        its last model when the budget is spent.
    """
    known_name("quantity", quantity, [*QUANTITIES, ROUND_S, *metrics])
    x_name = AXES[known_name("axis", over, AXES)]
    points = [record for record in records if record.value(quantity) is not None]
    x = np.array([getattr(record, x_name) for record in points], float)
    value = np.array([record.value(quantity) for record in points], float)
    last = float(getattr(records[-1], x_name)) if records else 0.0
    return Curve(x, value, last if end is None else max(float(end), last))


@dataclass(frozen=True)
class Band:
    """The mean over seeds with its 95 % confidence interval, on a grid.

    The mean is NaN wherever the value of a seed is unknown, so that it is never a mean over the lucky seeds alone. The
    interval is NaN there, too, and for a single seed.
    """

    x: Array  # [G]
    mean: Array  # [G]
    low: Array  # [G]
    high: Array  # [G]
    num_known: Array  # [G] int: seeds whose value is known there
    num_seeds: int


def mean_band(curves: Sequence[Curve], grid: Array) -> Band:
    """The mean of the curves on a grid [G], with its interval; a curve for each seed."""
    if not curves:
        raise InputError("a mean needs at least one curve; got none")
    x = np.asarray(grid, float)
    values = np.stack([curve.at(x) for curve in curves])  # [S, G]
    mean = values.mean(axis=0)  # NaN where the value of a seed is
    half = half_width(values)
    num_known = np.isfinite(values).sum(axis=0)
    return Band(x, mean, mean - half, mean + half, num_known, len(curves))


def steps_of(curves: Sequence[Curve]) -> Array:
    """The grid of a mean: every x at which some curve steps, as far as all of them are known; empty if nowhere."""
    if not curves or not all(len(curve.x) for curve in curves):
        return np.empty(0)
    first, end = max(curve.x[0] for curve in curves), min(curve.end for curve in curves)
    if first > end:
        return np.empty(0)
    steps = np.unique(np.concatenate([*(curve.x for curve in curves), [end]]))
    return steps[(steps >= first) & (steps <= end)]


def time_to_target_s(records: Iterable[RoundRecord], target: float, metric: Metric = ACCURACY) -> float | None:
    """Simulated seconds to the end of the first round at which the metric is the target or better; None if never."""
    values = ((record.sim_time_s, record.value(metric.name)) for record in records)
    reached = (s for s, value in values if value is not None and (value == target or metric.is_better(value, target)))
    return next(reached, None)


@dataclass(frozen=True)
class Estimate:
    """A mean over `num` seeds and its 95 % confidence interval; None where there are too few, or where the seeds that
    count are a selection (some never reached a target), of which an interval would say too much."""

    mean: float | None
    low: float | None
    high: float | None
    num: int


def estimate(values: Iterable[float | None], ratio: bool = False) -> Estimate:
    """The mean of the values that are known, with its interval; with `ratio`, both are taken over logarithms."""
    all_values = list(values)
    numbers = np.array([value for value in all_values if value is not None], float)
    if not len(numbers):
        return Estimate(None, None, None, 0)
    numbers = np.log(numbers) if ratio else numbers
    inverse = np.exp if ratio else float
    mean, half = numbers.mean(), half_width(numbers)
    if len(numbers) < len(all_values) or not np.isfinite(half):
        return Estimate(float(inverse(mean)), None, None, len(numbers))
    return Estimate(float(inverse(mean)), float(inverse(mean - half)), float(inverse(mean + half)), len(numbers))


def half_width(values: Array) -> Array:
    """Half of the 95 % interval of the mean over the first axis, t s / sqrt(S); NaN for a single value."""
    num = len(values)
    if num < 2:
        return np.full(np.shape(values)[1:], np.nan)
    return t_quantile(num - 1) * np.std(values, axis=0, ddof=1) / np.sqrt(num)


def t_quantile(dof: int) -> float:
    """The 97.5 % quantile of Student's t."""
    if dof < 1:
        raise InputError(f"Student's t has {dof} degrees of freedom; an interval needs at least two values")
    return float(np.interp(-1.0 / dof, -1.0 / np.array(T_DOF, float), T_QUANTILE))
