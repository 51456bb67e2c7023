"""A run: one visible loop from a config to a folder of results."""

import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hsfl import plugins
from hsfl.config import OWN_MODEL, RunConfig, resolved, with_changes
from hsfl.data.datasets import Dataset
from hsfl.engines.base import Engine, Exam
from hsfl.engines.start import start
from hsfl.errors import InputError
from hsfl.files import write_json
from hsfl.formats import seconds
from hsfl.frameworks import find_framework
from hsfl.frameworks.base import Framework, State, checked_round
from hsfl.methods import method
from hsfl.models.units import SplitModel
from hsfl.network.clock import Timeline
from hsfl.planning.described import fleet_notes
from hsfl.planning.round_clock import RoundClock
from hsfl.planning.straggler import why_record
from hsfl.runs.checkpoint import load_checkpoint, save_checkpoint, save_tensors
from hsfl.runs.environment import check_inputs
from hsfl.runs.folder import RunFolder, check_same_run
from hsfl.runs.interrupt import Interruptible
from hsfl.runs.joined import assess, exported
from hsfl.runs.observer import Observer
from hsfl.runs.prepare import Bench, prepare
from hsfl.runs.provenance import check_plugins
from hsfl.runs.record import Summary, TensorBoard, clients_record, make_record, summarise
from hsfl.runs.records import RoundRecord, Standing
from hsfl.runs.tables import write_tables
from hsfl.training.aggregate import Diverged


@dataclass(frozen=True)
class _Parts:
    """What the rounds of a run work with."""

    bench: Bench
    engine: Engine
    framework: Framework
    clock: RoundClock
    folder: RunFolder
    observer: Observer

    @property
    def config(self) -> RunConfig:
        return self.bench.task.config


@dataclass(frozen=True)
class _Position:
    """Where a run stands between two rounds."""

    state: State
    standing: Standing
    now_s: float  # simulated seconds since the run began


def run(
    config: RunConfig,
    out: str | Path,
    resume: bool | None = False,
    observer: Observer | None = None,
    dataset: Dataset | None = None,
    model: SplitModel | None = None,
) -> Summary:
    """Train as the config says and write the run folder `out`. Ctrl-C ends the run cleanly, so that it can go on later.

    resume: True goes on from the folder's checkpoint, or begins anew where the run stopped before its first checkpoint; None
        goes on where there is a checkpoint and begins otherwise; False begins in an empty folder.
    observer: is told what happens, for a progress display.
    dataset, model: given from Python, instead of those that the config names.
    """
    observer, folder = observer or Observer(), RunFolder(out)
    config = _settled(config, folder, resume, model)
    with folder.locked():
        going_on = _going_on(folder, config, resume, observer)
        folder.clear_scratch()
        with closing(start(config, observer.warns)) as engine:  # its workers begin while the data are read
            bench = prepare(config, dataset, model, folder.first_cuts() if going_on else None)
            framework = find_framework(config.framework)(bench.task)
            clock = make_clock(bench, framework)
            return _train(_Parts(bench, engine, framework, clock, folder, observer), going_on)


def _settled(config: RunConfig, folder: RunFolder, resume: bool | None, model: SplitModel | None) -> RunConfig:
    """The config with its plugins loaded, checked against the folder's where the run may go on."""
    plugins.load_all(config.plugins)
    if resume is not False:
        check_plugins(folder.path, config)
    method(config.framework)
    config = resolved(config)
    if model is not None:  # so that the folder says which commands cannot build it
        config = with_changes(config, [f"model.name={OWN_MODEL}"])
    return config


def _going_on(folder: RunFolder, config: RunConfig, resume: bool | None, observer: Observer) -> bool:
    """Whether the run goes on from a checkpoint. A run that stopped before its first checkpoint is cleared."""
    if resume is False:
        folder.check_free()
        return False
    if folder.config_path.exists() or resume:
        check_same_run(folder.config(), config, folder.path)
        check_inputs(folder.environment().inputs, config, folder.path)
    ended = (folder.summary_path, folder.last_model_path)  # a run that ended had a checkpoint, so it never begins anew
    if any(path.exists() for path in (folder.checkpoint_path, *ended)):
        return True
    if folder.config_path.exists():
        observer.warns(f"the run in {folder.path} had stopped before its first checkpoint; it begins anew")
        folder.begin_anew()
    else:
        folder.check_free()
    return False


def _train(parts: _Parts, going_on: bool) -> Summary:
    """All rounds, then the last model and the summary."""
    config, clock, folder, observer = parts.config, parts.clock, parts.folder, parts.observer
    if not going_on:
        clock.round(0, clock.chosen(0))  # what no round can be made of leaves no folder behind
    log = TensorBoard(folder.path) if config.log.tensorboard else None
    parts.bench.task.feed.on_batch = observer.batch_starts
    task, bench = parts.bench.task, parts.bench
    parts.engine.attach(parts.framework, Exam(task.model, task.initial, bench.test, bench.num_classes))
    status = "finished"
    with Interruptible() as interruptible:
        here = _begin(parts, going_on)
        try:
            for round_index in range(here.standing.rounds_done, config.train.rounds):
                line, says = clock.round(round_index, clock.chosen(round_index))
                if here.now_s + line.round_s > (config.train.budget_s or math.inf):
                    if round_index == 0:
                        observer.warns(_too_short(config, line))
                    status = "budget"
                    break
                with interruptible():
                    after, record = _round(parts, here, round_index, line, says)
                    record = replace(record, why=why_record(clock, round_index, clock.chosen(round_index)))
                here = _Position(after, advance(here.standing, record), record.sim_time_s)
                _write_round(parts, here, record)
                if log is not None:
                    log.write(record)
                observer.round_ends(record)
        except KeyboardInterrupt:
            status = "interrupted"
        except Diverged as why:
            observer.warns(str(why))
            status = "diverged"
        finally:
            observer.run_ends()
        return _finish(parts, here, status)


def _begin(parts: _Parts, going_on: bool) -> _Position:
    """The first state, or that of the checkpoint; the folder gets its first files, the observer hears of the run."""
    config, framework, folder, observer = parts.config, parts.framework, parts.folder, parts.observer
    _warn_of_threads(folder, parts.engine, going_on, observer)
    state, standing = _start(parts, going_on)
    if not folder.cuts_path.exists():
        folder.write_cuts(parts.bench.task.cuts, parts.bench.plan_note)
    write_json(folder.clients_path, asdict(clients_record(parts.bench, framework.cuts)))
    now_s = folder.rounds()[-1].sim_time_s if standing.rounds_done else 0.0
    observer.run_starts(config, framework.cuts, standing.rounds_done)
    planned = parts.bench.plan_note
    for note in [*parts.bench.notes, *fleet_notes(config), *_policy_notes(config), *([planned] if planned else [])]:
        observer.warns(note)
    return _Position(state, standing, now_s)


def _warn_of_threads(folder: RunFolder, engine: Engine, resume: bool, observer: Observer) -> None:
    """Sums depend on how torch divides them among threads."""
    before = folder.environment().num_threads if resume else None
    if before is not None and before != engine.num_threads:
        observer.warns(
            f"the run began with {before} threads and goes on with {engine.num_threads}: last digits may differ"
        )


def _start(parts: _Parts, resume: bool) -> tuple[State, Standing]:
    """The state to begin with, and the folder's rounds cut to those that the state has seen."""
    folder, config = parts.folder, parts.config
    state, standing = parts.framework.init(), Standing(0)
    if resume:
        state, standing = load_checkpoint(folder.checkpoint_path, state, config)
        if config.train.rounds < standing.rounds_done:
            raise InputError(
                f"train.rounds is {config.train.rounds} but {folder.path} has done {standing.rounds_done}; raise it"
            )
        folder.keep_rounds(standing.rounds_done)
        _check_cuts(folder, parts.framework.cuts)
        folder.write_config(config)
    else:
        folder.create(config, parts.engine.num_threads)
    return state, standing


def _check_cuts(folder: RunFolder, cuts: Sequence[int]) -> None:
    """A run does not go on with other cuts than those of its rounds: cuts.json may have been edited, or is missing and the cuts
    were searched again."""
    if (before := folder.rounds()[-1:]) and before[0].crowd is None and before[0].cuts != list(cuts):
        raise InputError(
            f"the rounds in {folder.path} were made with cuts {before[0].cuts}, not {list(cuts)}; put the "
            f"{folder.cuts_path.name} of then back, or run again into a new folder"
        )


def _policy_notes(config: RunConfig) -> list[str]:
    if config.allocation.policy == "even":
        return []
    from hsfl.planning.optimised import policy_notes  # here, because numba takes seconds to load

    return policy_notes(config)


def make_clock(bench: Bench, framework: Framework) -> RoundClock:
    """The clock that times the rounds of a framework in the bench's world."""
    return RoundClock(bench.task.config, bench.world, framework.cuts, bench.num_samples, framework.extras())


def _is_last(config: RunConfig, clock: RoundClock, round_index: int, now_s: float) -> bool:
    """Whether this round, which ends at `now_s`, is the last: no round is left, or the next one would exceed the budget."""
    if round_index + 1 == config.train.rounds:
        return True
    if config.train.budget_s is None:
        return False
    following, _ = clock.round(round_index + 1, clock.chosen(round_index + 1))
    return now_s + following.round_s > config.train.budget_s


def _round(
    parts: _Parts, here: _Position, round_index: int, line: Timeline, says: dict[str, Any]
) -> tuple[State, RoundRecord]:
    """Train one round with the clients that the clock keeps, and look how good the model is now."""
    config, framework, observer, task = parts.config, parts.framework, parts.observer, parts.bench.task
    last = _is_last(config, parts.clock, round_index, here.now_s + line.round_s)
    began = time.perf_counter()
    kept = np.flatnonzero(line.kept).tolist()
    if not kept:
        observer.warns(_nobody(config, line, round_index))
    num_samples = config.train.local_epochs * task.num_samples(kept)
    observer.round_starts(round_index + 1, kept, num_samples)
    after, result = checked_round(framework, framework.round(here.state, kept, round_index))
    quality = None
    if last or (round_index + 1) % config.train.eval_every == 0:
        observer.evaluation_starts()
        quality = assess(parts.engine, framework, after)
    wall_s = time.perf_counter() - began
    record = make_record(framework, task, round_index, here.now_s, line, says, result, quality, wall_s)
    losses = [loss for loss in (record.train_loss, record.test_loss) if loss is not None]
    if not all(map(math.isfinite, losses)) or not after.is_finite():
        raise Diverged(f"a loss or a weight of round {round_index + 1} is no number; lower train.lr")
    return after, record


def _too_short(config: RunConfig, line: Timeline) -> str:
    return (
        f"round 1 takes {seconds(line.round_s, 4)} but train.budget_s is {config.train.budget_s:g}; nothing is trained"
    )


def _nobody(config: RunConfig, line: Timeline, round_index: int) -> str:
    if line.dropped.any():
        return f"nobody finished round {round_index + 1} within train.tau_s = {config.train.tau_s:g} s; raise it"
    return f"nobody took part in round {round_index + 1}; the model stays as it is"


def advance(standing: Standing, record: RoundRecord) -> Standing:
    """Where a run stands after a round."""
    accuracy = record.test_accuracy
    if accuracy is not None and (standing.best_accuracy is None or accuracy > standing.best_accuracy):
        return Standing(record.round, accuracy, record.round)
    return Standing(record.round, standing.best_accuracy, standing.best_round)


def _write_round(parts: _Parts, here: _Position, record: RoundRecord) -> None:
    """The record of the round that led here, the models that are to be kept, and the checkpoint where one is due."""
    folder, log = parts.folder, parts.config.log
    folder.append(record)
    folder.log_placed(record.round, parts.engine.placed())
    if here.standing.best_round == record.round:
        _save_model(parts, here, folder.best_model_path)
    if log.model_every is not None and record.round % log.model_every == 0:
        _save_model(parts, here, folder.path / "models" / f"round-{record.round}.safetensors")
    if record.round % log.checkpoint_every == 0:
        save_checkpoint(folder.checkpoint_path, here.state, here.standing, parts.config)


def _save_model(parts: _Parts, here: _Position, path: Path) -> None:
    save_tensors(path, exported(parts.framework, here.state).named())


def _finish(parts: _Parts, here: _Position, status: str) -> Summary:
    """The last checkpoint and model, and how the run ended."""
    save_checkpoint(parts.folder.checkpoint_path, here.state, here.standing, parts.config)
    _save_model(parts, here, parts.folder.last_model_path)
    summary = summarise(parts.folder, parts.config, status)
    write_tables(parts.folder.path, parts.folder.rounds())
    write_json(parts.folder.summary_path, asdict(summary))
    return summary
