"""What averaging costs BatchNorm: saved models, tested with three kinds of statistics.

- averaged: as trained, the clients' running statistics are averaged with their weights.
- estimated: each client sends a few batches forward through the new model (`train.norm_statistics = "estimated"`).
- pooled: all clients' training samples go forward, mixed in large batches. No system has them in one place, so this is a ceiling.

The twins (HSFL, SplitFed V1, FL) average every unit, SplitFed V2 its heads alone. Only saved models are tested, so the study can be made
again without training. Folder: `runs/` (run folders with models), `tests/` (a CSV for each training), and the CSV of all.

Legend: S seeds, R rounds.
"""

import csv
import hashlib
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError

from hsfl.config import RunConfig, with_changes
from hsfl.engines.engine import Inline
from hsfl.errors import InputError
from hsfl.experiments.common import (
    AGAIN,
    UNREADABLE,
    Outcome,
    Trend,
    claim,
    finite,
    machine,
    say_mean,
    write_text,
)
from hsfl.experiments.study_request import StudyRequest
from hsfl.experiments.table1.columns import TWIN_TRACE, base_config, seeds_of
from hsfl.experiments.table1.learned_settings import learned_settings
from hsfl.files import write_csv
from hsfl.framework_table import METHODS, PROPOSED
from hsfl.frameworks import find_framework
from hsfl.frameworks.framework import Task
from hsfl.models.state import UnitState
from hsfl.report.curves import estimate, half_width
from hsfl.report.figure_style import FAINT, STYLE, add_side_legend, matplotlib, save_figure
from hsfl.report.tables import SummaryTable, markdown_rows, spread_note
from hsfl.runs.prepare import prepare
from hsfl.runs.progress import Observer
from hsfl.runs.run_folder.checkpoint import load_tensors
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.studies.compare_runs import run_or_resume
from hsfl.runs.studies.run_many import Piece, run_all
from hsfl.training.norm_statistics import Estimator, Moments, NormBatches, NormLayers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = np.ndarray
DATA = "cifar10"
FRAMEWORKS = {TWIN_TRACE: PROPOSED, "splitfed_v2": "splitfed_v2"}  # by the training's name
TITLES = {TWIN_TRACE: "twins (HSFL = SplitFed V1 = FL)", "splitfed_v2": METHODS["splitfed_v2"].title}
SPREADS = {
    "0.1": ("data.partition=dirichlet", "data.alpha=0.1"),
    "0.5": ("data.partition=dirichlet", "data.alpha=0.5"),
    "iid": ("data.partition=iid",),
}
SCALED = {  # full: 10,000 images of CIFAR-10, a model of 45 MB kept every other round
    "smoke": ("model.norm=batch", "train.rounds=3", "log.model_every=1"),
    "quick": ("data.limit=5000", "train.rounds=10", "log.model_every=2"),
    "full": ("train.rounds=20", "log.model_every=2"),
}
POOLED_BATCH = 500


@dataclass(frozen=True)
class NormTest:
    """Test accuracy and loss of one saved model with each kind of statistics."""

    data: str
    training: str
    spread: str  # of the classes: alpha of a Dirichlet division, or iid
    seed: int
    settings: str  # a hash of what the numbers depend on
    round: int
    averaged: float
    estimated: float
    pooled: float
    averaged_loss: float
    estimated_loss: float
    pooled_loss: float


@dataclass(frozen=True)
class NormTraining:
    """One training of the study, and where it keeps what it gives."""

    data: str
    name: str
    spread: str
    seed: int
    config: RunConfig
    out: Path

    @property
    def title(self) -> str:
        return f"{self.data}, {self.name}, {_say_spread(self.spread)}, seed {self.seed}"

    @property
    def run_path(self) -> Path:
        return self.out / "runs" / self.data / self.name / self.spread / f"seed-{self.seed}"

    @property
    def tests_path(self) -> Path:
        return self.out / "tests" / f"{self.data}-{self.name}-{self.spread}-seed-{self.seed}.csv"

    @property
    def rounds(self) -> list[int]:
        """The rounds whose models are kept and tested."""
        interval = self.config.log.model_every
        assert interval is not None
        return list(range(interval, self.config.train.rounds + 1, interval))

    @property
    def settings(self) -> str:
        """A hash of the settings that the tests depend on, so that those of another model or scale are not taken for them."""
        cuts_matter = not METHODS[self.config.framework].copy_per_client
        settings = [learned_settings(self.config, cuts_matter), POOLED_BATCH]
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]

    def known(self, tests: Sequence[NormTest]) -> dict[int, NormTest]:
        """Those of the tests that are of this training, by round."""
        key = (self.data, self.name, self.spread, self.seed, self.settings)
        return {
            test.round: test
            for test in tests
            if (test.data, test.training, test.spread, test.seed, test.settings) == key and test.round in self.rounds
        }


def reproduce_norms(request: StudyRequest) -> Outcome:
    """Train what is missing, test the models that were kept, and draw. Tests in a folder of results count where their settings agree."""
    out, scale, shipped, data = request.out, request.scale, request.shipped, request.datasets[0]
    configs = {f"{name} {spread}": training_config(data, scale, name, spread, 0) for name in FRAMEWORKS for spread in SPREADS}  # fmt: skip
    claim(out, {"scale": scale, "configs": {name: config.model_dump(mode="json") for name, config in configs.items()}})
    trainings = [
        NormTraining(data, name, spread, seed, training_config(data, scale, name, spread, seed, request.data_dir), out)
        for seed in seeds_of(scale, request.num_seeds)
        for spread in SPREADS
        for name in FRAMEWORKS
    ]
    file = f"norms-{scale}.csv"
    before = read_tests(shipped / file) if shipped is not None else []
    if before and not any(training.known(before) for training in trainings):
        request.say(f"{file} in {shipped} has other settings, so it does not count")
    pieces = [
        Piece(training.title, f"{training.name} {training.spread}", training.config, training.run_path)
        for training in trainings
    ]
    by_path = {training.run_path: training for training in trainings}
    work = partial(_train_and_test, trainings=by_path)
    run_all(pieces, work, lambda piece: _is_complete(by_path[piece.path], before), request.jobs, request.show)
    return _draw_norms(
        out, scale, trainings, [test for training in trainings for test in _tests_of(training, before)], file
    )


def training_config(
    data: str, scale: str, name: str, spread: str, seed: int, data_dir: Path | None = None
) -> RunConfig:
    """A training whose models are kept as trained. It is tested once itself, at its end; the study tests the models."""
    base = base_config(data, "smoke" if scale == "smoke" else "quick", seed, data_dir)
    config = with_changes(base, [f"framework={FRAMEWORKS[name]}", *SPREADS[spread], *SCALED[scale]])
    return with_changes(config, [f"train.eval_every={config.train.rounds}", "train.norm_statistics=averaged"])


# ---- tests of saved models


def _tests_of(training: NormTraining, before: Sequence[NormTest]) -> list[NormTest]:
    """The tests of a training by round: those of the folder, else those that were there before."""
    by_round = training.known([*before, *read_tests(training.tests_path)])
    return [by_round[index] for index in training.rounds if index in by_round]


def _is_complete(training: NormTraining, before: Sequence[NormTest]) -> bool:
    """Whether nothing is left to be trained or tested."""
    return len(_tests_of(training, before)) == len(training.rounds)


def _train_and_test(piece: Piece, observer: Observer, trainings: dict[Path, NormTraining]) -> None:
    run_or_resume(piece.config, piece.path, observer)
    _assess_models(trainings[piece.path])


def _assess_models(training: NormTraining) -> None:
    """Test the models that a run folder keeps and write a line for each; those with a line are not tested again."""
    by_round = training.known(read_tests(training.tests_path))
    bench = prepare(training.config, cuts=RunFolder(training.run_path).cuts())
    task = bench.task
    framework, engine = find_framework(training.config.framework)(task), Inline()
    engine.attach(framework, bench.exam)
    for number in (number for number in training.rounds if number not in by_round):
        averaged = _read_model(training.run_path / "models" / f"round-{number}.safetensors", task)
        sent = framework.norm_moments(averaged, range(task.num_clients), number - 1)
        models = (averaged, sent.moments.pooled(averaged), pooled(task, averaged, number - 1))
        qualities = [engine.evaluate(model) for model in models]
        accuracies, losses = [quality.accuracy or 0.0 for quality in qualities], [quality.loss for quality in qualities]
        key = (training.data, training.name, training.spread, training.seed, training.settings, number)
        by_round[number] = NormTest(*key, *accuracies, *losses)
        write_tests(training.tests_path, [by_round[index] for index in sorted(by_round)])


def _read_model(path: Path, task: Task) -> UnitState:
    """A model that a run kept, as a state of all units."""
    whole = task.initial.clone()
    try:
        tensors, _ = load_tensors(path)
        for name, view in whole.named().items():
            view.copy_(tensors[name])
    except (SafetensorError, OSError, KeyError, RuntimeError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise InputError(f"{path} is not a model of this run ({first}); delete {path.parents[1]} and run the same command again") from None  # fmt: skip
    return whole


def pooled(task: Task, whole: UnitState, round_index: int) -> UnitState:
    """The model with the statistics of all clients' samples together, augmented as in training. Every batch mixes the clients, so that a
    layer sees what it would see of all samples at once; a client's own batches would be normalised by the client's own statistics."""
    feed = replace(task.feed, indices=[np.concatenate(list(task.feed.indices))])
    moments, num_samples = Moments.zero(NormLayers.of(task.model)), feed.num_samples(0)
    with Estimator(task.model, task.initial, whole, moments) as estimator:
        for x, fraction in NormBatches(feed, 0, round_index, POOLED_BATCH, count=num_samples):
            estimator.forward(x, 0, task.num_units, fraction * num_samples)
    return moments.pooled(whole)


def write_tests(path: Path, tests: Sequence[NormTest]) -> Path:
    """Write a CSV with one line for each model."""
    return write_csv(path, [field.name for field in fields(NormTest)], map(astuple, tests))


def read_tests(path: Path) -> list[NormTest]:
    """The tests in a CSV file; none where there is no such file."""
    if not path.exists():
        return []
    kinds: dict[str, Any] = {
        **dict.fromkeys(("data", "training", "spread", "settings"), str),
        **dict.fromkeys(("seed", "round"), int),
    }
    try:
        rows = list(csv.DictReader(path.read_text().splitlines()))
        return [NormTest(**{name: kinds.get(name, finite)(text) for name, text in row.items()}) for row in rows]
    except UNREADABLE as error:
        raise InputError(f"{path} cannot be read ({error}); {AGAIN}") from None


# ---- words and picture


def points_lost(tests: Sequence[NormTest], name: str, spread: str, kind: str = "averaged") -> tuple[list[int], Array]:
    """Rounds [R], and by how many points of accuracy a kind of statistics is below the pooled ones, [S, R]."""
    chosen = [test for test in tests if (test.training, test.spread) == (name, spread)]
    rounds, seeds = (sorted({getattr(test, field) for test in chosen}) for field in ("round", "seed"))
    by_place = {(test.seed, test.round): 100 * (test.pooled - getattr(test, kind)) for test in chosen}
    return rounds, np.array([[by_place[seed, number] for number in rounds] for seed in seeds])


def _say_spread(spread: str) -> str:
    return spread if spread == "iid" else f"alpha {spread}"


def _draw_norms(
    out: Path, scale: str, trainings: Sequence[NormTraining], tests: Sequence[NormTest], file: str
) -> Outcome:
    """CSV, figure and tables."""
    files = [write_tests(out / file, tests), *save_figure(_curves(tests), out / "norms")]
    trends, tables = _norms_trends(tests), [_accuracy_table(tests), _lost_points_table(tests)]
    text = (
        "### What averaging costs BatchNorm\n\n![points of accuracy below pooled statistics, by round](norms.png)\n\n"
        f"{_norms_settings_note(scale, trainings)} {machine()}\n\n{markdown_rows(tables[0])}\n"
        f"Points that averaged statistics lose, by round:\n\n{markdown_rows(tables[1])}"
    )
    return Outcome("norms", write_text(out / "norms.md", text), files, trends, tables)


def _norms_trends(tests: Sequence[NormTest]) -> list[Trend]:
    """What each training loses in its last round. The paper says nothing of BatchNorm's statistics."""
    trends = []
    for spread in SPREADS:
        for name, title in TITLES.items():
            (*_, last), averaged = points_lost(tests, name, spread)
            _, estimated = points_lost(tests, name, spread, "estimated")
            points = (say_mean(estimate(values[:, -1])) for values in (averaged, estimated))
            finding = "averaged {}, estimated {} points below pooled statistics".format(*points)
            claimed = f"(not in the paper) {title}, {_say_spread(spread)}"
            trends.append(Trend(claimed, f"{finding} after {last} rounds, n = {len(averaged)}", None))
    return trends


def _norms_settings_note(scale: str, trainings: Sequence[NormTraining]) -> str:
    """What stands behind the numbers, as a paragraph."""
    config, num_seeds = trainings[0].config, len({training.seed for training in trainings})
    train = config.train
    return (
        f"Scale {scale}, n = {num_seeds} training seed{'s' if num_seeds > 1 else ''} (mean ± half of the 95 % interval over seeds, where there are "
        f"several). {config.model.name} (norm {config.model.norm}) on {trainings[0].data}, {config.data.limit or 'all'} training and "
        f"{config.data.limit_test or 'all'} test images, {config.fleet.num_clients} clients, batches of {train.batch_size}, {train.optimizer} {train.lr:g}, "
        f"{train.local_epochs:g} local epoch, {train.rounds} rounds. The twins average all units, SplitFed V2 the heads alone (at the smallest max_cut of the "
        f"seed's fleet). Every kept model is tested with its averaged statistics; with those that its clients estimate in {train.norm_batches} batches "
        f"each; and with those of all training samples, pooled in mixed batches of {POOLED_BATCH}, which no system could have."
    )


def _accuracy_table(tests: Sequence[NormTest]) -> SummaryTable:
    """Accuracy after the last round with each kind of statistics, and what the first two are below the third."""
    rows = []
    for spread in SPREADS:
        for name, title in TITLES.items():
            chosen = [test for test in tests if (test.training, test.spread) == (name, spread)]
            last = [test for test in chosen if test.round == max(other.round for other in chosen)]
            means = [
                say_mean(estimate(getattr(test, kind) for test in last), 100)
                for kind in ("averaged", "estimated", "pooled")
            ]
            below = [
                say_mean(estimate(points_lost(tests, name, spread, kind)[1][:, -1]))
                for kind in ("averaged", "estimated")
            ]
            rows.append([f"{title}, {_say_spread(spread)}", *means, *below])
    header = ["accuracy in % after the last round", "averaged", "estimated", "pooled"]
    header += ["averaged below pooled", "estimated below pooled"]
    return SummaryTable("norms-accuracy", "Accuracy by BatchNorm's statistics", header, rows, _seeds_note(tests))


def _seeds_note(tests: Sequence[NormTest]) -> str:
    return spread_note([len({test.seed for test in tests})])


def _lost_points_table(tests: Sequence[NormTest]) -> SummaryTable:
    """By how many points averaged statistics are below pooled ones, in every round whose model was kept."""
    rows, header = [], [""]
    for spread in SPREADS:
        for name, title in TITLES.items():
            rounds, values = points_lost(tests, name, spread)
            header = ["", *map(str, rounds)]
            rows.append([f"{title}, {_say_spread(spread)}", *(say_mean(estimate(column)) for column in values.T)])
    return SummaryTable(
        "norms-lost", "Points that averaged statistics lose, by round", header, rows, _seeds_note(tests)
    )


def _curves(tests: Sequence[NormTest]) -> "Figure":
    """A panel for each spread: points below pooled statistics by round, solid with averaged and dotted with estimated statistics."""
    mpl, num_seeds = matplotlib(), len({test.seed for test in tests})
    with mpl.rc_context(STYLE):
        figure = mpl.figure.Figure(figsize=(3.1 * len(SPREADS) + 2.6, 3.2), layout="constrained")
        panels = figure.subplots(1, len(SPREADS), sharey=True, squeeze=False)[0]
        for panel, spread in zip(panels, SPREADS):
            for name, title in TITLES.items():
                colour, marker, _ = METHODS[FRAMEWORKS[name]].style
                for kind, dashes in (("averaged", "solid"), ("estimated", (0, (1, 1.2)))):
                    rounds, values = points_lost(tests, name, spread, kind)
                    mean, half = values.mean(axis=0), half_width(values)
                    panel.fill_between(rounds, mean - half, mean + half, color=colour, alpha=0.10, linewidth=0)
                    panel.plot(
                        rounds, mean, color=colour, linestyle=dashes, marker=marker, markersize=4, linewidth=1.6,
                        label=f"{title}, {kind}",
                    )  # fmt: skip
            panel.axhline(0.0, color=FAINT, linewidth=0.8)
            panel.set_title(f"{_say_spread(spread)}, n = {num_seeds}", fontsize=10)
            panel.set_xlabel("round")
            panel.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
        panels[0].set_ylabel("points of accuracy\nbelow pooled statistics")
        handles = panels[0].get_legend_handles_labels()
        add_side_legend(figure, *handles)
        note = f"mean over n = {num_seeds} training seed{'s' if num_seeds > 1 else ''}"
        figure.supxlabel(note + ("; band: 95 % interval over seeds" if num_seeds > 1 else ""), fontsize=8, color=FAINT)
    return figure
