"""What a plan says of each client: its cut, what it gets, and its seconds in one round."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hsfl.allocation.answer import Allocation
from hsfl.network.latency import Phases
from hsfl.planning.resources import POWERS

Array = np.ndarray
BATCH_PHASES = ("client", "smashed", "server", "gradient")


@dataclass(frozen=True)
class ClientPlan:
    """One client in the first sample. A power is the sum over the client's subchannels; None where links are measured."""

    client: int
    cut: int
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


def client_plans(
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
