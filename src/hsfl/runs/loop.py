"""A run: one visible loop from a config to a folder of results.

`train_run` locks the folder, prepares what the config names, and begins or resumes (`resume`). `_train` makes one round after
another until the rounds or the budget (`budget`) end. `_round` trains the clients that the clock keeps and tests the joined
model. After each round, `_write_round` writes its record, the models that are to be kept, and a checkpoint where one is due;
`_finish_run` writes how the run ended. Ctrl-C stops a run while it computes, never while it writes a file (`Interruptible`).
"""

import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from hsfl.codec_table import NONE
from hsfl.config import RunConfig
from hsfl.data.registry import Dataset
from hsfl.engines.engine import CodedCut, Engine, Inline
from hsfl.engines.start import start_engine
from hsfl.files import write_json
from hsfl.frameworks import find_framework
from hsfl.frameworks.framework import Framework, State, checked_round, whole_models
from hsfl.models.state import UnitState
from hsfl.models.units import SplitModel
from hsfl.network.clock import Timeline
from hsfl.planning.rounds.round_clock import RoundClock, is_tested
from hsfl.planning.rounds.straggler import explain_straggler
from hsfl.runs.budget import budget_too_short_note, fits_budget, is_last_round
from hsfl.runs.checks.memory_check import check_memory
from hsfl.runs.engine_choice import with_chosen_engine
from hsfl.runs.prepare import Bench, prepare
from hsfl.runs.progress import Observer
from hsfl.runs.resume import Parts, Position, begin_or_resume, resolve_config, resumes_from_checkpoint
from hsfl.runs.run_folder.checkpoint import save_checkpoint, save_tensors
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.run_folder.records import CutsRecord, RoundRecord, standing_after
from hsfl.runs.run_folder.round_tables import write_tables
from hsfl.runs.run_folder.write_records import Summary, TensorBoard, make_round_record, summarise
from hsfl.training.aggregate import Diverged, PartialSum
from hsfl.training.evaluation import Quality, mean_quality
from hsfl.training.link import LinkBytes
from hsfl.training.norm_statistics import NormLayers, NormShard


def train_run(
    config: RunConfig,
    out: str | Path,
    resume: bool | None = False,
    observer: Observer | None = None,
    dataset: Dataset | None = None,
    model: SplitModel | None = None,
    cuts: CutsRecord | None = None,
) -> Summary:
    """Train as the config says and write the run folder `out`. Where Ctrl-C or another signal stops the run, `RunStopped` is raised once
    all is written, so that the run can go on later.

    resume: True goes on from the folder's checkpoint, or begins anew where the run stopped before its first checkpoint; None
        goes on where there is a checkpoint and begins otherwise; False begins in an empty folder.
    observer: is told what happens, for a progress display.
    dataset, model: given from Python, instead of those that the config names.
    cuts: the cuts that were chosen for this run before; a run that goes on takes those of its folder.
    """
    observer, folder = observer or Observer(), RunFolder(out)
    config = resolve_config(config, folder, resume, model)
    with folder.locked():
        going_on = resumes_from_checkpoint(folder, config, resume, observer)
        folder.clear_scratch()
        with ExitStack() as engines:
            known_cuts = folder.cuts() if going_on else cuts
            if config.engine.name == "auto":
                bench = with_chosen_engine(prepare(config, dataset, model, known_cuts))
                engine = engines.enter_context(closing(start_engine(bench.task.config, observer.warns)))
            else:  # workers begin while the data are read
                engine = engines.enter_context(closing(start_engine(config, observer.warns)))
                bench = prepare(config, dataset, model, known_cuts)
            if (memory_note := check_memory(bench, engine.num_here)) is not None:
                observer.warns(memory_note)
            framework = find_framework(config.framework)(bench.task)
            clock = make_clock(bench, framework)
            summary, signal_number = _train(Parts(bench, engine, framework, clock, folder, observer), going_on)
    if signal_number is not None:
        raise RunStopped(summary, signal_number)
    return summary


def _train(parts: Parts, going_on: bool) -> tuple[Summary, int | None]:
    """Make all rounds, then write the last model and the summary. Returns the signal that stopped the run, too, if one did."""
    config, clock, folder, observer = parts.config, parts.clock, parts.folder, parts.observer
    if not going_on:
        clock.round(0, clock.chosen(0))  # settings of which no round can be made leave no folder behind
    log = TensorBoard(folder.path) if config.log.tensorboard else None
    parts.bench.task.feed.on_batch = observer.batch_starts
    parts.engine.attach(parts.framework, parts.bench.exam)
    status, noted = "finished", set[str]()  # what may hold for many rounds is noted once
    with Interruptible() as interruptible:
        position = begin_or_resume(parts, going_on)
        try:
            for round_index in range(position.standing.rounds_done, config.train.rounds):
                timeline, allocation_note = clock.round(round_index, clock.chosen(round_index))
                if not fits_budget(clock, round_index, position.sim_time_s):
                    if round_index == 0:
                        observer.warns_of_run(budget_too_short_note(clock))
                    status = "budget"
                    break
                if allocation_note.get("status") == "time_limit" and "time limit" not in noted:
                    noted.add("time limit")
                    observer.warns(_time_limit_note(config, round_index, allocation_note))
                with interruptible():
                    after, record, estimated = _round(parts, position, round_index, timeline, allocation_note)
                position = Position(
                    after,
                    standing_after(position.standing, record, parts.bench.task.goal.row.metric),
                    record.sim_time_s,
                    estimated,
                )
                _write_round(parts, position, record)
                if "idle workers" not in noted and _left_workers_idle(parts, record):
                    noted.add("idle workers")
                    observer.warns(_idle_workers_note(parts))
                if log is not None:
                    log.write(record)
                observer.round_ends(record)
        except KeyboardInterrupt:
            status = "interrupted"
        except Diverged as error:
            observer.warns(str(error))
            status = "diverged"
        finally:
            observer.run_ends()
        summary = _finish_run(parts, position, status)
    return summary, interruptible.number if status == "interrupted" else None


def make_clock(bench: Bench, framework: Framework) -> RoundClock:
    """The clock that times the rounds of a framework in the bench's world."""
    extras = replace(framework.extras(), moment_bits=NormLayers.of(bench.task.model).moment_bits)
    return RoundClock(bench.task.config, bench.world, framework.cuts, bench.num_samples, extras, bench.task.codecs)


def _round(
    parts: Parts, position: Position, round_index: int, timeline: Timeline, allocation_note: dict[str, Any]
) -> tuple[State, RoundRecord, UnitState | None]:
    """Train one round with the clients that the clock keeps, and test the joined model where that is due. Returns the new state, the
    round's record, and the joined model with estimated statistics where the model was tested with them."""
    config, framework, observer, task = parts.config, parts.framework, parts.observer, parts.bench.task
    chosen = parts.clock.chosen(round_index)
    last = is_last_round(parts.clock, round_index, position.sim_time_s)
    began = time.perf_counter()
    kept = np.flatnonzero(timeline.kept).tolist()
    if not kept:
        observer.warns(_nobody_trained_note(config, timeline, round_index))
    num_samples = sum(task.trained_samples(kept, round_index).values()) * parts.clock.extras.passes
    observer.round_starts(round_index + 1, kept, num_samples)
    after, result = checked_round(framework, position.state, framework.round(position.state, kept, round_index))
    quality, estimated, coded, estimation_s = None, None, None, 0.0
    if last or is_tested(config.train, round_index):
        observer.evaluation_starts()
        if config.train.norm_statistics == "averaged":
            quality = assess(parts.engine, framework, after)
        else:
            estimated = assess_estimated(parts.engine, framework, after, kept, round_index)
            quality, estimation_s = estimated.quality, parts.clock.estimation_s(round_index, chosen)
            result.bytes.merge(estimated.bytes)
        if not parts.clock.method.pools_data:
            coded = assess_coded(parts, after, estimated.whole if estimated else None)
    wall_s = time.perf_counter() - began
    record = make_round_record(
        framework, task, round_index, position.sim_time_s, timeline, allocation_note, result, quality, wall_s,
        why=explain_straggler(parts.clock, round_index, chosen), averaged=estimated.averaged if estimated else None, estimation_s=estimation_s,
        coded=coded,
    )  # fmt: skip
    if not math.isfinite(record.train_loss or 0.0) or not after.is_finite():
        raise Diverged(f"a loss or a weight of round {round_index + 1} is no number; lower train.lr")
    if record.no_quality is not None:
        observer.warns(f"round {round_index + 1} is recorded without a quality: {record.no_quality}; lower train.lr")
    return after, record, estimated.whole if estimated else None


def _time_limit_note(config: RunConfig, round_index: int, allocation_note: dict[str, Any]) -> str:
    return (
        f"allocation.time_limit_s = {config.allocation.time_limit_s:g} ended the allocation of round {round_index + 1} at a proven gap of "
        f"{allocation_note['gap']:.2%}; with more time this round, and later ones of which this is not said again, may be faster"
    )


def _left_workers_idle(parts: Parts, record: RoundRecord) -> bool:
    """Whether clients were trained, though none by the engine's workers: a framework's own `round` trained them itself."""
    return not isinstance(parts.engine, Inline) and record.num_kept > 0 and not parts.engine.placed()


def _idle_workers_note(parts: Parts) -> str:
    return (
        f"engine.name={parts.config.engine.name} has workers, but {type(parts.framework).__name__}.round trains all clients in this process "
        "and leaves them idle; call super().round there, or set engine.name=inline"
    )


def _nobody_trained_note(config: RunConfig, timeline: Timeline, round_index: int) -> str:
    if timeline.dropped.any():
        return f"nobody finished round {round_index + 1} within train.tau_s = {config.train.tau_s:g} s; raise it"
    return f"nobody took part in round {round_index + 1}; the model stays as it is"


# --- how good the joined model is


@dataclass(frozen=True)
class Estimated:
    """The joined model with BatchNorm's statistics estimated again, how good the model is with them and with the averaged ones, and what
    travelled for the estimation."""

    whole: UnitState
    quality: Quality
    averaged: Quality
    bytes: LinkBytes


def assess(engine: Engine, framework: Framework, state: State) -> Quality:
    """How good the joined model is on the test samples; the mean over the clients where each client has a model of its own."""
    return mean_quality([engine.evaluate(whole) for whole in whole_models(framework, state)])


def assess_estimated(
    engine: Engine, framework: Framework, state: State, kept: Sequence[int], round_index: int
) -> Estimated:
    """As `assess`, after the clients that the round kept have estimated BatchNorm's statistics again."""
    (averaged,) = whole_models(framework, state)
    shard = engine.norm_moments(averaged, kept, round_index)
    whole, num_bytes = _with_pooled_statistics(framework, averaged, shard)
    return Estimated(whole, engine.evaluate(whole), engine.evaluate(averaged), num_bytes)


def assess_coded(parts: Parts, state: State, estimated: UnitState | None = None) -> Quality | None:
    """How good the joined model is when it is split and smashed data go through their codec: the mean over the clients, each with its own
    cut and codec. None where no client has a cut at which something is coded. estimated: the joined model with other statistics of
    BatchNorm."""
    engine, framework, task = parts.engine, parts.framework, parts.bench.task
    codecs = task.up_codecs()
    if all(codec == NONE or cut == task.num_units for cut, codec in zip(framework.cuts, codecs)):
        return None
    coded = [CodedCut(*at) for at in zip(framework.cuts, codecs)]
    codec_at = [None if at.cut == task.num_units or at.codec == NONE else at for at in coded]
    models = list(whole_models(framework, state)) if estimated is None else [estimated]
    if len(models) > 1:
        return mean_quality([engine.evaluate(whole, at) for whole, at in zip(models, codec_at)])
    quality_at = {at: engine.evaluate(models[0], at) for at in dict.fromkeys(codec_at)}
    return mean_quality([quality_at[at] for at in codec_at])


def _with_pooled_statistics(framework: Framework, averaged: UnitState, shard: NormShard) -> tuple[UnitState, LinkBytes]:
    shard.bytes.merge(framework.norm_swapped())
    return shard.moments.pooled(averaged), shard.bytes


# --- what a run writes


def _write_round(parts: Parts, position: Position, record: RoundRecord) -> None:
    """Write the record of the round that led to this position, the models that are to be kept, and a checkpoint where one is due."""
    folder, log = parts.folder, parts.config.log
    folder.append(record)
    folder.log_placed(record.round, parts.engine.placed())
    if position.standing.best_round == record.round:
        _save_model(parts, position, folder.best_model_path)
    if log.model_every is not None and record.round % log.model_every == 0:
        _save_model(parts, position, folder.path / "models" / f"round-{record.round}.safetensors")
    if record.round % log.checkpoint_every == 0:
        save_checkpoint(folder.checkpoint_path, position.state, position.standing, parts.config)


def _finish_run(parts: Parts, position: Position, status: str) -> Summary:
    """Write the last checkpoint and model, the tables and the summary. status: how the run ended."""
    save_checkpoint(parts.folder.checkpoint_path, position.state, position.standing, parts.config)
    _save_model(parts, position, parts.folder.last_model_path)
    summary = summarise(parts.folder, parts.config, status)
    write_tables(parts.folder.path, parts.folder.rounds())
    write_json(parts.folder.summary_path, asdict(summary))
    return summary


def _save_model(parts: Parts, position: Position, path: Path) -> None:
    save_tensors(path, _model_to_save(parts, position).named())


def _model_to_save(parts: Parts, position: Position) -> UnitState:
    """The model that a run gives at this position. Where the last round was not tested, BatchNorm's statistics are estimated for the file alone, by
    the clients that the round kept; the clock charges nothing for it."""
    rounds_done = position.standing.rounds_done
    if position.estimated is not None:
        return position.estimated
    if parts.config.train.norm_statistics == "averaged" or not rounds_done:
        return exported_model(parts.framework, position.state)
    timeline, _ = parts.clock.round(rounds_done - 1, parts.clock.chosen(rounds_done - 1))
    try:
        kept = np.flatnonzero(timeline.kept).tolist()
        return estimated_model(parts.framework, position.state, kept, rounds_done - 1)
    except Diverged as error:
        parts.observer.warns(f"the model keeps its averaged statistics: {error}")
        return exported_model(parts.framework, position.state)


def exported_model(framework: Framework, state: State) -> UnitState:
    """The one model that a run gives: the joined model, or the mean of the joined models where clients keep heads of their own."""
    models = list(whole_models(framework, state))
    if len(models) == 1:
        return models[0]
    total = PartialSum.zero(models[0], len(models))
    for whole in models:
        total.add(whole, 1.0)
    return total.mean(models[0])


def estimated_model(framework: Framework, state: State, kept: Sequence[int], round_index: int) -> UnitState:
    """The joined model with BatchNorm's statistics estimated again, in this process, for a file alone."""
    (averaged,) = whole_models(framework, state)
    return _with_pooled_statistics(framework, averaged, framework.norm_moments(averaged, kept, round_index))[0]


# --- Ctrl-C


SIGNALS = tuple(  # Ctrl-C, an order to stop, a lost connection
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class RunStopped(KeyboardInterrupt):
    """A signal stopped a run, and all that it had reached is in its folder."""

    def __init__(self, summary: Summary, number: int) -> None:
        super().__init__(summary, number)
        self.summary, self.number = summary, number

    def __str__(self) -> str:
        return f"stopped after round {self.summary.rounds}, which is saved; the run can go on (resume)"


class Interruptible:
    """While this context is entered, a signal to stop raises KeyboardInterrupt inside `with interruptible():`; anywhere else the
    signal waits until the next such block begins."""

    def __enter__(self) -> "Interruptible":
        self._armed = self._pending = False
        self.number = int(signal.SIGINT)  # of the signal that came last
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {
                n: signal.signal(n, self._stop) for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN
            }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._pending, self.number = True, number
        if self._armed:
            self._armed = False  # first, so that a second signal cannot cut the writing short
            raise KeyboardInterrupt

    @contextmanager
    def __call__(self) -> Iterator[None]:
        try:
            self._armed = True
            if self._pending:
                raise KeyboardInterrupt
            yield
        finally:
            self._armed = False
