"""The run folder: what a run writes, and how it is read back.

- `config.json`: the settings, which can be run again. `inputs/`: copies of the files that they name.
- `environment.json`: the machine, the versions and the sources. `plugins.json`: the plugins, where the run used some.
- `clients.json`: who has which data and device. `cuts.json`: with which cuts the run began.
- `task.json`: what is learned, where that is not classification. `workers.log`: which process trained which clients.
- `rounds.jsonl`: a line for each round. `rounds.csv` and `phases.csv`: the rounds as tables, when the run has ended.
- `summary.json`: how the run ended. `report.html`: a page that shows everything.
- `model.safetensors`: the model of the last round. `model-best.safetensors`: the model of the best round.
- `checkpoint/state.safetensors`: the state from which a run goes on.

Every file is replaced atomically, except `rounds.jsonl` and `workers.log`, which grow line by line. A last line of
`rounds.jsonl` that a crash cut off is left out when the file is read.

One process at a time writes to a folder: `RunFolder.locked` holds the lock, which ends with the process that holds it.
"""

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

from hsfl.config import RunConfig, flatten, parse_stored
from hsfl.config.reading import INPUTS, KEPT, from_folder
from hsfl.errors import InputError
from hsfl.files import (
    DAMAGED,
    checked_record,
    clear_scratch,
    is_scratch,
    patiently,
    read_content,
    read_object,
    read_record,
    write_atomic,
    write_json,
    writing,
)
from hsfl.runs.run_folder.environment import environment, input_digests
from hsfl.runs.run_folder.provenance import PLUGINS_FILE, keep_inputs, plugin_record
from hsfl.runs.run_folder.records import (
    SELDOM,
    CheckedClients,
    CheckedRound,
    ClientsRecord,
    CutsRecord,
    EnvironmentRecord,
    MetricRecord,
    PluginsRecord,
    RoundRecord,
    RunEnd,
    TaskRecord,
)
from hsfl.tasks import DEFAULT, TASKS, LearningTask, Metric

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


LOCK = ".lock"  # the file's name
TIMING = "timing.json"  # the file of a run that was timed and not trained
LONGEST_PATH_NAME = 100  # letters
COPIED = tuple(f"{section}.{field}" for section, field in KEPT)


def holds_something(path: Path) -> bool:
    """Whether anything but a lock and unfinished files is at the path."""
    if not path.is_dir():
        return path.exists()
    return any(entry.name != LOCK and not is_scratch(entry) for entry in path.iterdir())


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
        self.task_path = self.path / "task.json"
        self.workers_path = self.path / "workers.log"

    def check_free(self) -> None:
        """Refuse a folder that holds anything but a lock and unfinished files, so that no run is overwritten."""
        self._check_no_file()
        with writing(self.path):
            taken = holds_something(self.path)
        if taken:
            raise InputError(
                f"{self.path} already holds something; choose another folder (--out), or go on with the run in it (--resume)"
            )

    def _check_no_file(self) -> None:
        with writing(self.path):
            if self.path.exists() and not self.path.is_dir():
                raise InputError(f"{self.path} is a file, not a folder; choose another folder (--out)")

    def clear_scratch(self) -> None:
        """Remove unfinished files. Only call this with the lock held, when the folder is known to be the run's."""
        for name in ("", "checkpoint", "models", "export"):
            clear_scratch(self.path / name)

    def begin_anew(self) -> None:
        """Forget a run that stopped before its first checkpoint: there is no state from which it could go on."""
        models = (self.last_model_path, self.best_model_path)
        run_files = (
            self.rounds_path,
            self.clients_path,
            self.cuts_path,
            self.plugins_path,
            self.workers_path,
            self.task_path,
            *models,
        )
        inputs = [path for path in (self.path / INPUTS).glob("*") if path.is_file()]
        for path in (*run_files, *inputs, self.environment_path, self.path / "report.html", self.config_path):
            path.unlink(missing_ok=True)  # the config last: as long as it is there, a run can begin anew

    def create(self, config: RunConfig, num_threads: int | None = None) -> None:
        """Write the first files of a run. num_threads: of each process that trains; by default torch's."""
        self.write_config(config)
        write_json(self.environment_path, environment(num_threads) | {"inputs": input_digests(config)})
        if (record := plugin_record(config)) is not None:
            write_json(self.plugins_path, record)
        write_atomic(self.rounds_path, lambda scratch: None)

    def write_config(self, config: RunConfig) -> None:
        """Keep the settings, and copies of the files that they name."""
        write_json(self.config_path, keep_inputs(self.path, config))

    def clients(self) -> ClientsRecord | None:
        """Data and devices of the clients; None where a crash came before they were written."""
        if not self.clients_path.exists():
            return None
        record: ClientsRecord = read_record(self.clients_path, CheckedClients)
        return record

    def write_task(self, task: LearningTask) -> None:
        """Keep what the metrics are called and which direction is better, so that readers need no plugin."""
        if task != TASKS[DEFAULT]:
            metrics = [MetricRecord(m.name, m.title, m.higher_is_better, m.percent) for m in task.metrics]
            write_json(self.task_path, asdict(TaskRecord(task.name, metrics)))

    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of the run's task, in the order in which they are shown; without task.json, classification's."""
        if not self.task_path.exists():
            return TASKS[DEFAULT].metrics
        record: TaskRecord = read_record(self.task_path, TaskRecord)
        return tuple(Metric(**asdict(metric)) for metric in record.metrics)

    def environment(self) -> EnvironmentRecord:
        """The machine that the run began on; an empty record where a crash came before it was written."""
        if not self.environment_path.exists():
            return EnvironmentRecord()
        record: EnvironmentRecord = read_record(self.environment_path, EnvironmentRecord)
        return record

    def ended(self) -> RunEnd:
        """How the run ended; `unfinished` where there is no summary yet."""
        if not self.summary_path.exists():
            return RunEnd("unfinished")
        record: RunEnd = read_record(self.summary_path, RunEnd)
        return record

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock, so that one run at a time writes here; a lock ends with the process that holds it.

        Folders that were made for the lock and stayed empty are removed at the end.
        """
        self._check_no_file()
        with writing(self.path):
            made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
        try:
            with lock_file(self.path / LOCK):
                yield
        finally:
            with suppress(OSError):  # not empty
                for folder in made:
                    folder.rmdir()

    def write_cuts(self, cuts: CutsRecord) -> None:
        """Keep the cuts that the run was given or chose: a search that ends by the clock may find other cuts the next time."""
        write_json(self.cuts_path, asdict(cuts))

    def cuts(self) -> CutsRecord | None:
        """The cuts that the run began with; None where a crash came before they were written, and on real machines."""
        if not self.cuts_path.exists():
            return None
        record: CutsRecord = read_record(self.cuts_path, CutsRecord)
        return record

    def config(self) -> RunConfig:
        """The run's settings. Plugins that the file may name are neither loaded nor kept."""
        tree = from_folder(self.path, read_object(self.config_path))
        return parse_stored(tree, self.config_path).model_copy(update={"plugins": ()})

    def plugins(self) -> PluginsRecord:
        """Which plugins the run used, as plain data. Anybody may have written it: it is shown and compared, and never run."""
        if not self.plugins_path.exists():
            return PluginsRecord()
        record: PluginsRecord = read_record(self.plugins_path, PluginsRecord)
        return record

    def append(self, record: RoundRecord) -> None:
        """Add a round."""
        with writing(self.rounds_path), patiently(lambda: self.rounds_path.open("a")) as file:
            file.write(record_line(record))

    def log_placed(self, round_number: int, placed: Iterable[tuple[str, Sequence[int]]]) -> None:
        """Write down who trained which clients of a round, for people to read."""
        lines = [f"round {round_number}: {who} trained clients {' '.join(map(str, whom))}\n" for who, whom in placed]
        if lines:
            with writing(self.workers_path), self.workers_path.open("a") as file:
                file.writelines(lines)

    def rounds(self) -> list[RoundRecord]:
        """The rounds 1, 2, ... of all whole lines; a last line that a crash cut off is left out."""
        records: list[RoundRecord] = []
        for number, json_line in enumerate(self._lines(), 1):
            where = f"{self.rounds_path} line {number}"
            try:
                record: RoundRecord = checked_record(json_line.rstrip(b"\n"), CheckedRound, where)
            except InputError:
                if json_line.endswith(b"\n"):
                    raise
                break
            _check_order(record, records, where)
            records.append(record)
        return records

    def _lines(self) -> list[bytes]:
        return BytesIO(read_content(self.rounds_path)).readlines()

    def keep_rounds(self, count: int) -> None:
        """Keep the first `count` rounds, which the checkpoint has seen, and forget the others."""
        records = self.rounds()
        if len(records) < count:
            raise InputError(
                f"{self.rounds_path} has {len(records)} rounds but the checkpoint {count}; run again into a new folder"
            )
        first_lines = b"".join(json_line.rstrip(b"\n") + b"\n" for json_line in self._lines()[:count])
        write_atomic(self.rounds_path, lambda scratch: scratch.write_bytes(first_lines))


def _check_order(record: RoundRecord, before: Sequence[RoundRecord], where: str) -> None:
    """Rounds count 1, 2, ..., time does not run back, and the clients stay the same."""
    if record.round != len(before) + 1:
        raise InputError(f"{where}: round is {record.round}, but rounds count 1, 2, ...; {DAMAGED}")
    if before and record.sim_time_s < before[-1].sim_time_s:
        raise InputError(f"{where}: sim_time_s is {record.sim_time_s:g}, earlier than in the round before; {DAMAGED}")
    if before and record.num_clients != before[0].num_clients:
        raise InputError(f"{where}: cuts has {record.num_clients} entries, not {before[0].num_clients}; {DAMAGED}")


def record_line(record: RoundRecord) -> str:
    """The record as a line of rounds.jsonl."""
    row = {name: value for name, value in asdict(record).items() if value is not None or name not in SELDOM}
    return json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n"


def check_same_run(stored: RunConfig, wanted: RunConfig, where: Path) -> None:
    """Refuse to go on with other settings than the run in the folder `where` began with.

    Another number of rounds (unless the cosine schedule depends on it), another budget, another place of the data,
    another engine and other logging are allowed."""
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
    flat |= {name: flat[name] is not None for name in COPIED}  # their contents are compared, wherever they lie
    free = ("train.rounds", "train.budget_s", "data.dir")
    return {
        name: value for name, value in flat.items() if name not in free and not name.startswith(("log.", "engine."))
    }


def run_path(out: str | Path, label: str, seed: int) -> Path:
    """The folder of the run of a label and seed, within the folder `out`."""
    return Path(out) / path_name(label) / f"seed-{seed}"


def path_name(label: str) -> str:
    """A label as the name of a file or folder, other names for other labels: `train.lr=0.1,seed=2` is `train.lr-0.1_seed-2`. A
    label with other signs, or one that is too long, ends in a hash of itself."""
    whole = label.replace("=", "-").replace(",", "_")
    name = plain_name(whole)
    if name == whole and len(name) <= LONGEST_PATH_NAME:
        return name
    return f"{name[: LONGEST_PATH_NAME - 9]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}".lstrip("-")


def plain_name(text: str) -> str:
    """The text in small letters, digits, `-`, `_` and `.` alone, as every file system and shell takes it: `V1 (as published)` is
    `v1-as-published`. Accents are left out; the answer is empty where the text has no such letter."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9._]+", "-", plain).strip("-.")


# --- the lock on a folder


@contextmanager
def lock_file(
    path: Path, busy: str = "another run is writing to {folder}; wait for it, or choose another --out"
) -> Iterator[None]:
    """Hold the lock of the file `path` and remove the file at the end; the lock goes with the process that holds it.

    The file's content stays as it is, since the file may be a link to something else. A lock file that another process has
    removed between our opening and locking it counts for nothing. busy: what to say where another process holds the lock.
    """
    if fcntl is None:  # not on Windows
        yield
        return
    while True:
        with writing(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(busy.format(folder=path.parent)) from None
            if not _is_at(handle, path):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)  # still locked: whoever opened the file meanwhile finds that it is gone
            return
        finally:
            os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    """Whether the open file is the one at this path."""
    try:
        at_path = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened = os.fstat(handle)
    return (at_path.st_dev, at_path.st_ino) == (opened.st_dev, opened.st_ino)
