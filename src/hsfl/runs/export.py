"""A finished run's model: tested again, or written for other programs."""

import logging
import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError

from hsfl.config import OWN_MODEL
from hsfl.errors import InputError, known
from hsfl.files import write_atomic
from hsfl.models.units import SplitModel
from hsfl.runs.checkpoint import load_tensors, save_tensors
from hsfl.runs.folder import RunFolder
from hsfl.runs.prepare import Bench, prepare
from hsfl.runs.provenance import check_plugins
from hsfl.training.evaluate import Quality, evaluate

FORMATS = {"safetensors": "model.safetensors", "torchscript": "model.torchscript.pt", "onnx": "model.onnx"}


def load_model(folder: RunFolder, which: str, data_dir: Path | None = None) -> tuple[SplitModel, Bench]:
    """The model of the last or the best round, in evaluation mode, with the run's data."""
    paths = {"last": folder.last_model_path, "best": folder.best_model_path}
    path = paths[known("--which", which, paths)]
    config = folder.config()
    check_plugins(folder.path, config)
    if config.model.name == OWN_MODEL:
        raise InputError(f"{folder.path} trained a model given from Python; load {path.name} into it there")
    if not path.exists():
        raise InputError(
            f"{path} is missing: it is written when the run ends; let it finish, --resume it, or --which best"
        )
    place = config.data.dir if data_dir is None else str(data_dir)
    data = config.data.model_copy(update={"dir": place})
    model = config.model.model_copy(update={"init_weights": None})  # the trained weights follow
    fleet = config.fleet.model_copy(update={"cuts": config.fleet.min_cut})  # cuts matter to training only
    config = config.model_copy(update={"device": "cpu", "data": data, "model": model, "fleet": fleet})
    bench = prepare(config)
    try:
        tensors = load_tensors(path)[0]
        bench.task.model.load_state_dict(tensors)
    except (SafetensorError, RuntimeError, OSError) as error:
        raise InputError(f"{path} does not hold this run's model ({str(error).splitlines()[0]}); run again") from None
    if bad := [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]:
        raise InputError(
            f"{path}: {bad[0]} holds numbers that are not finite, so the model says nothing; train it again"
        )
    return bench.task.model.eval(), bench


def evaluate_folder(folder: Path, which: str = "last", data_dir: Path | None = None) -> tuple[Quality, tuple[str, ...]]:
    model, bench = load_model(RunFolder(folder), which, data_dir)
    return evaluate(model, bench.test, bench.num_classes), bench.class_names


def export_folder(
    folder: Path,
    format: str = "safetensors",
    to: Path | None = None,
    which: str = "last",
    data_dir: Path | None = None,
) -> Path:
    """Write the model. TorchScript and ONNX files hold the network too and take normalised images."""
    known("--format", format, FORMATS)
    run = RunFolder(folder)
    model, bench = load_model(RunFolder(folder), which, data_dir)
    if to is not None and Path(to).resolve() in {p.resolve() for p in (run.last_model_path, run.best_model_path)}:
        raise InputError(f"--to {to} is the run's own model; choose another file")
    path = to or Path(folder) / "export" / FORMATS[format]
    if format == "safetensors":
        save_tensors(path, model.state_dict())
        return path
    example = torch.zeros(2, *bench.test.shape, dtype=bench.test.dtype)
    write = {"torchscript": _write_torchscript, "onnx": _write_onnx}[format]
    write_atomic(path, lambda scratch: write(model, example, scratch))
    return path


def _write_torchscript(model: SplitModel, example: torch.Tensor, path: Path) -> None:
    torch.jit.save(torch.jit.trace(model, example), str(path))


def _write_onnx(model: SplitModel, example: torch.Tensor, path: Path) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise InputError("onnx export needs onnx and onnxscript; pip install 'hsfl[export]'") from None
    batch = torch.export.Dim("batch", min=1)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells everyone that torchvision is not there
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(model, (example,), dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise InputError(f"this model cannot be written as onnx ({reason}); export it as torchscript") from error
    assert program is not None
    program.save(str(path), external_data=False)
