"""What the numbers of a run come from besides its settings: the machine, the versions, the sources, and the files that it reads."""

import hashlib
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from hsfl.config import RunConfig
from hsfl.engines.machine import num_cores, sources_sha256
from hsfl.errors import InputError
from hsfl.runs.client_data import data_files

PACKAGES = ("hsfl", "torch", "numpy")


def environment(num_threads: int | None = None) -> dict[str, Any]:
    """The machine, the versions and the sources, as plain data for `environment.json`. num_threads: by default
    those of torch in this process."""
    if num_threads is None and "torch" in sys.modules:
        num_threads = sys.modules["torch"].get_num_threads()
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": _processor(),
        "num_cpus": num_cores(),
        "num_threads": num_threads,
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "sources_sha256": sources_sha256(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((text.partition(":")[2].strip() for text in lines if text.startswith("model name")), platform.machine())


def input_digests(config: RunConfig) -> dict[str, str]:
    """The SHA-256 of every file that the config names and that exists, by the field's name."""
    files = {
        "fleet.file": config.fleet.file,
        "network.history": config.network.history,
        "model.init_weights": config.model.init_weights,
    }
    existing = {field: Path(name) for field, name in files.items() if name is not None and Path(name).is_file()}
    return {field: _digest(path) for field, path in (existing | data_files(config.data)).items()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_inputs(before: Mapping[str, Any], config: RunConfig, where: Path) -> None:
    """Refuse to go on in the folder `where` if a file that the config names holds something else than when the folder was
    begun. `before` is what `input_digests` gave then; it is empty where a crash came before it was written."""
    for field, digest in input_digests(config).items():
        if before.get(field, digest) != digest:
            raise InputError(
                f"{where} was begun with other contents of {field}; put them back, or choose another --out"
            )
