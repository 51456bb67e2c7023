"""The runs of a comparison, read from `OUT/FOLDER/seed-N/`, and the files beside runs that a page shows.

A label is a framework's name, `framework,field=value` where a setting is varied, or a name that a person gave; `compare.json`, or
`sweep.json` beside the points of a sweep, says whose folder is whose, and what people read. A `Run` is a run folder in memory: its rounds
and how it ended. comparison.json, trace.json and plan.json are read as records that are checked (see `hsfl.files.read_record`);
the records that a run folder itself holds are in `hsfl.runs.run_folder.records`.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field

from hsfl.config import RunConfig
from hsfl.errors import InputError, known_name
from hsfl.files import read_record
from hsfl.framework_table import METHODS, Method, Style, read_style
from hsfl.report.curves import Curve, curve
from hsfl.runs.run_folder.folder import RunFolder, run_path
from hsfl.runs.run_folder.records import (
    ClientsRecord,
    ContenderRecord,
    ContendersRecord,
    Count,
    Held,
    Index,
    Number,
    Positive,
    RoundRecord,
)
from hsfl.tasks import ACCURACY, DEFAULT, TASKS, Metric


def read_contenders(out: str | Path) -> dict[str, ContenderRecord]:
    """The contenders of a comparison, or of the sweep of which the folder is a point, by label; empty where no file names them."""
    for path in (Path(out) / COMPARE_FILE, Path(out).parent / SWEEP_FILE):
        if path.is_file():
            record: ContendersRecord = read_record(path, ContendersRecord)
            return record.contenders
    return {}


def run_folders(out: str | Path) -> dict[tuple[str, int], Path]:
    """The folders of a comparison's runs by label and seed; the label of a folder that no file names is the folder's name."""
    labels = {record.folder: label for label, record in read_contenders(out).items()}
    folders = {}
    for path in sorted(Path(out).glob("*/seed-*")):
        if seed := re.fullmatch(r"seed-(\d+)", path.name):
            name = path.parent.name
            label = labels.get(name) or name.replace("%2F", "/").replace("%25", "%")
            folders[label, int(seed[1])] = path
    return folders


@dataclass(frozen=True)
class Look:
    """How a framework that is not built in is shown, from its folder's plain data; nothing of it is ever run."""

    title: str
    style: Style | None
    pools_data: bool
    files: dict[str, str]  # sha256 by the file of each plugin that the run used


COMPARE_FILE, SWEEP_FILE = "compare.json", "sweep.json"  # as hsfl.runs.studies writes them
LONGEST_TITLE = 60
ACCURACIES = TASKS[DEFAULT].metrics


def built_in(framework: str) -> Method | None:
    """The row of a framework of the package; None for any other, registered here or not."""
    row = METHODS.get(framework)
    return row if row is not None and row.built_in else None


def _read_look(folder: RunFolder, framework: str) -> Look | None:
    """How the run's framework is shown, from what the folder holds about plugins; None where the run used no plugin."""
    record = folder.plugins()
    files = {plugin.file: plugin.sha256 for plugin in record.plugins}
    row = record.framework
    if built_in(framework) is not None or row is None:
        return Look(display_name(framework), None, framework_pools_data(framework), files) if files else None
    title = "".join(letter for letter in " ".join(str(row.get("title") or "").split()) if letter.isprintable())
    return Look(title[:LONGEST_TITLE] or framework, read_style(row.get("style")), row.get("pools_data") is True, files)


def display_name(label: str, look: Look | None = None) -> str:
    """hsfl -> HSFL; `fl,train.tau_s=60` -> FL, train.tau_s=60."""
    framework, *settings = label.split(",", 1)
    row = built_in(framework)
    title = row.title if row is not None else look.title if look is not None else framework
    return ", ".join([title, *settings])


def framework_pools_data(framework: str) -> bool:
    """Whether the data of a built-in framework are on the server, so that no client has anything to train."""
    row = built_in(framework)
    return row is not None and row.pools_data


@dataclass(frozen=True)
class Run:
    """One run folder."""

    label: str
    seed: int
    records: list[RoundRecord]
    status: str  # finished, budget, interrupted, diverged, or unfinished (no summary yet)
    end_s: float  # how far the last model holds: the budget, if the run came to its end, else the end of the last round
    framework: str = ""
    look: Look | None = None  # of a framework that is not built in
    metrics: tuple[Metric, ...] = TASKS[DEFAULT].metrics  # of the task; the first is shown first
    client_names: tuple[str, ...] = ()  # [K], where a fleet file or the data name the clients
    config: RunConfig | None = None
    cuts: tuple[int, ...] = ()  # that clients have, each once
    contender: ContenderRecord | None = None  # what the comparison calls it; None for a run by itself
    start_notes: tuple[str, ...] = ()  # what the run warned of when it began

    @property
    def metric(self) -> Metric:
        """The metric that is shown first."""
        return self.metrics[0]

    @property
    def name(self) -> str:
        """The label as people read it."""
        return self.contender.name if self.contender is not None else display_name(self.label, self.look)

    @property
    def policy(self) -> str | None:
        """What the rounds say of their allocation; None before the first."""
        return self.records[0].allocation.get("policy") if self.records else None

    @property
    def own_settings(self) -> dict[str, Any]:
        """What the run's contender set for itself; empty where no file says so."""
        return {} if self.contender is None else self.contender.settings

    @property
    def pools_data(self) -> bool:
        """Whether the data are on the server, so that no client has anything to train."""
        return self.look.pools_data if self.look is not None else framework_pools_data(self.framework)

    def curve(self, quantity: str = "test_accuracy", over: str = "time") -> Curve:
        end, metrics = self.end_s if over == "time" else None, [metric.name for metric in self.metrics]
        return curve(self.records, quantity, over, end, metrics)

    def last(self, quantity: str) -> float | None:
        return next(reversed(self._known_values(quantity)), None)

    def best(self, quantity: str) -> float | None:
        """The best value of a metric; the least of a loss."""
        higher = any(metric.higher_is_better for metric in (*self.metrics, *ACCURACIES) if metric.name == quantity)
        return (max if higher else min)(self._known_values(quantity), default=None)

    def value_at(self, sim_time_s: float, quantity: str = ACCURACY.name) -> float | None:
        value = float(self.curve(quantity).at(np.array(sim_time_s)))
        return None if math.isnan(value) else value

    def _known_values(self, quantity: str) -> list[float]:
        return [value for record in self.records if (value := record.value(quantity)) is not None]

    @property
    def sim_time_s(self) -> float:
        return self.records[-1].sim_time_s if self.records else 0.0

    @property
    def round_s(self) -> float | None:
        """The mean round in simulated seconds; None where none was made."""
        return self.sim_time_s / len(self.records) if self.records else None

    @property
    def spent_its_time(self) -> bool:
        """Whether the run used all the simulated seconds that it had; a finished run without a budget did."""
        return self.status == "budget" or (self.status == "finished" and self.sim_time_s >= self.end_s * (1 - 1e-6))

    @property
    def drops(self) -> int:
        return sum(len(record.dropped) for record in self.records)

    @property
    def left_out(self) -> int:
        """Clients that did not start, over all rounds: not chosen, or the model does not fit."""
        return sum(record.num_clients - record.num_started for record in self.records)

    @cached_property
    def bytes(self) -> dict[str, int]:
        """Bytes sent on each link over all rounds, by the link's name."""
        links = dict.fromkeys(link for record in self.records for link in record.bytes)
        return {link: sum(record.bytes.get(link, 0) for record in self.records) for link in links}


def read_run(path: str | Path, label: str, seed: int, contender: ContenderRecord | None = None) -> Run:
    """The run in a folder. label, seed: what the run is called on the page. contender: of a comparison, where one names it."""
    folder = RunFolder(path)
    config, records = folder.config(), folder.rounds()
    ended = folder.ended()
    status = ended.status
    if ended.rounds is not None and ended.rounds > len(records):  # a run under way again may have more
        raise InputError(
            f"{folder.rounds_path} holds {len(records)} rounds but the run made {ended.rounds}; delete "
            f"{folder.path} and run it again"
        )
    end_s = records[-1].sim_time_s if records else 0.0
    if status in ("budget", "finished") and config.train.budget_s is not None:
        end_s = max(end_s, config.train.budget_s)
    look, clients = _read_look(folder, config.framework), folder.clients()
    names = tuple(clients.names or ()) if clients is not None else ()
    return Run(
        *(label, seed, records, status, end_s, config.framework, look, folder.metrics(), names, config),
        cuts=_distinct_cuts(clients, records),
        contender=contender,
        start_notes=tuple(clients.notes) if clients is not None else (),
    )


def _distinct_cuts(clients: ClientsRecord | None, records: Sequence[RoundRecord]) -> tuple[int, ...]:
    """The cuts that clients have in any round, each once; those of clients.json where no round has ended."""
    lists = [record.cuts if record.crowd is None else map(int, record.crowd["cuts"]) for record in records]
    if not lists and clients is not None:
        lists = [clients.cuts if clients.crowd is None else map(int, clients.crowd["cuts"])]
    return tuple(sorted({cut for cuts in lists for cut in cuts}))


def read_runs(out: str | Path, labels: Sequence[str] | None = None) -> list[Run]:
    """All runs of a comparison's folder (of these labels, in this order); frameworks in their usual order."""
    folders, contenders = run_folders(out), read_contenders(out)
    if not folders:
        raise InputError(f"{out} holds no runs; a comparison lies in folders such as {run_path(out, 'hsfl', 0)}")
    frameworks = {label: record.framework for label, record in contenders.items()}
    present = sorted({label for label, _ in folders}, key=lambda label: usual_order(label, frameworks.get(label)))
    wanted = [known_name("label", label, present) for label in labels] if labels is not None else present
    return [
        read_run(path, label, seed, contenders.get(label))
        for wanted_label in wanted
        for (label, seed), path in sorted(folders.items(), key=lambda place: place[0][1])
        if label == wanted_label
    ]


def usual_order(label: str, framework: str | None = None) -> tuple[int, str]:
    """A key that sorts labels: frameworks in the order of the table, then all others by name. framework: of the label, where it is
    known; else the label begins with it."""
    framework = framework or label.split(",", 1)[0]
    return (list(METHODS).index(framework) if built_in(framework) is not None else len(METHODS), label)


# --- comparison.json, trace.json and plan.json


@dataclass(frozen=True)
class ComparisonRecord:
    """comparison.json, as far as a page needs it."""

    target: Number | None = None  # test accuracy
    labels: dict[str, Any] = field(default_factory=dict)  # results by label, in the order that was asked for


@dataclass(frozen=True)
class TraceRecord:
    """trace.json: a run that took its training from another framework's."""

    trained_as: str


@dataclass(frozen=True)
class PlannedClient:
    """A client in plan.json."""

    client: Index
    cut: Index
    server_hz: Number
    seconds: dict[str, Number]  # of each phase over the round
    bottleneck: str  # the longest phase
    subchannels: list[Index] | None
    share: list[Number] | None
    main_up_power_w: Number | None
    main_down_power_w: Number | None
    edge_up_power_w: Number | None
    edge_down_power_w: Number | None
    weight: Number | None
    name: str
    codec: str | None = None  # where clients have different ones


@dataclass(frozen=True)
class CrowdPlan:
    """Many clients in plan.json, in a few numbers (`planning.plans.plan_large.PlanCrowd`)."""

    num_clients: Count
    num_cells: Count
    cuts: dict[str, Count]
    num_chosen: Annotated[list[Count], Field(min_length=1)]
    num_kept: list[Count]
    rounds_s: list[Number]
    bounds_s: list[Number]
    quantiles: list[Count]
    seconds: dict[str, list[Number]]
    finish_s: list[Number]
    cell_hz: list[Number]


@dataclass(frozen=True)
class PlanRecord:
    """plan.json of `hsfl plan --out`."""

    policy: str
    round_s: Number
    lower_bound_s: Number
    gap: Number
    clients: list[PlannedClient]
    baselines_s: dict[str, Number]
    num_samples: Count
    search_s: Number
    notes: list[str]
    assumed: list[str]
    why: Held | None
    other_cut: Index | None
    other_round_s: Number | None
    crowd: CrowdPlan | None  # of many clients, or several cells, in place of the clients
    ending_s: dict[str, Positive] = field(default_factory=dict)  # of each part of the round's end
    config: dict[str, Any] | None = None  # None in what `hsfl plan --json` prints


def _check_plan(plan: PlanRecord) -> PlanRecord:
    """Refuse a plan that a page cannot draw: the page needs the phases of every client, or quantiles, and the proposed policy."""
    if not plan.clients and plan.crowd is None:
        raise ValueError("clients is empty, and there is no crowd")
    if plan.crowd is not None:
        for name, values in {**plan.crowd.seconds, "finish_s": plan.crowd.finish_s}.items():
            if len(values) != len(plan.crowd.quantiles):
                raise ValueError(f"crowd.{name} has {len(values)} entries, not {len(plan.crowd.quantiles)} quantiles")
    for place, client in enumerate(plan.clients):
        if client.bottleneck not in client.seconds or "model_down" not in client.seconds:
            raise ValueError(f"clients[{place}].seconds lacks model_down or the bottleneck {client.bottleneck!r}")
    if "proposed" not in plan.baselines_s:
        raise ValueError("baselines_s lacks proposed")
    return plan


CheckedPlan = Annotated[PlanRecord, AfterValidator(_check_plan)]
