"""Traces: what a training gave, round by round, without any clock; and a trace under a fleet's clock.

A trace is one small CSV whose first line is a comment in JSON: the settings, how many samples each client has, and the machine.
`pandas.read_csv(path, comment="#")` reads the table. Traces that lie in a folder of results are taken as trained.

With nobody dropped and a constant learning rate, what is learned after a round does not depend on how long the round took. So one training
serves every fleet, and only the seconds differ: `at_budget` says how far a column comes within a budget of simulated seconds, `time_to_s`
when it reaches a target.

Legend: K clients.
"""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hsfl.config import RunConfig, parse_config
from hsfl.errors import InputError
from hsfl.experiments.common import AGAIN, UNREADABLE, finite
from hsfl.experiments.study_request import StudyRequest
from hsfl.experiments.table1.columns import trace_config
from hsfl.experiments.table1.learned_settings import learned_settings
from hsfl.files import write_atomic
from hsfl.framework_table import method
from hsfl.runs.run_folder.folder import RunFolder, path_name, run_path
from hsfl.runs.run_folder.records import RoundRecord
from hsfl.runs.studies.compare_runs import has_ended, run_or_resume, run_piece
from hsfl.runs.studies.run_many import Piece, run_all

FIELDS = ("round", "train_loss", "test_loss", "test_accuracy", "balanced_accuracy", "recall")
AVERAGED = {  # the same with averaged statistics of BatchNorm, where the others are of estimated ones
    "averaged_loss": "test_loss",
    "averaged_accuracy": "test_accuracy",
    "averaged_balanced_accuracy": "balanced_accuracy",
}
Array = np.ndarray


@dataclass(frozen=True)
class TraceRound:
    """Losses and accuracies after a round; None where the round was not evaluated or nobody trained."""

    round: int  # 1, 2, ...
    train_loss: float | None
    test_loss: float | None
    test_accuracy: float | None
    balanced_accuracy: float | None
    recall: tuple[float | None, ...]  # by class
    averaged_loss: float | None = (
        None  # these three with averaged statistics of BatchNorm, where the others are of estimated ones
    )
    averaged_accuracy: float | None = None
    averaged_balanced_accuracy: float | None = None


@dataclass(frozen=True)
class Trace:
    """One training of one seed."""

    data: str
    name: str  # twins, or a framework
    seed: int
    config: RunConfig
    num_samples: tuple[int, ...]  # [K] of training, of each client
    rounds: tuple[TraceRound, ...]
    environment: dict[str, Any]

    def values(self, quantity: str) -> list[float | None]:
        """A quantity after every round."""
        return [getattr(record, quantity) for record in self.rounds]


def trace_file_name(data: str, name: str, scale: str, seed: int) -> str:
    """The name of the file of a trace."""
    return f"{data}-{path_name(name)}-{scale}-seed-{seed}.csv"


def find_trace(request: StudyRequest, data: str, name: str, seed: int) -> Trace:
    """The trace in the request's folder, else the one among the shipped results, else trained now."""
    config = trace_config(data, request.scale, seed, name, request.data_dir)
    paths = _paths(request, data, name, seed)
    if (trace := _known(config, paths)) is not None:
        return trace
    title = f"{data}, {name}, seed {seed}"
    for path in filter(Path.exists, paths):
        request.say(
            f"{title}: {path} has other settings or fewer than {config.train.rounds} rounds, so it does not count"
        )
    request.say(f"{title}: training {config.train.rounds} rounds")
    folder = run_path(request.out / "runs" / data, name, seed)
    run_or_resume(config, folder, request.make_observer(title))
    return write_trace(paths[0], folder, data, name)


def known_trace(request: StudyRequest, data: str, name: str, seed: int) -> Trace | None:
    """The trace in the request's folder, else the one among the shipped results; None where it would have to be trained."""
    config = trace_config(data, request.scale, seed, name, request.data_dir)
    return _known(config, _paths(request, data, name, seed))


def _known(config: RunConfig, paths: Iterable[Path]) -> Trace | None:
    """The trace of these settings; None if it must be trained."""
    for path in paths:
        if path.exists() and trace_fits(trace := read_trace(path), config):
            return trace
    return None


def _paths(request: StudyRequest, data: str, name: str, seed: int) -> list[Path]:
    """Where the trace may lie: in the request's folder, which comes first, or among the shipped results."""
    folders = [request.out / "traces", *([] if request.shipped is None else [request.shipped])]
    return [folder / trace_file_name(data, name, request.scale, seed) for folder in folders]


def train_ahead(request: StudyRequest, trainings: Iterable[tuple[str, str, int]]) -> None:
    """Train side by side what `find_trace` would train one after another. trainings: data set, trace and seed of each."""
    if request.jobs == 1:
        return
    pieces = []
    for data, name, seed in trainings:
        config = trace_config(data, request.scale, seed, name, request.data_dir)
        if _known(config, _paths(request, data, name, seed)) is None:
            path = run_path(request.out / "runs" / data, name, seed)
            pieces.append(Piece(f"{data}, {name}, seed {seed}", f"{data}, {name}", config, path))
    run_all(pieces, run_piece, has_ended, request.jobs, request.show)


def trace_fits(trace: Trace, config: RunConfig) -> bool:
    """Whether a trace learned with these settings, for at least as many rounds, and was tested at least as often."""
    cuts_matter = not method(config.framework).copy_per_client
    theirs, ours = (learned_settings(source, cuts_matter) for source in (trace.config, config))
    rounds, interval = config.train.rounds, config.train.eval_every
    if theirs != ours or len(trace.rounds) < rounds:
        return False
    tested = {record.round for record in trace.rounds if record.test_loss is not None}
    return {*range(interval, rounds + 1, interval)} <= tested


def write_trace(path: Path, run: Path, data: str, name: str) -> Trace:
    """Write what a run folder's rounds learned as a trace file."""
    folder = RunFolder(run)
    config, clients = folder.config(), folder.clients()
    assert clients is not None
    machine = asdict(folder.environment())
    environment = {key: machine[key] for key in ("processor", "num_threads", "packages", "python")}
    tree = config.model_dump(mode="json")
    tree["data"]["dir"] = None  # a folder of this machine, which no reader needs
    about = {"data": data, "trace": name, "num_samples": clients.num_samples, "environment": environment}
    records = folder.rounds()
    averaged = tuple(AVERAGED) if any(record.averaged for record in records) else ()
    lines = [f"# {json.dumps(about | {'config': tree})}", ",".join((*FIELDS, *averaged))]
    lines += [",".join(_cells(record, averaged)) for record in records]
    write_atomic(path, lambda scratch: scratch.write_text("\n".join(lines) + "\n"))
    return read_trace(path)


def _cells(record: RoundRecord, averaged: Iterable[str]) -> list[str]:
    numbers = [record.train_loss, record.test_loss, record.test_accuracy, record.balanced_accuracy]
    beside: dict[str, Any] = dict(record.averaged or {})
    cells = [str(record.round), *map(_number, numbers), " ".join(map(_number, record.recall or []))]
    return [*cells, *(_number(beside.get(AVERAGED[name])) for name in averaged)]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def read_trace(path: Path) -> Trace:
    """The trace in a file; an error where the file is damaged."""
    try:
        first, *lines = path.read_text().splitlines()
        about = json.loads(first.removeprefix("#"))
        rows = list(csv.DictReader(lines))
        config = parse_config(about["config"], of_a_folder=True)
        rounds = tuple(_round(row) for row in rows)
        if [record.round for record in rounds] != list(range(1, len(rounds) + 1)):
            raise ValueError("rounds do not count 1, 2, ...")
        num_samples = tuple(int(number) for number in about["num_samples"])
        if len(num_samples) != config.fleet.num_clients or min(num_samples) < 0:
            raise ValueError(f"num_samples is {num_samples}")
        environment = dict(about["environment"])
        return Trace(str(about["data"]), str(about["trace"]), config.seed, config, num_samples, rounds, environment)
    except UNREADABLE as error:
        raise InputError(f"{path} is not a trace ({' '.join(str(error).split())}); {AGAIN}") from None


def _round(row: dict[str, str]) -> TraceRound:
    numbers = {name: _value(row[name]) for name in (*FIELDS[1:5], *(name for name in AVERAGED if name in row))}
    recall = tuple(_value(cell) for cell in row["recall"].split())
    if wrong := [
        value
        for value in (*(value for name, value in numbers.items() if name.endswith("accuracy")), *recall)
        if not 0 <= (value or 0) <= 1
    ]:
        raise ValueError(f"round {row['round']} has {wrong[0]:g} where a fraction is expected")
    return TraceRound(round=int(row["round"]), recall=recall, **numbers)


def _value(text: str) -> float | None:
    return None if text == "-" else finite(text)


def largest_difference(left: Trace, right: Trace) -> float:
    """The largest relative difference between the training losses of two traces, over the rounds that both have; 1 where a
    loss is unknown."""
    pairs = zip(left.values("train_loss"), right.values("train_loss"))
    return max(1.0 if a is None or b is None else abs(a - b) / max(abs(a), abs(b), 1e-300) for a, b in pairs)


# ---- a trace under a fleet's clock


@dataclass(frozen=True)
class Reached:
    """Where a column stands when the budget is spent."""

    rounds: int  # made within the budget
    short: bool  # the trace ends before the budget: the column could have gone on
    value: (
        float | None
    )  # of the quantity after the last of these rounds that was tested; None where no tested round fits


def ends_s(round_s: Sequence[float], num_rounds: int) -> Array:
    """When each of the first rounds ends, [num_rounds]."""
    return np.cumsum(np.asarray(round_s, float)[:num_rounds])


def at_budget(trace: Trace, round_s: Sequence[float], budget_s: float, quantity: str = "test_accuracy") -> Reached:
    """The last round that ends within the budget (up to rounding), and the quantity after that round, or after the last round
    before it that was tested."""
    ends = ends_s(round_s, len(trace.rounds))
    rounds = int(np.searchsorted(ends, budget_s * (1 + 1e-9), side="right"))
    tested = [value for value in trace.values(quantity)[:rounds] if value is not None]
    value = tested[-1] if tested else None
    whole = rounds == len(ends)
    return Reached(rounds, whole and ends[-1] + round_s[min(rounds, len(round_s) - 1)] <= budget_s, value)


def time_to_s(trace: Trace, round_s: Sequence[float], target: float, quantity: str = "test_accuracy") -> float | None:
    """Seconds to the end of the first round whose value is at least the target; None if the trace never gets there."""
    ends = ends_s(round_s, len(trace.rounds))
    for end_s, value in zip(ends, trace.values(quantity)):
        if value is not None and value >= target:
            return float(end_s)
    return None


def budget_s(published_s: Sequence[float], num_rounds: int) -> float:
    """What SplitFed V1 as published needs for so many rounds on the fleet."""
    return float(np.sum(np.asarray(published_s, float)[:num_rounds]))
