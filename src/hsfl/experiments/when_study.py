"""What `when` is made from: HSFL's planned cuts and the best single cut on a grid of settings, for many fleets, without training.

Legend: K clients, C channels drawn afresh. A *place* is one setting of the grid: how samples are spread over clients, the bits of a
number of smashed data, the noise, and the spread of speeds. A place is solved for many fleets; each answer is a small file, so that an
interrupted study goes on where it was. Cuts are planned on samples of the channel. Rounds, and the bound over all cuts, are of fresh ones.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hsfl.config import RunConfig, with_changes
from hsfl.data.partition import dirichlet
from hsfl.data.registry import FACTS
from hsfl.experiments.common import AGAIN, Say, claim
from hsfl.experiments.latency.latency_study import paper_base
from hsfl.experiments.statistics import UNDECIDED
from hsfl.files import read_record, write_json
from hsfl.formats import duration, took
from hsfl.models.cost_table import CostTable
from hsfl.planning.world import count_batches, model_cost, world_of
from hsfl.rng import stream
from hsfl.runs.run_folder.records import Index, Positive
from hsfl.runs.studies.process_pool import in_processes

Array = np.ndarray
FLOAT_BITS = 32  # of a number of smashed data in the cost table
WORTH = 1.01  # own cuts are worth it from this ratio on
BELOW, AT_LEAST = "below 1 % (proven)", "at least 1 %"  # else UNDECIDED
EQUAL = "equal"
ALPHAS = {"Dirichlet 0.5": 0.5, "Dirichlet 0.1": 0.1}  # spreads of samples; the first one is the paper preset's
SPREADS = (EQUAL, *ALPHAS)


@dataclass(frozen=True)
class Place:
    """One setting of the grid."""

    spread: str  # of samples over clients: a name of SPREADS
    heterogeneity: float  # of cycles and power; 0: equal devices
    noise: float  # times the preset's
    bits: int  # of a number of smashed data, and of its gradient

    @property
    def folder(self) -> str:
        spread = self.spread.replace(" ", "-").lower()
        return f"{spread}/heterogeneity-{self.heterogeneity:g}/noise-{self.noise:g}/bits-{self.bits}"


PRESET = Place("Dirichlet 0.5", 1.0, 1.0, FLOAT_BITS)  # the paper's setting


@dataclass(frozen=True)
class WhenStudy:
    """The values of the grid, and the fleets that each place is solved for."""

    base: RunConfig
    spreads: tuple[str, ...]
    heterogeneities: tuple[float, ...]
    noises: tuple[float, ...]
    bits: tuple[int, ...]
    num_fleets: int
    num_channels: int

    def settings(self) -> dict[str, Any]:
        """The settings that all answers of a folder have in common; places and fleets may be added later."""
        return {"config": self.base.model_dump(mode="json"), "channels": self.num_channels}

    @property
    def places(self) -> list[Place]:
        return [Place(*values) for values in product(self.spreads, self.heterogeneities, self.noises, self.bits)]

    @property
    def fleets(self) -> range:
        """The seeds of the fleets; a seed draws devices, channels and the division of samples."""
        return range(self.base.fleet_seed, self.base.fleet_seed + self.num_fleets)


@dataclass(frozen=True)
class FleetAnswer:
    """One fleet at one place: mean seconds of a round over the fresh channels, and what is proven of them."""

    fleet: int
    own_s: Positive  # planned cuts, one for each client
    single_s: Positive  # the single cut that is best on the plan's samples
    single_bound_s: Positive  # no single cut is faster on the fresh channels
    cuts_bound_s: Positive  # no cuts at all are faster on the fresh channels
    own_cuts: list[Index]  # [K]
    single_cut: Index
    seconds: Positive  # of solving

    @property
    def ratio(self) -> float:
        """Own cuts over the best single cut."""
        return self.single_s / self.own_s

    @property
    def verdict(self) -> str:
        return cuts_verdict(self.own_s, self.single_s, self.single_bound_s, self.cuts_bound_s)


def cuts_verdict(own_s: float, single_s: float, single_bound_s: float, cuts_bound_s: float) -> str:
    """Whether own cuts gain 1 % over the best single cut, in mean seconds of a round on the same channels.

    Below 1 %: no cuts at all are 1.01 times as fast as the single cut. At least 1 %: the planned cuts are 1.01 times as fast as any
    single cut can be. Else undecided: better cuts than the planned ones may exist, or they may not.
    """
    if cuts_bound_s >= single_s / WORTH:
        return BELOW
    return AT_LEAST if single_bound_s >= WORTH * own_s else UNDECIDED


@dataclass(frozen=True)
class FleetTask:
    """One fleet at one place, to be solved."""

    place: Place
    config: RunConfig
    num_channels: int

    @property
    def file(self) -> str:
        return f"{self.place.folder}/fleet-{self.config.fleet_seed}.json"


def when_study(scale: str, num_fleets: int | None = None) -> WhenStudy:
    """The grid of a scale. `num_fleets` may ask for more fleets than the scale's own number."""
    if scale == "smoke":
        return WhenStudy(paper_base(2), SPREADS[:2], (1.0,), (1.0, 1000.0), (32, 8), max(2, num_fleets or 0), 2)
    fleets = {"quick": 5, "full": 30}[scale]
    return WhenStudy(
        paper_base(10), SPREADS, (0.0, 0.5, 1.0), (1.0, 30.0, 1000.0), (32, 16, 8, 4), max(fleets, num_fleets or 0), 10
    )


def fleet_tasks(study: WhenStudy) -> list[FleetTask]:
    """All places of all fleets, ordered by fleet."""
    return [FleetTask(place, _config(study, place, fleet), study.num_channels) for fleet in study.fleets for place in study.places]  # fmt: skip


def _config(study: WhenStudy, place: Place, fleet: int) -> RunConfig:
    noise_w = place.noise * study.base.network.noise_w
    changes = [
        f"fleet.seed={fleet}",
        f"fleet.heterogeneity={place.heterogeneity!r}",
        f"network.noise_w={noise_w!r}",
    ]
    return with_changes(study.base, changes)


def solve_tasks(study: WhenStudy, folder: Path, say: Say, num_workers: int = 1) -> None:
    """Solve the tasks that have no file yet. After Ctrl-C every file holds a whole answer."""
    claim(folder, study.settings())
    all_tasks = fleet_tasks(study)
    missing = [task for task in all_tasks if not (folder / "fleets" / task.file).exists()]
    if not missing:
        return
    _, shape, num_classes = FACTS[study.base.data.name]
    cost = model_cost(study.base, shape, num_classes)
    began, done = time.perf_counter(), len(all_tasks) - len(missing)
    work = partial(_solve_and_write, cost=cost, folder=folder)
    for number, seconds in enumerate(in_processes(work, missing, num_workers), done + 1):
        left_s = (time.perf_counter() - began) / (number - done) * (len(all_tasks) - number)
        say(f"fleet {number}/{len(all_tasks)}  {took(seconds)}, about {duration(left_s)} left")


def _solve_and_write(task: FleetTask, cost: CostTable, folder: Path) -> float:
    answer = _solve_fleet_task(task, cost)
    write_json(folder / "fleets" / task.file, asdict(answer))
    return answer.seconds


def read_answers(study: WhenStudy, folder: Path, place: Place) -> list[FleetAnswer]:
    """The answers of all fleets at a place, from their files."""
    paths = [folder / "fleets" / place.folder / f"fleet-{fleet}.json" for fleet in study.fleets]
    return [read_record(path, FleetAnswer, AGAIN) for path in paths]


# ---- one fleet at one place


def with_bits(cost: CostTable, bits: int) -> CostTable:
    """The cost table where a number of smashed data, or of a gradient, takes so many bits. Raw data (cut 0) and models stay as they are."""
    scale = np.where(np.arange(cost.num_units + 1) > 0, bits / FLOAT_BITS, 1.0)
    return replace(cost, smashed_bits=scale * cost.smashed_bits, gradient_bits=scale * cost.gradient_bits)


def samples_of(config: RunConfig, spread: str) -> Array:
    """How many samples each client has, [K]: as many each, or classes of equal size divided by Dirichlet draws of the fleet's seed."""
    num_samples, _, num_classes = FACTS[config.data.name]
    num_clients = config.fleet.num_clients
    if spread == EQUAL:
        return np.full(num_clients, num_samples / num_clients)
    labels = np.arange(num_samples) % num_classes
    parts = dirichlet(labels, num_clients, stream(config.fleet_seed, "partition"), alpha=ALPHAS[spread])
    return np.array([len(indices) for indices in parts], float)


def _solve_fleet_task(task: FleetTask, cost: CostTable) -> FleetAnswer:
    """Plan own cuts and choose the best single cut on samples of the channel; time both, and bound all cuts, on fresh channels."""
    from hsfl.allocation.cuts.bound import bound_over_cuts, warm_up_bound  # here, because numba takes seconds to load
    from hsfl.allocation.cuts.search import best_single_cut, search_cuts, single_cuts
    from hsfl.allocation.stage.stage_answer import TimeLimit
    from hsfl.allocation.stage.subset_dp import few_subchannels
    from hsfl.planning.policy_cuts import cut_request
    from hsfl.planning.rounds.participation import CutTask
    from hsfl.planning.world import scenario_of_round

    began, config = time.perf_counter(), task.config
    batch_size, settings, min_cut = config.train.batch_size, config.allocation, config.fleet.min_cut
    world = world_of(config, with_bits(cost, task.place.bits))
    num_batches = count_batches(config, samples_of(config, task.place.spread))
    request = cut_request(CutTask(config, world, num_batches))
    fresh = [
        scenario_of_round(world, world.draw(index), batch_size, num_batches, None, settings.sharing, min_cut)
        for index in range(task.num_channels)
    ]
    own_cuts = search_cuts(replace(request, settings=replace(request.settings, bound=False))).cuts
    single = best_single_cut(request).cuts
    singles = [_mean_and_bound_s(fresh, cuts, settings) for cuts in single_cuts(request.rows)]
    warm_up_bound(fresh[0].sharing, not few_subchannels(*fresh[0].main_gain.shape))
    own_s, _ = _mean_and_bound_s(fresh, own_cuts, settings)
    return FleetAnswer(
        config.fleet_seed,
        own_s,
        singles[int(single[0]) - min_cut][0],
        min(bound_s for _, bound_s in singles),
        bound_over_cuts(fresh, own_cuts, TimeLimit(request.settings.time_limit_s)),
        own_cuts.tolist(),
        int(single[0]),
        time.perf_counter() - began,
    )


def _mean_and_bound_s(fresh: Sequence[Any], cuts: Array, settings: Any) -> tuple[float, float]:
    """The mean round in seconds with exact allocation, and the bound that no allocation with these cuts can beat."""
    from hsfl.allocation.exact import exact  # here, because numba takes seconds to load

    answers = [exact(channel, cuts, gap=settings.gap, time_limit_s=settings.time_limit_s) for channel in fresh]
    return float(np.mean([a.round_s for a in answers])), float(np.mean([a.lower_bound_s for a in answers]))
