"""The files that a config names, copied into the run's folder, so that the run can be made again and go on elsewhere.

Data sets are not copied: they may be large, and a device's own data stay where they are.
"""

import shutil
from pathlib import Path
from typing import Any

from hsfl.config import RunConfig
from hsfl.config.reading import INPUTS, KEPT
from hsfl.files import write_atomic


def keep_inputs(folder: Path, config: RunConfig) -> dict[str, Any]:
    """Copy the files that the config names into the folder; returns the config's tree with the paths of the copies, as
    seen from the folder.

    The path of a missing file stays as it is: an error follows where the file is needed.
    """
    tree: dict[str, Any] = config.model_dump(mode="json")
    for section, field in KEPT:
        path = tree[section][field]
        if path is not None and Path(path).is_file():
            name = f"{INPUTS}/{section if field == 'file' else field}{Path(path).suffix}"
            _copy(Path(path), folder / name)
            tree[section][field] = name
    return tree


def _copy(source: Path, target: Path) -> None:
    if not (target.exists() and target.samefile(source)):
        write_atomic(target, lambda scratch: shutil.copyfile(source, scratch))
