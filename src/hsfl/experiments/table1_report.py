"""What the run folders of Table 1 say: cells, the paper's numbers beside them, and what holds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hsfl.experiments.columns import Plan
from hsfl.experiments.shared import Trend, machine, say_mean, table, trend_table
from hsfl.experiments.trace import TWINS, shared_from
from hsfl.records import RunFolder
from hsfl.report.curves import Estimate, estimate
from hsfl.report.runs import Run, display_name, read_run, run_path

PAPER = {  # per cent
    "ham10000": {"hsfl": 75.31, "splitfed_v1": 75.09, "fl": 74.54, "sl": 76.29, "cl": 77.11},
    "cifar10": {"hsfl": 76.12, "splitfed_v1": 74.72, "fl": 74.04, "sl": 77.24, "cl": 82.61},
    "mnist": {"hsfl": 99.05, "splitfed_v1": 98.95, "fl": 98.27, "sl": 98.75, "cl": 98.93},
}
DATA_NAMES = {"ham10000": "HAM10000", "cifar10": "CIFAR-10", "mnist": "MNIST"}
EQUAL = 0.02  # of accuracy: what rounding may change over a run of equal rounds
CSV_FIELDS = (
    *("data", "set", "framework", "seed", "accuracy", "best_accuracy", "balanced_accuracy", "train_loss", "test_loss"),
    *(
        "rounds",
        "sim_time_s",
        "clients_dropped",
        "clients_left_out",
        "status",
        "trained_as",
        "budget_s",
        "tau_s",
        "paper",
    ),
)


@dataclass(frozen=True)
class Cell:
    """One framework on one data set in one of the two sets of runs, over its seeds."""

    data: str
    which: str  # budget or rounds
    label: str
    runs: list[Run]
    trained_as: list[str | None]  # whose training each seed's run shares

    def mean(self, quantity: str) -> Estimate:
        return estimate(run.last(quantity) for run in self.runs)

    @property
    def paper(self) -> float | None:
        return PAPER.get(self.data, {}).get(self.label)

    @property
    def early(self) -> bool:
        """A run made all its rounds before the budget was spent."""
        return self.which == "budget" and any(run.status == "finished" and not run.spent_its_time for run in self.runs)


def read_cells(out: Path, data: str, which: str, labels: Iterable[str], seeds: Sequence[int]) -> list[Cell]:
    cells = []
    for label in labels:
        every = {seed: run_path(out / data / which, label, seed) for seed in seeds}
        paths = {seed: path for seed, path in every.items() if path.exists()}  # not every fleet has every column
        runs = [read_run(path, label, seed) for seed, path in paths.items()]
        if runs:
            cells.append(Cell(data, which, label, runs, [shared_from(path) for path in paths.values()]))
    return cells


def csv_rows(cells: Sequence[Cell], out: Path) -> list[list[object]]:
    rows: list[list[object]] = []
    for cell in cells:
        for run, trained_as in zip(cell.runs, cell.trained_as):
            train = RunFolder(run_path(out / cell.data / cell.which, cell.label, run.seed)).config().train
            values = [
                *(cell.data, cell.which, cell.label, run.seed, run.last("test_accuracy"), run.best("test_accuracy")),
                *(run.last("balanced_accuracy"), run.last("train_loss"), run.last("test_loss"), len(run.records)),
                *(run.sim_time_s, run.drops, run.left_out, run.status, trained_as or cell.label),
                *(train.budget_s, train.tau_s, cell.paper),
            ]
            rows.append(["" if value is None else value for value in values])
    return rows


# ---- what holds


def find_trends(cells: Sequence[Cell]) -> list[Trend]:
    same = equality(cells)
    return [*_order(cells), *([] if same is None else [same])]


def _order(cells: Sequence[Cell]) -> list[Trend]:
    """The paper's claims at one budget of seconds."""
    found = {(cell.data, cell.label): cell.mean("test_accuracy").mean for cell in cells if cell.which == "budget"}
    data_sets = list(dict.fromkeys(cell.data for cell in cells))
    alone = all(len(cell.runs) == 1 for cell in cells)

    def claim(words: str, high: str, low: str) -> Trend | None:
        """On the paper's data sets where it says so; a framework without a single round in the budget has no accuracy."""
        meant = [data for data in data_sets if data in PAPER and PAPER[data][high] > PAPER[data][low]]
        if not meant or not all((meant[0], label) in found for label in (high, low)):
            return None
        words_of, holds = [], []
        for data in meant:
            a, b = found[data, high], found[data, low]
            known = a is not None and b is not None
            points = f"{100 * ((a or 0.0) - (b or 0.0)):+.1f} points" if known else "no round in the budget"
            words_of.append(f"{DATA_NAMES.get(data, data)} {points}")
            holds += [(a or 0.0) > (b or 0.0)] if known else []
        said = "; ".join(words_of) + (" (one seed, which decides nothing)" if alone else "")
        decided = not alone and (len(holds) == len(meant) or not all(holds))
        return Trend(words, said, all(holds) if decided else None)

    claims = [
        claim("HSFL is more accurate than SplitFed", "hsfl", "splitfed_v1"),
        claim("HSFL is more accurate than FL", "hsfl", "fl"),
        claim("CL is more accurate than HSFL, except on MNIST", "cl", "hsfl"),
    ]
    return [trend for trend in claims if trend is not None]


def equality(cells: Sequence[Cell]) -> Trend | None:
    """At equal rounds with nobody dropped, HSFL, SplitFed V1 and FL must be one algorithm; None where one is alone."""
    apart, shared = 0.0, False
    compared: set[str] = set()
    for data in dict.fromkeys(cell.data for cell in cells):
        twins = [cell for cell in cells if (cell.data, cell.which) == (data, "rounds") and cell.label in TWINS]
        shared = shared or any(name is not None for cell in twins[1:] for name in cell.trained_as)
        for cell in twins[1:]:
            compared |= {display_name(twins[0].label), display_name(cell.label)}
            apart = max(apart, *(_apart(a, b) for a, b in zip(twins[0].runs, cell.runs)))
    if not compared:
        return None
    how = "first rounds trained by themselves, the rest shared" if shared else "each trained by itself"
    return Trend(
        f"(not in the paper) at equal rounds {' = '.join(display_name(label) for label in TWINS if display_name(label) in compared)}",
        f"largest difference of test accuracy in any round {100 * apart:.2f} points; {how}",
        apart <= EQUAL,
    )


def _apart(left: Run, right: Run) -> float:
    """The largest difference of test accuracy in any round; 1 where one has more rounds."""
    if len(left.records) != len(right.records):
        return 1.0
    return max(
        (abs((a.test_accuracy or 0.0) - (b.test_accuracy or 0.0)) for a, b in zip(left.records, right.records)),
        default=0.0,
    )


# ---- Markdown


def markdown(cells: Sequence[Cell], plans: dict[str, list[Plan]], trends: Sequence[Trend], settings: str) -> str:
    data_sets = list(dict.fromkeys(cell.data for cell in cells))
    seeds = len(cells[0].runs)
    spread = f"mean ± half of the 95 % interval over {seeds} seeds" if seeds > 1 else "one seed, no interval"
    parts = [
        f"### Table 1: accuracy of the frameworks\n\nTest accuracy in %, {spread}; last model of each run.\n",
        "At one budget of simulated seconds (tau twice HSFL's planned round):\n\n"
        + _accuracies(cells, data_sets, "budget"),
        "At equal rounds (tau none, storage ignored):\n\n" + _accuracies(cells, data_sets, "rounds"),
        trend_table(trends),
        "How far each came:\n\n" + _details(cells, data_sets),
        _plan_notes(plans),
        f"{settings} {machine()}\n",
    ]
    return "\n".join(parts)


def _accuracies(cells: Sequence[Cell], data_sets: Sequence[str], which: str) -> str:
    """A row for each data set as in the paper, the paper's own below it."""
    labels = list(dict.fromkeys(cell.label for cell in cells if cell.which == which))
    rows, any_early = [], False
    for data in data_sets:
        own = {cell.label: cell for cell in cells if (cell.data, cell.which) == (data, which)}
        name = DATA_NAMES.get(data, data)
        there = [own.get(label) for label in labels]
        rows.append([name, *(_said(cell, "test_accuracy") for cell in there)])
        any_early = any_early or any(cell.early for cell in own.values())
        if data == "ham10000":
            rows.append([f"{name}, balanced", *(_said(cell, "balanced_accuracy") for cell in there)])
        if data in PAPER:
            paper = [PAPER[data].get(label) for label in labels]
            rows.append([f"{name}, the paper", *("-" if value is None else f"{value:.2f}" for value in paper)])
    note = "\n† made all its rounds before the budget was spent\n" if any_early else ""
    return table(["", *map(display_name, labels)], rows) + note


def _said(cell: Cell | None, quantity: str) -> str:
    return "-" if cell is None else say_mean(cell.mean(quantity), 100) + _mark(cell)


def _mark(cell: Cell) -> str:
    return " †" if cell.early else ""


def _details(cells: Sequence[Cell], data_sets: Sequence[str]) -> str:
    rows = []
    for data in data_sets:
        for cell in (cell for cell in cells if (cell.data, cell.which) == (data, "budget")):
            whole = 0 if len(cell.runs) == 1 else 1  # counts of one run have no decimals
            shared = sorted({name for name in cell.trained_as if name is not None and name != cell.label})
            rows.append(
                [
                    f"{DATA_NAMES.get(data, data)}, {display_name(cell.label)}",
                    say_mean(estimate(len(run.records) for run in cell.runs), digits=whole) + _mark(cell),
                    say_mean(estimate(run.sim_time_s for run in cell.runs), digits=0),
                    say_mean(estimate(run.drops for run in cell.runs), digits=whole),
                    say_mean(estimate(run.left_out for run in cell.runs), digits=whole),
                    f"as {display_name(shared[0])}" if shared else "itself",
                ]
            )
    header = ["", "rounds", "simulated seconds", "clients dropped", "left out", "trained"]
    return table(header, rows)


def _plan_notes(plans: dict[str, list[Plan]]) -> str:
    lines = []
    for data, own in plans.items():
        budgets = " / ".join(f"{plan.budget_s:,.0f}" for plan in own)
        taus = " / ".join(f"{plan.tau_s:,.0f}" for plan in own)
        cuts = " / ".join(" ".join(map(str, plan.cuts)) for plan in own)
        lines.append(f"- {DATA_NAMES.get(data, data)}: budget {budgets} s, tau {taus} s, HSFL's cuts {cuts}.\n")
    return "".join(lines)
