"""What a round asks of the clients of a framework: its cuts, its batch sizes, and its phases under the even allocation.

Legend: K clients.
"""

from dataclasses import replace

import numpy as np

from hsfl.framework_table import method
from hsfl.models.cost_table import CostTable
from hsfl.network.channel import Links, RoundDraw
from hsfl.network.clusters import check_clusters
from hsfl.network.devices import Fleet, Servers
from hsfl.network.even import even
from hsfl.network.latency import Phases, phases

Array = np.ndarray


def framework_cuts(name: str, cuts: Array, num_units: int) -> Array:
    """The cuts as the framework uses them: 0 for CL, `num_units` for FL, else the cuts given."""
    cut = method(name).timing.cut
    return np.full_like(cuts, {"none": 0, "whole": num_units}[cut]) if cut != "any" else np.asarray(cuts)


def psl_batch_sizes(num_samples: Array, batch_size: int) -> Array:
    """PSL's batch size of each client, [K], in proportion to its samples. It may be fractional: the clock charges true samples."""
    return num_samples * (len(num_samples) * batch_size / np.sum(num_samples))


def even_phases(
    name: str,
    cost: CostTable,
    cuts: Array,
    batch_size: int | Array,
    fleet: Fleet,
    servers: Servers,
    links: Links,
    draw: RoundDraw,
    *,
    started: Array | None = None,
    receives: Array | None = None,
    clusters: Array | None = None,
) -> Phases:
    """Phases [..., K] under the even allocation as the framework takes turns; also over samples of the channel.

    started, receives: [K] bool, who takes part and who gets the model that the round makes; everyone by default.
    """
    framework = method(name).timing
    group = None
    if framework.turns == "alone":
        group = np.arange(fleet.num_clients)
    elif framework.turns == "clusters":
        group = check_clusters(clusters, fleet.num_clients)
    if framework.turns != "together":
        receives = started  # the head is handed on to those whose turn it is
    resources = even(links, fleet, servers, draw, group, started, receives)
    fixed_hz = {"whole": servers.main_hz, "own": servers.main_hz / fleet.num_clients}  # of each client
    server_hz = fixed_hz.get(framework.server, resources.server_hz)
    every = phases(
        cost,
        framework_cuts(name, cuts, cost.num_units),
        batch_size,
        np.asfortranarray(draw.cpu_hz) * fleet.flops_per_cycle,  # in column order, as the rates are
        server_hz * servers.flops_per_cycle,
        resources.rates,
    )
    return every if receives is None else replace(every, model_down_s=np.where(receives, every.model_down_s, 0.0))
