"""The figure of a plan beside runs: predicted against measured seconds, of the clients' phases and of the rounds, with the diagonal."""

from typing import TYPE_CHECKING, Any

from hsfl.formats import count
from hsfl.report.figure_style import FAINT, INK, STYLE, escape_dollars, matplotlib
from hsfl.report.plan_figure import PARTS
from hsfl.report.prediction_tables import ranked_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DECADES = 4  # of the phases' axes: what takes less than a ten-thousandth of the longest phase moves no round
WAITING = "#8A8A8A"  # darker than the bar of a plan, which is an area
WIDE = 5.0  # rounds that differ by a larger factor are drawn over decades
OTHERS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#0072B2", "#882255", "#87872A", "#555555")  # of sets of cuts
MARKERS = "sD^vPoX"  # of phases


def prediction_figure(check: Any) -> "Figure":
    """Left the phases of all clients and runs, right the rounds with the least and the most that was measured. check: a `PlanCheck`."""
    mpl = matplotlib()
    with mpl.rc_context(STYLE):
        figure = mpl.figure.Figure(figsize=(9.6, 5.2), layout="constrained")
        phases, rounds = figure.subplots(1, 2)
        _draw_phases(phases, check.runs)
        _draw_rounds(rounds, check)
        for axes in (phases, rounds):
            axes.set_aspect("equal")
            axes.set_xlabel("measured s" if any(run.measured for run in check.runs) else "simulated s")
            axes.set_ylabel("predicted s")
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False, fontsize=8.5)
    return figure


def _draw_phases(axes: "Axes", runs: Any) -> None:
    points = [(name, phase) for run in runs for client in run.clients for name, phase in client.phases.items()]
    most_s = max((max(phase.predicted_s, phase.measured_s) for _, phase in points), default=1.0) or 1.0
    least_s = most_s / 10**DECADES
    shown = [(name, phase) for name, phase in points if min(phase.predicted_s, phase.measured_s) >= least_s]
    lowest_s = min((min(phase.predicted_s, phase.measured_s) for _, phase in shown), default=least_s)
    ends = (lowest_s / 1.5, most_s * 1.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _draw_diagonal(axes, ends)
    for place, (name, (label, colour)) in enumerate(PARTS.items()):
        ours = [phase for other, phase in shown if other == name]
        if ours:
            axes.plot(
                [phase.measured_s for phase in ours], [phase.predicted_s for phase in ours], MARKERS[place], ms=5.5, mew=0.5,
                color=WAITING if name == "waiting" else colour, mec="white", label=label,
            )  # fmt: skip
    left_out = len(points) - len(shown)
    note = f"\n{count(left_out, 'point')} below {least_s:.1g} s left out" if left_out else ""
    axes.set_title(f"a client's phase over the round{note}", loc="left", fontsize=10.5)


def _draw_rounds(axes: "Axes", check: Any) -> None:
    """A point for each run, runs with the same cuts in the same colour."""
    sets = check.ranking.sets if check.ranking is not None else []
    names = {run: (place, ranked_name(ranked)) for place, ranked in enumerate(sets) for run in ranked.runs}
    most_s = max(max(run.high_s, run.predicted_s) for run in check.runs) or 1.0
    least_s = min(min(run.low_s, run.predicted_s) for run in check.runs)
    if most_s > WIDE * least_s > 0:
        axes.set_xscale("log")
        axes.set_yscale("log")
        _draw_diagonal(axes, (least_s / 1.2, most_s * 1.2))
    else:
        room_s = max(0.08 * (most_s - least_s), 0.02 * most_s)
        _draw_diagonal(axes, (least_s - room_s, most_s + room_s))
    labelled = set[int]()
    for run in check.runs:
        place, name = names.get(run.run, (0, "the rounds"))
        colour = INK if run.plan == check.plans[0] else OTHERS[place % len(OTHERS)]
        axes.errorbar(
            [run.measured_s], [run.predicted_s], xerr=[[run.measured_s - run.low_s], [run.high_s - run.measured_s]],
            fmt="o", ms=7, color=colour, mec="white", mew=0.6, elinewidth=1.2, capsize=3,
            label=None if place in labelled else escape_dollars(name),
        )  # fmt: skip
        labelled.add(place)
    axes.set_title("the round: median, least and most", loc="left", fontsize=10.5)


def _draw_diagonal(axes: "Axes", ends: tuple[float, float]) -> None:
    """Where predicted is measured, and a tenth more and less."""
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.plot(ends, ends, color=FAINT, lw=1.2, zorder=1, label="predicted = measured")
    for factor, label in ((1.1, "10 % more or less"), (0.9, None)):
        axes.plot(ends, [factor * end for end in ends], color=FAINT, lw=0.7, ls=(0, (4, 3)), zorder=1, label=label)
