"""Policies in a run: cycles, subchannels and power allocated every round, with the proven gap.

A policy allocates for the frameworks that train a copy per client (HSFL, SplitFed V1, FSL, FL). The other frameworks keep the
even allocation: each turn has the whole band and server, and where all go in step they share the band; only CPSL has a policy of its own (`cpsl_policy`). The policy `own` is the
allocation that a framework's authors chose, and the even one where they chose none.
"""

import numpy as np

from hsfl.allocation.policies import policy
from hsfl.config import AllocationConfig, OptionsConfig, RunConfig
from hsfl.framework_table import copy_per_client_names, method
from hsfl.network.channel import Measured, RoundDraw
from hsfl.planning.rounds.allocators import Allocator, Allotment, Even, Job, own_policy
from hsfl.planning.rounds.cpsl_policy import GreedyTurns, takes_turns
from hsfl.planning.rounds.measured_round import allocate_measured
from hsfl.planning.rounds.radio_round import allocate_cells, check_cells

Array = np.ndarray


def find_policy_allocator(config: RunConfig) -> Allocator:
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
    if row.own_cuts and config.fleet.cuts == "max_cut":
        return [f"every client's cut is its deepest; with fleet.cuts=planned the policy {name} chooses the cuts, too"]
    return []


class Optimised:
    """Allocates each round by a policy; clients that cannot finish within tau sit the round out."""

    def __init__(self, settings: AllocationConfig, options: OptionsConfig | None = None) -> None:
        self.settings, self.policy = settings, policy(settings.policy, options)

    def allocate(self, job: Job, draw: RoundDraw, started: Array) -> Allotment:
        """Allocate the training for the clients that start, and the download for all clients that receive the model."""
        if isinstance(job.world.links, Measured):
            return allocate_measured(self.policy.refuse_without_radio(), job, draw, started)
        return allocate_cells(self.policy, self.settings, job, draw, started)
