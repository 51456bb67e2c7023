"""Allocators divide a round among clients: who gets which cycles, band and power, and how long every phase of a client takes then.

Here are the work of a round (`Job`), the answer (`Allotment`), the even allocation, and which policy a config asks for. The
allocator of a policy is in `policy_allocator`, which needs numba. `radio_resources` and `measured_resources` write down what a
round gave the clients, in explicit numbers, from which (with config.json and clients.json) the round can be recomputed: the
numbers have ten digits, so a recomputed round differs from the recorded one by less than one part in 10^9. Matrices [K][I] of
large fleets are left out, and `left_out` names them.

Legend: K clients, I subchannels.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hsfl.allocation.policy_table import PolicyRow, policy_row
from hsfl.config import RunConfig
from hsfl.formats import all_rounded
from hsfl.framework_table import method
from hsfl.network.channel import RATE_NAMES, RoundDraw
from hsfl.network.even_allocation import even_phases
from hsfl.network.latency import Phases, Rates
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
    allocation_note: dict[str, Any]  # what the round's record says of the allocation


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


# --- the policy of a config


def own_policy(name: str, framework: str) -> str:
    """The name of a policy, where `own` and `auto` are replaced by the framework's own policy and by the fair one."""
    row = method(framework)
    if name == "auto":
        return "proposed" if row.copy_per_client else "even"
    return row.own_policy if name == "own" else name


def policy_of(config: RunConfig) -> PolicyRow:
    """The row of the config's policy for its framework."""
    return policy_row(own_policy(config.allocation.policy, config.framework), config.options)


# --- what a round gave the clients, for its record

DIGITS = 10
MOST_PAIRS = 2000  # of clients and subchannels that are still written down
POWERS = ("main_up_power_w", "main_down_power_w", "edge_up_power_w", "edge_down_power_w")


def radio_resources(
    draw: RoundDraw, flops_per_s: Array, given: dict[str, Array], owners: dict[str, Array], cell: Array | None
) -> dict[str, Any]:
    """Speeds and gains of all clients, who has which subchannel (the model's download has its own), and watts.

    Where every subchannel has one owner: `owner` [I] and the power there [I]. Where bands are shared: `share` [K][I] and each
    client's power in all [K], since all policies fill it like water: s max(0, level - noise / gain) on a share s. flops_per_s: [K].
    given: shares and powers [K, I] by name. owners: [I] by name; empty where bands are shared. cell: [K], where there are cells.
    """
    assert draw.main_gain is not None, "a radio draws gains"
    assert draw.edge_gain is not None, "a radio draws gains"
    small = {"flops_per_s": flops_per_s} | ({} if cell is None else {"cell": cell.astype(float)}) | owners
    small |= {name: given[name].sum(axis=0 if owners else 1) for name in POWERS}
    large = {"main_gain": draw.main_gain, "edge_gain": draw.edge_gain}
    if not owners:
        large |= {name: given[name] for name in ("share", "edge_down_share")}
    return _written_down({"sharing": "exclusive" if owners else "bandwidth"}, small, large, draw.main_gain.size)


def measured_resources(flops_per_s: Array, rates: Rates) -> dict[str, Any]:
    """Speeds and rates of all clients, where links are measured."""
    bps = {name: getattr(rates, name) for name in RATE_NAMES}
    return _written_down({}, {"flops_per_s": flops_per_s}, bps, len(flops_per_s))


def _written_down(
    labels: dict[str, Any], small: dict[str, Array], large: dict[str, Array], num_pairs: int
) -> dict[str, Any]:
    if num_pairs > MOST_PAIRS:
        labels, large = labels | {"left_out": sorted(large)}, {}
    return labels | {name: _short(values) for name, values in (small | large).items()}


def _short(values: Array) -> list[Any]:
    """Plain lists of numbers with ten digits; whole numbers have no point."""
    if values.ndim > 1:
        return [_short(row) for row in values]
    return [int(v) if v.is_integer() and abs(v) < 1e9 else v for v in all_rounded(values, DIGITS)]
