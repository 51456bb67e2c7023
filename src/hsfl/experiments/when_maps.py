"""The grid of `when` in words and pictures: a CSV, a map for each spread of samples and speeds, and a table of all places."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hsfl.experiments.common import Outcome, Trend, machine, write_text
from hsfl.experiments.statistics import UNDECIDED, Ratio, ratio_over_fleets
from hsfl.experiments.when_study import AT_LEAST, BELOW, PRESET, FleetAnswer, Place, WhenStudy
from hsfl.files import write_csv
from hsfl.report.figure_style import FAINT, INK, STYLE, matplotlib, save_figure
from hsfl.report.tables import SummaryTable, markdown_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Answers = Mapping[Place, Sequence[FleetAnswer]]
CSV_FIELDS = (
    *("spread", "heterogeneity", "noise", "bits", "fleet", "own_s", "single_s", "single_bound_s", "cuts_bound_s"),
    *("single_cut", "own_cuts", "verdict"),
)
VERDICTS = (AT_LEAST, UNDECIDED, BELOW)
DARK = 0.4  # of the colour scale: from here on, words in a cell are white


def _ratio_at(answers: Sequence[FleetAnswer]) -> Ratio:
    """Own cuts over the best single cut, over the fleets of a place."""
    return ratio_over_fleets([answer.ratio for answer in answers])


def counts_at(answers: Sequence[FleetAnswer]) -> list[int]:
    """How many fleets of a place have each of VERDICTS."""
    verdicts = [answer.verdict for answer in answers]
    return [verdicts.count(verdict) for verdict in VERDICTS]


def draw_when(out: Path, study: WhenStudy, answers: Answers) -> Outcome:
    """CSV, maps and the table."""
    files = [_write_answers(out / "when.csv", answers), *save_figure(_maps(study, answers), out / "when")]
    trends, places = when_trends(answers), place_table(answers)
    text = (
        "### When are own cuts worth it?\n\n![own cuts over the best single cut, by spread of samples, speeds, noise and bits](when.png)\n\n"
        f"{_when_settings_note(study)} {_cost_note(answers)} {machine()}\n\n{_counts_note(answers)}\n\n"
        + markdown_rows(places)
    )
    return Outcome("when", write_text(out / "when.md", text), files, trends, [places])


def _write_answers(path: Path, answers: Answers) -> Path:
    """Write a CSV with one line for each place and fleet."""
    rows = []
    for place, of_place in answers.items():
        for a in of_place:
            seconds = (f"{value:.6g}" for value in (a.own_s, a.single_s, a.single_bound_s, a.cuts_bound_s))
            setting = (place.spread, f"{place.heterogeneity:g}", f"{place.noise:g}", place.bits)
            rows.append([*setting, a.fleet, *seconds, a.single_cut, " ".join(map(str, a.own_cuts)), a.verdict])
    return write_csv(path, CSV_FIELDS, rows)


# ---- words


def when_trends(answers: Answers) -> list[Trend]:
    """The gain in the paper's setting, and where one thing differs from that setting; the paper claims only the first."""
    trends = []
    for place, of_place in answers.items():
        differs = difference_from_preset(place)
        if differs is None:
            continue
        ratio = _ratio_at(of_place)
        claim = differs or "own cuts shorten the round (the paper's setting)"
        finding = f"own cuts over the best single cut {ratio}, {_say_counts(of_place)}"
        trends.append(Trend(claim, finding, None if differs else bool(ratio.low > 1.0)))
    return sorted(trends, key=lambda trend: trend.holds is None)


def difference_from_preset(place: Place) -> str | None:
    """The one thing in which a place differs from the paper's setting, in words; empty for that setting, None where more differ."""
    titles = {
        "spread": f"{place.spread} samples",
        "heterogeneity": f"heterogeneity {place.heterogeneity:g}",
        "noise": f"{place.noise:g} times the noise",
        "bits": f"{place.bits} bits",
    }
    different = [name for name in titles if getattr(place, name) != getattr(PRESET, name)]
    if len(different) > 1:
        return None
    return f"(not in the paper) the same with {titles[different[0]]}" if different else ""


def _say_counts(answers: Sequence[FleetAnswer]) -> str:
    """The verdicts of fleets as a phrase."""
    counted = (f"{count} {verdict}" for count, verdict in zip(counts_at(answers), VERDICTS))
    return f"{', '.join(counted)} of {len(answers)} fleets"


def _when_settings_note(study: WhenStudy) -> str:
    """What stands behind the numbers, as a paragraph."""
    base = study.base
    return (
        f"Own cuts (HSFL, planned) over the best single cut (SplitFed V1), both with the exact allocation: geometric mean over n = {study.num_fleets} "
        f"fleets a place of the ratio of mean rounds. {base.fleet.num_clients} clients, ResNet-18 on CIFAR-10's shape, 50,000 samples in batches of "
        f"{base.train.batch_size}. A fleet's seed draws devices, max_cut (uniform in 3 to 10), channels and, but for equal samples, the division of "
        f"ten classes of 5,000. Heterogeneity is of cycles and power (1: the paper's range, 0: equal devices), noise in multiples of {base.network.noise_w:g} W, "
        "bits are those of a number of smashed data and of its gradient (models stay at 32). Cuts are chosen on "
        f"{base.allocation.samples} samples of the channel; rounds and bounds are of {study.num_channels} fresh channels."
    )


def _cost_note(answers: Answers) -> str:
    """How long a fleet takes to solve, as a sentence; beside other work on the machine it is longer."""
    seconds = [answer.seconds for of_place in answers.values() for answer in of_place]
    return f"A fleet takes one process {np.median(seconds):.2f} s in the median, all {len(seconds)} took {sum(seconds) / 60:.0f} minutes."


def _counts_note(answers: Answers) -> str:
    """What the verdicts mean, and how many there are of each."""
    all_answers = [answer for of_place in answers.values() for answer in of_place]
    return (
        f"Verdicts on single fleets, each proven on its fresh channels: *{BELOW}*, where no cuts at all can be 1.01 times as fast as the single cut (a "
        f"bound over all cuts); *{AT_LEAST}*, where the planned cuts are 1.01 times as fast as any single cut can be; else *{UNDECIDED}*, which is "
        f"counted and not guessed. All places together: {_say_counts(all_answers)}."
    )


def place_table(answers: Answers) -> SummaryTable:
    """Every place: its ratio with the interval over fleets, its range, and its verdicts."""
    rows = []
    for place, of_place in answers.items():
        ratio = _ratio_at(of_place)
        setting = [place.spread, f"{place.heterogeneity:g}", f"{place.noise:g}", str(place.bits)]
        rows.append([*setting, ratio.cell(with_range=True), *map(str, counts_at(of_place))])
    header = [
        "samples",
        "heterogeneity",
        "noise",
        "bits",
        "own cuts over the best single cut [95 %] (range)",
        *VERDICTS,
    ]
    note = f"n = {len(next(iter(answers.values()), []))} fleets a place; geometric mean [95 % bootstrap interval over fleets]."
    return SummaryTable("when-places", "Own cuts over the best single cut", header, rows, note)


# ---- maps


def _maps(study: WhenStudy, answers: Answers) -> "Figure":
    """A row of maps for each spread of samples, a column for each heterogeneity; in a map, bits from left to right and noise from below."""
    mpl = matplotlib()
    rows, columns = len(study.spreads), len(study.heterogeneities)
    largest = max(_ratio_at(of_place).mean for of_place in answers.values())
    with mpl.rc_context({**STYLE, "axes.grid": False, "axes.spines.left": False, "axes.spines.bottom": False}):
        figure = mpl.figure.Figure(figsize=(3.3 * columns + 1.6, 2.2 * rows + 1.0), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False)
        norm = mpl.colors.LogNorm(1.0, max(largest, 1.05))
        for row, spread in enumerate(study.spreads):
            for column, heterogeneity in enumerate(study.heterogeneities):
                panel = panels[row, column]
                image = _map(panel, study, answers, spread, heterogeneity, norm)
                if row == 0:
                    panel.set_title(f"heterogeneity {heterogeneity:g}", fontsize=10)
                if row == rows - 1:
                    panel.set_xlabel("bits of a number of smashed data")
                if column == 0:
                    panel.set_ylabel(f"{spread} samples\nnoise")
        ticks = [tick for tick in (1.0, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0, 2.5, 3.0) if tick <= largest]
        bar = figure.colorbar(image, ax=panels, shrink=0.7, ticks=ticks, format="%.2f")
        bar.ax.minorticks_off()
        bar.set_label("own cuts over the best single cut")
        note = (
            f"geometric mean over {study.num_fleets} fleets a cell; below it, fleets that gain at least 1 % / undecided / proven below 1 %; "
            "framed: the paper's setting"
        )
        figure.supxlabel(note, fontsize=8, color=FAINT)
    return figure


def _map(panel: "Axes", study: WhenStudy, answers: Answers, spread: str, heterogeneity: float, norm: Any) -> Any:
    """One map, noise [rows] by bits [columns], in colours from `norm`; returns what the colour bar needs."""
    places = [[Place(spread, heterogeneity, noise, bits) for bits in study.bits] for noise in study.noises]
    values = np.array([[_ratio_at(answers[place]).mean for place in of_noise] for of_noise in places])
    image = panel.imshow(np.maximum(values, 1.0), cmap="viridis_r", norm=norm, aspect="auto", origin="lower")
    for y, of_noise in enumerate(places):
        for x, place in enumerate(of_noise):
            colour = "white" if norm(max(values[y, x], 1.0)) > DARK else INK
            panel.text(x, y + 0.13, f"{values[y, x]:.2f}", ha="center", va="center", color=colour, fontsize=10)
            counts = " / ".join(map(str, counts_at(answers[place])))
            panel.text(x, y - 0.25, counts, ha="center", va="center", color=colour, fontsize=7)
            if place == PRESET:
                frame = {"fill": False, "edgecolor": "#D55E00", "linewidth": 2.5}
                panel.add_patch(matplotlib().patches.Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, **frame))
    panel.set_xticks(range(len(study.bits)), [str(bits) for bits in study.bits])
    panel.set_yticks(range(len(study.noises)), [f"x{noise:g}" for noise in study.noises])
    panel.tick_params(length=0)
    return image
