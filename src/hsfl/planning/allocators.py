"""Allocators: who gets which cycles, band and power in a round, and how many seconds every phase of a client takes then."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hsfl.config import RunConfig
from hsfl.network.channel import RoundDraw
from hsfl.network.even_allocation import even_phases
from hsfl.network.latency import Phases
from hsfl.planning.world import World

Array = np.ndarray


@dataclass(frozen=True)
class Job:
    """The work of every round of a run, as the clock charges it."""

    config: RunConfig
    world: World
    cuts: Array  # [K]
    batch_size: Array | int
    num_batches: Array | float
    receives: Array | None = None  # [K] bool, who gets the new model; None if everyone does
    clusters: Array | None = None  # [K], CPSL's


@dataclass(frozen=True)
class Allotment:
    """What a round gives the clients, in the form that the clock needs."""

    phases: Phases  # [K]
    kept: Array  # [K] bool: who trains; a client that started and is not kept sits the round out
    says: dict[str, Any]  # what the round's record says of the allocation


class Allocator(Protocol):
    """What divides a round among clients: `Even`, or a policy."""

    def allocate(self, job: Job, draw: RoundDraw, started: Array) -> Allotment:
        """Divide server, band and power among the clients that start. draw: the speeds and gains of the round. started: [K] bool."""
        ...


class Even:
    """The even allocation: equal cycles, subchannels in turn, equal downlink power, and the uplink at its maximum."""

    def allocate(self, job: Job, draw: RoundDraw, started: Array) -> Allotment:
        world = job.world
        phases = even_phases(
            job.config.framework, world.cost, job.cuts, job.batch_size, world.fleet, world.servers, world.links, draw,
            started=started, receives=job.receives, clusters=job.clusters,
        )  # fmt: skip
        return Allotment(phases, started, {"policy": "even"})
