"""The first commands: those of README.md and docs/start.md, line by line as they stand, each made small by settings at its end; the README's
Python, the config of docs/simulate.md, the lines of docs/fleet.md for other planners, and the pandas of docs/formats.md."""

import csv
import os
import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hsfl.config import read_config
from hsfl.config.document import document
from hsfl.runs.checks.unused_settings import refuse_unused
from tests.naming import names
from tests.plugins.files import unload
from tests.small_runs import hsfl
from tests.snippets import SMALL, SMALL_MODEL, Block, blocks_of, made_small

ROOT = Path(__file__).parents[1]
README, START, SIMULATE, FLEET, FORMATS = (
    (ROOT / name).read_text()
    for name in ("README.md", "docs/start.md", "docs/simulate.md", "docs/fleet.md", "docs/formats.md")
)
(CONFIG,) = (block.text for block in blocks_of(SIMULATE) if block.kind == "toml")


def commands(text: str) -> list[list[str]]:
    """The words of each `hsfl` line that is to be run."""
    shell: list[Block] = [block for block in blocks_of(text) if block.kind == "shell" and not block.not_run]
    return [shlex.split(line, comments=True)[1:] for block in shell for line in block.command_lines]


def section(text: str, title: str) -> str:
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


USE_IT = commands(section(START, "Use it"))


def small(words: list[str]) -> list[str]:
    """The command with settings that make it take seconds."""
    data = os.environ.get("HSFL_DATA", "DATA")
    words = [data if word == "DATA" else word for word in words]
    return [*made_small(words), *(("--set", "train.rounds=2") if "--resume" in words else ())]


def _case(words: list[str]) -> Any:
    """A parameter of the test; what takes long even so is for the slow tests."""
    long = [pytest.mark.slow] if words[0] in ("measure", "compare", "sweep") or "my.toml" in words else []
    return pytest.param(words, id=" ".join(words)[:60], marks=long)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("readme")
    (path / "my.toml").write_text(CONFIG)
    shutil.copytree(ROOT / "docs/examples", path / "docs/examples")
    return path


@pytest.mark.parametrize("words", [_case(words) for words in USE_IT])
def test_use_it(words: list[str], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    if "HSFL_DATA" not in os.environ and {"DATA", "runs/mnist", "my.toml"} & set(words):
        pytest.skip("the data sets are not here: set HSFL_DATA")
    try:
        answer = hsfl(*small(words))
    finally:
        unload()  # what --plugin registered
    assert answer.code == 0, answer


def test_the_readme_shows_lines_that_are_run_elsewhere() -> None:
    """All of them are lines of docs/start.md, but for a plan without a folder and the demo of a deployment, which has a test of its own."""
    others = [words for words in commands(README) if words not in USE_IT]
    assert others == [["plan", "demo"], ["deploy-demo"]]
    assert ["plan", "demo", "--out", "plan"] in USE_IT


def test_the_python_of_the_readme_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (snippet,) = (block.text for block in blocks_of(README) if block.kind == "python")
    left: dict[str, Any] = {}
    exec(snippet, left)
    assert left["result"].status == "finished"


def test_other_questions_to_the_planner(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    device, city = (words for words in commands(section(FLEET, "4. Plan")) if "hospital.toml" not in words)
    assert hsfl(*device).code == 0
    fewer = ("fleet.num_clients=2400", "network.cells=3", "train.clients_per_round=12", "model.name=cnn")
    answer = hsfl(*city, *(part for change in fewer for part in ("--set", change)))
    assert answer.code == 0, answer
    names(answer.out, "2,400", "12")


def test_files_that_commands_read_are_there_or_shown() -> None:
    """A file in the repository, one that a document shows under its name, or one that a command before has written."""
    shown = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    written = set[str]()
    for words in (*commands(README), *commands(START)):
        for before, word in pairwise(words):
            file = word.partition(".py:")[0] + ".py" if ".py:" in word else word
            if before in ("-o", "--out"):
                written.add(word)
            elif re.search(r"\.(toml|py|json|csv|npz)$", file):
                there = (ROOT / file).is_file() or f"\n# {file}" in shown or Path(file).parent.as_posix() in written
                assert there, file


def test_use_it_has_what_people_need_first() -> None:
    assert {words[0] for words in USE_IT} >= {
        "doctor",
        "run",
        "evaluate",
        "export",
        "plan",
        "compare",
        "sweep",
        "cost",
        "measure",
    }


def test_the_config_that_is_shown_has_no_setting_without_effect(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(CONFIG)
    refuse_unused(tmp_path / "my.toml", [], [read_config(tmp_path / "my.toml")])


def test_the_list_of_settings_is_current() -> None:
    text = (ROOT / "docs/settings.md").read_text()
    assert text == document(), "write it anew: python -m hsfl.config.document > docs/settings.md"
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert all(line.split("|")[3].strip() for line in rows), "every setting has an explanation"
    assert "`tau_s`" in text


def test_the_tables_have_the_columns_that_are_read_with_pandas(tmp_path: Path) -> None:
    words = [part for change in (*SMALL, *SMALL_MODEL) for part in ("--set", change)]
    assert hsfl("run", "demo", *words, "--out", tmp_path, "--quiet").code == 0
    (lines,) = (block.text for block in blocks_of(FORMATS) if block.kind == "python")
    (round_columns,) = re.findall(r"rounds\[\[(.*?)\]\]", lines)
    (phase_columns,) = re.findall(r"pivot_table\((.*?)\)", lines)
    for name, columns in (("rounds", round_columns), ("phases", phase_columns)):
        header, *rows = list(csv.reader((tmp_path / f"{name}.csv").read_text().splitlines()))
        assert rows
        assert set(re.findall(r'"(\w+)"', columns)) <= set(header)
    kept = {row[header.index("client")] for row in rows if row[header.index("kept")] == "True"}
    assert kept == {str(k) for k in range(10)}
