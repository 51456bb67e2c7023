"""What Table 1 is made from: traces (one training of one seed) timed on every fleet, for every column that shares them."""

from collections.abc import Iterator
from dataclasses import dataclass

from hsfl.experiments.common import claim, claim_plugins
from hsfl.experiments.study_request import StudyRequest
from hsfl.experiments.table1.columns import (
    COLUMNS,
    PUBLISHED,
    SIZES,
    TWIN_TRACE,
    base_config,
    fleets_of,
    seeds_of,
    traces_of,
)
from hsfl.experiments.table1.fleets import Answer, make_point, read_answer, shipped_cuts, solve_points
from hsfl.experiments.table1.traces import (
    Trace,
    at_budget,
    budget_s,
    find_trace,
    time_to_s,
    train_ahead,
)
from hsfl.runs.run_folder.provenance import names_of

FRACTIONS = (0.25, 0.5, 1.0)  # of the budget
TARGETS = {"ham10000": (0.68, 0.70, 0.72), "cifar10": (0.4, 0.5, 0.6), "mnist": (0.9, 0.95, 0.98), "digits": (0.3,)}


@dataclass(frozen=True)
class TableCell:
    """One column on one fleet with one training seed, when a fraction of the budget is spent."""

    data: str
    column: str
    seed: int
    fleet: int
    fraction: float
    rounds: int
    short: bool  # the training ends before the budget does
    accuracy: float | None  # None: no round fits
    balanced_accuracy: float | None


@dataclass(frozen=True)
class ColumnTiming:
    """How long a column's rounds take on a fleet, and when it reaches a target."""

    data: str
    column: str
    seed: int
    fleet: int
    mean_round_s: float
    target: float
    seconds_to_target: float | None  # None: never in the rounds that were trained


@dataclass(frozen=True)
class Study:
    """Traces and fleets of all data sets: what the tables and figures are made from."""

    columns: tuple[str, ...]
    traces: dict[tuple[str, str, int], Trace]  # by data set, trace and seed
    answers: list[Answer]

    @property
    def data_sets(self) -> list[str]:
        return list(dict.fromkeys(data for data, _, _ in self.traces))

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for _, _, seed in self.traces})

    def trace(self, answer: Answer, column: str) -> Trace:
        return self.traces[answer.data, COLUMNS[column].trace, answer.seed]

    def budget_rounds(self, data: str) -> int:
        """R: half of the rounds that were trained."""
        return max(1, len(self.traces[data, TWIN_TRACE, self.seeds[0]].rounds) // 2)


def make_study(request: StudyRequest) -> Study:
    """Traces from the folder, from the results that were shipped, or trained now; then the clocks of all fleets."""
    out, scale, columns = request.out, request.scale, request.columns
    claim(out, _study_settings(scale))
    claim_plugins(out, {name: names_of(COLUMNS[name].config(base_config("mnist", scale, 0))) for name in columns})
    seeds = seeds_of(scale, request.num_seeds)
    trainings = [(data, name, seed) for seed in seeds for data in request.datasets for name in traces_of(columns)]
    train_ahead(request, trainings)
    traces = {key: find_trace(request, *key) for key in trainings}
    points = [
        make_point(data, scale, seed, fleet, traces[data, TWIN_TRACE, seed].num_samples, columns)
        for data in request.datasets
        for seed in seeds
        for fleet in fleets_of(scale)
    ]
    solve_points(points, out / "fleets", shipped_cuts(request.shipped), request.say)
    return Study(tuple(columns), traces, [read_answer(out / "fleets", point) for point in points])


def _study_settings(scale: str) -> dict[str, object]:
    """The settings that all results of a folder have in common; columns, data sets and seeds may be added later."""
    bases = {data: base_config(data, scale, 0).model_dump(mode="json") for data in SIZES[scale]}
    return {"scale": scale, "fleets": len(fleets_of(scale)), "configs": bases}


def table_cells(study: Study) -> Iterator[TableCell]:
    """Every column of every fleet and seed at every fraction of the budget."""
    for answer in study.answers:
        whole_s = budget_s(answer.round_s[PUBLISHED], study.budget_rounds(answer.data))
        for column in study.columns:
            trace, round_s = study.trace(answer, column), answer.round_s[column]
            for fraction in FRACTIONS:
                plain = at_budget(trace, round_s, fraction * whole_s)
                balanced = at_budget(trace, round_s, fraction * whole_s, "balanced_accuracy")
                yield TableCell(
                    answer.data, column, answer.seed, answer.fleet, fraction, plain.rounds, plain.short, plain.value,
                    balanced.value,
                )  # fmt: skip


def column_timings(study: Study) -> Iterator[ColumnTiming]:
    """Every column of every fleet and seed, with its mean round and its seconds to each target."""
    for answer in study.answers:
        for column in study.columns:
            for target in TARGETS.get(answer.data, ()):
                seconds = time_to_s(study.trace(answer, column), answer.round_s[column], target)
                yield ColumnTiming(
                    answer.data, column, answer.seed, answer.fleet, answer.mean_s(column), target, seconds
                )


def values_at(study: Study, data: str, column: str, seed: int, fraction: float, quantity: str) -> list[float | None]:
    """A quantity of one column, on every fleet, at the time when a fraction of the budget is spent."""
    values = []
    for answer in (a for a in study.answers if (a.data, a.seed) == (data, seed)):
        whole_s = budget_s(answer.round_s[PUBLISHED], study.budget_rounds(data))
        values.append(
            at_budget(study.trace(answer, column), answer.round_s[column], fraction * whole_s, quantity).value
        )
    return values
