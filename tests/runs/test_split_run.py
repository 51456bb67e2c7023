"""From a module to a trained and exported model: run, resume, workers, evaluate, export, by name and from Python."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import hsfl
from hsfl.runs.export import evaluate_folder, export_folder, load_model
from hsfl.runs.run_folder.folder import RunFolder
from tests.plugins.files import unload

CUTS = [1, 3, 2]


class Net(nn.Module):
    """A residual net for 1x8x8 images, whose parts have a name that SplitModel has for a method."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.block, self.drop = nn.Conv2d(4, 4, 3, padding=1), nn.Dropout(0.2)
        self.head = nn.Linear(4 * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu_()
        x = nn.functional.max_pool2d(x + self.drop(self.block(x)).relu(), 2)
        return self.head(x.flatten(1))


def data() -> hsfl.RunConfig:
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = rng.normal(size=(90, 1, 8, 8)).astype(np.float32)
    x[np.arange(90), 0, y * 2] += 3.0  # the class is a bright row
    return hsfl.dataset(x, y)


def settings(**more):  # type: ignore[no-untyped-def]
    return {
        "fleet": {"num_clients": 3, "cuts": CUTS},
        "train": {"rounds": 4, "batch_size": 8, "lr": 0.02} | more,
        "framework": "hsfl",
    }


def test_a_module_given_from_python_learns_and_resumes_to_the_bit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Net()
    model = hsfl.split(module, torch.zeros(2, 1, 8, 8))
    first = module.conv.weight.clone()
    result = hsfl.run(None, tmp_path / "whole", model=model, data=data(), **settings())
    assert result.best_accuracy > 0.8
    assert torch.equal(module.conv.weight, first)  # the run has a copy
    trained = load_file(tmp_path / "whole" / "model.safetensors")
    assert list(module.state_dict().keys() ^ trained.keys()) == []
    assert RunFolder(tmp_path / "whole").clients().unit_names == ["conv", "block", "head"]
    assert '"unit_names":["conv","block","head"]' in (tmp_path / "whole" / "report.html").read_text().replace(" ", "")

    hsfl.run(None, tmp_path / "parts", model=model, data=data(), report=False, **settings(rounds=2))
    hsfl.run(None, tmp_path / "parts", model=model, data=data(), resume=True, report=False, **settings())
    again = load_file(tmp_path / "parts" / "model.safetensors")
    assert all(torch.equal(again[name], tensor) for name, tensor in trained.items())
    module.load_state_dict(trained)
    assert float((module.eval()(torch.from_numpy(data().test_x)).argmax(1).numpy() == data().test_y).mean()) > 0.8


@pytest.mark.slow
def test_workers_train_a_split_module_to_the_same_bits(tmp_path: Path) -> None:
    """The class of the module is known to this test alone: workers get units, not the module."""

    class Local(Net):
        pass

    torch.manual_seed(0)
    model = hsfl.split(Local(), torch.zeros(2, 1, 8, 8))
    for name, engine in (("inline", {"name": "inline"}), ("workers", {"name": "workers", "workers": 2})):
        hsfl.run(None, tmp_path / name, model=model, data=data(), engine=engine, report=False, **settings(rounds=2))
    inline, workers = (load_file(tmp_path / name / "model.safetensors") for name in ("inline", "workers"))
    assert all(torch.equal(workers[name], tensor) for name, tensor in inline.items())


@pytest.fixture
def registered():

    hsfl.register_model("my_net", lambda shape, classes: Net(classes))
    yield "my_net"
    unload()


def test_a_registered_module_is_evaluated_and_exported(tmp_path: Path, registered: str, monkeypatch) -> None:
    from hsfl.models.split import graph_split

    splits, original = [], graph_split._split_by_graph
    monkeypatch.setattr(graph_split, "_split_by_graph", lambda *args: splits.append(args) or original(*args))
    x = np.random.default_rng(1).normal(size=(40, 1, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "set.npz", x=x, y=np.arange(40) % 3)
    chosen = settings(rounds=1) | {"data": {"name": f"npz:{tmp_path / 'set.npz'}"}}
    hsfl.run(None, tmp_path / "run", model=registered, report=False, **chosen)
    assert len(splits) == 1  # for training and for its costs
    quality, _ = evaluate_folder(tmp_path / "run")
    assert quality.loss == pytest.approx(RunFolder(tmp_path / "run").rounds()[-1].test_loss)
    stored = load_model(RunFolder(tmp_path / "run"), "last").model
    scripted = torch.jit.load(str(export_folder(tmp_path / "run", "torchscript")))
    batch = torch.randn(5, 1, 8, 8)  # another size than the export's example
    assert torch.allclose(scripted(batch), stored(batch), atol=1e-6)
    assert load_file(export_folder(tmp_path / "run")).keys() == Net().state_dict().keys()


class Two(nn.Module):
    """Several outputs, and a mask that changes the sample in place."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, classes)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        hidden = self.first(x.add_(1.0)).relu() * mask
        return {"logits": self.last(hidden), "hidden": hidden}


@pytest.fixture
def several():

    example = {"x": torch.zeros(2, 5), "mask": torch.ones(2, 1)}
    hsfl.register_model("several", lambda shape, classes: hsfl.split(Two(classes), example, output="logits"))
    yield "several"
    unload()


def test_a_module_of_several_inputs_and_outputs_is_tested_and_exported(tmp_path: Path, several: str) -> None:
    """What is exported takes the packed sample and gives one tensor; test samples stay as they are, though the module changes its input."""
    x = np.random.default_rng(1).normal(size=(40, 6)).astype(np.float32)
    np.savez(tmp_path / "set.npz", x=x, y=np.arange(40) % 3)
    chosen = settings(rounds=2) | {
        "data": {"name": f"npz:{tmp_path / 'set.npz'}"},
        "fleet": {"num_clients": 2, "cuts": [1, 2]},
    }
    hsfl.run(None, tmp_path / "run", model=several, report=False, **chosen)
    assert evaluate_folder(tmp_path / "run")[0].loss == RunFolder(tmp_path / "run").rounds()[-1].test_loss
    stored = load_model(RunFolder(tmp_path / "run"), "last").model
    scripted = torch.jit.load(str(export_folder(tmp_path / "run", "torchscript")))
    batch = torch.randn(5, 6)
    assert torch.allclose(scripted(batch.clone()), stored(batch.clone()), atol=1e-6)


@pytest.mark.slow
def test_a_module_of_several_inputs_becomes_onnx(tmp_path: Path, several: str) -> None:
    pytest.importorskip("onnxscript")
    test_a_module_of_several_inputs_and_outputs_is_tested_and_exported(tmp_path, several)
    assert export_folder(tmp_path / "run", "onnx").stat().st_size > 100


@pytest.mark.slow
def test_group_norm_in_a_registered_module(tmp_path: Path, registered: str) -> None:
    from hsfl.models.zoo import build

    model = build(registered, (1, 8, 8), 3, norm="group")
    assert model.num_units == 3
    assert not any("running" in name for name in model.state_dict())


@pytest.mark.slow
def test_a_registered_module_becomes_onnx(tmp_path: Path, registered: str) -> None:
    pytest.importorskip("onnxscript")
    x = np.random.default_rng(1).normal(size=(40, 1, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "set.npz", x=x, y=np.arange(40) % 3)
    chosen = settings(rounds=1) | {"data": {"name": f"npz:{tmp_path / 'set.npz'}"}}
    hsfl.run(None, tmp_path / "run", model=registered, report=False, **chosen)
    assert export_folder(tmp_path / "run", "onnx").stat().st_size > 1000


@pytest.mark.slow
def test_a_plan_for_a_split_module(tmp_path: Path, registered: str) -> None:
    pytest.importorskip("numba")
    chosen = settings(rounds=1) | {"data": {"name": "digits", "image_size": 8, "limit": 60}}
    chosen["fleet"] = {"num_clients": 3, "cuts": "planned"}
    result = hsfl.run(
        None, tmp_path / "run", model=registered, allocation={"policy": "proposed", "samples": 2}, **chosen
    )
    assert result.status == "finished"
