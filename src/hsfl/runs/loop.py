"""A run: one visible loop from a config to a folder of results.

What a run keeps: records, models and checkpoints of its rounds, and how it ended.

The whole model that a framework's state gives: how good it is, and the one that is written down.

Ctrl-C stops a run while it computes, never while it writes a file.
"""

import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from hsfl.config import RunConfig
from hsfl.data.registry import Dataset
from hsfl.engines.engine import Engine
from hsfl.engines.start import start_engine
from hsfl.files import write_json
from hsfl.formats import seconds
from hsfl.frameworks import find_framework
from hsfl.frameworks.framework import Framework, State, checked_round, whole_models
from hsfl.models.state import UnitState
from hsfl.models.units import SplitModel
from hsfl.network.clock import Timeline
from hsfl.planning.round_clock import RoundClock, is_tested
from hsfl.planning.straggler import why
from hsfl.runs.checkpoint import save_checkpoint, save_tensors
from hsfl.runs.folder import RunFolder
from hsfl.runs.prepare import Bench, prepare
from hsfl.runs.progress import Observer
from hsfl.runs.records import CutsRecord, RoundRecord, advance
from hsfl.runs.resume import Parts, Position, begin, goes_on, settled
from hsfl.runs.round_tables import write_tables
from hsfl.runs.write_records import Summary, TensorBoard, make_round_record, summarise
from hsfl.training.aggregate import Diverged, PartialSum
from hsfl.training.evaluation import Quality, mean_quality
from hsfl.training.link import LinkBytes
from hsfl.training.norm_statistics import NormLayers, NormShard


@dataclass(frozen=True)
class Estimated:
    """The joined model with BatchNorm's statistics estimated again, how good the model is with them and with the averaged ones, and what
    travelled for the estimation."""

    whole: UnitState
    quality: Quality
    averaged: Quality
    bytes: LinkBytes


def assess_estimated(
    engine: Engine, framework: Framework, state: State, kept: Sequence[int], round_index: int
) -> Estimated:
    """As `assess`, after the clients that the round kept have estimated BatchNorm's statistics again."""
    (averaged,) = whole_models(framework, state)
    shard = engine.norm_moments(averaged, kept, round_index)
    whole, num_bytes = _pooled(framework, averaged, shard)
    return Estimated(whole, engine.evaluate(whole), engine.evaluate(averaged), num_bytes)


def estimated(framework: Framework, state: State, kept: Sequence[int], round_index: int) -> UnitState:
    """The joined model with BatchNorm's statistics estimated again, in this process, for a file alone."""
    (averaged,) = whole_models(framework, state)
    return _pooled(framework, averaged, framework.norm_moments(averaged, kept, round_index))[0]


def _pooled(framework: Framework, averaged: UnitState, shard: NormShard) -> tuple[UnitState, LinkBytes]:
    shard.bytes.merge(framework.norm_swapped())
    return shard.moments.pooled(averaged), shard.bytes


def assess(engine: Engine, framework: Framework, state: State) -> Quality:
    """How good the joined model is on the test samples; the mean over the clients where each client has a model of its own."""
    return mean_quality([engine.evaluate(whole) for whole in whole_models(framework, state)])


def exported(framework: Framework, state: State) -> UnitState:
    """The one model that a run gives: the joined model, or the mean of the joined models where clients keep heads of their own."""
    models = list(whole_models(framework, state))
    if len(models) == 1:
        return models[0]
    total = PartialSum.zero(models[0], len(models))
    for whole in models:
        total.add(whole, 1.0)
    return total.mean(models[0])


def write_round(parts: Parts, here: Position, record: RoundRecord) -> None:
    """Write the record of the round that led here, the models that are to be kept, and a checkpoint where one is
    due."""
    folder, log = parts.folder, parts.config.log
    folder.append(record)
    folder.log_placed(record.round, parts.engine.placed())
    if here.standing.best_round == record.round:
        _save_model(parts, here, folder.best_model_path)
    if log.model_every is not None and record.round % log.model_every == 0:
        _save_model(parts, here, folder.path / "models" / f"round-{record.round}.safetensors")
    if record.round % log.checkpoint_every == 0:
        save_checkpoint(folder.checkpoint_path, here.state, here.standing, parts.config)


def _save_model(parts: Parts, here: Position, path: Path) -> None:
    save_tensors(path, _model(parts, here).named())


def _model(parts: Parts, here: Position) -> UnitState:
    """The model that a run gives here. Where the last round was not tested, BatchNorm's statistics are estimated for the file alone, by
    the clients that the round kept; no second of it is charged."""
    rounds_done = here.standing.rounds_done
    if here.estimated is not None:
        return here.estimated
    if parts.config.train.norm_statistics == "averaged" or not rounds_done:
        return exported(parts.framework, here.state)
    line, _ = parts.clock.round(rounds_done - 1, parts.clock.chosen(rounds_done - 1))
    try:
        return estimated(parts.framework, here.state, np.flatnonzero(line.kept).tolist(), rounds_done - 1)
    except Diverged as why:
        parts.observer.warns(f"the model keeps its averaged statistics: {why}")
        return exported(parts.framework, here.state)


def finish_run(parts: Parts, here: Position, status: str) -> Summary:
    """Write the last checkpoint and model, the tables and the summary. status: how the run ended."""
    save_checkpoint(parts.folder.checkpoint_path, here.state, here.standing, parts.config)
    _save_model(parts, here, parts.folder.last_model_path)
    summary = summarise(parts.folder, parts.config, status)
    write_tables(parts.folder.path, parts.folder.rounds())
    write_json(parts.folder.summary_path, asdict(summary))
    return summary


SIGNALS = tuple(  # Ctrl-C, an order to stop, a lost connection
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Interruptible:
    """While this context is entered, a signal to stop raises KeyboardInterrupt inside `with interruptible():`; anywhere else the
    signal waits until the next such block begins."""

    def __enter__(self) -> "Interruptible":
        self._armed = self._pending = False
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
        self._pending = True
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


def train_run(
    config: RunConfig,
    out: str | Path,
    resume: bool | None = False,
    observer: Observer | None = None,
    dataset: Dataset | None = None,
    model: SplitModel | None = None,
    cuts: CutsRecord | None = None,
) -> Summary:
    """Train as the config says and write the run folder `out`. Ctrl-C ends the run cleanly, so that it can go on later.

    resume: True goes on from the folder's checkpoint, or begins anew where the run stopped before its first checkpoint; None
        goes on where there is a checkpoint and begins otherwise; False begins in an empty folder.
    observer: is told what happens, for a progress display.
    dataset, model: given from Python, instead of those that the config names.
    cuts: the cuts that were chosen for this run before; a run that goes on takes those of its folder.
    """
    observer, folder = observer or Observer(), RunFolder(out)
    config = settled(config, folder, resume, model)
    with folder.locked():
        going_on = goes_on(folder, config, resume, observer)
        folder.clear_scratch()
        with closing(start_engine(config, observer.warns)) as engine:  # its workers begin while the data are read
            bench = prepare(config, dataset, model, folder.cuts() if going_on else cuts)
            framework = find_framework(config.framework)(bench.task)
            clock = make_clock(bench, framework)
            return _train(Parts(bench, engine, framework, clock, folder, observer), going_on)


def _train(parts: Parts, going_on: bool) -> Summary:
    """All rounds, then the last model and the summary."""
    config, clock, folder, observer = parts.config, parts.clock, parts.folder, parts.observer
    if not going_on:
        clock.round(0, clock.chosen(0))  # settings of which no round can be made leave no folder behind
    log = TensorBoard(folder.path) if config.log.tensorboard else None
    parts.bench.task.feed.on_batch = observer.batch_starts
    parts.engine.attach(parts.framework, parts.bench.exam)
    status, stopped = "finished", False  # stopped: whether it was said that a time limit ended an allocation
    with Interruptible() as interruptible:
        here = begin(parts, going_on)
        try:
            for round_index in range(here.standing.rounds_done, config.train.rounds):
                line, says = clock.round(round_index, clock.chosen(round_index))
                if here.now_s + clock.full_s(round_index) > (config.train.budget_s or math.inf):
                    if round_index == 0:
                        observer.warns(_too_short(config, clock))
                    status = "budget"
                    break
                if says.get("status") == "time_limit" and not stopped:
                    stopped = True
                    observer.warns(_stopped(config, round_index, says))
                with interruptible():
                    after, record, estimated = _round(parts, here, round_index, line, says)
                here = Position(
                    after,
                    advance(here.standing, record, parts.bench.task.goal.row.metric),
                    record.sim_time_s,
                    estimated,
                )
                write_round(parts, here, record)
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
        return finish_run(parts, here, status)


def make_clock(bench: Bench, framework: Framework) -> RoundClock:
    """The clock that times the rounds of a framework in the bench's world."""
    extras = replace(framework.extras(), moment_bits=NormLayers.of(bench.task.model).moment_bits)
    return RoundClock(bench.task.config, bench.world, framework.cuts, bench.num_samples, extras)


def _is_last(config: RunConfig, clock: RoundClock, round_index: int, now_s: float) -> bool:
    """Whether this round, which begins at `now_s`, is the last: no round is left, or the next one and its test would exceed the budget."""
    if round_index + 1 == config.train.rounds:
        return True
    if config.train.budget_s is None:
        return False
    this_s = clock.full_s(round_index) if is_tested(config.train, round_index) else clock.plain_s(round_index)
    return now_s + this_s + clock.full_s(round_index + 1) > config.train.budget_s


def _round(
    parts: Parts, here: Position, round_index: int, line: Timeline, says: dict[str, Any]
) -> tuple[State, RoundRecord, UnitState | None]:
    """Train one round with the clients that the clock keeps, and look how good the model is now. The last value is the model with
    estimated statistics, where it was tested with them."""
    config, framework, observer, task = parts.config, parts.framework, parts.observer, parts.bench.task
    last, chosen = _is_last(config, parts.clock, round_index, here.now_s), parts.clock.chosen(round_index)
    began = time.perf_counter()
    kept = np.flatnonzero(line.kept).tolist()
    if not kept:
        observer.warns(_nobody(config, line, round_index))
    num_samples = sum(task.trained_samples(kept, round_index).values())
    observer.round_starts(round_index + 1, kept, num_samples)
    after, result = checked_round(framework, framework.round(here.state, kept, round_index))
    quality, estimated, estimation_s = None, None, 0.0
    if last or is_tested(config.train, round_index):
        observer.evaluation_starts()
        if config.train.norm_statistics == "averaged":
            quality = assess(parts.engine, framework, after)
        else:
            estimated = assess_estimated(parts.engine, framework, after, kept, round_index)
            quality, estimation_s = estimated.quality, parts.clock.estimation_s(round_index, chosen)
            result.bytes.merge(estimated.bytes)
    wall_s = time.perf_counter() - began
    record = make_round_record(
        framework, task, round_index, here.now_s, line, says, result, quality, wall_s,
        why=why(parts.clock, round_index, chosen), averaged=estimated.averaged if estimated else None, estimation_s=estimation_s,
    )  # fmt: skip
    losses = [loss for loss in (record.train_loss, record.test_loss, *record.metrics.values()) if loss is not None]
    if not all(map(math.isfinite, losses)) or not after.is_finite():
        raise Diverged(f"a loss or a weight of round {round_index + 1} is no number; lower train.lr")
    return after, record, estimated.whole if estimated else None


def _stopped(config: RunConfig, round_index: int, says: dict[str, Any]) -> str:
    return (
        f"allocation.time_limit_s = {config.allocation.time_limit_s:g} ended the allocation of round {round_index + 1} at a proven gap of "
        f"{says['gap']:.2%}; with more time this round, and later ones of which this is not said again, may be faster"
    )


def _too_short(config: RunConfig, clock: RoundClock) -> str:
    return f"round 1 takes {seconds(clock.full_s(0), 4)} but train.budget_s is {config.train.budget_s:g}; nothing is trained"


def _nobody(config: RunConfig, line: Timeline, round_index: int) -> str:
    if line.dropped.any():
        return f"nobody finished round {round_index + 1} within train.tau_s = {config.train.tau_s:g} s; raise it"
    return f"nobody took part in round {round_index + 1}; the model stays as it is"
