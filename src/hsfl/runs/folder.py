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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Any

from hsfl.config import RunConfig, flatten, parse_config
from hsfl.errors import InputError
from hsfl.files import (
    DAMAGED,
    checked,
    clear_scratch,
    is_scratch,
    read_content,
    read_object,
    read_record,
    write_atomic,
    write_json,
    writing,
)
from hsfl.runs.provenance import FILE as PLUGINS_FILE
from hsfl.runs.provenance import plugin_record
from hsfl.runs.records import (
    CheckedClients,
    CheckedRound,
    ClientsRecord,
    CutsRecord,
    Ended,
    EnvironmentRecord,
    PluginsRecord,
    RoundRecord,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PACKAGES = ("hsfl", "torch", "numpy")
LOCK = ".lock"


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


def check_inputs(before: Mapping[str, str], config: RunConfig, where: Path) -> None:
    """`before` is what `input_digests` gave when `where` was begun; runs of older versions have none."""
    for field, digest in input_digests(config).items():
        if before.get(field, digest) != digest:
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
        self.environment_path = self.path / "environment.json"

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
        for path in (*own, self.environment_path, self.path / "report.html", self.config_path):
            path.unlink(missing_ok=True)  # the config last: as long as it is there, a run can begin anew

    def create(self, config: RunConfig) -> None:
        write_json(self.config_path, config.model_dump(mode="json"))
        write_json(self.environment_path, environment() | {"inputs": input_digests(config)})
        if (record := plugin_record(config)) is not None:
            write_json(self.plugins_path, record)
        write_atomic(self.rounds_path, lambda scratch: None)

    def clients(self) -> ClientsRecord | None:
        """None for a run of an older version, which did not write it."""
        if not self.clients_path.exists():
            return None
        record: ClientsRecord = read_record(self.clients_path, CheckedClients)
        return record

    def environment(self) -> EnvironmentRecord:
        """The machine that the run began on; an empty record where a crash came before it was written."""
        if not self.environment_path.exists():
            return EnvironmentRecord()
        record: EnvironmentRecord = read_record(self.environment_path, EnvironmentRecord)
        return record

    def ended(self) -> Ended:
        """How the run ended; `unfinished` where there is no summary yet."""
        if not self.summary_path.exists():
            return Ended("unfinished")
        record: Ended = read_record(self.summary_path, Ended)
        return record

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

    def write_cuts(self, cuts: Sequence[int], note: str | None = None) -> None:
        """The cuts that the run was given or chose: a search that ends by the clock may find others the next time."""
        write_json(self.cuts_path, asdict(CutsRecord(list(cuts), note)))

    def cuts(self) -> CutsRecord | None:
        """The cuts that the run began with; None for a run of an older version, which did not write them."""
        if not self.cuts_path.exists():
            return None
        record: CutsRecord = read_record(self.cuts_path, CutsRecord)
        return record

    def planned_cuts(self) -> tuple[int, ...] | None:
        """The same, as training takes them."""
        return None if (record := self.cuts()) is None else tuple(record.cuts)

    def config(self) -> RunConfig:
        """The run's settings; plugins that the file may name are not loaded, and not kept."""
        tree = read_object(self.config_path)
        try:
            config = parse_config(tree, of_a_folder=True)
        except InputError as error:
            raise InputError(f"{self.config_path}: {error}") from None
        return config.model_copy(update={"plugins": ()})

    def plugins(self) -> PluginsRecord:
        """What the run owes to plugins, as plain data that anybody may have written: look at it, never run it."""
        if not self.plugins_path.exists():
            return PluginsRecord()
        record: PluginsRecord = read_record(self.plugins_path, PluginsRecord)
        return record

    def append(self, record: RoundRecord) -> None:
        with writing(self.rounds_path), self.rounds_path.open("a") as file:
            file.write(_line(record))

    def rounds(self) -> list[RoundRecord]:
        """The rounds 1, 2, ... of all whole lines; a last line that a crash cut off is left out."""
        records: list[RoundRecord] = []
        for number, line in enumerate(self._lines(), 1):
            where = f"{self.rounds_path} line {number}"
            try:
                record: RoundRecord = checked(line.rstrip(b"\n"), CheckedRound, where)
            except InputError:
                if line.endswith(b"\n"):
                    raise
                break
            _check_order(record, records, where)
            records.append(record)
        return records

    def _lines(self) -> list[bytes]:
        return BytesIO(read_content(self.rounds_path)).readlines()

    def keep_rounds(self, count: int) -> None:
        """Forget the rounds after a checkpoint."""
        records = self.rounds()
        if len(records) < count:
            raise InputError(
                f"{self.rounds_path} has {len(records)} rounds but the checkpoint {count}; run again into a new folder"
            )
        kept = b"".join(line.rstrip(b"\n") + b"\n" for line in self._lines()[:count])
        write_atomic(self.rounds_path, lambda scratch: scratch.write_bytes(kept))


def _check_order(record: RoundRecord, before: Sequence[RoundRecord], where: str) -> None:
    """Rounds count 1, 2, ..., time does not run back, and the clients stay the same."""
    if record.round != len(before) + 1:
        raise InputError(f"{where}: round is {record.round}, but rounds count 1, 2, ...; {DAMAGED}")
    if before and record.sim_time_s < before[-1].sim_time_s:
        raise InputError(f"{where}: sim_time_s is {record.sim_time_s:g}, earlier than in the round before; {DAMAGED}")
    if before and len(record.cuts) != len(before[0].cuts):
        raise InputError(f"{where}: cuts has {len(record.cuts)} entries, not {len(before[0].cuts)}; {DAMAGED}")


def _line(record: RoundRecord) -> str:
    """A line of rounds.jsonl."""
    return json.dumps(asdict(record), allow_nan=False, separators=(",", ":")) + "\n"


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
    return {name: value for name, value in flat.items() if name not in free and not name.startswith("log.")}


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
