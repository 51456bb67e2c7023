"""The rounds that a plan is made on, under one policy: its cuts, the clients in the first sample, and the mean round of any cuts.

Three kinds answer the same questions: a radio with a policy, measured links with a policy, and the even allocation of a run
without a policy, on either.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hsfl.allocation.answer import phases_of
from hsfl.allocation.cut_methods import CutSettings
from hsfl.allocation.cuts import LEAST_S
from hsfl.allocation.measured import optimal_cycles
from hsfl.allocation.policies import Policy, policy
from hsfl.allocation.solving import TimeLimit
from hsfl.config import AllocationConfig, RunConfig
from hsfl.network.channel import Measured, RoundDraw
from hsfl.network.framework_phases import even_phases
from hsfl.network.latency import Phases, phases, round_s
from hsfl.planning.cuts import fastest_cuts
from hsfl.planning.measured_links import measured_rounds, ruled_cuts
from hsfl.planning.plan_clients import ClientPlan, client_plans
from hsfl.planning.policy_cuts import samples
from hsfl.planning.world import World, sample_draws

Array = np.ndarray
BASELINES = ("proposed", "rcls", "scls", "ecfa", "gtra", "etra", "even")
MEASURED_BASELINES = ("proposed", "rcls", "scls", "ecfa")  # no subchannels and no power, so even is ecfa


class PlanRounds(Protocol):
    """What a plan asks of its rounds. Cuts are [K]; a mean is in seconds over all samples."""

    cuts: Array

    def clients(self, cuts: Array) -> list[ClientPlan]: ...
    def mean_s(self, cuts: Array) -> float: ...
    def baselines_s(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class PlanTask:
    """What a plan is made for, and the cuts of the proposed policy, [K]."""

    config: RunConfig
    settings: AllocationConfig  # of the search for cuts
    chosen: Policy
    world: World
    num_batches: Array  # [K] of a round
    proposed: Array


def plan_rounds(task: PlanTask) -> PlanRounds:
    """The rounds to plan on, under the task's policy."""
    rounds = MeasuredPlan(task) if isinstance(task.world.links, Measured) else RadioPlan(task)
    return EvenPlan(task, rounds) if task.chosen.name == "even" else rounds


def _draws(task: PlanTask) -> RoundDraw:
    """The samples [S, ...]: recorded rounds where there is a history, else draws apart from those of a run."""
    return sample_draws(task.world, task.settings.samples).sample(slice(task.settings.samples))


class RadioPlan:
    """Rounds over a radio, which the policy's rules or the exact solver allocate."""

    def __init__(self, task: PlanTask) -> None:
        world, settings, config = task.world, task.settings, task.config
        self._settings, self._chosen, self._num_batches = settings, task.chosen, task.num_batches
        self._seed, self._proposed = world.seed, task.proposed
        self._rounds = samples(world, settings, config.train.batch_size, task.num_batches, config.fleet.min_cut)
        searched = not self._chosen.chooses_cuts
        self.cuts = task.proposed if searched else self._chosen.choose(self._rounds, CutSettings(seed=world.seed))

    def clients(self, cuts: Array) -> list[ClientPlan]:
        answer = self._chosen.allocate(self._rounds[0], cuts, self._settings.gap, self._settings.time_limit_s)
        optimal = self._chosen.cycles == "optimal" and self._chosen.allocator is None
        times = phases_of(self._rounds[0], answer)
        return client_plans(cuts, answer.server_hz, times, self._num_batches, answer, optimal)

    def mean_s(self, cuts: Array) -> float:
        gap, limit_s = self._settings.gap, self._settings.time_limit_s
        return float(np.mean([self._chosen.allocate(each, cuts, gap, limit_s).round_s for each in self._rounds]))

    def baselines_s(self) -> dict[str, float]:
        """The mean round of each policy; a policy without a rule for cuts takes the proposed cuts.

        All of them together take about as long as the search for cuts may: every round has an equal part of the time that is
        left.
        """
        names = dict.fromkeys((*BASELINES, self._chosen.name))
        rules = [self._chosen if name == self._chosen.name else policy(name) for name in names]
        if self._rounds[0].sharing == "bandwidth":
            rules = [rule for rule in rules if rule.subchannels != "greedy"]
        clock, num_left = TimeLimit(self._settings.plan_time_limit_s), len(rules) * len(self._rounds)
        means: dict[str, float] = {}
        for rule in rules:
            searched = not rule.chooses_cuts
            cuts = self._proposed if searched else rule.choose(self._rounds, CutSettings(seed=self._seed))
            spent = []
            for each in self._rounds:
                limit_s = min(self._settings.time_limit_s, max(LEAST_S, clock.left_s() / num_left))
                spent.append(rule.allocate(each, cuts, self._settings.gap, limit_s).round_s)
                num_left -= 1
            means[rule.name] = float(np.mean(spent))
        if means["even"] == means["ecfa"] and self._chosen.name != "even":
            del means["even"]  # the same, shown once
        return means


class MeasuredPlan:
    """Rounds over measured links: there is no radio to divide, only cuts and the main server's cycles."""

    def __init__(self, task: PlanTask) -> None:
        self._batch_size, self._world, self._num_batches = task.config.train.batch_size, task.world, task.num_batches
        self._chosen, self._proposed = task.chosen.with_radio(), task.proposed
        draws = _draws(task)
        self._rounds = measured_rounds(task.world, draws, self._batch_size, task.num_batches, task.config.fleet.min_cut)
        self._first = draws.sample(0)
        searched = not self._chosen.chooses_cuts
        self.cuts = task.proposed if searched else ruled_cuts(self._chosen, self._rounds, task.world.seed)

    def clients(self, cuts: Array) -> list[ClientPlan]:
        rates, servers = self._first.rates, self._world.servers
        assert rates is not None, "measured links draw rates"
        own_s, work, _ = self._rounds.at(cuts)
        server_hz = optimal_cycles(own_s[0], work[0], self._rounds.main_hz)
        if self._chosen.cycles == "even":
            server_hz = np.full(len(cuts), self._rounds.main_hz / len(cuts))
        speed = self._first.cpu_hz * self._world.fleet.flops_per_cycle
        times = phases(self._world.cost, cuts, self._batch_size, speed, server_hz * servers.flops_per_cycle, rates)
        return client_plans(cuts, server_hz, times, self._num_batches, None, self._chosen.cycles == "optimal")

    def mean_s(self, cuts: Array) -> float:
        return self._mean_s(self._chosen, cuts)

    def baselines_s(self) -> dict[str, float]:
        means = {}
        for name in dict.fromkeys((*MEASURED_BASELINES, self._chosen.name)):
            rule = policy(name)
            searched = not rule.chooses_cuts
            cuts = self._proposed if searched else ruled_cuts(rule, self._rounds, self._world.seed)
            means[name] = self._mean_s(rule, cuts)
        return means

    def _mean_s(self, rule: Policy, cuts: Array) -> float:
        rounds = self._rounds
        return float((rounds.even_round_s if rule.cycles == "even" else rounds.round_s)(cuts).mean())


class EvenPlan:
    """Rounds under the even allocation as a run shares it, with the cuts that are fastest under it."""

    def __init__(self, task: PlanTask, others: RadioPlan | MeasuredPlan) -> None:
        self._batch_size, self._world, self._num_batches = task.config.train.batch_size, task.world, task.num_batches
        self._draws, self._others = _draws(task), others
        self.cuts = np.array(fastest_cuts(task.world, self._batch_size, task.num_batches, task.config.fleet.min_cut))
        self._first = self._draws.sample(0)

    def clients(self, cuts: Array) -> list[ClientPlan]:
        server_hz = np.full(len(cuts), self._world.servers.main_hz / len(cuts))
        times = self._phases(cuts, self._first)
        return client_plans(cuts, server_hz, times, self._num_batches, None, False)

    def mean_s(self, cuts: Array) -> float:
        return float(round_s(self._phases(cuts, self._draws), self._num_batches).mean())

    def baselines_s(self) -> dict[str, float]:
        return self._others.baselines_s() | {"even": self.mean_s(self.cuts)}

    def _phases(self, cuts: Array, draw: RoundDraw) -> Phases:
        world = self._world
        return even_phases("hsfl", world.cost, cuts, self._batch_size, world.fleet, world.servers, world.links, draw)
