"""The run folder: what a run writes, and how it is read back.

`config.json` can be run again. `environment.json` names the machine, the versions and the sources. `plugins.json` is there where the
run used plugins: their hashes and the framework's row. `clients.json` says who has which data and device, `cuts.json` with which cuts
the run began. `rounds.jsonl` has a line for each round, `summary.json` says how the run ended, `report.html` shows everything.
`model.safetensors` is the model of the last round, `model-best.safetensors` that of the best, `checkpoint/state.safetensors` what a run
goes on from. Every file is replaced atomically except `rounds.jsonl`, which grows line by line; a last line that a crash cut off is
left out when the file is read.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hsfl.config import RunConfig, flatten, parse_config
from hsfl.errors import InputError
from hsfl.files import clear_scratch, is_scratch, read_json, write_atomic, write_json, writing
from hsfl.runs.environment import environment, input_digests
from hsfl.runs.lock import LOCK, lock
from hsfl.runs.provenance import FILE as PLUGINS_FILE
from hsfl.runs.provenance import plugin_record


@dataclass(frozen=True)
class RoundRecord:
    """One round: a line of rounds.jsonl."""

    round: int  # 1, 2, ...
    framework: str
    sim_time_s: float  # simulated seconds since the run began, at the end of this round
    round_s: float  # simulated
    wall_s: float
    num_samples: int  # trained on
    train_loss: float | None  # None if nobody trained
    test_loss: float | None  # None if the round was not evaluated
    test_accuracy: float | None
    balanced_accuracy: float | None
    recall: list[float | None] | None  # by class
    lr: float
    cuts: list[int]  # [K]
    started: list[int]  # clients that took part in the round
    kept: list[int]  # clients whose update counts
    dropped: list[int]  # clients that started and passed tau
    straggler: int | None  # the client that ends last
    waiting_s: list[float]  # [K] simulated seconds in which nothing worked for the client
    phases: dict[str, dict[str, list[float]]]  # start_s and end_s [K] of each phase, from the round's start
    allocation: dict[
        str, Any
    ]  # the policy, what it says of its answer, and under `resources` the numbers that recompute the round
    bytes: dict[str, int]  # by link
    why: dict[str, Any] | None = (
        None  # what holds the straggler up (planning.straggler.Why); None: nobody trained, or older
    )


@dataclass(frozen=True)
class ClientsRecord:
    """Who takes part: data and device of each of the K clients."""

    num_samples: list[int]  # [K] of training
    class_counts: list[list[int]]  # [K][C]
    class_names: list[str]  # [C]
    cuts: list[int]  # [K] as the framework uses them
    max_cut: list[int]  # [K] as deep as the device can hold
    cpu_hz: list[float]  # [K] mean cycles per second
    max_power_w: list[float | None]  # [K] uplink; None where links are measured and no power was given
    input_shape: list[int] = field(default_factory=list)  # of a sample, as the model gets it; empty in older folders
    names: list[str] | None = None  # [K] of the devices, where a fleet file names them
    flops_per_s: list[float] | None = None  # [K] mean speed; None in runs of older versions


def _is_required(each: "Field[Any]") -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def _is_ours_to_clear(path: Path) -> bool:
    return path.name == LOCK or is_scratch(path)


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
        """Refuse a folder that holds anything but a lock and unfinished files, so that no run is overwritten."""
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
        """Forget a run that stopped before its first checkpoint: there is no state from which it could go on."""
        models = (self.last_model_path, self.best_model_path)
        own = (self.rounds_path, self.clients_path, self.cuts_path, self.plugins_path, *models)
        for path in (*own, self.path / "environment.json", self.path / "report.html", self.config_path):
            path.unlink(missing_ok=True)  # the config last: as long as it is there, a run can begin anew

    def create(self, config: RunConfig) -> None:
        """Write the first files of a run."""
        write_json(self.config_path, config.model_dump(mode="json"))
        write_json(self.path / "environment.json", environment() | {"inputs": input_digests(config)})
        if (record := plugin_record(config)) is not None:
            write_json(self.plugins_path, record)
        write_atomic(self.rounds_path, lambda scratch: None)

    def clients(self) -> ClientsRecord | None:
        """Data and devices of the clients; None in a folder of an older version, which did not write the file."""
        if not self.clients_path.exists():
            return None
        value = read_json(self.clients_path)
        try:
            known = [each for each in fields(ClientsRecord) if _is_required(each) or each.name in value]
            return ClientsRecord(**{each.name: value[each.name] for each in known})
        except (KeyError, TypeError) as error:
            raise InputError(f"{self.clients_path} lacks {error}; delete the file, or run again") from None

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
            with lock(self.path / LOCK):
                clear_scratch(self.path)
                yield
        finally:
            with suppress(OSError):  # not empty
                for folder in made:
                    folder.rmdir()

    def write_cuts(self, cuts: Sequence[int]) -> None:
        """Keep the cuts that the run was given or chose: a search that ends by the clock may find other cuts the next time."""
        write_json(self.cuts_path, {"cuts": list(cuts)})

    def first_cuts(self) -> tuple[int, ...] | None:
        """The cuts that the run began with, [K]; None in a folder of an older version, which did not write them."""
        if not self.cuts_path.exists():
            return None
        value = read_json(self.cuts_path)
        cuts = value.get("cuts") if isinstance(value, dict) else None
        if not isinstance(cuts, list) or not all(type(cut) is int and cut >= 0 for cut in cuts):
            raise InputError(f"{self.cuts_path} does not hold cuts; it is damaged, run again into a new folder")
        return tuple(cuts)

    def config(self) -> RunConfig:
        """The run's settings. Plugins that the file may name are neither loaded nor kept."""
        config = parse_config(read_json(self.config_path), of_a_folder=True)
        return config.model_copy(update={"plugins": ()})

    def plugins(self) -> dict[str, Any]:
        """Which plugins the run used, as plain data. Anybody may have written it: it is shown and compared, and never run."""
        record = read_json(self.plugins_path) if self.plugins_path.exists() else {}
        return record if isinstance(record, dict) else {}

    def append(self, record: RoundRecord) -> None:
        """Add a round."""
        with writing(self.rounds_path), self.rounds_path.open("a") as file:
            file.write(_line(record))

    def rounds(self) -> list[RoundRecord]:
        """The rounds of all whole lines; a last line that a crash cut off is left out."""
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
        """Keep the first `count` rounds, which the checkpoint has seen, and forget the others."""
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
    """The record as a line of rounds.jsonl."""
    return json.dumps(asdict(record), allow_nan=False, separators=(",", ":")) + "\n"


def _record(line: str) -> RoundRecord | None:
    """The record of a line; None if the line is not whole. Fields of later versions are left aside."""
    known = {each.name for each in fields(RoundRecord)}
    try:
        return RoundRecord(**{name: value for name, value in json.loads(line).items() if name in known})
    except (ValueError, TypeError, AttributeError):
        return None


def check_same_run(stored: RunConfig, wanted: RunConfig, where: Path) -> None:
    """Refuse to go on with other settings than the run in the folder `where` began with; more rounds, another budget, another
    place of the data and other logging are allowed. Settings are compared as they are read, not as they are spelt."""
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


def run_path(out: str | Path, label: str, seed: int) -> Path:
    """The folder of the run of a label and seed, within the folder `out`."""
    return Path(out) / path_name(label) / f"seed-{seed}"


def path_name(label: str) -> str:
    """A label as part of a path; characters that a path cannot hold are written as in a web address (`%2F`)."""
    return label.replace("%", "%25").replace("/", "%2F")
