"""Fig. 5: the latency of a single round against the heterogeneity of the devices.

Level 0 gives every device the fleet's mean cycles and power, level 1 keeps the draws; the fleet's means stay.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hsfl.errors import known_name
from hsfl.experiments.common import SCALES, Outcome, Say, Trend
from hsfl.experiments.latency import latency_study
from hsfl.experiments.latency.latency_report import (
    NAMES,
    LatencyRow,
    change,
    lowest,
    make_latency_figure,
    rows_at,
    say_change,
    series_s,
)
from hsfl.experiments.latency.latency_study import SIX, Axis, LatencyStudy

LEVELS = Axis(
    "fleet.heterogeneity", (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), "heterogeneity of cycles and power (0: equal devices)"
)
POLICIES = (*SIX, "even", "splitfed", "cpsl")


def fig5_study(scale: str, num_seeds: int | None = None) -> LatencyStudy:
    """The fleets and levels of a scale; num_seeds may ask for more fleets."""
    known_name("scale", scale, SCALES)
    if scale == "smoke":
        levels = Axis(LEVELS.field, (0.0, 0.6, 1.0), LEVELS.title)
        return LatencyStudy(latency_study.paper_base(4), (levels,), POLICIES, max(6, num_seeds or 0), 3)
    fleets, channels = (20, 10) if scale == "quick" else (60, 20)
    return LatencyStudy(latency_study.paper_base(10), (LEVELS,), POLICIES, max(fleets, num_seeds or 0), channels)


def reproduce_fig5(out: Path, scale: str, num_seeds: int | None, say: Say) -> Outcome:
    """Solve what is missing, and write the figure, its CSV and its tables into `out`."""
    return make_latency_figure(
        "fig5", "Fig. 5: latency against heterogeneity", fig5_study(scale, num_seeds), _fig5_trends, out, say
    )


def _fig5_trends(study: LatencyStudy, rows: Sequence[LatencyRow]) -> list[Trend]:
    """The paper's claims on heterogeneity beside what the rows say."""
    (axis,) = study.axes
    series = series_s(rows, axis)
    rising = {name: bool(np.all(np.diff(series_s(rows, axis, name)) > 0)) for name in study.policies}
    flat = [NAMES[name] for name, rises in rising.items() if not rises]
    not_all = f"; not at every step for {', '.join(flat)}" if flat else "; at every step, for every policy"
    gain_low, gain_high = (_advantage(study, rows, value) for value in (axis.values[0], axis.values[-1]))
    return [
        Trend("latency rises with heterogeneity", say_change(change(series), axis) + not_all, rising["proposed"]),
        lowest(study, rows),
        Trend(
            "the proposed algorithm gains most at high heterogeneity",
            f"the paper's five baselines take {100 * gain_low:+.1f} % on average at the lowest level, "
            f"{100 * gain_high:+.1f} % at the highest",
            gain_high > gain_low,
        ),
    ]


def _advantage(study: LatencyStudy, rows: Sequence[LatencyRow], value: float) -> float:
    """How much longer the paper's five baselines take on average, as a fraction."""
    (axis,) = study.axes
    ratios = [row.ratio for name in SIX[1:] for row in rows_at(rows, axis, value, name)]
    return float(np.exp(np.mean(np.log(ratios)))) - 1
