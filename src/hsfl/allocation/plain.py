"""What needs no solver: an even allocation, and a bound from each client alone with everything. Nothing here iterates.

Legend: K clients, I subchannels. Where a solver fails on numbers beyond its digits, these are the answer and its bound.
"""

from dataclasses import replace

import numpy as np

from hsfl.allocation.answer import Allocation, phases_of
from hsfl.allocation.scenario import Scenario
from hsfl.network.latency import client_round_s

Array = np.ndarray
INSIDE = 1.0 - 1e-15  # a sum of rounded parts must not pass the budget


def even_allocation(scenario: Scenario, draft: Allocation) -> Allocation:
    """The draft's cuts with everything divided evenly among the clients kept; who then passes tau_s sits out as well."""
    s, kept = scenario, draft.kept.copy()
    while True:
        allocation = _divide(s, draft, kept)
        with np.errstate(all="ignore"):  # a client that sits out has no rate
            late = kept & (client_round_s(phases_of(s, allocation), s.num_batches) > (s.tau_s or np.inf))
        if not late.any():
            return allocation
        kept = kept & ~late


def _divide(s: Scenario, draft: Allocation, kept: Array) -> Allocation:
    share, edge_share = _even_share(s, kept), _even_share(s, np.ones(len(kept), bool))
    parts, edge_parts = (each / np.maximum(each.sum(axis=1, keepdims=True), 1e-300) for each in (share, edge_share))
    own_w = s.max_power_w[:, None] * INSIDE * parts
    exclusive = s.sharing == "exclusive"
    return replace(
        draft,
        kept=kept,
        server_hz=np.where(kept, s.main_hz / max(kept.sum(), 1) * INSIDE, 0.0),
        owner=_owner(share) if exclusive else None,
        edge_down_owner=_owner(edge_share) if exclusive else None,
        share=None if exclusive else share,
        edge_down_share=None if exclusive else edge_share,
        main_up_power_w=own_w,
        main_down_power_w=s.main_power_w / max(kept.sum(), 1) * INSIDE * parts,
        edge_up_power_w=own_w,
        edge_down_power_w=s.edge_power_w / len(kept) * INSIDE * edge_parts,
    )


def _even_share(s: Scenario, on: Array) -> Array:
    """Shares [K, I] of those who are on: whole subchannels by turns, or the same fraction of each."""
    share, members = np.zeros(s.main_gain.shape), np.flatnonzero(on)
    if len(members) and s.sharing == "exclusive":
        columns = np.arange(s.num_subchannels)
        share[members[columns % len(members)], columns] = 1.0
    elif len(members):
        share[members] = INSIDE / len(members)
    return share


def _owner(share: Array) -> Array:
    return np.where(share.any(axis=0), share.argmax(axis=0), -1)


def alone_bound_s(scenario: Scenario, draft: Allocation) -> float:
    """No allocation of the draft's cuts and kept clients is faster: each has all of the server, every band, all power on each."""
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
