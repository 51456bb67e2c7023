"""Solvers by name, and `allocate`, which allocates one round from explicit numbers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hsfl.allocation import scip
from hsfl.allocation.answer import Allocation, with_gap
from hsfl.allocation.cuts.radio import radio_request
from hsfl.allocation.cuts.search import CutSettings, search_cuts
from hsfl.allocation.exact import DEFAULT_GAP, DEFAULT_TIME_LIMIT_S, exact
from hsfl.allocation.paper import solve_as_paper
from hsfl.allocation.policies import policy
from hsfl.allocation.policy_table import POLICIES
from hsfl.allocation.scenario import Scenario
from hsfl.errors import InputError

Solver = Callable[..., Allocation]


def allocate(
    scenario: Scenario | Mapping[str, Any] | str | Path,
    cuts: Any = None,
    solver: str = "exact",
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    gap: float = DEFAULT_GAP,
    seed: int = 0,
    options: Any = None,
) -> Allocation:
    """Allocate one round.

    scenario: the round in explicit numbers: a `Scenario`, a dict as its JSON file has it, or the file's path. cuts: a cut for each client; without them, the
    solver's own rule for cuts is followed (a baseline may have one), or cuts are chosen with the scenario as the only sample.
    solver: exact, paper, scip or the name of a policy. time_limit_s: seconds in all. gap: the relative distance to the optimum
    that is small enough. seed: for the choice of cuts. options: those of a config, for policies that a plugin registered.
    """
    if isinstance(scenario, Mapping):
        scenario = Scenario.from_dict(_plain(scenario))
    scenario = (scenario if isinstance(scenario, Scenario) else Scenario.read(scenario)).checked()
    _check_settings(time_limit_s, gap)
    if seed < 0:
        raise InputError(f"seed is {seed}; give 0 or more")
    solve = solver_named(solver, options)
    if cuts is not None:
        return solve(scenario, scenario.check_cuts(cuts), gap=gap, time_limit_s=time_limit_s)
    request = radio_request([scenario], CutSettings(seed=seed, gap=gap, time_limit_s=0.6 * time_limit_s))
    choice = search_cuts(request)
    has_rule = solver not in ("exact", "scip", "paper") and policy(solver).chooses_cuts
    chosen = policy(solver, options).choose(request).cuts if has_rule else choice.cuts
    answer = solve(scenario, chosen, gap=gap, time_limit_s=max(0.1, time_limit_s - choice.seconds))
    bound_s = None  # the choice's bound is for rounds with all clients
    if answer.kept.all():
        bound_s = with_gap(choice.lower_bound_s, answer.round_s)[0]
    return replace(answer, cuts_lower_bound_s=bound_s, seconds=choice.seconds + answer.seconds)


def _plain(value: Any) -> Any:
    """The value with lists in place of arrays, as a JSON file would have it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _check_settings(time_limit_s: float, gap: float) -> None:
    """An error where the time limit or the gap makes no sense."""
    if not time_limit_s > 0:
        raise InputError(f"time_limit_s is {time_limit_s}; give a positive number of seconds")
    if not 0 <= gap < 1:
        raise InputError(f"gap is {gap}; give a fraction from 0 to below 1, such as 0.001")


def solver_named(name: str, options: Any = None) -> Solver:
    """A solver by name, as a function (scenario, cuts, gap=, time_limit_s=) -> Allocation."""
    by_name: dict[str, Solver] = {"exact": exact, "paper": solve_as_paper, "scip": scip.solve_by_scip}
    if name in by_name:
        return by_name[name]
    try:
        return policy(name, options).allocate
    except InputError:
        rules = ", ".join(POLICIES)
        raise InputError(f"solver is {name!r}; choose exact, paper, scip or a baseline's rule: {rules}") from None
