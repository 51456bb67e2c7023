"""The files of a run folder as checked records, apart from its rounds (`round_records`): what each file holds, and what its
numbers must satisfy.

A file may have been damaged, or edited by hand. `hsfl.files.read_record` turns it into one of these records, or into one line
that names the file, the field and its value. Fields that a record does not know (of later versions) are left aside.

Where a fleet is large, lists over clients are empty, and a `crowd` holds quantiles instead (`runs.crowds`).

Legend: K clients, C classes, Q quantiles.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict  # pydantic reads that of `typing` from Python 3.12 on

from hsfl.runs.numbers import Count, Index, Number, check_length
from hsfl.runs.round_records import RoundRecord
from hsfl.tasks import ACCURACY, Metric


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
    num_outputs: Count | None = None  # that the model gives for a sample (or token); None: a number for each class
    unit_names: list[str] = field(default_factory=list)  # of the model, in order; empty where a fleet is large, or real
    names: list[str] | None = None  # [K] of the devices, where a fleet file or the data name them
    flops_per_s: list[Number] | None = None  # [K] mean speed; None where a fleet is large
    main_flops_per_s: Number = field(kw_only=True)  # of the main server, as the config or the fleet file says
    crowd: ClientsCrowd | None = None  # of a large fleet, whose lists over clients are empty
    notes: list[str] = field(default_factory=list)  # what a person should know, as the run warned when it began
    redrawn: bool = False  # each client's samples were drawn with replacement, so that clients share samples


def _consistent_clients(record: ClientsRecord) -> ClientsRecord:
    for name in ("class_counts", "cuts", "max_cut", "cpu_hz", "max_power_w"):
        check_length(name, getattr(record, name), len(record.num_samples))
    for name in ("names", "flops_per_s"):
        if getattr(record, name) is not None:
            check_length(name, getattr(record, name), len(record.num_samples))
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
class CompareRecord:
    """compare.json: what a comparison was asked for."""

    config: dict[str, Any]
    inputs: dict[str, str]  # as in EnvironmentRecord


@dataclass(frozen=True)
class RunStanding:
    """Where a run stands, the note `progress` of a checkpoint: how many rounds it has done, and which gave the best model."""

    rounds_done: Count
    best: Number | None  # of the task's first metric; None: no round was tested yet
    best_round: Count | None


def advance(standing: RunStanding, record: RoundRecord, metric: Metric = ACCURACY) -> RunStanding:
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
