"""Tensors on disk: a framework's state, or a model that it gives. Safetensors files, never a pickle."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from hsfl.config import RunConfig, parse_stored
from hsfl.errors import InputError
from hsfl.files import SCRATCH, check_ordinary, checked_record, write_atomic
from hsfl.frameworks.framework import State
from hsfl.models.state import TensorsByClient, UnitState
from hsfl.runs.run_folder.folder import check_same_run
from hsfl.runs.run_folder.records import RunStanding

CHECKSUM = "blake2b"  # the name of the note that holds the checksum


def save_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: dict[str, str] | None = None,
    once_written: Callable[[], None] | None = None,
) -> None:
    """Write a safetensors file with a checksum; it is on the disk before it replaces the old file. metadata: notes to keep in it.
    once_written: as in `write_atomic`."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    notes = {**(metadata or {}), CHECKSUM: _checksum(whole, metadata or {})}
    try:
        write_atomic(path, lambda scratch: _save_apart(scratch, whole, notes), durable=True, once_written=once_written)
    except SafetensorError as error:  # what a full disk becomes in safetensors
        raise InputError(f"{path} cannot be written ({error}); make room there or choose another place") from error


def _save_apart(path: Path, tensors: dict[str, Tensor], notes: dict[str, str]) -> None:
    """Let safetensors write in a scratch folder: it makes a file with a name of its own choice first, which would stay for ever
    if the process were killed then."""
    with TemporaryDirectory(prefix=SCRATCH, dir=path.parent) as folder:
        save_file(tensors, Path(folder) / "tensors", notes)
        os.replace(Path(folder) / "tensors", path)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and notes of a safetensors file that `save_tensors` wrote. A file whose checksum is wrong or missing is refused."""
    check_ordinary(path)
    with safe_open(path, "pt") as file:
        notes = file.metadata() or {}
    tensors = load_file(path)
    if notes.pop(CHECKSUM, None) != _checksum(tensors, notes):
        raise SafetensorError("its checksum is wrong: the file is damaged")
    return tensors, notes


def _checksum(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> str:
    """A hash of the tensors' names, types, shapes and bytes, and of the notes."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(sorted(notes.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    return digest.hexdigest()


def save_checkpoint(path: Path, state: State, standing: RunStanding, config: RunConfig) -> None:
    """Write a framework's state, where the run stands, and the config, from which the run can go on."""
    tensors = {f"tensor/{name}": tensor for name, tensor in state.tensors.items()}
    tensors |= {f"memory/{name}": tensor for name, tensor in state.memory.flat().items()}
    for name, units in state.units.items():
        tensors |= {f"floats/{name}": units.floats, f"ints/{name}": units.ints}
    notes = {"progress": json.dumps(asdict(standing)), "config": config.model_dump_json()}
    save_tensors(path, dict(_apart(tensors)), notes)


def _apart(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The tensors without overlaps, which safetensors refuses: a plugin's holders may be views of one model."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        yield name, tensor.clone() if place in seen else tensor
        seen.add(place)


def load_checkpoint(path: Path, like: State, config: RunConfig) -> tuple[State, RunStanding]:
    """The state that a run of the same config saved, and where that run stood. like: the config's first state, for the shapes."""
    if not path.exists():
        raise InputError(f"{path} is missing, so that the run cannot go on; run again into a new folder")
    try:
        tensors, notes = load_tensors(path)
        note = f"{path} note config"
        stored = parse_stored(checked_record(notes["config"], dict[str, Any], note), note)
        standing: RunStanding = checked_record(notes["progress"], RunStanding, f"{path} note progress")
        check_same_run(stored, config, path)
        units = {name: _filled(units, tensors, name) for name, units in like.units.items()}
    except (SafetensorError, OSError, KeyError, TypeError) as error:
        reason = f"no {error} in it" if isinstance(error, KeyError) else error
        raise InputError(
            f"{path} does not hold a checkpoint of this config ({reason}); run again into a new folder"
        ) from None
    device = next(iter(like.units.values())).floats.device
    others, memory = (
        {name.removeprefix(kind): t.to(device) for name, t in tensors.items() if name.startswith(kind)}
        for kind in ("tensor/", "memory/")
    )
    return State(units, others, TensorsByClient.named(memory)), standing


def _filled(like: UnitState, tensors: Mapping[str, Tensor], name: str) -> UnitState:
    floats, ints = tensors[f"floats/{name}"], tensors[f"ints/{name}"]
    if floats.shape != like.floats.shape or ints.shape != like.ints.shape or floats.dtype != like.floats.dtype:
        raise TypeError(f"{name} has {floats.numel()} numbers where {like.floats.numel()} are expected")
    return replace(like, floats=floats.to(like.floats.device), ints=ints.to(like.ints.device))
