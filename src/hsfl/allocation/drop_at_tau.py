"""Who is dropped at tau: which clients sit a round out because not all of them can end training within tau_s.

Legend: K clients, I subchannels, T the least seconds of training.

Where the least T of all clients is above tau_s, every allocation of all clients ties at tau_s. So clients are added, the cheapest
price per data sample first, while the set can still end in time; the others are dropped. Then the T of the clients kept is
minimised (`exact`, `cells`). In a round of several cells, each cell keeps clients within its part of the main server's cycles.

Links of given rates have the same rule without a radio: `measured_links.keep_within_tau_measured`. A clock that plays a round drops a
client that passes tau_s all the same (`network.clock._free_until_tau`), and so does a main server that waits for real clients
(`deploy.main.main_server.MainProcess._wait_until_complete`).
"""

import numpy as np

from hsfl.allocation.scenario import Scenario
from hsfl.allocation.stage.lagrangian import cheapest_set, workspace
from hsfl.allocation.stage.scaling import solve_in_own_units
from hsfl.allocation.stage.stage import Stage, stage_of_clients
from hsfl.allocation.stage.stage_answer import StageSolver, StopWhen, TimeLimit

Array = np.ndarray
DECIDED = 1e-6  # the gap of the answer to "can this set finish?"; where the gap leaves the answer open, it is no


def client_prices(stage: Stage, T_s: float) -> Array:
    """What each client needs of cycles, power and band to finish at T_s, as one number [K]; infinite where it cannot.

    Cycles and power have the price 1/2 each (lam of `stage.client_prices`), and so has the whole band.
    """
    K, subs = stage.start_w.shape
    subchannel_price = np.full(subs, 1.0 / (2.0 * subs))
    work = workspace(subs)
    price = np.empty(K)
    for k in range(K):
        sets, chosen, allowed = np.zeros((subs + 1, subs)), np.zeros(subs), np.ones(subs)
        rho = stage.hz / stage.power_w
        price[k] = cheapest_set(stage, k, subchannel_price, T_s, rho, 0.5, subs, sets, chosen, work, allowed)
    return price


def keep_within_tau(scenario: Scenario, stage: Stage, solve: StageSolver, clock: TimeLimit) -> Array:
    """Which clients take part, [K] bool; the others are dropped. Greedy by price per sample: a client that no longer fits is
    passed over.

    solve: decides whether a set of clients can finish training by the scenario's tau_s.
    """
    tau_s = float(scenario.tau_s)  # type: ignore[arg-type]
    price = client_prices(stage, tau_s)
    samples = scenario.num_batches * scenario.batch_size
    kept = np.zeros(scenario.num_clients, bool)
    for k in np.argsort(price / samples, kind="stable"):
        if not np.isfinite(price[k]):
            continue
        kept[k] = True
        limit_s = (clock.limit_s - clock.seconds()) / (2 * scenario.num_clients)
        answer = solve(stage_of_clients(stage, kept), StopWhen(DECIDED, tau_s=tau_s), TimeLimit(max(limit_s, 1e-3)))
        kept[k] = answer.T_s <= tau_s
    return kept


def keep_within_tau_in_cell(scenario: Scenario, stage: Stage, solve: StageSolver, limit_s: float) -> Array:
    """Which clients of a cell take part with the cell's part of the cycles, [K] bool; the others are dropped. As many as can end by
    tau_s, in the order of their price per sample.

    The number of clients is found by bisection, since fewer clients of the same order are never slower.
    """
    tau_s = float(scenario.tau_s)  # type: ignore[arg-type]
    price = client_prices(stage, tau_s) / (scenario.num_batches * scenario.batch_size)
    order = np.argsort(price, kind="stable")[: int(np.isfinite(price).sum())]

    def fits(count: int) -> bool:
        first_clients = stage_of_clients(stage, np.sort(order[:count]))
        return (
            solve_in_own_units(solve, first_clients, StopWhen(DECIDED, tau_s=tau_s), TimeLimit(limit_s / 8)).T_s
            <= tau_s
        )

    few, many = 0, len(order) + 1
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if fits(middle) else (few, middle)
    return np.isin(np.arange(scenario.num_clients), order[:few])
