"""Table 1: accuracy of the frameworks on three data sets, at one budget of simulated seconds and at equal rounds."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hsfl.compare import run_or_resume
from hsfl.config import RunConfig, read_config
from hsfl.errors import known
from hsfl.experiments.columns import (
    FEWER_STEPS,
    SETS,
    SIDES,
    SIZES,
    Plan,
    Setup,
    base_config,
    make_setup,
    plan_path,
    read_plan,
)
from hsfl.experiments.shared import FORMATS, SCALES, Outcome, Say, claim, write_csv, write_text
from hsfl.experiments.table1_report import CSV_FIELDS, Cell, csv_rows, find_trends, markdown, read_cells
from hsfl.experiments.trace import TWINS, is_done, share
from hsfl.records import RunFolder
from hsfl.report.comparison import read_comparison
from hsfl.report.figure import save
from hsfl.report.plots import learning_figure
from hsfl.report.runs import run_path
from hsfl.training.simulate import Observer

DATASETS = ("ham10000", "cifar10", "mnist")
FIVE = ("hsfl", "splitfed_v1", "fl", "sl", "cl")  # the paper's
ALL = (*FIVE, "splitfed_v2", "psl", "fsl", "locfedmix_sl", "cpsl", "fl,options.fl_needs_storage=true")
FIRST_SEED = 1
NUM_SEEDS = {"smoke": 1, "quick": 1, "full": 3}
MakeObserver = Callable[[str], Observer]


def labels_in(which: str, labels: Sequence[str]) -> list[str]:
    """The columns of a set of runs: storage is ignored at equal rounds, so a column that needs it has no place there."""
    return [label for label in labels if which == "budget" or not _needs_storage(label)]


def seeds_of(scale: str, num_seeds: int | None) -> list[int]:
    known("scale", scale, SCALES)
    return list(range(FIRST_SEED, FIRST_SEED + (num_seeds or NUM_SEEDS[scale])))


def configs(setup: Setup, labels: Sequence[str] = FIVE) -> dict[tuple[str, str], RunConfig]:
    """The configs of one data set and seed, by set of runs and column."""
    possible = [
        label for label in labels if not _needs_storage(label) or max(setup.plan.max_cut) == setup.plan.num_units
    ]
    return {(which, label): setup.config(label, which) for which in SETS for label in labels_in(which, possible)}


def _needs_storage(label: str) -> bool:
    """FL on the clients that can hold the whole model: no such column in a fleet where nobody can."""
    return "fl_needs_storage" in label


def run(
    out: Path,
    scale: str,
    num_seeds: int | None,
    say: Say,
    labels: Sequence[str] = FIVE,
    datasets: Sequence[str] = DATASETS,
    data_dir: Path | None = None,
    make_observer: MakeObserver = lambda name: Observer(),
) -> Outcome:
    """Train what is missing, share what is the same, and write the table, with data sets that were done before."""
    train(out, scale, num_seeds, say, labels, datasets, data_dir, make_observer)
    seeds = seeds_of(scale, num_seeds)
    rest = [data for data in DATASETS if data not in datasets and _was_done(out / data, labels, seeds)]
    return draw(out, scale, seeds, labels, [*datasets, *rest])


def _was_done(folder: Path, labels: Sequence[str], seeds: Sequence[int]) -> bool:
    paths = [
        run_path(folder / which, label, seed) for which in SETS for label in labels_in(which, labels) for seed in seeds
    ]
    return all(plan_path(folder, seed).exists() for seed in seeds) and all(is_done(path) for path in paths)


def train(
    out: Path,
    scale: str,
    num_seeds: int | None,
    say: Say,
    labels: Sequence[str],
    datasets: Sequence[str],
    data_dir: Path | None,
    make_observer: MakeObserver,
) -> None:
    """The run folders of all columns. Only at smoke scale is everything trained, to show that sharing is right."""
    claim(out, settings(scale))
    for data in datasets:
        for seed in seeds_of(scale, num_seeds):
            setup = make_setup(base_config(data, scale, seed, data_dir), out / data, say)
            for (which, label), config in configs(setup, labels).items():
                path = run_path(out / data / which, label, seed)
                if is_done(path):
                    continue
                name = f"{data}, {which}, {label}, seed {seed}"
                if scale != "smoke" and share_training(out / data, which, label, config, setup):
                    say(f"{name}: the same training as another, with its own clock")
                else:
                    run_or_resume(config, path, make_observer(name), setup.dataset)


def share_training(folder: Path, which: str, label: str, config: RunConfig, setup: Setup) -> bool:
    """A run at a budget begins as the one at equal rounds; there, twins are one algorithm. Whether it was shared."""
    path = run_path(folder / which, label, config.seed)
    if (path / "checkpoint").exists():  # begun as a training of its own
        return False
    if which == "budget":
        return share(run_path(folder / "rounds", label.split(",")[0], config.seed), config, path, setup.dataset)
    source = run_path(folder / "rounds", "hsfl", config.seed)
    return label != "hsfl" and config.framework in TWINS and share(source, config, path, setup.dataset)


def settings(scale: str) -> dict[str, Any]:
    """What all runs in a folder must agree on; columns, data sets and seeds may be added."""
    return {
        "scale": known("scale", scale, SCALES),
        "sizes": list(SIZES[scale]),
        "batch size": FEWER_STEPS.get(scale),
        "preset": read_config("paper-cifar10").model_dump(mode="json"),
    }


def draw(
    out: Path,
    scale: str,
    seeds: Sequence[int],
    labels: Sequence[str] = FIVE,
    datasets: Sequence[str] = DATASETS,
) -> Outcome:
    """CSV, figures and tables from the run folders."""
    cells: list[Cell] = []
    plans: dict[str, list[Plan]] = {}
    files: list[Path] = []
    for data in datasets:
        for which in SETS:
            cells += read_cells(out, data, which, labels_in(which, labels), seeds)
        plans[data] = [read_plan(plan_path(out / data, seed)) for seed in seeds]
        there = [cell.label for cell in cells if (cell.data, cell.which) == (data, "budget")]
        comparison = read_comparison(out / data / "budget", labels=there)
        files += save(learning_figure(comparison, "test_accuracy"), out / f"table1-{data}", FORMATS)
    files.append(write_csv(out / "table1.csv", CSV_FIELDS, csv_rows(cells, out)))
    trends = find_trends(cells)
    figures = "".join(f"\n![accuracy on {data}](table1-{data}.png)\n" for data in datasets)
    text = markdown(cells, plans, trends, settings_note(scale, cells, out)) + figures
    return Outcome("table1", write_text(out / "table1.md", text), files, trends)


def settings_note(scale: str, cells: Sequence[Cell], out: Path) -> str:
    """What the numbers were made with."""
    first = cells[0]
    config = RunFolder(run_path(out / first.data / first.which, first.label, first.runs[0].seed)).config()
    data, train, fleet = config.data, config.train, config.fleet
    size = f"{data.limit:,} training and {data.limit_test:,} test images" if data.limit else "all images"
    small = "" if scale == "full" else f", images at most {SIDES[scale]}x{SIDES[scale]}"
    return (
        f"Scale {scale}: {config.model.name}, {size}{small}, {data.partition} {data.alpha:g}, {fleet.num_clients} clients, "
        f"batches of {train.batch_size}, {train.optimizer} {train.lr:g}, at most {train.rounds} rounds of one pass. The clock "
        "charges the whole data set's samples at every scale. HSFL: planned cuts, proposed allocation; the others: even "
        "allocation, SplitFed and SL cut at the smallest max_cut; FL trains on every client, storage or not."
    )
