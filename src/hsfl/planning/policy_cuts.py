"""The cuts of a policy, chosen once before a run: searched over sampled rounds, or given by the policy's rule."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from hsfl.allocation.cut_methods import CutChoice, CutSettings, OnProgress, rcls, scls
from hsfl.allocation.cuts import choose_cuts
from hsfl.allocation.policies import Policy, policy
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.solving import TimeLimit
from hsfl.config import AllocationConfig, OptionsConfig
from hsfl.errors import InputError
from hsfl.methods import PROPOSED
from hsfl.network.channel import Measured
from hsfl.planning.choice import Sampled, is_crowd
from hsfl.planning.clusters import own_policy
from hsfl.planning.crowds import crowd_cuts
from hsfl.planning.measured_links import plan_measured_cuts, ruled_cuts, sampled_rounds
from hsfl.planning.scenarios import scenario
from hsfl.planning.world import World, sample_draws
from hsfl.rng import stream

Array = np.ndarray


def samples(
    world: World, settings: AllocationConfig, batch_size: int, num_batches: Array, min_cut: int
) -> list[Scenario]:
    """The rounds to plan on: recorded rounds where there is a history, else draws apart from those of the run."""
    draws = sample_draws(world, settings.samples)
    count = min(len(draws.cpu_hz), settings.samples)
    each = (draws.sample(index) for index in range(count))
    return [scenario(world, draw, batch_size, num_batches, None, settings.sharing, min_cut) for draw in each]


def policy_cuts(
    world: World,
    settings: AllocationConfig,
    batch_size: int,
    num_batches: Array,
    min_cut: int,
    options: OptionsConfig | None = None,
    sampled: Sampled | None = None,
) -> tuple[Array, str | None]:
    """The policy's cuts [K], and what to say of a search that its time limit stopped. A policy with a rule for cuts searches nothing.

    num_batches: [K] of a round. sampled: rounds to plan a crowd on; without them, everyone takes part.
    """
    chosen = policy(own_policy(settings.policy, PROPOSED), options)  # HSFL has a cut for each client
    if isinstance(world.links, Measured):
        chosen = chosen.with_radio()
    if chosen.chooses_cuts:
        return _ruled_cuts(chosen, world, settings, batch_size, num_batches, min_cut), None
    plan = plan_cuts(world, settings, batch_size, num_batches, min_cut, sampled=sampled)
    return plan.cuts, limit_note(settings, plan)


def plan_cuts(
    world: World,
    settings: AllocationConfig,
    batch_size: int,
    num_batches: Array,
    min_cut: int,
    progress: OnProgress | None = None,
    sampled: Sampled | None = None,
) -> CutChoice:
    """The cuts that are best over the samples, with the gap that is proven of them. Arguments are as in `policy_cuts`.

    progress: is told what the search does, its step, and the best mean round so far in seconds.
    """
    how = search_settings(settings, world.seed, threads=2)
    if isinstance(world.links, Measured):
        rounds = sampled_rounds(world, settings.samples, batch_size, num_batches, min_cut)
        return plan_measured_cuts(world, rounds, how, batch_size, num_batches, progress)
    if is_crowd(world):
        clock, among = TimeLimit(np.inf), sampled or Sampled.everyone(world.fleet.num_clients)
        cuts, mean_s = crowd_cuts(world, among, batch_size, num_batches, min_cut)
        return CutChoice(cuts, np.array([mean_s]), mean_s, 0.0, 1.0, "prices", 1, clock.seconds(), timed_out=False)
    return choose_cuts(samples(world, settings, batch_size, num_batches, min_cut), how, progress)


def search_settings(settings: AllocationConfig, seed: int, threads: int = 1) -> CutSettings:
    """How the settings say that cuts are searched. seed: the fleet's. threads: 1 where several searches run side by side."""
    return CutSettings(
        method=settings.cuts,
        seed=seed,
        population=settings.population,
        patience=settings.patience,
        time_limit_s=settings.plan_time_limit_s,
        threads=threads,
    )


def _ruled_cuts(
    chosen: Policy, world: World, settings: AllocationConfig, batch_size: int, num_batches: Array, min_cut: int
) -> Array:
    """The cuts [K] that the policy's rule gives."""
    if isinstance(world.links, Measured):
        rounds = sampled_rounds(world, settings.samples, batch_size, num_batches, min_cut)
        return ruled_cuts(chosen, rounds, world.seed)
    if is_crowd(world):
        return _ruled_crowd(chosen, world, min_cut)
    return chosen.choose(samples(world, settings, batch_size, num_batches, min_cut), CutSettings(seed=world.seed))


def _ruled_crowd(chosen: Policy, world: World, min_cut: int) -> Array:
    """The cuts [K] of a crowd, where the rule needs no rounds to try cuts on."""
    fleet: Any = SimpleNamespace(
        min_cut=min_cut,
        max_cut=np.minimum(world.fleet.max_cut, world.cost.num_units),
        num_clients=world.fleet.num_clients,
    )
    if chosen.cuts == "random":
        return rcls(fleet, stream(world.seed, "rcls"))
    if chosen.cuts == "smallest":
        return scls(fleet)
    raise InputError(
        f"policy {chosen.name} tries cuts one by one, which takes too long for {world.fleet.num_clients} clients in cells or "
        "crowds; choose proposed, rcls or scls"
    )


def limit_note(settings: AllocationConfig, plan: CutChoice) -> str | None:
    """What to say of a search that its limit stopped; None where it came to its end."""
    if not plan.timed_out:
        return None
    return (
        f"the search for cuts was stopped by allocation.plan_time_limit_s = {settings.plan_time_limit_s:g}, with a proven gap of "
        f"{plan.gap:.1%}; a longer search, or a faster machine, may find better cuts"
    )
