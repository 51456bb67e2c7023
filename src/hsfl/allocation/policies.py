"""Baselines by name, each changing one decision of the proposed plan; names joined by + change several.

Legend: K clients, I subchannels. A policy is four decisions: cuts once, then cycles, subchannels and power every round.
What it does not decide by rule stays optimal given the rules.

    proposed  everything optimised        rcls  random feasible cuts       scls  the smallest max_cut for all
    ecfa      even server cycles          gtra  greedy subchannels         etra  even server power
    etra_even even server power and even subchannels
    even      even cycles, subchannels and power
    splitfed  scls with everything even   cpsl  the best single cut, greedy subchannels
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from hsfl import rng as streams
from hsfl.allocation import bandwidth
from hsfl.allocation.answer import Allocation, SolveStatus, with_gap
from hsfl.allocation.cuts import CutSettings, Progress, choose_cuts, rcls, scls
from hsfl.allocation.draw import random_scenario
from hsfl.allocation.fitness import Fitness
from hsfl.allocation.joint import DEFAULT_GAP, DEFAULT_TIME_LIMIT_S, exact, solve_round, stage_solver
from hsfl.allocation.powers import INSIDE, pour_rows, spend, uplink_powers
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.search import Goal, Spent, StageAnswer, TimeLimit, alone_s
from hsfl.allocation.spectrum import first_owner, shares_of, solve_shares
from hsfl.allocation.stage import Stage, even_cycles, even_power, training_stage
from hsfl.errors import InputError, known

Array = np.ndarray
RULES = {
    "cuts": ("optimised", "random", "smallest", "single"),
    "cycles": ("optimal", "even"),
    "subchannels": ("optimal", "greedy", "even"),
    "power": ("optimal", "even"),
}
PROOF_LIMIT_S = 1.0  # for the bound beside a rule's answer


@dataclass(frozen=True)
class Policy:
    """Decisions by name. Fields that are `optimal` (cuts: `optimised`) are left to the solver."""

    name: str
    cuts: str = "optimised"
    cycles: str = "optimal"
    subchannels: str = "optimal"
    power: str = "optimal"

    def __post_init__(self) -> None:
        for field, rules in RULES.items():
            known(f"policy {self.name}: rule for {field}", getattr(self, field), rules)

    def choose(
        self, samples: Sequence[Scenario], settings: CutSettings | None = None, progress: Progress | None = None
    ) -> Array:
        """Cuts [K], once for all rounds."""
        settings = settings or CutSettings()
        if self.cuts == "random":
            return rcls(samples[0], streams.stream(settings.seed, "rcls"))
        if self.cuts == "smallest":
            return scls(samples[0])
        if self.cuts == "single":
            return best_single_cut(samples)
        return choose_cuts(samples, settings, progress).cuts

    def allocate(
        self, scenario: Scenario, cuts: Array, gap: float = DEFAULT_GAP, time_limit_s: float = DEFAULT_TIME_LIMIT_S
    ) -> Allocation:
        """One round. A rule proves nothing itself: the bound is the exact solver's, of any allocation for these cuts."""
        if (self.cycles, self.subchannels, self.power) == ("optimal", "optimal", "optimal"):
            return exact(scenario, cuts, gap, time_limit_s)
        if scenario.sharing == "bandwidth" and self.subchannels == "greedy":
            raise InputError(
                f'policy {self.name} deals whole subchannels but sharing is "bandwidth"; use etra_even, or sharing exclusive'
            )

        _compile()

        def solve(stage: Stage, goal: Goal, clock: TimeLimit) -> StageAnswer | bandwidth.SharedAnswer:
            return self._solve(scenario, stage, goal, clock)

        answer = solve_round(scenario, cuts, solve, gap, time_limit_s)
        if not answer.kept.all():
            return answer
        best = exact(replace(scenario, tau_s=None), cuts, gap, min(time_limit_s, PROOF_LIMIT_S))
        bound_s, reached = with_gap(max(answer.lower_bound_s, best.lower_bound_s), answer.round_s)
        seconds = answer.seconds + best.seconds
        return replace(answer, status=SolveStatus.HEURISTIC, lower_bound_s=bound_s, gap=reached, seconds=seconds)

    def _solve(
        self, scenario: Scenario, stage: Stage, goal: Goal, clock: TimeLimit
    ) -> StageAnswer | bandwidth.SharedAnswer:
        """One stage under the rules, as a smaller problem of the same kind."""
        ruled = even_cycles(stage) if self.cycles == "even" else stage
        ruled = even_power(ruled) if self.power == "even" else ruled
        clients = len(stage.cycles)
        answer: StageAnswer | bandwidth.SharedAnswer
        if self.subchannels == "optimal":
            coarse = replace(goal, gap=max(goal.gap, 5e-3)) if scenario.sharing == "bandwidth" else goal
            answer = stage_solver(scenario)(ruled, coarse, clock)
        elif scenario.sharing == "bandwidth":
            share = np.full(stage.start_w.shape, 1.0 / clients)
            answer = bandwidth.SharedAnswer(share, *solve_shares(ruled, share, 0.0, 0.0))
        else:
            owner = greedy_owner(ruled) if self.subchannels == "greedy" else even_owner(stage)
            answer = StageAnswer(owner, *solve_shares(ruled, shares_of(owner, clients), 0.0, 0.0))
        share = answer.shares(clients)
        spent = self._spend(stage, ruled, share, answer.T_s, answer.rho)
        return replace(answer, lower_bound_s=alone_s(stage), spent=spent)

    def _spend(self, stage: Stage, ruled: Stage, share: Array, T_s: float, rho: float) -> Spent:
        """Cycles and powers: the rules' where they rule, the optimal ones of the rest."""
        clients, (up, edge) = len(stage.cycles), np.zeros((2, *share.shape))
        uplink_powers(stage, share, up, edge)
        hz, _, down, _ = spend(ruled, share, T_s, rho)
        if self.cycles == "even":
            hz = np.full(clients, stage.hz / clients * INSIDE)
        if self.power == "even":
            pour_rows(stage, share, np.full(clients, stage.power_w / clients * INSIDE), down)
        return hz, up, down, edge


@cache
def _compile() -> None:
    """Compile (or load) what only rules need, before any clock runs."""
    stage = training_stage(random_scenario(np.random.default_rng(0), 2, 2), np.ones(2, int))
    share = np.eye(2)
    pour_rows(stage, share, np.ones(2), np.zeros((2, 2)))
    uplink_powers(stage, share, np.zeros((2, 2)), np.zeros((2, 2)))


POLICIES = {
    "proposed": Policy("proposed"),
    "rcls": Policy("rcls", cuts="random"),
    "scls": Policy("scls", cuts="smallest"),
    "ecfa": Policy("ecfa", cycles="even"),
    "gtra": Policy("gtra", subchannels="greedy"),
    "etra": Policy("etra", power="even"),
    "etra_even": Policy("etra_even", subchannels="even", power="even"),
    "even": Policy("even", cycles="even", subchannels="even", power="even"),
    "splitfed": Policy("splitfed", cuts="smallest", cycles="even", subchannels="even", power="even"),
    "cpsl": Policy("cpsl", cuts="single", subchannels="greedy"),
}


def policy(name: str) -> Policy:
    """A policy by name; `scls+ecfa` takes the decisions of both."""
    plain = Policy(name)
    result = plain
    for part in name.split("+"):
        if part not in POLICIES:
            raise InputError(f"policy is {name!r}; choose from {', '.join(POLICIES)}, or join names with +")
        for field in RULES:
            if getattr(POLICIES[part], field) != getattr(plain, field):
                if getattr(result, field) not in (getattr(plain, field), getattr(POLICIES[part], field)):
                    raise InputError(f"policy is {name!r}, but {field} can follow one rule only; leave one of them out")
                result = replace(result, **{field: getattr(POLICIES[part], field)})
    return result


def best_single_cut(samples: Sequence[Scenario]) -> Array:
    """One cut for all, the best that everyone can hold."""
    scenario = samples[0]
    options = np.arange(scenario.min_cut, scenario.max_cut.min() + 1)[:, None] * np.ones(scenario.num_clients, int)
    return options[int(np.argmin(Fitness(samples)(options)))]


def even_owner(stage: Stage) -> Array:
    """Subchannel i to client i mod K."""
    return np.arange(stage.start_w.shape[1]) % len(stage.cycles)


def greedy_owner(stage: Stage) -> Array:
    """As in CPSL: everyone its best free one by turns, then each next one to whom it shortens the stage most."""
    clients, subs = stage.start_w.shape
    owner = first_owner(stage)
    seen = np.zeros(clients, bool)
    for i in np.argsort(stage.start_w[owner, np.arange(subs)], kind="stable"):  # keep everyone's best one
        if seen[owner[i]]:
            owner[i] = -1
        else:
            seen[owner[i]] = True
    for i in np.flatnonzero(owner < 0):
        times = []
        for k in range(clients):
            owner[i] = k
            times.append(solve_shares(stage, shares_of(owner, clients), 0.0, 0.0)[0])
        owner[i] = int(np.argmin(times))
    return owner
