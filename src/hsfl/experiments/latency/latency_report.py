"""From the points of a latency study to its files: rows of a CSV, means with intervals over fleets, tables, panels and claims; what Figs. 4 and 5
have in common.

Fleets differ far more than policies do, so policies are compared in pairs, fleet by fleet: the ratio of a policy's round to the
proposed one's.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hsfl.experiments.common import Outcome, Say, Trend, machine, say_mean, trend_table, write_text
from hsfl.experiments.latency.latency_study import (
    PAPER,
    SAMPLES_PER_CLIENT,
    Axis,
    LatencyStudy,
    point_name,
    read_point,
    run_points,
    shares_cuts,
)
from hsfl.files import write_csv
from hsfl.report.curves import Estimate, estimate
from hsfl.report.figure_style import FAINT, STYLE, add_side_legend, matplotlib, save_figure
from hsfl.report.tables import SummaryTable, ValueCell, markdown_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {
    "proposed": "proposed",
    "rcls": "RCLS",
    "scls": "SCLS",
    "ecfa": "ECFA",
    "gtra": "GTRA",
    "etra": "ETRA",
    "even": "all even",
    "splitfed": "SplitFed's choices",
    "cpsl": "CPSL's choices",
    PAPER: "the paper's solver",
}
# Colour, marker, dashes: told apart by colour-blind eyes and without colour.
LOOKS: dict[str, tuple[str, str, Any]] = {
    "proposed": ("#D55E00", "o", "solid"),
    "rcls": ("#0072B2", "s", (0, (5, 1.5))),
    "scls": ("#009E73", "^", (0, (4, 1, 1, 1))),
    "ecfa": ("#CC79A7", "D", (0, (3, 1.5))),
    "gtra": ("#56B4E9", "v", (0, (1, 1.2))),
    "etra": ("#E69F00", "P", (0, (7, 2))),
    "even": ("#555555", "x", (0, (2, 1))),
    "splitfed": ("#882255", "<", (0, (6, 1, 2, 1))),
    "cpsl": ("#999933", ">", (0, (3, 3))),
    PAPER: ("#000000", "*", (0, (1, 3))),
}
LONGER_TICKS = (0, 2, 5, 10, 20, 50, 100, 200, 500)
CSV_FIELDS = (
    "field",
    "value",
    "seed",
    "policy",
    "plan_mean_s",
    "fresh_mean_s",
    "plan_draws",
    "fresh_draws",
    "plan_gap",
    "cuts",
)


@dataclass(frozen=True)
class LatencyRow:
    """One policy on one fleet at one value: mean rounds over the draws of the channel."""

    field: str
    value: float
    seed: int
    policy: str
    plan_mean_s: float  # on the samples that the cuts were planned on
    fresh_mean_s: float  # on channels that the plan never saw
    plan_draws: int
    fresh_draws: int
    plan_gap: float  # of the plan's cuts, proven
    cuts: str
    ratio: float  # to the proposed round on the same fresh draws
    plan_ratio: float


def read_latency_rows(study: LatencyStudy, folder: Path) -> list[LatencyRow]:
    """The rows of all points of a study, from its folder."""
    rows = []
    for axis in study.axes:
        for value in axis.values:
            for seed in study.seeds:
                point = read_point(folder, point_name(study, axis, value), seed)
                rows += [_row(axis, value, point, name) for name in study.policies]
    return rows


def _row(axis: Axis, value: float, point: dict[str, Any], name: str) -> LatencyRow:
    rounds, proposed = point["rounds"][name], point["rounds"]["proposed"]
    plan_s, fresh_s = rounds["plan_s"], rounds["fresh_s"]
    return LatencyRow(
        axis.field,
        value,
        point["seed"],
        name,
        float(np.mean(plan_s)),
        float(np.mean(fresh_s)),
        len(plan_s),
        len(fresh_s),
        point["plan"]["gap"],
        " ".join(map(str, rounds["cuts"])),
        float(np.mean(fresh_s) / np.mean(proposed["fresh_s"])),
        float(np.mean(plan_s) / np.mean(proposed["plan_s"])),
    )


def write_rows(rows: Sequence[LatencyRow], path: Path) -> Path:
    """Write the rows as a CSV file; returns its path."""
    return write_csv(path, CSV_FIELDS, ([getattr(row, name) for name in CSV_FIELDS] for row in rows))


def rows_at(rows: Sequence[LatencyRow], axis: Axis, value: float, policy: str) -> list[LatencyRow]:
    """The rows of one policy at one value of an axis, one for each fleet."""
    return [row for row in rows if (row.field, row.value, row.policy) == (axis.field, value, policy)]


def mean_s(rows: Sequence[LatencyRow], axis: Axis, value: float, policy: str) -> Estimate:
    """The mean round of a policy in seconds, over fleets, on channels that the plan never saw."""
    return estimate(row.fresh_mean_s for row in rows_at(rows, axis, value, policy))


def series_s(rows: Sequence[LatencyRow], axis: Axis, policy: str = "proposed") -> np.ndarray:
    """The mean rounds of a policy at every value of an axis, in seconds."""
    return np.array([mean_s(rows, axis, value, policy).mean for value in axis.values], float)


# ---- tables


def _value_tables(name: str, study: LatencyStudy, rows: Sequence[LatencyRow]) -> list[SummaryTable]:
    """For each axis the mean round of every policy at every value. name: of the figure."""
    tables = []
    for axis in study.axes:
        header = [axis.title, *(NAMES[name] for name in study.policies)]
        body = [
            [f"{value / axis.unit:g}", *(say_mean(mean_s(rows, axis, value, policy)) for policy in study.policies)]
            for value in axis.values
        ]
        title, note = (
            f"Seconds of a round, {axis.title}",
            f"{_fleets_note(study)}; mean ± half of the 95 % interval over fleets.",
        )
        tables.append(SummaryTable(f"{name}-{axis.field.split('.')[-1]}", title, header, body, note))
    return tables


def _fleets_note(study: LatencyStudy) -> str:
    return f"n = {study.num_fleets} fleets, {study.num_channels} fresh channels each"


def _ratio_table(name: str, study: LatencyStudy, rows: Sequence[LatencyRow]) -> SummaryTable:
    """How much longer each policy's rounds are, in pairs fleet by fleet, each fleet's mean over all values first."""
    body = []
    for policy in study.policies[1:]:
        policy_rows = [row for row in rows if row.policy == policy]
        body.append(
            [
                NAMES[policy],
                _longer(_by_fleet(policy_rows, "plan_ratio")),
                _longer(_by_fleet(policy_rows, "ratio")),
                f"{100 * (min(row.ratio for row in policy_rows) - 1):+.1f} to {100 * (max(row.ratio for row in policy_rows) - 1):+.1f}",
                str(len({row.seed for row in policy_rows})),
            ]
        )
    header = ["policy", "longer than proposed, %: plan's samples", "fresh channels", "range of points, fresh", "fleets"]
    note = f"{_fleets_note(study)}; mean of ratios fleet by fleet [95 % interval over fleets]."
    return SummaryTable(
        f"{name}-policies", "How much longer rounds are than with the proposed policy", header, body, note
    )


def _by_fleet(rows: Sequence[LatencyRow], quantity: str) -> Estimate:
    seeds = sorted({row.seed for row in rows})
    logs = [float(np.mean([np.log(getattr(row, quantity)) for row in rows if row.seed == seed])) for seed in seeds]
    return estimate(np.exp(logs), ratio=True)


def _longer(ratio: Estimate) -> ValueCell:
    """`+36.2 [+27.3, +45.6]` per cent; the mean alone where there is no interval."""
    value = _per_cent_longer(ratio)
    interval = "" if value.low is None else f" [{value.low:+.1f}, {value.high:+.1f}]"
    return ValueCell(f"{value.mean:+.1f}{interval}", value)


def _per_cent_longer(ratio: Estimate) -> Estimate:
    mean, low, high = (None if x is None else 100 * (x - 1) for x in (ratio.mean, ratio.low, ratio.high))
    return Estimate(mean, low, high, ratio.num)


# ---- figure


def _latency_figure(study: LatencyStudy, rows: Sequence[LatencyRow], note: str) -> "Figure":
    """A column for each axis: seconds above, and below how much longer than proposed, in pairs, fleet by fleet."""
    mpl = matplotlib()
    num = len(study.axes)
    with mpl.rc_context(STYLE):
        result = mpl.figure.Figure(figsize=(4.2 * num + 2.2, 6.4), layout="constrained")
        panels = result.subplots(2, num, squeeze=False, sharex="col")
        for place, axis in enumerate(study.axes):
            above, below = panels[:, place]
            for name in study.policies:
                _curve(above, axis, name, [mean_s(rows, axis, value, name) for value in axis.values])
                if name != "proposed":
                    _curve(below, axis, name, [longer(rows, axis, value, name) for value in axis.values])
            above.set_ylim(bottom=min(0.0, above.get_ylim()[0]))
            below.set_yscale("symlog", linthresh=10, linscale=1.2)
            below.set_ylim(bottom=min(-0.5, below.dataLim.y0))
            ticks = [*(-tick for tick in LONGER_TICKS[:0:-1] if -tick >= below.get_ylim()[0]), *LONGER_TICKS]
            below.set_yticks(ticks, [str(tick) for tick in ticks])
            below.minorticks_off()
            below.set_xlabel(f"({'abc'[place]}) {axis.title}" if num > 1 else axis.title)
        panels[0, 0].set_ylabel("seconds of a single round")
        panels[1, 0].set_ylabel("longer than proposed (%)")
        handles = panels[0, 0].get_legend_handles_labels()
        add_side_legend(result, *handles)
        result.supxlabel(note, fontsize=7.5, color=FAINT)
    return result


def longer(rows: Sequence[LatencyRow], axis: Axis, value: float, policy: str) -> Estimate:
    """Per cent above the proposed round: the mean of ratios fleet by fleet."""
    return _per_cent_longer(estimate((row.ratio for row in rows_at(rows, axis, value, policy)), ratio=True))


def _curve(axes: "Axes", axis: Axis, name: str, estimates: Sequence[Estimate]) -> None:
    colour, marker, dashes = LOOKS[name]
    x = np.array(axis.values) / axis.unit
    low, high = (np.array([getattr(value, side) for value in estimates], float) for side in ("low", "high"))
    if np.isfinite(low).all():
        axes.fill_between(x, low, high, color=colour, alpha=0.10, linewidth=0)
    axes.plot(
        x,
        np.array([value.mean for value in estimates], float),
        color=colour,
        marker=marker,
        linestyle=dashes,
        linewidth=1.7,
        markersize=8 if marker == "*" else 5.5,
        markeredgecolor=colour if marker == "x" else "white",
        markeredgewidth=1.4 if marker == "x" else 0.5,
        zorder=4 if name == "proposed" else 3,
        label=NAMES[name],
    )


# ---- the whole, and the claims


def make_latency_figure(
    name: str,
    title: str,
    study: LatencyStudy,
    find_trends: Callable[[LatencyStudy, Sequence[LatencyRow]], list[Trend]],
    out: Path,
    say: Say,
) -> Outcome:
    """Solve what is missing of a study, then write its CSV, figure and Markdown, all called `name`."""
    run_points(study, out, say)
    rows = read_latency_rows(study, out)
    trends = find_trends(study, rows)
    by_value, by_policy = _value_tables(name, study, rows), _ratio_table(name, study, rows)
    files = [
        write_rows(rows, out / f"{name}.csv"),
        *save_figure(_latency_figure(study, rows, _short_note(study)), out / name),
    ]
    text = (
        f"### {title}\n\n![{title}]({name}.png)\n\n"
        + trend_table(trends)
        + f"\n{_latency_settings_note(study)} {machine()}\n\n"
        + "Seconds of a round, mean over fleets ± half of the 95 % interval, on fresh channels:\n\n"
        + "\n".join(map(markdown_rows, by_value))
        + "\nIn pairs, fleet by fleet:\n\n"
        + markdown_rows(by_policy)
        + f"\n{_shared_cuts_note(study)}\n"
    )
    return Outcome(name, write_text(out / f"{name}.md", text), files, trends, [*by_value, by_policy])


def lowest(study: LatencyStudy, rows: Sequence[LatencyRow]) -> Trend:
    """The values at which no policy has a shorter mean round than `proposed`, up to the solver's proven gap."""
    places = [(axis, value) for axis in study.axes for value in axis.values]
    tolerance = 1 + study.base.allocation.gap
    wins = 0
    beaten: set[str] = set()
    for axis, value in places:
        ours = mean_s(rows, axis, value, "proposed").mean or np.inf
        better = {
            name for name in study.policies if (mean_s(rows, axis, value, name).mean or np.inf) * tolerance < ours
        }
        wins, beaten = wins + (not better), beaten | better
    by = f"; beaten by {_say_names(sorted(beaten))} at the others" if beaten else ""
    with_own_cuts = _say_names(name for name in study.policies if not shares_cuts(name))
    finding = (
        f"lowest mean on fresh channels at {wins} of {len(places)} points{by}. Only {with_own_cuts} could beat it: the rest "
        "share its cuts"
    )
    return Trend("the proposed algorithm has the lowest latency of all", finding, not beaten)


def _say_names(policies: Iterable[str]) -> str:
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


def _short_note(study: LatencyStudy) -> str:
    """A phrase on what means and intervals are over."""
    return (
        f"mean and 95 % interval over {study.num_fleets} fleets, {study.num_channels} fresh channels each; cuts planned "
        f"on {study.base.allocation.samples} other samples"
    )


def _latency_settings_note(study: LatencyStudy) -> str:
    """A paragraph with the settings, the machine and the versions behind the numbers."""
    fleet, network = study.base.fleet, study.base.network
    note = (
        f"n = {study.num_fleets} fleets x {study.num_channels} channels a point. ResNet-18 on 3x32x32, "
        f"{fleet.num_clients} clients with {SAMPLES_PER_CLIENT:,} samples each in batches of "
        f"{study.base.train.batch_size}, cycles uniform in {fleet.cpu_hz[0]:g} to {fleet.cpu_hz[1]:g} with floor "
        f"{fleet.cpu_floor_hz:g}, {fleet.max_power_w[0]:g} to {fleet.max_power_w[1]:g} W, max_cut uniform in 3 to 10, "
        f"{network.num_subchannels} subchannels, gains |N(0, 1)| floored at {network.gain_floor:g}, tau none. Cuts planned "
        f"on {study.base.allocation.samples} samples, latency on fresh draws (both in the CSV)."
    )
    if PAPER in study.policies:
        note += (
            " The paper's solver, on every fleet and channel: the proposed cuts, one F step by multipliers for an even "
            "first P, then one exact P step for that F."
        )
    return note


def _shared_cuts_note(study: LatencyStudy) -> str:
    """A paragraph on which comparisons are findings and which ones only check the solver."""
    same = _say_names(name for name in study.policies if name != "proposed" and shares_cuts(name))
    return (
        f"{same} have the proposed cuts and give away part of the optimal allocation, so they can never be shorter than "
        f"proposed by more than a solve's gap ({100 * study.base.allocation.gap:g} %): that they are not is a check of the "
        "solver and no finding. How much longer they take is the finding."
    )
