"""Who gets what in a round. An allocator turns a round's draw into the seconds of every client's phases."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hsfl.config import RunConfig
from hsfl.network.channel import RoundDraw
from hsfl.network.clock import even_phases
from hsfl.network.latency import Phases
from hsfl.planning.world import World

Array = np.ndarray


@dataclass(frozen=True)
class Job:
    """What is to be done in every round of a run, as the clock charges it."""

    config: RunConfig
    world: World
    cuts: Array  # [K]
    batch_size: Array | int
    num_batches: Array | float
    receives: Array | None = None  # [K] bool, who gets the new model; None: everyone
    clusters: Array | None = None  # [K], CPSL's


@dataclass(frozen=True)
class Allotment:
    """One round's allocation as the clock needs it."""

    phases: Phases  # [K]
    kept: Array  # [K] bool, as planned: the others sit the round out
    says: dict[str, Any]  # for the record


class Allocator(Protocol):
    def allocate(self, job: Job, draw: RoundDraw, started: Array) -> Allotment:
        """Divide server, band and power among the clients that start."""
        ...


class Even:
    """Equal cycles, subchannels in turn, equal downlink power, uplink at the maximum."""

    def allocate(self, job: Job, draw: RoundDraw, started: Array) -> Allotment:
        world = job.world
        phases = even_phases(
            job.config.framework, world.cost, job.cuts, job.batch_size, world.fleet, world.servers, world.links, draw,
            started=started, receives=job.receives, clusters=job.clusters,
        )  # fmt: skip
        return Allotment(phases, started, {"policy": "even"})
