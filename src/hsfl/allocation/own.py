"""A user's own policy that allocates a whole round: its answer is completed, checked against every constraint, and valued.

Legend: K clients, I subchannels.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from hsfl.allocation.answer import POWER_NAMES, Allocation, SolveStatus, breaches, evaluate, who_has
from hsfl.allocation.powers import INSIDE, pour_rows, uplink_powers
from hsfl.allocation.prices import shares_of
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.stage import distribution_stage, training_stage
from hsfl.errors import InputError, known

Array = np.ndarray
Allocate = Callable[..., Mapping[str, Any] | Allocation]
NAMES = ("server_hz", "owner", "share", "edge_down_owner", "edge_down_share", *POWER_NAMES)
TOLERANCE = 1e-9  # of constraints, relative; the solver's own answers keep it, too


def allocate_own(name: str, allocate: Allocate, scenario: Scenario, cuts: Array) -> Allocation:
    """Allocate one round with cuts [K] by the function `allocate` of the policy `name`.

    The function gives `server_hz` [K] and `owner` [I] (`share` [K, I] where bands are shared). It may leave out the rest: then the
    model's download is on the same subchannels, uplinks have full power, the servers' power is divided evenly among
    clients, and both are water-filled. The answer proves nothing: its bound is 0.
    """
    said = allocate(copy.deepcopy(scenario), cuts.copy())  # what the function writes there must not change the round
    given = _given(name, said)
    for need in ("server_hz", "share" if "share" in given else "owner"):
        if need not in given:
            raise InputError(f"policy {name!r} gives no {need}; it needs server_hz [K] and owner [I] (or share [K, I])")
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


def models_alone(whole: Scenario) -> Scenario:
    """The round without training: models travel up, and then down."""
    no = np.zeros(whole.num_cuts)
    return replace(whole, tau_s=None, client_flops=no, server_flops=no, smashed_bits=no, gradient_bits=no)


def _given(name: str, said: Any) -> dict[str, Any]:
    """The values that the policy gave, by the names of `Allocation`; an error where it gave no such values."""
    if isinstance(said, Allocation):
        said = {field.name: getattr(said, field.name) for field in fields(said) if field.name in NAMES}
    if not isinstance(said, Mapping):
        raise InputError(f"policy {name!r} gives a {type(said).__name__}; give a dict with server_hz and owner")
    for key in said:
        known(f"policy {name!r} gives", str(key), NAMES)
    return {key: value for key, value in said.items() if value is not None}


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
    first, second = training_stage(scenario, cuts), distribution_stage(scenario, cuts)
    powers = {power: np.zeros(training.shape) for power in POWER_NAMES}
    uplink_powers(first, training, powers["main_up_power_w"], powers["edge_up_power_w"])
    for stage, share, power in ((first, training, "main_down_power_w"), (second, distribution, "edge_down_power_w")):
        each = np.full(len(cuts), stage.power_w / len(cuts) * INSIDE)
        pour_rows(stage, share, each, powers[power])
    return powers


def _valued(name: str, scenario: Scenario, draft: Allocation) -> Allocation:
    """The answer with its seconds by the latency equations; an error where it breaks a constraint or never ends."""
    for constraint, by in breaches(scenario, draft).items():
        if not by <= TOLERANCE:
            how = f" by {by:.2%}" if np.isfinite(by) else ""
            raise InputError(f"policy {name!r} breaks a constraint{how}: {constraint}; give less")
    phases, round_s = evaluate(scenario, draft)
    if not np.isfinite(round_s):
        endless = [what for what, seconds in phases.items() if not np.isfinite(seconds).all()]
        k = int(np.argmin(np.isfinite(phases[endless[0]]))) if endless else 0
        raise InputError(
            f"policy {name!r} leaves client {k} without {endless[0].removesuffix('_s') if endless else 'anything'}: its "
            "round never ends; give everyone cycles, a subchannel and power"
        )
    return replace(draft, phases=phases, round_s=round_s)
