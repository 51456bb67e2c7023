"""`hsfl.open`: what Python and commands wrote comes back, shows itself on one screen, and agrees with `--json`."""

import json
from pathlib import Path
from typing import Any

import pytest

import hsfl as package
from hsfl.api.plan_calls import PlanResult
from hsfl.api.run_results import ComparisonResult, Result, SweepResult
from hsfl.display import MOST_LINES, MOST_ROWS, WIDTH
from hsfl.errors import InputError, in_arguments
from tests.naming import names, raises
from tests.small_runs import hsfl, leave_undrawn, tiny, tiny_words

SWEPT = {"train.lr": [0.01, 0.02]}
FIELDS = ["train.lr=0.01,0.02"]
PLAN = ["allocation.samples=2"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each kind, written by commands; what they printed with --json lies beside it."""
    place = tmp_path_factory.mktemp("opened")
    short = tiny_words("train.rounds=2")
    commands = {
        "run": ("run", *short),
        "compare": ("compare", *short, "-f", "hsfl", "-f", "fl", "--target", "0.1"),
        "sweep": ("sweep", *FIELDS, *short),
        "plan": ("plan", *tiny_words(*PLAN)),
    }
    for name, words in commands.items():
        with pytest.MonkeyPatch.context() as patch:
            leave_undrawn(patch)
            answer = hsfl(*words, "--out", place / name, "--json")
        assert answer.code == 0, answer
        (place / f"printed-{name}.json").write_text(answer.out)
    return place


def printed(place: Path, name: str) -> dict[str, Any]:
    """What the command printed with --json."""
    return dict(json.loads((place / f"printed-{name}.json").read_text()))


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize(
    ("name", "kind"), [("run", Result), ("compare", ComparisonResult), ("sweep", SweepResult), ("plan", PlanResult)]
)
def test_a_folder_gives_what_the_command_printed(place: Path, name: str, kind: type) -> None:
    found: Any = package.open(place / name)
    assert type(found) is kind
    command = printed(place, name)
    command["notes"] = [in_arguments(note) for note in command.get("notes", [])]
    assert plain(found.to_json()).items() <= command.items()
    assert found.folder == place / name


@pytest.mark.parametrize("name", ["run", "compare", "sweep", "plan"])
def test_results_show_themselves_on_one_screen(place: Path, name: str) -> None:
    found: Any = package.open(place / name)
    lines = repr(found).splitlines()
    assert len(lines) <= MOST_LINES + MOST_ROWS + 2
    assert max(map(len, lines)) <= WIDTH
    assert found._repr_html_().startswith("<div><p>")
    rows = found.table()
    assert rows
    assert all(row.keys() == rows[0].keys() for row in rows)
    figure = found.plot()
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert figure.axes


def test_calls_answer_what_their_folders_give(place: Path, tmp_path: Path) -> None:
    short = tiny("train.rounds=2")
    ran = package.run(short, tmp_path / "run")
    assert package.open(tmp_path / "run") == ran
    numbers = ("round", "sim_time_s", "test_accuracy", "train_loss", "bytes")
    opened: Any = package.open(place / "run")
    assert [[row[name] for name in numbers] for row in ran.table()] == [
        [row[name] for name in numbers] for row in opened.table()
    ]
    swept = package.sweep(short, SWEPT, out=tmp_path / "sweep", report=False)
    means = [{name: mean for name, mean in row.items() if name != "wall_s"} for row in plain(swept.to_json())["means"]]
    assert means == [
        {name: mean for name, mean in row.items() if name != "wall_s"} for row in printed(place, "sweep")["means"]
    ]
    assert not (tmp_path / "sweep/report.html").exists()
    planned = package.plan(tiny(), PLAN, out=tmp_path / "plan")
    assert package.open(tmp_path / "plan") == planned
    told = ("search_s", "notes")
    assert {name: value for name, value in plain(planned.to_json()).items() if name not in told} == {
        name: value for name, value in printed(place, "plan").items() if name not in told
    }


def test_a_comparison_opens_in_the_order_and_with_the_target_it_was_asked_for(place: Path) -> None:
    found: Any = package.open(place / "compare")
    assert (found.labels, found.target) == (["hsfl", "fl"], 0.1)
    names(repr(found), "HSFL", "FL", "final")


def test_a_run_under_way_opens_as_far_as_it_is(place: Path, tmp_path: Path) -> None:
    for file in ("config.json", "rounds.jsonl"):
        (tmp_path / file).write_bytes((place / "run" / file).read_bytes())
    found: Any = package.open(tmp_path)
    assert (found.status, found.rounds, found.report) == ("unfinished", 2, None)
    with raises(InputError, "round_number is 9", "1..2"):
        found.gantt(9)
    assert found.gantt(2).axes


def test_what_is_no_folder_of_results_is_refused(place: Path, tmp_path: Path) -> None:
    with raises(InputError, "does not exist", "out="):
        package.open(tmp_path / "none")
    with raises(InputError, "runs below it"):
        package.open(place)


def test_text_of_a_folder_does_not_become_markup(place: Path, tmp_path: Path) -> None:
    plan = printed(place, "plan") | {"config": None}
    plan["clients"][0]["name"] = "<img src=x onerror=alert(1)>"
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    shown: Any = package.open(tmp_path)
    names(shown._repr_html_(), "&lt;img")
    assert "<img" not in shown._repr_html_()
    names(shown.table()[0]["name"], "<img")


def test_a_kept_plan_and_a_plan_in_memory_are_run(place: Path, tmp_path: Path) -> None:
    planned = package.plan(tiny(), PLAN)
    by_answer = package.run(plan=planned, out=tmp_path / "a", train={"rounds": 1}, report=False)
    by_folder = package.run(plan=place / "plan", out=tmp_path / "b", train={"rounds": 1}, report=False)
    assert by_answer.records()[0].cuts == by_folder.records()[0].cuts == planned.cuts
    with raises(InputError, "plan is a int"):
        package.run(plan=3)  # type: ignore[arg-type]


def test_the_page_by_either_name(place: Path, tmp_path: Path) -> None:
    """`hsfl.report` is a folder of the package, too."""
    assert package.report(place / "run", tmp_path / "a.html") == tmp_path / "a.html"
    import hsfl.report.page.page as page

    assert page.write_report([place / "run", place / "plan"], tmp_path / "b.html").stat().st_size > 10_000
    assert package.report([place / "run"], out=tmp_path / "c.html").read_bytes() == (tmp_path / "a.html").read_bytes()
    with raises(InputError, "folders are none", "out="):
        package.report([])
