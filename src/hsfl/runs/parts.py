"""What the rounds of a run work with, and where a run stands between two rounds."""

from dataclasses import dataclass

from hsfl.config import RunConfig
from hsfl.engines.engine import Engine
from hsfl.frameworks.framework import Framework, State
from hsfl.models.state import UnitState
from hsfl.planning.round_clock import RoundClock
from hsfl.runs.folder import RunFolder
from hsfl.runs.observer import Observer
from hsfl.runs.prepare import Bench
from hsfl.runs.records import RunStanding


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
    now_s: float  # simulated seconds since the run began
    estimated: UnitState | None = (
        None  # the joined model with estimated statistics, where the last round estimated them
    )
