"""Policies at work: cuts chosen on samples, and rounds allocated by the rules of a policy's row (`policy_table`).

Legend: K clients, I subchannels.

A policy of a plugin may also allocate a whole round by a function of its own. The function's answer is completed, checked against
every constraint, and valued by the latency equations.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hsfl import plugins
from hsfl.allocation.answer import (
    POWER_NAMES,
    Allocation,
    SolveStatus,
    breaches,
    evaluate_allocation,
    phases_of,
    who_has,
    with_gap,
)
from hsfl.allocation.cuts.large_fleets import LargeFleet, priced_fleet_cuts
from hsfl.allocation.cuts.radio import RadioRounds
from hsfl.allocation.cuts.search import RULES_FOR_CUTS, CutChoice, CutRequest
from hsfl.allocation.exact import DEFAULT_GAP, DEFAULT_TIME_LIMIT_S, distribute_model, exact, solve_round, stage_solver
from hsfl.allocation.policy_table import POLICIES, PolicyRow, policy_row
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.stage.client_prices import alone_s, shares_of, solve_shares
from hsfl.allocation.stage.fixed_shares import INSIDE, spend, uplink_powers, water_fill_downlink
from hsfl.allocation.stage.local_search import first_owner
from hsfl.allocation.stage.stage import Stage, distribution_stage, even_cycles, even_power, training_stage
from hsfl.allocation.stage.stage_answer import Spent, StageAnswer, StageSolver, StopWhen, TimeLimit
from hsfl.errors import InputError, known_name
from hsfl.network.latency import client_round_s

if TYPE_CHECKING:
    from pydantic import BaseModel

Array = np.ndarray
Allocate = Callable[..., Mapping[str, Any] | Allocation]
GIVEN_NAMES = ("server_hz", "owner", "share", "edge_down_owner", "edge_down_share", *POWER_NAMES)
TOLERANCE = 1e-9  # of constraints, relative; the solver's own answers keep it, too
PROOF_LIMIT_S = 1.0  # for the exact solver's bound beside a rule's answer, or the paper's


class Policy(PolicyRow):
    """A row of the table that chooses cuts and allocates rounds."""

    def choose(self, request: CutRequest) -> CutChoice:
        """Choose cuts, once for all rounds: by the policy's rule, else by prices in a large fleet, else by the method of the settings."""
        is_large = isinstance(request.rounds, LargeFleet)
        if is_large and self.chooses_cuts:
            raise InputError(
                f"policy {self.name} tries cuts one by one, which takes too long for {len(request.rows)} clients in cells or "
                "crowds; choose proposed, rcls or scls"
            )
        if callable(self.cuts):
            assert isinstance(request.rounds, RadioRounds), "refuse_without_radio"
            samples = request.rounds.samples
            return CutChoice(_checked_cuts(self.name, samples[0], self.cuts(copy.deepcopy(list(samples)))))
        return priced_fleet_cuts(request) if is_large else RULES_FOR_CUTS[self.cuts](request)

    def allocate(
        self, scenario: Scenario, cuts: Array, gap: float = DEFAULT_GAP, time_limit_s: float = DEFAULT_TIME_LIMIT_S
    ) -> Allocation:
        """Allocate one round with cuts [K], to a relative gap or a time limit in seconds where the solver decides.

        A rule proves nothing; the lower bound is the exact solver's, for any allocation with these cuts.
        """
        answer = self.rule(scenario, cuts, gap, time_limit_s)
        if self.is_optimal or (self.allocator is None and not answer.kept.all()):
            return answer
        return _with_bound(answer, scenario, gap, time_limit_s)

    def rule(self, scenario: Scenario, cuts: Array, gap: float, time_limit_s: float) -> Allocation:
        """Allocate as `allocate` does, but where a rule decides, the bound is what the rule itself knows."""
        if self.is_optimal:
            return exact(scenario, cuts, gap, time_limit_s)
        if self.allocator is not None:
            _compile()
            return _allocate_by_plugin(self.name, self.allocator, scenario, cuts)
        return solve_round(scenario, cuts, self._by_rules(scenario), gap, time_limit_s)

    def distribute(self, scenario: Scenario, cuts: Array, gap: float, time_limit_s: float) -> Allocation:
        """Allocate the model's distribution alone, to all clients of the scenario: nobody trains. The bound of a rule is
        what the rule itself knows."""
        if self.is_optimal:
            return distribute_model(scenario, cuts, stage_solver(scenario), gap, time_limit_s)
        if self.allocator is None:
            return distribute_model(scenario, cuts, self._by_rules(scenario), gap, time_limit_s)
        _compile()
        given = _allocate_by_plugin(self.name, self.allocator, _models_alone(scenario), cuts)
        return replace(given, kept=np.zeros(len(cuts), bool), round_s=float(given.phases["model_down_s"].max()))

    def _by_rules(self, scenario: Scenario) -> StageSolver:
        """The solver of a stage under the rules."""
        if scenario.sharing == "bandwidth" and self.subchannels == "greedy":
            raise InputError(
                f'policy {self.name} deals whole subchannels but sharing is "bandwidth"; use etra_even, or sharing exclusive'
            )
        _compile()
        return partial(self._solve, scenario)

    def _solve(self, scenario: Scenario, stage: Stage, goal: StopWhen, clock: TimeLimit) -> StageAnswer:
        """Solve one stage under the rules, as a smaller problem of the same kind."""
        ruled = even_cycles(stage) if self.cycles == "even" else stage
        ruled = even_power(ruled) if self.power == "even" else ruled
        if self.subchannels == "optimal":
            coarse = replace(goal, gap=max(goal.gap, 5e-3)) if scenario.sharing == "bandwidth" else goal
            answer = stage_solver(scenario)(ruled, coarse, clock)
        else:
            share = self._share(scenario, ruled)
            answer = StageAnswer(share, *solve_shares(ruled, share, 0.0, 0.0))
        spent = self._spend(stage, ruled, answer.share, answer.T_s, answer.rho)
        return replace(answer, lower_bound_s=alone_s(stage), spent=spent)

    def _share(self, scenario: Scenario, stage: Stage) -> Array:
        """The shares [K, I] of a rule for subchannels."""
        clients = len(stage.cycles)
        if scenario.sharing == "bandwidth":
            return np.full(stage.start_w.shape, 1.0 / clients)
        return shares_of(_greedy_owner(stage) if self.subchannels == "greedy" else _even_owner(stage), clients)

    def _spend(self, stage: Stage, ruled: Stage, share: Array, T_s: float, rho: float) -> Spent:
        """Cycles and powers: by rule where there is a rule, else the optimal ones of the ruled stage."""
        clients, (up, edge) = len(stage.cycles), np.zeros((2, *share.shape))
        uplink_powers(stage, share, up, edge)
        hz, _, down, _ = spend(ruled, share, T_s, rho)
        if self.cycles == "even":
            hz = np.full(clients, stage.hz / clients * INSIDE)
        if self.power == "even":
            water_fill_downlink(stage, share, np.full(clients, stage.power_w / clients * INSIDE), down)
        return hz, up, down, edge


def policy(name: str, options: Any = None) -> Policy:
    """A policy by name; `scls+ecfa` takes the decisions of both. options: those of a config, for registered policies."""
    return Policy(**vars(policy_row(name, options)))


def register_policy(
    name: str,
    *,
    cuts: str | Callable[..., Any] = "optimised",
    cycles: str = "optimal",
    subchannels: str = "optimal",
    power: str = "optimal",
    allocate: Allocate | None = None,
    options: "type[BaseModel] | None" = None,
) -> None:
    """Add a policy of your own, made of rules, of functions, or of both.

    cuts: a rule, or a function that takes the samples (a list of `Scenario`) and gives a cut for each client. cycles, subchannels,
    power: rules, by their names in `POLICY_RULES`; a decision without a rule is optimal. allocate: a
    function that takes a scenario and the cuts [K] and gives a round's `server_hz` [K] and `owner` [I], instead of the rules
    for cycles, subchannels and power; `_allocate_by_plugin` says what else the function may give. options: a pydantic model;
    with it, both functions are called with `options=`, the value that the config has under `options.<name>`.
    """
    row, extra_arguments = (
        PolicyRow(name, cuts, cycles, subchannels, power, allocate),
        () if options is None else ("options=",),
    )
    if allocate is not None and not callable(allocate):
        raise InputError(f"policy {name!r} allocates by {allocate!r}; give a function of a scenario and the cuts")
    if allocate is not None and (cycles, subchannels, power) != ("optimal",) * 3:
        raise InputError(f"policy {name!r} has rules for a round and allocates it itself; leave one of them out")
    if callable(cuts):
        plugins.check_call(f"policy {name!r}: cuts", cuts, "samples", *extra_arguments)
    if allocate is not None:
        plugins.check_call(f"policy {name!r}: allocate", allocate, "scenario", "cuts", *extra_arguments)
    plugins.register_name("policy", POLICIES, name, row, options)


def _with_bound(answer: Allocation, scenario: Scenario, gap: float, time_limit_s: float) -> Allocation:
    """The answer of a rule with the exact solver's bound for the same cuts."""
    best = exact(replace(scenario, tau_s=None), answer.cuts, gap, min(time_limit_s, PROOF_LIMIT_S))
    seconds = answer.seconds + best.seconds
    if not in_time(scenario, answer):
        return replace(answer, status=SolveStatus.HEURISTIC, lower_bound_s=0.0, gap=1.0, seconds=seconds)
    bound_s, reached = with_gap(max(answer.lower_bound_s, best.lower_bound_s), answer.round_s)
    return replace(
        answer,
        status=SolveStatus.HEURISTIC,
        lower_bound_s=bound_s,
        gap=reached,
        seconds=seconds,
        training_bound_s=best.training_bound_s,
    )


def in_time(scenario: Scenario, answer: Allocation) -> bool:
    """Whether all clients of a policy's answer train within tau_s; a clock drops the others, and a bound for all says nothing then."""
    if scenario.tau_s is None:
        return True
    whole_s = client_round_s(phases_of(scenario, answer), scenario.num_batches)
    return bool((whole_s[answer.kept] <= scenario.tau_s).all())


def _checked_cuts(name: str, scenario: Scenario, cuts: Any) -> Array:
    """Cuts [K] that a policy's function gave, or an error that names the policy."""
    try:
        return scenario.check_cuts(cuts)
    except InputError as error:
        raise InputError(f"policy {name!r}: {error}") from None


@cache
def _compile() -> None:
    """Compile what only rules need (or load it), before any clock runs."""
    stage = training_stage(random_scenario(np.random.default_rng(0), 2, 2), np.ones(2, int))
    share = np.eye(2)
    water_fill_downlink(stage, share, np.ones(2), np.zeros((2, 2)))
    uplink_powers(stage, share, np.zeros((2, 2)), np.zeros((2, 2)))


# --- Rules for subchannels


def _even_owner(stage: Stage) -> Array:
    """Owners [I]: subchannel i belongs to client i mod K."""
    return np.arange(stage.start_w.shape[1]) % len(stage.cycles)


def _greedy_owner(stage: Stage) -> Array:
    """Owners [I] as in CPSL: subchannels are dealt by turns (`first_owner`), and every client keeps the best of its own. Then
    each subchannel that is left goes to the client for which it shortens the stage most.
    """
    clients, subs = stage.start_w.shape
    owner = first_owner(stage)
    has_best = np.zeros(clients, bool)
    for i in np.argsort(stage.start_w[owner, np.arange(subs)], kind="stable"):
        if has_best[owner[i]]:
            owner[i] = -1
        else:
            has_best[owner[i]] = True
    for i in np.flatnonzero(owner < 0):
        times = []
        for k in range(clients):
            owner[i] = k
            times.append(solve_shares(stage, shares_of(owner, clients), 0.0, 0.0)[0])
        owner[i] = int(np.argmin(times))
    return owner


# --- A plugin's function that allocates a round: its answer is completed, checked and valued


def _allocate_by_plugin(name: str, allocate: Allocate, scenario: Scenario, cuts: Array) -> Allocation:
    """Allocate one round with cuts [K] by the function `allocate` of the policy `name`.

    The function gives `server_hz` [K] and `owner` [I] (`share` [K, I] where bands are shared). It may leave out the rest: then the
    model's download is on the same subchannels, uplinks have full power, the servers' power is divided evenly among
    clients, and both are water-filled. The answer proves nothing: its bound is 0.
    """
    answer = allocate(
        copy.deepcopy(scenario), cuts.copy()
    )  # the function may write into its copy, and the round does not change
    given = _given(name, answer)
    for wanted in ("server_hz", "share" if "share" in given else "owner"):
        if wanted not in given:
            raise InputError(
                f"policy {name!r} gives no {wanted}; it needs server_hz [K] and owner [I] (or share [K, I])"
            )
    clients, subs = scenario.num_clients, scenario.num_subchannels
    server_hz = _array(name, "server_hz", given["server_hz"], (clients,))
    training = _share(name, scenario, given, "")
    distribution = _share(name, scenario, given, "edge_down_") if _has(given, "edge_down_") else training
    powers: dict[str, Any] = _even_powers(scenario, cuts, training, distribution)
    powers |= {power: _array(name, power, given[power], (clients, subs)) for power in POWER_NAMES if power in given}
    draft = Allocation(
        SolveStatus.HEURISTIC, cuts, np.ones(clients, bool), server_hz,
        **who_has(scenario.sharing, training, distribution), **powers, phases={}, round_s=0.0, lower_bound_s=0.0, gap=1.0, seconds=0.0,
    )  # fmt: skip
    return _valued(name, scenario, draft)


def _models_alone(scenario: Scenario) -> Scenario:
    """The round without training: models travel up, and then down."""
    zero = np.zeros(scenario.num_cuts)
    return replace(scenario, tau_s=None, client_flops=zero, server_flops=zero, smashed_bits=zero, gradient_bits=zero)


def _given(name: str, answer: Any) -> dict[str, Any]:
    """The values that the policy gave, by the names of `Allocation`; an error where it gave no such values."""
    if isinstance(answer, Allocation):
        answer = {field.name: getattr(answer, field.name) for field in fields(answer) if field.name in GIVEN_NAMES}
    if not isinstance(answer, Mapping):
        raise InputError(f"policy {name!r} gives a {type(answer).__name__}; give a dict with server_hz and owner")
    for key in answer:
        known_name(f"policy {name!r} gives", str(key), GIVEN_NAMES)
    return {key: value for key, value in answer.items() if value is not None}


def _has(given: Mapping[str, Any], prefix: str) -> bool:
    """Whether the policy said who has which subchannel, in the stage with this prefix."""
    return f"{prefix}owner" in given or f"{prefix}share" in given


def _array(name: str, what: str, value: Any, shape: tuple[int, ...]) -> Array:
    """A value that the policy gave, as an array of this shape, or an error."""
    try:
        if np.iscomplexobj(value):
            raise TypeError
        array = np.asarray(value, float)
    except (TypeError, ValueError):
        raise InputError(f"policy {name!r} gives {what} that is no array of numbers; give shape {shape}") from None
    if array.shape != shape:
        raise InputError(f"policy {name!r} gives {what} of shape {array.shape}; give shape {shape}")
    return array


def _share(name: str, scenario: Scenario, given: Mapping[str, Any], prefix: str) -> Array:
    """The shares [K, I] of the stage with this prefix, as the policy gave them or from its owners [I]."""
    clients, subs = scenario.num_clients, scenario.num_subchannels
    if f"{prefix}share" in given:
        share = _array(name, f"{prefix}share", given[f"{prefix}share"], (clients, subs))
        if scenario.sharing == "exclusive" and not np.isin(share, (0.0, 1.0)).all():
            raise InputError(
                f'policy {name!r} gives parts of subchannels but sharing is "exclusive"; give {prefix}owner [{subs}]'
            )
        return share
    owner = _array(name, f"{prefix}owner", given[f"{prefix}owner"], (subs,))
    if not (np.isin(owner, np.arange(-1, clients))).all():
        wrong = owner[~np.isin(owner, np.arange(-1, clients))][0]
        raise InputError(
            f"policy {name!r} gives {prefix}owner {wrong:g}; give a client, 0 to {clients - 1}, or -1 for nobody"
        )
    return shares_of(owner.astype(np.int64), clients)


def _even_powers(scenario: Scenario, cuts: Array, training: Array, distribution: Array) -> dict[str, Any]:
    """Powers [K, I] by name: full for uplinks, even for downlinks, water-filled on the shares of both stages."""
    training_numbers, distribution_numbers = training_stage(scenario, cuts), distribution_stage(scenario, cuts)
    powers = {power: np.zeros(training.shape) for power in POWER_NAMES}
    uplink_powers(training_numbers, training, powers["main_up_power_w"], powers["edge_up_power_w"])
    for stage, share, power in (
        (training_numbers, training, "main_down_power_w"),
        (distribution_numbers, distribution, "edge_down_power_w"),
    ):
        even_w = np.full(len(cuts), stage.power_w / len(cuts) * INSIDE)
        water_fill_downlink(stage, share, even_w, powers[power])
    return powers


def _valued(name: str, scenario: Scenario, draft: Allocation) -> Allocation:
    """The answer with its seconds by the latency equations; an error where it breaks a constraint or never ends."""
    for constraint, breach in breaches(scenario, draft).items():
        if not breach <= TOLERANCE:
            excess = f" by {breach:.2%}" if np.isfinite(breach) else ""
            raise InputError(f"policy {name!r} breaks a constraint{excess}: {constraint}; give less")
    phases, round_s = evaluate_allocation(scenario, draft)
    if not np.isfinite(round_s):
        endless = [phase for phase, seconds in phases.items() if not np.isfinite(seconds).all()]
        k = int(np.argmin(np.isfinite(phases[endless[0]]))) if endless else 0
        raise InputError(
            f"policy {name!r} leaves client {k} without {endless[0].removesuffix('_s') if endless else 'anything'}: its "
            "round never ends; give everyone cycles, a subchannel and power"
        )
    return replace(draft, phases=phases, round_s=round_s)
