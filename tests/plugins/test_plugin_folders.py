"""Nothing is imported because a folder names it."""

import json
from pathlib import Path

import pytest

from hsfl import plugins
from hsfl.config import read_config, with_changes
from hsfl.errors import InputError
from hsfl.report.comparison_summary import read_comparison
from hsfl.report.plots import learning_figure
from hsfl.runs import loop
from hsfl.runs.from_plan import as_planned, read_plan
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.studies.compare_runs import run_or_resume
from tests.naming import names, raises
from tests.plugins.files import unload, write
from tests.report.fabricated import records, write_run
from tests.small_runs import hsfl, refused, tiny, tiny_words


def test_a_folder_never_runs_code(here: Path) -> None:
    hsfl(
        "run",
        *tiny_words("train.rounds=1"),
        "--plugin",
        "my_method.py",
        "--framework",
        "fedavgm",
        "--out",
        "a",
        "--quiet",
    )
    unload()
    mark = here / "ran"
    trap = write(here / "trap.py", f"open({str(mark)!r}, 'w')\n")
    config = json.loads((here / "a/config.json").read_text())
    write(here / "a/config.json", json.dumps(config | {"plugins": [str(trap)]}))
    kept = json.loads((here / "a/plugins.json").read_text())
    kept["plugins"][0]["file"] = str(trap)
    write(here / "a/plugins.json", json.dumps(kept))
    assert hsfl("report", "a").code == 0
    for words in (("evaluate", "a"), ("export", "a")):
        names(refused(*words), "--plugin")
    for words in (("run", "--resume", "--out", "a"), ("run", "a/config.json", "--out", "b")):
        names(refused(*words), "plugins", "run folder")
    assert RunFolder(here / "a").config().plugins == ()
    assert not mark.exists()
    assert not plugins.LOADED


@pytest.mark.parametrize("field", ["framework", "model.name", "data.name", "allocation.policy"])
def test_an_installed_package_is_not_imported_for_a_folder(
    here: Path, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison or a sweep of a run's settings changes some of them; only the changed names are looked up."""
    asked: list[str] = []
    monkeypatch.setattr("hsfl.config.reading.find_installed", asked.append)
    monkeypatch.setattr("hsfl.plugins.find_installed", asked.append)
    section, _, name = field.rpartition(".")
    write(here / "config.json", json.dumps({section: {name: "mine"}} if section else {name: "mine"}))
    assert not with_changes(read_config("config.json"), ["train.rounds=3"]).plugins
    refused("sweep", "config.json", "train.lr=0.1,0.2", "--plan-only", "--quiet", "--out", "sweep")
    refused("compare", "config.json", "-f", "hsfl", "-f", "no_such", "--out", "both")
    assert "mine" not in asked
    with_changes(read_config("config.json"), [f"{field}=mine"])
    assert "mine" in asked, "what the user types is looked up"


def test_an_installed_package_is_not_imported_for_a_plan(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan.json is a file of a folder, too: the policy that it names is not looked up among installed plugins."""
    asked: list[str] = []
    monkeypatch.setattr("hsfl.config.reading.find_installed", asked.append)
    write(here / "plan.json", json.dumps({"policy": "mine", "cuts": [2, 2, 2]}))
    with raises(InputError, "policy 'mine'"):
        as_planned(tiny(), read_plan(here / "plan.json"))
    assert "mine" not in asked


@pytest.mark.parametrize(
    ("file", "spec"),
    [("my_method.py", "my_method.py"), ("my method.py", "'my method.py'"), ("my-package 1.0.2", "fedavgm")],
)
def test_the_advice_can_be_typed(here: Path, file: str, spec: str) -> None:
    words = ("--plugin", "my_method.py", "--framework", "fedavgm", "--out", "a", "--quiet")
    hsfl("run", *tiny_words("train.rounds=1"), *words)
    unload()
    path = here / "a/plugins.json"
    write(path, path.read_text().replace('"my_method.py"', json.dumps(file)))
    names(refused("evaluate", "a"), f"--plugin={spec}\n")


def test_titles_and_styles_from_a_folder_are_words(tmp_path: Path) -> None:
    """Whatever somebody wrote there: no markup on the page or in Markdown, no mathematics in figures."""
    for name in ("fedavgm", "hsfl"):
        write_run(tmp_path, name, 0, records([0.1, 0.2], framework=name))
    path = tmp_path / "fedavgm/seed-0/plugins.json"
    evil = "</script><img src=x onerror=alert(1)> $\\frac{$ | x"
    row = {"title": evil, "style": ["url(javascript:x)", "o", "solid"], "pools_data": "yes"}
    write(path, json.dumps({"plugins": [{"file": "<b>.py", "sha256": "<i>"}], "framework": row}))
    assert hsfl("report", tmp_path).code == 0
    page = (tmp_path / "report.html").read_text()
    assert "<img src=x" not in page
    assert "<b>" not in page
    assert "javascript:x" not in page
    found = read_comparison(tmp_path)
    assert "<img" not in found.to_markdown()
    learning_figure(found).savefig(tmp_path / "a.png")
    write(
        path, json.dumps({"plugins": [], "framework": row | {"title": "Good", "style": ["#123456", "s", [0, [4, 2]]]}})
    )
    assert hsfl("report", tmp_path).code == 0
    assert '"style":{"colour":"#123456","shape":1,"dashes":"8 4"}' in (tmp_path / "report.html").read_text()
    assert "#123456" in {line.get_color() for line in learning_figure(read_comparison(tmp_path)).axes[0].get_lines()}
    write(path, "[1, 2]")
    names(refused("report", tmp_path), "plugins.json", "[1, 2]", "object")


def test_another_hash_is_one_line(here: Path) -> None:
    words = ("--plugin", "my_method.py")
    hsfl("run", *tiny_words("train.rounds=1"), *words, "--framework", "fedavgm", "--out", "a", "--quiet")
    unload()
    write(here / "my_method.py", (here / "my_method.py").read_text() + "\n# another\n")
    for command in (("run", "--resume", "--out", "a"), ("evaluate", "a"), ("export", "a")):
        names(refused(*command, *words), "another my_method.py", "sha256")
    with raises(InputError, "my_method.py"):  # as compare and reproduce go on
        run_or_resume(tiny("framework=fedavgm", "train.rounds=1"), here / "a", loop.Observer())
