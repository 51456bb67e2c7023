"""Fig. 4: the latency of a single round against bandwidth, the main server's cycles and its transmit power."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hsfl.config import RunConfig
from hsfl.errors import known
from hsfl.experiments import latency
from hsfl.experiments.latency import PAPER, SIX, Axis, Study
from hsfl.experiments.latency_report import (
    NAMES,
    Row,
    drawn_policies,
    figure,
    mean_s,
    ratio_table,
    read_rows,
    series_s,
    value_tables,
    write_rows,
)
from hsfl.experiments.shared import FORMATS, SCALES, Outcome, Say, Trend, machine, trend_table, write_text
from hsfl.report.figure import save

# The paper draws its axes without numbers that we know of; each of ours holds the paper's setting (10 MHz, 100e10, 100 W).
BANDWIDTH = Axis("network.subchannel_hz", (0.5e6, 1e6, 1.5e6, 2e6, 2.5e6, 3e6), "total bandwidth (MHz)", 1e5)
CYCLES = Axis(
    "network.main_hz", (10e10, 25e10, 50e10, 100e10, 150e10, 200e10), "main server's cycles (1e10 per second)", 1e10
)
SENSITIVE = 0.1  # of the latency over an axis; the paper gives no number
POWER = Axis("network.main_power_w", (25.0, 50.0, 100.0, 150.0, 200.0, 250.0), "main server's power (W)")


def study(scale: str, num_seeds: int | None = None) -> Study:
    """The fleets and values of a scale; --seeds may ask for more fleets."""
    known("scale", scale, SCALES)
    if scale == "smoke":
        axes = tuple(Axis(a.field, a.values[::2], a.title, a.unit) for a in (BANDWIDTH, CYCLES, POWER))
        return Study(latency.paper_base(4), axes, SIX, max(2, num_seeds or 0), 3)
    fleets, channels, paper_fleets = (10, 10, 1) if scale == "quick" else (30, 20, 3)
    return Study(
        latency.paper_base(10), (BANDWIDTH, CYCLES, POWER), SIX, max(fleets, num_seeds or 0), channels, paper_fleets,
        paper_limit_s=90.0,
    )  # fmt: skip


def configs(scale: str, num_seeds: int | None = None) -> list[RunConfig]:
    """One config for each fleet and value."""
    return [point.config for point in latency.points(study(scale, num_seeds)) if PAPER not in point.policies]


def run(out: Path, scale: str, num_seeds: int | None, say: Say) -> Outcome:
    wanted = study(scale, num_seeds)
    latency.run_points(wanted, out, say)
    return draw(out, wanted)


def draw(out: Path, wanted: Study) -> Outcome:
    """CSV, figure and table from the points in the folder."""
    rows = read_rows(wanted, out)
    trends = find_trends(wanted, rows)
    note = settings_note(wanted)
    files = [write_rows(rows, out / "fig4.csv"), *save(figure(wanted, rows, short_note(wanted)), out / "fig4", FORMATS)]
    text = (
        "### Fig. 4: latency of a single round\n\n![Fig. 4](fig4.png)\n\n"
        + trend_table(trends)
        + f"\n{note} {machine()}\n\n"
        + "Seconds of a round, mean over fleets ± half of the 95 % interval, on fresh channels:\n\n"
        + value_tables(wanted, rows)
        + "\nIn pairs, fleet by fleet:\n\n"
        + ratio_table(wanted, rows)
    )
    return Outcome("fig4", write_text(out / "fig4.md", text), files, trends)


def find_trends(wanted: Study, rows: Sequence[Row]) -> list[Trend]:
    bandwidth, cycles, power = (change(series_s(rows, axis)) for axis in wanted.axes)
    return [
        lowest(wanted, rows),
        Trend("latency falls with bandwidth", say_change(bandwidth, wanted.axes[0]), falls(rows, wanted.axes[0])),
        Trend(
            "latency is sensitive to the main server's cycles, especially where they are few",
            f"{say_change(cycles, wanted.axes[1])}, {100 * first_step(series_s(rows, wanted.axes[1])):+.1f} % in the first step",
            falls(rows, wanted.axes[1])
            and cycles < -SENSITIVE
            and first_step(series_s(rows, wanted.axes[1])) < 0.5 * cycles,
        ),
        Trend(
            "the main server's power has a slight impact",
            say_change(power, wanted.axes[2]),
            abs(power) < 0.5 * min(abs(bandwidth), abs(cycles)),
        ),
    ]


def lowest(wanted: Study, rows: Sequence[Row]) -> Trend:
    """Where the proposed mean is the lowest of all; equal to within the solver's gap counts."""
    places = [(axis, value) for axis in wanted.axes for value in axis.values]
    tolerance = 1 + wanted.base.allocation.gap
    wins = 0
    beaten: set[str] = set()
    for axis, value in places:
        ours = mean_s(rows, axis, value, "proposed").mean or np.inf
        better = {
            name
            for name in drawn_policies(wanted)
            if (mean_s(rows, axis, value, name).mean or np.inf) * tolerance < ours
        }
        wins, beaten = wins + (not better), beaten | better
    by = f"; beaten by {', '.join(NAMES[name] for name in sorted(beaten))} at the others" if beaten else ""
    ours_says = f"lowest mean on fresh channels at {wins} of {len(places)} points{by}"
    return Trend("the proposed algorithm has the lowest latency of all", ours_says, not beaten)


def change(series: np.ndarray) -> float:
    """From the first to the last value, as a fraction."""
    return float(series[-1] / series[0] - 1)


def first_step(series: np.ndarray) -> float:
    """From the first value to the second, as a fraction."""
    return float(series[1] / series[0] - 1)


def say_change(fraction: float, axis: Axis) -> str:
    first, last = axis.values[0] / axis.unit, axis.values[-1] / axis.unit
    return f"proposed: {100 * fraction:+.1f} % from {first:g} to {last:g}, {axis.title}"


def falls(rows: Sequence[Row], axis: Axis) -> bool:
    return bool((np.diff(series_s(rows, axis)) < 0).all())


def short_note(wanted: Study) -> str:
    return (
        f"mean and 95 % interval over {wanted.num_fleets} fleets, {wanted.num_channels} fresh channels each; cuts planned "
        f"on {wanted.base.allocation.samples} other samples"
    )


def settings_note(wanted: Study) -> str:
    """What the numbers were made with."""
    fleet, network = wanted.base.fleet, wanted.base.network
    words = (
        f"n = {wanted.num_fleets} fleets x {wanted.num_channels} channels a point. ResNet-18 on 3x32x32, "
        f"{fleet.num_clients} clients with {latency.SAMPLES_PER_CLIENT:,} samples each in batches of "
        f"{wanted.base.train.batch_size}, cycles uniform in {fleet.cpu_hz[0]:g} to {fleet.cpu_hz[1]:g} with floor "
        f"{fleet.cpu_floor_hz:g}, {fleet.max_power_w[0]:g} to {fleet.max_power_w[1]:g} W, max_cut uniform in 3 to 10, "
        f"{network.num_subchannels} subchannels, gains |N(0, 1)| floored at {network.gain_floor:g}, tau none. Cuts planned "
        f"on {wanted.base.allocation.samples} samples, latency on fresh draws (both in the CSV)."
    )
    if wanted.paper_fleets:
        words += (
            f" The paper's solver (genetic algorithm for cuts, multipliers and SCIP in turn, at most "
            f"{wanted.paper_limit_s:g} s a round) was run on {wanted.paper_fleets} of the fleets, {wanted.paper_channels} "
            "channel each: its curve is the proposed one times the ratio there."
        )
    return words
