"""The files of a run folder as checked records: what each file holds, and what its numbers must satisfy.

A file may have been damaged, or edited by hand. `hsfl.files.read_record` turns it into one of these records, or into one line
that names the file, the field and its value. Fields that a record does not know (of later versions) are left aside.

Where a fleet is large, lists over clients are empty, and a `crowd` holds quantiles instead (`write_records` computes them).

Legend: K clients, C classes, I subchannels, Q quantiles.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field
from typing_extensions import TypedDict  # pydantic reads that of `typing` from Python 3.12 on

from hsfl.formats import QUANTILES, cut_words
from hsfl.network.clock import Why
from hsfl.tasks import ACCURACY, Metric

MOST = 1e300  # sums of a few such numbers are still numbers

Number = Annotated[float, Field(ge=-MOST, le=MOST, allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=2**62)]
Index = Annotated[int, Field(ge=0, le=2**31)]


def _check_length(name: str, values: Sequence[Any], num_clients: int) -> None:
    """Refuse a list over clients that has not one entry for each client. name: of the list, for the error."""
    if len(values) != num_clients:
        raise ValueError(f"{name} has {len(values)} entries and the number of clients is {num_clients}")


# --- rounds.jsonl


class Times(TypedDict):
    """When a phase of each client begins and ends, in seconds from the start of the round."""

    start_s: list[Number]  # [K]
    end_s: list[Number]  # [K]


class AllocationNote(TypedDict, total=False):
    """What a policy says of its answer. A policy of a plugin may say more."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    policy: str
    status: str
    gap: Number | None
    lower_bound_s: Number | None
    seconds: Number | None
    server_hz: list[Number]  # [K]
    share: list[Number]  # [K] of the band
    up_power_w: list[Number]  # [K]
    down_power_w: list[Number]  # [K]
    owner: list[int]  # [I] -1: nobody


class Averaged(TypedDict):
    """How good a model is with BatchNorm's averaged statistics, where it was tested with estimated ones."""

    test_loss: Number
    test_accuracy: Fraction | None
    balanced_accuracy: Fraction | None


class Coded(TypedDict):
    """How good a model is when it is split and smashed data go through their codec: the mean over the clients, each with its cut."""

    test_loss: Number
    test_accuracy: Fraction | None
    balanced_accuracy: Fraction | None
    metrics: dict[str, Number]


class RoundCrowd(TypedDict):
    """A round of a large fleet. Quantiles are over the clients that took part."""

    num_clients: Count
    num_started: Count
    num_kept: Count
    cuts: dict[str, Count]  # how many of those that took part have each cut
    finish_s: list[Number]  # [Q] when a client's own part is over
    waiting_s: list[Number]  # [Q]
    phases_s: dict[str, list[Number]]  # [Q] seconds of each phase over the round
    straggler_s: dict[str, Number]  # seconds of each phase of the straggler


PER_CLIENT = ("server_hz", "share", "up_power_w", "down_power_w")  # fields of Says


def _finite(why: Why) -> Why:
    if not all(map(math.isfinite, (why.seconds, why.own_s, why.amount, why.per_second))):
        raise ValueError("one of its numbers is infinite or NaN")
    return why


Held = Annotated[Why, AfterValidator(_finite)]


@dataclass(frozen=True)
class RoundRecord:
    """A line of rounds.jsonl."""

    round: Annotated[int, Field(ge=1, le=2**31)]  # 1, 2, ...
    framework: str
    sim_time_s: Positive  # simulated seconds since the run began, at the end of this round
    round_s: Positive  # simulated
    wall_s: Positive
    num_samples: Count  # trained on
    train_loss: Number | None  # None: nobody trained
    test_loss: Number | None  # None: not evaluated in this round
    test_accuracy: Fraction | None
    balanced_accuracy: Fraction | None
    recall: list[Fraction | None] | None  # [C]
    lr: Number
    cuts: list[Index]  # [K]
    started: list[Index]  # clients that took part in the round
    kept: list[Index]  # clients whose update counts
    dropped: list[Index]  # clients that started and passed tau
    straggler: Index | None  # the client that ends last
    waiting_s: list[Number]  # [K] simulated seconds in which nothing worked for the client
    phases: dict[str, Times]  # of each phase that takes time
    allocation: AllocationNote  # what the policy says of its answer, and under `resources` the numbers to recompute it
    bytes: dict[str, Count]  # by link
    why: Held | None = None  # what held the straggler up; None if no client trained, and on real machines
    metrics: dict[str, Number] = field(
        default_factory=dict
    )  # of tasks other than classification, and of plugins, by name
    crowd: RoundCrowd | None = None  # of a large fleet, whose lists over clients are empty, but for those dropped
    measured: dict[str, list[Positive | None]] | None = (
        None  # on real machines: seconds of each phase that clients took, [K], None where a client did not finish; `phases` is the model's
    )

    averaged: Averaged | None = None  # None where BatchNorm's statistics were not estimated
    estimation_s: Positive | None = None  # simulated, of the estimation at the end of the round; a part of round_s
    weights: list[Count] | None = (
        None  # [K] on real machines: what clients counted, where one counted less than its samples
    )
    codecs: list[str] | None = None  # [K] of smashed data and gradients, where clients have different ones
    coded: Coded | None = (
        None  # None where smashed data travel uncoded; test_accuracy and the like are without the codec
    )
    ending_s: dict[str, Positive] | None = None  # on real machines: measured seconds of each part of the round's end
    modelled_ending_s: dict[str, Positive] | None = None  # the same in the model; a part of round_s
    no_quality: str | None = None  # why a model that was tested has no test loss, accuracy and the like

    @property
    def num_clients(self) -> int:
        return len(self.cuts) if self.crowd is None else self.crowd["num_clients"]

    @property
    def cut_labels(self) -> list[str]:
        """The cut of each client for people, [K], with its codec where clients have different ones."""
        if self.codecs is None:
            return [cut_words(cut, None) for cut in self.cuts]
        return [cut_words(cut, codec) for cut, codec in zip(self.cuts, self.codecs)]

    @property
    def num_started(self) -> int:
        return len(self.started) if self.crowd is None else self.crowd["num_started"]

    @property
    def num_kept(self) -> int:
        return len(self.kept) if self.crowd is None else self.crowd["num_kept"]

    def value(self, quantity: str) -> float | None:
        """A loss, an accuracy, the round's seconds or a metric by its name; None where the round was not evaluated or has no such metric."""
        recorded: float | None = (
            getattr(self, quantity) if quantity in (*RECORDED, ROUND_S) else self.metrics.get(quantity)
        )
        return recorded


SELDOM = (  # fields that a line has only where there is something to say
    "averaged",  # where BatchNorm's statistics were estimated
    "ending_s",  # on real machines
    "estimation_s",
    "coded",  # where smashed data are coded
    "modelled_ending_s",  # where the end of a round takes time
    "no_quality",
    "weights",
)
RECORDED = ("test_accuracy", "balanced_accuracy", "train_loss", "test_loss")  # quantities that are fields of a round
ROUND_S = "round_s"  # drawn where it is asked for


def best_round(records: Sequence[RoundRecord], metric: Metric) -> RoundRecord | None:
    """The first of the rounds with the best value of a metric; None where no round has a value."""
    best: tuple[float, RoundRecord] | None = None
    for record in records:
        value = record.value(metric.name)
        if value is not None and (best is None or metric.is_better(value, best[0])):
            best = value, record
    return None if best is None else best[1]


def _consistent_round(record: RoundRecord) -> RoundRecord:
    """Every list over clients has K numbers, and every client is one of the K."""
    num_clients = record.num_clients
    if record.crowd is None and len(record.cuts) != len(record.waiting_s):
        raise ValueError(
            f"cuts has {len(record.cuts)} entries and waiting_s {len(record.waiting_s)}; both have one for each client"
        )
    for name in ("started", "kept", "dropped"):
        _check_clients(name, getattr(record, name), num_clients)
    if record.straggler is not None:
        _check_clients("straggler", [record.straggler], num_clients)
    if record.crowd is not None:
        _check_crowd(record)
        return record
    for phase, times in record.phases.items():
        _check_length(f"phases.{phase}.start_s", times["start_s"], num_clients)
        _check_length(f"phases.{phase}.end_s", times["end_s"], num_clients)
    if record.codecs is not None:
        _check_length("codecs", record.codecs, num_clients)
    for phase, took_s in (record.measured or {}).items():
        _check_length(f"measured.{phase}", took_s, num_clients)
    allocation_note: dict[str, Any] = dict(record.allocation)
    for name in PER_CLIENT:
        if name in allocation_note:
            _check_length(f"allocation.{name}", allocation_note[name], num_clients)
    return record


def _check_crowd(record: RoundRecord) -> None:
    """Refuse lists over clients beside a crowd, and a crowd with a wrong number of quantiles."""
    assert record.crowd is not None
    for name in ("cuts", "started", "kept", "waiting_s", "phases"):
        _check_length(name, getattr(record, name), 0)
    phase_quantiles = {f"phases_s.{phase}": values for phase, values in record.crowd["phases_s"].items()}
    for name, values in {
        "finish_s": record.crowd["finish_s"],
        "waiting_s": record.crowd["waiting_s"],
        **phase_quantiles,
    }.items():
        if len(values) != len(QUANTILES):
            raise ValueError(f"crowd.{name} has {len(values)} entries, not {len(QUANTILES)} quantiles")


def _check_clients(name: str, clients: Sequence[int], num_clients: int) -> None:
    for client in clients:
        if client >= num_clients:
            raise ValueError(f"{name} names client {client} but the clients are 0 to {num_clients - 1}")
    if len(set(clients)) < len(clients):
        raise ValueError(f"{name} names a client twice")


CheckedRound = Annotated[RoundRecord, AfterValidator(_consistent_round)]


# --- the other files


class ClientsCrowd(TypedDict):
    """Data and devices of a large fleet; cuts.json has the cut of each client."""

    num_clients: Count
    num_samples: list[Number]  # [Q]
    class_counts: list[Count]  # [C] over all clients
    cuts: dict[str, Count]  # how many clients have each cut
    max_cut: dict[str, Count]
    flops_per_s: list[Number]  # [Q]
    max_power_w: list[Number]  # [Q]


@dataclass(frozen=True)
class ClientsRecord:
    """clients.json, who takes part: data and device of each of the K clients."""

    num_samples: list[Count]  # [K] training samples
    class_counts: list[list[Count]]  # [K][C]; an empty list for each client where there are no classes
    class_names: list[str]  # [C]
    cuts: list[Index]  # [K] as the framework uses them
    max_cut: list[Index]  # [K] as deep as the device can hold
    cpu_hz: list[Number]  # [K] mean cycles per second
    max_power_w: list[Number | None]  # [K] uplink; None where links are measured and no power was given
    input_shape: list[Index]  # of a sample, as the model gets it
    num_outputs: Count | None = (
        None  # that the model gives for a sample (or token, or pixel); None: a number for each class
    )
    unit_names: list[str] = field(default_factory=list)  # of the model, in order; empty where a fleet is large, or real
    names: list[str] | None = None  # [K] of the devices, where a fleet file or the data name them
    flops_per_s: list[Number] | None = None  # [K] mean speed; None where a fleet is large
    main_flops_per_s: Number = field(kw_only=True)  # of the main server, as the config or the fleet file says
    crowd: ClientsCrowd | None = None  # of a large fleet, whose lists over clients are empty
    notes: list[str] = field(default_factory=list)  # what a person should know, as the run warned when it began
    redrawn: bool = False  # each client's samples were drawn with replacement, so that clients share samples
    versions: list[dict[str, str] | None] | None = None  # [K] on real machines: of hsfl, torch and Python
    evaluated_by: str | None = None  # on real machines: whose test samples judge the model (here, clients or none)


def _consistent_clients(record: ClientsRecord) -> ClientsRecord:
    for name in ("class_counts", "cuts", "max_cut", "cpu_hz", "max_power_w"):
        _check_length(name, getattr(record, name), len(record.num_samples))
    for name in ("names", "flops_per_s", "versions"):
        if getattr(record, name) is not None:
            _check_length(name, getattr(record, name), len(record.num_samples))
    for k, counts in enumerate(record.class_counts):
        if len(counts) != len(record.class_names):
            raise ValueError(f"class_counts[{k}] has {len(counts)} entries but class_names {len(record.class_names)}")
    return record


CheckedClients = Annotated[ClientsRecord, AfterValidator(_consistent_clients)]


@dataclass(frozen=True)
class EnvironmentRecord:
    """environment.json: the machine and the versions that the numbers come from."""

    python: str | None = None
    platform: str | None = None
    processor: str | None = None
    num_cpus: Count | None = None
    num_threads: Count | None = None
    packages: dict[str, str] = field(default_factory=dict)  # versions
    sources_sha256: str | None = None
    inputs: dict[str, str] = field(default_factory=dict)  # sha256 of the files that the config names, by field


@dataclass(frozen=True)
class CutsRecord:
    """cuts.json: the cuts that the run was given or chose."""

    cuts: list[Index]  # [K]
    note: str | None = None  # what to say of a search for cuts that its time limit stopped
    codecs: list[str] | None = None  # [K] where clients have different ones, as in `link.codecs`


@dataclass(frozen=True)
class RunEnd:
    """summary.json, as far as it is read back: how the run ended, and how many rounds it counted."""

    status: str
    rounds: Count | None = None


@dataclass(frozen=True)
class PluginFile:
    """A plugin that a run used."""

    file: str
    sha256: str
    gives: list[str] = field(default_factory=list)  # "policy mine", ...


@dataclass(frozen=True)
class PluginsRecord:
    """plugins.json, plain data that anybody may have written: it is looked at and never run."""

    plugins: list[PluginFile] = field(default_factory=list)
    framework: dict[str, Any] | None = None  # the row of a framework that is not built in


@dataclass(frozen=True)
class ContenderRecord:
    """A contender in compare.json or sweep.json; `runs.studies.contender_names` chooses its name and folder."""

    name: Annotated[str, Field(min_length=1, max_length=200)]  # as tables, legends and pages show it
    folder: Annotated[str, Field(pattern=r"^[a-z0-9_][a-z0-9._-]*$", max_length=100)]  # which holds its runs
    framework: str
    settings: dict[str, Any]  # its own, by the field's full name: where it differs from what all share
    text: str  # what was asked for, without a name: `hsfl,fleet.cuts=fastest`
    is_named: bool = False  # whether a person chose the name


@dataclass(frozen=True)
class ContendersRecord:
    """compare.json and sweep.json, as far as it says who is in which folder."""

    contenders: dict[str, ContenderRecord] = field(default_factory=dict)  # by label


@dataclass(frozen=True)
class CompareRecord:
    """compare.json: what a comparison was asked for."""

    config: dict[str, Any]
    inputs: dict[str, str]  # as in EnvironmentRecord
    contenders: dict[str, ContenderRecord] = field(default_factory=dict)  # by label


@dataclass(frozen=True)
class RunStanding:
    """Where a run stands, the note `progress` of a checkpoint: how many rounds it has done, and which gave the best model."""

    rounds_done: Count
    best: Number | None  # of the task's first metric; None: no round was tested yet
    best_round: Count | None


def standing_after(standing: RunStanding, record: RoundRecord, metric: Metric = ACCURACY) -> RunStanding:
    """Where a run stands after a round."""
    value, best = record.value(metric.name), standing.best
    if value is not None and (best is None or metric.is_better(value, best)):
        return RunStanding(record.round, value, record.round)
    return RunStanding(record.round, best, standing.best_round)


@dataclass(frozen=True)
class MetricRecord:
    """A metric of a task, as `hsfl.tasks.Metric` has it."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    title: Annotated[str, Field(max_length=60)]
    higher_is_better: bool = True
    percent: bool = False


@dataclass(frozen=True)
class TaskRecord:
    """task.json: what the model learned, where that is not classification; the metric that is shown first comes first."""

    name: str
    metrics: Annotated[list[MetricRecord], Field(min_length=1)]
