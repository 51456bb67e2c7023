"""Policies in a run: cuts chosen once, cycles, subchannels and power allocated every round, with the proven gap.

A policy allocates for the frameworks that train a copy per client (HSFL, SplitFed V1, FSL, FL). The other frameworks keep the
even allocation, in which each turn has the whole band and server; only CPSL has a policy of its own (`turns`). The policy `own` is the
allocation that a framework's authors chose, and the even one where they chose none.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from hsfl.allocation.answer import Allocation, SolveStatus, rates
from hsfl.allocation.cut_methods import CutChoice, CutSettings, OnProgress, rcls, scls
from hsfl.allocation.cuts import choose_cuts, exact_rounds
from hsfl.allocation.policies import Policy
from hsfl.allocation.policies import policy as policy_named
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.solving import TimeLimit
from hsfl.config import AllocationConfig, OptionsConfig, RunConfig
from hsfl.errors import InputError
from hsfl.methods import PROPOSED, copy_per_client_names, method
from hsfl.network.channel import Measured, RoundDraw
from hsfl.network.devices import MANY_CLIENTS
from hsfl.network.latency import Phases, phases
from hsfl.planning.allocators import Allocator, Allotment, Even, Job
from hsfl.planning.cells import allocate_cells, check_cells
from hsfl.planning.choice import Sampled, is_crowd
from hsfl.planning.clusters import own_policy, takes_turns
from hsfl.planning.crowds import crowd_cuts
from hsfl.planning.measured_links import allocate_measured, plan_measured_cuts, sampled_rounds
from hsfl.planning.resources import POWERS, radio_resources
from hsfl.planning.scenarios import models_alone, scenario, with_own_servers
from hsfl.planning.turns import GreedyTurns
from hsfl.planning.world import World, sample_draws
from hsfl.rng import stream

Array = np.ndarray


def allocator(config: RunConfig) -> Allocator:
    """The allocator of the config's framework. An unknown policy is an error, even for a framework that keeps the even allocation."""
    name = own_policy(config.allocation.policy, config.framework)
    settings = config.allocation.model_copy(update={"policy": name})
    optimised = Optimised(settings, config.options)
    if method(config.framework).copy_per_client and name != "even":
        return optimised
    check_cells(config.network.cells, takes_turns(config))
    return GreedyTurns() if takes_turns(config) else Even()


def policy_notes(config: RunConfig) -> list[str]:
    """Warnings of what the policy does not do in this run, though the user might expect it."""
    name = own_policy(config.allocation.policy, config.framework)
    if name == "even" or config.allocation.policy == "own":
        return []
    row = method(config.framework)
    if not row.copy_per_client and not takes_turns(config):
        allocated = ", ".join(copy_per_client_names())
        return [f"allocation.policy={name} is for {allocated}; {config.framework} keeps the even allocation"]
    if row.timing.server == "own":
        return [
            f"every client of {config.framework} has a server of its own; the policy {name} moves no cycles between them"
        ]
    if row.own_cuts and config.fleet.cuts == "max_cut":
        return [f"every client's cut is its deepest; with fleet.cuts=planned the policy {name} chooses the cuts, too"]
    return []


def samples(
    world: World, settings: AllocationConfig, batch_size: int, num_batches: Array, min_cut: int
) -> list[Scenario]:
    """The rounds to plan on: recorded rounds where there is a history, else draws apart from those of the run."""
    draws = sample_draws(world, settings.samples)
    count = min(len(draws.cpu_hz), settings.samples)
    each = (draws.sample(index) for index in range(count))
    return [scenario(world, draw, batch_size, num_batches, None, settings.sharing, min_cut) for draw in each]


def plan_cuts(
    world: World,
    settings: AllocationConfig,
    batch_size: int,
    num_batches: Array,
    min_cut: int,
    progress: OnProgress | None = None,
    options: OptionsConfig | None = None,
    sampled: Sampled | None = None,
) -> CutChoice:
    """The policy's cuts: optimised over samples, or by its rule. The gap of the plan is that of the cuts it returns.

    num_batches: [K] of a round. progress: is told what the search does, its step, and the best mean round so far in seconds.
    sampled: rounds to plan a crowd on; without them, everyone takes part.
    """
    chosen = policy_named(own_policy(settings.policy, PROPOSED), options)  # HSFL has a cut for each client
    how = CutSettings(
        method=settings.cuts,
        seed=world.seed,
        population=settings.population,
        patience=settings.patience,
        time_limit_s=settings.plan_time_limit_s,
        threads=2,
    )
    if isinstance(world.links, Measured):
        rates = sampled_rounds(world, settings.samples, batch_size, num_batches, min_cut)
        return plan_measured_cuts(world, rates, chosen.with_radio(), how, batch_size, num_batches, progress)
    if is_crowd(world):
        return _crowd_choice(world, chosen, sampled, batch_size, num_batches, min_cut)
    rounds = samples(world, settings, batch_size, num_batches, min_cut)
    plan = choose_cuts(rounds, how, progress)
    if chosen.cuts == "optimised":
        return plan
    cuts = chosen.choose(rounds, how, progress)
    round_s = exact_rounds(rounds, cuts)
    gap = 1 - plan.lower_bound_s / round_s.mean()
    return replace(
        plan, cuts=cuts, round_s=round_s, mean_s=float(round_s.mean()), gap=float(gap), method=chosen.cuts_rule
    )


def _crowd_choice(
    world: World, chosen: Policy, sampled: Sampled | None, batch_size: int, num_batches: Array, min_cut: int
) -> CutChoice:
    """The policy's cuts of a crowd: at prices, or by its rule."""
    clock = TimeLimit(np.inf)
    cuts, mean_s = crowd_cuts(
        world, sampled or Sampled.everyone(world.fleet.num_clients), batch_size, num_batches, min_cut
    )
    plan = CutChoice(cuts, np.array([mean_s]), mean_s, 0.0, 1.0, "prices", 1, clock.seconds(), timed_out=False)
    if chosen.cuts == "optimised":
        return plan
    fleet: Any = SimpleNamespace(
        min_cut=min_cut,
        max_cut=np.minimum(world.fleet.max_cut, world.cost.num_units),
        num_clients=world.fleet.num_clients,
    )
    if chosen.cuts == "random":
        return replace(plan, cuts=rcls(fleet, stream(world.seed, "rcls")), method=chosen.cuts_rule)
    if chosen.cuts == "smallest":
        return replace(plan, cuts=scls(fleet), method=chosen.cuts_rule)
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


class Optimised:
    """Allocates each round by a policy; clients that cannot finish within tau sit the round out."""

    def __init__(self, settings: AllocationConfig, options: OptionsConfig | None = None) -> None:
        self.settings, self.policy = settings, policy_named(settings.policy, options)

    def allocate(self, job: Job, draw: RoundDraw, started: Array) -> Allotment:
        """Allocate the training for the clients that start, and the download for all clients that receive the model."""
        if isinstance(job.world.links, Measured):
            return allocate_measured(self.policy.with_radio(), job, draw, started)
        if job.world.links.cell is not None or len(started) > MANY_CLIENTS:  # only who takes part is looked at
            return allocate_cells(self.policy, self.settings, job, draw, started)
        config, fleet = job.config, job.world.fleet
        num_batches = np.broadcast_to(np.asarray(job.num_batches, float), (fleet.num_clients,))
        deepest = replace(fleet, max_cut=np.maximum(fleet.max_cut, job.cuts))
        every = scenario(
            replace(job.world, fleet=deepest), draw, config.train.batch_size, num_batches, config.train.tau_s,
            self.settings.sharing, min(config.fleet.min_cut, int(job.cuts.min())),
        )  # fmt: skip
        receives = np.ones(len(started), bool) if job.receives is None else job.receives
        if (receives & ~started).any():
            part_gap = 0.9 * self.settings.gap  # so that both parts together keep the gap
            models = self._solve(job, models_alone(every), receives, part_gap)
            answer = _distributed(self._solve(job, every, started, part_gap), models, self.settings.gap)
        else:
            answer = self._solve(job, every, started, self.settings.gap)
        own = phases(
            job.world.cost,
            job.cuts,
            every.batch_size,
            every.cpu_hz * every.client_flops_per_cycle,
            answer.server_hz * every.server_flops_per_cycle,
            rates(every, answer),
        )
        on = {name: receives if name == "model_down_s" else answer.kept for name in Phases.__dataclass_fields__}
        times = Phases(**{name: np.where(on[name], getattr(own, name), 0.0) for name in on})
        return Allotment(times, answer.kept, _says(self.policy, every, answer))

    def _solve(self, job: Job, every: Scenario, on: Array, gap: float) -> Allocation:
        """Allocate for the clients that are on; the other clients get nothing."""
        part, cuts, own_hz = _only(every, on), job.cuts[on], every.main_hz / every.num_clients
        own_servers = method(job.config.framework).timing.server == "own"
        part = with_own_servers(part, cuts, own_hz) if own_servers else part
        answer = self.policy.allocate(part, cuts, gap, self.settings.time_limit_s)
        if own_servers:
            answer = replace(answer, server_hz=np.where(answer.kept, own_hz, 0.0))
        return _among_all(answer, job, on)


def _distributed(training: Allocation, models: Allocation, gap: float) -> Allocation:
    """One answer from two: training as in the first, the model's download as in the second, which has more receivers.

    The stages share nothing, so an answer's bound less the seconds of one of its stages bounds the other stage.
    """
    first_s, down_s = (float(answer.phases["model_down_s"].max()) for answer in (training, models))
    round_s = training.round_s - first_s + down_s
    down_bound_s = models.lower_bound_s - (models.round_s - down_s)
    bound_s = min(training.lower_bound_s + max(down_bound_s - first_s, 0.0), round_s)
    reached = (round_s - bound_s) / round_s if round_s > 0 else 0.0
    status = training.status
    if status is SolveStatus.OPTIMAL and reached > gap * (1 + 1e-6) + 1e-9:
        status = SolveStatus.TIME_LIMIT
    return replace(
        training,
        status=status,
        edge_down_owner=models.edge_down_owner,
        edge_down_share=models.edge_down_share,
        edge_down_power_w=models.edge_down_power_w,
        round_s=round_s,
        lower_bound_s=bound_s,
        gap=reached,
        seconds=training.seconds + models.seconds,
    )


def _only(whole: Scenario, on: Array) -> Scenario:
    if on.all():
        return whole
    names = ("cpu_hz", "client_flops_per_cycle", "max_power_w", "max_cut", "num_batches", "main_gain", "edge_gain")
    return replace(whole, **{name: getattr(whole, name)[on] for name in names})


def _among_all(answer: Allocation, job: Job, on: Array) -> Allocation:
    """The answer for the clients that are on, extended to all clients."""
    members = np.flatnonzero(on)

    def spread(values: Array | None) -> Any:
        return None if values is None else _spread(values, on)

    def owners(owner: Array | None) -> Any:
        return None if owner is None else np.where(owner >= 0, members[owner], -1)

    names = ("kept", "server_hz", "share", "edge_down_share", *POWERS)
    return replace(
        answer,
        cuts=job.cuts,
        owner=owners(answer.owner),
        edge_down_owner=owners(answer.edge_down_owner),
        **{name: spread(getattr(answer, name)) for name in names},
    )


def _spread(values: Array, on: Array) -> Array:
    """Values of the clients that are on, as an array of all clients [K, ...]; clients that are off have 0."""
    every = np.zeros((len(on), *values.shape[1:]), values.dtype)
    every[on] = values
    return every


def _says(chosen: Policy, every: Scenario, answer: Allocation) -> dict[str, Any]:
    """What the round's record says: the proven gap, each client's totals, and the numbers that recompute the round."""
    says = {
        "policy": chosen.name,
        "status": answer.status.value,
        "gap": answer.gap,
        "lower_bound_s": answer.lower_bound_s,
        "seconds": answer.seconds,
        "server_hz": answer.server_hz.tolist(),
        "up_power_w": answer.main_up_power_w.sum(axis=1).tolist(),  # over the client's subchannels
        "down_power_w": answer.main_down_power_w.sum(axis=1).tolist(),  # the main server's, for it
    }
    if answer.owner is not None:
        says["owner"] = answer.owner.tolist()
    elif answer.share is not None:
        says["share"] = answer.share.sum(axis=1).tolist()
    return says | {"resources": radio_resources(every, answer)}
