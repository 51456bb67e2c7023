"""The numbers of one run of a sweep, from its rounds or, where nothing was trained, from its timing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hsfl.errors import InputError
from hsfl.files import read_object
from hsfl.report.curves import time_to_target_s
from hsfl.report.runs import ACCURACIES, Run
from hsfl.runs.records import RoundRecord


@dataclass(frozen=True)
class SweepRow:
    """One run of a sweep."""

    point: int
    label: str
    seed: int
    status: str
    numbers: dict[str, float | None]  # by metric


def trained_row(run: Run, point: int, target: float | None) -> SweepRow:
    """The row of a run that was trained. point: the number of its point. target: of the task's first metric, or None."""
    return SweepRow(point, run.label, run.seed, run.status, _numbers(run, target))


def timed_row(path: Path, point: int, label: str, seed: int) -> SweepRow:
    """The row of a run that was timed without training. path: its timing.json."""
    timing = read_object(path)
    try:
        rounds_s = [float(seconds) for seconds in timing["round_s"]]
        numbers: dict[str, float | None] = {
            "round_s": _mean(rounds_s),
            "sim_time_s": sum(rounds_s),
            "rounds": len(rounds_s),
            "drops": sum(map(int, timing["dropped"])),
            "left_out": sum(map(int, timing["left_out"])),
            "mean_cut": _mean([float(cut) for cut in timing["cuts"]]),
            "gap": _mean([float(gap) for gap in timing["gap"] if gap is not None]),
        }
        return SweepRow(point, label, seed, str(timing["status"]), numbers)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error}); delete it, and run the sweep again") from None


def _numbers(run: Run, target: float | None) -> dict[str, float | None]:
    """The numbers of a run by metric; None where a number is not known."""
    gaps = [gap for record in run.records if (gap := record.allocation.get("gap")) is not None]
    cuts = [cut for record in run.records[-1:] for cut in _cuts(record)]
    sent = {f"{link}_megabytes": count / 1e6 for link, count in run.bytes.items()}
    own = [metric.name for metric in run.metrics if metric not in ACCURACIES]
    return {
        "final_accuracy": run.last("test_accuracy"),
        "best_accuracy": run.best("test_accuracy"),
        "final_balanced_accuracy": run.last("balanced_accuracy"),
        "best_balanced_accuracy": run.best("balanced_accuracy"),
        **{f"final_{name}": run.last(name) for name in own},
        **{f"best_{name}": run.best(name) for name in own},
        "train_loss": run.last("train_loss"),
        "test_loss": run.last("test_loss"),
        "round_s": _mean([record.round_s for record in run.records]),
        "sim_time_s": run.sim_time_s,
        "time_to_target_s": None if target is None else time_to_target_s(run.records, target, run.metric),
        "rounds": len(run.records),
        "drops": run.drops,
        "left_out": run.left_out,
        "mean_cut": _mean(cuts),
        "gap": _mean(gaps),
        "megabytes": sum(sent.values()),
        **sent,
        "wall_s": sum(record.wall_s for record in run.records),
    }


def _cuts(record: RoundRecord) -> list[int]:
    """The cuts of all clients; of a large fleet those of the clients that took part."""
    if record.crowd is None:
        return list(record.cuts)
    return [int(cut) for cut, count in record.crowd["cuts"].items() for _ in range(count)]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
