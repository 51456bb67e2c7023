"""The command as people and programs use it, and what it says to wrong input."""

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from hsfl.runs import loop
from hsfl.runs.progress import Bars, Lines, Warnings, observer
from hsfl.runs.run_folder.folder import RunFolder
from tests.naming import names, raises
from tests.small_runs import TINY, assert_same_run, hsfl, read_strictly, refused, tiny, tiny_words

# --- what works


def test_run_tells_its_rounds_and_where_the_results_are(tmp_path):
    words = tiny_words(
        "model.norm=group", "network.sample_scale=24"
    )  # few steps with BatchNorm and a subset are warned of
    answer = hsfl("run", *words, "--out", tmp_path / "run")
    assert (answer.code, answer.err) == (0, "")
    heading, *rounds, best, page, where = answer.out.splitlines()
    assert heading == "hsfl: cnn on digits, 3 clients, cuts 1 2 5 (given), allocation even"
    assert [line[:9] for line in rounds] == ["round 1/3", "round 2/3", "round 3/3"]
    for word in ("loss", "accuracy", "samples/s"):
        assert all(word in line for line in rounds)
    assert "s left" in rounds[0]
    assert "s left" not in rounds[-1]
    assert best.startswith("best test accuracy")
    assert page == f"look at {tmp_path / 'run/report.html'}"
    assert where == f"results are in {tmp_path / 'run'}"


def test_run_for_programs(tmp_path):
    answer = hsfl("run", *tiny_words("train.rounds=1"), "--out", tmp_path / "run", "--json")
    assert answer.code == 0
    where = {"folder": str(tmp_path / "run"), "report": str(tmp_path / "run/report.html")}
    assert answer.json() == read_strictly(tmp_path / "run/summary.json")[0] | where
    assert "round 1/1" in answer.err  # progress is for people
    words = tiny_words("train.rounds=1", "model.norm=group", "network.sample_scale=24")
    quiet = hsfl("run", *words, "--out", tmp_path / "quiet", "--json", "--quiet")
    assert quiet.err == ""
    assert quiet.json()["status"] == "finished"


def test_run_makes_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = hsfl("run", *tiny_words("train.rounds=1"), "--framework", "sl", "--json", "--quiet")
    folder = Path(answer.json()["folder"])
    assert folder.parent == Path("runs")
    assert folder.name.endswith("-sl-digits")
    resolved = ("fleet.one_cut=1", "model.memory_format=channels_last", "engine.name=inline", "engine.threads=1")
    assert RunFolder(folder).config() == tiny("train.rounds=1", "framework=sl", *resolved)


def test_a_config_file_and_the_config_of_a_run_folder(tmp_path):
    (tmp_path / "mine.json").write_text(tiny("seed=7").model_dump_json())
    assert hsfl("run", tmp_path / "mine.json", "--out", tmp_path / "first", "--quiet").code == 0
    assert hsfl("run", tmp_path / "first/config.json", "--out", tmp_path / "second", "--quiet").code == 0
    assert_same_run(tmp_path / "first", tmp_path / "second")


def test_resume_needs_no_words_but_the_folder(tmp_path):
    hsfl("run", *tiny_words("train.rounds=1"), "--out", tmp_path / "run", "--quiet")
    assert hsfl("run", "--resume", "--out", tmp_path / "run", "--set", "train.rounds=2", "--quiet").code == 0
    hsfl("run", *tiny_words("train.rounds=2"), "--out", tmp_path / "whole", "--quiet")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_diverging_run_exits_1_and_can_be_looked_at(tmp_path):
    """Weights of 1e30 after round 1: nothing of it is kept, and the folder's model is the first one."""
    words = tiny_words("model.name=mlp", "fleet.cuts=2", "train.optimizer=sgd", "train.lr=1e30", "train.batch_size=999")
    answer = hsfl("run", *words, "--set", "train.eval_every=9", "--out", tmp_path / "run")
    assert answer.code == 1
    names(answer.out.splitlines()[-1], "not a number", "round 1", "smaller train.lr")
    names(answer.out, "weight of unit 1")
    assert read_strictly(tmp_path / "run/rounds.jsonl") == []
    assert hsfl("evaluate", tmp_path / "run", "--json").json()["loss"] < 10
    again = hsfl("run", "--resume", "--out", tmp_path / "run", "--json", "--quiet")
    assert (again.code, again.json()["status"]) == (1, "diverged")


def test_evaluate(finished):
    answer = hsfl("evaluate", finished)
    last = RunFolder(finished).rounds()[-1]
    assert answer.code == 0
    assert answer.out.startswith(f"last model: accuracy {last.test_accuracy:.2%}, balanced accuracy")
    assert answer.out.count("%") == 2 + 10
    best = hsfl("evaluate", finished, "--which", "best", "--json").json()
    (summary,) = read_strictly(finished / "summary.json")
    assert best["accuracy"] == summary["best_accuracy"]
    assert best["classes"] == list("0123456789")


def test_export(finished, tmp_path):
    answer = hsfl("export", finished, "--to", tmp_path / "m.safetensors", "--json")
    assert answer.json() == {"path": str(tmp_path / "m.safetensors")}
    assert (tmp_path / "m.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_data_list(tmp_path):
    answer = hsfl("data", "list", "--data-dir", tmp_path, "--json").json()
    assert answer["dir"] == str(tmp_path)
    assert {row["name"]: row["here"] for row in answer["data"]} == {
        "digits": True,
        "mnist": False,
        "cifar10": False,
        "ham10000": False,
        "idx:PATH": None,
        "folder:PATH": None,
        "npz:PATH": None,
        "csv:PATH": None,
        "text:PATH": None,
        "pydoc": True,
    }
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py/data_batch_1").write_text("")
    (tmp_path / "ham10000").mkdir()
    (tmp_path / "ham10000/HAM10000_metadata.csv").write_text("")
    rows = hsfl("data", "list", "--data-dir", tmp_path, "--json").json()["data"]
    assert [row["name"] for row in rows if row["here"]] == ["digits", "cifar10", "ham10000", "pydoc"]
    assert "handwritten" in hsfl("data", "list").out


def test_data_show():
    answer = hsfl("data", "show", "digits", "--json").json()
    assert answer["shape"] == [1, 32, 32]
    assert sum(row["num_train"] + row["num_test"] for row in answer["classes"]) == 1797
    assert "digits: 1x32x32" in hsfl("data", "show", "digits").out


@pytest.mark.parametrize(
    "words", [("run",), ("evaluate",), ("export",), ("data", "list"), ("data", "show"), ("data", "fetch")]
)
def test_help_shows_an_example(words):
    answer = hsfl(*words, "--help")
    assert answer.code == 0
    assert f"hsfl {' '.join(words)} " in answer.out.partition("Example")[2]


def test_words_with_brackets_and_colons_are_printed_as_they_are(tmp_path):
    out = tmp_path / "[red]odd[/red] :smile: ünï😀"
    answer = hsfl("run", *tiny_words("train.rounds=1"), "--data-dir", out, "--out", out)
    assert answer.out.splitlines()[-1] == f"results are in {out}"
    assert RunFolder(out).config().data.dir == str(out)
    assert str(out) in refused("run", *tiny_words(), "--out", out)


def test_bars_on_a_terminal_and_lines_elsewhere(tmp_path):
    screen = Console(file=io.StringIO(), force_terminal=True, width=120, highlight=False)
    assert type(observer(Console(file=io.StringIO()))) is Lines
    assert type(observer(screen, quiet=True)) is Warnings
    bars = observer(screen)
    assert isinstance(bars, Bars)
    loop.train_run(tiny("train.drop_rate=0.5"), tmp_path / "run", observer=bars)
    shown = screen.file.getvalue()
    for word in ("round 1/3", "round 3/3", "samples/s", "of 3 clients", "accuracy"):
        assert word in shown


def test_bars_show_the_client_and_how_far_the_run_is():
    screen = Console(file=io.StringIO(), force_terminal=True, width=120, highlight=False)
    bars = Bars(screen)
    bars.run_starts(tiny(), [1, 2, 5], rounds_done=1)
    bars.round_starts(2, [0, 2], num_samples=40)
    for client in (0, 0, 2):
        bars.batch_starts(client, 10)
    run, samples = bars.bars.tasks
    assert run.completed == pytest.approx(1 + 20 / 40, abs=0.01)  # 20 of 40 samples are done, ten are under way
    assert (samples.completed, samples.total) == (20, 40)
    bars.bars.refresh()
    bars.run_ends()
    assert "client 2 (2 in the round)" in screen.file.getvalue()


# --- what does not


@pytest.fixture
def out(tmp_path):
    """A run folder that must not come into being."""
    yield tmp_path / "run"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ("framework=hfsl", ("framework 'hfsl'", "did you mean")),
        ("framework=xyz", ("framework 'xyz'", "choose one of cl", "splitfed_v1")),
        ("model.name=resnet", ("model 'resnet'", "did you mean resnet18")),
        ("data.name=minst", ("data set 'minst'", "did you mean mnist")),
        ("data.name=folder:", ("needs a path", "write folder:PATH")),
        ("data.name=folder:/nowhere", ("/nowhere is not a folder",)),
        ("train.ruonds=3", ("'train.ruonds'", "did you mean 'train.rounds'")),
        ("nonsense", ("--set 'nonsense'", "section.field=value")),
        ("fleet.cuts=6", ("fleet.cuts[0] is 6", "5 units", "choose up to 5")),
        ("fleet.cuts=[1,2]", ("fleet.cuts has 2 numbers", "3 clients", "one number or one each")),
        ("fleet.cuts=[1,0,2]", ("fleet.cuts[1] is 0", "fleet.min_cut = 1", "lower min_cut")),
        ("fleet.cuts=foo", ("fleet.cuts is 'foo'", "one cut for all")),
        ("fleet.min_cut=20", ("fleet.min_cut is 20", "5 units")),
        ("model.name=resnet18 data.image_size=32 fleet.cuts=11", ("fleet.cuts[0] is 11", "10 units")),
        ("device=mps", ("device is 'mps'", "none here", "set device=cpu")),
        ("data.partition=shards data.classes_per_client=1", ("raise data.classes_per_client", "more clients")),
        ("data.partition=shards data.classes_per_client=11", ("data.classes_per_client is 11",)),
        ("data.augment=flip_crop", ("data.augment is 'flip_crop'", "1 channel")),
        ("data.image_size=100000", ("data.image_size is 100000", "at most 1024")),
        ("model.input=[3,32,32]", ("model.input has 3 channels", "digits has 1")),
        ("model.input=[1,4,4]", ("images of 4x4", "too small for cnn")),
        ("model.dropout=0.5 model.name=resnet18", ("dropout is 0.5", "resnet18 has none")),
        ("model.norm=none model.name=resnet18", ("norm is none", "resnet18 does not train")),
        ("model.init_weights=/nowhere.safetensors", ("init_weights /nowhere.safetensors", "not a file")),
        ("model.init_weights=/nowhere.pth", ("is a pickle", "can run code")),
        ("framework=sl train.proximal_mu=0.1", ("train.proximal_mu = 0.1", "no effect", "a copy per client")),
        ("train.proximal_mu=1e300", ("train.proximal_mu is 1e+300",)),
        ("train.clients_per_round=4", ("train.clients_per_round is 4", "3 clients")),
        ("train.lr=nan", ("train.lr is nan", "a finite number")),
        ("model.name=resnet18 data.image_size=32 fleet.cuts=3 train.batch_size=1", ("a batch of one sample",)),
    ],
)
def test_wrong_settings(out, changes, parts: tuple[str, ...]):
    words = [word for change in changes.split() for word in ("--set", change)]
    names(refused("run", *tiny_words(), *words, "--out", out), *parts)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there(out):
    names(refused("run", *tiny_words("device=cuda"), "--out", out), "device is 'cuda'")


def test_no_such_preset(out):
    names(refused("run", "dmo", "--out", out), "presets: demo, gpt-text, paper-cifar10")


def test_missing_and_corrupt_data(out, tmp_path):
    words = ("run", *tiny_words("data.name=mnist"), "--data-dir", tmp_path, "--out", out)
    names(refused(*words), "`hsfl data fetch mnist`")
    raw = tmp_path / "MNIST/raw"
    raw.mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (raw / f"{name}-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x03" + b"\0\0\0\x09" * 3 + b"x" * 50))
    names(refused(*words), "(9, 9, 9)", "50")
    (raw / "train-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8b not gzip")
    names(refused(*words), "train-images-idx3-ubyte.gz")


def test_weights_of_another_model(out, tmp_path):
    save_file({"x": torch.zeros(3)}, tmp_path / "w.safetensors")
    words = tiny_words(f"model.init_weights={tmp_path / 'w.safetensors'}")
    names(refused("run", *words, "--out", out), "missing")


def test_resume_without_a_run(out, tmp_path):
    names(refused("run", "--resume"), "--resume", "--out")
    names(refused("run", "--resume", "--out", out), str(out), "no run")
    names(refused("run", *tiny_words(), "--resume", "--out", tmp_path), str(tmp_path), "no run")


def test_resume_with_a_spoiled_or_other_run(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    resume = ("run", "--resume", "--out", tmp_path / "run")
    names(refused(*resume, "--set", "seed=3"), "seed = 0, not 3")
    names(refused(*resume, "demo"), "was run with")
    checkpoint = tmp_path / "run/checkpoint/state.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:500])
    names(refused(*resume), "checkpoint of this config")
    checkpoint.unlink()
    names(refused(*resume), "state.safetensors", "missing")
    (tmp_path / "run/config.json").write_text("{")
    names(refused(*resume), "config.json", "as json")


def test_a_taken_or_unwritable_place(finished, tmp_path):
    names(refused("run", *tiny_words(), "--out", finished), str(finished), "already holds")
    (tmp_path / "file").write_text("mine")
    names(refused("run", *tiny_words(), "--out", tmp_path / "file"), f"{tmp_path / 'file'} is a file")
    names(refused("run", *tiny_words(), "--out", tmp_path / "file/run"), "file", "written")
    names(refused("run", *tiny_words(), "--out", "/proc/nowhere/run"), "/proc/nowhere", "written")
    names(refused("run", *tiny_words(), "--out", tmp_path / ("long" * 100)), "longlong", "written")
    assert (tmp_path / "file").read_text() == "mine"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_vanishes_under_way(tmp_path):
    class Vandal(loop.Observer):
        def round_starts(self, round_number, kept, num_samples):
            shutil.rmtree(tmp_path / "run", ignore_errors=True)

    with raises(ValueError, "rounds.jsonl", "No such file or directory"):
        loop.train_run(tiny(), tmp_path / "run", observer=Vandal())


def test_evaluate_and_export_of_no_run(tmp_path):
    for command in ("evaluate", "export"):
        names(refused(command, tmp_path / "nowhere"), "nowhere", "missing")
        (tmp_path / "file").write_text("")
        names(refused(command, tmp_path / "file"), str(tmp_path / "file"), "read")


def test_evaluate_and_export_of_a_spoiled_run(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    names(refused("evaluate", folder, "--which", "worst"), "--which 'worst'", "choose one of last, best")
    names(refused("export", folder, "--format", "onx"), "--format 'onx'", "did you mean onnx")
    names(refused("export", folder, "--to", tmp_path), str(tmp_path), "written")
    names(refused("export", folder, "--to", folder / "config.json/x"), "config.json", "written")
    assert os.listdir(tmp_path) == ["run"]

    (folder / "model.safetensors").write_bytes(b"noise")
    names(refused("evaluate", folder), "this run's model")
    save_file({"x": torch.zeros(3)}, folder / "model.safetensors")
    names(refused("export", folder), "this run's model")
    (folder / "model.safetensors").unlink()
    assert "--which=best" in refused("evaluate", folder)

    settings = json.loads((folder / "config.json").read_text()) | {"moon": "full"}
    (folder / "config.json").write_text(json.dumps(settings))
    names(refused("evaluate", folder), "config field 'moon'")


def test_data_commands_with_wrong_names(tmp_path):
    names(refused("data", "show", "minst"), "'minst'", "did you mean mnist")
    names(refused("data", "show", "cifar10", "--data-dir", tmp_path), "`hsfl data fetch cifar10`")
    names(refused("data", "fetch", "minst", "--data-dir", tmp_path), "did you mean mnist")
    names(refused("data", "fetch", "digits", "--data-dir", tmp_path), "no download")
    assert os.listdir(tmp_path) == []


def test_usage_errors_exit_2_without_a_traceback():
    for words in (("run", "--frmework", "fl"), ("rnu",), ("evaluate",), ("run", "a", "b"), ("data", "shwo")):
        answer = hsfl(*words)
        assert (answer.code, answer.out) == (2, "")
        assert "Traceback" not in answer.err


def test_the_command_as_a_process(tmp_path):
    """One line on stderr, nothing on stdout, exit code 2; what CliRunner shows is what people get."""
    command = Path(sys.executable).with_name("hsfl")
    words = [word for change in (*TINY, "fleet.cuts=6") for word in ("--set", change)]
    done = subprocess.run([command, "run", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    names(done.stderr, "error: ", "fleet.cuts[0] is 6", "5 units", "choose up to 5", "set fleet.cuts=max_cut")
    assert os.listdir(tmp_path) == []
