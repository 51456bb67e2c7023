"""Small real runs on digits, the command as people type it, and what a run folder must hold."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hsfl.cli import app
from hsfl.commands.console import COMPILING
from hsfl.config import RunConfig, read_config

PLAIN = ("fleet.cuts=max_cut", "allocation.policy=even")  # the defaults would plan and allocate, which takes longer
TINY = (
    "model.name=cnn",
    "data.image_size=8",
    "data.limit=60",
    "data.limit_test=40",
    "fleet.num_clients=3",
    "fleet.cuts=[1, 2, 5]",
    "allocation.policy=even",
    "train.rounds=3",
    "train.batch_size=8",
    "train.lr=0.01",
)


def tiny(*changes: str) -> RunConfig:
    """A config that trains in a fraction of a second."""
    return read_config(None, [*TINY, *changes])


def tiny_words(*changes: str) -> list[str]:
    """The same for the command line."""
    return [word for change in (*TINY, *changes) for word in ("--set", change)]


@dataclass(frozen=True)
class Answer:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """All of stdout, which must be one JSON value without NaN."""
        return json.loads(self.out, parse_constant=_refuse)


def hsfl(*words: object) -> Answer:
    """Run the command; a traceback fails the test."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"hsfl {' '.join(map(str, words))} ended with a traceback") from result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


def refused(*words: object) -> str:
    """Run the command with wrong input: exit code 2 and one line, which is returned."""
    answer = hsfl(*words)
    assert answer.code == 2, answer
    assert answer.out.removeprefix(f"{COMPILING}\n") == "", answer  # a fresh checkout may say this before anything else
    assert answer.err.startswith("error: "), answer
    assert answer.err.count("\n") == 1, answer
    return answer.err


def leave_undrawn(patch: pytest.MonkeyPatch) -> None:
    """Let commands draw no figures, for a fixture of a module; a test takes the fixture `undrawn`."""
    patch.setattr("hsfl.report.plots.write_figures", lambda *_: [])
    patch.setattr("hsfl.report.sweep_figure.write_sweep_figures", lambda *_: [])


def read_strictly(path: Path) -> list[Any]:
    """The JSON values of a file, one a line or one in all; NaN fails."""
    text = path.read_text()
    parts = text.splitlines() if path.suffix == ".jsonl" else [text]
    return [json.loads(part, parse_constant=_refuse) for part in parts]


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def numbers(folder: Path) -> list[dict[str, Any]]:
    """What a run recorded, without the time it and its allocation took."""
    records = read_strictly(folder / "rounds.jsonl")
    return [record | {"wall_s": None, "allocation": record["allocation"] | {"seconds": None}} for record in records]


def assert_same_run(left: Path, right: Path) -> None:
    """The same numbers and the same models, to the bit."""
    assert numbers(left) == numbers(right)
    for name in ("model.safetensors", "model-best.safetensors"):
        assert (left / name).read_bytes() == (right / name).read_bytes(), name
