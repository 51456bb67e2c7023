"""What codecs cost in accuracy: HSFL trained with each codec for all clients, and with the planner's mix, paired over seeds.

Every training of a seed has the same data, weights, batches and devices; cuts (and codecs, for the mix) are planned for its own messages. A run's
accuracy is the mean over its last five rounds. Runs are in `runs/`, where an interrupted one goes on; a line for each tested round is in a CSV.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hsfl.config import RunConfig, with_changes
from hsfl.errors import InputError
from hsfl.experiments.codec_rounds import CODINGS
from hsfl.experiments.common import AGAIN, UNREADABLE, Outcome, Trend, claim, finite, machine, say_mean, write_text
from hsfl.experiments.study_request import StudyRequest
from hsfl.experiments.table1.columns import FIRST_SEED, base_config
from hsfl.experiments.table1.table1_report import name_of
from hsfl.files import write_csv
from hsfl.report.curves import Estimate, estimate
from hsfl.report.figure_style import FAINT, STYLE, add_side_legend, matplotlib, save_figure
from hsfl.report.tables import SummaryTable, markdown_rows, spread_note
from hsfl.runs.run_folder.folder import RunFolder, path_name
from hsfl.runs.studies.compare_runs import run_piece
from hsfl.runs.studies.run_many import Piece, run_all

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAIN_DATA = "cifar10"  # has all seeds; other data sets have one
OTHER_DATA = "ham10000"
NUM_SEEDS = {"smoke": 2, "quick": 5, "full": 5}
ROUNDS = {"smoke": 6, "quick": 20, "full": 20}
LAST = 5  # rounds over which a run's accuracy is the mean
SMALL_PLAN = ("allocation.samples=1", "fleet.num_clients=3", "allocation.patience=1")
AIM = 0.3  # points that int8 may cost
SPELT_OUT = ("framework=hsfl", "fleet.cuts=planned", "allocation.policy=proposed", "train.eval_every=1")
STYLES = {"none": "#555555", "float16": "#0072B2", "int8": "#009E73", "topk": "#D55E00", "mix": "#CC79A7"}


@dataclass(frozen=True)
class CodecTest:
    """One tested round of one training. Accuracies are fractions; coded: with the codec between head and tail."""

    data: str
    coding: str
    seed: int
    round: int
    sim_time_s: float
    accuracy: float
    coded: float


def codec_config(data: str, scale: str, coding: str, seed: int, data_dir: Path | None = None) -> RunConfig:
    """A training of the study. The fleet is that of the first seed, so that seeds differ by data and weights alone."""
    base = base_config(data, "smoke" if scale == "smoke" else "quick", seed, data_dir)
    words = (*SPELT_OUT, f"link.allowed={CODINGS[coding]}", f"fleet.seed={FIRST_SEED}", f"train.rounds={ROUNDS[scale]}")
    return with_changes(base, [*words, *SMALL_PLAN] if scale == "smoke" else words)


def reproduce_codec_points(request: StudyRequest) -> Outcome:
    """Train what is missing, and draw."""
    out, scale = request.out, request.scale
    data_sets = [data for data in (MAIN_DATA, OTHER_DATA) if data in request.datasets] or list(request.datasets[:1])
    claim(
        out,
        {
            "scale": scale,
            "codecs": CODINGS,
            "configs": {d: codec_config(d, scale, "none", 1).model_dump(mode="json") for d in data_sets},
        },
    )
    pieces = {key: _piece(out, scale, request.data_dir, *key) for key in _keys(data_sets, scale, request.num_seeds)}
    request.say(f"{len(pieces)} trainings of {ROUNDS[scale]} rounds")
    run_all(list(pieces.values()), run_piece, _has_ended, request.jobs, request.show)
    tests = [test for key, piece in pieces.items() for test in _tests_of(key, piece.path)]
    return _draw_codec_points(out, scale, tests)


def _keys(data_sets: Sequence[str], scale: str, num_seeds: int | None) -> Iterator[tuple[str, str, int]]:
    """Data set, coding and seed of each training: seed after seed, so that whole pairs are there early."""
    for data in data_sets:
        seeds = (num_seeds or NUM_SEEDS[scale]) if data == data_sets[0] else 1
        yield from ((data, coding, seed) for seed in range(FIRST_SEED, FIRST_SEED + seeds) for coding in CODINGS)


def _piece(out: Path, scale: str, data_dir: Path | None, data: str, coding: str, seed: int) -> Piece:
    name = f"{data}, {coding}, seed {seed}"
    return Piece(name, coding, codec_config(data, scale, coding, seed, data_dir), out / "runs" / path_name(name))


def _has_ended(piece: Piece) -> bool:
    return RunFolder(piece.path).ended().status in ("finished", "budget", "diverged")


def _tests_of(key: tuple[str, str, int], path: Path) -> Iterator[CodecTest]:
    for record in RunFolder(path).rounds():
        if record.test_accuracy is not None:
            coded = record.coded["test_accuracy"] if record.coded is not None else None
            accuracy = record.test_accuracy
            yield CodecTest(*key, record.round, record.sim_time_s, accuracy, accuracy if coded is None else coded)


def read_codec_tests(path: Path) -> list[CodecTest]:
    """The lines of the study's CSV."""
    kinds: dict[str, Any] = {"data": str, "coding": str, "seed": int, "round": int}
    try:
        rows = list(csv.DictReader(path.read_text().splitlines()))
        return [CodecTest(**{name: kinds.get(name, finite)(text) for name, text in row.items()}) for row in rows]
    except UNREADABLE as error:
        raise InputError(f"{path} cannot be read ({error}); {AGAIN}") from None


# --- what is shown


def accuracies(
    tests: Sequence[CodecTest], data: str, coding: str, kind: str = "accuracy", until_s: float | None = None
) -> dict[int, float]:
    """The accuracy of each seed's training, in per cent: the mean over its last rounds, or over the last before `until_s`."""
    by_seed: dict[int, list[CodecTest]] = {}
    for test in tests:
        if (test.data, test.coding) == (data, coding) and (until_s is None or test.sim_time_s <= until_s):
            by_seed.setdefault(test.seed, []).append(test)
    return {
        seed: 100
        * float(np.mean([getattr(test, kind) for test in sorted(of_seed, key=lambda test: test.round)[-LAST:]]))
        for seed, of_seed in by_seed.items()
    }


def points_against_none(
    tests: Sequence[CodecTest], data: str, coding: str, kind: str = "accuracy", until_s: float | None = None
) -> Estimate:
    """Points of accuracy over the uncoded training of the same seed; kind: of the coding's accuracy."""
    plain = accuracies(tests, data, "none", until_s=until_s)
    other = accuracies(tests, data, coding, kind, until_s)
    return estimate(other[seed] - plain[seed] for seed in plain if seed in other)


def shortest_run_s(tests: Sequence[CodecTest], data: str) -> float:
    """The simulated seconds of the training that ended first: a time that all trainings have reached."""
    ends: dict[tuple[str, int], float] = {}
    for test in tests:
        if test.data == data:
            ends[test.coding, test.seed] = max(ends.get((test.coding, test.seed), 0.0), test.sim_time_s)
    return min(ends.values())


def _draw_codec_points(out: Path, scale: str, tests: Sequence[CodecTest]) -> Outcome:
    """CSV, figure and table."""
    header = [field.name for field in fields(CodecTest)]
    files = [
        write_csv(out / f"codec-points-{scale}.csv", header, map(astuple, tests)),
        *save_figure(_curves_figure(tests), out / "codec-points"),
    ]
    table = _points_table(tests)
    configs = [codec_config(data, scale, "none", FIRST_SEED) for data in dict.fromkeys(test.data for test in tests)]
    settings = "; ".join(
        f"{name_of(c.data.name)}: {c.data.limit or 'all'} training images, batches of {c.train.batch_size}, {c.train.optimizer} {c.train.lr:g}"
        for c in configs
    )
    text = (
        "### What codecs cost in accuracy\n\n![accuracy by round and by simulated time, by codec](codec-points.png)\n\n"
        f"Scale {scale}: HSFL, {configs[0].model.name}, {configs[0].fleet.num_clients} clients, {ROUNDS[scale]} rounds. {settings}. Means over the last {LAST} "
        "rounds; points are paired differences to the uncoded training of the same seed (mean ± half of the 95 % interval over seeds). With the codec: "
        "the model is tested as it is used when it stays split. At equal seconds: where the shortest training ends. "
        f"{machine()}\n\n{markdown_rows(table)}"
    )
    return Outcome("codec-points", write_text(out / "codec-points.md", text), files, _points_trends(tests), [table])


def _points_table(tests: Sequence[CodecTest]) -> SummaryTable:
    rows = []
    for data in dict.fromkeys(test.data for test in tests):
        until_s = shortest_run_s(tests, data)
        for coding in CODINGS:
            means = (
                say_mean(estimate(accuracies(tests, data, coding, kind).values())) for kind in ("accuracy", "coded")
            )
            points = (
                points_against_none(tests, data, coding),
                points_against_none(tests, data, coding, "coded"),
                points_against_none(tests, data, coding, until_s=until_s),
            )
            rows.append([name_of(data), coding, *means, *(say_mean(value, digits=2) for value in points)])
    header = [
        "data",
        "codec",
        "accuracy in %",
        "with the codec",
        "points",
        "points with the codec",
        "points at equal seconds",
    ]
    seeds = [len({t.seed for t in tests if t.data == data}) for data in dict.fromkeys(t.data for t in tests)]
    return SummaryTable("codec-points", "Accuracy by codec", header, rows, spread_note(seeds))


def within_aim(points: Estimate) -> bool | None:
    """Whether a codec costs at most AIM points, by the interval; None where it does not say so, or there is none."""
    if points.low is None or points.high is None:
        return None
    if points.low >= -AIM:
        return True
    return False if points.high < -AIM else None


def _points_trends(tests: Sequence[CodecTest]) -> list[Trend]:
    trends = []
    for data in dict.fromkeys(test.data for test in tests):
        points = points_against_none(tests, data, "int8")
        answer = {True: "shown", False: "not so", None: "not shown"}[within_aim(points)]
        finding = f"{say_mean(points, digits=2)} points, n = {points.num}: {answer}"
        trends.append(
            Trend(f"(not in the paper) {name_of(data)}: int8 both ways costs at most {AIM} points", finding, None)
        )
    return trends


def _curves_figure(tests: Sequence[CodecTest]) -> "Figure":
    """Accuracy by round and by simulated time, the mean over seeds; a row for each data set."""
    mpl, data_sets = matplotlib(), list(dict.fromkeys(test.data for test in tests))
    with mpl.rc_context(STYLE):
        figure = mpl.figure.Figure(figsize=(9.5, 3.2 * len(data_sets)), layout="constrained")
        panels = figure.subplots(len(data_sets), 2, squeeze=False)
        for data, (by_round, by_time) in zip(data_sets, panels):
            for coding, colour in STYLES.items():
                of_coding = [test for test in tests if (test.data, test.coding) == (data, coding)]
                rounds = sorted({test.round for test in of_coding})
                at = [[test for test in of_coding if test.round == number] for number in rounds]
                means = [100 * float(np.mean([test.accuracy for test in of_round])) for of_round in at]
                seconds = [float(np.mean([test.sim_time_s for test in of_round])) for of_round in at]
                by_round.plot(rounds, means, color=colour, linewidth=1.6, label=coding)
                by_time.plot(seconds, means, color=colour, linewidth=1.6)
            by_round.set_ylabel(f"{name_of(data)}\naccuracy in %")
            by_round.set_xlabel("round")
            by_time.set_xlabel("simulated seconds")
        add_side_legend(figure, *panels[0][0].get_legend_handles_labels())
        counts = ", ".join(f"{name_of(d)} {len({t.seed for t in tests if t.data == d})}" for d in data_sets)
        figure.supxlabel(f"mean over seeds ({counts}); the model is tested without a codec", fontsize=8, color=FAINT)
    return figure
