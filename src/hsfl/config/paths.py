"""Files that a config names: found from where the config lies, and what follows from them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hsfl.fleet import file as fleet_file

RUN_CONFIG = "config.json"  # of a run folder
INPUTS = "inputs"  # the part of a run folder that holds copies of files that its config names
KEPT = (("fleet", "file"), ("network", "history"), ("model", "init_weights"))  # are copied there
FIELDS = (*KEPT, ("data", "dir"))
DATA_FIELDS = ("client_file", "test_file", "tokenizer")  # may lie in the data directory, too
DATA_KINDS = ("idx", "folder", "npz", "csv", "text")  # of data.name = "kind:PATH"


def beside(source: Path, tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with its paths from the folder of the config file `source`; absolute ones and ~ stay as they are.

    What is of the wrong type stays, too: it is told where the tree is checked.
    """
    folder = source.parent
    found = {name: dict(part) if isinstance(part, Mapping) else part for name, part in tree.items()}
    for section, field in FIELDS:
        part = found.get(section)
        if isinstance(part, dict) and isinstance(part.get(field), str):
            part[field] = _joined(folder, part[field])
    data = found.get("data")
    if isinstance(data, dict) and isinstance(data.get("name"), str):
        kind, colon, path = data["name"].partition(":")
        data["name"] = f"{kind}:{_joined(folder, path)}" if colon and kind in DATA_KINDS else data["name"]
    model = found.get("model")
    if isinstance(model, dict) and str(model.get("name")).startswith("hf:"):
        model["name"] = f"hf:{_joined(folder, model['name'].removeprefix('hf:'))}"
    for field in DATA_FIELDS:
        if isinstance(data, dict) and isinstance(data.get(field), str) and (folder / data[field]).is_file():
            data[field] = _joined(folder, data[field])
    files = found.get("plugins")
    if isinstance(files, list) and all(isinstance(file, str) for file in files):
        found["plugins"] = [_joined(folder, file) for file in files]
    return found


def from_folder(folder: Path, tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of a run folder's config with the files that the folder holds; paths to other places stay as they are."""
    found = {name: dict(part) if isinstance(part, Mapping) else part for name, part in tree.items()}
    for section, field in KEPT:
        part = found.get(section)
        if isinstance(part, dict) and isinstance(part.get(field), str) and part[field].startswith(f"{INPUTS}/"):
            part[field] = str(folder / INPUTS / Path(part[field]).name)
    return found


def _joined(folder: Path, path: str) -> str:
    if not path or path.startswith("~") or Path(path).is_absolute():
        return path
    return os.path.normpath(folder / path)


def count_devices(tree: dict[str, Any]) -> None:
    """Where a fleet file is there and fleet.num_clients is not given, it is the number of the file's devices."""
    fleet = tree.get("fleet")
    if not isinstance(fleet, dict) or "num_clients" in fleet or not isinstance(fleet.get("file"), str):
        return
    if Path(fleet["file"]).is_file():  # a file that is missing is told by who needs it
        fleet["num_clients"] = len(fleet_file.read(fleet["file"]).devices)
