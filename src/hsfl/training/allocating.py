"""Policies in a run: cuts chosen once, cycles, subchannels and power allocated every round, with the proven gap.

A policy allocates for the frameworks that train a copy per client (HSFL, SplitFed V1, FSL, FL); the others keep the
even allocation, where each turn has everything.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hsfl.allocation.answer import Allocation, rates
from hsfl.allocation.cuts import CutPlan, CutSettings, choose_cuts, exact_rounds
from hsfl.allocation.policies import Policy
from hsfl.allocation.policies import policy as policy_named
from hsfl.allocation.scenario import Scenario
from hsfl.config import AllocationConfig
from hsfl.errors import InputError
from hsfl.models.cost import CostTable
from hsfl.network.channel import Ofdma, RoundDraw, draw_rounds
from hsfl.network.latency import Phases, phases
from hsfl.training.world import World

Array = np.ndarray
Progress = Callable[[str, int, float], None]
FRAMEWORKS = ("hsfl", "splitfed_v1", "fsl", "fl")


@dataclass(frozen=True)
class Round:
    """One round's allocation as the clock needs it."""

    phases: Phases  # [K]
    kept: Array  # [K] bool, as planned: the others sit the round out
    says: dict[str, Any]  # for the record


def scenario(
    world: World,
    draw: RoundDraw,
    batch_size: int,
    num_batches: Array,
    tau_s: float | None,
    sharing: str,
    min_cut: int = 1,
) -> Scenario:
    """The round in explicit numbers, as `hsfl allocate` reads them."""
    links, cost, fleet, servers = world.links, world.cost, world.fleet, world.servers
    if not isinstance(links, Ofdma) or draw.main_gain is None or draw.edge_gain is None:
        raise InputError("network.kind is 'measured', which has no radio to allocate; set allocation.policy=even")
    if sharing == "auto":
        sharing = "bandwidth" if fleet.num_clients > links.num_subchannels else "exclusive"
    return Scenario(
        batch_size=batch_size,
        tau_s=tau_s,
        sharing=sharing,
        client_flops=cost.client_flops,
        server_flops=cost.server_flops,
        smashed_bits=cost.smashed_bits,
        gradient_bits=cost.gradient_bits,
        model_bits=cost.model_bits,
        cpu_hz=draw.cpu_hz,
        client_flops_per_cycle=fleet.flops_per_cycle,
        max_power_w=fleet.max_power_w,
        max_cut=np.minimum(fleet.max_cut, cost.num_units),
        num_batches=num_batches,
        min_cut=min_cut,
        main_hz=servers.main_hz,
        server_flops_per_cycle=servers.flops_per_cycle,
        main_power_w=servers.main_power_w,
        edge_power_w=servers.edge_power_w,
        subchannel_hz=links.subchannel_hz,
        noise_w=links.noise_w,
        main_gain=draw.main_gain,
        edge_gain=draw.edge_gain,
    ).checked()


def samples(
    world: World, settings: AllocationConfig, batch_size: int, num_batches: Array, min_cut: int
) -> list[Scenario]:
    """Rounds to plan on: recorded ones where there is a history, else draws of their own."""
    draws = world.recorded
    if draws is None:
        rounds = range(settings.samples)
        draws = draw_rounds(world.fleet, world.links, world.seed, rounds, speed_std=world.speed_std, key="samples")
    count = min(len(draws.cpu_hz), settings.samples)
    each = (draws.sample(index) for index in range(count))
    return [scenario(world, draw, batch_size, num_batches, None, settings.sharing, min_cut) for draw in each]


def plan_cuts(
    world: World,
    settings: AllocationConfig,
    batch_size: int,
    num_batches: Array,
    min_cut: int,
    progress: Progress | None = None,
) -> CutPlan:
    """The policy's cuts: optimised over samples, or by its rule (then the plan's gap is that of the rule's cuts)."""
    rounds = samples(world, settings, batch_size, num_batches, min_cut)
    chosen = policy_named(settings.policy)
    how = CutSettings(method=settings.cuts, seed=world.seed, time_limit_s=settings.plan_time_limit_s, threads=2)
    plan = choose_cuts(rounds, how, progress)
    if chosen.cuts == "optimised":
        return plan
    cuts = chosen.choose(rounds, how, progress)
    round_s = exact_rounds(rounds, cuts)
    gap = 1 - plan.lower_bound_s / round_s.mean()
    return replace(plan, cuts=cuts, round_s=round_s, mean_s=float(round_s.mean()), gap=float(gap), method=chosen.cuts)


def allocate_round(
    chosen: Policy, settings: AllocationConfig, round_scenario: Scenario, cost: CostTable, cuts: Array, on: Array
) -> Round:
    """Allocate for the clients that are on; the others sit out and cost nothing."""
    part = _only(round_scenario, on)
    answer = chosen.allocate(part, cuts[on], settings.gap, settings.time_limit_s)
    own = phases(
        cost,
        cuts[on],
        part.batch_size,
        part.cpu_hz * part.client_flops_per_cycle,
        answer.server_hz * part.server_flops_per_cycle,
        rates(part, answer),
    )
    kept = on.copy()
    kept[on] = answer.kept
    every = {name: _spread(getattr(own, name), on) for name in Phases.__dataclass_fields__}
    return Round(Phases(**every), kept, _says(chosen, answer, on))


def _only(whole: Scenario, on: Array) -> Scenario:
    if on.all():
        return whole
    names = ("cpu_hz", "client_flops_per_cycle", "max_power_w", "max_cut", "num_batches", "main_gain", "edge_gain")
    return replace(whole, **{name: getattr(whole, name)[on] for name in names})


def _spread(values: Array, on: Array) -> Array:
    """Of all clients, [K]; those that are off take no time."""
    every = np.zeros(len(on))
    every[on] = values
    return every


def _says(chosen: Policy, answer: Allocation, on: Array) -> dict[str, Any]:
    members = np.flatnonzero(on)
    says = {
        "policy": chosen.name,
        "status": answer.status.value,
        "gap": answer.gap,
        "lower_bound_s": answer.lower_bound_s,
        "seconds": answer.seconds,
        "server_hz": _spread(answer.server_hz, on).tolist(),
    }
    if answer.owner is not None:
        says["owner"] = [int(members[k]) if k >= 0 else -1 for k in answer.owner]
    elif answer.share is not None:
        says["share"] = _spread(answer.share.sum(axis=1), on).tolist()
    return says
