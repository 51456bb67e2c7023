"""Workers that a framework cannot use are not left idle in silence."""

from pathlib import Path

import pytest

import hsfl
from hsfl.config import RunConfig, read_config
from hsfl.engines.engine import Inline
from hsfl.engines.start import start_engine
from hsfl.runs.loop import train_run
from tests.engines.runs import SMALL
from tests.naming import names
from tests.plugins.files import unload

OWN_ROUND = """
import hsfl


class OwnRound(hsfl.HSFL):
    def round(self, state, kept, round_index):
        shard = self.train(state, kept, round_index, self.task.num_samples(kept))
        return self.finish(state, [shard], self.task.receivers(round_index))


class Wrapped(hsfl.HSFL):
    def round(self, state, kept, round_index):
        return super().round(state, kept, round_index)


class Stranger(hsfl.FrameworkBase):
    copy_per_client = True

    def init(self):
        raise NotImplementedError

    round = models = lambda self, *arguments: None


hsfl.register_framework("own_round", OwnRound)
hsfl.register_framework("wrapped", Wrapped)
hsfl.register_framework("stranger", Stranger)
"""


class Listener(hsfl.Observer):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warns(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture
def plugin(tmp_path: Path):  # type: ignore[no-untyped-def]
    (tmp_path / "own.py").write_text(OWN_ROUND)
    yield tmp_path / "own.py"
    unload()


def spread(plugin: Path, framework: str) -> RunConfig:
    words = [*SMALL, f"framework={framework}", "engine.name=workers", "engine.workers=2", "engine.threads=1"]
    return read_config(None, words, [plugin])


@pytest.mark.parametrize(("framework", "idle"), [("own_round", 1), ("wrapped", 0)])
def test_a_round_of_ones_own_that_no_worker_trains_is_said_once(
    plugin: Path, framework: str, idle: int, tmp_path: Path
) -> None:
    listener = Listener()
    train_run(spread(plugin, framework), tmp_path / "run", observer=listener)
    told = [text for text in listener.warnings if "idle" in text]
    assert len(told) == idle
    for text in told:
        names(text, "engine.name=workers", "OwnRound.round", "super().round", "engine.name=inline")


def test_a_class_that_no_worker_knows_runs_in_this_process(plugin: Path) -> None:
    listener = Listener()
    engine = start_engine(spread(plugin, "stranger"), listener.warns)
    assert isinstance(engine, Inline)
    names(listener.warnings[-1], "engine.name=workers", "stranger", "one process", "Stranger")
