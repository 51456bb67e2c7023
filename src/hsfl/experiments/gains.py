"""What each decision gains, without training: {best single cut, own cuts} x {even, proposed} over many fleets.

In every cell the cuts are chosen again *for that cell's own allocation*, on samples of the channel; rounds are timed on fresh
channels. The unit is a fleet: gains are ratios of mean rounds, averaged geometrically over fleets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hsfl.experiments.columns import (
    COLUMNS,
    DATASETS,
    FIRST_SEED,
    FOUR,
    GAINS,
    PUBLISHED,
    TWIN_TRACE,
    base_config,
    fleets_of,
)
from hsfl.experiments.dependence import Costs, dependence_figure, dependence_table
from hsfl.experiments.fleets import (
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
from hsfl.experiments.shared import Outcome, Say, Trend, claim, machine, table, write_text
from hsfl.experiments.statistics import Ratio, ratio_over_fleets
from hsfl.experiments.table1_report import name_of
from hsfl.experiments.traces import ONE_BY_ONE, MakeObserver, Together, file_name, read_trace
from hsfl.files import write_csv
from hsfl.report.figure_style import save
from hsfl.runs.progress import Observer

SINGLE_EVEN, OWN_EVEN, SINGLE_PROPOSED, OWN_PROPOSED = FOUR
CSV_FIELDS = ("data", "storage", "fleet", "column", "mean_round_s", "cuts", "plan_gap")

WHOLE_EPOCHS = ("train.local_epochs=1",)  # of a round, at every scale: so is the paper's latency


@dataclass(frozen=True)
class Gains:
    """Factors by which rounds get shorter, over the fleets of one data set and kind of storage."""

    cuts_even: Ratio  # own cuts instead of the best single one, even allocation
    cuts_proposed: Ratio  # the same under the proposed allocation
    allocation_single: Ratio  # proposed instead of even allocation, best single cut
    allocation_own: Ratio  # the same with own cuts
    interaction: Ratio  # cuts_proposed over cuts_even, fleet by fleet
    over: dict[str, Ratio]  # rounds of RCLS, SCLS and SplitFed V1 as published over HSFL's


def run(
    out: Path,
    scale: str,
    num_seeds: int | None,
    say: Say,
    columns: Sequence[str] = GAINS,
    datasets: Sequence[str] = DATASETS,
    data_dir: Path | None = None,
    shipped: Path | None = None,
    make_observer: MakeObserver = lambda name: Observer(),
    together: Together = ONE_BY_ONE,
) -> Outcome:
    """Solve the fleets that are missing, then write tables and figures."""
    claim(
        out,
        {"scale": scale, "configs": {data: base_config(data, scale, 0).model_dump(mode="json") for data in datasets}},
    )
    samples = {
        data: client_samples(data, scale, data_dir, [out.parent / "table1" / "traces", shipped]) for data in datasets
    }
    points = [
        make_point(data, scale, FIRST_SEED, fleet, samples[data], GAINS, storage, WHOLE_EPOCHS)
        for storage in STORAGES
        for data in datasets
        for fleet in fleets_of(scale)
    ]
    solve_points(points, out / "fleets", shipped_cuts(shipped), say)
    costs = {data: cost_of(base_config(data, scale, FIRST_SEED)) for data in datasets}
    return draw(out, [read_answer(out / "fleets", point) for point in points], costs)


def client_samples(data: str, scale: str, data_dir: Path | None, folders: Sequence[Path | None]) -> list[int]:
    """How many samples each client of the first seed has: from a trace where there is one, else from the data."""
    for folder in folders:
        path = folder / file_name(data, TWIN_TRACE, scale, FIRST_SEED) if folder is not None else None
        if path is not None and path.exists():
            return list(read_trace(path).num_samples)
    from hsfl.runs.client_data import divide, read_data  # here, because torch takes seconds to load

    config = base_config(data, scale, FIRST_SEED, data_dir)
    return [len(own) for own in divide(config, read_data(config))]


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


def draw(out: Path, answers: Sequence[Answer], costs: Costs) -> Outcome:
    """CSV, a table for each kind of storage, and figures of what the gain depends on."""
    rows = [
        [a.data, a.storage, a.fleet, name, a.mean_s(name), " ".join(map(str, a.cuts[name])), a.gap]
        for a in answers
        for name in GAINS
    ]
    files = [write_csv(out / "gains.csv", CSV_FIELDS, rows), write_cuts(out / GAINS_CUTS_FILE, answers)]
    files += save(dependence_figure(answers, costs), out / "gains")
    parts = ["### What each decision gains\n\n![what own cuts gain, and on what it depends](gains.png)\n"]
    for storage in dict.fromkeys(a.storage for a in answers):
        own = [a for a in answers if a.storage == storage]
        parts += [_section(storage, own), dependence_table(own, costs)]
    parts.append(machine() + "\n")
    return Outcome("gains", write_text(out / "gains.md", "\n".join(parts)), files, find_trends(answers))


def _section(storage: str, answers: Sequence[Answer]) -> str:
    data_sets = list(dict.fromkeys(a.data for a in answers))
    found = {data: find_gains([a for a in answers if a.data == data]) for data in data_sets}
    num = len({a.fleet for a in answers})
    channels = ", ".join(
        f"{name_of(a.data)} {len(a.round_s[OWN_PROPOSED])}" for a in {a.data: a for a in answers}.values()
    )
    how = {
        "drawn": "max_cut uniform in 3 to the number of units",
        "memory": "max_cut from the memory that training in batches of 256 takes (storage_bits uniform in 0.4 to 2.4 Gbit, 50 to 300 MB)",
    }[storage]
    rows = [
        ["own cuts over the best single cut, even", *(_said(found[d].cuts_even) for d in data_sets)],
        ["own cuts over the best single cut, proposed", *(_said(found[d].cuts_proposed) for d in data_sets)],
        ["proposed over even, best single cut", *(_said(found[d].allocation_single) for d in data_sets)],
        ["proposed over even, own cuts", *(_said(found[d].allocation_own) for d in data_sets)],
        ["interaction (second row over first)", *(str(found[d].interaction) for d in data_sets)],
    ]
    rows += [
        [f"HSFL over {COLUMNS[name].title}", *(_said(found[d].over[name]) for d in data_sets)]
        for name in (PUBLISHED, "rcls", "scls")
    ]
    seconds = [[f"{COLUMNS[name].title}", *(f"{_mean_s(answers, d, name):.1f}" for d in data_sets)] for name in GAINS]
    return (
        f"{how}; n = {num} fleets, each on fresh channels ({channels}). Factors by which the mean round gets shorter, geometric mean [95 % "
        "bootstrap interval over fleets], range, and the share of fleets that gain less than 1 %:\n\n"
        + table(["", *map(name_of, data_sets)], rows)
        + "\nMean seconds of a round:\n\n"
        + table(["", *map(name_of, data_sets)], seconds)
    )


def _said(ratio: Ratio) -> str:
    return f"{ratio} ({ratio.smallest:.2f} to {ratio.largest:.2f}; {100 * ratio.below_one_per_cent:.0f} % below 1 %)"


def _mean_s(answers: Sequence[Answer], data: str, column: str) -> float:
    return float(np.mean([a.mean_s(column) for a in answers if a.data == data]))


def find_trends(answers: Sequence[Answer]) -> list[Trend]:
    """The paper's claim that own cuts shorten the round, by the interval over fleets with drawn max_cut."""
    trends = []
    for data in dict.fromkeys(a.data for a in answers):
        found = find_gains([a for a in answers if (a.data, a.storage) == (data, "drawn")])
        for words, ratio in (
            ("own cuts shorten the round, allocation proposed", found.cuts_proposed),
            ("the proposed allocation shortens the round, own cuts", found.allocation_own),
        ):
            trends.append(Trend(f"{name_of(data)}: {words}", _said(ratio), ratio.low > 1.0))
    return trends
