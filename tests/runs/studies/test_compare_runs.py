"""Frameworks compared in one world."""

import csv
import json
from pathlib import Path

import pytest

from hsfl.config import with_changes
from hsfl.errors import InputError
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.studies.compare_runs import contender, run_contenders
from hsfl.runs.studies.run_many import ManyRuns
from tests.naming import names, raises
from tests.report.fabricated import data_in
from tests.small_runs import hsfl, refused, tiny, tiny_words

LABELS = ["hsfl,fleet.cuts=fastest", "splitfed_v1", "fl", "cl"]
FOLDERS = ["hsfl", "splitfed_v1", "fl", "cl"]


def test_a_contender_is_a_name_and_changes() -> None:
    config = contender(tiny(), "hsfl,fleet.cuts=[1,2,3],train.tau_s=5")
    assert (config.framework, config.fleet.cuts, config.train.tau_s) == ("hsfl", (1, 2, 3), 5.0)
    with raises(InputError, "did you mean hsfl"):
        contender(tiny(), "hsfi")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("seed=3", "seed"),
        ("network.main_hz=1e13", "network.main_hz"),
        ("network={main_hz=1e13}", "network.main_hz"),
        ("data={limit=30}", "data."),
        ("fleet.max_cut=1", "fleet.max_cut"),
        ("train={budget_s=1e9}", "train.budget_s"),
        ("log.checkpoint_every=5", "log.checkpoint_every"),
    ],
)
def test_what_contenders_share_is_not_theirs_to_change(change: str, field: str) -> None:
    with raises(InputError, f"changes {field}", "contenders share", "--set"):
        contender(tiny(), f"hsfl,{change}")


def test_a_contender_is_the_framework_that_it_is_called() -> None:
    with raises(InputError, "two frameworks"):
        contender(tiny(), "hsfl,framework=fl")


def test_more_contenders_join_in_any_order(tmp_path: Path) -> None:
    """The budget is the one that the folder began with."""
    first = run_contenders(tiny("train.rounds=2"), ["hsfl"], tmp_path / "out")
    again = run_contenders(tiny("train.rounds=2"), ["fl", "hsfl"], tmp_path / "out")
    assert again.train.budget_s == first.train.budget_s
    assert (tmp_path / "out/fl/seed-0/summary.json").exists()


def test_wrong_cuts_cost_no_training(tmp_path: Path) -> None:
    base = tiny("train.rounds=1", "fleet.max_cut=2", "fleet.cuts=1")
    with raises(InputError, "fleet.cuts[0] is 3", "max_cut", "client 0 is 2"):
        run_contenders(base, ["splitfed_v1", "hsfl,fleet.cuts=3"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_world_one_budget(tmp_path: Path) -> None:
    base = run_contenders(tiny("train.rounds=4"), LABELS, tmp_path / "out", ManyRuns(2))
    budget_s = base.train.budget_s
    assert budget_s is not None
    first = RunFolder(tmp_path / "out" / FOLDERS[0] / "seed-0").rounds()
    assert len(first) == 4  # the budget is what the first one needs for its rounds
    assert first[-1].sim_time_s == pytest.approx(budget_s, rel=1e-8)
    for folder in FOLDERS:
        for seed in (0, 1):
            records = RunFolder(tmp_path / "out" / folder / f"seed-{seed}").rounds()
            assert all(record.sim_time_s <= budget_s for record in records)
            assert len(records) <= 4
    # same data, weights and batches: rounds that keep the same clients have the same loss
    firsts = [RunFolder(tmp_path / "out" / folder / "seed-0").rounds()[:1] for folder in FOLDERS[:3]]
    losses = [record.train_loss for records in firsts for record in records]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5)
    assert len(losses) > 1


def test_contenders_with_cuts_of_their_own_have_the_same_devices(tmp_path: Path) -> None:
    run_contenders(tiny("train.rounds=1", "fleet.cuts=max_cut"), ["hsfl,fleet.cuts=1", "fl"], tmp_path / "out")
    fleets = [RunFolder(tmp_path / "out" / folder / "seed-0").config().fleet for folder in ("hsfl", "fl")]
    assert fleets[0].max_cut == fleets[1].max_cut is not None
    run_contenders(tiny("train.rounds=1", "fleet.cuts=max_cut"), ["hsfl,fleet.cuts=1"], tmp_path / "seeds", ManyRuns(4))
    drawn = {RunFolder(tmp_path / "seeds/hsfl" / f"seed-{s}").config().fleet.max_cut for s in range(4)}
    assert len(drawn) > 1  # another seed, another fleet
    with raises(InputError, "lower the cut", "fleet.max_cut"):
        run_contenders(
            tiny("train.rounds=1", "fleet.max_cut=1", "fleet.cuts=1"), ["hsfl,fleet.cuts=2"], tmp_path / "deep"
        )


def test_what_is_there_is_not_run_again_and_other_settings_are_refused(tmp_path: Path) -> None:
    base = tiny("train.rounds=2", "train.budget_s=1e9")
    run_contenders(base, ["hsfl"], tmp_path / "out")
    before = (tmp_path / "out/hsfl/seed-0/summary.json").stat().st_mtime_ns
    run_contenders(base, ["hsfl", "fl"], tmp_path / "out")
    assert (tmp_path / "out/hsfl/seed-0/summary.json").stat().st_mtime_ns == before
    assert (tmp_path / "out/fl/seed-0/summary.json").exists()
    with raises(InputError, "another train.lr", "put it back"):
        run_contenders(with_changes(base, ["train.lr=0.5"]), ["hsfl"], tmp_path / "out")
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk/file").touch()
    with raises(InputError, "junk already holds", "--out"):
        run_contenders(base, ["hsfl"], tmp_path / "junk")
    for text in ("{", "null", "{}", '{"config": []}'):
        (tmp_path / "out/compare.json").write_text(text)
        with raises(InputError, "compare.json"):
            run_contenders(base, ["hsfl"], tmp_path / "out")
    with raises(InputError, "empty setting"):
        contender(base, "hsfl,")
    with pytest.raises(InputError, match="stands twice"):
        run_contenders(base, ["hsfl", "hsfl"], tmp_path / "twice")


@pytest.mark.slow
def test_names_are_in_tables_files_and_folders_and_the_same_command_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    shared = [*tiny_words("train.rounds=1", "fleet.cuts=max_cut"), "--out", out]
    contenders = ["Ours=hsfl,train.lr=0.02", "splitfed_v1", "splitfed_v1,fleet.one_cut=1"]
    command = ["compare", *shared, *(word for text in contenders for word in ("-f", text))]
    answer = hsfl(*command)
    assert answer.code == 0, answer.err
    names(
        answer.out,
        "run 1 of 3",
        "Ours, seed 0: cnn",
        "what Ours needs",
        "V1 (cut 1)",
        "one cut 1 (given)",
    )
    assert {path.name for path in out.iterdir() if path.is_dir()} == {"ours", "splitfed_v1", "splitfed_v1-cut-1"}
    figures = {"gantt-ours-round-1.png", "gantt-splitfed_v1-round-1.png", "gantt-splitfed_v1-cut-1-round-1.png"}
    assert figures <= {path.name for path in out.iterdir()}
    record = json.loads((out / "compare.json").read_text())["contenders"]["splitfed_v1,fleet.one_cut=1"]
    assert (record["name"], record["folder"]) == ("V1 (cut 1)", "splitfed_v1-cut-1")
    assert record["settings"] == {"fleet.one_cut": 1}
    names(
        (out / "comparison.md").read_text(),
        "| Ours |",
        "| 1 | max_cut (",
        "| V1 (cut 1) |",
        "| one cut 1",
        "train.lr=0.02",
    )
    page = data_in(out / "report.html")
    assert [series["name"] for series in page["series"]] == ["Ours", "SplitFed V1", "V1 (cut 1)"]
    assert page["title"] == "Ours, SplitFed V1 and V1 (cut 1): cnn on digits"
    with (out / "rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert (rows[0]["label"], rows[0]["name"]) == ("Ours", "Ours")
    assert {row["name"] for row in rows if row["label"] == "splitfed_v1,fleet.one_cut=1"} == {"V1 (cut 1)"}

    again = hsfl(*command, "--json")
    names(again.err, "3 of 3 runs")
    told = again.json()["contenders"]
    assert told["Ours"]["settings"] == {"train.lr": 0.02}
    assert told["splitfed_v1"]["cuts"].startswith("one cut ")
    before = (out / "splitfed_v1-cut-1/seed-0/summary.json").stat().st_mtime_ns
    renamed = hsfl("compare", *shared, "-f", "Shallow=splitfed_v1,fleet.one_cut=1", "-f", contenders[0], "--json")
    assert list(renamed.json()["labels"]) == ["Shallow", "Ours"], renamed.err
    assert (out / "splitfed_v1-cut-1/seed-0/summary.json").stat().st_mtime_ns == before
    assert [series["name"] for series in data_in(out / "report.html")["series"]] == ["Shallow", "Ours", "SplitFed V1"]
    names(refused("compare", *shared, "-f", "Ours=hsfl,train.lr=0.5"), "Ours is hsfl,train.lr=0.02", "another name")
    names(refused("compare", *shared, "-f", "Ours=hsfi"), "Ours=hsfi", "did you mean hsfl")


def test_a_record_that_is_damaged_is_told(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_contenders(tiny("train.rounds=1"), ["Ours=hsfl"], out)
    record = json.loads((out / "compare.json").read_text())
    record["contenders"]["Ours"]["folder"] = "../elsewhere"
    (out / "compare.json").write_text(json.dumps(record))
    with raises(InputError, "compare.json", "folder"):
        run_contenders(tiny("train.rounds=1"), ["Ours=hsfl"], out)
    names(refused("report", out), "compare.json", "folder")


def test_command(tmp_path: Path) -> None:
    words = [
        "--set",
        "model.name=mlp",
        "--set",
        "data.limit=60",
        "--set",
        "fleet.num_clients=3",
        "--set",
        "train.rounds=2",
    ]
    words += ["-f", "hsfl,fleet.cuts=fastest", "-f", "fl", "--seeds", "2", "--target", "0.05"]
    answer = hsfl("compare", *words, "--out", str(tmp_path / "out"), "--json")
    assert answer.code == 0, answer.err
    table = answer.json()
    assert set(table["labels"]) == {"hsfl,fleet.cuts=fastest", "fl"}
    assert table["labels"]["fl"]["reached"] in (0, 1, 2)
    for name in ("comparison.md", "rounds.csv", "test_accuracy.png", "test_accuracy.svg", "gantt-fl-round-1.png"):
        assert (tmp_path / "out" / name).stat().st_size > 100
    wrong = hsfl("compare", *words, "-f", "nobody", "--out", str(tmp_path / "wrong"))
    assert wrong.code == 2
    assert not (tmp_path / "wrong").exists()
    assert hsfl("compare", *words, "--target", "70", "--out", str(tmp_path / "wrong")).code == 2


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("words", [[], ["--train-once"], pytest.param(["--jobs", "2"], marks=pytest.mark.slow)])
def test_each_run_that_is_too_long_for_the_budget_is_named(tmp_path: Path, words: list[str]) -> None:
    answer = hsfl(
        "compare",
        *tiny_words("train.budget_s=1e-6"),
        "-f",
        "hsfl",
        "-f",
        "fl",
        "--seeds",
        "2",
        *words,
        "--out",
        tmp_path,
    )
    assert answer.code == 0, answer
    for name in ("HSFL", "FL"):
        for seed in (0, 1):
            (line,) = (line for line in answer.out.splitlines() if f"warning: {name}, seed {seed}: round 1" in line)
            names(line, "nothing is trained")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("words", [[], ["--train-once"]])
def test_who_cannot_hold_the_whole_model_is_said_of_runs_that_are_only_timed_too(
    tmp_path: Path, words: list[str]
) -> None:
    contenders = ("-f", "hsfl", "-f", "fl", "--seeds", "2", *words)
    settings = tiny_words("train.rounds=1", "fleet.max_cut=[1, 2, 5]")
    answer = hsfl("compare", *settings, *contenders, "--out", tmp_path)
    sentence = "2 of 3 clients cannot hold"
    assert answer.out.count(f"FL: {sentence}") == 1, answer  # among the notes, for both seeds
    name = "FL, seed 0: " if words else ""
    assert f"warning: {name}{sentence}" in answer.out.replace("\n", " "), answer
    (line,) = (line for line in (tmp_path / "comparison.md").read_text().splitlines() if sentence in line)
    names(line, "- FL: ", "options.fl.needs_storage")
    assert any(sentence in note for note in data_in(tmp_path / "report.html")["tables"]["notes"])


@pytest.mark.usefixtures("undrawn")
def test_whom_the_budget_favours_is_said(tmp_path: Path) -> None:
    words = ["compare", *tiny_words("train.rounds=1"), "-f", "hsfl"]
    together = hsfl(*words, "-f", "fl", "--out", tmp_path / "two").out
    names(together, "what HSFL needs", "favours it", "one round earlier", "train.budget_s")
    assert "favours it" not in hsfl(*words, "--out", tmp_path / "one").out
