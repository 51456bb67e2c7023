"""A run that is made again from its own records, to see whether its numbers and models come out the same to the bit.

`replay_run` looks at the folder of a simulation or of a main server on real machines. It trains every recorded round again, in this
process and with the recorded cuts and kept clients, so that no clock, network or device decides anything. `RoundReplayer` does this
for one round after another; `replay_run` compares what comes out with what the folder holds. Where the data of the clients are not
at hand, no round can be trained; then the stored models are tested again, if the test samples are there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from hsfl.codec_table import NONE
from hsfl.config import RunConfig
from hsfl.data.partition import class_counts
from hsfl.engines.engine import Inline
from hsfl.errors import InputError
from hsfl.framework_table import method
from hsfl.frameworks import find_framework
from hsfl.frameworks.framework import Task, checked_round, whole_models
from hsfl.models.state import TensorsByClient, UnitState
from hsfl.runs.export import evaluate_folder
from hsfl.runs.loop import assess, assess_estimated, estimated_model, exported_model
from hsfl.runs.prepare import Bench, prepare
from hsfl.runs.run_folder.checkpoint import load_tensors
from hsfl.runs.run_folder.environment import check_inputs, environment
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.run_folder.provenance import check_plugins
from hsfl.runs.run_folder.records import CutsRecord, RoundRecord, best_round
from hsfl.training.aggregate import Diverged
from hsfl.training.evaluation import Quality

TRAINED = ("num_samples", "lr", "train_loss")  # of every round
TESTED = ("test_loss", "test_accuracy", "balanced_accuracy", "recall", "metrics")  # of rounds that were tested


@dataclass(frozen=True)
class RoundDifference:
    """The first round, and its first quantity, in which a replay differs from the records."""

    round: int
    quantity: str
    recorded: Any
    replayed: Any


@dataclass(frozen=True)
class TensorDifference:
    """The first tensor in which a replay's model differs from a stored one. round: after which the model was stored."""

    round: int
    file: str
    tensor: str
    largest: float | None  # of the differences of its numbers; None where shapes or types differ


@dataclass
class ReplayReport:
    """What a replay compared, and what came of it."""

    folder: str
    rounds: int  # that were trained again
    checked: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)  # each with the reason
    first_round: RoundDifference | None = None
    first_tensor: TensorDifference | None = None
    notes: list[str] = field(default_factory=list)  # what differs between the run's machine and this one

    @property
    def agrees(self) -> bool | None:
        """Whether the bits agree in all that was checked; None where nothing could be checked."""
        if self.first_round is not None or self.first_tensor is not None:
            return False
        return True if self.checked else None


class RoundReplayer:
    """Makes recorded rounds again, one after another. bench: of the run's config, with the cuts of its first round."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.engine, self.rounds_done = bench, Inline(), 0
        self._counted = dict[int, np.ndarray]()
        self._last_kept: Sequence[int] = ()
        self._estimated: UnitState | None = None
        self._memory = dict[
            int, tuple[int, dict[str, Tensor]]
        ]()  # what each client remembers, with the cut that it had
        self._begin(replace(bench.task, counted=self._counted))

    def _begin(self, task: Task) -> None:
        self.framework, self._codecs = find_framework(task.config.framework)(task), task.codecs
        self.engine.attach(self.framework, self.bench.exam)
        self.state = self.framework.init()

    def advance(self, record: RoundRecord) -> dict[str, Any]:
        """Make the next round with the record's cuts and kept clients. Returns what the record should hold of TRAINED and,
        where the round was tested, of TESTED."""
        codecs = tuple(record.codecs or ())
        if (list(self.framework.cuts), self._codecs) != (record.cuts, codecs):
            self._take_cuts(tuple(record.cuts), codecs)
        index = record.round - 1
        if record.weights is not None:
            self._counted[index] = np.array(record.weights)
        answer = self.framework.round(self.state, record.kept, index)
        self.state, result = checked_round(self.framework, self.state, answer)
        self._memory |= {k: (record.cuts[k], self.state.memory[k]) for k in record.kept if k in self.state.memory}
        self.rounds_done, self._last_kept, self._estimated = record.round, record.kept, None
        row: dict[str, Any] = {
            "num_samples": result.num_samples,
            "lr": self.bench.task.lr(index),
            "train_loss": result.train_loss,
        }
        if record.test_loss is None:
            return row
        return row | tested_fields(self._quality(record))

    def _take_cuts(self, cuts: tuple[int, ...], codecs: tuple[str, ...]) -> None:
        """Go on with other cuts or codecs: the whole model is divided anew, as the servers of real machines do it. A device remembers what was
        lost of its heads as long as it has the same cut."""
        if not method(self.bench.task.config.framework).copy_per_client:
            raise InputError(
                f"round {self.rounds_done + 1} has cuts {list(cuts)}, and this framework has {list(self.framework.cuts)} all the time"
            )
        (whole,) = whole_models(self.framework, self.state)
        arranged = replace(self.bench.task.arranged, one_cut=cuts[0])
        self._begin(
            replace(self.bench.task, counted=self._counted, cuts=cuts, codecs=codecs, arranged=arranged, initial=whole)
        )
        memory = {k: tensors for k, (cut, tensors) in self._memory.items() if cut == cuts[k]}
        self.state = replace(self.state, memory=TensorsByClient(memory))
        if self.framework.cuts != cuts:
            raise InputError(f"round {self.rounds_done + 1} has cuts {list(cuts)}, which this framework does not take")

    def _quality(self, record: RoundRecord) -> Quality:
        if self.bench.task.config.train.norm_statistics == "averaged":
            return assess(self.engine, self.framework, self.state)
        estimated = assess_estimated(self.engine, self.framework, self.state, record.kept, record.round - 1)
        self._estimated = estimated.whole
        return estimated.quality

    def whole(self) -> UnitState:
        """The model that a run would store now."""
        if self._estimated is not None:
            return self._estimated
        if self.bench.task.config.train.norm_statistics != "averaged" and self.rounds_done:
            try:
                return estimated_model(self.framework, self.state, self._last_kept, self.rounds_done - 1)
            except Diverged:
                pass  # the run stored the averaged statistics then
        return exported_model(self.framework, self.state)


def tested_fields(quality: Quality) -> dict[str, Any]:
    """A model's quality as the fields of a record."""
    return {
        "test_loss": quality.loss,
        "test_accuracy": quality.accuracy,
        "balanced_accuracy": quality.balanced_accuracy,
        "recall": list(quality.recall) or None,
        "metrics": dict(quality.metrics),
    }


def replay_run(path: Path, data_dir: Path | None = None) -> ReplayReport:
    """Make the run in a folder again and compare. data_dir: where the data sets lie, if not where the run had them."""
    folder = RunFolder(path)
    if not folder.config_path.is_file():
        raise InputError(f"{path} holds no run; give the folder of hsfl run, or of a main server (out in its file)")
    records, report = folder.rounds(), ReplayReport(str(path), 0)
    if not records:
        report.unchecked.append("everything: no round is complete")
        return report
    num_threads = torch.get_num_threads()
    torch.set_num_threads(folder.environment().num_threads or num_threads)
    try:
        report.notes += _notes(folder)
        try:
            replayer = begin_replay(folder, records[0], data_dir)
            _check_data(folder, replayer.bench, records)
        except InputError as error:
            report.unchecked.append(f"rounds and losses: {error}")
            _test_stored_models(folder, records, data_dir, report)
            return report
        _replay_rounds(folder, records, replayer, report)
    finally:
        torch.set_num_threads(num_threads)
    return report


def begin_replay(folder: RunFolder, first: RoundRecord, data_dir: Path | None = None) -> RoundReplayer:
    """A replayer of the folder's run. first: the run's first round. An InputError says why the run cannot be made again here."""
    config = folder.config()
    check_plugins(folder.path, config)
    if data_dir is not None:
        config = config.model_copy(update={"data": config.data.model_copy(update={"dir": str(data_dir)})})
    check_inputs(folder.environment().inputs, config, folder.path)
    if first.crowd is not None:
        raise InputError("who was kept is not recorded for so many clients; hsfl run makes the whole run again")
    if first.measured is None:
        return RoundReplayer(prepare(config, cuts=folder.cuts()))
    bench = prepare(_simulated(config, first), cuts=CutsRecord(first.cuts, codecs=first.codecs))
    task = replace(bench.task, config=bench.task.config.model_copy(update={"link": config.link}))
    return RoundReplayer(replace(bench, task=task))


def _simulated(config: RunConfig, first: RoundRecord) -> RunConfig:
    """The config of real machines with the cuts and codecs that they were given in the first round, so that none are searched for simulated devices."""
    row, cuts, link = method(config.framework), tuple(first.cuts), config.link
    one_cut = cuts[0] if not row.own_cuts and row.timing.cut == "any" else config.fleet.one_cut
    if first.codecs is not None:
        link = link.model_copy(
            update={"allowed": (NONE,), "codecs": tuple(first.codecs), "points": None, "max_points": None}
        )
    fleet = config.fleet.model_copy(update={"cuts": cuts, "one_cut": one_cut})
    return config.model_copy(update={"fleet": fleet, "link": link})


def _check_data(folder: RunFolder, bench: Bench, records: Sequence[RoundRecord]) -> None:
    """Refuse samples that are not those that the clients trained on, as far as their numbers by class tell."""
    clients = folder.clients()
    if clients is None or clients.crowd is not None:
        return
    feed = bench.task.feed
    sizes, counts = feed.sizes.tolist(), None
    if clients.class_names:
        counts = class_counts(feed.indices, feed.images.y.cpu().numpy(), len(clients.class_names)).tolist()
    for client in sorted({client for record in records for client in record.kept}):
        recorded = clients.num_samples[client]
        if recorded != sizes[client] or (counts is not None and clients.class_counts[client] != counts[client]):
            who = clients.names[client] if clients.names else f"client {client}"
            raise InputError(
                f"{who} trained on {recorded} samples, and those that are here for it are {sizes[client]}, or of other classes; "
                "devices with data of their own can be replayed only where all their data are"
            )


def _notes(folder: RunFolder) -> list[str]:
    """What differs between the machine and versions of the run and those of the replay; bits may depend on each."""
    of_run, of_replay = folder.environment(), environment()
    pairs = {f"{name} {version}": of_replay["packages"].get(name) for name, version in of_run.packages.items()}
    notes = [
        f"the run had {run}, here it is {current}"
        for run, current in pairs.items()
        if run.rpartition(" ")[2] != current
    ]
    for what, run, current in (
        ("Python", of_run.python, of_replay["python"]),
        ("processor", of_run.processor, of_replay["processor"]),
        ("sources", of_run.sources_sha256, of_replay["sources_sha256"]),
    ):
        if run is not None and run != current:
            notes.append(f"the run had other {what}: {run[:60]}, here {str(current)[:60]}")
    clients = folder.clients()
    if clients is not None and clients.versions is not None:
        notes += [note for note in clients.notes if note not in notes]
    return notes


def _replay_rounds(
    folder: RunFolder, records: Sequence[RoundRecord], replayer: RoundReplayer, report: ReplayReport
) -> None:
    """Make all rounds again; compare each with its record, and the models that were stored after it. The first difference in
    the records is kept, and the first in a model; after both there is nothing more to learn."""
    tested_by_clients = _tested_by_clients(folder)
    compared, models = set[str](), _stored_models(folder, records)
    for record in records:
        try:
            row = replayer.advance(record)
        except Diverged as error:
            report.first_round = report.first_round or RoundDifference(
                record.round, "train_loss", record.train_loss, str(error)
            )
            break
        except InputError as error:
            report.unchecked.append(f"rounds from {record.round} on: {error}")
            break
        report.rounds = record.round
        fields = {name: value for name, value in row.items() if not (tested_by_clients and name in TESTED)}
        compared |= fields.keys()
        report.first_round = report.first_round or _difference(record, fields)
        for path in models.pop(record.round, []):
            _compare_model(path, record.round, replayer.whole(), report)
        if report.first_round is not None and report.first_tensor is not None:
            break
    if compared:
        shown = [name for name in (*TRAINED, *TESTED) if name in compared]
        report.checked.insert(0, f"{', '.join(shown)} of rounds 1 to {report.rounds}")
    if tested_by_clients:
        report.unchecked.append("test_loss and accuracies: the clients' own test samples judged the model")
    if not folder.last_model_path.exists():
        report.unchecked.append(f"the final model: {folder.last_model_path.name} is written when the run ends")
    elif report.first_tensor is None:
        report.unchecked += [f"{path.name}: the rounds end before it" for left in models.values() for path in left]


def _tested_by_clients(folder: RunFolder) -> bool:
    clients = folder.clients()
    return clients is not None and clients.evaluated_by == "clients"


def _stored_models(folder: RunFolder, records: Sequence[RoundRecord]) -> dict[int, list[Path]]:
    """The folder's models by the round after which they were stored."""
    models = dict[int, list[Path]]()
    for path in sorted((folder.path / "models").glob("round-*.safetensors")):
        number = path.stem.removeprefix("round-")
        if number.isdigit():
            models.setdefault(int(number), []).append(path)
    best = best_round(records, folder.metrics()[0])
    if best is not None and folder.best_model_path.exists():
        models.setdefault(best.round, []).append(folder.best_model_path)
    if folder.last_model_path.exists():
        models.setdefault(folder.ended().rounds or len(records), []).append(folder.last_model_path)
    return models


def _difference(record: RoundRecord, replayed: dict[str, Any]) -> RoundDifference | None:
    for name, value in replayed.items():
        recorded, number = getattr(record, name), _or_none(value)
        if recorded != number:
            return RoundDifference(record.round, name, recorded, number)
    return None


def _or_none(value: Any) -> Any:
    """The value as a record can hold it: JSON knows no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _compare_model(path: Path, round: int, whole: UnitState, report: ReplayReport) -> None:
    """Compare a stored model with the replay's, tensor by tensor in the model's order."""
    try:
        stored = load_tensors(path)[0]
    except (SafetensorError, OSError) as error:
        report.unchecked.append(f"{path.name}: it cannot be read ({str(error).splitlines()[0]})")
        return
    report.checked.append(f"{path.name} after round {round}")
    if report.first_tensor is not None:
        return
    replayed = whole.named()
    for name in [*replayed, *(stored.keys() - replayed.keys())]:
        if not same_bits(stored.get(name), replayed.get(name)):
            largest = _largest_difference(stored.get(name), replayed.get(name))
            report.first_tensor = TensorDifference(round, path.name, name, largest)
            return


def same_bits(stored: Tensor | None, replayed: Tensor | None) -> bool:
    """Whether two tensors have the same type, shape and bits; a tensor that is missing equals none."""
    if stored is None or replayed is None or stored.dtype != replayed.dtype or stored.shape != replayed.shape:
        return False
    return stored.numpy().tobytes() == replayed.detach().cpu().numpy().tobytes()  # 0 and -0 are not the same bits


def _largest_difference(stored: Tensor | None, replayed: Tensor | None) -> float | None:
    if stored is None or replayed is None or stored.shape != replayed.shape:
        return None
    return _or_none(float((stored.double() - replayed.detach().cpu().double()).abs().max()))


def _test_stored_models(
    folder: RunFolder, records: Sequence[RoundRecord], data_dir: Path | None, report: ReplayReport
) -> None:
    """Without the clients' data: test the stored models again, where the rounds that they are of were tested."""
    ended, best = folder.ended().rounds or len(records), best_round(records, folder.metrics()[0])
    candidates = [("last", folder.last_model_path, ended)]
    candidates += [("best", folder.best_model_path, best.round)] if best is not None else []
    for which, path, number in candidates:
        name = f"{path.name} on the test samples"
        if number > len(records) or records[number - 1].test_loss is None or _tested_by_clients(folder):
            report.unchecked.append(f"{name}: nobody has the samples that tested it")
            continue
        try:
            quality, _ = evaluate_folder(folder.path, which, data_dir)
        except InputError as error:
            report.unchecked.append(f"{name}: {error}")
            continue
        report.checked.append(f"{name}, as round {number} has it")
        report.first_round = report.first_round or _difference(records[number - 1], tested_fields(quality))
