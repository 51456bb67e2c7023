"""Table 1: accuracy at one budget of simulated seconds, over many fleets from few trainings.

Every trace (one training of one seed) is timed on every fleet for every column that shares it. The budget of a fleet is what
SplitFed V1 as published needs there for R rounds; R is half of the rounds that were trained. The table also has a half and a
quarter of the budget. Nobody is dropped (tau none). Folder: `traces/` (CSV), `runs/` (run folders of what was trained here), `fleets/`.
"""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from hsfl.experiments.common import Outcome, Trend, write_text
from hsfl.experiments.study_request import StudyRequest
from hsfl.experiments.table1 import tau_row
from hsfl.experiments.table1.columns import COLUMNS, TAU_DATA, TWINS, seeds_of
from hsfl.experiments.table1.fleets import write_cuts
from hsfl.experiments.table1.table1_report import learning_over_fleets, table1_markdown, table1_tables, table1_trends
from hsfl.experiments.table1.table1_study import ColumnTiming, Study, TableCell, column_timings, make_study, table_cells
from hsfl.experiments.table1.traces import (
    find_trace,
    largest_difference,
    train_ahead,
)
from hsfl.files import write_csv
from hsfl.framework_table import PROPOSED
from hsfl.report.figure_style import save_figure

SAME_LOSS = 1e-3  # relative: what the order of sums in float32 may change within some rounds


def reproduce_table1(request: StudyRequest) -> Outcome:
    """Train what is missing, time it on every fleet, and write the tables."""
    study = make_study(request)
    checked = [(data, name, study.seeds[0]) for data in study.data_sets for name in _twins_of(study)]
    train_ahead(request, checked)
    same = _check_twins(request, study)
    rows = []
    if TAU_DATA in request.datasets and request.scale != "smoke":
        rows = tau_row.reproduce_tau_row(request, seeds_of(request.scale, request.num_seeds))
    return _draw_table1(request.out, request.scale, study, rows, same)


def _twins_of(study: Study) -> list[str]:
    """The columns named as their framework that are one algorithm a round, HSFL first; nothing where HSFL is alone."""
    other_twins = [name for name in TWINS if name != PROPOSED and name in study.columns]
    return [PROPOSED, *other_twins] if other_twins else []


def _check_twins(request: StudyRequest, study: Study) -> list[Trend]:
    """HSFL, SplitFed V1 and FL, each trained by itself for some rounds of the first seed, must have the same training losses.

    HSFL is trained for this, too, although the twins' trace is HSFL's: that trace may come from another machine, whose kernels round otherwise.
    """
    seed, apart, rounds = study.seeds[0], 0.0, 0
    names = _twins_of(study)
    if not names:
        return []
    for data in study.data_sets:
        ours, *other_traces = (find_trace(request, data, name, seed) for name in names)
        apart = max(apart, *(largest_difference(ours, trace) for trace in other_traces))
        rounds = len(ours.rounds)
    claim = f"(not in the paper) round by round {' = '.join(COLUMNS[name].framework for name in names)}"
    finding = f"training losses differ by {apart:.1e} at most, relative, in the {rounds} round(s) that each was trained itself"
    return [Trend(claim, finding, apart <= SAME_LOSS)]


def _draw_table1(
    out: Path, scale: str, study: Study, tau_rows: Sequence[tau_row.TauRow] = (), checks: Sequence[Trend] = ()
) -> Outcome:
    """CSV, figures and tables."""
    cells, times = list(table_cells(study)), list(column_timings(study))
    files = [
        _write(out / "table1.csv", TableCell, cells),
        _write(out / "times.csv", ColumnTiming, times),
        write_cuts(out / f"cuts-{scale}.csv", study.answers),
    ]
    for data in study.data_sets:
        files += save_figure(learning_over_fleets(study, data), out / f"table1-{data}")
    trends, tables = [*table1_trends(cells), *checks], table1_tables(study, cells, times, tau_rows)
    figures = "".join(f"\n![accuracy on {data}](table1-{data}.png)\n" for data in study.data_sets)
    text = table1_markdown(study, cells, tables, trends, scale) + figures
    return Outcome("table1", write_text(out / "table1.md", text), files, trends, tables)


def _write(
    path: Path, kind: type[TableCell] | type[ColumnTiming], records: Sequence[TableCell] | Sequence[ColumnTiming]
) -> Path:
    """Write a CSV with one line for each record; an unknown value is an empty field."""
    names = [field.name for field in fields(kind)]
    values = ([getattr(record, name) for name in names] for record in records)
    return write_csv(path, names, (["" if value is None else value for value in row] for row in values))
