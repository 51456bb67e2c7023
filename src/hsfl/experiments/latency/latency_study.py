"""The length of a single round under every policy, over fleets and channels: what Figs. 4 and 5 are drawn from.

Legend: S samples that a plan is made on, C channels drawn afresh. A *point* is one fleet (a seed) at one value of what is
varied; it is solved once, and its answer is a small file, so that an interrupted study goes on where it was.
"""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import TypedDict  # pydantic reads that of `typing` from Python 3.12 on

from hsfl.allocation.policy_table import policy_row
from hsfl.config import AllocationConfig, RunConfig, read_config, with_changes
from hsfl.experiments.common import AGAIN, Say, claim
from hsfl.files import read_record, write_json
from hsfl.formats import duration, took
from hsfl.models.cost_table import CostTable
from hsfl.planning.world import OPTIMIZER_STATES, measured_cost, world_of
from hsfl.runs.run_folder.records import Index, Number, Positive
from hsfl.runs.studies.process_pool import in_processes, worthwhile_workers

SIX = ("proposed", "rcls", "scls", "ecfa", "gtra", "etra")  # the paper's
PAPER = "paper"  # the paper's own solver, with the proposed cuts
SAMPLES_PER_CLIENT = 5000  # the 50,000 images of CIFAR-10 among ten clients, so that only devices and radio differ


@dataclass(frozen=True)
class Axis:
    """A setting that is varied along the x-axis. A value v on the axis sets the config field to v times `unit`."""

    field: str
    values: tuple[float, ...]
    title: str
    unit: float = 1.0


@dataclass(frozen=True)
class LatencyStudy:
    """The fleets and the values of every axis; each pair is solved under all policies."""

    base: RunConfig
    axes: tuple[Axis, ...]
    policies: tuple[str, ...]
    num_fleets: int
    num_channels: int

    def settings(self) -> dict[str, Any]:
        """The settings that all points of a folder have in common; more fleets may be added later."""
        return {
            "config": self.base.model_dump(mode="json"),
            "policies": list(self.policies),
            "channels": self.num_channels,
            "samples per client": SAMPLES_PER_CLIENT,
        }

    @property
    def seeds(self) -> range:
        """The seeds of the fleets; a seed draws the devices and the channel."""
        return range(self.base.fleet_seed, self.base.fleet_seed + self.num_fleets)


@dataclass(frozen=True)
class LatencyPoint:
    """One fleet at one value of an axis, to be solved under these policies."""

    name: str  # of its file
    config: RunConfig
    policies: tuple[str, ...]
    num_channels: int

    @property
    def file(self) -> str:
        return f"{self.name}/seed-{self.config.fleet_seed}.json"


def paper_base(num_samples: int) -> RunConfig:
    """The paper's fleet and radio, without tau; plans look at so many samples."""
    spelt_out = ["fleet.cuts=max_cut", "allocation.policy=even"]  # whatever the preset says
    return read_config("paper-cifar10", [f"allocation.samples={num_samples}", *spelt_out])


def point_name(study: LatencyStudy, axis: Axis, value: float) -> str:
    """The name of a point's file, after the value that differs from the base config. All axes share the point where no value differs."""
    section, field = axis.field.split(".")
    return "base" if getattr(getattr(study.base, section), field) == value else f"{axis.field}={value:g}"


def points(study: LatencyStudy) -> list[LatencyPoint]:
    """All points of the study, each once, ordered by fleet."""
    by_file: dict[str, LatencyPoint] = {}
    for seed in study.seeds:
        for axis in study.axes:
            for value in axis.values:
                config = with_changes(study.base, [f"fleet.seed={seed}", f"{axis.field}={value!r}"])
                point = LatencyPoint(point_name(study, axis, value), config, study.policies, study.num_channels)
                by_file[point.file] = point
    return list(by_file.values())


def run_points(study: LatencyStudy, folder: Path, say: Say, num_workers: int | None = None) -> float:
    """Solve the points that have no file yet, and return the seconds that this took. After Ctrl-C every file holds a whole point."""
    claim(folder, study.settings())
    all_points = points(study)
    missing = [point for point in all_points if not (folder / "points" / point.file).exists()]
    if not missing:
        return 0.0
    began = time.perf_counter()
    cost = _cost(study.base)
    done = len(all_points) - len(missing)
    for number, seconds in enumerate(
        in_processes(
            partial(_solve_and_write, cost=cost, folder=folder),
            missing,
            num_workers or worthwhile_workers(len(missing)),
        ),
        done + 1,
    ):
        left_s = (time.perf_counter() - began) / (number - done) * (len(all_points) - number)
        say(f"point {number}/{len(all_points)}  {took(seconds)}, about {duration(left_s)} left")
    return time.perf_counter() - began


def _cost(base: RunConfig) -> CostTable:
    return measured_cost(base.model, (3, 32, 32), 10, base.train.batch_size, OPTIMIZER_STATES[base.train.optimizer])


def _solve_and_write(point: LatencyPoint, cost: CostTable, folder: Path) -> float:
    """Solve a point and write its file; returns the seconds that this took."""
    began = time.perf_counter()
    answer = solve_latency_point(point, cost)
    seconds = time.perf_counter() - began
    write_json(folder / "points" / point.file, answer | {"seconds": seconds})
    return seconds


def solve_latency_point(point: LatencyPoint, cost: CostTable) -> dict[str, Any]:
    """Rounds of every policy on the plan's own samples [S] and on fresh channels [C]; one plan serves all that use it."""
    from hsfl.allocation.cuts.radio import RadioRounds
    from hsfl.allocation.cuts.search import search_cuts
    from hsfl.allocation.policies import policy  # here, because numba takes seconds to load
    from hsfl.planning.policy_cuts import cut_request
    from hsfl.planning.rounds.participation import CutTask
    from hsfl.planning.world import scenario_of_round

    config = point.config
    batch_size, settings, min_cut = config.train.batch_size, config.allocation, config.fleet.min_cut
    world = world_of(config, cost)
    num_batches = np.full(config.fleet.num_clients, float(np.ceil(SAMPLES_PER_CLIENT / batch_size)))
    request = cut_request(CutTask(config, world, num_batches))
    assert isinstance(request.rounds, RadioRounds)
    planned_on = request.rounds.samples
    fresh = [
        scenario_of_round(world, world.draw(index), batch_size, num_batches, None, settings.sharing, min_cut)
        for index in range(point.num_channels)
    ]
    plan = search_cuts(request)
    rounds = {}
    for name in point.policies:
        cuts = plan.cuts if shares_cuts(name) else policy(name).choose(request).cuts
        allocate = _solver(name, settings)
        rounds[name] = {
            "cuts": cuts.tolist(),
            "plan_s": [allocate(sample, cuts) for sample in planned_on],
            "fresh_s": [allocate(sample, cuts) for sample in fresh],
        }
    bound = {"mean_s": plan.mean_s, "lower_bound_s": plan.lower_bound_s, "gap": plan.gap, "seconds": plan.seconds}
    return {"name": point.name, "seed": config.fleet_seed, "plan": bound, "rounds": rounds}


def shares_cuts(name: str) -> bool:
    """Whether a policy has no cuts of its own and takes the proposed ones."""
    return name == PAPER or not policy_row(name).chooses_cuts


def _solver(name: str, settings: AllocationConfig) -> Any:
    """The function that gives the length of a round in seconds from a scenario and the cuts."""
    from hsfl.allocation.solvers import solver_named  # here, because numba takes seconds to load

    solve_one = solver_named("exact" if name == "proposed" else name)
    limits = {"gap": settings.gap, "time_limit_s": settings.time_limit_s}
    return lambda scenario, cuts: solve_one(scenario, cuts, **limits).round_s


class Bound(TypedDict):
    """What is known of the proposed cuts, on the plan's samples."""

    mean_s: Positive
    lower_bound_s: Positive
    gap: Number
    seconds: Positive


class Rounds(TypedDict):
    """The cuts of a policy [K], and its rounds on the plan's samples [S] and on fresh channels [C]."""

    cuts: list[Index]
    plan_s: list[Positive]
    fresh_s: list[Positive]


class Solved(TypedDict):
    """The file of a point."""

    name: str
    seed: int
    plan: Bound
    rounds: dict[str, Rounds]  # by policy
    seconds: Positive


def read_point(folder: Path, name: str, seed: int) -> dict[str, Any]:
    """What the file of a point says. name: as `point_name` gives it. seed: of the fleet."""
    path = folder / "points" / name / f"seed-{seed}.json"
    return dict(read_record(path, Solved, AGAIN))
