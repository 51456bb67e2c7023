"""The README's commands, line by line as they stand, each made small by settings at its end; its Python, and its config."""

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

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
(CONFIG,) = re.findall(r"## Settings.*?```toml\n(.*?)```", TEXT, re.S)
SMALL = ["data.limit=60", "data.limit_test=40", "train.rounds=1", "train.batch_size=8"]


def commands(section: str) -> list[list[str]]:
    """The words of each `hsfl` line in a section."""
    (part,) = re.findall(rf"^## {section}\n(.*?)^## ", TEXT, re.S | re.M)
    return [shlex.split(line, comments=True) for line in re.findall(r"^    (?:hsfl) (.+)$", part, re.M)]


USE_IT = commands("Use it")


def small(words: list[str]) -> list[str]:
    """The command with settings that make it take seconds."""
    data = os.environ.get("HSFL_DATA", "DATA")
    words = [data if word == "DATA" else word for word in words]
    resumed, again = "--resume" in words, words[:2] == ["run", "runs/mnist"]
    changes = [] if resumed or again or words[0] not in ("run", "compare", "sweep", "plan") else SMALL
    if changes and "my.toml" not in words and words[0] != "plan" and "--plan" not in words:
        changes = [*changes, "model.name=cnn", "model.norm=none"]
    if words[0] == "plan" or "--plan" in words:
        changes = ["data.limit=60", *(["allocation.samples=2"] if words[0] == "plan" else SMALL[1:])]
    if resumed or again:
        changes = ["train.rounds=2"] if resumed else []
    words = [word for word in words if word not in ("--seeds", "3")] if words[0] in ("compare", "sweep") else words
    return [*words, *(part for change in changes for part in ("--set", change))]


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


def test_the_city_is_planned(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    (words,) = (words for words in commands("The optimiser") if "docs/examples/city.toml" in words)
    fewer = ("fleet.num_clients=2400", "network.cells=3", "train.clients_per_round=12", "model.name=cnn")
    answer = hsfl(*words, *(part for change in fewer for part in ("--set", change)))
    assert answer.code == 0, answer
    names(answer.out, "2,400", "12")


def test_files_that_commands_read_are_there_or_shown() -> None:
    """A file in the repository, one that a document shows under its name, or one that a command before has written."""
    shown = TEXT + "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    written = set[str]()
    for section in re.findall(r"^## (.+)$", TEXT, re.M)[:-1]:
        for words in commands(section):
            for before, word in pairwise(words):
                file = word.partition(".py:")[0] + ".py" if ".py:" in word else word
                if before in ("-o", "--out"):
                    written.add(word)
                elif re.search(r"\.(toml|py|json|csv|npz)$", file):
                    there = (ROOT / file).is_file() or f"\n# {file}" in shown or Path(file).parent.as_posix() in written
                    assert there, f"{section}: {file}"


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


def test_the_config_of_the_readme_has_no_setting_without_effect(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(CONFIG)
    refuse_unused(tmp_path / "my.toml", [], [read_config(tmp_path / "my.toml")])


def test_the_list_of_settings_is_current() -> None:
    text = (ROOT / "docs/settings.md").read_text()
    assert text == document(), "write it anew: python -m hsfl.config.document > docs/settings.md"
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert all(line.split("|")[3].strip() for line in rows), "every setting has an explanation"
    assert "`tau_s`" in text


def test_the_tables_have_the_columns_that_the_readme_reads_with_pandas(tmp_path: Path) -> None:
    words = [part for change in (*SMALL, "model.name=cnn", "model.norm=none") for part in ("--set", change)]
    assert hsfl("run", "demo", *words, "--out", tmp_path, "--quiet").code == 0
    (lines,) = re.findall(r"With pandas:\n\n```python\n(.*?)```", TEXT, re.S)
    (round_columns,) = re.findall(r"rounds\[\[(.*?)\]\]", lines)
    (phase_columns,) = re.findall(r"pivot_table\((.*?)\)", lines)
    for name, columns in (("rounds", round_columns), ("phases", phase_columns)):
        header, *rows = list(csv.reader((tmp_path / f"{name}.csv").read_text().splitlines()))
        assert rows
        assert set(re.findall(r'"(\w+)"', columns)) <= set(header)
    kept = {row[header.index("client")] for row in rows if row[header.index("kept")] == "True"}
    assert kept == {str(k) for k in range(10)}
