"""Sweeps: every combination of values, once each, and wrong words told at once."""

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.errors import InputError
from hsfl.report.page.page import page_data
from hsfl.report.page.page_sources import read_sources
from hsfl.report.sweep_results import METRICS, read_sweep, say_setting
from hsfl.runs.loop import train_run
from hsfl.runs.run_folder.folder import TIMING, RunFolder
from hsfl.runs.studies.grid import check_contenders, read_grid, say_value
from hsfl.runs.studies.run_many import ManyRuns, Show
from hsfl.runs.studies.sweep_runs import run_sweep
from tests.naming import names, raises
from tests.report.fabricated import data_in
from tests.small_runs import hsfl, numbers, refused, tiny, tiny_words

HZ = "network.subchannel_hz"
TWO = f"{HZ}=1e6,2e6"


def small(*changes: str) -> list[str]:
    return tiny_words("train.rounds=2", *changes)


# ---- words


def test_a_grid_has_every_combination_once() -> None:
    grid = read_grid(tiny(), [f"{HZ}=0.5e6, 1e6", "fleet.cuts=max_cut,[1,2,5]", "train.lr=0.1"])
    assert grid.fields == (HZ, "fleet.cuts", "train.lr")
    assert [point.values for point in grid.points] == [
        *((5e5, cuts, 0.1) for cuts in ("max_cut", [1, 2, 5])),
        *((1e6, cuts, 0.1) for cuts in ("max_cut", [1, 2, 5])),
    ]
    assert grid.points[0].folder == f"{HZ}-500000_fleet.cuts-max_cut_train.lr-0.1"
    assert re.fullmatch(rf"{HZ}-500000_fleet.cuts-1_2_5-_train.lr-0.1-[0-9a-f]{{8}}", grid.points[1].folder)
    assert grid.points[1].config.fleet.cuts == (1, 2, 5)
    assert grid.points[1].config.network.subchannel_hz == 5e5


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(1e-3, 1e18), min_size=2, max_size=5, unique=True))
def test_different_values_have_different_names(values: list[float]) -> None:
    assert len({say_value(value) for value in values}) == len(values)
    grid = read_grid(tiny(), ["network.main_hz=" + ",".join(map(repr, values))])
    assert len({point.folder for point in grid.points}) == len(values)
    assert [point.config.network.main_hz for point in grid.points] == values


def test_names_too_long_for_a_folder_end_in_a_hash() -> None:
    many = "fleet.cuts=[" + ",".join(["1"] * 80) + "],[" + ",".join(["1"] * 79 + ["2"]) + "]"
    one, two = read_grid(tiny("fleet.num_clients=80", "fleet.cuts=1"), [many]).points
    assert len(one.folder) == len(two.folder) == 100
    assert one.folder != two.folder


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("network.subchanel_hz=1,2", ("'network.subchanel_hz'", "did you mean 'network.subchannel_hz'?")),
        (f"{HZ}=1e6,fast", (HZ, "'fast'", "give a number")),
        (f"{HZ}=", (HZ, "no values")),
        (f"{HZ}=1e6,,2e6", (HZ, "empty value", "remove a comma")),
        (f"{HZ}=1e6,2e6,1000000", (HZ, "1000000", "give each once")),
        ("network=1,2", ("network is 1", "a section")),
        ("seed=1,2", ("seed is not swept", "--seeds")),
        ("framework=fl,hsfl", ("framework is not swept", "-f")),
    ],
)  # fmt: skip
def test_wrong_words_are_one_line(word: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    names(refused("sweep", word, *small(), "--out", tmp_path / "out"), *parts)
    assert not (tmp_path / "out").exists()


def test_more_wrong_words(tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    names(refused("sweep", "demo", *out), "needs values")
    names(refused("sweep", TWO, f"{HZ}=3e6", *out), f"{HZ}", "twice")
    names(refused("sweep", "dmo", TWO, *out), "file", "preset")
    names(refused("sweep", TWO, "--metric", "roud_s", *out), "metric 'roud_s'", "did you mean round_s")
    names(refused("sweep", TWO, "--plan-only", "--metric", "final_accuracy", *out), "needs training")
    names(refused("sweep", TWO, "--metric", "time_to_target_s", *out), "needs --target")
    names(refused("sweep", TWO, "-f", "hsfi", *out), "did you mean hsfl")
    names(refused("sweep", TWO, "-f", "fl", "-f", "fl", *out), "stands twice")
    varied = refused("sweep", "fleet.cuts=1,2", "-f", "hsfl,fleet.cuts=max_cut", *out)
    names(varied, "hsfl,fleet.cuts=max_cut", "sets fleet.cuts")
    assert not (tmp_path / "out").exists()


def test_a_typo_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from hsfl.config import read_config; from hsfl.runs.studies.grid import read_grid, check_contenders\n"
        "import hsfl.report.sweep_figure\n"
        f"check_contenders(read_grid(read_config('demo'), ['{TWO}']), ['fl'])\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- runs


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two values, two contenders, two seeds."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    words = [*small(), "-f", "hsfl", "-f", "fl", "--seeds", "2", "--target", "0.05", "--out", out]
    answer = hsfl("sweep", TWO, *words, "--metric", "final_accuracy", "--metric", "megabytes")
    assert answer.code == 0, answer.err
    assert re.search(r"run 8 of 8, about \d+ s left: FL, network.subchannel_hz=2000000, seed 1: cnn on", answer.out)
    assert "every run makes 2 rounds; with train.budget_s all have the same simulated seconds" in answer.out
    return out


def test_a_point_is_the_run_of_its_config(swept: Path, tmp_path: Path) -> None:
    train_run(tiny("train.rounds=2", f"{HZ}=2e6", "framework=fl", "seed=1"), tmp_path / "alone")
    assert numbers(tmp_path / "alone") == numbers(swept / f"{HZ}-2000000/fl/seed-1")


def test_the_table_has_a_row_for_each_run_and_the_figures_are_there(swept: Path) -> None:
    with (swept / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    row = next(row for row in rows if (row[HZ], row["contender"], row["seed"]) == ("2000000.0", "fl", "1"))
    records = RunFolder(swept / f"{HZ}-2000000/fl/seed-1").rounds()
    assert float(row["sim_time_s"]) == records[-1].sim_time_s
    assert float(row["round_s"]) == pytest.approx(records[-1].sim_time_s / 2)
    assert float(row["final_accuracy"]) == records[-1].test_accuracy
    assert float(row["megabytes"]) == pytest.approx(sum(sum(r.bytes.values()) for r in records) / 1e6)
    assert set(row) - {HZ, "contender", "name", "seed", "status"} <= set(METRICS)
    for name in ("final_accuracy", "megabytes"):
        assert {path.suffix for path in swept.glob(f"{name}.*")} == {".pdf", ".png", ".svg"}
    assert "| 2 MHz | FL |" in (swept / "sweep.md").read_text()


def test_a_faster_radio_never_makes_a_round_longer(swept: Path) -> None:
    found = read_sweep(swept)
    for label in found.labels:
        slow, fast = (found.estimate(point, label, "round_s") for point in (0, 1))
        assert fast.mean is not None
        assert slow.mean is not None
        assert fast.mean < slow.mean
        assert slow.num == 2
        assert slow.low is not None


@pytest.mark.usefixtures("undrawn")
def test_again_it_makes_nothing_and_more_may_join(swept: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(swept, out)
    kept = out / f"{HZ}-1000000/fl/seed-0/summary.json"
    before = kept.stat().st_mtime_ns
    shutil.rmtree(out / f"{HZ}-2000000/hsfl/seed-1")  # as if stopped before it
    words = [*small(), "-f", "hsfl", "-f", "fl", "--out", out, "--json"]
    answer = hsfl("sweep", f"{HZ}=1e6,2000000", *words, "--seeds", "2")
    assert answer.code == 0, answer.err
    names(answer.err, "7 of 8 runs")
    assert kept.stat().st_mtime_ns == before
    assert len(answer.json()["runs"]) == 8
    more = hsfl("sweep", f"{HZ}=1e6,3e6", *words)
    names(more.err, "2 of 4 runs")
    assert [mean[HZ] for mean in more.json()["means"]] == [1e6, 1e6, 3e6, 3e6]
    assert any(path.endswith("report.html") for path in more.json()["files"])


@pytest.mark.usefixtures("undrawn")
def test_contenders_of_a_sweep_have_names_and_folders(tmp_path: Path) -> None:
    out = tmp_path / "out"
    contenders = ["Ours=hsfl,train.lr=0.02", "sl", "sl,fleet.one_cut=1"]
    words = [*small("fleet.cuts=max_cut"), *(word for text in contenders for word in ("-f", text)), "--out", out]
    answer = hsfl("sweep", TWO, *words, "--plan-only")
    assert answer.code == 0, answer.err
    names(answer.out, "Ours", "SL (cut 1)", "one cut 1 (given)", "even, whole band in turns", "train.lr=0.02")
    assert {path.name for path in (out / f"{HZ}-1000000").iterdir()} == {"ours", "sl", "sl-cut-1"}
    names((out / "sweep.md").read_text(), "2 MHz | Ours", "| SL (cut 1) |")
    (sweep,) = data_in(out / "report.html")["sweeps"]
    assert [series["name"] for series in sweep["series"]] == ["Ours", "SL", "SL (cut 1)"]
    assert sweep["contenders"]["rows"][2][:3] == ["SL (cut 1)", "one cut 1 (given)", "even, whole band in turns"]
    again = hsfl("sweep", TWO, *words, "--plan-only", "--json")
    names(again.err, "6 of 6 runs")
    assert {run["contender"]: run["name"] for run in again.json()["runs"]}["sl,fleet.one_cut=1"] == "SL (cut 1)"
    other = [*small("fleet.cuts=max_cut"), "-f", "Ours=hsfl,train.lr=0.5", "--out", out]
    names(refused("sweep", TWO, *other, "--plan-only"), "Ours is hsfl,train.lr=0.02", "another name")


def test_the_page_of_a_point_has_the_names(tmp_path: Path) -> None:
    base = tiny("train.rounds=1")
    run_sweep(base, read_grid(base, [TWO]), ["Ours=fl", "hsfl,train.lr=0.5", "hsfl"], tmp_path / "out")
    runs = page_data(read_sources([tmp_path / "out" / f"{HZ}-2000000"]))["runs"]
    assert {run["name"] for run in runs} == {"Ours, seed 0", "HSFL (lr 0.5), seed 0", "HSFL, seed 0"}


def test_another_sweep_is_not_mixed_in(swept: Path, tmp_path: Path) -> None:
    words = [*small(), "--out", swept]
    names(refused("sweep", "train.lr=0.1,0.2", *words), "network.subchannel_hz", "not of train.lr")
    names(refused("sweep", TWO, *words, "--plan-only"), "without --plan-only")
    other = [*small("train.lr=0.5"), "--out", swept]
    names(refused("sweep", TWO, *other), "another train.lr", "put it back")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").touch()
    names(refused("sweep", TWO, *small(), "--out", tmp_path / "mine"), "mine already holds", "--out")
    for text in ("{", "null", "{}"):
        (tmp_path / "sweep.json").write_text(text)
        refused("sweep", TWO, *small(), "--out", tmp_path)
    for part in ('{"fields": 3}', '{"fields": [], "labels": [], "points": [3], "seeds": [], "plan_only": false}'):
        (tmp_path / "sweep.json").write_text(part)
        names(refused("report", tmp_path), "sweep.json", "describe a sweep")


def test_settings_that_do_not_fit_cost_no_training(tmp_path: Path) -> None:
    grid = read_grid(tiny("fleet.max_cut=2", "fleet.cuts=1"), ["fleet.cuts=1,3"])
    check_contenders(grid, ["hsfl"])
    with raises(InputError, "HSFL, fleet.cuts=3, seed 0:", "max_cut"):
        run_sweep(tiny("fleet.max_cut=2", "fleet.cuts=1"), grid, ["hsfl"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("framework", ["hsfl", "splitfed_v1"])
def test_what_does_not_fit_is_found_where_cuts_are_searched(framework: str, tmp_path: Path) -> None:
    """The second point has measured links without rates; no cuts are searched to find that out."""
    base = tiny("fleet.cuts=auto", "allocation.policy=auto")
    grid = read_grid(base, ["network.kind=ofdma,measured"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hsfl.planning.policy_cuts.cut_request", None)
        with raises(InputError, "network.kind=measured, seed 0:", "network.main_up_bps", "not given"):
            run_sweep(base, grid, [framework], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_diverges_is_told_and_counts(tmp_path: Path) -> None:
    words = [*small("train.optimizer=sgd"), "--out", tmp_path / "out", "--quiet"]
    for _ in range(2):
        answer = hsfl("sweep", "train.lr=0.01,1e30", *words)
        assert answer.code == 0, answer.err
        names(answer.out, "HSFL at 1e+30, seed 0", "diverged")
    names(hsfl("sweep", "train.lr=0.01,1e30", *words[:-1]).out, "2 of 2 runs")


def test_stopped_it_goes_on(tmp_path: Path) -> None:
    base, out = tiny("train.rounds=2"), tmp_path / "out"
    grid = read_grid(base, [TWO])

    class Stop(Show):
        def starts(self, piece: object, place: int, total: int, left_s: float | None):  # type: ignore[no-untyped-def]
            if place == 2:
                raise KeyboardInterrupt
            return super().starts(piece, place, total, left_s)  # type: ignore[arg-type]

    with pytest.raises(KeyboardInterrupt):
        run_sweep(base, grid, ["fl"], out, ManyRuns(show=Stop()))
    half = read_sweep(out)
    assert (len(half.rows), half.num_missing) == (1, 1)
    assert "1 run is still to be made; the same command makes it." in half.notes()
    run_sweep(base, grid, ["fl"], out)
    assert read_sweep(out).num_missing == 0


# ---- timing alone


def test_a_timing_is_that_of_the_run(swept: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    answer = hsfl("sweep", TWO, *small(), "-f", "hsfl", "-f", "fl", "--seeds", "2", "--plan-only", "--out", out)
    assert answer.code == 0, answer.err
    names(answer.out, "2 rounds", "nothing is trained")
    ran, timed = read_sweep(swept), read_sweep(out)
    for one, other in zip(ran.rows, timed.rows, strict=True):
        assert (one.point, one.label, one.seed) == (other.point, other.label, other.seed)
        for name in ("round_s", "sim_time_s", "rounds", "drops", "left_out", "mean_cut"):
            assert other.numbers[name] == pytest.approx(one.numbers[name], rel=1e-12), name
    assert {path.name for path in out.glob("*.*") if path.is_file()} == {
        *("round_s.pdf", "round_s.png", "round_s.svg", "sweep.csv", "sweep.md", "sweep.json", "report.html"),
        *("table-means.csv", "table-between-contenders.csv", "table-between-values.csv", "table-contenders.csv"),
    }
    assert timed.policies == ran.policies == ["even"]
    (out / f"{HZ}-1000000/fl/seed-0" / TIMING).write_text('{"round_s": ["x"]}')
    names(refused("report", out), "timing.json", "damaged")


def test_a_budget_ends_a_timing(tmp_path: Path) -> None:
    base = tiny("train.rounds=5", "framework=fl")
    run_sweep(base, read_grid(base, [TWO]), ["fl"], tmp_path / "free", plan_only=True)
    whole_s = json.loads((tmp_path / f"free/{HZ}-1000000/fl/seed-0/{TIMING}").read_text())["round_s"]
    short = tiny("train.rounds=5", "framework=fl", f"train.budget_s={sum(whole_s[:3]) * 1.0001}")
    run_sweep(short, read_grid(short, [TWO]), ["fl"], tmp_path / "short", plan_only=True)
    rows = read_sweep(tmp_path / "short").rows
    assert (rows[0].status, rows[0].numbers["rounds"]) == ("budget", 3)
    assert (rows[1].numbers["rounds"] or 0) >= 3


def test_values_with_their_units() -> None:
    assert say_setting("network.subchannel_hz", 5e5) == "500 kHz"
    assert say_setting("train.tau_s", 60) == "60 s"
    assert say_setting("train.lr", 0.001) == "0.001"
    assert say_setting("fleet.cuts", [1, 2]) == "[1, 2]"
    assert say_setting("train.tau_s", None) == "null"
    assert say_setting("model.name", "cnn") == "cnn"
