"""A run's model: tested again, which needs the run's data, or written for other programs, which needs the model alone."""

import copy
import logging
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn

from hsfl.codec_table import link_text
from hsfl.config import OWN_MODEL, RunConfig
from hsfl.data.registry import Dataset
from hsfl.errors import InputError, install_extra, known_name
from hsfl.files import read_record, write_atomic
from hsfl.models.units import SplitModel
from hsfl.runs.client_data import read_data
from hsfl.runs.prepare import find_goal, input_shape, make_images, make_model
from hsfl.runs.run_folder.checkpoint import load_tensors, save_tensors
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.run_folder.provenance import check_plugins
from hsfl.runs.run_folder.records import CheckedClients, ClientsRecord
from hsfl.training.evaluation import Quality, evaluate_model

FORMATS = {"safetensors": "model.safetensors", "torchscript": "model.torchscript.pt", "onnx": "model.onnx"}


@dataclass(frozen=True)
class StoredModel:
    """A model as a run folder keeps it, in evaluation mode on the CPU."""

    model: SplitModel
    input_shape: tuple[int, ...]  # of one sample


def load_model(folder: RunFolder, which: str, given: SplitModel | None = None) -> StoredModel:
    """The model of the last or the best round (`which` is "last" or "best"). No data are read: the folder says which samples the
    model takes. given: the model of a run that was given its model from Python."""
    paths = {"last": folder.last_model_path, "best": folder.best_model_path}
    path = paths[known_name("--which", which, paths)]
    config = stored_config(folder)
    if config.model.name == OWN_MODEL and given is None:
        raise InputError(f"{folder.path} trained a model given from Python; load {path.name} into it there")
    if not path.exists():
        other = next((name for name, there in paths.items() if there.exists()), None)
        hint = f", or --which={other}" if other else ""
        when = "when a round was tested" if which == "best" else "when the run ends"
        raise InputError(f"{path} is missing: it is written {when}; let the run go on (--resume){hint}")
    clients: ClientsRecord = read_record(folder.clients_path, CheckedClients)
    shape = tuple(clients.input_shape)
    if config.model.name == OWN_MODEL and given is not None:
        model = copy.deepcopy(given)
    else:
        model = make_model(config, shape, clients.num_outputs or len(clients.class_names))
    try:
        tensors = load_tensors(path)[0]
        model.load_state_dict(tensors)
    except (SafetensorError, RuntimeError, OSError) as error:
        raise InputError(f"{path} does not hold this run's model ({str(error).splitlines()[0]}); run again") from None
    if bad := [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]:
        raise InputError(
            f"{path}: {bad[0]} holds numbers that are not finite, so the model says nothing; train it again"
        )
    return StoredModel(model.eval(), shape)


def stored_config(folder: RunFolder, data_dir: Path | None = None) -> RunConfig:
    """The config of a folder's run, as its model is looked at: on the CPU, with the data of `data_dir` where it is given."""
    config = folder.config()
    check_plugins(folder.path, config)
    place = config.data.dir if data_dir is None else str(data_dir)
    data = config.data.model_copy(update={"dir": place})
    model = config.model.model_copy(update={"init_weights": None})  # the trained weights follow
    return config.model_copy(update={"device": "cpu", "data": data, "model": model})


def evaluate_folder(
    folder: Path,
    which: str = "last",
    data_dir: Path | None = None,
    given: Dataset | None = None,
    model: SplitModel | None = None,
) -> tuple[Quality, tuple[str, ...]]:
    """How good the model of a folder's last or best round is on the test samples, and the names of the classes.

    given, model: the data and the model of a run that was given them from Python.
    """
    run = RunFolder(folder)
    stored, config = load_model(run, which, model), stored_config(run, data_dir)
    dataset = read_data(config, given)
    if (shape := input_shape(config, dataset)) != stored.input_shape:
        raise InputError(
            f"the model of {folder} takes samples of {stored.input_shape} but {config.data.name} has {shape} now; put the "
            "original data back"
        )
    test, goal = make_images(config, dataset, "test"), find_goal(config, dataset)
    return evaluate_model(stored.model, test, dataset.num_classes, goal=goal), dataset.classes


def export_folder(
    folder: Path,
    format: str = "safetensors",
    to: Path | None = None,
    which: str = "last",
) -> Path:
    """Write the model of the last or best round to the file `to`, by default into the run's folder; returns the path.

    TorchScript and ONNX files hold the network, too; they take samples that are normalised as in training.
    """
    known_name("--format", format, FORMATS)
    run = RunFolder(folder)
    stored = load_model(run, which)
    if to is not None and os.path.realpath(to) in map(os.path.realpath, (run.last_model_path, run.best_model_path)):
        raise InputError(f"--to {to} is the run's own model; choose another file")
    path = to or Path(folder) / "export" / FORMATS[format]
    notes = link_note(stored_config(run))
    if format == "safetensors":
        save_tensors(path, stored.model.state_dict(), notes)
        return path
    example = torch.zeros(2, *stored.input_shape, dtype=stored.model.input_dtype)
    write = {"torchscript": _write_torchscript, "onnx": _write_onnx}[format]
    write_atomic(path, lambda scratch: write(_as_one(stored.model, example), example, scratch, notes))
    return path


def link_note(config: RunConfig) -> dict[str, str]:
    """With which codecs a model was trained, as a note of its file: a model that was trained with top-k is good only with top-k at its cut.
    Empty where no codec changed anything."""
    codecs = link_text(config.link)
    return {} if codecs is None else {"hsfl.link": codecs}


@torch.no_grad()
def _as_one(model: SplitModel, example: torch.Tensor) -> nn.Module:
    """The module that was split, where it gives one tensor; else the model, whose units one after another give one
    tensor."""
    whole = model.whole().eval()
    return whole if whole is model or isinstance(whole(example.clone()), torch.Tensor) else model


def _write_torchscript(model: nn.Module, example: torch.Tensor, path: Path, notes: dict[str, str]) -> None:
    with path.open("wb") as file:  # torch takes no name whose only dot is its first letter
        torch.jit.save(torch.jit.trace(model, example), file, notes)


def _write_onnx(model: nn.Module, example: torch.Tensor, path: Path, notes: dict[str, str]) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise InputError(f"onnx export needs onnx and onnxscript; {install_extra('export')}") from None
    from hsfl.models.split.torch_export import sizes_by_place  # here, because sympy takes a second to load

    batch = torch.export.Dim("batch", min=1)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells everyone that torchvision is not there
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sizes = sizes_by_place(model, [{0: batch}])
            program = torch.onnx.export(model, (example,), dynamo=True, dynamic_shapes=sizes, verbose=False)
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise InputError(f"this model cannot be written as onnx ({reason}); export it as torchscript") from error
    assert program is not None
    program.model.metadata_props.update(notes)
    program.save(str(path), external_data=False)
