"""What needs no solver: an even allocation, and a bound from each client alone with everything. Nothing here converges.

Legend: K clients, I subchannels. Where a solver fails on numbers beyond its digits, the even allocation is the answer and
this bound is its bound.
"""

from dataclasses import replace

import numpy as np

from hsfl.allocation.answer import Allocation, phases_of, who_has
from hsfl.allocation.scenario import Scenario
from hsfl.network.latency import client_round_s

Array = np.ndarray
INSIDE = 1.0 - 1e-15  # a sum of rounded parts must not pass the budget


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
    parts, edge_parts = (each / np.maximum(each.sum(axis=1, keepdims=True), 1e-300) for each in (share, edge_share))
    own_w = s.max_power_w[:, None] * INSIDE * parts
    return replace(
        draft,
        kept=kept,
        server_hz=np.where(kept, s.main_hz / max(kept.sum(), 1) * INSIDE, 0.0),
        **who_has(s.sharing, share, edge_share),
        main_up_power_w=own_w,
        main_down_power_w=s.main_power_w / max(kept.sum(), 1) * INSIDE * parts,
        edge_up_power_w=own_w,
        edge_down_power_w=s.edge_power_w / len(kept) * INSIDE * edge_parts,
    )


def _even_share(s: Scenario, on: Array) -> Array:
    """Even shares [K, I] of the clients on [K] bool: whole subchannels by turns, or the same share of every subchannel."""
    share, members = np.zeros(s.main_gain.shape), np.flatnonzero(on)
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
