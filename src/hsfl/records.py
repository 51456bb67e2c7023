"""The run folder: what a run writes, and how it is read back.

`config.json` (re-runnable), `environment.json`, `rounds.jsonl` (a line a round), `summary.json`, `model.safetensors`
(last round) and `model-best.safetensors`, `checkpoint/state.safetensors`. Every file is replaced atomically.
"""

import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from hsfl.config import RunConfig, parse_config
from hsfl.errors import InputError

PACKAGES = ("hsfl", "torch", "numpy")


@dataclass(frozen=True)
class RoundRecord:
    round: int  # 1, 2, ...
    framework: str
    wall_s: float
    num_samples: int  # trained on
    train_loss: float | None  # None: nobody trained
    test_loss: float | None  # None: not evaluated in this round
    test_accuracy: float | None
    balanced_accuracy: float | None
    recall: list[float | None] | None  # by class
    lr: float
    cuts: list[int]  # [K]
    kept: list[int]  # clients that trained
    bytes: dict[str, int]  # by link


def write_atomic(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a file beside `path`, then put it in place in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    scratch = Path(name)
    try:
        write(scratch)
        os.chmod(scratch, 0o644)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, lambda scratch: scratch.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n"))


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} is missing; is {path.parent} the folder of a run?") from None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); the run folder is damaged, run again into a new one"
        ) from None


class RunFolder:
    """One run's folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.json"
        self.rounds_path = self.path / "rounds.jsonl"
        self.checkpoint_path = self.path / "checkpoint" / "state.safetensors"
        self.last_model_path = self.path / "model.safetensors"
        self.best_model_path = self.path / "model-best.safetensors"
        self.summary_path = self.path / "summary.json"

    def check_free(self) -> None:
        """A folder that holds another run is not overwritten."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise InputError(f"{self.path} already holds something; choose another --out, or --resume the run in it")

    def create(self, config: RunConfig) -> None:
        write_json(self.config_path, config.model_dump(mode="json"))
        write_json(self.path / "environment.json", environment())
        self.rounds_path.touch()

    def config(self) -> RunConfig:
        return parse_config(read_json(self.config_path))

    def append(self, record: RoundRecord) -> None:
        with self.rounds_path.open("a") as file:
            file.write(json.dumps(asdict(record), allow_nan=False) + "\n")

    def rounds(self) -> list[RoundRecord]:
        """All whole lines; a line cut off by a crash is left out."""
        known = {field.name for field in fields(RoundRecord)}
        try:
            lines = self.rounds_path.read_text().splitlines()
        except OSError:
            raise InputError(f"{self.rounds_path} is missing; is {self.path} the folder of a run?") from None
        records = []
        for line in lines:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                break
            records.append(RoundRecord(**{name: value for name, value in record.items() if name in known}))
        return records

    def keep_rounds(self, count: int) -> None:
        """Forget the rounds after a checkpoint."""
        text = "".join(json.dumps(asdict(record), allow_nan=False) + "\n" for record in self.rounds()[:count])
        write_atomic(self.rounds_path, lambda scratch: scratch.write_text(text))


def check_same_run(stored: RunConfig, wanted: RunConfig, where: Path) -> None:
    """A run goes on only with the settings it began with; more rounds and other logging are allowed."""
    before, after = _settings(stored), _settings(wanted)
    if stored.train.schedule == "cosine":  # its rates depend on the number of rounds
        before["train.rounds"], after["train.rounds"] = stored.train.rounds, wanted.train.rounds
    for name in before:
        if before[name] != after[name]:
            raise InputError(
                f"{where} was run with {name} = {before[name]!r}, not {after[name]!r}; "
                "resume with the same settings or choose another --out"
            )


def _settings(config: RunConfig) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.model_dump(mode="json").items():
        flat |= {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, Mapping) else {name: value}
    free = ("train.rounds", "data.dir")
    return {name: value for name, value in flat.items() if name not in free and not name.startswith("log.")}


def environment() -> dict[str, Any]:
    """The machine and the versions that the numbers come from."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": _processor(),
        "num_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
