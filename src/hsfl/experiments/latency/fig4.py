"""Fig. 4: the latency of a single round against bandwidth, the main server's cycles and its transmit power."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hsfl.errors import known_name
from hsfl.experiments.common import SCALES, Outcome, Say, Trend
from hsfl.experiments.latency import latency_study
from hsfl.experiments.latency.latency_report import (
    LatencyRow,
    change,
    lowest,
    make_latency_figure,
    say_change,
    series_s,
)
from hsfl.experiments.latency.latency_study import PAPER, SIX, Axis, LatencyStudy

# The paper draws its axes without numbers that we know of; each of ours holds the paper's setting (10 MHz, 100e10, 100 W).
BANDWIDTH = Axis("network.subchannel_hz", (0.5e6, 1e6, 1.5e6, 2e6, 2.5e6, 3e6), "total bandwidth (MHz)", 1e5)
CYCLES = Axis(
    "network.main_hz", (10e10, 25e10, 50e10, 100e10, 150e10, 200e10), "main server's cycles (1e10 per second)", 1e10
)
POWER = Axis("network.main_power_w", (25.0, 50.0, 100.0, 150.0, 200.0, 250.0), "main server's power (W)")
POLICIES = (*SIX, PAPER)
SENSITIVE = 0.1  # of the latency, from one value of an axis to the next; the paper gives no number


def fig4_study(scale: str, num_seeds: int | None = None) -> LatencyStudy:
    """The fleets and values of a scale; num_seeds may ask for more fleets."""
    known_name("scale", scale, SCALES)
    axes = (BANDWIDTH, CYCLES, POWER)
    if scale == "smoke":
        few = tuple(Axis(a.field, a.values[::2], a.title, a.unit) for a in axes)
        return LatencyStudy(latency_study.paper_base(4), few, POLICIES, max(2, num_seeds or 0), 3)
    fleets, channels = (10, 10) if scale == "quick" else (30, 20)
    return LatencyStudy(latency_study.paper_base(10), axes, POLICIES, max(fleets, num_seeds or 0), channels)


def reproduce_fig4(out: Path, scale: str, num_seeds: int | None, say: Say) -> Outcome:
    """Solve what is missing, and write the figure, its CSV and its tables into `out`."""
    return make_latency_figure(
        "fig4", "Fig. 4: latency of a single round", fig4_study(scale, num_seeds), _fig4_trends, out, say
    )


def _fig4_trends(study: LatencyStudy, rows: Sequence[LatencyRow]) -> list[Trend]:
    """The paper's claims on bandwidth, cycles and power beside what the rows say."""
    bandwidth, cycles, power = (series_s(rows, axis) for axis in study.axes)
    step = _steps(cycles)
    return [
        lowest(study, rows),
        Trend(
            "latency falls with bandwidth",
            say_change(change(bandwidth), study.axes[0]),
            bool((np.diff(bandwidth) < 0).all()),
        ),
        Trend(
            "latency is sensitive to the main server's cycles",
            f"{say_change(change(cycles), study.axes[1])}; {_say_steps(step, study.axes[1])}",
            bool((step < -SENSITIVE).all()),
        ),
        Trend(
            "especially where they are few",
            f"the first step is {100 * step[0] / change(cycles):.0f} % of it",
            bool(step[0] < -SENSITIVE and step[0] < 0.5 * change(cycles)),
        ),
        Trend(
            "the main server's power has a slight impact",
            say_change(change(power), study.axes[2]),
            abs(change(power)) < 0.5 * min(abs(change(bandwidth)), abs(change(cycles))),
        ),
    ]


def _steps(series: np.ndarray) -> np.ndarray:
    """How much the round gets shorter from each value to the next, as fractions."""
    return series[1:] / series[:-1] - 1


def _say_steps(step: np.ndarray, axis: Axis) -> str:
    """A phrase that says up to which value a step on the axis still shortens the round notably."""
    step_texts = ", ".join(f"{100 * fraction:+.1f}" for fraction in step)
    far = [value for value, fraction in zip(axis.values[1:], step) if fraction < -SENSITIVE]
    where = f"below {max(far) / axis.unit:g} only" if far else "nowhere"
    return f"step by step {step_texts} %: more than {100 * SENSITIVE:g} % {where}"
