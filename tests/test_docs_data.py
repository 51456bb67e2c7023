"""docs/data.md is run from top to bottom as it stands; so is what docs/extend.md shows from Python."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.small_runs import hsfl

ROOT = Path(__file__).parents[1]
PART = re.compile(r"^```(python|toml)\n(.*?)^```|^    (hsfl) ([^\n]*)$", re.M | re.S)


def parts_of(text: str) -> list[tuple[str, str]]:
    """(python, toml or hsfl, its text) of each snippet and command, in order."""
    return [(kind or word, block or command) for kind, block, word, command in PART.findall(text)]


def run_parts(text: str, here: Path) -> dict[str, Any]:
    """Python runs as one program, TOML is written to the file that its first line names, commands must succeed."""
    names: dict[str, Any] = {}
    for kind, part in parts_of(text):
        if kind == "python":
            exec(part, names)
        elif kind == "toml":
            (here / part.split()[1]).write_text(part)
        else:
            answer = hsfl(*shlex.split(part, comments=True))
            assert (answer.code, answer.err) == (0, ""), answer
    return names


def section(path: str, title: str) -> str:
    return (ROOT / path).read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_page_about_own_data_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/data.md").read_text()
    assert [kind for kind, _ in parts_of(text)].count("hsfl") == text.count("\n    hsfl ")
    names = run_parts(text, tmp_path)
    assert (names["result"].status, names["natural"].rounds) == ("finished", 2)
    assert len(names["rows"]) == sum(len(run.records) for run in names["comparison"].runs)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        *("quadrants", "three", "npz", "rows", "rows-compared", "machines", "as-planned", "rates"),
        *("price", "tags", "maps", "price-npz", "plots", "letters"),
    }
    assert names["as_planned"].records()[0].cuts == names["plan"].cuts
    assert (names["again"].labels, names["page"].name) == (names["comparison"].labels, "all.html")
    assert names["tested"].accuracy == pytest.approx(names["hsfl"].open("runs/quadrants").best_accuracy)
    assert names["numbers"].metrics["r2"] > 0.5
    assert names["labels"].metrics["micro_f1"] > 0.6
    assert names["pixels"].metrics["mean_iou"] > 0.6


def test_the_observer_of_the_document_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    run_parts(section("docs/extend.md", "Watching a run"), tmp_path)
    assert re.fullmatch(r"(round [12]: accuracy 0\.\d+ after [\d.]+ simulated seconds\n){2}", capsys.readouterr().out)
