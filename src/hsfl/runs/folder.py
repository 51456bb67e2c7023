"""The run folder: what a run writes, and how it is read back.

`config.json` (re-runnable), `environment.json`, `plugins.json` (where the run used some: their hashes and the framework's row), `clients.json` (who has which data and device), `rounds.jsonl` (a line
a round), `summary.json`, `report.html` (all of it to look at), `model.safetensors` (last round) and `model-best.safetensors`, `checkpoint/state.safetensors`. Every file is replaced atomically,
but for `rounds.jsonl`, which grows by a line at a time; a line cut off by a crash is left out when it is read.
"""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from hsfl.config import RunConfig, flatten, parse_config
from hsfl.errors import InputError
from hsfl.files import clear_scratch, is_scratch, read_json, write_atomic, write_json, writing
from hsfl.runs.provenance import FILE as PLUGINS_FILE
from hsfl.runs.provenance import plugin_record

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PACKAGES = ("hsfl", "torch", "numpy")
LOCK = ".lock"


@dataclass(frozen=True)
class RoundRecord:
    round: int  # 1, 2, ...
    framework: str
    sim_time_s: float  # simulated seconds since the run began, at the end of this round
    round_s: float  # simulated
    wall_s: float
    num_samples: int  # trained on
    train_loss: float | None  # None: nobody trained
    test_loss: float | None  # None: not evaluated in this round
    test_accuracy: float | None
    balanced_accuracy: float | None
    recall: list[float | None] | None  # by class
    lr: float
    cuts: list[int]  # [K]
    started: list[int]  # clients that took part in the round
    kept: list[int]  # clients whose update counts
    dropped: list[int]  # clients that started and passed tau
    straggler: int | None  # the client with the most work
    waiting_s: list[float]  # [K] simulated seconds in which nothing worked for the client
    phases: dict[str, dict[str, list[float]]]  # start_s and end_s [K] of each phase, from the round's start
    allocation: dict[str, Any]  # policy, what it says of its answer, and under `resources` the numbers to recompute it
    bytes: dict[str, int]  # by link


@dataclass(frozen=True)
class ClientsRecord:
    """Who takes part: data and device of each of the K clients."""

    num_samples: list[int]  # [K] of training
    class_counts: list[list[int]]  # [K][C]
    class_names: list[str]  # [C]
    cuts: list[int]  # [K] as the framework uses them
    max_cut: list[int]  # [K] as deep as the device can hold
    cpu_hz: list[float]  # [K] mean cycles per second
    max_power_w: list[float]  # [K] uplink


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the file's lock. What the file holds stays (it may be a link to something else), and a lock that another process
    has just removed counts for nothing."""
    if fcntl is None:  # not on Windows
        yield
        return
    busy = InputError(f"another run is writing to {path.parent}; wait for it, or choose another --out")
    while True:
        with writing(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise busy from None
            if not _is_at(handle, path):  # its holder removed it between our opening and locking it
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)  # still locked: who opens it now, sees that it is gone
            return
        finally:
            os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    try:
        here = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    mine = os.fstat(handle)
    return (here.st_dev, here.st_ino) == (mine.st_dev, mine.st_ino)


def _is_ours_to_clear(path: Path) -> bool:
    return path.name == LOCK or is_scratch(path)


def input_digests(config: RunConfig) -> dict[str, str]:
    """What the files that a config names hold now, by the field's name: a run must not go on with other contents."""
    files = {
        "fleet.file": config.fleet.file,
        "network.history": config.network.history,
        "model.init_weights": config.model.init_weights,
    }
    return {field: _digest(Path(name)) for field, name in files.items() if name is not None and Path(name).is_file()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_inputs(before: Any, config: RunConfig, where: Path) -> None:
    """`before` is what `input_digests` gave when `where` was begun; runs of older versions have none."""
    for field, digest in input_digests(config).items():
        if isinstance(before, dict) and before.get(field, digest) != digest:
            raise InputError(
                f"{where} was begun with other contents of {field}; put them back, or choose another --out"
            )


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
        self.clients_path = self.path / "clients.json"
        self.plugins_path = self.path / PLUGINS_FILE
        self.cuts_path = self.path / "cuts.json"

    def check_free(self) -> None:
        """A folder that holds another run is not overwritten; a lock and scratch files are nobody's run."""
        self._check_no_file()
        with writing(self.path):
            taken = self.path.exists() and any(not _is_ours_to_clear(path) for path in self.path.iterdir())
        if taken:
            raise InputError(f"{self.path} already holds something; choose another --out, or --resume the run in it")

    def _check_no_file(self) -> None:
        with writing(self.path):
            if self.path.exists() and not self.path.is_dir():
                raise InputError(f"{self.path} is a file, not a folder; choose another --out")

    def begin_anew(self) -> None:
        """Forget a run that stopped before its first checkpoint: nothing of it can be gone on from."""
        models = (self.last_model_path, self.best_model_path)
        own = (self.rounds_path, self.clients_path, self.cuts_path, self.plugins_path, *models)
        for path in (*own, self.path / "environment.json", self.path / "report.html", self.config_path):
            path.unlink(missing_ok=True)  # the config last: as long as it is there, a run can begin anew

    def create(self, config: RunConfig) -> None:
        write_json(self.config_path, config.model_dump(mode="json"))
        write_json(self.path / "environment.json", environment() | {"inputs": input_digests(config)})
        if (record := plugin_record(config)) is not None:
            write_json(self.plugins_path, record)
        write_atomic(self.rounds_path, lambda scratch: None)

    def clients(self) -> ClientsRecord | None:
        """None for a run of an older version, which did not write it."""
        if not self.clients_path.exists():
            return None
        value = read_json(self.clients_path)
        try:
            return ClientsRecord(**{field.name: value[field.name] for field in fields(ClientsRecord)})
        except (KeyError, TypeError) as error:
            raise InputError(f"{self.clients_path} lacks {error}; delete the file, or run again") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One run at a time writes here; the lock goes with the process that holds it.

        Folders that were made for the lock and stay empty go with it.
        """
        self._check_no_file()
        with writing(self.path):
            made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
        try:
            with _lock(self.path / LOCK):
                clear_scratch(self.path)
                yield
        finally:
            with suppress(OSError):  # not empty
                for folder in made:
                    folder.rmdir()

    def write_cuts(self, cuts: Sequence[int]) -> None:
        """The cuts that the run was given or chose: a search that ends by the clock may find others the next time."""
        write_json(self.cuts_path, {"cuts": list(cuts)})

    def planned_cuts(self) -> tuple[int, ...] | None:
        """The cuts that the run began with; None for a run of an older version, which did not write them."""
        if not self.cuts_path.exists():
            return None
        value = read_json(self.cuts_path)
        cuts = value.get("cuts") if isinstance(value, dict) else None
        if not isinstance(cuts, list) or not all(type(cut) is int and cut >= 0 for cut in cuts):
            raise InputError(f"{self.cuts_path} does not hold cuts; it is damaged, run again into a new folder")
        return tuple(cuts)

    def config(self) -> RunConfig:
        """The run's settings; plugins that the file may name are not loaded, and not kept."""
        config = parse_config(read_json(self.config_path), of_a_folder=True)
        return config.model_copy(update={"plugins": ()})

    def plugins(self) -> dict[str, Any]:
        """What the run owes to plugins, as plain data that anybody may have written: look at it, never run it."""
        record = read_json(self.plugins_path) if self.plugins_path.exists() else {}
        return record if isinstance(record, dict) else {}

    def append(self, record: RoundRecord) -> None:
        with writing(self.rounds_path), self.rounds_path.open("a") as file:
            file.write(_line(record))

    def rounds(self) -> list[RoundRecord]:
        """All whole lines; a last line cut off by a crash is left out."""
        try:
            lines = self.rounds_path.read_text().splitlines()
        except (OSError, ValueError):
            raise InputError(f"{self.rounds_path} cannot be read; is {self.path} the folder of a run?") from None
        records = [_record(line) for line in lines]
        whole = [record for record in records if record is not None]
        if None in records[:-1]:
            raise InputError(
                f"{self.rounds_path} is damaged in line {records.index(None) + 1}; run again into a new folder"
            )
        return whole

    def keep_rounds(self, count: int) -> None:
        """Forget the rounds after a checkpoint."""
        records = self.rounds()
        if [record.round for record in records[:count]] != list(range(1, len(records[:count]) + 1)):
            raise InputError(f"{self.rounds_path} does not count its rounds 1, 2, ...; run again into a new folder")
        if len(records) < count:
            raise InputError(
                f"{self.rounds_path} has {len(records)} rounds but the checkpoint {count}; run again into a new folder"
            )
        text = "".join(map(_line, records[:count]))
        write_atomic(self.rounds_path, lambda scratch: scratch.write_text(text))


def _line(record: RoundRecord) -> str:
    """A line of rounds.jsonl."""
    return json.dumps(asdict(record), allow_nan=False, separators=(",", ":")) + "\n"


def _record(line: str) -> RoundRecord | None:
    """A line of rounds.jsonl; None if it is not whole. Fields of later versions are left aside."""
    known = {field.name for field in fields(RoundRecord)}
    try:
        return RoundRecord(**{name: value for name, value in json.loads(line).items() if name in known})
    except (ValueError, TypeError, AttributeError):
        return None


def check_same_run(stored: RunConfig, wanted: RunConfig, where: Path) -> None:
    """A run goes on only with the settings it began with; more rounds and other logging are allowed."""
    before, after = _settings(stored), _settings(wanted)
    if stored.train.schedule == "cosine":  # its rates depend on the number of rounds
        before["train.rounds"], after["train.rounds"] = stored.train.rounds, wanted.train.rounds
    for name in before | after:
        if before.get(name) != after.get(name):
            raise InputError(
                f"{where} was run with {name} = {before.get(name)!r}, not {after.get(name)!r}; "
                "resume with the same settings or choose another --out"
            )


def _settings(config: RunConfig) -> dict[str, Any]:
    flat = flatten(config.model_dump(mode="json"))
    free = ("train.rounds", "train.budget_s", "data.dir")
    return {
        name: value for name, value in flat.items() if name not in free and not name.startswith(("log.", "engine."))
    }


def environment() -> dict[str, Any]:
    """The machine and the versions that the numbers come from."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": _processor(),
        "num_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "num_threads": sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None,
        "packages": {name: metadata.version(name) for name in PACKAGES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def run_path(out: str | Path, label: str, seed: int) -> Path:
    """Where the run of a label and seed lies."""
    return Path(out) / path_name(label) / f"seed-{seed}"


def path_name(label: str) -> str:
    """A label as part of a path; what a path cannot hold is written as in an address (`%2F`)."""
    return label.replace("%", "%25").replace("/", "%2F")
