import csv
import io
import json
import math

import pytest
from rich.console import Console

from hsfl.errors import InputError
from hsfl.files import write_json
from hsfl.report.compared_runs import display_name, read_runs
from hsfl.report.comparison import CSV_FIELDS
from hsfl.report.comparison_summary import gain_sentences, read_comparison, summarise_runs
from hsfl.report.curves import Estimate
from hsfl.report.tables import interval_text
from hsfl.runs.run_folder.folder import RunFolder, run_path
from tests.naming import names, raises
from tests.report.fabricated import record, records, write_run


@pytest.fixture
def out(tmp_path):
    """HSFL's rounds last 10 s and FL's 20 s, or 40 s with seed 1; FL drops client 1 each time."""
    for seed, gain in enumerate([0.0, 0.1]):
        write_run(tmp_path, "hsfl", seed, records([0.3 + gain, 0.5 + gain, 0.7 + gain, 0.6 + gain]))
        write_run(tmp_path, "fl", seed, records([0.3, 0.5], 20.0 * (seed + 1), framework="fl", dropped=[1], kept=[0]))
    (tmp_path / "figures").mkdir()
    return tmp_path


def test_what_is_summed_up_by_hand(out):
    comparison = read_comparison(out, target=0.5)
    assert comparison.labels == ["fl", "hsfl"]
    assert comparison.reference == "hsfl"
    assert comparison.common_s == 40
    fl, hsfl = comparison.results
    assert fl.seeds == hsfl.seeds == [0, 1]
    assert hsfl.final_accuracy.mean == pytest.approx(0.65)
    assert hsfl.final_accuracy.high == pytest.approx(0.65 + 12.7062 * 0.05)
    assert hsfl.best_accuracy.mean == pytest.approx(0.75)
    assert hsfl.common_accuracy.mean == pytest.approx(0.65)
    assert fl.common_accuracy.mean == pytest.approx(0.4)  # 0.5 with seed 0; with seed 1 only one round was over
    assert hsfl.final_balanced_accuracy == hsfl.final_accuracy
    assert hsfl.rounds == Estimate(4, 4, 4, 2)
    assert fl.sim_time_s.mean == 60  # 40 and 80
    assert (hsfl.time_to_target_s.mean, hsfl.reached) == (20, 2)
    assert (fl.time_to_target_s.mean, fl.reached) == (60, 2)
    assert (fl.drops.mean, fl.drops_per_round.mean, hsfl.drops.mean) == (2, 1, 0)
    assert {link: value.mean for link, value in hsfl.bytes.items()} == {"client_main_up": 400, "edge_main": 40}
    assert (hsfl.total_bytes.mean, fl.total_bytes.mean) == (440, 220)


def test_pairs_are_seed_by_seed(out):
    """HSFL reaches 0.5 after 20 s in both; FL after 40 and 80 s: ratios 2 and 4, whose geometric mean is sqrt(8)."""
    (pair,) = read_comparison(out, target=0.5).pairs
    assert (pair.reference, pair.other, pair.seeds) == ("hsfl", "fl", [0, 1])
    assert pair.final_accuracy.mean == pytest.approx((0.1 + 0.2) / 2)
    assert pair.final_accuracy.high == pytest.approx(0.15 + 12.7062 * 0.05)
    assert pair.speedup.mean == pytest.approx(math.sqrt(8))
    (turned,) = read_comparison(out, target=0.5, reference="fl").pairs
    assert turned.speedup.mean == pytest.approx(1 / math.sqrt(8))
    assert turned.final_accuracy.mean == pytest.approx(-0.15)


def test_a_target_that_not_every_seed_reaches(out):
    comparison = read_comparison(out, target=0.75)
    fl, hsfl = comparison.results
    assert hsfl.reached == 1
    assert hsfl.time_to_target_s == Estimate(30, None, None, 1)
    assert fl.time_to_target_s == Estimate(None, None, None, 0)
    assert comparison.pairs[0].speedup.mean is None
    text = comparison.to_markdown()
    assert "30 (1 of 2)" in text
    assert "never" in text
    assert "1 of 2 seeds reached the target" in text


def test_a_budget_lets_the_last_model_hold_to_its_end(tmp_path):
    write_run(tmp_path, "hsfl", 0, records([0.5] * 3), "budget", "train.budget_s=39", "train.rounds=9")
    write_run(tmp_path, "fl", 0, records([0.4], 25.0), "budget", "train.budget_s=39", "train.rounds=9")
    comparison = read_comparison(tmp_path)
    assert comparison.common_s == 39
    assert comparison.end_together
    assert "at 39 s" not in comparison.to_markdown()


def test_a_run_with_all_its_rounds_before_the_budget_holds_its_model_and_says_so(tmp_path):
    write_run(tmp_path, "hsfl", 0, records([0.5] * 3), "budget", "train.budget_s=39", "train.rounds=9")
    write_run(tmp_path, "cl", 0, records([0.6] * 2, 0.001), "finished", "train.budget_s=39", "train.rounds=2")
    comparison = read_comparison(tmp_path)
    assert comparison.common_s == 39
    assert comparison.results[0].common_accuracy.mean == 0.6
    assert any("CL: 1 of 1 runs made all their rounds (train.rounds) before" in note for note in comparison.notes)
    assert not any("HSFL: 1 of 1" in note for note in comparison.notes)
    assert "| CL | 2 | 0.00200 |" in comparison.to_markdown()  # small times are not 0


@pytest.mark.parametrize("status", ["interrupted", None])
def test_a_run_that_did_not_come_to_its_end_is_known_to_its_last_round(tmp_path, status):
    write_run(tmp_path, "hsfl", 0, records([0.5] * 3), status, "train.budget_s=39", "train.rounds=9")
    assert read_runs(tmp_path)[0].end_s == 30


def test_a_run_that_lost_rounds_is_refused(tmp_path):
    write_run(tmp_path, "hsfl", 0, records([0.5] * 3))
    summary = tmp_path / "hsfl/seed-0/summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"rounds": 4}))
    with raises(InputError, "3 rounds", "made 4", "delete"):
        read_runs(tmp_path)


def test_a_budget_too_short_for_a_single_round(tmp_path):
    write_run(tmp_path, "sl", 0, [], "budget", "train.budget_s=30", "train.rounds=9")
    write_run(tmp_path, "hsfl", 0, records([0.5] * 3), "budget", "train.budget_s=30", "train.rounds=9")
    comparison = read_comparison(tmp_path, target=0.5)
    assert comparison.common_s == 30
    sl = comparison.results[0]
    assert (sl.final_accuracy.mean, sl.rounds.mean, sl.total_bytes.mean) == (None, 0, 0)
    assert sl.drops_per_round.mean is None
    assert "| SL | 1 | - | - | - |" in comparison.to_markdown()


def test_unfinished_runs_and_missing_seeds_are_said(tmp_path):
    write_run(tmp_path, "hsfl", 0, records([0.5]))
    write_run(tmp_path, "hsfl", 1, records([0.5]), None)
    write_run(tmp_path, "fl", 1, records([0.5]), "diverged")
    comparison = read_comparison(tmp_path)
    assert comparison.pairs[0].seeds == [1]
    assert "HSFL: 1 of 2 runs unfinished." in comparison.notes
    assert "FL: 1 of 1 runs diverged." in comparison.notes
    assert any("not all run with the same seeds" in note for note in comparison.notes)
    assert "One seed" in read_comparison(tmp_path, labels=["fl"]).notes[0]


def test_labels_without_a_common_seed_make_no_pair(tmp_path):
    write_run(tmp_path, "hsfl", 0, records([0.5]))
    write_run(tmp_path, "fl", 1, records([0.5]))
    assert read_comparison(tmp_path).pairs == []


def test_the_json_has_no_nan(out):
    comparison = read_comparison(out, target=0.75)
    tree = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert tree["labels"]["hsfl"]["final_accuracy"]["num"] == 2
    assert tree["pairs"][0]["other"] == "fl"


def test_the_csv_holds_every_round_exactly(tmp_path):
    rounds = [record(1, None, train_loss=None, kept=[], dropped=[0, 1]), record(2, 0.1 + 0.2, sim_time_s=31 / 3)]
    write_run(tmp_path, "hsfl,fleet.cuts=[1, 2]", 3, rounds)
    comparison = read_comparison(tmp_path)
    comparison.write_csv(tmp_path / "rounds.csv")
    with (tmp_path / "rounds.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert tuple(first) == CSV_FIELDS
    assert first["label"] == "hsfl,fleet.cuts=[1, 2]"
    assert (first["seed"], first["round"], first["kept"], first["dropped"]) == ("3", "1", "0", "2")
    assert first["test_accuracy"] == first["train_loss"] == ""
    assert float(second["test_accuracy"]) == 0.1 + 0.2
    assert float(second["sim_time_s"]) == 31 / 3
    assert second["bytes"] == "110"


def test_everything_is_written_beside_the_runs(out):
    comparison = read_comparison(out, target=0.5)
    paths = comparison.write(out)
    tables = [f"table-{name}.csv" for name in ("metrics", "time", "bytes", "pairs", "contenders")]
    assert [path.name for path in paths] == ["comparison.json", "comparison.md", "rounds.csv", *tables]
    assert all(path.stat().st_size for path in paths)
    assert read_comparison(out, target=0.5) == comparison  # what was written is no run


def test_the_tables_fit_a_terminal(out):
    console = Console(width=80, file=io.StringIO())
    console.print(read_comparison(out, target=0.5).to_rich())
    text = console.file.getvalue()
    assert "HSFL" in text
    assert "seconds to 50 %" in text
    assert "440" in text


def test_markdown_of_a_label_with_a_bar(tmp_path):
    write_run(tmp_path, "hsfl,data.name=folder:/a|b", 0, records([0.5]))
    assert "HSFL, data.name=folder:/a\\|b" in read_comparison(tmp_path).to_markdown()


@pytest.mark.parametrize("label", ["fl", "fl,data.name=folder:/x/50%2F", "hsfl,fleet.cuts=[1, 2]"])
def test_labels_survive_their_folders(tmp_path, label):
    write_run(tmp_path, label, 7, records([0.5]))
    assert [(run.label, run.seed) for run in read_runs(tmp_path)] == [(label, 7)]


def test_a_record_beside_the_runs_says_who_is_who(tmp_path):
    """Without it a folder's name is the label; with it a name is shown, and the framework is known."""
    for label, folder in (("hsfl", "ours"), ("hsfl", "hsfl-even-allocation"), ("splitfed_v1", "v1")):
        written = write_run(
            tmp_path / "made", label, 0, records([0.5]), "finished", "fleet.cuts=max_cut", "allocation.policy=even"
        )
        (tmp_path / folder).mkdir()
        written.path.rename(tmp_path / folder / "seed-0")
    contenders = {
        "Ours": {"name": "Ours", "folder": "ours", "framework": "hsfl", "settings": {"train.lr": 0.1}, "text": "hsfl"},
        "hsfl,a.b=c": {
            "name": "HSFL, b c",
            "folder": "hsfl-even-allocation",
            "framework": "hsfl",
            "settings": {},
            "text": "",
        },
    }
    write_json(tmp_path / "compare.json", {"contenders": contenders})
    comparison = read_comparison(tmp_path)
    assert comparison.labels == [
        "Ours",
        "hsfl,a.b=c",
        "v1",
    ]  # the last one is of no framework that is known by its folder
    assert [comparison.name(label) for label in comparison.labels] == ["Ours", "HSFL, b c", "v1"]
    assert comparison.reference == "Ours"
    table = comparison.tables()[-1]
    title, header, rows = table.title, table.header, table.rows
    assert title == "Mean round, cuts and allocation"
    assert header == ["framework", "round, s", "times Ours", "cuts", "allocation", "own settings"]
    assert rows[0] == ["Ours", "10", "1", "max_cut (1 to 2)", "even", "hsfl, train.lr=0.1"]
    assert rows[2] == ["v1", "10", "1.00", "one cut 1 to 2 (smallest max_cut)", "even", "splitfed_v1"]
    assert gain_sentences(comparison)[0].startswith("Mean round: Ours 10 s; HSFL, b c 10 s (1 times); v1 10 s")
    assert comparison.to_json()["contenders"]["Ours"]["cuts"] == "cuts max_cut (1 to 2)"


def test_nothing_is_not_negative():
    assert interval_text(Estimate(-1e-9, None, None, 1), 100, 1) == "0.0"
    assert interval_text(Estimate(-1e-9, None, None, 1), 100, 2, sign=True) == "+0.00"


def test_frameworks_in_their_usual_order_or_as_asked(tmp_path):
    for label in ("hsfl", "splitfed_v1", "cl", "hsfl,fleet.cuts=1"):
        for seed in (10, 9):
            write_run(tmp_path, label, seed, records([0.5]))
    runs = read_runs(tmp_path)
    assert list(dict.fromkeys(run.label for run in runs)) == ["cl", "splitfed_v1", "hsfl", "hsfl,fleet.cuts=1"]
    assert [run.seed for run in runs[:2]] == [9, 10]
    assert [run.label for run in read_runs(tmp_path, ["hsfl", "cl"])] == ["hsfl", "hsfl", "cl", "cl"]


def test_names_as_papers_write_them():
    assert display_name("splitfed_v1") == "SplitFed V1"
    assert display_name("fl,train.tau_s=60") == "FL, train.tau_s=60"


def test_wrong_input_is_named(tmp_path):
    with raises(InputError, str(tmp_path), "no runs"):
        read_comparison(tmp_path)
    write_run(tmp_path, "hsfl", 0, records([0.5]))
    with raises(InputError, "label 'hsf'", "did you mean hsfl"):
        read_comparison(tmp_path, labels=["hsf"])
    with raises(InputError, "label 'fl'"):
        read_comparison(tmp_path, reference="fl")
    with pytest.raises(InputError, match="target is 60"):
        read_comparison(tmp_path, target=60)
    with raises(InputError, "no runs"):
        summarise_runs([])
    (RunFolder(run_path(tmp_path, "hsfl", 0)).rounds_path).unlink()
    with pytest.raises(InputError, match="is missing"):
        read_comparison(tmp_path)


@pytest.fixture
def two_of_three(tmp_path):
    """FL makes no round with seed 2."""
    for seed in range(3):
        write_run(tmp_path, "hsfl", seed, records([0.5 + 0.1 * seed] * 3), "budget", "train.budget_s=30")
        rounds = records([0.4 + 0.1 * seed], 20.0, framework="fl") if seed < 2 else []
        write_run(tmp_path, "fl", seed, rounds, "budget", "train.budget_s=30")
    return read_comparison(tmp_path)


def test_a_seed_that_made_no_round_is_counted_out_and_named(two_of_three):
    fl = two_of_three.results[0]
    assert (fl.final.mean, fl.final.num) == (pytest.approx(0.45), 2)
    assert fl.final.high == fl.common.high == pytest.approx(0.45 + 12.7062 * 0.05)
    (pair,) = two_of_three.pairs
    assert (pair.final.mean, pair.final.num) == (pytest.approx(0.1), 2)
    assert pair.final.high == pytest.approx(0.1)
    metrics, *_, pairs, _ = two_of_three.tables()
    assert [row[1] for row in metrics.rows] == ["2 of 3", "3"]
    assert pairs.rows[0][1] == "2 of 3"
    assert two_of_three.tables()[-1].rows[0][2] == "2.00 [2.00, 2.00] (2 of 3)"
    (note,) = (note for note in two_of_three.notes if "no round" in note)
    names(note, "FL", "seed 2", "2 of 3")


def test_the_mean_round_and_its_ratio_are_in_the_contenders_table(out):
    """HSFL's rounds last 10 s with both seeds, FL's 20 and 40 s: ratios 2 and 4, whose geometric mean is sqrt(8)."""
    comparison = read_comparison(out)
    (pair,) = comparison.pairs
    assert pair.round_ratio.mean == pytest.approx(math.sqrt(8))
    assert pair.round_ratio.high == pytest.approx(math.sqrt(8) * 2 ** (12.7062 / 2))
    fl, hsfl = comparison.tables()[-1].rows
    assert fl[1:3] == ["30.0 ± 127.1", "2.83 [0.03, 231.22]"]
    assert hsfl[1:3] == ["10", "1"]
    comparison.write(out, latex=True)
    (row, *_) = csv.DictReader((out / "table-contenders.csv").open(newline=""))
    assert (float(row["round, s"]), row["times HSFL n"]) == (30, "2")
    assert "2.83 [0.03, 231.22]" in (out / "table-contenders.tex").read_text()
    assert "| 2.83 [0.03, 231.22] |" in comparison.to_markdown()


def test_the_table_of_bytes_promises_no_interval_that_it_has_not(two_of_three):
    table = next(table for table in two_of_three.tables() if table.name == "bytes")
    assert "±" in table.rows[0][-1]
    assert not any("±" in cell for row in table.rows for cell in row[:-1])
    names(table.note, "n = 3 seeds", "of the total ±")
