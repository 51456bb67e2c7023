"""Table 1's row with tau: stragglers are dropped, so trainings differ from the first drop on.

tau is twice the median round of SplitFed V1 as published on the fleet; the budget is that of the table. Who is dropped in
which round follows from the clock alone. Until its first drop a column shares the twins' training; there it takes the model
that the twins had and is trained on its own. Fleet and training share their seed.

Where BatchNorm's statistics are estimated, a round that is tested is charged with the estimation, as in the other columns; a client that
estimates is not measured against tau.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from hsfl.config import RunConfig, with_changes
from hsfl.errors import InputError
from hsfl.experiments.common import AGAIN, UNREADABLE, finite
from hsfl.experiments.study_request import StudyRequest
from hsfl.experiments.table1.column_clock import column_clock
from hsfl.experiments.table1.columns import COLUMNS, PUBLISHED, TAU_DATA, TWIN_TRACE, base_config
from hsfl.experiments.table1.fleets import Answer, cost_of, make_point, read_answer, shipped_cuts, solve_points
from hsfl.experiments.table1.traces import Trace, at_budget, budget_s, find_trace
from hsfl.files import write_csv, write_json
from hsfl.framework_table import PROPOSED
from hsfl.frameworks import find_framework
from hsfl.frameworks.framework import RoundResult
from hsfl.models.state import read_state
from hsfl.network.clock import Timeline
from hsfl.planning.fair_defaults import without_auto
from hsfl.planning.rounds.round_clock import is_tested
from hsfl.planning.world import world_of
from hsfl.runs.loop import make_clock
from hsfl.runs.prepare import prepare
from hsfl.runs.progress import Observer
from hsfl.runs.run_folder.checkpoint import save_checkpoint
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.run_folder.records import RunStanding
from hsfl.runs.run_folder.write_records import clients_record, make_round_record
from hsfl.runs.studies.compare_runs import has_ended, run_or_resume
from hsfl.runs.studies.run_many import Piece, run_all
from hsfl.training.evaluation import Quality
from hsfl.training.link import LinkBytes

COLUMNS_WITH_TAU = (PROPOSED, PUBLISHED, "fl")
TAU_ROUNDS = 2.0  # tau, in median rounds of SplitFed V1 as published


def _tau_file(scale: str) -> str:
    """The name of the file of these rows."""
    return f"tau-{scale}.csv"


@dataclass(frozen=True)
class TauRow:
    """One column of one seed when its budget is spent."""

    data: str
    seed: int
    column: str
    tau_s: float
    budget_s: float
    rounds: int
    drops: int  # clients past tau, over all rounds
    first_drop: int | None  # the round, counted from 1
    short: bool  # all rounds that were trained fit into the budget: the column could have gone on
    accuracy: float | None
    balanced_accuracy: float | None


@dataclass(frozen=True)
class OwnTraining:
    """A column that is trained on its own from its first drop on."""

    row: TauRow  # without the accuracies, which its training gives
    config: RunConfig
    path: Path
    trace: Trace  # of the twins
    num_shared: int  # rounds before the first drop

    @property
    def title(self) -> str:
        return f"{self.row.data}, {self.row.column} with tau, seed {self.row.seed}"

    def trained(self) -> TauRow:
        """The row with the accuracies after the last round whose test the row has paid for. A run also tests the last round within its
        budget, whichever that is, and a column that shares the twins' training does not have that test."""
        paid = [record for record in RunFolder(self.path).rounds() if is_tested(self.config.train, record.round - 1)]
        if not paid:
            return self.row
        return replace(self.row, accuracy=paid[-1].test_accuracy, balanced_accuracy=paid[-1].balanced_accuracy)


def reproduce_tau_row(request: StudyRequest, seeds: Sequence[int], data: str = TAU_DATA) -> list[TauRow]:
    """The rows of all columns and seeds, taken from the shipped results where they are there, else trained now, side by side."""
    file = _tau_file(request.scale)
    shipped_rows = read_tau_rows(request.shipped / file) if request.shipped is not None else {}
    entries: list[TauRow | OwnTraining] = []
    for seed in seeds:
        missing = [column for column in COLUMNS_WITH_TAU if (data, seed, column) not in shipped_rows]
        trace = find_trace(request, data, TWIN_TRACE, seed) if missing else None
        for column in COLUMNS_WITH_TAU:
            row = shipped_rows.get((data, seed, column))
            entries.append(row or _timed(request, column, trace))
    _train(request, [entry for entry in entries if isinstance(entry, OwnTraining)])
    rows = [entry.trained() if isinstance(entry, OwnTraining) else entry for entry in entries]
    write_csv(
        request.out / file,
        [field.name for field in fields(TauRow)],
        (["" if v is None else v for v in astuple(r)] for r in rows),
    )
    return rows


def _timed(request: StudyRequest, column: str, trace: Trace | None) -> TauRow | OwnTraining:
    """A column's rounds by the clock: its row where nobody is dropped, so that the twins' training is its own; else what to train."""
    assert trace is not None
    answer = _answer(request, trace)
    tau_s = TAU_ROUNDS * float(np.median(answer.round_s[PUBLISHED]))
    whole_s = budget_s(answer.round_s[PUBLISHED], max(1, len(trace.rounds) // 2))
    config = _config(request, column, trace, answer, tau_s, whole_s)
    timelines, round_s = _clocked(config, column, answer)
    drops, rounds = sum(int(timeline.dropped.sum()) for timeline in timelines), len(timelines)
    first = next((index for index, timeline in enumerate(timelines) if not timeline.kept.all()), None)
    row_start = (trace.data, trace.seed, column, tau_s, whole_s, rounds, drops)
    short = rounds == config.train.rounds
    if first is None:
        plain, balanced = (
            at_budget(trace, round_s, whole_s, quantity) for quantity in ("test_accuracy", "balanced_accuracy")
        )
        return TauRow(*row_start, None, short, plain.value, balanced.value)
    folder = request.out / "runs" / trace.data / f"tau-{column}" / f"seed-{trace.seed}"
    return OwnTraining(TauRow(*row_start, first + 1, short, None, None), config, folder, trace, first)


def _train(request: StudyRequest, trainings: Sequence[OwnTraining]) -> None:
    """Train every column from its first drop on, several at a time where the request has several jobs."""
    for training in trainings:
        request.say(f"{training.title}: trained on its own from round {training.num_shared + 1}")
    pieces = [Piece(training.title, training.row.column, training.config, training.path) for training in trainings]
    work = partial(_fork_and_run, trainings={training.path: training for training in trainings}, out=request.out)
    run_all(pieces, work, has_ended, request.jobs, request.show)


def _fork_and_run(piece: Piece, observer: Observer, trainings: dict[Path, OwnTraining], out: Path) -> None:
    """Begin where the twins were, and train the rest."""
    training = trainings[piece.path]
    fork(training.config, training.path, training.trace, training.num_shared, out)
    run_or_resume(training.config, training.path, observer)


def _answer(request: StudyRequest, trace: Trace) -> Answer:
    """The clocks without tau on the fleet of the trace's own seed."""
    point = make_point(trace.data, request.scale, trace.seed, trace.seed, trace.num_samples, COLUMNS_WITH_TAU)
    solve_points([point], request.out / "fleets", shipped_cuts(request.shipped), request.say)
    return read_answer(request.out / "fleets", point)


def _config(
    request: StudyRequest, column: str, trace: Trace, answer: Answer, tau_s: float, whole_s: float
) -> RunConfig:
    """The run of a column with tau and budget, on the fleet that the seed draws."""
    timed_column = COLUMNS[column]
    cuts = answer.cuts[column]
    config = with_changes(
        base_config(trace.data, request.scale, trace.seed, request.data_dir),
        [
            f"framework={timed_column.framework}", f"allocation.policy={timed_column.policy}", f"fleet.max_cut={answer.max_cut}",
            f"fleet.cuts={cuts}", f"train.tau_s={tau_s!r}", f"train.budget_s={whole_s!r}",
            f"train.rounds={len(trace.rounds)}",
        ],
    )  # fmt: skip
    return without_auto(config)


def _clocked(config: RunConfig, column: str, answer: Answer) -> tuple[list[Timeline], list[float]]:
    """The timelines of the rounds that fit into the budget (up to rounding, as in `at_budget`), and the seconds of those rounds with their
    tests."""
    world = world_of(config, cost_of(config))
    clock = column_clock(config, world, answer.cuts[column], np.array(answer.num_samples))
    everyone, budget_s = tuple(range(len(answer.num_samples))), (config.train.budget_s or np.inf) * (1 + 1e-9)
    timelines, round_s = list[Timeline](), list[float]()
    for index in range(config.train.rounds):
        timeline, _ = clock.round(index, everyone)
        seconds = timeline.round_s + (clock.estimation_s(index, everyone) if is_tested(config.train, index) else 0.0)
        if sum(round_s) + seconds > budget_s:
            break
        timelines.append(timeline)
        round_s.append(seconds)
    return timelines, round_s


def fork(config: RunConfig, path: Path, trace: Trace, num_shared: int, out: Path) -> None:
    """Begin a column's run folder with the rounds that it shares with the twins, and with the twins' model after those rounds."""
    folder = RunFolder(path)
    if folder.checkpoint_path.exists() or num_shared == 0:
        return
    model_path = (
        out / "runs" / trace.data / TWIN_TRACE / f"seed-{trace.seed}" / "models" / f"round-{num_shared}.safetensors"
    )
    if not model_path.exists():
        return  # the twins were trained elsewhere: this column is trained from its first round
    with folder.locked():  # another process may be here, too
        if not folder.checkpoint_path.exists():
            _write_shared(folder, config, trace, num_shared, model_path)


def _write_shared(folder: RunFolder, config: RunConfig, trace: Trace, num_shared: int, model_path: Path) -> None:
    """The shared rounds, and a checkpoint after them."""
    bench = prepare(config)
    bench.task.model.load_state_dict(load_file(model_path))
    task = replace(bench.task, initial=read_state(bench.task.model))
    framework = find_framework(config.framework)(task)
    clock, now_s = make_clock(bench, framework), 0.0
    folder.create(config)
    write_json(folder.clients_path, asdict(clients_record(bench, framework.cuts)))
    everyone = tuple(range(task.num_clients))
    for index, row in enumerate(trace.rounds[:num_shared]):
        timeline, allocation_note = clock.round(index, everyone)
        assert timeline.kept.all()
        quality, averaged, estimation_s = None, None, 0.0
        if row.test_loss is not None:
            quality = Quality(row.test_loss, row.test_accuracy, row.balanced_accuracy, row.recall)
        if row.averaged_loss is not None:
            averaged = Quality(row.averaged_loss, row.averaged_accuracy, row.averaged_balanced_accuracy, ())
            estimation_s = clock.estimation_s(index, everyone)
        num_samples = sum(task.trained_samples(everyone, index).values())
        result = RoundResult(row.train_loss, num_samples, LinkBytes())  # its bytes were not counted
        record = make_round_record(
            framework,
            task,
            index,
            now_s,
            timeline,
            allocation_note,
            result,
            quality,
            0.0,
            averaged=averaged,
            estimation_s=estimation_s,
        )
        folder.append(record)
        now_s = record.sim_time_s
    write_json(folder.path / "trace.json", {"trained_as": TWIN_TRACE, "rounds": num_shared})
    save_checkpoint(folder.checkpoint_path, framework.init(), RunStanding(num_shared, None, None), config)


def read_tau_rows(path: Path) -> dict[tuple[str, int, str], TauRow]:
    """The rows of a CSV file by data set, seed and column; nothing where there is no such file."""
    if not path.exists():
        return {}
    try:
        rows = [_parsed(row) for row in csv.DictReader(path.read_text().splitlines())]
    except UNREADABLE as error:
        raise InputError(f"{path} cannot be read ({error}); {AGAIN}") from None
    return {(row.data, row.seed, row.column): row for row in rows}


def _parsed(row: dict[str, str]) -> TauRow:
    """A row from its line of the CSV; an empty field is an unknown value."""
    kinds: dict[str, Callable[[str], Any]] = {
        "data": str,
        "column": str,
        "seed": int,
        "rounds": int,
        "drops": int,
        "first_drop": int,
        "short": _yes,
    }
    values: dict[str, Any] = {name: kinds.get(name, finite)(text) if text else None for name, text in row.items()}
    return TauRow(**values)


def _yes(text: str) -> bool:
    """True or False as a CSV file holds it; ValueError for other words."""
    if text not in ("True", "False"):
        raise ValueError(f"{text!r} where True or False is expected")
    return text == "True"
