"""`hsfl reproduce`, as people and programs call it; Table 1 and Fig. 3 at smoke scale on a data set that comes along."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hsfl.config import with_changes
from hsfl.experiments.columns import Plan, Setup, base_config, make_setup, num_train
from hsfl.experiments.table1 import ALL, FIVE, configs, labels_in, share_training
from hsfl.experiments.trace import shared_from
from hsfl.records import RunFolder
from hsfl.report.runs import Run, read_run, run_path
from hsfl.training.prepare import prepare
from tests.runs import hsfl, refused

PLAN = Plan([1, 2], [3, 4], 5, 5.0, 0.01, 10.0, 99.0)
FAST = ["--scale", "smoke", "--datasets", "digits", "--frameworks", "hsfl,splitfed_v1,fl,cl", "--quiet"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a smoke reproduction."""
    out = tmp_path_factory.mktemp("reproduce")
    for what in ("table1", "fig3"):
        answer = hsfl("reproduce", what, *FAST, "--out", out, "--json")
        assert answer.code == 0, answer
        assert all(Path(path).exists() for path in answer.json()[what]["files"])
    return out


def runs_in(results: Path, which: str, label: str) -> Run:
    return read_run(run_path(results / "table1" / "digits" / which, label, 1), label, 1)


def test_at_equal_rounds_three_frameworks_are_one(results: Path) -> None:
    """All three are trained by themselves here."""
    ours, *others = (runs_in(results, "rounds", label) for label in ("hsfl", "splitfed_v1", "fl"))
    assert len(ours.records) == 3
    for label in ("hsfl", "splitfed_v1", "fl"):  # at smoke scale nothing is shared, so that this shows something
        assert shared_from(run_path(results / "table1" / "digits" / "rounds", label, 1)) is None
    for other in others:
        assert len(other.records) == 3
        for a, b in zip(ours.records, other.records):
            assert a.kept == b.kept == list(range(10))
            assert a.train_loss == pytest.approx(b.train_loss, rel=1e-4)
            assert a.test_accuracy == pytest.approx(b.test_accuracy, abs=0.011)  # one image of 100
            assert a.cuts != b.cuts


@pytest.mark.parametrize(("scale", "limit", "rounds", "batch"), [("smoke", 160, 3, 8), ("quick", 5000, 30, 32)])
def test_a_subset_affects_training_alone(data_dir: Path, scale: str, limit: int, rounds: int, batch: int) -> None:
    config = base_config("mnist", scale, 1, data_dir)
    assert (config.data.limit, config.train.rounds, config.train.batch_size) == (limit, rounds, batch)
    assert config.network.sample_scale == pytest.approx(60_000 / limit)


def test_one_budget_and_one_tau_for_all(results: Path) -> None:
    plan = json.loads((results / "table1" / "digits" / "plan-seed-1.json").read_text())
    assert plan["tau_s"] == 2 * plan["planned_s"]
    for label in ("hsfl", "splitfed_v1", "fl", "cl"):
        folder = RunFolder(run_path(results / "table1" / "digits" / "budget", label, 1))
        assert folder.config().train.budget_s == plan["budget_s"]
        assert folder.config().train.tau_s == plan["tau_s"]
        assert folder.config().fleet.max_cut == tuple(plan["max_cut"])
        assert all(record.sim_time_s <= plan["budget_s"] for record in folder.rounds())
    assert len(runs_in(results, "budget", "hsfl").records) == 3  # the budget is what HSFL needs
    assert runs_in(results, "budget", "hsfl").sim_time_s == pytest.approx(plan["budget_s"], rel=1e-6)


def test_table_and_csv_say_what_the_folders_say(results: Path) -> None:
    with (results / "table1" / "table1.csv").open() as file:
        rows = {(row["set"], row["framework"]): row for row in csv.DictReader(file)}
    assert len(rows) == 8
    own = runs_in(results, "budget", "fl")
    assert float(rows["budget", "fl"]["accuracy"]) == own.records[-1].test_accuracy
    assert int(rows["budget", "fl"]["rounds"]) == len(own.records)
    text = (results / "table1" / "table1.md").read_text()
    assert f"| {100 * (own.last('test_accuracy') or 0):.1f}" in text
    assert "| digits, CL | 3 † |" in text  # CL is done long before the budget
    assert "† made all its rounds before the budget was spent" in text
    assert "one seed, no interval" in text
    assert (results / "fig3" / "fig3-train-loss.pdf").exists()
    assert "training loss at" in (results / "fig3" / "fig3.md").read_text()


def test_what_larger_scales_share_is_what_would_be_trained(results: Path, tmp_path: Path) -> None:
    """SplitFed V1 from HSFL's training, then its run at the budget from that: the same as both trained by themselves."""
    digits = results / "table1" / "digits"
    setup = make_setup(base_config("digits", "smoke", 1, None), digits, print)
    shutil.copytree(run_path(digits / "rounds", "hsfl", 1), run_path(tmp_path / "rounds", "hsfl", 1))
    for which in ("rounds", "budget"):
        config = setup.config("splitfed_v1", which)
        own = RunFolder(run_path(digits / which, "splitfed_v1", 1)).rounds()
        if any(record.dropped for record in own):
            assert not share_training(tmp_path, which, "splitfed_v1", config, setup)
            continue
        assert share_training(tmp_path, which, "splitfed_v1", config, setup)
        shared = RunFolder(run_path(tmp_path / which, "splitfed_v1", 1)).rounds()
        assert [(r.round, r.sim_time_s, r.bytes, r.kept) for r in shared] == [
            (r.round, r.sim_time_s, r.bytes, r.kept) for r in own
        ]
        assert [r.train_loss for r in shared] == pytest.approx([r.train_loss for r in own], rel=1e-4)
    assert not share_training(tmp_path, "budget", "cl", setup.config("cl", "budget"), setup)  # nothing to share from


def test_finished_runs_are_not_done_again(results: Path) -> None:
    kept = run_path(results / "table1" / "digits" / "rounds", "hsfl", 1) / "summary.json"
    lost = run_path(results / "table1" / "digits" / "budget", "cl", 1)
    before, written = lost.joinpath("rounds.jsonl").read_text(), kept.stat().st_mtime_ns
    (lost / "summary.json").unlink()
    assert hsfl("reproduce", "table1", *FAST, "--out", results).code == 0
    assert kept.stat().st_mtime_ns == written
    assert (lost / "summary.json").exists()
    assert lost.joinpath("rounds.jsonl").read_text() == before  # its rounds were all there


def test_wrong_words_are_one_line(results: Path, tmp_path: Path) -> None:
    assert "fig4" in refused("reproduce", "fig6", "--out", tmp_path)
    assert "quick" in refused("reproduce", "fig4", "--scale", "qiuck", "--out", tmp_path)
    assert "must name hsfl" in refused("reproduce", "table1", "--frameworks", "fl,cl", "--out", tmp_path)
    assert "at least one" in refused("reproduce", "table1", "--datasets", ",", "--out", tmp_path)
    assert "'foo'" in refused("reproduce", "table1", "--scale", "smoke", "--datasets", "digits,foo", "--out", tmp_path)
    assert not (tmp_path / "table1").exists()  # said before anything is trained
    assert "choose another --out" in refused("reproduce", "table1", "--datasets", "digits", "--out", results)


def test_the_clock_charges_the_whole_data_set() -> None:
    """At every scale the clients' samples sum to the set's."""
    whole = num_train("digits", None)
    for scale in ("smoke", "full"):
        config = base_config("digits", scale, 1, None)
        bench = prepare(with_changes(config, ["model.name=cnn"]))
        assert bench.num_samples.sum() == pytest.approx(whole)
    assert base_config("digits", "smoke", 1, None).network.sample_scale == pytest.approx(whole / 160)


def test_columns_differ_only_where_they_should() -> None:
    setup = Setup(base_config("digits", "smoke", 3, None), None, PLAN)  # type: ignore[arg-type]
    assert ("budget", ALL[-1]) not in configs(setup, ALL)  # nobody can hold all five units
    setup = replace(setup, plan=replace(PLAN, num_units=4))
    found = configs(setup, ALL)
    ours, other = found["budget", "hsfl"], found["budget", "splitfed_v1"]
    assert (ours.fleet.cuts, ours.allocation.policy) == ((1, 2), "proposed")
    assert (other.fleet.cuts, other.allocation.policy) == ("max_cut", "even")
    assert ours.fleet.max_cut == other.fleet.max_cut == (3, 4)
    assert (ours.train.tau_s, ours.train.budget_s) == (10.0, 99.0)
    equal = found["rounds", "fl"]
    assert (equal.train.tau_s, equal.train.budget_s, equal.train.rounds) == (None, None, ours.train.rounds)
    assert len(labels_in("rounds", ALL)) == len(labels_in("budget", ALL)) - 1 == 10  # storage is ignored there
    assert found["budget", ALL[-1]].options.fl_needs_storage
    assert ALL[:5] == FIVE


def test_everything_at_smoke_scale(data_dir: Path, tmp_path: Path) -> None:
    answer = hsfl(
        "reproduce", "all", "--scale", "smoke", "--data-dir", data_dir, "--out", tmp_path, "--quiet", "--json"
    )
    assert answer.code == 0, answer
    found = answer.json()
    assert list(found) == ["fig1", "table1", "fig3", "fig4", "fig5"]
    assert found["table1"]["trends"][-1]["paper"].endswith("HSFL = SplitFed V1 = FL")
    assert found["table1"]["trends"][-1]["holds"] is True  # equal at equal rounds, on all three data sets
    assert "HAM10000, balanced" in Path(found["table1"]["markdown"]).read_text()
