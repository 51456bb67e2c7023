"""Policies in a run: cycles, subchannels and power allocated every round, with the proven gap.

A policy allocates for the frameworks that train a copy per client (HSFL, SplitFed V1, FSL, FL). The other frameworks keep the
even allocation, in which each turn has the whole band and server; only CPSL has a policy of its own (`turns`). The policy `own` is the
allocation that a framework's authors chose, and the even one where they chose none.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from hsfl.allocation.answer import Allocation, SolveStatus, rates, within_gap
from hsfl.allocation.policies import PROOF_LIMIT_S, Policy
from hsfl.allocation.policies import policy as policy_named
from hsfl.allocation.scenario import Scenario
from hsfl.config import AllocationConfig, OptionsConfig, RunConfig
from hsfl.methods import copy_per_client_names, method
from hsfl.network.channel import Measured, RoundDraw
from hsfl.network.devices import MANY_CLIENTS
from hsfl.network.latency import Phases, phases
from hsfl.planning.allocators import Allocator, Allotment, Even, Job
from hsfl.planning.cells import allocate_cells, check_cells, left_for_models_s
from hsfl.planning.clusters import own_policy, takes_turns
from hsfl.planning.measured_links import allocate_measured
from hsfl.planning.resources import POWERS, radio_resources
from hsfl.planning.scenarios import scenario, with_own_servers
from hsfl.planning.turns import GreedyTurns

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
            training = self._solve(job, every, started, part_gap)
            left_s = left_for_models_s(self.settings.time_limit_s, training.seconds)
            answer = _distributed(training, self._distribute(job, every, receives, part_gap, left_s), self.settings.gap)
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

    def _distribute(self, job: Job, every: Scenario, on: Array, gap: float, limit_s: float) -> Allocation:
        """The model's distribution to the clients that are on, with the exact solver's bound."""
        part, cuts = _only(every, on), job.cuts[on]
        answer = self.policy.distribute(part, cuts, gap, limit_s)
        if not self.policy.is_optimal:
            best = policy_named("proposed").distribute(part, cuts, gap, min(limit_s, PROOF_LIMIT_S))
            answer = replace(answer, lower_bound_s=best.lower_bound_s, seconds=answer.seconds + best.seconds)
        return _among_all(answer, job, on)


def _distributed(training: Allocation, models: Allocation, gap: float) -> Allocation:
    """One answer from two: training as in the first, the model's download as in the second, which has more receivers.

    The stages share nothing, so what is proven for each of them counts together.
    """
    first_s = float(training.phases["model_down_s"].max())
    round_s = training.round_s - first_s + models.round_s
    bound_s = min(training.training_bound_s + models.lower_bound_s, round_s) if training.lower_bound_s > 0.0 else 0.0
    reached = (round_s - bound_s) / round_s if round_s > 0 else 0.0
    status = training.status
    if status is SolveStatus.OPTIMAL and not within_gap(reached, gap):
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
