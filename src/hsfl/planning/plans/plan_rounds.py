"""The rounds that a plan is made on, under one policy: the policy's cuts, the mean round of any cuts, and what each client gets in
the first sampled round (`ClientPlan`).

Three classes answer the same questions (`PlanRounds`): `RadioPlan` for a policy over a radio, `MeasuredPlan` for a policy over
measured links, and `EvenPlan` for the even allocation of a run without a policy, over either.

Legend: K clients, S sampled rounds.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from hsfl.allocation.answer import Allocation, phases_of
from hsfl.allocation.cuts.bound import LEAST_S
from hsfl.allocation.cuts.radio import RadioRounds
from hsfl.allocation.cuts.search import CutRequest
from hsfl.allocation.measured_links import MeasuredRounds, optimal_cycles
from hsfl.allocation.policies import Policy, policy
from hsfl.allocation.queued_rounds import QueuedRounds
from hsfl.allocation.stage.stage_answer import TimeLimit
from hsfl.network.channel import Measured, RoundDraw
from hsfl.network.even_allocation import even_phases
from hsfl.network.latency import Phases, phases, round_s, training_end_s
from hsfl.network.server_queue import queued_work
from hsfl.planning.cuts import fastest_cuts
from hsfl.planning.rounds.allocators import POWERS
from hsfl.planning.rounds.participation import CutTask
from hsfl.planning.world import sample_draws

Array = np.ndarray
BATCH_PHASES = ("client", "smashed", "server", "gradient")
BASELINES = ("proposed", "rcls", "scls", "ecfa", "gtra", "etra", "even")
QUEUE_BASELINES = ("proposed", "rcls", "scls")
MEASURED_BASELINES = ("proposed", "rcls", "scls", "ecfa")  # no subchannels and no power, so even is ecfa


@dataclass(frozen=True)
class ClientPlan:
    """One client in the first sample. A power is the sum over the client's subchannels; None where links are measured."""

    client: int
    cut: int  # in the plan's rounds the client's row of the cost table, which `as_told` turns into cut and codec
    server_hz: float
    subchannels: list[int] | None  # that the client owns; None where bands are shared or links are measured
    share: list[float] | None  # of each subchannel, where bands are shared
    main_up_power_w: float | None
    main_down_power_w: float | None
    edge_up_power_w: float | None
    edge_down_power_w: float | None
    seconds: dict[str, float]  # of each phase over the round
    bottleneck: str  # the longest phase
    weight: float | None  # how much of the round hangs on this client; weights sum to 1; None unless cycles are optimal
    name: str = ""  # of its device; without one, `client 3`
    codec: str | None = None  # of its smashed data and gradients, where clients have different ones

    @property
    def ends_s(self) -> float:
        """When the client's training and upload are over."""
        return training_end_s(self.seconds)


class PlanRounds(Protocol):
    """What a plan asks of its rounds. Cuts are [K]; a mean is in seconds over all samples."""

    cuts: Array

    def clients(self, cuts: Array) -> list[ClientPlan]: ...
    def mean_s(self, cuts: Array) -> float: ...
    def baselines_s(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class PlanTask:
    """What a plan is made for, with the cuts of the proposed policy, [K]."""

    task: CutTask
    request: CutRequest  # with the samples
    chosen: Policy
    proposed: Array
    given: Array | None = None  # the cuts that the config gives, [K]

    @property
    def cuts(self) -> Array:
        """What is planned, [K]: the given cuts, or those of the chosen policy."""
        return self.cuts_of(self.chosen) if self.given is None else self.given

    def cuts_of(self, rule: Policy) -> Array:
        """The cuts [K] of a policy: by its rule, or the proposed cuts where it has none."""
        return rule.choose(self.request).cuts if rule.chooses_cuts else self.proposed


def plan_rounds(plan_task: PlanTask) -> PlanRounds:
    """The rounds to plan on, under the task's policy."""
    if plan_task.task.world.servers.service is not None:
        return QueuedPlan(plan_task)
    rounds = MeasuredPlan(plan_task) if isinstance(plan_task.task.world.links, Measured) else RadioPlan(plan_task)
    return EvenPlan(plan_task, rounds) if plan_task.chosen.name == "even" else rounds


class RadioPlan:
    """Rounds over a radio, which the policy's rules or the exact solver allocate."""

    def __init__(self, plan_task: PlanTask) -> None:
        assert isinstance(plan_task.request.rounds, RadioRounds)
        self._plan_task, self._chosen, self._rounds = plan_task, plan_task.chosen, plan_task.request.rounds.samples
        self._settings, self._num_batches = plan_task.task.config.allocation, plan_task.task.num_batches
        self.first = _draws(plan_task.task).sample(0)
        self.cuts = plan_task.cuts

    def clients(self, cuts: Array) -> list[ClientPlan]:
        answer = self._chosen.allocate(self._rounds[0], cuts, self._settings.gap, self._settings.time_limit_s)
        optimal = self._chosen.cycles == "optimal" and self._chosen.allocator is None
        times = phases_of(self._rounds[0], answer)
        return _client_plans(cuts, answer.server_hz, times, self._num_batches, answer, optimal)

    def mean_s(self, cuts: Array) -> float:
        gap, limit_s = self._settings.gap, self._settings.time_limit_s
        return float(np.mean([self._chosen.allocate(sample, cuts, gap, limit_s).round_s for sample in self._rounds]))

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
            cuts, spent = self._plan_task.cuts_of(rule), []
            for sample in self._rounds:
                limit_s = min(self._settings.time_limit_s, max(LEAST_S, clock.left_s() / num_left))
                spent.append(rule.allocate(sample, cuts, self._settings.gap, limit_s).round_s)
                num_left -= 1
            means[rule.name] = float(np.mean(spent))
        if means["even"] == means["ecfa"] and self._chosen.name != "even":
            del means["even"]  # the same, shown once
        return means


class MeasuredPlan:
    """Rounds over measured links: there is no radio to divide, only cuts and the main server's cycles."""

    def __init__(self, plan_task: PlanTask) -> None:
        assert isinstance(plan_task.request.rounds, MeasuredRounds)
        self._plan_task, self._chosen, self._rounds = (
            plan_task,
            plan_task.chosen.refuse_without_radio(),
            plan_task.request.rounds,
        )
        self._batch_size, self._world, self._num_batches = (
            plan_task.task.batch_size,
            plan_task.task.world,
            plan_task.task.num_batches,
        )
        self.first = _draws(plan_task.task).sample(0)
        self.cuts = plan_task.cuts

    def clients(self, cuts: Array) -> list[ClientPlan]:
        rates, servers = self.first.rates, self._world.servers
        assert rates is not None, "measured links draw rates"
        own_s, work, _ = self._rounds.at(cuts)
        server_hz = optimal_cycles(own_s[0], work[0], self._rounds.main_hz)
        if self._chosen.cycles == "even":
            server_hz = np.full(len(cuts), self._rounds.main_hz / len(cuts))
        speed = self.first.cpu_hz * self._world.fleet.flops_per_cycle
        times = phases(
            self._world.cost, cuts, self._batch_size, speed, server_hz * servers.flops_per_cycle, rates,
            self._world.fleet.work, servers.work,
        )  # fmt: skip
        return _client_plans(cuts, server_hz, times, self._num_batches, None, self._chosen.cycles == "optimal")

    def mean_s(self, cuts: Array) -> float:
        return self._mean_s(self._chosen, cuts)

    def baselines_s(self) -> dict[str, float]:
        means = {}
        for name in dict.fromkeys((*MEASURED_BASELINES, self._chosen.name)):
            rule = policy(name)
            means[name] = self._mean_s(rule, self._plan_task.cuts_of(rule))
        return means

    def _mean_s(self, rule: Policy, cuts: Array) -> float:
        rounds = self._rounds
        return float((rounds.even_round_s if rule.cycles == "even" else rounds.round_s)(cuts).mean())


class QueuedPlan:
    """Rounds over measured links on a main server that serves one batch at a time: nothing is divided, and policies differ by cuts alone."""

    def __init__(self, plan_task: PlanTask) -> None:
        assert isinstance(plan_task.request.rounds, QueuedRounds)
        self._plan_task, self._rounds = plan_task, plan_task.request.rounds
        self.first = _draws(plan_task.task).sample(0)
        plan_task.chosen.refuse_without_radio()
        self.cuts = plan_task.cuts

    def clients(self, cuts: Array) -> list[ClientPlan]:
        """A client's seconds on the server are those in which the server works for it alone; `waiting` is for its turn."""
        task, rates = self._plan_task.task, self.first.rates
        world, batches = task.world, task.num_batches
        assert rates is not None, "measured links draw rates"
        server_hz = np.full(len(cuts), world.servers.main_hz)
        speed = self.first.cpu_hz * world.fleet.flops_per_cycle
        times = phases(
            world.cost, cuts, task.batch_size, speed, server_hz * world.servers.flops_per_cycle, rates,
            world.fleet.work, world.servers.work,
        )  # fmt: skip
        waited_s = self._rounds.serve(queued_work(times, batches)).waited_s
        plans = _client_plans(cuts, server_hz, times, batches, None, False)
        return [replace(plan, seconds=_in_a_queue(plan.seconds, float(waited_s[plan.client]))) for plan in plans]

    def mean_s(self, cuts: Array) -> float:
        return float(self._rounds.round_s(cuts).mean())

    def baselines_s(self) -> dict[str, float]:
        """The mean round of each policy's cuts; policies that divide the server otherwise are one here."""
        names = dict.fromkeys((*QUEUE_BASELINES, self._plan_task.chosen.name))
        return {name: self.mean_s(self._plan_task.cuts_of(policy(name))) for name in names}


class EvenPlan:
    """Rounds under the even allocation as a run shares it, with the cuts that are fastest under it."""

    def __init__(self, plan_task: PlanTask, others: RadioPlan | MeasuredPlan) -> None:
        task = plan_task.task
        self._batch_size, self._world, self._num_batches = task.batch_size, task.world, task.num_batches
        self._draws, self._others = _draws(task), others
        self.cuts = np.array(fastest_cuts(task)) if plan_task.given is None else plan_task.given
        self.first = self._draws.sample(0)

    def clients(self, cuts: Array) -> list[ClientPlan]:
        server_hz = np.full(len(cuts), self._world.servers.main_hz / len(cuts))
        times = self._phases(cuts, self.first)
        return _client_plans(cuts, server_hz, times, self._num_batches, None, False)

    def mean_s(self, cuts: Array) -> float:
        return float(round_s(self._phases(cuts, self._draws), self._num_batches).mean())

    def baselines_s(self) -> dict[str, float]:
        return self._others.baselines_s() | {"even": self.mean_s(self.cuts)}

    def _phases(self, cuts: Array, draw: RoundDraw) -> Phases:
        world = self._world
        return even_phases("hsfl", world.cost, cuts, self._batch_size, world.fleet, world.servers, world.links, draw)


def _draws(task: CutTask) -> RoundDraw:
    """The samples [S, ...]: recorded rounds where there is a history, else draws apart from those of a run."""
    count = task.config.allocation.samples
    return sample_draws(task.world, count).sample(slice(count))


# --- the record of each client


def _client_plans(
    cuts: Array, server_hz: Array, times: Phases, num_batches: Array, answer: Allocation | None, optimal: bool
) -> list[ClientPlan]:
    """A record for each client. times: of a mini-batch. num_batches: [K]. answer: the allocation, where a policy
    divided a radio. optimal: whether the cycles are optimal, so that clients have weights."""
    plans, weights = [], weights_of(server_hz, num_batches * times.server_s) if optimal else None
    for k, cut in enumerate(cuts):
        spent = {name: float(num_batches[k] * getattr(times, f"{name}_s")[k]) for name in BATCH_PHASES}
        spent |= {name: float(getattr(times, f"{name}_s")[k]) for name in ("model_up", "model_down")}
        bottleneck = max(spent, key=lambda name: spent[name])
        weight = None if weights is None else float(weights[k])
        plans.append(
            ClientPlan(
                k,
                int(cut),
                float(server_hz[k]),
                **_radio(answer, k),
                seconds=spent,
                bottleneck=bottleneck,
                weight=weight,
            )
        )
    return plans


def _in_a_queue(seconds: dict[str, float], waited_s: float) -> dict[str, float]:
    """The phases in the order in which they happen on a server that is one queue: the download first, and the waiting before the server's own
    seconds."""
    names = ["model_down", *(name for name in seconds if name != "model_down")]
    names.insert(names.index("server"), "waiting")
    return {name: waited_s if name == "waiting" else seconds[name] for name in names}


def weights_of(server_hz: Array, server_s: Array) -> Array | None:
    """How much of the round hangs on each client, [K], sum 1: the multipliers of the deadlines. At the optimum a second less for
    client k frees f_k^2 / n_k = f_k / server_s cycles."""
    if not ((server_hz > 0) & (server_s > 0)).all():
        return None  # someone's deadline has no such price
    freed = server_hz / server_s
    return freed / freed.sum()


def _radio(answer: Allocation | None, k: int) -> dict[str, Any]:
    """Band and powers of client k; all None where there is no radio."""
    if answer is None:
        return dict.fromkeys(("subchannels", "share", *POWERS))
    return {
        "subchannels": None if answer.owner is None else np.flatnonzero(answer.owner == k).tolist(),
        "share": None if answer.share is None else answer.share[k].tolist(),
        **{name: float(getattr(answer, name)[k].sum()) for name in POWERS},
    }
