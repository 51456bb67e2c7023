"""A round of a world in explicit numbers, as `hsfl allocate` reads them, and two smaller rounds that are made of it."""

from dataclasses import replace

import numpy as np

from hsfl.allocation.scenario import Scenario
from hsfl.errors import InputError
from hsfl.network.channel import Ofdma, RoundDraw
from hsfl.planning.world import World

Array = np.ndarray


def scenario(
    world: World,
    draw: RoundDraw,
    batch_size: int,
    num_batches: Array,
    tau_s: float | None,
    sharing: str,
    min_cut: int = 1,
) -> Scenario:
    """A round in explicit numbers, as `hsfl allocate` reads them. num_batches: [K]. sharing: exclusive, bandwidth or auto."""
    links, cost, fleet, servers = world.links, world.cost, world.fleet, world.servers
    if not isinstance(links, Ofdma) or draw.main_gain is None or draw.edge_gain is None:
        raise InputError("network.kind is 'measured', which has no radio; a scenario needs network.kind=ofdma")
    if sharing == "auto":
        sharing = "bandwidth" if fleet.num_clients > links.num_subchannels else "exclusive"
    return Scenario(
        batch_size=batch_size,
        tau_s=tau_s,
        sharing=sharing,
        client_flops=cost.client_flops,
        server_flops=cost.server_flops,
        smashed_bits=cost.smashed_bits,
        gradient_bits=cost.gradient_bits,
        model_bits=cost.model_bits,
        cpu_hz=draw.cpu_hz,
        client_flops_per_cycle=fleet.flops_per_cycle,
        max_power_w=fleet.max_power_w,
        max_cut=np.minimum(fleet.max_cut, cost.num_units),
        num_batches=num_batches,
        min_cut=min_cut,
        main_hz=servers.main_hz,
        server_flops_per_cycle=servers.flops_per_cycle,
        main_power_w=servers.main_power_w,
        edge_power_w=servers.edge_power_w,
        subchannel_hz=links.subchannel_hz,
        noise_w=links.noise_w,
        main_gain=draw.main_gain,
        edge_gain=draw.edge_gain,
    ).checked()


def with_own_servers(whole: Scenario, cuts: Array, server_hz: float) -> Scenario:
    """The round where every client has a server of `server_hz` to itself (FSL). A client and its server count as one slower
    machine, so that an allocation divides subchannels and power alone, and its bound is that of this smaller problem."""
    flops = whole.client_flops + whole.server_flops
    speed = whole.cpu_hz * whole.client_flops_per_cycle
    own_s = whole.client_flops[cuts] / speed + whole.server_flops[cuts] / (server_hz * whole.server_flops_per_cycle)
    cpu_hz = np.divide(flops[cuts], own_s * whole.client_flops_per_cycle, out=whole.cpu_hz.copy(), where=own_s > 0)
    return replace(whole, client_flops=flops, server_flops=np.zeros_like(flops), cpu_hz=cpu_hz)
