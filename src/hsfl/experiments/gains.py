"""What each decision gains, without training: {best single cut, own cuts} x {even, proposed} over many fleets.

In each of the four cases the cuts are chosen again *for that case's own allocation*, on samples of the channel; rounds are timed on fresh
channels. The unit is a fleet: gains are ratios of mean rounds, averaged geometrically over fleets.

The second part asks on what the gain of own cuts depends: whether the client with the most samples can go deep, and whether all others can,
too. *Deep* is the first cut that sends less than cut 1 does; in ResNet-18 that is cut 4, where smashed data halve (with images of 28x28
they fall by a third). A fleet is of one of three kinds, by who can hold so many units.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hsfl.experiments.common import Outcome, Trend, claim, machine, write_text
from hsfl.experiments.statistics import Ratio, ratio_over_fleets
from hsfl.experiments.study_request import StudyRequest
from hsfl.experiments.table1.columns import (
    COLUMNS,
    FIRST_SEED,
    FOUR,
    GAINS,
    PUBLISHED,
    TWIN_TRACE,
    base_config,
    fleets_of,
)
from hsfl.experiments.table1.fleets import (
    GAINS_CUTS_FILE,
    STORAGES,
    Answer,
    cost_of,
    make_point,
    read_answer,
    shipped_cuts,
    solve_points,
    write_cuts,
)
from hsfl.experiments.table1.table1_report import name_of
from hsfl.experiments.table1.traces import read_trace, trace_file_name
from hsfl.files import write_csv
from hsfl.models.cost_table import CostTable
from hsfl.report.figure_style import FAINT, STYLE, matplotlib, save_figure
from hsfl.report.tables import SummaryTable, ValueCell, markdown_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
SINGLE_EVEN, OWN_EVEN, SINGLE_PROPOSED, OWN_PROPOSED = FOUR
CSV_FIELDS = ("data", "storage", "fleet", "column", "mean_round_s", "cuts", "plan_gap")
WHOLE_EPOCHS = ("train.local_epochs=1",)  # of a round, at every scale: so is the paper's latency
COLOURS = {"ham10000": "#0072B2", "cifar10": "#D55E00", "mnist": "#009E73"}
MARKERS = {"drawn": "o", "memory": "^"}
STORAGE_WORDS = {"drawn": "drawn", "memory": "from memory"}
ALL, LARGEST, NOT_LARGEST = (
    "every client can hold the deep cut",
    "the client with the most samples can, another cannot",
    "the client with the most samples cannot",
)
Costs = Mapping[str, CostTable]  # by data set


@dataclass(frozen=True)
class Gains:
    """Factors by which rounds get shorter, over the fleets of one data set and kind of storage."""

    cuts_even: Ratio  # own cuts instead of the best single one, even allocation
    cuts_proposed: Ratio  # the same under the proposed allocation
    allocation_single: Ratio  # proposed instead of even allocation, best single cut
    allocation_own: Ratio  # the same with own cuts
    interaction: Ratio  # cuts_proposed over cuts_even, fleet by fleet
    over: dict[str, Ratio]  # rounds of RCLS, SCLS and SplitFed V1 as published over HSFL's


def reproduce_gains(request: StudyRequest) -> Outcome:
    """Solve the fleets that are missing, then write tables and figures."""
    out, scale, datasets = request.out, request.scale, request.datasets
    configs = {data: base_config(data, scale, 0).model_dump(mode="json") for data in datasets}
    claim(out, {"scale": scale, "configs": configs})
    trace_folders = [out.parent / "table1" / "traces", request.shipped]
    samples = {data: client_samples(data, scale, request.data_dir, trace_folders) for data in datasets}
    points = [
        make_point(data, scale, FIRST_SEED, fleet, samples[data], GAINS, storage, WHOLE_EPOCHS)
        for storage in STORAGES
        for data in datasets
        for fleet in fleets_of(scale)
    ]
    solve_points(points, out / "fleets", shipped_cuts(request.shipped), request.say)
    costs = {data: cost_of(base_config(data, scale, FIRST_SEED)) for data in datasets}
    return _draw_gains(out, [read_answer(out / "fleets", point) for point in points], costs)


def client_samples(data: str, scale: str, data_dir: Path | None, folders: Sequence[Path | None]) -> list[int]:
    """How many samples each client of the first seed has: from a trace where there is one, else from the data."""
    for folder in folders:
        path = folder / trace_file_name(data, TWIN_TRACE, scale, FIRST_SEED) if folder is not None else None
        if path is not None and path.exists():
            return list(read_trace(path).num_samples)
    from hsfl.runs.client_data import divide_samples, read_data  # here, because torch takes seconds to load

    config = base_config(data, scale, FIRST_SEED, data_dir)
    return [len(indices) for indices in divide_samples(config, read_data(config))]


def find_gains(answers: Sequence[Answer]) -> Gains:
    """The gains over the fleets of one data set and one kind of storage."""

    def ratios(longer: str, shorter: str) -> np.ndarray:
        return np.array([answer.mean_s(longer) / answer.mean_s(shorter) for answer in answers])

    cuts_even, cuts_proposed = ratios(SINGLE_EVEN, OWN_EVEN), ratios(SINGLE_PROPOSED, OWN_PROPOSED)
    return Gains(
        ratio_over_fleets(cuts_even),
        ratio_over_fleets(cuts_proposed),
        ratio_over_fleets(ratios(SINGLE_EVEN, SINGLE_PROPOSED)),
        ratio_over_fleets(ratios(OWN_EVEN, OWN_PROPOSED)),
        ratio_over_fleets(cuts_proposed / cuts_even),
        {name: ratio_over_fleets(ratios(name, OWN_PROPOSED)) for name in (PUBLISHED, "rcls", "scls")},
    )


def _draw_gains(out: Path, answers: Sequence[Answer], costs: Costs) -> Outcome:
    """CSV, a table for each kind of storage, and figures of what the gain depends on."""
    rows = [
        [a.data, a.storage, a.fleet, name, a.mean_s(name), " ".join(map(str, a.cuts[name])), a.gap]
        for a in answers
        for name in GAINS
    ]
    files = [write_csv(out / "gains.csv", CSV_FIELDS, rows), write_cuts(out / GAINS_CUTS_FILE, answers)]
    files += save_figure(_dependence_figure(answers, costs), out / "gains")
    parts = ["### What each decision gains\n\n![what own cuts gain, and on what it depends](gains.png)\n"]
    tables: list[SummaryTable] = []
    for storage in dict.fromkeys(a.storage for a in answers):
        of_storage = [a for a in answers if a.storage == storage]
        factors, seconds = _factor_table(storage, of_storage), _seconds_table(storage, of_storage)
        by_kind = dependence_table(storage, of_storage, costs)
        tables += [factors, seconds, by_kind]
        parts += [
            f"{_storage_note(storage, of_storage)}:\n\n{markdown_rows(factors)}",
            f"Mean seconds of a round:\n\n{markdown_rows(seconds)}",
            f"{_dependence_title(of_storage, costs)}:\n\n{markdown_rows(by_kind)}",
        ]
    parts.append(machine() + "\n")
    return Outcome("gains", write_text(out / "gains.md", "\n".join(parts)), files, _gains_trends(answers), tables)


def _storage_note(storage: str, answers: Sequence[Answer]) -> str:
    """How max_cut comes about, and over what the factors are."""
    num = len({a.fleet for a in answers})
    channels = ", ".join(
        f"{name_of(a.data)} {len(a.round_s[OWN_PROPOSED])}" for a in {a.data: a for a in answers}.values()
    )
    how = {
        "drawn": "max_cut uniform in 3 to the number of units",
        "memory": "max_cut from the memory that training in batches of 256 takes (storage_bits uniform in 0.4 to 2.4 Gbit, 50 to 300 MB)",
    }[storage]
    return (
        f"{how}; n = {num} fleets, each on fresh channels ({channels}). Factors by which the mean round gets shorter, geometric mean [95 % "
        "bootstrap interval over fleets], range, and the share of fleets that gain less than 1 %"
    )


def _factor_table(storage: str, answers: Sequence[Answer]) -> SummaryTable:
    """What each decision gains, by data set."""
    data_sets = list(dict.fromkeys(a.data for a in answers))
    gains_of = {data: find_gains([a for a in answers if a.data == data]) for data in data_sets}
    rows = [
        ["own cuts over the best single cut, even", *(_ratio_text(gains_of[d].cuts_even) for d in data_sets)],
        ["own cuts over the best single cut, proposed", *(_ratio_text(gains_of[d].cuts_proposed) for d in data_sets)],
        ["proposed over even, best single cut", *(_ratio_text(gains_of[d].allocation_single) for d in data_sets)],
        ["proposed over even, own cuts", *(_ratio_text(gains_of[d].allocation_own) for d in data_sets)],
        ["interaction (second row over first)", *(gains_of[d].interaction.cell() for d in data_sets)],
    ]
    rows += [
        [f"HSFL over {COLUMNS[name].title}", *(_ratio_text(gains_of[d].over[name]) for d in data_sets)]
        for name in (PUBLISHED, "rcls", "scls")
    ]
    note = f"{_num_fleets(answers)}; geometric mean [95 % bootstrap interval over fleets] (range; share of fleets below 1 %)."
    title = f"Factors by which rounds get shorter, max_cut {STORAGE_WORDS[storage]}"
    return SummaryTable(f"gains-{storage}-factors", title, ["", *map(name_of, data_sets)], rows, note)


def _seconds_table(storage: str, answers: Sequence[Answer]) -> SummaryTable:
    """The mean round of each column, by data set."""
    data_sets = list(dict.fromkeys(a.data for a in answers))
    means = {name: [_mean_s(answers, data, name) for data in data_sets] for name in GAINS}
    rows = [[COLUMNS[name].title, *(ValueCell(f"{mean:.1f}", mean) for mean in row)] for name, row in means.items()]
    title = f"Mean seconds of a round, max_cut {STORAGE_WORDS[storage]}"
    note = f"{_num_fleets(answers)}; mean over fleets."
    return SummaryTable(f"gains-{storage}-seconds", title, ["", *map(name_of, data_sets)], rows, note)


def _num_fleets(answers: Sequence[Answer]) -> str:
    return f"n = {len({a.fleet for a in answers})} fleets"


def _ratio_text(ratio: Ratio) -> ValueCell:
    return ratio.cell(with_range=True, more=f"{100 * ratio.below_one_per_cent:.0f} % below 1 %")


def _mean_s(answers: Sequence[Answer], data: str, column: str) -> float:
    return float(np.mean([a.mean_s(column) for a in answers if a.data == data]))


def _gains_trends(answers: Sequence[Answer]) -> list[Trend]:
    """The paper's claim that own cuts shorten the round, by the interval over fleets with drawn max_cut."""
    trends = []
    for data in dict.fromkeys(a.data for a in answers):
        gains = find_gains([a for a in answers if (a.data, a.storage) == (data, "drawn")])
        for claim_text, ratio in (
            ("own cuts shorten the round, allocation proposed", gains.cuts_proposed),
            ("the proposed allocation shortens the round, own cuts", gains.allocation_own),
        ):
            trends.append(Trend(f"{name_of(data)}: {claim_text}", _ratio_text(ratio), ratio.low > 1.0))
    return trends


# --- on what the gain of own cuts depends


def _gain(answer: Answer) -> float:
    """Own cuts over the best single cut under the proposed allocation."""
    return answer.mean_s(SINGLE_PROPOSED) / answer.mean_s(OWN_PROPOSED)


def deep_cut(cost: CostTable) -> int:
    """The first cut that sends less smashed data than cut 1; the last cut where there is none."""
    fewer = np.flatnonzero(cost.smashed_bits[1:] < cost.smashed_bits[1])
    return 1 + int(fewer[0]) if len(fewer) else cost.num_units


def fleet_kind(answer: Answer, deep: int) -> str:
    """Who of the fleet can hold `deep` units."""
    if min(answer.max_cut) >= deep:
        return ALL
    return LARGEST if answer.max_cut[_largest(answer)] >= deep else NOT_LARGEST


def deep_s(answer: Answer, cost: CostTable) -> float:
    """The seconds of a round that the client with the most samples would compute at the deep cut, whether it can hold it or not."""
    client = _largest(answer)
    return float(answer.num_samples[client] * cost.client_flops[deep_cut(cost)] / answer.cpu_hz[client])


def _speed_spread(answer: Answer) -> float:
    """The standard deviation of the logarithms of the clients' speeds."""
    return float(np.std(np.log(answer.cpu_hz)))


def _largest(answer: Answer) -> int:
    return int(np.argmax(answer.num_samples))


def _dependence_title(answers: Sequence[Answer], costs: Costs) -> str:
    deep = sorted({deep_cut(costs[data]) for data in {a.data for a in answers}})
    return (
        f"Own cuts over the best single cut, proposed, by who can hold the deep cut, the {' or '.join(map(str, deep))} units from which on less is "
        "sent than at cut 1; geometric mean (range; number of fleets)"
    )


def dependence_table(storage: str, answers: Sequence[Answer], costs: Costs) -> SummaryTable:
    """The gain of the fleets of each kind, for one kind of storage, and how the gain goes with speeds."""
    data_sets = list(dict.fromkeys(a.data for a in answers))
    rows = []
    for kind_title in (LARGEST, ALL, NOT_LARGEST):
        of_kind = (
            [a for a in answers if a.data == d and fleet_kind(a, deep_cut(costs[d])) == kind_title] for d in data_sets
        )
        rows.append([kind_title, *map(_dependence_note, of_kind)])
    by_seconds = "first kind: rank correlation with the seconds that this client would compute there"
    by_spread = "all fleets: rank correlation with the spread of speeds"
    for row_title, value, kinds in (
        (by_seconds, lambda a: deep_s(a, costs[a.data]), (LARGEST,)),
        (by_spread, _speed_spread, (LARGEST, ALL, NOT_LARGEST)),
    ):
        groups = ([a for a in answers if a.data == d and fleet_kind(a, deep_cut(costs[d])) in kinds] for d in data_sets)
        rows.append([row_title, *(_correlation(group, value) for group in groups)])
    title = f"{_dependence_title(answers, costs)}, max_cut {STORAGE_WORDS[storage]}"
    header = ["", *map(name_of, data_sets)]
    return SummaryTable(f"gains-{storage}-kinds", title, header, rows, f"{_num_fleets(answers)}.")


def _dependence_note(answers: Sequence[Answer]) -> str:
    if not answers:
        return "no fleet"
    ratio = ratio_over_fleets([_gain(a) for a in answers])
    return f"{ratio.mean:.3f} ({ratio.smallest:.2f} to {ratio.largest:.2f}; n = {len(answers)})"


def _correlation(answers: Sequence[Answer], value: Callable[[Answer], float]) -> str:
    """Spearman's rank correlation between a fleet's gain and another quantity."""
    if len(answers) < 4:
        return "too few"
    from scipy.stats import spearmanr  # here, because it takes half a second to load

    return f"{spearmanr([_gain(a) for a in answers], [value(a) for a in answers]).statistic:+.2f}"


def _dependence_figure(answers: Sequence[Answer], costs: Costs) -> "Figure":
    """The gain of every fleet against the deep seconds of its client with the most samples; one picture for each kind of fleet."""
    mpl = matplotlib()
    with mpl.rc_context(STYLE):
        figure = mpl.figure.Figure(figsize=(12.5, 4.6), layout="constrained")
        axes = figure.subplots(1, 3, sharex=True, sharey=True)
        for panel, kind_title in zip(axes, (LARGEST, ALL, NOT_LARGEST)):
            _scatter(panel, [a for a in answers if fleet_kind(a, deep_cut(costs[a.data])) == kind_title], costs)
            panel.set_title(kind_title, fontsize=10)
            panel.tick_params(labelleft=True)
        axes[0].set_ylabel("own cuts over the best single cut")
        axes[1].set_xlabel("seconds that the client with the most samples would compute in a round at the deep cut")
        for data in dict.fromkeys(a.data for a in answers):
            for storage in dict.fromkeys(a.storage for a in answers):
                label = f"{name_of(data)}, max_cut {STORAGE_WORDS[storage]}"
                axes[1].scatter([], [], label=label, **_look(data, storage))
        axes[1].legend(frameon=False, fontsize=8.5, loc="upper right")
        figure.supxlabel("one point a fleet; proposed allocation, each with its own cuts", fontsize=8, color=FAINT)
    return figure


def _scatter(panel: "Axes", answers: Sequence[Answer], costs: Costs) -> None:
    for a in answers:
        panel.scatter(deep_s(a, costs[a.data]), _gain(a), **_look(a.data, a.storage))
    panel.set_xscale("log")


def _look(data: str, storage: str) -> dict[str, Any]:
    colour = COLOURS.get(data, "#555555")
    return {"color": colour, "marker": MARKERS[storage], "alpha": 0.75, "s": 26, "linewidths": 0}
