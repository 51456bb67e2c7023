"""How long the rounds of every column take on a fleet: cuts chosen for the column's own allocation, then the clock.

Legend: K clients, C rounds (each a fresh channel). A *point* is one fleet with one training seed's data; it is solved once,
and its answer is a small file, so that an interrupted study goes on where it was. The search for cuts is what takes time: cuts
that are known from a folder of results are taken from there, and the rounds are timed anew.
"""

import csv
import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from hsfl.config import RunConfig, with_changes
from hsfl.data.registry import FACTS
from hsfl.errors import InputError
from hsfl.experiments.common import AGAIN, UNREADABLE, Say, finite
from hsfl.experiments.table1.column_clock import rounds_s
from hsfl.experiments.table1.column_cuts import choose_column_cuts
from hsfl.experiments.table1.columns import COLUMNS, base_config
from hsfl.experiments.table1.learned_settings import clock_settings
from hsfl.files import read_record, write_csv, write_json
from hsfl.formats import duration, took
from hsfl.models.cost_table import CostTable
from hsfl.planning.world import model_cost, world_of
from hsfl.runs.run_folder.records import Index, Number, Positive
from hsfl.runs.studies.process_pool import in_processes, worthwhile_workers

Cuts = Mapping[str, Sequence[int]]  # by column
STORAGES = {  # how max_cut comes about
    "drawn": (),  # uniform in 3..num_units, as in the paper's presets
    "memory": (
        "fleet.storage=training",
        "fleet.storage_bits=[4e8, 2.4e9]",
    ),  # 50 to 300 MB, for training in batches of 256
}
PAPER_BATCH = 256  # the batch whose memory counts, also where a subset is trained in smaller batches
CUTS_FILES = "cuts-*.csv"  # of Table 1, by scale
GAINS_CUTS_FILE = "gains-cuts.csv"
CUTS_FIELDS = ("data", "seed", "fleet", "storage", "settings", "gap", "column", "cuts")


@dataclass(frozen=True)
class Point:
    """One fleet, with the data of one training seed."""

    config: RunConfig
    num_samples: tuple[int, ...]  # [K] as trained
    columns: tuple[str, ...]
    storage: str = "drawn"

    @property
    def fleet(self) -> int:
        return self.config.fleet_seed

    @property
    def key(self) -> tuple[str, int, int, str]:
        return (self.config.data.name, self.config.seed, self.fleet, self.storage)

    @property
    def settings(self) -> str:
        """A short hash of the settings and samples behind the cuts, so that those of another model or scale are not taken for them."""
        settings = clock_settings(self.config)
        return hashlib.sha256(json.dumps([settings, self.num_samples], sort_keys=True).encode()).hexdigest()[:12]

    @property
    def file(self) -> str:
        data, seed, fleet, storage = self.key
        return f"{storage}/{data}/seed-{seed}-fleet-{fleet}.json"


@dataclass(frozen=True)
class Answer:
    """The cuts and the rounds of every column on one fleet."""

    data: str
    seed: int
    fleet: int
    storage: str
    gap: Number  # proven, of HSFL's planned cuts over all cuts, on the plan's samples
    cuts: dict[str, list[Index]]  # by column, [K]
    round_s: dict[str, Annotated[list[Positive], Field(min_length=1)]]  # by column, [C]
    cpu_hz: list[Positive]  # [K]
    max_cut: list[Index]  # [K]
    num_samples: list[Positive]  # [K] as the clock charges them
    seconds: Positive
    settings: str  # the point's

    def mean_s(self, column: str) -> float:
        return float(np.mean(self.round_s[column]))


def make_point(
    data: str,
    scale: str,
    seed: int,
    fleet: int,
    num_samples: Sequence[int],
    columns: Iterable[str],
    storage: str = "drawn",
    changes: Sequence[str] = (),
) -> Point:
    """A point of the study. `num_samples` [K] says how many samples each client of the training seed has. changes: to the scale's
    settings."""
    config = with_changes(base_config(data, scale, seed), [f"fleet.seed={fleet}", *STORAGES[storage], *changes])
    return Point(config, tuple(num_samples), tuple(columns), storage)


def solve_points(
    points: Sequence[Point], folder: Path, known: Mapping[tuple[Any, ...], tuple[float, Cuts]], say: Say
) -> None:
    """Solve the points that have no file yet. Cuts in `known`, by the point's key and settings, are not searched again. After Ctrl-C every
    file holds a whole point."""
    missing = [point for point in points if not _is_there(folder, point)]
    if not missing:
        return
    costs = {name: cost_of(config) for name, config in {p.config.data.name: p.config for p in missing}.items()}
    began, done = time.perf_counter(), len(points) - len(missing)
    work = partial(_solve_and_write, costs=costs, folder=folder, known=known)
    for number, answer in enumerate(in_processes(work, missing, worthwhile_workers(len(missing))), done + 1):
        left_s = (time.perf_counter() - began) / (number - done) * (len(points) - number)
        say(f"fleet {number}/{len(points)}: {answer.data}, {took(answer.seconds)}, about {duration(left_s)} left")


def _is_there(folder: Path, point: Point) -> bool:
    path = folder / point.file
    return path.exists() and set(point.columns) <= read_answer(folder, point).round_s.keys()


def _solve_and_write(
    point: Point, costs: Mapping[str, CostTable], folder: Path, known: Mapping[tuple[Any, ...], tuple[float, Cuts]]
) -> Answer:
    gap, cuts = known.get((*point.key, point.settings), (float("nan"), {}))
    answer = solve_fleet(point, costs[point.config.data.name], cuts, gap)
    write_json(folder / point.file, asdict(answer))
    return answer


def cost_of(config: RunConfig) -> CostTable:
    """The cost table of the config's model on its data set."""
    _, shape, num_classes = FACTS[config.data.name]
    return model_cost(config, config.model.input or shape, num_classes, PAPER_BATCH)


def solve_fleet(point: Point, cost: CostTable, known: Cuts | None = None, known_gap: float = float("nan")) -> Answer:
    """Cuts and rounds of every column on one fleet; `known` cuts are not searched."""
    began, config = time.perf_counter(), point.config
    world = world_of(config, cost)
    num_samples = config.network.sample_scale * np.array(point.num_samples)
    chosen = {name: list(cuts) for name, cuts in (known or {}).items() if name in point.columns}
    for name, cuts in chosen.items():
        if len(cuts) != len(num_samples) or not all(1 <= cut <= cost.num_units for cut in cuts):
            raise InputError(
                f"the known cuts: {name} has cuts {cuts} on fleet {point.fleet}; put the original file back"
            )
    missing = [name for name in point.columns if name not in chosen]
    gap = known_gap
    if missing:
        searched, searched_gap = choose_column_cuts(missing, config, world, num_samples)
        chosen |= searched
        gap = searched_gap if np.isfinite(searched_gap) else gap
    rounds = {name: rounds_s(COLUMNS[name], config, world, chosen[name], num_samples) for name in point.columns}
    data, seed, fleet, storage = point.key
    return Answer(
        data, seed, fleet, storage, gap if np.isfinite(gap) else 1.0, chosen, rounds, world.fleet.cpu_hz.tolist(),
        world.fleet.max_cut.tolist(), num_samples.tolist(), time.perf_counter() - began, point.settings,
    )  # fmt: skip


def read_answer(folder: Path, point: Point) -> Answer:
    """The answer of a point, from the point's file in the folder."""
    path = folder / point.file
    answer: Answer = read_record(path, Answer, AGAIN)
    if (answer.data, answer.seed, answer.fleet, answer.storage) != point.key:
        raise InputError(f"{path} is of another fleet; {AGAIN}")
    lists: list[Sequence[float]] = [*answer.cuts.values(), answer.cpu_hz, answer.max_cut]
    if any(len(values) != len(answer.num_samples) for values in lists):
        raise InputError(f"{path} holds lists of different lengths; {AGAIN}")
    return answer


# ---- cuts that are kept with the results


def write_cuts(path: Path, answers: Iterable[Answer]) -> Path:
    """Write the cuts as a CSV with one line for each fleet and column."""
    rows = [
        [a.data, a.seed, a.fleet, a.storage, a.settings, f"{a.gap:.4g}", name, " ".join(map(str, cuts))]
        for a in answers
        for name, cuts in a.cuts.items()
    ]
    return write_csv(path, CUTS_FIELDS, rows)


def shipped_cuts(folder: Path | None) -> dict[tuple[Any, ...], tuple[float, Cuts]]:
    """Gap and cuts that a folder of results holds: those of Table 1, and those of the gains, which have the first seed's
    fleets in common with it."""
    if folder is None:
        return {}
    by_key = dict(read_cuts(folder / GAINS_CUTS_FILE))
    for path in sorted(folder.glob(CUTS_FILES)):
        for key, (gap, cuts) in read_cuts(path).items():
            by_key[key] = (gap, {**by_key.get(key, (gap, {}))[1], **cuts})
    return by_key


def read_cuts(path: Path) -> dict[tuple[Any, ...], tuple[float, Cuts]]:
    """Gap and cuts by column, by the point's key and settings; nothing where there is no such file."""
    if not path.exists():
        return {}
    by_key: dict[tuple[Any, ...], tuple[float, dict[str, Sequence[int]]]] = {}
    try:
        for row in csv.DictReader(path.read_text().splitlines()):
            key = (row["data"], int(row["seed"]), int(row["fleet"]), row["storage"], row["settings"])
            _, cuts = by_key.setdefault(key, (finite(row["gap"]), {}))
            cuts[row["column"]] = [int(cut) for cut in row["cuts"].split()]
    except UNREADABLE as error:
        raise InputError(f"{path} cannot be read ({error}); delete it, and cuts are searched again") from None
    return dict(by_key)
