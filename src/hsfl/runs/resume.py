"""How a run begins: anew in an empty folder, or resumed from the checkpoint of a run that stopped.

`resumes_from_checkpoint` decides which of the two it is, and refuses to go on with other settings, plugins or input files than
the run began with. `begin_or_resume` gives the first or the saved state. Rounds that the checkpoint has not seen are forgotten
and made again, with the same numbers. `Parts` is what the rounds of a run work with, `Position` where a run stands between two
rounds.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from hsfl import plugins
from hsfl.config import OWN_MODEL, RunConfig, resolved, with_changes
from hsfl.engines.engine import Engine
from hsfl.errors import InputError
from hsfl.files import write_json
from hsfl.framework_table import method
from hsfl.frameworks.framework import Framework, State
from hsfl.models.state import UnitState
from hsfl.models.units import SplitModel
from hsfl.planning.fair_defaults import without_auto
from hsfl.planning.fleet_from_file import fleet_notes
from hsfl.planning.rounds.round_clock import RoundClock
from hsfl.runs.checks.clock_notes import clock_notes
from hsfl.runs.checks.memory_check import updates_notes
from hsfl.runs.prepare import Bench
from hsfl.runs.progress import Observer
from hsfl.runs.run_folder.checkpoint import load_checkpoint
from hsfl.runs.run_folder.environment import check_inputs
from hsfl.runs.run_folder.folder import RunFolder, check_same_run
from hsfl.runs.run_folder.provenance import check_plugins
from hsfl.runs.run_folder.records import RunStanding
from hsfl.runs.run_folder.write_records import clients_record


@dataclass(frozen=True)
class Parts:
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
class Position:
    """Where a run stands between two rounds."""

    state: State
    standing: RunStanding
    sim_time_s: float  # simulated seconds since the run began
    estimated: UnitState | None = (
        None  # the joined model with estimated statistics, where the last round estimated them
    )


def resolve_config(config: RunConfig, folder: RunFolder, resume: bool | None, model: SplitModel | None) -> RunConfig:
    """The config after its plugins are loaded. Where the run may go on, they are checked against those of the
    folder."""
    plugins.load_plugins_of(config.plugins)
    if resume is not False:
        check_plugins(folder.path, config)
    method(config.framework)
    config = without_auto(resolved(config))
    if model is not None:  # so that the folder says that commands cannot build the model
        config = with_changes(config, [f"model.name={OWN_MODEL}"])
    return config


def resumes_from_checkpoint(folder: RunFolder, config: RunConfig, resume: bool | None, observer: Observer) -> bool:
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


def begin_or_resume(parts: Parts, going_on: bool) -> Position:
    """The first state, or that of the checkpoint; the folder gets its first files, the observer hears of the run."""
    config, framework, folder, observer = parts.config, parts.framework, parts.folder, parts.observer
    _warn_of_threads(folder, parts.engine, going_on, observer)
    state, standing = _first_or_saved_state(parts, going_on)
    if not folder.cuts_path.exists():
        folder.write_cuts(parts.bench.cuts)
    folder.write_task(parts.bench.task.goal.row)
    notes = [*parts.bench.notes, *fleet_notes(config), *_policy_notes(config), *updates_notes(parts.bench)]
    notes += clock_notes(parts.bench, framework, parts.clock)
    write_json(folder.clients_path, asdict(clients_record(parts.bench, framework.cuts, notes)))
    sim_time_s = folder.rounds()[-1].sim_time_s if standing.rounds_done else 0.0
    observer.run_starts(config, framework.cuts, standing.rounds_done)
    plan_note = parts.bench.plan_note
    for note in [*notes, *([plan_note] if plan_note else [])]:
        observer.warns(note)
    return Position(state, standing, sim_time_s)


def _warn_of_threads(folder: RunFolder, engine: Engine, going_on: bool, observer: Observer) -> None:
    """Warn where a run goes on with another number of threads: sums depend on how torch divides them among threads."""
    before = folder.environment().num_threads if going_on else None
    if before is not None and before != engine.num_threads:
        observer.warns(
            f"the run began with {before} threads and goes on with {engine.num_threads}: last digits may differ"
        )


def _first_or_saved_state(parts: Parts, going_on: bool) -> tuple[State, RunStanding]:
    """The state to begin with, and the folder's rounds cut to those that the state has seen."""
    folder, config = parts.folder, parts.config
    state, standing = parts.framework.init(), RunStanding(0, None, None)
    if going_on:
        state, standing = load_checkpoint(folder.checkpoint_path, state, config)
        if config.train.rounds < standing.rounds_done:
            raise InputError(
                f"train.rounds is {config.train.rounds} but {folder.path} has done {standing.rounds_done}; raise it"
            )
        folder.keep_rounds(standing.rounds_done)
        _check_same_cuts(folder, parts.framework.cuts, parts.bench.task.codecs)
        folder.write_config(config)
    else:
        folder.create(config, parts.engine.num_threads)
    return state, standing


def _check_same_cuts(folder: RunFolder, cuts: Sequence[int], codecs: Sequence[str]) -> None:
    """Refuse to go on with other cuts or codecs than those of the run's rounds: cuts.json may have been edited, or it is missing
    and the cuts were searched again."""
    before = [record for record in folder.rounds()[-1:] if record.crowd is None]
    for name, present in (("cuts", list(cuts)), ("codecs", list(codecs) or None)):
        if not before or (made_with := getattr(before[0], name)) == present:
            continue
        raise InputError(
            f"the rounds in {folder.path} were made with {name} {made_with}, not {present}; put the original "
            f"{folder.cuts_path.name} back, or run again into a new folder"
        )


def _policy_notes(config: RunConfig) -> list[str]:
    if config.allocation.policy == "even":
        return []
    from hsfl.planning.rounds.policy_allocator import policy_notes  # here, because numba takes seconds to load

    return policy_notes(config)
