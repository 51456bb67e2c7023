"""From the points of a latency study to its files: what Figs. 4 and 5 have in common."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from hsfl.experiments.latency import PAPER, SAMPLES_PER_CLIENT, Axis, LatencyStudy, run_points, shares_cuts
from hsfl.experiments.latency_report import (
    NAMES,
    LatencyRow,
    figure,
    mean_s,
    ratio_table,
    read_rows,
    value_tables,
    write_rows,
)
from hsfl.experiments.shared import Outcome, Say, Trend, machine, trend_table, write_text
from hsfl.report.figure_style import save


def make(
    name: str,
    title: str,
    wanted: LatencyStudy,
    find_trends: Callable[[LatencyStudy, Sequence[LatencyRow]], list[Trend]],
    out: Path,
    say: Say,
) -> Outcome:
    """Solve what is missing of a study, then write its CSV, figure and Markdown, all called `name`."""
    run_points(wanted, out, say)
    rows = read_rows(wanted, out)
    trends = find_trends(wanted, rows)
    files = [
        write_rows(rows, out / f"{name}.csv"),
        *save(figure(wanted, rows, short_note(wanted)), out / name),
    ]
    text = (
        f"### {title}\n\n![{title}]({name}.png)\n\n"
        + trend_table(trends)
        + f"\n{settings_note(wanted)} {machine()}\n\n"
        + "Seconds of a round, mean over fleets ± half of the 95 % interval, on fresh channels:\n\n"
        + value_tables(wanted, rows)
        + "\nIn pairs, fleet by fleet:\n\n"
        + ratio_table(wanted, rows)
        + f"\n{shared_cuts_note(wanted)}\n"
    )
    return Outcome(name, write_text(out / f"{name}.md", text), files, trends)


def lowest(wanted: LatencyStudy, rows: Sequence[LatencyRow]) -> Trend:
    """The values at which no policy has a shorter mean round than `proposed`, up to the solver's proven gap."""
    places = [(axis, value) for axis in wanted.axes for value in axis.values]
    tolerance = 1 + wanted.base.allocation.gap
    wins = 0
    beaten: set[str] = set()
    for axis, value in places:
        ours = mean_s(rows, axis, value, "proposed").mean or np.inf
        better = {
            name for name in wanted.policies if (mean_s(rows, axis, value, name).mean or np.inf) * tolerance < ours
        }
        wins, beaten = wins + (not better), beaten | better
    by = f"; beaten by {say_names(sorted(beaten))} at the others" if beaten else ""
    others = say_names(name for name in wanted.policies if not shares_cuts(name))
    ours_says = (
        f"lowest mean on fresh channels at {wins} of {len(places)} points{by}. Only {others} could beat it: the rest "
        "share its cuts"
    )
    return Trend("the proposed algorithm has the lowest latency of all", ours_says, not beaten)


def say_names(policies: Iterable[str]) -> str:
    """Titles of policies as a phrase, such as: RCLS, SCLS and ECFA."""
    *most, last = (NAMES[name] for name in policies)
    return f"{', '.join(most)} and {last}" if most else last


def change(series: np.ndarray) -> float:
    """How much the round changes from the first value of an axis to the last, as a fraction of the first."""
    return float(series[-1] / series[0] - 1)


def say_change(fraction: float, axis: Axis) -> str:
    """A phrase for a change of the proposed round, as a fraction, along an axis."""
    first, last = axis.values[0] / axis.unit, axis.values[-1] / axis.unit
    return f"proposed: {100 * fraction:+.1f} % from {first:g} to {last:g}, {axis.title}"


def short_note(wanted: LatencyStudy) -> str:
    """A phrase on what means and intervals are over."""
    return (
        f"mean and 95 % interval over {wanted.num_fleets} fleets, {wanted.num_channels} fresh channels each; cuts planned "
        f"on {wanted.base.allocation.samples} other samples"
    )


def settings_note(wanted: LatencyStudy) -> str:
    """A paragraph with the settings, the machine and the versions behind the numbers."""
    fleet, network = wanted.base.fleet, wanted.base.network
    words = (
        f"n = {wanted.num_fleets} fleets x {wanted.num_channels} channels a point. ResNet-18 on 3x32x32, "
        f"{fleet.num_clients} clients with {SAMPLES_PER_CLIENT:,} samples each in batches of "
        f"{wanted.base.train.batch_size}, cycles uniform in {fleet.cpu_hz[0]:g} to {fleet.cpu_hz[1]:g} with floor "
        f"{fleet.cpu_floor_hz:g}, {fleet.max_power_w[0]:g} to {fleet.max_power_w[1]:g} W, max_cut uniform in 3 to 10, "
        f"{network.num_subchannels} subchannels, gains |N(0, 1)| floored at {network.gain_floor:g}, tau none. Cuts planned "
        f"on {wanted.base.allocation.samples} samples, latency on fresh draws (both in the CSV)."
    )
    if PAPER in wanted.policies:
        words += (
            " The paper's solver, on every fleet and channel: the proposed cuts, one F step by multipliers for an even "
            "first P, then one exact P step for that F."
        )
    return words


def shared_cuts_note(wanted: LatencyStudy) -> str:
    """A paragraph on which comparisons are findings and which ones only check the solver."""
    same = say_names(name for name in wanted.policies if name != "proposed" and shares_cuts(name))
    return (
        f"{same} have the proposed cuts and give away part of the optimal allocation, so they can never be shorter than "
        f"proposed by more than a solve's gap ({100 * wanted.base.allocation.gap:g} %): that they are not is a check of the "
        "solver and no finding. How much longer they take is the finding."
    )
