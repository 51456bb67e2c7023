"""Which clients take part when not all of them can finish within tau_s.

Legend: K clients, I subchannels. Where the least T of all clients is above tau_s, every allocation of all clients ties at tau_s. So
clients are added, the cheapest price per sample first, while the set can still finish in time. Then the T of this set is
minimised.
"""

import numpy as np

from hsfl.allocation.buying import buy, workspace
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.solving import StageSolver, StopWhen, TimeLimit
from hsfl.allocation.stage import Stage, only

Array = np.ndarray
DECIDED = 1e-6  # the gap of the answer to "can this set finish?"; where the gap leaves the answer open, it is no


def prices(stage: Stage, T_s: float) -> Array:
    """What each client needs of cycles, power and band to finish at T_s, as one number [K]; infinite where it cannot.

    Cycles and power have the price 1/2 each, as in `prices`, and so has the whole band.
    """
    K, subs = stage.start_w.shape
    even = np.full(subs, 1.0 / (2.0 * subs))
    work = workspace(subs)
    need = np.empty(K)
    for k in range(K):
        sets, chosen, allowed = np.zeros((subs + 1, subs)), np.zeros(subs), np.ones(subs)
        rho = stage.hz / stage.power_w
        need[k] = buy(stage, k, even, T_s, rho, 0.5, subs, sets, chosen, work, allowed)
    return need


def keep_within(scenario: Scenario, stage: Stage, solve: StageSolver, clock: TimeLimit) -> Array:
    """Which clients take part, [K] bool: greedy by price per sample. A client that no longer fits is passed over.

    solve: decides whether a set of clients can finish training by the scenario's tau_s.
    """
    tau_s = float(scenario.tau_s)  # type: ignore[arg-type]
    need = prices(stage, tau_s)
    samples = scenario.num_batches * scenario.batch_size
    kept = np.zeros(scenario.num_clients, bool)
    for k in np.argsort(need / samples, kind="stable"):
        if not np.isfinite(need[k]):
            continue
        kept[k] = True
        limit_s = (clock.limit_s - clock.seconds()) / (2 * scenario.num_clients)
        answer = solve(only(stage, kept), StopWhen(DECIDED, tau_s=tau_s), TimeLimit(max(limit_s, 1e-3)))
        kept[k] = answer.T_s <= tau_s
    return kept
