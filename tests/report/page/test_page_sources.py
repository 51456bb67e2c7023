"""What a page is made of: runs, comparisons and plans in folders, their names and order, and folders that are damaged."""

from pathlib import Path

import pytest

from hsfl.errors import InputError
from hsfl.files import write_json
from hsfl.report.page.page import page_data, write_page
from hsfl.report.page.page_sources import _folder_names, read_sources
from tests.naming import names, raises
from tests.report.fabricated import data_in, record, records, write_run
from tests.small_runs import refused


def test_a_comparison_has_bands_and_tables(tmp_path):
    for seed, accuracies in enumerate([[0.2, 0.4], [0.4, 0.6]]):
        write_run(tmp_path, "hsfl", seed, records(accuracies))
        write_run(tmp_path, "fl", seed, records(accuracies, framework="fl"))
    write_json(tmp_path / "comparison.json", {"target": 0.5})
    data = page_data(read_sources([tmp_path]))
    assert [series["name"] for series in data["series"]] == ["HSFL", "FL"]
    curve = data["series"][0]["curves"]["test_accuracy"]["rounds"]
    assert curve["mean"] == [0.3, 0.5]
    assert (curve["low"], curve["high"]) == ([0.2, 0.4], [0.4, 0.6]), "the range of two seeds"
    assert data["target"] == 0.5
    assert data["tables"]["tables"][0]["title"] == "Test accuracy, % after 20 simulated seconds"
    assert [run["name"] for run in data["runs"]] == ["HSFL, seed 0", "HSFL, seed 1", "FL, seed 0", "FL, seed 1"]


def test_contenders_and_arguments_keep_their_order(tmp_path):
    for label in ("cl", "hsfl", "splitfed_v1"):
        write_run(tmp_path / "c", label, 0, records([0.5], framework=label))
    alone = write_run(tmp_path, "fl", 0, records([0.5])).path

    def names(*paths):
        return [one["label"] for one in page_data(read_sources(paths))["runs"]]

    assert names(tmp_path / "c") == ["hsfl", "splitfed_v1", "cl"]
    write_json(tmp_path / "c" / "comparison.json", {"labels": {"splitfed_v1": {}, "hsfl": {}}})
    assert names(tmp_path / "c") == ["splitfed_v1", "hsfl", "cl"]
    assert names(tmp_path / "c", alone) == ["splitfed_v1", "hsfl", "cl", "fl,seed-0"]
    assert names(alone, tmp_path / "c") == ["fl,seed-0", "splitfed_v1", "hsfl", "cl"]


def test_runs_of_one_config_are_one_curve_and_others_are_named_after_their_folder(tmp_path):
    paths = [write_run(tmp_path / f"s{seed}", "hsfl", seed, records([0.5])).path for seed in (0, 1)]
    paths.append(write_run(tmp_path / "other", "hsfl", 0, records([0.5]), "finished", "train.lr=0.1").path)
    data = page_data(read_sources(paths))
    assert [series["num_seeds"] for series in data["series"]] == [2, 1]
    assert [series["name"] for series in data["series"]] == ["HSFL, s0", "HSFL, other"]  # both are called seed-0


def test_folders_of_one_name_are_told_apart_by_what_differs(tmp_path):
    paths = [tmp_path / "a" / "cifar10" / "seed-1", tmp_path / "a" / "mnist" / "seed-1"]
    assert list(_folder_names(paths).values()) == ["cifar10", "mnist"]
    assert list(_folder_names([*paths, tmp_path / "a" / "seed-1"]).values()) == [
        *map(str, paths),
        str(tmp_path / "a" / "seed-1"),
    ]


def test_runs_of_different_tasks_are_not_set_against_each_other(tmp_path):
    ours = write_run(tmp_path / "a", "hsfl", 0, records([0.5])).path
    same = write_run(tmp_path / "b", "fl", 0, records([0.4])).path
    other = write_run(tmp_path / "c", "fl", 0, records([0.4]), "finished", "data.name=mnist").path

    def said(*paths):
        tables = page_data(read_sources(paths))["tables"]
        return [one["title"] for one in tables["tables"]], " ".join(tables["notes"])

    titles, notes = said(ours, same)
    assert "HSFL against the others" in titles[-2]
    assert "tasks" not in notes
    titles, notes = said(ours, other)
    assert not any("against" in title for title in titles)
    assert "runs of 2 tasks (resnet18 on digits, resnet18 on mnist)" in notes


def test_bytes_of_a_subset_are_said_to_be_so(tmp_path):
    paths = [
        write_run(tmp_path, label, 0, records([0.5]), "finished", "network.sample_scale=10").path
        for label in ("hsfl", "fl")
    ]
    paths.append(write_run(tmp_path, "sl", 0, records([0.5])).path)
    wanted = (
        "Bytes are those of this training on a subset. For the whole data set, what clients and the main server "
        "exchange would be 10 times as much; models would not."
    )
    data = page_data(read_sources(paths[:2]))
    assert data["runs"][0]["subset"] == wanted
    assert [one["notes"] for one in data["tables"]["tables"]] == [[], [], [wanted], [], []]
    data = page_data(read_sources(paths))
    assert data["runs"][2]["subset"] is None
    assert data["tables"]["tables"][2]["notes"] == [f"HSFL and FL: {wanted}"]


def test_a_training_shared_with_another_run_is_said_to_be_so(tmp_path):
    for label, trained_as in {"hsfl": None, "splitfed_v1": "hsfl", "fl": "hsfl", "cl": "cl"}.items():
        folder = write_run(tmp_path, label, 0, records([0.5]))
        if trained_as is not None:
            write_json(folder.path / "trace.json", {"trained_as": trained_as, "from": "seed-0"})
    assert page_data(read_sources([tmp_path]))["sharing"] == [
        "SplitFed V1 and FL took the training of a run of HSFL; only the clock differs.",
        "CL took the training of a run of CL; only the clock differs.",
    ]
    assert page_data(read_sources([tmp_path / "hsfl" / "seed-0"]))["sharing"] == []


def test_a_run_beside_a_comparison_is_a_curve_of_its_own(tmp_path):
    mine = write_run(tmp_path / "one", "hsfl", 0, records([0.5])).path
    write_run(tmp_path / "many", "hsfl", 0, records([0.5]))
    data = page_data(read_sources([mine, tmp_path / "many"]))
    assert [series["name"] for series in data["series"]] == ["HSFL, seed-0", "HSFL"]


def test_a_resumed_run_is_under_way(tmp_path):
    folder = write_run(tmp_path, "hsfl", 0, records([0.5, 0.6]))
    write_json(folder.summary_path, {"status": "interrupted", "rounds": 1})
    assert page_data(read_sources([folder.path]))["runs"][0]["status"] == "under way"
    write_json(folder.summary_path, {"status": "interrupted", "rounds": 2})
    assert page_data(read_sources([folder.path]))["runs"][0]["status"] == "interrupted"


def test_a_run_without_rounds_has_a_page(tmp_path):
    folder = write_run(tmp_path, "hsfl", 0, [], None)
    data = data_in(write_page([folder.path], tmp_path / "page.html"))
    assert data["runs"][0]["status"] == "under way"
    assert data["series"][0]["curves"]["test_accuracy"]["time"] is None


def test_wrong_folders_are_one_line(tmp_path):
    names(refused("report", tmp_path), str(tmp_path), "holds no run")
    names(refused("report", tmp_path / "none"), str(tmp_path / "none"), "not exist")
    (tmp_path / "plan.json").write_text("[]")
    names(refused("report", tmp_path), "plan.json", "[]")
    names(refused("report", _damaged(tmp_path / "damaged")), str(tmp_path / "damaged"), "read")
    names(refused("report", tmp_path, "--watch", "-o", tmp_path / "x.html"), "leave out --out")


def test_a_folder_above_runs_names_some_of_them(tmp_path):
    for seed in range(4):
        write_run(tmp_path / "a" / "b", "hsfl", seed, records([0.5]))
    (tmp_path / "a" / "config.json").write_text("{}")  # no run beside it
    said = " ".join(refused("report", tmp_path).split())
    assert "seed-0" in said
    assert "seed-2" in said
    assert "seed-3" not in said
    assert str(tmp_path / "a") + "," not in said


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"status": 1}', '{"status": "finished", "rounds": "2"}'])
def test_a_damaged_summary_is_one_line(tmp_path, text):
    folder = write_run(tmp_path, "hsfl", 0, records([0.5]))
    folder.summary_path.write_text(text)
    with pytest.raises(InputError, match=r"summary\.json: .*damaged"):
        read_sources([folder.path])


@pytest.mark.parametrize("numbers", [[1, 2, 2], [1, 3], [2, 3]])
def test_rounds_that_do_not_count_are_one_line(tmp_path, numbers):
    folder = write_run(tmp_path, "hsfl", 0, [record(number) for number in numbers])
    with raises(InputError, "rounds.jsonl line ", "round is"):
        read_sources([folder.path])


def _damaged(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{")
    return path
