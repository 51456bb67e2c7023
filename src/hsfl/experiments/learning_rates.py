"""Learning rates of Table 1's trainings: a small grid on training images that are held out from training.

Every training of the table (the twins, SL, CL) is begun with each rate of the grid, seed 0, which the table does not report, and is
tested on held-out *training* images; no test image is looked at. The rate with the best accuracy is chosen. A gate then trains
CIFAR-10's twins on: a rate that does not pass it must be changed before hours are spent.
"""

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np

from hsfl.config import RunConfig, with_changes
from hsfl.data.registry import Dataset
from hsfl.experiments.common import Outcome, Trend, claim, write_text
from hsfl.experiments.study_request import StudyRequest
from hsfl.experiments.table1.columns import TWIN_TRACE, trace_config, traces_of
from hsfl.files import write_csv
from hsfl.report.tables import SummaryTable, ValueCell, markdown_rows
from hsfl.rng import stream
from hsfl.runs.client_data import read_data
from hsfl.runs.progress import Observer
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.studies.compare_runs import has_ended, run_or_resume
from hsfl.runs.studies.run_many import Piece, run_all

RATES = (0.0001, 0.0003, 0.001)
GRID_SEED = 0  # not reported in the table
HELD_OUT = 5000  # training images, or a fifth of them where there are few
GRID_ROUNDS = {"cifar10": 10, "mnist": 5, "ham10000": 5}  # some 90,000, 55,000 and 32,000 samples at full scale
FEW_ROUNDS = 2  # of other data sets and of the smoke scale
GATE = ("cifar10", TWIN_TRACE)
GATE_SAMPLES, GATE_ACCURACY = 600_000, 0.59


@dataclass(frozen=True)
class RateResult:
    """How good a training is after the grid's rounds, on held-out training images."""

    data: str
    trace: str
    lr: float
    rounds: int
    num_samples: int  # trained, each as often as it was trained
    loss: float | None
    accuracy: float | None
    balanced_accuracy: float | None


def with_held_out(dataset: Dataset, count: int = HELD_OUT) -> Dataset:
    """The data set whose test side is a part of its training side, which is not trained on."""
    count = min(count, len(dataset.train_y) // 5)
    order = stream(GRID_SEED, "held out").permutation(len(dataset.train_y))
    test, train = np.sort(order[:count]), np.sort(order[count:])
    return replace(
        dataset,
        train_x=dataset.train_x[train],
        train_y=dataset.train_y[train],
        test_x=dataset.train_x[test],
        test_y=dataset.train_y[test],
    )


def grid_config(data: str, scale: str, trace: str, lr: float, data_dir: Path | None = None) -> RunConfig:
    """A training of the grid; the last round is tested."""
    rounds = GRID_ROUNDS.get(data, FEW_ROUNDS) if scale != "smoke" else FEW_ROUNDS
    changes = [f"train.lr={lr}", f"train.rounds={rounds}", f"train.eval_every={rounds}", "log.model_every=null"]
    changes.append("train.norm_statistics=averaged")  # rates differ by far more than the two kinds of statistics do
    return with_changes(trace_config(data, scale, GRID_SEED, trace, data_dir), changes)


def reproduce_rates(request: StudyRequest) -> Outcome:
    """Train the grid, choose, and pass the gate; what was trained before is not trained again."""
    out, scale = request.out, request.scale
    claim(out, {"scale": scale, "rates": list(RATES), "held_out": HELD_OUT})
    results: list[RateResult] = []
    trends: list[Trend] = []
    for data in request.datasets:
        dataset = with_held_out(read_data(trace_config(data, scale, GRID_SEED, TWIN_TRACE, request.data_dir)))
        for trace in traces_of(request.columns):
            pieces = [
                Piece(f"{data}, {trace}, rate {lr:g}", trace, grid_config(data, scale, trace, lr, request.data_dir),
                      out / "runs" / data / trace / f"lr-{lr:g}")
                for lr in RATES
            ]  # fmt: skip
            _train(request, pieces, dataset)
            results += [_result(data, trace, piece) for piece in pieces]
            _write(out, results)
            if (data, trace) == GATE and scale != "smoke":
                trends.append(_gate(request, best_rate(results, *GATE), dataset))
    text = write_text(out / "rates.md", rates_markdown(results, trends, scale))
    return Outcome("rates", text, [_write(out, results)], trends, [rates_table(results)])


def _train(request: StudyRequest, pieces: Sequence[Piece], dataset: Dataset) -> None:
    if request.jobs > 1:
        run_all(pieces, partial(_run_piece, dataset=dataset), has_ended, request.jobs, request.show)
        return
    for piece in pieces:
        if not has_ended(piece):
            request.say(f"{piece.name}: training {piece.config.train.rounds} rounds")
            _run_piece(piece, request.make_observer(piece.name), dataset)


def _run_piece(piece: Piece, observer: Observer, dataset: Dataset) -> None:
    run_or_resume(piece.config, piece.path, observer, dataset)


def _result(data: str, trace: str, piece: Piece) -> RateResult:
    rounds = RunFolder(piece.path).rounds()
    last, num_samples = rounds[-1], sum(record.num_samples for record in rounds)
    return RateResult(
        data, trace, piece.config.train.lr, len(rounds), num_samples, last.test_loss, last.test_accuracy,
        last.balanced_accuracy,
    )  # fmt: skip


def best_rate(results: Sequence[RateResult], data: str, trace: str) -> float:
    """The rate with the best accuracy, and among equals the smallest loss."""
    tried = [result for result in results if (result.data, result.trace) == (data, trace)]
    return max(tried, key=lambda result: (result.accuracy or 0.0, -(result.loss or 0.0))).lr


def _gate(request: StudyRequest, lr: float, dataset: Dataset) -> Trend:
    """Train the gate's training with the chosen rate for so many samples, tested every fifth round."""
    data, trace = GATE
    grid = grid_config(data, request.scale, trace, lr, request.data_dir)
    samples_a_round = grid.train.local_epochs * len(dataset.train_y)
    rounds = round(GATE_SAMPLES / samples_a_round)
    config = with_changes(grid, [f"train.rounds={rounds}", "train.eval_every=5"])
    folder = request.out / "runs" / data / trace / f"gate-lr-{lr:g}"
    request.say(f"gate: {data}, {trace}, rate {lr:g}, {rounds} rounds")
    run_or_resume(config, folder, request.make_observer("gate"), dataset)
    accuracy = RunFolder(folder).rounds()[-1].test_accuracy or 0.0
    write_text(request.out / "gate.json", json.dumps({"lr": lr, "rounds": rounds, "accuracy": accuracy}) + "\n")
    return Trend(
        f"(gate) {data}, {trace}: {GATE_ACCURACY:.0%} or more after {GATE_SAMPLES:,} samples",
        f"{accuracy:.1%} with rate {lr:g} on {len(dataset.test_y):,} held-out training images",
        accuracy >= GATE_ACCURACY,
    )


def _write(out: Path, results: Sequence[RateResult]) -> Path:
    names = [field.name for field in fields(RateResult)]
    rows = (["" if value is None else value for value in astuple(result)] for result in results)
    return write_csv(out / "rates.csv", names, rows)


def rates_table(results: Sequence[RateResult]) -> SummaryTable:
    """Accuracy by rate, and the chosen rate."""
    rows = []
    for data, trace in dict.fromkeys((result.data, result.trace) for result in results):
        tried = {result.lr: result for result in results if (result.data, result.trace) == (data, trace)}
        best = best_rate(results, data, trace)
        cells = [_cell(tried[lr]) if lr in tried else "-" for lr in RATES]
        rows.append([f"{data}, {trace}, {next(iter(tried.values())).num_samples:,} samples", *cells, f"{best:g}"])
    header = ["", *(f"{lr:g}" for lr in RATES), "chosen"]
    return SummaryTable(
        "rates", "Accuracy in % by learning rate, on held-out training images", header, rows, "n = 1 each."
    )


def rates_markdown(results: Sequence[RateResult], trends: Sequence[Trend], scale: str) -> str:
    """Accuracy by rate, the chosen rate, and the gate."""
    gate = "".join(
        f"\n{trend.paper}: {trend.ours}; {'passed' if trend.holds else '**not passed**'}.\n" for trend in trends
    )
    about = (
        f"Scale {scale}, seed {GRID_SEED} (not reported in Table 1), Adam. Accuracy in % on training images that were held out "
        f"({HELD_OUT:,}, or a fifth where there are few), and the chosen rate. n = 1 each.\n\n"
    )
    return "### Learning rates\n\n" + about + markdown_rows(rates_table(results)) + gate


def _cell(result: RateResult) -> str:
    return "-" if result.accuracy is None else ValueCell(f"{100 * result.accuracy:.1f}", 100 * result.accuracy)
