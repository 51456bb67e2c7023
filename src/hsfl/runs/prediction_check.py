"""A plan beside what runs took: the seconds of each client's phases and of the round, predicted and measured, and the error.

The prediction is plan.json, which is fixed before round 1. A run whose cuts no plan has is judged by its own modelled round, as its first
record has it: that, too, was fixed before round 1. Measured are the real seconds of a run on real machines (`measured` and `wall_s` of its
records), and of a simulation the modelled ones. Of several rounds the median counts.

An error is predicted / measured - 1: +0.1 where the prediction is a tenth longer than what was measured.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from pydantic import Field

from hsfl.config import RunConfig, flatten
from hsfl.errors import InputError
from hsfl.files import read_record
from hsfl.formats import count, seconds
from hsfl.framework_table import METHODS, PROPOSED
from hsfl.network.round_end import END_PARTS
from hsfl.runs.from_plan import PLAN_FILE, read_plan
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.run_folder.records import Index, Positive, RoundRecord
from hsfl.runs.run_folder.round_phases import modelled_phases_s

MUST_AGREE = ("model.name", "train.batch_size", "train.local_epochs")  # for a plan to speak for a run


@dataclass(frozen=True)
class RoundSpan:
    """The rounds that are looked at. The first round of a run is no typical one: processes warm up."""

    first: int = 2
    last: int | None = None  # the run's last round

    @classmethod
    def parse(cls, text: str) -> "RoundSpan":
        """From a text such as 2-6, 2- or 3."""
        match = re.fullmatch(r"(\d{1,9})(-(\d{1,9})?)?", text.strip())
        first, last = (int(match[1]), match[3] if match[2] else match[1]) if match else (0, None)
        if first < 1 or (last is not None and int(last) < first):
            raise InputError(f"--rounds {text} names no rounds; write 2-6, 2- or 3, where rounds count from 1")
        return cls(first, None if last is None else int(last))

    def __contains__(self, number: int) -> bool:
        return self.first <= number and (self.last is None or number <= self.last)

    def __str__(self) -> str:
        return f"{self.first}-{'' if self.last is None else self.last}"


@dataclass(frozen=True)
class Compared:
    """Predicted and measured seconds."""

    predicted_s: float
    measured_s: float  # median
    low_s: float  # least and most that was measured
    high_s: float
    error: float | None  # predicted / measured - 1; None where nothing took time


def compared(predicted_s: float, measured: Sequence[float]) -> Compared:
    """A prediction beside what was measured several times."""
    middle = median(measured)
    error = predicted_s / middle - 1 if middle > 0 else None
    return Compared(predicted_s, middle, min(measured), max(measured), error)


@dataclass(frozen=True)
class ComparedClient(Compared):
    """All phases of a client together, and each of them by name."""

    client: int  # its number in the plan
    name: str
    cut: int
    phases: dict[str, Compared]


@dataclass(frozen=True)
class ComparedRun(Compared):
    """The round of a run, and its clients."""

    run: str  # the folder
    plan: str | None  # whose cuts the run has; None where the prediction is the run's own
    framework: str
    cuts: list[int]  # [K], in the plan's order of clients
    measured: bool  # on real machines; else simulated
    rounds: list[int]  # that are compared
    rounds_s: list[float]  # how long each of them took
    ending_s: float | None  # of the round's end, median; None where nobody timed it
    ending: dict[str, Compared]  # of its parts, where they were timed; nothing predicted is 0
    clients: list[ComparedClient]
    notes: list[str]


# --- the plan


@dataclass(frozen=True)
class PredictedClient:
    """A client in plan.json, as far as it is compared."""

    client: Index
    cut: Index
    name: str
    seconds: dict[str, Positive]  # of each phase over the round


Choice = tuple[list[int], list[str] | None]  # the cut of each client, and its codec where clients have different ones


@dataclass(frozen=True)
class PlannedRound:
    """plan.json, as far as it is compared."""

    cuts: Annotated[list[Index], Field(min_length=1)]
    round_s: Positive
    clients: list[PredictedClient]
    num_samples: int = 1
    ending_s: dict[str, Positive] = field(default_factory=dict)  # of each part of the round's end
    config: dict[str, Any] | None = None
    path: str = ""
    codecs: list[str] | None = None  # [K] where clients have different ones

    @property
    def choice(self) -> "Choice":
        return self.cuts, self.codecs

    @property
    def names(self) -> list[str] | None:
        """The devices' names; None where the plan knows none."""
        names = [client.name for client in self.clients]
        return None if names == [f"client {k}" for k in range(len(names))] else names


def read_planned_round(path: Path) -> PlannedRound:
    file = path / PLAN_FILE if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{path} is no plan; give what hsfl plan --out DIR kept there, the folder or its {PLAN_FILE}")
    config = read_plan(file).config
    plan: PlannedRound = read_record(file, PlannedRound, f"give the {PLAN_FILE} that hsfl plan keeps with --out DIR")
    if len(plan.clients) != len(plan.cuts):
        raise InputError(
            f"{file} has {len(plan.clients)} clients with seconds of {len(plan.cuts)}, as plans of large fleets do; plan a smaller fleet"
        )
    return replace(plan, config=config, path=str(path))


def check_same_fleet(plans: Sequence[PlannedRound]) -> None:
    """Refuse plans of different fleets, and two plans of the same cuts: each run has one prediction."""
    for place, plan in enumerate(plans):
        if len(plan.cuts) != len(plans[0].cuts) or plan.names != plans[0].names:
            raise InputError(f"{plan.path} and {plans[0].path} are plans of different fleets; compare them one by one")
        for other in plans[:place]:
            if other.choice == plan.choice:
                raise InputError(f"{plan.path} and {other.path} have the same cuts; leave one of the plans out")


# --- a run


@dataclass(frozen=True)
class _Rounds:
    """A run as it is compared. clients: [K] the run's number of each client of the plan."""

    folder: RunFolder
    records: list[RoundRecord]
    clients: list[int]

    def choice(self, record: RoundRecord) -> Choice:
        """Cuts and codecs in the plan's order of clients."""
        codecs = record.codecs and [record.codecs[client] for client in self.clients]
        return [record.cuts[client] for client in self.clients], codecs


def compare_run(plans: Sequence[PlannedRound], path: Path, span: RoundSpan) -> ComparedRun:
    """Compare a run with the plan that has its cuts, or else with its own model."""
    folder = RunFolder(path)
    if not folder.rounds_path.is_file() or not folder.config_path.is_file():
        raise InputError(f"{path} is no folder of a run; give what hsfl run --out or a main server's `out` wrote")
    config, run = folder.config(), _read_rounds(folder, plans[0])
    chosen = [record for record in run.records if record.round in span]
    if not chosen:
        raise InputError(f"{path} has {count(len(run.records), 'round')}, none of --rounds {span}; choose others")
    plan = _plan_of(plans, config, run, chosen)
    choice = run.choice(run.records[0]) if plan is None else plan.choice
    counted, cuts = [record for record in chosen if run.choice(record) == choice], choice[0]
    if not counted:
        raise InputError(
            f"{path} has no round of --rounds {span} with the cuts of its first round or of a plan; give their plan, too"
        )
    predicted = _own_prediction(run) if plan is None else [client.seconds for client in plan.clients]
    rounds_s = [_round_s(record) for record in counted]
    endings = [parts for parts in map(_taken_ending_s, counted) if parts]
    round_s = run.records[0].round_s if plan is None else plan.round_s
    return ComparedRun(
        **vars(compared(round_s, rounds_s)),
        run=str(path),
        plan=None if plan is None else plan.path,
        framework=config.framework,
        cuts=cuts,
        measured=counted[0].measured is not None,
        rounds=[record.round for record in counted],
        rounds_s=rounds_s,
        ending_s=median(sum(parts.values()) for parts in endings) if endings else None,
        ending=_compare_endings(run.records[0].modelled_ending_s or {} if plan is None else plan.ending_s, endings),
        clients=_compare_clients(plans[0].clients, cuts, predicted, run, counted),
        notes=[*_prediction_notes(plans, plan, config, run), *_round_notes(predicted, chosen, counted)],
    )


def _read_rounds(folder: RunFolder, plan: PlannedRound) -> _Rounds:
    """The run's rounds; a run of another fleet than the plan's is refused. Clients with names are found by name: a main server
    gives its seats in an order of its own."""
    records, clients = folder.rounds(), folder.clients()
    if any(record.crowd is not None for record in records):
        raise InputError(f"{folder.path} has no seconds of each client, as its fleet is large; compare smaller runs")
    num_clients = len(plan.cuts)
    if records and len(records[0].cuts) != num_clients:
        raise InputError(
            f"{folder.path} has {count(len(records[0].cuts), 'client')} and {plan.path} {num_clients}; give runs of the plan's fleet"
        )
    names = None if clients is None else clients.names
    if plan.names is None or names is None:
        return _Rounds(folder, records, list(range(num_clients)))
    if missing := [name for name in plan.names if name not in names]:
        raise InputError(
            f"{folder.path} has no client {missing[0]!r}, which {plan.path} has; give runs of the plan's fleet"
        )
    return _Rounds(folder, records, [names.index(name) for name in plan.names])


def _plan_of(
    plans: Sequence[PlannedRound], config: RunConfig, run: _Rounds, chosen: Sequence[RoundRecord]
) -> PlannedRound | None:
    """The plan that has the cuts of most of these rounds; None where no plan has the cuts of any, or where the framework's clients
    do not go round as those of a plan do."""
    if not _goes_as_planned(config.framework, plans[0]):
        return None
    best = max(plans, key=lambda plan: sum(run.choice(record) == plan.choice for record in chosen))
    return best if any(run.choice(record) == best.choice for record in chosen) else None


def _goes_as_planned(framework: str, plan: PlannedRound) -> bool:
    """Whether the clients of a framework go round as those of a plan do, whatever their cuts."""
    row = METHODS.get(framework)
    if row is None or row.timeline is not None:  # a plugin's
        return framework == (plan.config or {}).get("framework")
    return replace(row.timing, cut="any") == METHODS[PROPOSED].timing


def _own_prediction(run: _Rounds) -> list[dict[str, float]]:
    """The seconds of each client's phases in the run's own model of its first round; none of a client that did not take part."""
    record = run.records[0]
    modelled = [modelled_phases_s(record, client) if client in record.started else {} for client in run.clients]
    queued = any(spent.get("waiting") for spent in modelled)
    return [{phase: value for phase, value in spent.items() if queued or phase != "waiting"} for spent in modelled]


def _compare_clients(
    clients: Sequence[PredictedClient],
    cuts: Sequence[int],
    predicted: Sequence[dict[str, float]],
    run: _Rounds,
    counted: Sequence[RoundRecord],
) -> list[ComparedClient]:
    """A comparison for each client that was kept in one of the rounds; phases that take no time are left out."""
    rows = []
    for client, cut, prediction, number in zip(clients, cuts, predicted, run.clients):
        taken = [_as_predicted(_taken_s(record, number), prediction) for record in counted if number in record.kept]
        names = [name for name in prediction if all(name in spent for spent in taken)]
        if not taken or not names:
            continue
        values = {name: [spent[name] for spent in taken] for name in names}
        together = compared(sum(prediction[name] for name in names), [sum(column) for column in zip(*values.values())])
        phases = {name: compared(prediction[name], values[name]) for name in names}
        phases = {name: phase for name, phase in phases.items() if phase.predicted_s > 0 or phase.high_s > 0}
        rows.append(ComparedClient(**vars(together), client=client.client, name=client.name, cut=cut, phases=phases))
    return rows


def _as_predicted(spent: dict[str, float], prediction: dict[str, float]) -> dict[str, float]:
    """Where the prediction knows no waiting, a client's part of the server stands for the server and the waiting for it."""
    if "waiting" in prediction or "waiting" not in spent or "server" not in spent:
        return spent
    return spent | {"server": spent["server"] + spent["waiting"]}


def _taken_s(record: RoundRecord, client: int) -> dict[str, float]:
    """The seconds that a kept client spent on each phase: on real machines measured, else modelled."""
    if record.measured is None:
        return modelled_phases_s(record, client)
    took_s = {phase: values[client] for phase, values in record.measured.items()}
    return {phase: value for phase, value in took_s.items() if value is not None}


def _round_s(record: RoundRecord) -> float:
    return record.round_s if record.measured is None else record.wall_s


def _taken_ending_s(record: RoundRecord) -> dict[str, float] | None:
    """Seconds of each part of the round's end, where the record has them: on real machines measured, else modelled."""
    return record.modelled_ending_s if record.measured is None else record.ending_s


def _compare_endings(predicted: dict[str, float], endings: Sequence[dict[str, float]]) -> dict[str, Compared]:
    """Each part of the round's end that was predicted or took time; the median is over the rounds that have the part, as not all are
    tested."""
    taken = {part: [parts[part] for parts in endings if part in parts] for part in END_PARTS}
    rows = {part: compared(predicted.get(part, 0.0), values) for part, values in taken.items() if values}
    return {part: row for part, row in rows.items() if row.predicted_s > 0 or row.high_s > 0}


def _prediction_notes(
    plans: Sequence[PlannedRound], plan: PlannedRound | None, config: RunConfig, run: _Rounds
) -> list[str]:
    """What a reader must know of a run's prediction."""
    notes = []
    if plan is None:
        reason = "this run did other cuts"
        if not _goes_as_planned(config.framework, plans[0]):
            reason = f"clients of {config.framework} do not go round as planned"
        by_itself = (
            f"the prediction is its own modelled round, {seconds(run.records[0].round_s, 4)}, fixed before round 1"
        )
        notes.append(f"{reason}: {by_itself}{'' if run.records[0].measured else ' (a simulation agrees with itself)'}")
    elif plan.num_samples > 1:
        notes.append(
            f"the plan's round is the mean over {plan.num_samples} sampled rounds, its clients' seconds are those of the first"
        )
    in_plan, in_run = flatten((plan or plans[0]).config or {}), flatten(config.model_dump(mode="json"))
    return notes + [
        f"{name} is {in_run[name]} in the run and {in_plan[name]} in the plan"
        for name in MUST_AGREE
        if in_plan.get(name, in_run[name]) != in_run[name]
    ]


def _round_notes(
    predicted: Sequence[dict[str, float]], chosen: Sequence[RoundRecord], counted: Sequence[RoundRecord]
) -> list[str]:
    """What a reader must know of a run's rounds."""
    notes = []
    waited = any(value for record in counted if record.measured for value in record.measured.get("waiting", ()))
    if waited and not any("waiting" in spent for spent in predicted):
        notes.append("server: with the waiting for it, which the prediction does not tell apart")
    if num_others := len(chosen) - len(counted):
        notes.append(f"{count(num_others, 'round')} with other cuts left out")
    if num_short := sum(len(record.kept) < len(record.cuts) for record in counted):
        notes.append(f"{num_short} of {count(len(counted), 'round')} did not keep all clients")
    return notes
