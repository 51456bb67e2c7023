"""One training for several clocks.

With the same clients kept in every round, HSFL, SplitFed V1, FSL and FL are one algorithm, so what was trained once holds for
all of them, and only the seconds differ; and a run that a budget ends is the beginning of one that no budget ends. Where the
kept clients differ in any round, nothing is shared and the run must be trained.
"""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from hsfl.config import RunConfig, with_changes
from hsfl.data.datasets import Dataset
from hsfl.frameworks import FRAMEWORKS
from hsfl.frameworks.base import LinkBytes, RoundResult
from hsfl.records import RoundRecord, RunFolder, read_json, write_json
from hsfl.training.evaluate import Quality
from hsfl.training.outcome import clients_record, make_record, summarise
from hsfl.training.prepare import Bench, prepare
from hsfl.training.simulate import choose_clients, make_pace, run

TWINS = ("hsfl", "splitfed_v1", "fsl", "fl")  # one algorithm a round
SAME_LOSS = 1e-4  # relative: what the order of sums in float32 may change within one round
NOTE = "trace.json"


def is_done(path: Path) -> bool:
    folder = RunFolder(path)
    return folder.summary_path.exists() and read_json(folder.summary_path)["status"] in (
        "finished",
        "budget",
        "diverged",
    )


def shared_from(path: Path) -> str | None:
    """Whose training a run's numbers come from; None where it was trained itself."""
    return read_json(path / NOTE)["trained_as"] if (path / NOTE).exists() else None


def share(source: Path, config: RunConfig, path: Path, dataset: Dataset) -> bool:
    """Write the run of `config` from the training in `source`; False where that is not the same training."""
    origin = RunFolder(source)
    if not is_done(source) or read_json(origin.summary_path)["status"] == "diverged":
        return False
    trained = origin.config()
    if trained.framework != config.framework and not {trained.framework, config.framework} <= set(TWINS):
        return False
    records = origin.rounds()
    bench = prepare(config, dataset)
    result = _with_own_clock(records, bench)
    if result is None:
        return False
    mine, status = result
    if trained.framework != config.framework:
        counted = _own_bytes(mine, config, dataset)
        if counted is None:
            return False
        mine = counted
    folder = RunFolder(path)
    folder.create(config)
    write_json(folder.clients_path, asdict(clients_record(bench, FRAMEWORKS[config.framework](bench.task).cuts)))
    for record in mine:
        folder.append(record)
    write_json(path / NOTE, {"trained_as": shared_from(source) or trained.framework, "from": source.name})
    write_json(folder.summary_path, asdict(summarise(folder, config, status)))
    return True


def _with_own_clock(records: Sequence[RoundRecord], bench: Bench) -> tuple[list[RoundRecord], str] | None:
    """The records under the bench's own clock, within its budget; None where a round keeps other clients."""
    config = bench.task.config
    framework = FRAMEWORKS[config.framework](bench.task)
    pace = make_pace(bench, framework)
    mine: list[RoundRecord] = []
    now_s = 0.0
    for index in range(config.train.rounds):
        line, says = pace.round(index, choose_clients(config, index))
        if now_s + line.round_s > (config.train.budget_s or math.inf):
            return mine, "budget"
        if index >= len(records) or line.kept.nonzero()[0].tolist() != records[index].kept:
            return None
        old = records[index]
        result = RoundResult(old.train_loss, old.num_samples, LinkBytes(**old.bytes))
        record = make_record(framework, bench.task, index, now_s, line, says, result, _quality(old), old.wall_s)
        mine.append(record)
        now_s = record.sim_time_s
    return mine, "finished"


def _quality(record: RoundRecord) -> Quality | None:
    loss, accuracy, balanced = record.test_loss, record.test_accuracy, record.balanced_accuracy
    if loss is None or accuracy is None or balanced is None or record.recall is None:
        return None
    return Quality(loss, accuracy, balanced, tuple(record.recall))


def _own_bytes(records: list[RoundRecord], config: RunConfig, dataset: Dataset) -> list[RoundRecord] | None:
    """What the framework itself sends, from its first round really trained; that round also shows the equality.

    None where its loss is not the same, or where rounds keep different clients and so send different amounts.
    """
    if not records:
        return records
    first = records[0]
    if any(record.kept != first.kept for record in records):
        return None
    with tempfile.TemporaryDirectory() as scratch:
        probe = with_changes(config, ["train.rounds=1", "train.budget_s=null", "train.eval_every=1000"])
        if run(probe, Path(scratch) / "probe", dataset=dataset).status == "interrupted":
            raise KeyboardInterrupt
        (own,) = RunFolder(Path(scratch) / "probe").rounds()
    same = own.kept == first.kept and own.num_samples == first.num_samples
    if not same or not _close(own.train_loss, first.train_loss):
        return None
    return [replace(record, bytes=own.bytes) for record in records]


def _close(left: float | None, right: float | None) -> bool:
    return left is not None and right is not None and math.isclose(left, right, rel_tol=SAME_LOSS)
