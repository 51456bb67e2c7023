"""What leaves a run folder computes what the run's model computed."""

import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from hsfl.models.zoo import build
from hsfl.runs import loop
from hsfl.runs.client_data import read_data
from hsfl.runs.export import evaluate_folder, export_folder, load_model, stored_config
from hsfl.runs.prepare import make_images
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.training.evaluation import evaluate_model
from tests.naming import names
from tests.small_runs import refused, tiny


@pytest.fixture(scope="module")
def model_and_images(finished):
    test = images_of(finished)
    return load_model(RunFolder(finished), "last").model, test.floats(test.x[:7])


def images_of(folder):
    """The test samples of a folder's run."""
    config = stored_config(RunFolder(folder))
    return make_images(config, read_data(config), "test")


def test_evaluate_equals_the_last_rounds_record(finished):
    quality, classes = evaluate_folder(finished)
    last = RunFolder(finished).rounds()[-1]
    assert quality.accuracy == last.test_accuracy
    assert quality.balanced_accuracy == last.balanced_accuracy
    assert quality.loss == last.test_loss
    assert list(quality.recall) == last.recall
    assert classes == tuple("0123456789")


def test_evaluate_best_equals_the_best_rounds_record(tmp_path):
    summary = loop.train_run(tiny("train.rounds=4", "train.lr=0.05"), tmp_path / "run")
    assert evaluate_folder(tmp_path / "run", "best")[0].accuracy == summary.best_accuracy


@pytest.mark.parametrize("framework", ["cl", "fl", "sl", "psl"])
def test_evaluate_of_other_frameworks(tmp_path, framework):
    summary = loop.train_run(tiny(f"framework={framework}", "train.rounds=1"), tmp_path / "run")
    assert evaluate_folder(tmp_path / "run")[0].accuracy == summary.test_accuracy


def test_safetensors_go_into_a_new_model(finished):
    path = export_folder(finished)
    try:
        assert path == finished / "export" / "model.safetensors"
        model = build("cnn", (1, 8, 8), 10)
        model.load_state_dict(load_file(path))
        quality = evaluate_model(model.eval(), images_of(finished), 10)
        assert quality.accuracy == RunFolder(finished).rounds()[-1].test_accuracy
    finally:
        shutil.rmtree(finished / "export")


def test_the_best_model_is_exported_on_request(finished, tmp_path):
    path = export_folder(finished, to=tmp_path / "best", which="best")
    assert path.read_bytes() == (finished / "model-best.safetensors").read_bytes()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("num_images", [1, 7])
def test_torchscript_agrees(finished, tmp_path, model_and_images, num_images):
    model, x = model_and_images
    path = export_folder(finished, "torchscript", tmp_path / "model.pt")
    with torch.no_grad():
        torch.testing.assert_close(torch.jit.load(path)(x[:num_images]), model(x[:num_images]))


def test_onnx_agrees(finished, tmp_path, model_and_images):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    model, x = model_and_images
    path = export_folder(finished, "onnx", tmp_path / "model.onnx")
    onnx.checker.check_model(str(path), full_check=True)
    session = ReferenceEvaluator(str(path))
    for num_images in (1, 7):  # any number, not the two it was traced with
        (logits,) = session.run(None, {session.input_names[0]: x[:num_images].numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(logits), model(x[:num_images]), rtol=1e-4, atol=1e-5)


def test_without_onnx_the_way_out_is_named(finished, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    message = refused("export", finished, "--format", "onnx", "--to", tmp_path / "model.onnx")
    names(message, "onnx and onnxscript", 'pip install "onnx')
    assert not list(tmp_path.iterdir())


def test_a_link_to_itself_is_one_line(finished, tmp_path):
    (tmp_path / "model").symlink_to(tmp_path / "model")
    names(refused("export", finished, "--to", tmp_path / "model"), str(tmp_path / "model"), "another place")


def test_the_first_weights_are_not_needed_again(tmp_path):
    save_file(build("cnn", (1, 8, 8), 10, seed=8).state_dict(), tmp_path / "first.safetensors")
    config = tiny("train.rounds=1", f"model.init_weights={tmp_path / 'first.safetensors'}")
    summary = loop.train_run(config, tmp_path / "run")
    (tmp_path / "first.safetensors").unlink()
    assert evaluate_folder(tmp_path / "run")[0].accuracy == summary.test_accuracy


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_export_reads_no_data_and_evaluate_makes_no_world(finished, tmp_path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("not needed")

    monkeypatch.setattr("hsfl.runs.prepare.make_world", never)
    monkeypatch.setattr("hsfl.planning.world.measure_cost", never)
    monkeypatch.setattr("hsfl.runs.client_data.partition", never)
    assert evaluate_folder(finished)[0].accuracy == RunFolder(finished).rounds()[-1].test_accuracy
    monkeypatch.setattr("hsfl.runs.client_data.load_dataset", never)
    path = export_folder(finished, "safetensors", tmp_path / "a")
    assert path.read_bytes() == (finished / "model.safetensors").read_bytes()
    assert export_folder(finished, "torchscript", tmp_path / "b").exists()


def test_data_of_another_shape_are_refused(tmp_path):
    loop.train_run(tiny("train.rounds=1"), tmp_path / "run")
    config = tmp_path / "run/config.json"
    config.write_text(config.read_text().replace('"image_size": 8', '"image_size": 9'))
    message = refused("evaluate", tmp_path / "run")
    names(message, "(1, 8, 8)", "digits", "(1, 9, 9)", "original data")
