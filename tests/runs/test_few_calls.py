"""From the command to the gradient there are few calls, and CONTRIBUTING.md names them."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import hsfl as package
from hsfl.training import roles
from tests.small_runs import hsfl, tiny_words

ROOT = Path(package.__file__).parent
CONTRIBUTING = ROOT.parents[1] / "CONTRIBUTING.md"


def drawn_chain() -> list[tuple[str, str]]:
    """(file, function) of every call that CONTRIBUTING.md names; a function without a file is in the file before."""
    (lines,) = re.findall(
        r"^    (commands/run\.py run_command -> .*(?:\n      .*)*) -> run_backward\(loss\)$",
        CONTRIBUTING.read_text(),
        re.M,
    )
    chain: list[tuple[str, str]] = []
    for step in lines.split("->"):
        *file, function = step.split()
        chain.append((file[0] if file else chain[-1][0], function))
    return chain


def test_the_calls_from_the_command_to_a_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[tuple[str, str]]] = []
    backward = roles.run_backward

    def watched(*words: Any) -> None:
        frame, calls = sys._getframe(1), []
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(ROOT):
                calls.append((path.relative_to(ROOT).as_posix(), frame.f_code.co_name))
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
