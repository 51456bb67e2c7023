import json
import os
import re
import stat
from dataclasses import replace

import numpy as np
import pytest

from hsfl.config import RunConfig
from hsfl.engines.machine import sources_sha256
from hsfl.errors import InputError
from hsfl.files import read_json, write_atomic, write_json
from hsfl.runs.run_folder.environment import environment
from hsfl.runs.run_folder.folder import RunFolder, check_same_run, path_name
from hsfl.runs.run_folder.records import RoundRecord
from tests.naming import names, raises
from tests.small_runs import read_strictly, refused, tiny

RECORD = RoundRecord(
    round=1,
    framework="hsfl",
    sim_time_s=3.0,
    round_s=1.5,
    wall_s=0.5,
    num_samples=10,
    train_loss=1.5,
    test_loss=None,
    test_accuracy=None,
    balanced_accuracy=None,
    recall=None,
    lr=0.1,
    cuts=[1, 2],
    started=[0, 1],
    kept=[0],
    dropped=[1],
    straggler=1,
    waiting_s=[0.5, 0.0],
    phases={"smashed": {"start_s": [0.0, 0.0], "end_s": [1.0, 1.5]}},
    allocation={"policy": "even"},
    bytes={"edge_main": 3},
)


def a_folder(path, num_rounds=3) -> RunFolder:
    folder = RunFolder(path)
    folder.create(RunConfig())
    for number in range(1, num_rounds + 1):
        folder.append(replace(RECORD, round=number))
    return folder


def test_an_atomic_write_leaves_one_readable_file(tmp_path):
    path = tmp_path / "deep" / "down" / "file"
    write_atomic(path, lambda scratch: scratch.write_text("new"))
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == ["file"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_write_keeps_the_old_file(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old")

    def half(scratch):
        scratch.write_text("ha")
        raise error

    with pytest.raises(error):
        write_atomic(path, half)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_readers_see_the_old_file_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    write_atomic(path, lambda scratch: scratch.write_text(path.read_text() + " and new"))
    assert path.read_text() == "old and new"


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "below", tmp_path / ("long" * 100), tmp_path):
        with raises(InputError, str(tmp_path), "another place"):
            write_atomic(path, lambda scratch: scratch.write_text("new"))
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("nan").item()])
def test_nan_is_never_written(tmp_path, value):
    with pytest.raises(ValueError):
        write_json(tmp_path / "file", {"loss": value})
    folder = a_folder(tmp_path / "run", 1)
    with pytest.raises(ValueError):
        folder.append(replace(RECORD, train_loss=value))
    assert not (tmp_path / "file").exists()
    assert len(folder.rounds()) == 1


def test_a_new_folder_has_config_and_environment(tmp_path):
    config = tiny("seed=5")
    folder = RunFolder(tmp_path / "run")
    folder.check_free()
    folder.create(config)
    assert folder.config() == config
    assert folder.rounds() == []
    assert sorted(os.listdir(folder.path)) == ["config.json", "environment.json", "rounds.jsonl"]


def test_the_environment_says_where_numbers_come_from():
    words = environment()
    assert set(words) == {"python", "platform", "processor", "num_cpus", "num_threads", "packages", "sources_sha256"}
    assert set(words["packages"]) == {"hsfl", "torch", "numpy"}
    assert words["packages"]["numpy"] == np.__version__
    assert words["num_cpus"] >= 1
    assert words["processor"]
    assert words["sources_sha256"] == sources_sha256()


def test_the_hash_of_the_sources_knows_names_and_contents(tmp_path):
    for name, text in (("a.py", "1"), ("b/c.py", "2"), ("b/d.txt", "no source")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = sources_sha256(tmp_path)
    (tmp_path / "b/d.txt").write_text("other")
    assert sources_sha256(tmp_path) == before
    (tmp_path / "b/c.py").rename(tmp_path / "c.py")
    renamed = sources_sha256(tmp_path)
    (tmp_path / "c.py").write_text("3")
    assert len({before, renamed, sources_sha256(tmp_path)}) == 3


@pytest.mark.parametrize("make", [lambda path: path.write_text("x"), lambda path: path.mkdir()])
def test_a_folder_that_holds_something_is_refused(tmp_path, make):
    make(tmp_path / "thing")
    with raises(InputError, "already holds", "--out"):
        RunFolder(tmp_path).check_free()


def test_a_file_is_refused_and_an_empty_folder_is_not(tmp_path):
    RunFolder(tmp_path).check_free()
    (tmp_path / "file").write_text("x")
    with raises(InputError, f"{tmp_path / 'file'} is a file"):
        RunFolder(tmp_path / "file").check_free()


def test_records_are_read_back(tmp_path):
    assert a_folder(tmp_path, 2).rounds() == [RECORD, replace(RECORD, round=2)]


@pytest.mark.parametrize("end", ['{"round": 4, "fra', '{"round": 4}', "4", "\x00\x00"])
def test_a_last_line_cut_off_is_left_out(tmp_path, end):
    folder = a_folder(tmp_path)
    with folder.rounds_path.open("a") as file:
        file.write(end)
    assert [record.round for record in folder.rounds()] == [1, 2, 3]
    folder.keep_rounds(3)
    folder.append(replace(RECORD, round=4))
    assert [record["round"] for record in read_strictly(folder.rounds_path)] == [1, 2, 3, 4]


def test_a_damaged_line_in_the_middle_is_not_passed_over(tmp_path):
    folder = a_folder(tmp_path)
    lines = folder.rounds_path.read_text().splitlines()
    folder.rounds_path.write_text("\n".join([lines[0], lines[1][:20], lines[2], ""]))
    with raises(InputError, "rounds.jsonl line 2"):
        folder.rounds()


def test_fields_of_later_versions_are_left_aside(tmp_path):
    folder = a_folder(tmp_path, 1)
    folder.rounds_path.write_text(json.dumps(json.loads(folder.rounds_path.read_text()) | {"moon": "full"}) + "\n")
    assert folder.rounds() == [RECORD]


def test_rounds_after_a_checkpoint_are_forgotten(tmp_path):
    folder = a_folder(tmp_path)
    folder.keep_rounds(2)
    assert [record.round for record in folder.rounds()] == [1, 2]
    with raises(InputError, "2 rounds", "checkpoint 3"):
        folder.keep_rounds(3)


@pytest.mark.parametrize(
    ("content", "parts"),
    [(None, ("config.json is missing", "folder of a run")), (b"{", ("damaged",)), (b"\xff\xff", ("damaged",))],
)
def test_a_folder_without_a_readable_config(tmp_path, content, parts):
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with raises(InputError, *parts):
        read_json(tmp_path / "config.json")


def test_missing_or_binary_rounds(tmp_path):
    with raises(InputError, "the folder of a run"):
        RunFolder(tmp_path).rounds()
    (tmp_path / "rounds.jsonl").write_bytes(b"\xff\xfe\n")
    with raises(InputError, "rounds.jsonl", "read"):
        RunFolder(tmp_path).rounds()


@pytest.mark.parametrize("change", ["train.rounds=9", "log.tensorboard=true", "log.checkpoint_every=4", "data.dir=x"])
def test_a_run_may_go_on_with_more_rounds_and_other_logging(tmp_path, change):
    check_same_run(tiny(), tiny(change), tmp_path)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ("seed=1", ("seed = 0", "not 1", "same settings")),
        ("train.lr=0.5", ("train.lr = 0.01", "not 0.5")),
        ("fleet.cuts=3", ("fleet.cuts = [1, 2, 5]", "not 3")),
        ("framework=fl", ("framework = 'hsfl'", "not 'fl'")),
    ],
)
def test_a_run_does_not_go_on_with_other_settings(tmp_path, change, parts):
    with raises(InputError, *parts):
        check_same_run(tiny(), tiny(change), tmp_path)


def test_a_cosine_schedule_fixes_the_rounds(tmp_path):
    with pytest.raises(InputError, match=r"train.rounds = 3, not 4"):
        check_same_run(tiny("train.schedule=cosine"), tiny("train.schedule=cosine", "train.rounds=4"), tmp_path)


def test_two_runs_do_not_write_into_one_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    other = RunFolder(tmp_path / "run")
    with folder.locked(), raises(InputError, "another run", str(tmp_path / "run"), "another --out"), other.locked():
        pass
    with folder.locked():
        pass
    assert not (tmp_path / "run/.lock").exists()


def test_rounds_that_do_not_count_up_are_refused(tmp_path):
    folder = a_folder(tmp_path / "run")
    folder.append(replace(RECORD, round=2))
    with raises(InputError, "line 4", "round is 2"):
        folder.keep_rounds(4)


def test_a_folder_of_other_settings_or_fields_is_refused_in_one_line(tmp_path):
    """As a version before 0.1.0 might have left it: an option without a section, a field that is not there."""
    folder = a_folder(tmp_path / "run")
    today = json.loads(folder.config_path.read_text())
    write_json(folder.config_path, today | {"options": {"fsl_average": "server"}})
    for words in (["report"], ["evaluate"], ["run", "--resume", "--out"]):
        names(refused(*words, folder.path), str(folder.config_path), "'options.fsl_average'", "options.fl, options.sl")
    write_json(folder.config_path, today)
    write_json(folder.clients_path, {"num_samples": [3], "class_counts": [[3]], "class_names": ["a"], "cuts": [1]})
    names(refused("report", folder.path), f"{folder.clients_path}: max_cut", "missing")


def test_a_label_is_a_plain_path_and_no_two_are_the_same() -> None:
    assert path_name("hsfl") == "hsfl"
    assert path_name("train.lr=0.1,fleet.num_clients=5") == "train.lr-0.1_fleet.num_clients-5"
    labels = [
        "x=1",
        "x=-1",
        "x=[1,2]",
        "x=[1_2]",
        "x=A",
        "x=a",
        "x=a/b",
        "x=a b",
        "x=..",
        "..",
        "x=é",
        "x=e",
        "方",
        "法",
        "x" * 200,
    ]
    names = [path_name(label) for label in labels]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", name) for name in names)
    assert [path_name(name) for name in names] == names  # a folder's name is its own label
