"""A run: one visible loop from a config to a folder of results."""

import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hsfl import plugins
from hsfl.config import OWN_MODEL, RunConfig, resolved, with_changes
from hsfl.data.datasets import Dataset
from hsfl.engines import Engine, Exam, start
from hsfl.errors import InputError
from hsfl.files import read_json, write_json
from hsfl.frameworks import find_framework
from hsfl.frameworks.base import Framework, State
from hsfl.methods import method
from hsfl.models.state import UnitState
from hsfl.models.units import SplitModel
from hsfl.network.clock import Timeline
from hsfl.planning.round_clock import RoundClock
from hsfl.rng import stream
from hsfl.runs.checkpoint import Progress, load_checkpoint, save_checkpoint, save_tensors
from hsfl.runs.folder import RoundRecord, RunFolder, check_inputs, check_same_run
from hsfl.runs.interrupt import Interruptible
from hsfl.runs.prepare import Bench, prepare
from hsfl.runs.provenance import check_plugins
from hsfl.runs.record import Summary, TensorBoard, clients_record, make_record, summarise
from hsfl.training.aggregate import Diverged, PartialSum
from hsfl.training.evaluate import Quality, mean_quality


class Observer:
    """Told what happens, for a progress display; this one shows nothing."""

    def run_starts(self, config: RunConfig, cuts: Sequence[int], rounds_done: int) -> None: ...
    def round_starts(self, round_number: int, kept: Sequence[int], num_samples: int) -> None: ...
    def batch_starts(self, client: int, num_samples: int) -> None: ...
    def evaluation_starts(self) -> None: ...
    def warns(self, message: str) -> None: ...
    def round_ends(self, record: RoundRecord) -> None: ...
    def run_ends(self) -> None: ...


def _policy_notes(config: RunConfig) -> list[str]:
    if config.allocation.policy == "even":
        return []
    from hsfl.planning.optimised import policy_notes  # here, because numba takes seconds to load

    return policy_notes(config)


def run(
    config: RunConfig,
    out: str | Path,
    resume: bool | None = False,
    observer: Observer | None = None,
    dataset: Dataset | None = None,
    model: SplitModel | None = None,
) -> Summary:
    """Train as the config says and write the run folder `out`. Ctrl-C ends the run cleanly; `resume` goes on.

    resume: True goes on from the folder's checkpoint, or begins anew where the run stopped before its first; None goes on
        where there is a checkpoint and begins otherwise; False begins in an empty folder.
    """
    observer, folder = observer or Observer(), RunFolder(out)
    plugins.load_all(config.plugins)
    if resume is not False:
        check_plugins(folder.path, config)
    method(config.framework)
    config = resolved(config)
    if model is not None:  # so that the folder says which commands cannot build it
        config = with_changes(config, [f"model.name={OWN_MODEL}"])
    with folder.locked():
        going_on = _going_on(folder, config, resume, observer)
        with closing(start(config, observer.warns)) as engine:  # its workers begin while the data are read
            bench = prepare(config, dataset, model, folder.planned_cuts() if going_on else None)
            return _train(bench, engine, folder, going_on, observer)


def _going_on(folder: RunFolder, config: RunConfig, resume: bool | None, observer: Observer) -> bool:
    """Whether the run goes on from a checkpoint; what cannot be gone on from is cleared."""
    if resume is False:
        folder.check_free()
        return False
    if folder.config_path.exists() or resume:
        check_same_run(folder.config(), config, folder.path)
        environment = folder.path / "environment.json"
        if environment.exists():
            check_inputs(read_json(environment).get("inputs"), config, folder.path)
    if folder.checkpoint_path.exists() or folder.summary_path.exists():  # a run that ended had a checkpoint
        return True
    if folder.config_path.exists():
        observer.warns(f"the run in {folder.path} had stopped before its first checkpoint; it begins anew")
        folder.begin_anew()
    else:
        folder.check_free()
    return False


def _train(bench: Bench, engine: Engine, folder: RunFolder, going_on: bool, observer: Observer) -> Summary:
    """All rounds, then the last model and the summary."""
    config = bench.task.config
    framework = find_framework(config.framework)(bench.task)
    clock = make_clock(bench, framework)
    if not going_on:
        clock.round(0, choose_clients(config, 0))  # what no round can be made of leaves no folder behind
    log = TensorBoard(folder.path) if config.log.tensorboard else None
    bench.task.feed.on_batch = observer.batch_starts
    engine.attach(framework, Exam(bench.task.model, bench.test, bench.num_classes))
    status = "finished"
    with Interruptible() as interruptible:
        _warn_of_threads(folder, engine, going_on, observer)
        state, progress = _start(framework, folder, config, going_on)
        folder.write_cuts(bench.task.cuts)
        write_json(folder.clients_path, asdict(clients_record(bench, framework.cuts)))
        now_s = folder.rounds()[-1].sim_time_s if progress.rounds_done else 0.0
        observer.run_starts(config, framework.cuts, progress.rounds_done)
        for note in _policy_notes(config):
            observer.warns(note)
        try:
            for round_index in range(progress.rounds_done, config.train.rounds):
                line, says = clock.round(round_index, choose_clients(config, round_index))
                if now_s + line.round_s > (config.train.budget_s or math.inf):
                    if round_index == 0:
                        observer.warns(_too_short(config, line))
                    status = "budget"
                    break
                last = _is_last(config, clock, round_index, now_s + line.round_s)
                with interruptible():
                    after, record = _round(
                        bench, engine, framework, state, round_index, now_s, line, says, last, observer
                    )
                state, progress, now_s = after, _advance(progress, record), record.sim_time_s
                _write_round(folder, framework, state, record, progress, config)
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
        save_checkpoint(folder.checkpoint_path, state, progress, config)
        save_tensors(folder.last_model_path, exported(framework, state).named())
        summary = summarise(folder, config, status)
        write_json(folder.summary_path, asdict(summary))
    return summary


def _warn_of_threads(folder: RunFolder, engine: Engine, resume: bool, observer: Observer) -> None:
    """Sums depend on how torch divides them among threads."""
    before = read_json(folder.path / "environment.json").get("num_threads") if resume else None
    if before is not None and before != engine.num_threads:
        observer.warns(
            f"the run began with {before} threads and goes on with {engine.num_threads}: last digits may differ"
        )


def _start(framework: Framework, folder: RunFolder, config: RunConfig, resume: bool) -> tuple[State, Progress]:
    state, progress = framework.init(), Progress(0)
    if resume:
        state, progress = load_checkpoint(folder.checkpoint_path, state, config)
        if config.train.rounds < progress.rounds_done:
            raise InputError(
                f"train.rounds is {config.train.rounds} but {folder.path} has done {progress.rounds_done}; raise it"
            )
        folder.keep_rounds(progress.rounds_done)
        write_json(folder.config_path, config.model_dump(mode="json"))
    else:
        folder.create(config)
    return state, progress


def make_clock(bench: Bench, framework: Framework) -> RoundClock:
    """The clock of a framework in the bench's world."""
    return RoundClock(bench.task.config, bench.world, framework.cuts, bench.num_samples, framework.extras())


def choose_clients(config: RunConfig, round_index: int) -> tuple[int, ...]:
    """Who is to take part in a round: a random choice of clients_per_round, less those that drop out."""
    train, num_clients = config.train, config.fleet.num_clients
    rng = stream(config.seed, "kept", round_index)
    chosen = rng.permutation(num_clients)[: train.clients_per_round or num_clients]
    stays = rng.random(num_clients) >= train.drop_rate
    return tuple(sorted(int(k) for k in chosen if stays[k]))


def _is_last(config: RunConfig, clock: RoundClock, round_index: int, now_s: float) -> bool:
    """Whether no round follows, for want of rounds or of simulated seconds."""
    if round_index + 1 == config.train.rounds:
        return True
    if config.train.budget_s is None:
        return False
    following, _ = clock.round(round_index + 1, choose_clients(config, round_index + 1))
    return now_s + following.round_s > config.train.budget_s


def _round(
    bench: Bench,
    engine: Engine,
    framework: Framework,
    state: State,
    round_index: int,
    now_s: float,
    line: Timeline,
    says: dict[str, Any],
    last: bool,
    observer: Observer,
) -> tuple[State, RoundRecord]:
    """Train one round with the clients that the clock keeps, look how good the model is now."""
    config, task = bench.task.config, bench.task
    began = time.perf_counter()
    kept = np.flatnonzero(line.kept).tolist()
    if not kept:
        observer.warns(_nobody(config, line, round_index))
    epochs = config.train.local_epochs
    observer.round_starts(round_index + 1, kept, epochs * sum(task.feed.num_samples(k) for k in kept))
    after, result = framework.round(state, kept, round_index)
    quality = None
    if last or (round_index + 1) % config.train.eval_every == 0:
        observer.evaluation_starts()
        quality = assess(engine, framework, after)
    record = make_record(framework, task, round_index, now_s, line, says, result, quality, time.perf_counter() - began)
    losses = [loss for loss in (record.train_loss, record.test_loss) if loss is not None]
    if not all(map(math.isfinite, losses)) or not after.is_finite():
        raise Diverged(f"a loss or a weight of round {round_index + 1} is no number; lower train.lr")
    return after, record


def _too_short(config: RunConfig, line: Timeline) -> str:
    return f"round 1 takes {line.round_s:.4g} s but train.budget_s is {config.train.budget_s:g}; nothing is trained"


def _nobody(config: RunConfig, line: Timeline, round_index: int) -> str:
    if line.dropped.any():
        return f"nobody finished round {round_index + 1} within train.tau_s = {config.train.tau_s:g} s; raise it"
    return f"nobody took part in round {round_index + 1}; the model stays as it is"


def assess(engine: Engine, framework: Framework, state: State) -> Quality:
    """The quality of the joined model; the mean over clients where each has its own."""
    return mean_quality([engine.evaluate(whole) for whole in framework.models(state)])


def exported(framework: Framework, state: State) -> UnitState:
    """The one model that a run gives; where clients keep sides of their own, the mean of the joined models."""
    models = list(framework.models(state))
    if len(models) == 1:
        return models[0]
    total = PartialSum.zero(models[0], len(models))
    for whole in models:
        total.add(whole, 1.0)
    return total.mean(models[0])


def _advance(progress: Progress, record: RoundRecord) -> Progress:
    accuracy = record.test_accuracy
    if accuracy is not None and (progress.best_accuracy is None or accuracy > progress.best_accuracy):
        return Progress(record.round, accuracy, record.round)
    return Progress(record.round, progress.best_accuracy, progress.best_round)


def _write_round(
    folder: RunFolder, framework: Framework, state: State, record: RoundRecord, progress: Progress, config: RunConfig
) -> None:
    folder.append(record)
    if progress.best_round == record.round:
        save_tensors(folder.best_model_path, exported(framework, state).named())
    if config.log.model_every is not None and record.round % config.log.model_every == 0:
        path = folder.path / "models" / f"round-{record.round}.safetensors"
        save_tensors(path, exported(framework, state).named())
    if record.round % config.log.checkpoint_every == 0:
        save_checkpoint(folder.checkpoint_path, state, progress, config)
