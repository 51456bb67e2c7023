"""Runs with codecs: both accuracies in the record, notes in exports, and what refuses codecs says so."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from hsfl.config import read_config
from hsfl.errors import InputError
from hsfl.experiments.table1.columns import trace_config
from hsfl.runs.export import evaluate_folder, export_folder
from hsfl.runs.loop import train_run
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.studies.compare_runs import run_contenders
from hsfl.runs.studies.shared_training import learning_key
from tests.naming import names, raises
from tests.small_runs import assert_same_run, hsfl, refused, tiny

CODED = ("link.up=topk:0.1", "link.down=int8", "link.model=int8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("coded") / "run"
    train_run(tiny(*CODED, "train.rounds=2", "fleet.cuts=[1, 3, 5]", "train.eval_every=2"), path)
    return path


def test_a_tested_round_has_both_accuracies(folder: Path) -> None:
    first, second = RunFolder(folder).rounds()
    assert first.coded is None
    assert second.coded is not None
    assert second.coded["test_loss"] != second.test_loss
    header, *rows = (folder / "rounds.csv").read_text().splitlines()
    place = header.split(",").index("coded_test_accuracy")
    assert [row.split(",")[place] for row in rows] == ["", str(second.coded["test_accuracy"])]
    quality, _ = evaluate_folder(folder)
    assert quality.loss == pytest.approx(second.test_loss, rel=1e-6)  # the model as it is, without a codec


@pytest.mark.parametrize("words", [(), ("link.model=int8",), ("framework=fl", "link.model=int8")])
def test_a_run_whose_smashed_data_travel_uncoded_says_nothing_more(words: tuple[str, ...], tmp_path: Path) -> None:
    train_run(tiny("train.rounds=1", *words), tmp_path / "run")
    (line,) = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert "coded" not in json.loads(line)


@pytest.mark.parametrize("words", [("framework=fsl", "options.fsl.average=server"), ("framework=splitfed_v2",)])
def test_frameworks_with_several_models_or_one_cut_are_tested_too(words: tuple[str, ...], tmp_path: Path) -> None:
    train_run(tiny("train.rounds=1", "link.up=int8", "fleet.one_cut=2", *words), tmp_path / "run")
    (record,) = RunFolder(tmp_path / "run").rounds()
    assert record.coded is not None
    assert record.coded["test_loss"] == pytest.approx(record.test_loss, rel=0.05)


def test_centralised_learning_codes_nothing(tmp_path: Path) -> None:
    """Such a run may stand among the contenders of a comparison in which others are coded."""
    words = ("framework=cl", "train.rounds=2", "train.norm_statistics=estimated")
    train_run(tiny(*words), tmp_path / "plain")
    train_run(tiny(*words, "link.up=int8", "link.down=int8"), tmp_path / "coded")
    assert_same_run(tmp_path / "plain", tmp_path / "coded")


def test_an_export_says_what_the_model_was_trained_with(folder: Path) -> None:
    text = "link.up=topk:0.1, link.down=int8, link.model=int8"
    with safe_open(export_folder(folder), "pt") as file:
        assert file.metadata()["hsfl.link"] == text
    files = {"hsfl.link": ""}
    torch.jit.load(export_folder(folder, "torchscript"), _extra_files=files)
    assert files["hsfl.link"] in (text, text.encode())
    pytest.importorskip("onnxscript")
    onnx = pytest.importorskip("onnx")
    model = onnx.load(export_folder(folder, "onnx"))
    assert {entry.key: entry.value for entry in model.metadata_props}["hsfl.link"] == text


def test_a_training_is_not_shared_between_cuts_that_learn_something_else(tmp_path: Path) -> None:
    config = tiny("link.up=int8", "train.rounds=1")
    assert learning_key(config) is None
    assert learning_key(tiny()) is not None
    with raises(InputError, "--train-once", "link.up=int8", "leave one"):
        run_contenders(config, ["hsfl", "splitfed_v1"], tmp_path / "compare", train_once=True)
    with raises(InputError, "link.up=int8", "trace", "leave it out"):
        trace_config("digits", "quick", 0, "hsfl,link.up=int8")


def test_wrong_and_useless_codecs_are_told_in_one_line(tmp_path: Path) -> None:
    words = ["run", "--out", tmp_path / "run", "--set"]
    names(refused(*words, "link.up=int9"), "link.up", "int9", "did you mean int8?")
    names(refused(*words, "link.model=topk"), "link.model", "up and down")
    names(refused(*words, "link.up=int8", "--framework", "fl"), "link.up", "no effect", "no main server")
    names(refused(*words, "link.model=int8", "--framework", "cl"), "link.model", "no effect")
    own = ["--framework", "fsl", "--set", "options.fsl.average=server"]
    names(refused(*words, "link.model=int8", *own), "link.model", "no effect", "keep their heads")
    names(refused("cost", "mlp", "--save", tmp_path / "c.json", "--set", "link.up=int8"), "--save", "link.up=int8")
    assert hsfl("cost", "mlp", "--set", "link.up=int8", "--json").code == 0
    with raises(InputError, "link.upp", "link.up"):
        read_config(None, ["link.upp=int8"])
