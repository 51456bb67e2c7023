"""A damaged or edited file of a folder ends every command that reads it in one line, or the command goes on; no traceback.

Files are damaged at random, with a seed. Where a command goes on, the file was read without the damaged part, or the damage was a
value that could have been there.
"""

import json
import os
import random
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hsfl.errors import InputError
from hsfl.models.cost_table import CostTable, measure_cost
from hsfl.models.zoo import build
from hsfl.network import devices, history
from hsfl.network.channel import RoundDraw
from hsfl.report.comparison_summary import read_comparison
from hsfl.runs import loop
from hsfl.runs.run_folder.checkpoint import load_tensors, save_tensors
from hsfl.runs.studies.compare_runs import run_contenders
from tests.naming import names, raises
from tests.runs.damage import damaged, edit_text
from tests.small_runs import hsfl, refused, tiny, tiny_words

LABELS = ("hsfl", "splitfed_v1")
COST = measure_cost(build("cnn", (1, 8, 8), 10), (1, 8, 8), 8)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and a comparison of two frameworks, to be copied and damaged."""
    place = tmp_path_factory.mktemp("folders")
    loop.train_run(tiny("train.rounds=2"), place / "run")
    run_contenders(tiny("train.rounds=1"), LABELS, place / "compare")
    read_comparison(place / "compare").write(place / "compare")
    return place


def check(words: list[object], said: str) -> None:
    """Exit code 0, or one line of error; `hsfl` fails the test on a traceback."""
    try:
        answer = hsfl(*words)
    except AssertionError as error:
        raise AssertionError(f"{said}: hsfl {' '.join(map(str, words))}") from error
    if answer.code != 0:
        assert answer.code in (1, 2), (said, answer)  # 1: the run diverged
    if answer.code == 2:
        assert answer.err.startswith("error: "), (said, answer)
        assert answer.err.count("\n") == 1, (said, answer)
    assert "\x1b[31mred" not in answer.out + answer.err, (said, "an escape sequence reaches the terminal")


RUN_FILES = ("config.json", "environment.json", "clients.json", "cuts.json", "rounds.jsonl", "summary.json")
TENSOR_FILES = ("checkpoint/state.safetensors", "model.safetensors", "model-best.safetensors")


def commands(run: Path) -> list[list[object]]:
    every: list[list[object]] = [["run", "--resume", "--quiet", "--out", run, "--set", "train.rounds=3"]]
    every += [["report", run, "-o", run / "page.html"], ["evaluate", run], ["evaluate", run, "--which", "best"]]
    return [*every, ["export", run, "--to", run / "copy.safetensors"]]


def fuzz_a_run(folders: Path, place: Path, seed: int, num_commands: int = 5) -> None:
    rng = random.Random(seed)
    run = place / f"run-{seed}"
    shutil.copytree(folders / "run", run)
    said = damaged(run / rng.choice((*RUN_FILES, "rounds.jsonl", *TENSOR_FILES)), rng)
    order = commands(run)
    rng.shuffle(order)
    for words in order[:num_commands]:
        check(words, f"seed {seed}, {said}")
    shutil.rmtree(run)


@pytest.mark.parametrize("seed", range(50))
def test_a_damaged_run_is_one_line(folders: Path, tmp_path: Path, seed: int) -> None:
    fuzz_a_run(folders, tmp_path, seed)


@pytest.mark.slow
def test_two_thousand_damaged_runs_are_one_line(folders: Path, tmp_path: Path) -> None:
    for seed in range(1000, 3000):
        fuzz_a_run(folders, tmp_path, seed, num_commands=2)


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_note_of_a_checkpoint_is_one_line(folders: Path, tmp_path: Path, seed: int) -> None:
    """The checksum would tell: so the file is written anew, with the right one."""
    rng = random.Random(seed)
    shutil.copytree(folders / "run", tmp_path / "run")
    path = tmp_path / "run" / "checkpoint" / "state.safetensors"
    tensors, notes = load_tensors(path)
    name = rng.choice(("config", "progress", "progress"))
    notes[name], said = edit_text(notes[name], rng)
    save_tensors(path, tensors, notes)
    check(commands(tmp_path / "run")[0], f"note {name}: {said}")


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_comparison_is_one_line(folders: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    out = tmp_path / "compare"
    shutil.copytree(folders / "compare", out)
    files = ["compare.json", "comparison.json", "hsfl/seed-0/summary.json", "splitfed_v1/seed-0/rounds.jsonl"]
    said = damaged(out / rng.choice(files), rng)
    check(["report", out], said)
    with suppress(InputError):  # the command's figures take seconds
        run_contenders(tiny("train.rounds=1"), LABELS, out)
        read_comparison(out).write(out)


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_fleet_history_or_table_is_one_line(tmp_path: Path, seed: int) -> None:
    rng, draws = random.Random(seed), np.random.default_rng(0)
    path = tmp_path / rng.choice(("fleet.json", "stored.json", "cost.json", "history.npz", "history.csv"))
    holds = {"max_cut": 1} if path.stem == "fleet" else {"memory": 1e9}
    device = {"cpu": 1e9, "power": 1, **holds}
    if path.name == "cost.json":
        COST.save(path)
    elif path.stem == "history":
        history.write_history(RoundDraw(draws.random((2, 3)), draws.random((2, 3, 4)), draws.random((2, 3, 4))), path)
    else:
        path.write_text(json.dumps({"device": [device | {"name": name} for name in "abc"]}))
    read = {"cost": CostTable.load, "history": lambda path: history.read_history(path, 3)}.get(
        path.stem, lambda path: devices.fleet_of_file(path, COST)
    )
    said = damaged(path, rng)
    error = None
    try:
        read(path)
    except Exception as caught:
        error = caught
    assert error is None or (isinstance(error, InputError) and "\n" not in str(error)), said


def test_a_four_hundred_digit_number_in_a_fleet_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    path.write_text('{"device": [{"name": "a", "max_cut": 2, "cpu": ' + "9" * 400 + "}]}")
    with raises(InputError, "device 'a'", "cpu is ") as caught:
        devices.fleet_of_file(path, COST)
    assert len(str(caught.value)) < 300


# ---- what a person edits, by name


@pytest.mark.parametrize(
    ("field", "value", "parts"),
    [
        ("sim_time_s", "'soon'", ("sim_time_s is 'soon'", "be a number")),
        ("round_s", "1e400", ("round_s is inf",)),
        ("train_loss", "NaN", ("train_loss is nan",)),
        ("straggler", "7", ("straggler names client 7", "0 to 2")),
        ("kept", "[0, 9]", ("kept names client 9", "0 to 2")),
        ("waiting_s", "[0.0]", ("cuts has 3 entries", "waiting_s 1")),
        ("cuts", "null", ("cuts is None",)),
        ("cuts", "[1]", ("cuts has 1 entries", "waiting_s 3")),
        ("phases", "[]", ("phases is []",)),
        (
            "why",
            "{'client': 0, 'phase': 'lunch', 'seconds': 1, 'own_s': 1, 'amount': 1, 'per_second': 1}",
            ("why.phase is 'lunch'",),
        ),
        (
            "why",
            "{'client': 0, 'phase': 'client', 'seconds': 1, 'own_s': 1, 'amount': 1, 'per_second': 1e400}",
            ("why is", "numbers is infinite"),
        ),
        ("allocation", "[" * 3000 + "]" * 3000, ("read as JSON", "recursion limit")),
    ],
)
def test_the_line_and_the_field_are_named(
    folders: Path, tmp_path: Path, field: str, value: str, parts: tuple[str, ...]
) -> None:
    shutil.copytree(folders / "run", tmp_path / "run")
    path = tmp_path / "run" / "rounds.jsonl"
    first, second = path.read_text().splitlines()
    marked = json.dumps(json.loads(second) | {field: "@"}).replace('"@"', value.replace("'", '"'))
    path.write_text(f"{first}\n{marked}\n")
    for words in commands(tmp_path / "run")[:2]:
        names(refused(*words), "rounds.jsonl line 2", *parts)


@pytest.mark.parametrize("cuts", ["[1, 2]", "[1, 2, 99]", "[]"])
def test_cuts_that_the_run_cannot_have_are_named(folders: Path, tmp_path: Path, cuts: str) -> None:
    shutil.copytree(folders / "run", tmp_path / "run")
    (tmp_path / "run" / "cuts.json").write_text(f'{{"cuts": {cuts}}}')
    assert "cuts.json" in refused(*commands(tmp_path / "run")[0])


@pytest.mark.parametrize("cuts", ["[2, 1, 5]", "[1, 5, 2]"])
def test_a_run_does_not_go_on_with_other_cuts(folders: Path, tmp_path: Path, cuts: str) -> None:
    """They fit the devices, and the checkpoint holds as many numbers."""
    shutil.copytree(folders / "run", tmp_path / "run")
    (tmp_path / "run" / "cuts.json").write_text(f'{{"cuts": {cuts}}}')
    before = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    names(refused("run", "--resume", "--out", tmp_path / "run", "--set", "train.rounds=9"), "made with cuts")
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes() == before


@pytest.mark.parametrize("speed", ["network.main_hz=1e-300", "network.main_hz=2e-293", "network.noise_w=1e300"])
def test_rounds_longer_than_any_clock_are_refused_before_training(tmp_path: Path, speed: str) -> None:
    """Their sums would be infinite, or more than a record may hold: the folder could not be read again."""
    names(refused("run", *tiny_words(speed), "--out", tmp_path / "run"), "endless time")
    assert not (tmp_path / "run").exists()


def test_a_model_that_is_no_number_is_named(folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "run", tmp_path / "run")
    path = tmp_path / "run" / "model.safetensors"
    tensors, _ = load_tensors(path)
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point())
    save_tensors(path, tensors | {name: torch.full_like(tensors[name], float("nan"))})
    for command in ("evaluate", "export"):
        names(refused(command, tmp_path / "run"), f"{name}", "finite")


def test_a_named_pipe_in_a_folder_does_not_hang(folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "run", tmp_path / "run")
    (tmp_path / "run" / "rounds.jsonl").unlink()
    os.mkfifo(tmp_path / "run" / "rounds.jsonl")
    names(refused("report", tmp_path / "run"), "rounds.jsonl", "ordinary file")


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint/state.safetensors"])
def test_a_named_pipe_in_the_place_of_tensors_does_not_hang(folders: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(folders / "run", tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    os.mkfifo(tmp_path / "run" / name)
    with raises(InputError, name, "ordinary file"):
        load_tensors(tmp_path / "run" / name)


def test_a_test_set_without_images_is_refused_before_training(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "set" / name).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "set" / name / "0.png")
    changes = (f'data.name="folder:{tmp_path / "set"}"', "fleet.num_clients=1", "fleet.cuts=1", "model.norm=group")
    with raises(InputError, "no test samples", "one sample"):
        loop.train_run(tiny(*changes, "data.limit=null", "data.limit_test=null"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_sample_scale_that_no_clock_can_hold_is_refused() -> None:
    with raises(InputError, "network.sample_scale is 1e+30", "at most"):
        tiny("network.sample_scale=1e30")


def test_escape_sequences_do_not_reach_the_terminal(tmp_path: Path) -> None:
    for name in ("cat\x1b[2J\x1b]0;owned\x07", "dog\u202e"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for index in range(10):
            Image.new("L", (8, 8), 20 * index).save(tmp_path / "set" / name / f"{index}.png")
    changes = tiny_words(
        f'data.name="folder:{tmp_path / "set"}"', "train.rounds=1", "data.limit=null", "data.limit_test=null"
    )
    answers = [hsfl("run", *changes, "--out", tmp_path / "run"), hsfl("evaluate", tmp_path / "run")]
    answers += [hsfl("data", "show", f"folder:{tmp_path / 'set'}"), hsfl("report", tmp_path / "run\x1b[2J")]
    assert [answer.code for answer in answers] == [0, 0, 0, 2]
    for answer in answers:
        assert not set(answer.out + answer.err) & {"\x1b", "\x07", "\u202e"}
    assert "cat\ufffd[2J" in answers[1].out
