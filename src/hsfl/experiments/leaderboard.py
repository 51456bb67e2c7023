"""The leaderboard: after how many simulated seconds each framework reaches fixed accuracies, on the standard fleets of three data sets.

Nothing is trained. A framework counts where its traces are there already, in the folder of Table 1 beside `out` or among the shipped
results; the others are listed as not trained yet. Frameworks that keep a copy for each client on the main server have the proposed
allocation, and each of them its best cuts under it; the others have the even allocation and the cut that they were trained with.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hsfl.errors import InputError
from hsfl.experiments.common import Outcome, Trend, machine, write_text
from hsfl.experiments.statistics import ratio_over_fleets
from hsfl.experiments.study_request import StudyRequest
from hsfl.experiments.table1.columns import COLUMNS, PUBLISHED, SEVEN, seeds_of
from hsfl.experiments.table1.fleets import Answer, write_cuts
from hsfl.experiments.table1.table1_report import means_of_fleets, name_of
from hsfl.experiments.table1.table1_study import TARGETS, ColumnTiming, Study, column_timings, make_study
from hsfl.experiments.table1.traces import known_trace
from hsfl.files import write_csv
from hsfl.framework_table import METHODS, PROPOSED, Method
from hsfl.report.curves import Estimate
from hsfl.report.tables import SummaryTable, ValueCell, markdown_rows

SEEDS = 3
PROPOSED_ALLOCATION = "allocation.policy=proposed"
NOT_TRAINED, NOT_REACHED = "not trained yet", "not reached"


@dataclass(frozen=True)
class Entry:
    """A framework on the leaderboard. column: the column of Table 1 that times it."""

    method: Method
    column: str
    cuts: str  # in words
    allocation: str  # in words


def leaderboard_entries() -> list[Entry]:
    """Every framework that is registered, plugins' ones too."""
    return [_entry(row) for row in METHODS.values()]


def _entry(row: Method) -> Entry:
    if row.pools_data:
        return Entry(row, row.name, "none: the data are on the server", "-")
    if not row.copy_per_client:
        return Entry(row, row.name, "one, the smallest max_cut", "even")
    if row.name == PROPOSED:
        return Entry(row, PROPOSED, "own", "proposed")
    if row.name == PUBLISHED:
        return Entry(row, "single_proposed", "one, the fastest", "proposed")
    if row.timing.cut == "whole":
        return Entry(row, f"{row.name},{PROPOSED_ALLOCATION}", "the whole model", "proposed")
    if row.own_cuts:
        return Entry(row, f"{row.name},{PROPOSED_ALLOCATION}", "own", "proposed")
    column = f"{row.name},{PROPOSED_ALLOCATION},fleet.one_cut=fastest"
    return Entry(row, column, "one, the fastest", "proposed")


def reproduce_leaderboard(request: StudyRequest) -> Outcome:
    """Time every framework whose trainings are there, and write the tables."""
    out, folder = request.out, request.out.parent / "table1"
    request = replace(request, out=folder, num_seeds=request.num_seeds or SEEDS)
    entries, tables, timings, studies = leaderboard_entries(), [], list[ColumnTiming](), list[Study]()
    for data in request.datasets:
        trained = [entry for entry in entries if _is_trained(request, data, entry)]
        columns = tuple(entry.column for entry in trained)
        if PROPOSED not in columns:
            raise InputError(
                f"{name_of(data)} has no training of {COLUMNS[PROPOSED].title} at scale {request.scale} with seeds 1 to {request.num_seeds}; "
                f"`hsfl reproduce table1 --scale {request.scale} --seeds {request.num_seeds} --datasets {data}` trains, fewer --seeds may be there"
            )
        study = make_study(replace(request, datasets=(data,), columns=columns))
        of_data = list(column_timings(study))
        tables.append(leaderboard_table(data, entries, study, of_data))
        timings += of_data
        studies.append(study)
    files = [
        write_csv(out / "leaderboard.csv", TIMING_FIELDS, [_cells(timing) for timing in timings]),
        write_cuts(out / f"cuts-leaderboard-{request.scale}.csv", [a for study in studies for a in _other_cuts(study)]),
    ]
    text = leaderboard_markdown(tables, request.scale)
    return Outcome("leaderboard", write_text(out / "leaderboard.md", text), files, _trends(entries, tables), tables)


def _other_cuts(study: Study) -> list[Answer]:
    """The answers with the cuts of those columns alone that Table 1 does not have."""
    return [
        replace(answer, cuts={name: cuts for name, cuts in answer.cuts.items() if name not in SEVEN})
        for answer in study.answers
    ]


def _is_trained(request: StudyRequest, data: str, entry: Entry) -> bool:
    """Whether a training of this framework is there for every seed."""
    trace, seeds = COLUMNS[entry.column].trace, seeds_of(request.scale, request.num_seeds)
    return all(known_trace(request, data, trace, seed) is not None for seed in seeds)


TIMING_FIELDS = ("data", "column", "seed", "fleet", "mean_round_s", "target", "seconds_to_target")


def _cells(timing: ColumnTiming) -> list[object]:
    values = [getattr(timing, name) for name in TIMING_FIELDS]
    return ["" if value is None else value for value in values]


# ---- the tables


def leaderboard_table(
    data: str, entries: Sequence[Entry], study: Study, timings: Sequence[ColumnTiming]
) -> SummaryTable:
    """A line for each framework, the fastest first; frameworks without a training last."""
    targets = TARGETS.get(data, ())
    ranked = []
    for entry in entries:
        of_entry = [timing for timing in timings if timing.column == entry.column]
        cells = [NOT_TRAINED, *[""] * len(targets)]
        if of_entry:
            round_s = _seconds([(t.fleet, t.mean_round_s) for t in of_entry if t.target == targets[0]])
            cells = [round_s, *(_to_target(of_entry, target) for target in targets)]
        ranked.append((_rank(of_entry, targets), [entry.method.title, entry.cuts, entry.allocation, *cells]))
    rows = [row for _, row in sorted(ranked, key=lambda pair: pair[0])]
    header = ["framework", "cuts", "allocation", "a round, s", *(f"{100 * target:g} %, s" for target in targets)]
    num_fleets, num_seeds = len({answer.fleet for answer in study.answers}), len(study.seeds)
    note = (
        f"n = {num_fleets} fleets x {num_seeds} training seed{'s' if num_seeds > 1 else ''}; simulated seconds, geometric mean "
        "[95 % bootstrap interval over fleets]."
    )
    return SummaryTable(f"leaderboard-{data}", name_of(data), header, rows, note)


def _rank(of_entry: Sequence[ColumnTiming], targets: Sequence[float]) -> tuple[int, float]:
    """What lines are sorted by: how many of the targets are never reached by every seed on every fleet, then the seconds to the
    highest one that is."""
    if not of_entry:
        return len(targets) + 1, 0.0
    always = [
        target for target in targets if all(t.seconds_to_target is not None for t in of_entry if t.target == target)
    ]
    highest = [t.seconds_to_target for t in of_entry if always and t.target == always[-1]]
    seconds = [value for value in highest if value is not None]
    return len(targets) - len(always), ratio_over_fleets(seconds).mean if seconds else 0.0


def _to_target(of_entry: Sequence[ColumnTiming], target: float) -> str:
    """The seconds to a target; of how many fleets and seeds, where not all reach it."""
    all_pairs = [(t.fleet, t.seconds_to_target) for t in of_entry if t.target == target]
    pairs = [(fleet, seconds) for fleet, seconds in all_pairs if seconds is not None]
    if not pairs:
        return NOT_REACHED
    if len(pairs) == len(all_pairs):
        return _seconds(pairs)
    mean = ratio_over_fleets(means_of_fleets(pairs)).mean
    return ValueCell(f"{_digits(mean)} ({len(pairs)} of {len(all_pairs)})", Estimate(mean, None, None, len(pairs)))


def _seconds(pairs: Sequence[tuple[int, float]]) -> ValueCell:
    """The geometric mean over fleets of pairs of a fleet and seconds, with its interval."""
    mean = ratio_over_fleets(means_of_fleets(pairs))
    text = f"{_digits(mean.mean)} [{_digits(mean.low)}, {_digits(mean.high)}]"
    return ValueCell(text, Estimate(mean.mean, mean.low, mean.high, mean.num_fleets))


def _digits(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"


def _trends(entries: Sequence[Entry], tables: Sequence[SummaryTable]) -> list[Trend]:
    """How many frameworks have a place; the paper claims nothing about this."""
    trends = []
    for table in tables:
        missing = [row[0] for row in table.rows if row[3] == NOT_TRAINED]
        ours = f"{len(entries) - len(missing)} of {len(entries)} frameworks have a place"
        ours += f"; not trained yet: {', '.join(missing)}" if missing else ""
        trends.append(Trend(f"(not in the paper) {table.title}", ours, None))
    return trends


def leaderboard_markdown(tables: Sequence[SummaryTable], scale: str) -> str:
    """All tables, with what they are over."""
    parts = [f"### {table.title}\n\n{markdown_rows(table)}\n{table.note}\n" for table in tables]
    return "\n".join([*parts, f"Scale {scale}. {machine()}\n"])
