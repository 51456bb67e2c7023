"""From the command to the gradient there are few calls, and docs/architecture.md names them."""

import sys
from pathlib import Path
from typing import Any

import pytest

import hsfl as package
from hsfl.training import roles
from tests.small_runs import hsfl, tiny_words
from tests.test_architecture import WALKS

ROOT = Path(package.__file__).parent


def drawn_chain() -> list[tuple[str, str]]:
    """(file, function) of every call from the command to the gradient, in the walk of a run."""
    step = next(step for step in WALKS["run"] if step.name == "run_backward").caller
    chain: list[tuple[str, str]] = []
    while step is not None:
        chain.append((step.path, step.name))
        step = step.caller
    return chain[::-1]


def test_the_calls_from_the_command_to_a_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[tuple[str, str]]] = []
    backward = roles.run_backward

    def watched(*words: Any) -> None:
        frame, calls = sys._getframe(1), []
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(ROOT):
                calls.append((path.relative_to(ROOT).as_posix(), frame.f_code.co_qualname))
            frame = frame.f_back  # type: ignore[assignment]
        seen.append(calls[::-1])
        backward(*words)

    monkeypatch.setattr(roles, "run_backward", watched)
    words = tiny_words("train.rounds=1", "fleet.cuts=[2, 2, 2]")
    assert hsfl("run", *words, "--out", tmp_path / "run", "--quiet").code == 0
    chain = seen[0][seen[0].index(("commands/run.py", "run_command")) :]
    assert chain == drawn_chain()
    assert len(chain) - 1 <= 7
    assert len({file for file, _ in chain}) <= 4
