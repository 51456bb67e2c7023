"""The snippets of the documents: which there are, which are not run and why, and how the others are run.

A block that a test cannot run has a comment before it, `<!-- not run: REASON -->`, which no reader sees.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.small_runs import hsfl

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"<!-- not run: (.+) -->")
COMMANDS = (
    "hsfl",
    "python",
    "python3",
    "python3.11",
    "pip",
    "make",
    "ray",
    "scp",
    "cp",
    "docker",
    "export",
    "git",
    ".",
)
SHELL = ("sh", "bash", "console")
SMALL = ("data.limit=60", "data.limit_test=40", "train.rounds=1", "train.batch_size=8")
SMALL_MODEL = ("model.name=cnn", "model.norm=none")
QUICK_PLAN = ("data.limit=60", "allocation.samples=2")


@dataclass(frozen=True)
class Block:
    """A fenced block, or an indented one. kind: the language of a fence, `shell` for commands, or `text`."""

    kind: str
    text: str
    not_run: str  # why; empty where it is run

    @property
    def command_lines(self) -> list[str]:
        """The lines of a shell block, without comments; a line that goes on after a backslash is one."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def blocks_of(text: str) -> Iterator[Block]:
    """Every block of a page, in order."""
    reason, lines = "", text.splitlines()
    place = 0
    while place < len(lines):
        line = lines[place]
        if match := MARK.fullmatch(line.strip()):
            reason = match[1]
        elif line.startswith("```"):
            end = next(i for i in range(place + 1, len(lines)) if lines[i].startswith("```"))
            kind = line.removeprefix("```").strip()
            yield Block("shell" if kind in SHELL else kind or "text", _text(lines[place + 1 : end]), reason)
            reason, place = "", end
        elif line.startswith("    ") and (place == 0 or not lines[place - 1].strip()):
            end = place
            while end + 1 < len(lines) and (lines[end + 1].startswith("    ") or _goes_on(lines, end + 1)):
                end += 1
            content = _text(line[4:] for line in lines[place : end + 1])
            kind = "shell" if any(_is_command(line) for line in content.splitlines()) else "text"
            yield Block(kind, content, reason)
            reason, place = "", end
        elif line.strip():
            reason = ""
        place += 1


def _text(lines: Any) -> str:
    return "".join(f"{line}\n" for line in lines)


def _goes_on(lines: list[str], place: int) -> bool:
    """Whether a blank line stands inside an indented block."""
    return not lines[place].strip() and lines[place + 1 : place + 2] != [] and lines[place + 1].startswith("    ")


def _is_command(line: str) -> bool:
    return line.partition(" ")[0] in COMMANDS


def run_blocks(text: str, folder: Path) -> dict[str, Any]:
    """Run the blocks of a page that are not marked, from its top: Python as one program, commands made small, which must succeed. TOML is
    written to the file that its first line names. Answers the names that the Python leaves."""
    names: dict[str, Any] = {}
    for block in blocks_of(text):
        if block.not_run:
            continue
        if block.kind == "python":
            exec(block.text, names)
        elif block.kind == "toml" and block.text.startswith("# "):
            (folder / block.text.split()[1].strip(",:")).write_text(block.text)
        elif block.kind == "shell":
            for line in block.command_lines:
                run_line(line)
    return names


def run_line(line: str) -> None:
    """Run a line that begins with hsfl, made small; it must succeed."""
    command, *words = shlex.split(line, comments=True)
    assert command == "hsfl", f"a test can only run hsfl: {line}; mark the block"
    answer = hsfl(*made_small(words))
    assert answer.code == 0, (line, answer)


def made_small(words: list[str]) -> list[str]:
    """The command with settings that make it take seconds: presets train a small model on few samples, and plan few of them."""
    word, *rest = words
    of_preset = rest[:1] in (["demo"], ["paper-mnist"], ["my.toml"])
    changes: tuple[str, ...] = ()
    if word == "plan" and of_preset and "--device" not in rest:
        changes = QUICK_PLAN
    elif word in ("run", "compare", "sweep") and of_preset:
        changes = SMALL if rest[0] == "my.toml" else (*SMALL, *SMALL_MODEL)
    elif word == "run" and "--plan" in rest:
        changes = (QUICK_PLAN[0], *SMALL[1:])
    if word in ("compare", "sweep"):
        words = [part for part in words if part not in ("--seeds", "3")]
    return [*words, *(part for change in changes for part in ("--set", change))]
