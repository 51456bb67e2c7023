"""The answer of `hsfl allocate`: an allocation with its proof, valued by the latency equations and checked against the constraints.

Legend: K clients, I subchannels; C1 to C5 are the paper's constraints on cuts, cycles and powers.

Two things need no solver, and nothing in them has to converge: the even allocation, and the lower bound of each client alone with
everything. Where a solver fails on numbers beyond its digits, this allocation is the answer and this bound is its bound.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hsfl.allocation.scenario import Scenario
from hsfl.display import OnScreen, Rows, Screen
from hsfl.files import write_json
from hsfl.formats import percent, seconds
from hsfl.network.latency import Phases, Rates, client_round_s, phases, rate_bps, shared_rate_bps

Array = np.ndarray
POWER_NAMES = ("main_up_power_w", "main_down_power_w", "edge_up_power_w", "edge_down_power_w")
ROUNDING = 1e-9  # a lower bound that exceeds a round by this fraction or less still agrees with the round
PHASE_NAMES = ("client_s", "smashed_s", "server_s", "gradient_s", "model_up_s", "model_down_s")
INSIDE = 1.0 - 1e-15  # a sum of rounded parts must not pass the budget


class SolveStatus(StrEnum):
    """How a solver ended; `advice` says it in a sentence for people."""

    OPTIMAL = "optimal"
    TIME_LIMIT = "time_limit"
    DROPPED = "dropped"
    HEURISTIC = "heuristic"

    @property
    def advice(self) -> str:
        """The status in a sentence."""
        return {
            SolveStatus.OPTIMAL: "optimal within the gap that was asked for",
            SolveStatus.TIME_LIMIT: "stopped at the time limit; gap is the proven distance to the optimum",
            SolveStatus.DROPPED: "some clients cannot finish within tau_s and sit this round out; bound and gap are "
            "for the clients kept",
            SolveStatus.HEURISTIC: "a rule without a proof chose part of this, or the numbers are beyond the solver's "
            "digits; gap is the proven distance to the optimum of the same cuts",
        }[self]


@dataclass(frozen=True, repr=False)
class Allocation(OnScreen):
    """Who gets what in one round. The owners are set where subchannels are exclusive, the shares where bands are shared."""

    status: SolveStatus
    cuts: Array  # [K]
    kept: Array  # [K] bool: the client takes part
    server_hz: Array  # [K]
    owner: Array | None  # [I] of each subchannel in training; -1: nobody
    edge_down_owner: Array | None  # [I] in model distribution
    share: Array | None  # [K, I] of each subchannel in training
    edge_down_share: Array | None  # [K, I] in model distribution
    main_up_power_w: Array  # [K, I]
    main_down_power_w: Array  # [K, I]
    edge_up_power_w: Array  # [K, I]
    edge_down_power_w: Array  # [K, I]
    phases: dict[str, Array]  # [K] each: seconds of one mini-batch, model transfers once; nan where a client is dropped
    round_s: float
    lower_bound_s: float
    gap: float
    seconds: float
    cuts_lower_bound_s: float | None = field(default=None)
    training_bound_s: float = 0.0  # the part of lower_bound_s that is proven for training alone

    def to_dict(self) -> dict[str, Any]:
        """The content of the answer's file, as JSON has it."""
        owners = (
            {"owner": self.owner.tolist(), "edge_down_owner": self.edge_down_owner.tolist()}
            if self.owner is not None and self.edge_down_owner is not None
            else {"share": _list(self.share), "edge_down_share": _list(self.edge_down_share)}
        )
        answer = {
            "status": self.status.value,
            "cuts": self.cuts.tolist(),
            "kept": self.kept.tolist(),
            "server_hz": self.server_hz.tolist(),
            **owners,
            "main_up_power_w": self.main_up_power_w.tolist(),
            "main_down_power_w": self.main_down_power_w.tolist(),
            "edge_up_power_w": self.edge_up_power_w.tolist(),
            "edge_down_power_w": self.edge_down_power_w.tolist(),
            "phases": {name: [_number(x) for x in values] for name, values in self.phases.items()},
            "round_s": self.round_s,
            "lower_bound_s": self.lower_bound_s,
            "gap": self.gap,
            "seconds": self.seconds,
        }
        if self.cuts_lower_bound_s is not None:
            answer["cuts_lower_bound_s"] = self.cuts_lower_bound_s
        return answer

    def table(self) -> Rows:
        """A plain row for each client: its cut, what it gets of the main server, and the seconds of its phases."""
        phase_s: dict[str, Any] = {name: [_number(value) for value in values] for name, values in self.phases.items()}
        return Rows(
            {"client": k, "cut": int(cut), "kept": bool(self.kept[k]), "server_hz": float(self.server_hz[k])}
            | {name: values[k] for name, values in phase_s.items()}
            for k, cut in enumerate(self.cuts)
        )

    def screen(self) -> Screen:
        """How long the round takes, what is proven, and a row for each client."""
        bound = f"at least {seconds(self.lower_bound_s, 6)} is needed (gap {percent(self.gap)})"
        rows = self.table()
        return Screen(
            [f"round {seconds(self.round_s, 6)}, {bound}: {self.status.advice}"],
            list(rows[0]),
            [list(row.values()) for row in rows],
        )

    def write(self, path: str | Path) -> None:
        """Write the answer as a JSON file, whole or not at all."""
        write_json(Path(path), self.to_dict())


def _list(values: Array | None) -> list[Any] | None:
    return None if values is None else values.tolist()


def _number(value: float) -> float | None:
    """A number for JSON, which has no nan: a client that sits out has no phases."""
    return None if np.isnan(value) else float(value)


# --- An allocation valued by the latency equations


class _Costs(NamedTuple):
    """The columns of a `CostTable`; nothing is checked, since the scenario was."""

    client_forward_flops: Array
    client_backward_flops: Array
    server_forward_flops: Array
    server_backward_flops: Array
    smashed_bits: Array
    gradient_bits: Array
    model_bits: Array
    down_bits: Array


def _rates(scenario: Scenario, allocation: Allocation) -> Rates:
    """The rates of the four links by Eq. (7), from the powers alone (and the shares, where bands are shared)."""
    s, a = scenario, allocation

    def rate(power: Array, gain: Array, share: Array | None) -> Array:
        if share is None:
            return rate_bps(power, gain, s.subchannel_hz, s.noise_w)
        return shared_rate_bps(power, share, gain, s.subchannel_hz, s.noise_w)

    return Rates(
        main_up_bps=rate(a.main_up_power_w, s.main_gain, a.share),
        main_down_bps=rate(a.main_down_power_w, s.main_gain, a.share),
        edge_up_bps=rate(a.edge_up_power_w, s.edge_gain, a.share),
        edge_down_bps=rate(a.edge_down_power_w, s.edge_gain, a.edge_down_share),
    )


def phases_of(scenario: Scenario, allocation: Allocation) -> Phases:
    """The seconds of every phase by Eqs. (6) and (8) to (11), for an allocation."""
    s = scenario
    zero = np.zeros(s.num_cuts)  # a scenario has one number for forward and backward
    cost: Any = _Costs(
        s.client_flops, zero, s.server_flops, zero, s.smashed_bits, s.gradient_bits, s.model_bits, s.down_bits
    )
    return phases(
        cost,
        allocation.cuts,
        float(s.batch_size),  # whole arrays times a whole number may overflow
        s.cpu_hz * s.client_flops_per_cycle,
        allocation.server_hz * s.server_flops_per_cycle,
        _rates(s, allocation),
    )


def evaluate_allocation(scenario: Scenario, allocation: Allocation) -> tuple[dict[str, Array], float]:
    """(phases by name, round_s) by the latency equations.

    The round is the maximum over kept clients of N (A + U + S + D) + E, plus the maximum over all clients of M.
    """
    p = phases_of(scenario, allocation)
    whole_s = client_round_s(p, scenario.num_batches)
    by_name = {name: np.array(getattr(p, name), float) for name in PHASE_NAMES}
    if not allocation.kept.all():
        for name in PHASE_NAMES[:-1]:
            by_name[name][~allocation.kept] = np.nan
    training_s = whole_s[allocation.kept].max() if allocation.kept.any() else 0.0
    return by_name, float(training_s + p.model_down_s.max())


def holds(lower_bound_s: float, round_s: float) -> bool:
    """Whether a lower bound agrees with a round that some allocation has: the bound exceeds the round by rounding at most."""
    return lower_bound_s <= round_s * (1.0 + ROUNDING)


def with_gap(lower_bound_s: float, round_s: float) -> tuple[float, float]:
    """(the bound, the relative gap between the bound and the round). A bound that the round refutes is replaced by 0."""
    bound_s = min(lower_bound_s, round_s) if holds(lower_bound_s, round_s) else 0.0
    return bound_s, (round_s - bound_s) / round_s if round_s > 0 else 0.0


def within_gap(reached: float, gap: float) -> bool:
    """Whether a proven relative gap is the gap that was asked for, up to rounding."""
    return reached <= gap * (1 + 1e-6) + 1e-9


# --- The constraints


def violation(scenario: Scenario, allocation: Allocation) -> float:
    """The largest relative breach of C1 to C5 and of the ownership of subchannels; 0 where every constraint holds."""
    return max(0.0, *breaches(scenario, allocation).values())


def breaches(scenario: Scenario, allocation: Allocation) -> dict[str, float]:
    """The relative breach of each constraint, by the constraint in words. A constraint that holds has at most 0."""
    s, a = scenario, allocation
    powers = {name: getattr(a, name) for name in POWER_NAMES}
    amounts = {"server_hz": a.server_hz, **powers}
    training, distribution = shares_of_answer(a)
    breach_of = {"C1, cuts from min_cut to max_cut": _all_or_nothing(not s.may_take(a.cuts).all())}
    fine = _usable(np.concatenate([values.ravel() for values in amounts.values()]))
    for name, values in amounts.items():
        breach_of[f"{name} is finite and not negative"] = _all_or_nothing(not fine and not _usable(values))
    breach_of |= {
        "C2 and C3, the sum of server_hz within main_hz": a.server_hz.sum() / s.main_hz - 1,
        "C4, main_up_power_w of each client within max_power_w": _largest_excess(a.main_up_power_w, s.max_power_w),
        "C4, edge_up_power_w of each client within max_power_w": _largest_excess(a.edge_up_power_w, s.max_power_w),
        "C5, the sum of main_down_power_w within main_power_w": a.main_down_power_w.sum() / s.main_power_w - 1,
        "C5, the sum of edge_down_power_w within edge_power_w": a.edge_down_power_w.sum() / s.edge_power_w - 1,
    }
    for name, share in (("share", training), ("edge_down_share", distribution)):
        breach_of[f"{name} of a subchannel within 1"] = (share.sum(axis=0) - 1).max()
        breach_of[f"{name} is not negative"] = -share.min()
    for name, power in powers.items():
        owned = distribution if name == "edge_down_power_w" else training
        breach_of[f"{name} on owned subchannels alone"] = _all_or_nothing(np.where(owned > 0, 0.0, power).any())
    return {name: float(breach) for name, breach in breach_of.items()}


def _largest_excess(power_w: Array, limit_w: Array) -> float:
    """The largest relative excess of a client's power [K, I] over its limit [K]."""
    return float((power_w.sum(axis=1) / limit_w - 1).max())


def _usable(numbers: Array) -> bool:
    """Whether all numbers are finite and not negative; nan is neither."""
    return bool(numbers.min(initial=0.0) >= 0.0 and numbers.max(initial=0.0) < np.inf)


def _all_or_nothing(broken: Any) -> float:
    """The breach of a constraint that holds or does not: infinite or 0."""
    return np.inf if broken else 0.0


# --- Owners and shares of subchannels


def owner_of(share: Array) -> Array:
    """Owners [I] of exclusive shares [K, I]; -1 where nobody has the subchannel."""
    return np.where(share.any(axis=0), share.argmax(axis=0), -1)


def who_has(sharing: str, training: Array, distribution: Array) -> dict[str, Any]:
    """The four fields of an `Allocation` that say who has which subchannel, from the shares [K, I] of both stages."""
    exclusive = sharing == "exclusive"
    return {
        "owner": owner_of(training) if exclusive else None,
        "edge_down_owner": owner_of(distribution) if exclusive else None,
        "share": None if exclusive else training,
        "edge_down_share": None if exclusive else distribution,
    }


def shares_of_answer(a: Allocation) -> tuple[Array, Array]:
    """The shares [K, I] of training and of distribution."""
    if a.owner is None or a.edge_down_owner is None:
        assert a.share is not None
        assert a.edge_down_share is not None
        return a.share, a.edge_down_share
    clients = np.arange(len(a.cuts))[:, None]
    return (clients == a.owner).astype(float), (clients == a.edge_down_owner).astype(float)


# --- Without a solver


def even_allocation(scenario: Scenario, draft: Allocation) -> Allocation:
    """The draft's cuts with everything divided evenly among its kept clients; a client that then passes tau_s is dropped, too."""
    s, kept = scenario, draft.kept.copy()
    while True:
        allocation = _divide(s, draft, kept)
        with np.errstate(all="ignore"):  # a client that sits out has no rate
            late = kept & (client_round_s(phases_of(s, allocation), s.num_batches) > (s.tau_s or np.inf))
        if not late.any():
            return allocation
        kept = kept & ~late


def _divide(s: Scenario, draft: Allocation, kept: Array) -> Allocation:
    """The draft with everything divided evenly among the clients kept [K] bool; the model goes to all clients."""
    share, edge_share = _even_share(s, kept), _even_share(s, np.ones(len(kept), bool))
    fraction, edge_fraction = (
        stage_share / np.maximum(stage_share.sum(axis=1, keepdims=True), 1e-300) for stage_share in (share, edge_share)
    )
    uplink_w = s.max_power_w[:, None] * INSIDE * fraction
    return replace(
        draft,
        kept=kept,
        server_hz=np.where(kept, s.main_hz / max(kept.sum(), 1) * INSIDE, 0.0),
        **who_has(s.sharing, share, edge_share),
        main_up_power_w=uplink_w,
        main_down_power_w=s.main_power_w / max(kept.sum(), 1) * INSIDE * fraction,
        edge_up_power_w=uplink_w,
        edge_down_power_w=s.edge_power_w / len(kept) * INSIDE * edge_fraction,
    )


def _even_share(s: Scenario, receiving: Array) -> Array:
    """Even shares [K, I] of the clients in `receiving` [K] bool: whole subchannels by turns, or the same share of every subchannel."""
    share, members = np.zeros(s.main_gain.shape), np.flatnonzero(receiving)
    if len(members) and s.sharing == "exclusive":
        columns = np.arange(s.num_subchannels)
        share[members[columns % len(members)], columns] = 1.0
    elif len(members):
        share[members] = INSIDE / len(members)
    return share


def alone_bound_s(scenario: Scenario, draft: Allocation) -> float:
    """A lower bound on the round of the draft's cuts and kept clients, in seconds.

    Each client has the whole server and every subchannel for itself, with all power on each subchannel.
    """
    s, everything = scenario, np.ones(scenario.main_gain.shape)
    alone = replace(
        draft,
        server_hz=np.full(s.num_clients, s.main_hz),
        share=None,
        edge_down_share=None,
        main_up_power_w=s.max_power_w[:, None] * everything,
        main_down_power_w=s.main_power_w * everything,
        edge_up_power_w=s.max_power_w[:, None] * everything,
        edge_down_power_w=s.edge_power_w * everything,
    )
    p = phases_of(s, alone)
    training_s = client_round_s(p, s.num_batches)[draft.kept].max(initial=0.0)
    return float(training_s + p.model_down_s.max()) * (1.0 - 1e-12)
