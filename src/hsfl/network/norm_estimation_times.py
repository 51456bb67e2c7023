"""How long it takes to estimate BatchNorm's statistics again, after a round whose model is tested.

Legend: K clients, N batches that a client sends forward; F, U and S the seconds of a batch on the client, on the uplink and on the server,
forward alone; H the upload of the moments of a head, M the download of a head.

    each client has its part of the server    max_k [N (F + U + S) + H]
    the server does one thing at a time       max_k N (F + U) + sum_k N S + max_k H
    clients take turns                        the sum over turns of the above, each begun by the download of the new head, max_k M
"""

import numpy as np

from hsfl.framework_table import Timing
from hsfl.network.latency import Phases

Array = np.ndarray


def estimation_s(
    timing: Timing, phases: Phases, num_batches: Array, moments_part: Array, kept: Array, clusters: Array | None
) -> float:
    """The seconds of an estimation.

    num_batches: N [K]. moments_part: [K], the bits of the moments of a head over the bits of the head. kept: indices of the clients.
    clusters: [K], CPSL's.
    """
    server_s = num_batches * phases.server_forward_s
    if timing.step == "pooled":
        return float(server_s[kept].sum())
    client_s = num_batches * (phases.client_forward_s + phases.smashed_s)
    upload_s = moments_part * phases.model_up_s
    total_s = 0.0
    for turn in _turns(timing, kept, clusters):
        if timing.turns != "together":
            total_s += float(phases.model_down_s[turn].max())
        if timing.step == "free":
            total_s += float((client_s + server_s + upload_s)[turn].max())
        else:
            total_s += float(client_s[turn].max() + server_s[turn].sum() + upload_s[turn].max())
    return total_s


def _turns(timing: Timing, kept: Array, clusters: Array | None) -> list[Array]:
    """The clients of each turn."""
    if timing.turns == "alone":
        return [kept[place : place + 1] for place in range(len(kept))]
    if timing.turns == "clusters" and clusters is not None:
        return [kept[clusters[kept] == number] for number in np.unique(clusters[kept])]
    return [kept] if len(kept) else []
