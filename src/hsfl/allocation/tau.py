"""Who takes part when not everyone can finish within tau_s.

Legend: K clients, I subchannels. Once T* > tau_s, every allocation of all clients ties at tau_s. So clients are added,
the cheapest price per sample first, while the set can still finish in time; then the set's own T is minimised.
"""

from typing import Any

import numpy as np

from hsfl.allocation import lagrange
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.search import Goal, TimeLimit
from hsfl.allocation.stage import Stage, only

Array = np.ndarray
DECIDED = 1e-6  # a gap at which a set that cannot be told from fitting does not fit


def prices(stage: Stage, T_s: float) -> Array:
    """What each client needs of cycles, power and band to finish at T_s [K]: three budgets, each worth a third."""
    K, subs = stage.start_w.shape
    even = np.full(subs, 1.0 / (2.0 * subs))  # cycles and power are priced at a half each, and so is the whole band
    work = lagrange.workspace(subs)
    need = np.empty(K)
    for k in range(K):
        sets, chosen, allowed = np.zeros((subs + 1, subs)), np.zeros(subs), np.ones(subs)
        rho = stage.hz / stage.power_w
        need[k] = lagrange.buy(stage, k, even, T_s, rho, 0.5, subs, sets, chosen, work, allowed)
    return need


def keep_within(scenario: Scenario, stage: Stage, solve: Any, clock: TimeLimit) -> Array:
    """kept [K]: greedy by price per sample; a client that no longer fits is passed over, and the next one tried."""
    tau_s = float(scenario.tau_s)  # type: ignore[arg-type]
    need = prices(stage, tau_s)
    samples = scenario.num_batches * scenario.batch_size
    kept = np.zeros(scenario.num_clients, bool)
    for k in np.argsort(need / samples, kind="stable"):
        if not np.isfinite(need[k]):
            continue
        kept[k] = True
        share = (clock.limit_s - clock.seconds()) / (2 * scenario.num_clients)
        answer = solve(only(stage, kept), Goal(DECIDED, tau_s=tau_s), TimeLimit(max(share, 1e-3)))
        kept[k] = answer.T_s <= tau_s
    return kept
