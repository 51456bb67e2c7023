"""What a run writes down: a record of its clients when it begins, a record of each round, a summary at its end, and TensorBoard's
events on request. Of a large fleet, the records hold quantiles, the straggler and the drops instead of lists over clients.

Legend: K clients, C classes, Q quantiles.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from hsfl.config import RunConfig
from hsfl.data.partition import class_counts, sizes_of
from hsfl.errors import InputError, install_extra
from hsfl.formats import DIGITS, all_rounded, counted, quantiles
from hsfl.frameworks.framework import Framework, RoundResult, Task
from hsfl.network.clock import PHASES, Timeline, Why
from hsfl.network.devices import MANY_CLIENTS, Fleet
from hsfl.runs.client_data import with_replacement
from hsfl.runs.prepare import Bench
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.run_folder.records import (
    AllocationNote,
    Averaged,
    ClientsCrowd,
    ClientsRecord,
    Coded,
    RoundCrowd,
    RoundRecord,
    Times,
    best_round,
)
from hsfl.training.evaluation import Quality

Array = np.ndarray


@dataclass(frozen=True)
class Summary:
    """How a run ended."""

    status: str  # finished, budget (spent before the rounds were done), interrupted or diverged
    framework: str
    rounds: int
    sim_time_s: float  # simulated
    test_accuracy: float | None  # of the last evaluated round
    balanced_accuracy: float | None
    best_accuracy: float | None
    best_round: int | None
    wall_s: float
    num_samples: int  # trained on, over all rounds
    drops: int  # clients past tau, over all rounds
    bytes: dict[str, int]  # by link, over all rounds
    metric: str  # the task's first metric
    best: float | None  # of this metric
    metrics: dict[str, float]  # of the last evaluated round, where they are no fields here


def clients_record(bench: Bench, cuts: Sequence[int], notes: Sequence[str] = ()) -> ClientsRecord:
    """Data and device of each client, for the run folder. cuts: [K], as the framework uses them. notes: what the run warned of."""
    feed, fleet, servers = bench.task.feed, bench.world.fleet, bench.world.servers
    names = list(bench.class_names) if bench.task.goal.row.targets == "classes" else []
    labels = feed.images.y.cpu().numpy() if names else np.zeros(len(feed.images), np.int64)
    max_cut = fleet.max_cut if fleet.drawn_max_cut is None else fleet.drawn_max_cut
    shape, main_flops_per_s = list(feed.images.shape), servers.main_hz * servers.flops_per_cycle
    redrawn = with_replacement(bench.task.config, len(labels))
    if _is_many(fleet.num_clients):
        crowd = _clients_crowd(feed.indices, labels, max(len(names), 1), fleet, cuts, max_cut)
        return ClientsRecord(
            [], [], names, [], [], [], [], shape, bench.num_outputs, main_flops_per_s=main_flops_per_s, crowd=crowd,
            notes=list(notes), redrawn=redrawn,
        )  # fmt: skip
    return ClientsRecord(
        num_samples=feed.sizes.tolist(),
        class_counts=class_counts(feed.indices, labels, max(len(names), 1))[:, : len(names)].tolist(),
        class_names=names,
        cuts=list(cuts),
        max_cut=max_cut.tolist(),
        cpu_hz=fleet.cpu_hz.tolist(),
        max_power_w=[None if np.isnan(power_w) else power_w for power_w in fleet.max_power_w.tolist()],
        input_shape=shape,
        num_outputs=bench.num_outputs,
        unit_names=list(bench.task.model.unit_names),
        names=None if fleet.names is None else fleet.names.tolist(),
        flops_per_s=(fleet.cpu_hz * fleet.flops_per_cycle).tolist(),
        main_flops_per_s=main_flops_per_s,
        notes=list(notes),
        redrawn=redrawn,
    )


def make_round_record(
    framework: Framework,
    task: Task,
    round_index: int,
    start_s: float,
    timeline: Timeline,
    allocation_note: dict[str, Any],
    result: RoundResult,
    quality: Quality | None,
    wall_s: float,
    why: Why | None = None,
    averaged: Quality | None = None,
    estimation_s: float = 0.0,
    coded: Quality | None = None,
) -> RoundRecord:
    """The record of a round.

    start_s: simulated seconds at which the round began. allocation_note: what the policy says of its allocation.
    quality: how good the model is; None where it was not tested. wall_s: real seconds that the round took.
    why: what held the straggler up. averaged: how good the model is with BatchNorm's averaged statistics, where it was tested with
    estimated ones. estimation_s: how long the estimation took, simulated. coded: how good it is with the codec of smashed data at its cuts.
    """
    many = _is_many(len(timeline.kept))
    quality, no_quality = finite_quality(quality)
    averaged, _ = finite_quality(averaged)
    return RoundRecord(
        round=round_index + 1,
        framework=task.config.framework,
        sim_time_s=start_s + (timeline.round_s + estimation_s),
        round_s=timeline.round_s + estimation_s,
        wall_s=wall_s,
        num_samples=result.num_samples,
        train_loss=result.train_loss,
        test_loss=quality.loss if quality else None,
        test_accuracy=quality.accuracy if quality else None,
        balanced_accuracy=quality.balanced_accuracy if quality else None,
        recall=list(quality.recall) if quality and quality.recall else None,
        lr=task.lr(round_index),
        cuts=[] if many else list(framework.cuts),
        started=[] if many else np.flatnonzero(timeline.started).tolist(),
        kept=[] if many else np.flatnonzero(timeline.kept).tolist(),
        dropped=np.flatnonzero(timeline.dropped).tolist(),
        straggler=timeline.straggler if timeline.straggler >= 0 else None,
        waiting_s=[] if many else all_rounded(timeline.waiting_s, DIGITS),
        phases={} if many else phase_times(timeline),
        allocation=cast(
            AllocationNote, with_quantiles(allocation_note, len(timeline.kept)) if many else allocation_note
        ),
        bytes=asdict(result.bytes),
        why=why,
        metrics=dict(quality.metrics) if quality else {},
        crowd=round_crowd(timeline, framework.cuts) if many else None,
        averaged=_averaged(averaged) if averaged else None,
        estimation_s=estimation_s if averaged else None,
        codecs=list(task.codecs) or None,
        coded=coded_note(coded),
        modelled_ending_s=timeline.ending_s or None,
        no_quality=no_quality,
    )


def coded_note(quality: Quality | None) -> Coded | None:
    """What a record says of a model that is split by the codecs of smashed data; None where there are none, or its numbers are none."""
    quality, _ = finite_quality(quality)
    return Coded(**_averaged(quality), metrics=dict(quality.metrics)) if quality else None


def finite_quality(quality: Quality | None) -> tuple[Quality | None, str | None]:
    """The quality if its numbers are numbers, and else why it is not recorded: JSON has no NaN, and accuracies of such a model
    mean nothing."""
    if quality is None:
        return None, None
    numbers = {"test loss": quality.loss} | quality.metrics
    for name, value in numbers.items():
        if not math.isfinite(value):
            return None, f"the {name} is {'no number' if math.isnan(value) else 'infinite'}"
    return quality, None


def _averaged(quality: Quality) -> Averaged:
    return {
        "test_loss": quality.loss,
        "test_accuracy": quality.accuracy,
        "balanced_accuracy": quality.balanced_accuracy,
    }


def phase_times(timeline: Timeline) -> dict[str, Times]:
    """Start and end of every phase that takes time."""
    return {
        phase: {"start_s": all_rounded(start, DIGITS), "end_s": all_rounded(end, DIGITS)}
        for phase, start, end in zip(PHASES, timeline.start_s, timeline.end_s)
        if (end > start).any()
    }


def summarise(folder: RunFolder, config: RunConfig, status: str) -> Summary:
    """How the folder's run ended, from its rounds. status: as in `Summary`."""
    records, metric = folder.rounds(), folder.metrics()[0]
    evaluated = [record for record in records if record.test_loss is not None]
    last, best = evaluated[-1] if evaluated else None, best_round(records, metric)
    links = records[-1].bytes if records else {}
    return Summary(
        status=status,
        framework=config.framework,
        rounds=len(records),
        sim_time_s=records[-1].sim_time_s if records else 0.0,
        test_accuracy=last.test_accuracy if last else None,
        balanced_accuracy=last.balanced_accuracy if last else None,
        best_accuracy=best.test_accuracy if best else None,
        best_round=best.round if best else None,
        wall_s=sum(record.wall_s for record in records),
        num_samples=sum(record.num_samples for record in records),
        drops=sum(len(record.dropped) for record in records),
        bytes={link: sum(record.bytes.get(link, 0) for record in records) for link in links},
        metric=metric.name,
        best=best.value(metric.name) if best else None,
        metrics=dict(last.metrics) if last else {},
    )


# --- large fleets


def _is_many(num_clients: int) -> bool:
    """Whether a fleet is so large that files hold quantiles over its clients instead of lists."""
    return num_clients > MANY_CLIENTS


def _clients_crowd(
    indices: Sequence[Array], labels: Array, num_classes: int, fleet: Fleet, cuts: Sequence[int], max_cut: Array
) -> ClientsCrowd:
    """Data and devices of a large fleet. indices: [K], of each client's samples. max_cut: [K], as deep as each device
    can hold."""
    powers = fleet.max_power_w[~np.isnan(fleet.max_power_w)]
    return {
        "num_clients": fleet.num_clients,
        "num_samples": quantiles(sizes_of(indices)),
        "class_counts": class_counts(indices, labels, num_classes).sum(axis=0).tolist(),
        "cuts": counted(np.asarray(cuts)),
        "max_cut": counted(max_cut),
        "flops_per_s": quantiles(fleet.cpu_hz * fleet.flops_per_cycle),
        "max_power_w": quantiles(powers),
    }


def round_crowd(timeline: Timeline, cuts: Sequence[int]) -> RoundCrowd:
    """A round of a large fleet: quantiles over the clients that took part, and the phases of the straggler."""
    started, phase_s = np.flatnonzero(timeline.started), timeline.phase_s
    last = timeline.straggler
    return {
        "num_clients": len(timeline.started),
        "num_started": len(started),
        "num_kept": int(timeline.kept.sum()),
        "cuts": counted(np.asarray(cuts)[started]),
        "finish_s": quantiles(timeline.finish_s[started]),
        "waiting_s": quantiles(timeline.waiting_s[started]),
        "phases_s": {name: quantiles(phase_s[name][started]) for name in PHASES if phase_s[name].any()},
        "straggler_s": {}
        if last < 0
        else {name: float(phase_s[name][last]) for name in PHASES if phase_s[name][last] > 0},
    }


def with_quantiles(allocation_note: dict[str, Any], num_clients: int) -> dict[str, Any]:
    """What a policy says of its answer, without lists over all clients: each becomes its quantiles."""
    short = {name: value for name, value in allocation_note.items() if name != "resources"}
    for name, value in short.items():
        if isinstance(value, list) and len(value) == num_clients:
            short[name] = quantiles(np.array(value, float))
    return short


# --- TensorBoard


class TensorBoard:
    """Writes the numbers of each round for TensorBoard, too."""

    def __init__(self, path: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError(f"log.tensorboard needs TensorBoard; {install_extra('tensorboard')}") from None
        self._open: Callable[[], Any] = lambda: SummaryWriter(str(path / "tensorboard"))
        self._writer: Any = None

    def write(self, record: RoundRecord) -> None:
        self._writer = self._writer or self._open()  # opened late: the run folder must exist
        for name in ("train_loss", "test_loss", "test_accuracy", "balanced_accuracy", "lr"):
            if (value := getattr(record, name)) is not None:
                self._writer.add_scalar(name, value, record.round)
        for name, value in record.metrics.items():
            self._writer.add_scalar(f"metrics/{name}", value, record.round)
        for link, count in record.bytes.items():
            self._writer.add_scalar(f"bytes/{link}", count, record.round)
        self._writer.flush()
