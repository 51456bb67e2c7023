"""Cuts of large fleets and of several cells: planned over sampled rounds, without a loop over clients.

Legend: K clients, C cuts, S sampled rounds, I subchannels, n clients that take part in a round.
"""

from dataclasses import dataclass

import numpy as np

from hsfl.allocation.cuts.large_fleets import Crowd, LargeFleet, Loads
from hsfl.network.channel import Ofdma, RoundDraw
from hsfl.network.latency import LN2, client_round_s, phases
from hsfl.planning.rounds.participation import CutTask
from hsfl.planning.world import World, sample_draws

Array = np.ndarray
AVERAGED_DRAWS = 4  # of gains, over which a client's bits per second and hertz are averaged
MOST_ROWS = 10_000  # clients on which prices are found; of more clients, every n-th counts


def large_fleet(task: CutTask) -> LargeFleet:
    """The fleet of a task as prices need it: what its clients would have to do, and who takes part in the sampled rounds."""
    world, links, sampled = task.world, task.world.links, task.participants
    assert isinstance(links, Ofdma), "crowds share a radio"
    cell = np.zeros(world.fleet.num_clients, int) if links.cell is None else links.cell
    loads = _crowd_loads(task)
    every = np.concatenate(sampled.rounds)
    rows = every[np.argsort(cell[every], kind="stable")][:: len(every) // MOST_ROWS + 1]  # by cell: all keep a part
    weight, main_hz, subs = len(every) / len(rows) / len(sampled.rounds), world.servers.main_hz, links.num_subchannels
    return LargeFleet(Crowd(loads.take(rows), cell[rows], links.num_cells, weight, main_hz, subs), loads, cell)


def own_fastest_cuts(task: CutTask) -> Array:
    """The cut with which each client ends soonest under the even allocation, [K], among as many clients as a sampled round has."""
    world, num_active = task.world, task.participants.num_active
    fleet, servers, links = world.fleet, world.servers, world.links
    own_hz = servers.main_hz / num_active
    if isinstance(links, Ofdma):
        loads = _crowd_loads(task)
        width = _width(links, num_active)
        own_s = loads.fixed_s + loads.cycles / own_hz + (loads.band_s + loads.down_s) / width
        return np.asarray(own_s.argmin(axis=1))
    cost, rates = world.cost, links.rates
    columns = np.arange(cost.num_units + 1)[:, None]  # [C, 1]
    speed = fleet.cpu_hz * fleet.flops_per_cycle
    client_phases = phases(
        cost, columns, task.batch_size, speed, own_hz * servers.flops_per_cycle, rates, fleet.work, servers.work
    )
    own_s = np.where(
        task.rows.T, client_round_s(client_phases, task.num_batches) + client_phases.model_down_s, np.inf
    )  # [C, K]
    return np.asarray(own_s.argmin(axis=0))


@dataclass(frozen=True)
class _Efficiency:
    """Bits per second and hertz of each client in its usual part of the band, [K], towards and from both servers."""

    main_up: Array
    main_down: Array
    edge_up: Array
    edge_down: Array


def _crowd_loads(task: CutTask) -> Loads:
    """What each client would have to do at each cut, in cells that the clients of a round share evenly.

    The download of a client stands for all receivers of the model: it counts num_receivers / num_active times.
    """
    world, sampled = task.world, task.participants
    cost, fleet, links, servers = world.cost, world.fleet, world.links, world.servers
    assert isinstance(links, Ofdma), "crowds share a radio"
    seen = _mean_efficiency(world, sampled.num_active)
    samples = (np.broadcast_to(task.num_batches, fleet.cpu_hz.shape) * task.batch_size)[:, None]  # [K, 1]
    per_hz = 1.0 / links.subchannel_hz
    band_s = samples * (cost.smashed_bits / seen.main_up[:, None] + cost.gradient_bits / seen.main_down[:, None])
    return Loads(
        fixed_s=np.where(
            task.rows, samples * cost.client_flops / (fleet.cpu_hz * fleet.flops_per_cycle)[:, None], np.inf
        ),
        cycles=samples * cost.server_flops / servers.flops_per_cycle,
        band_s=(band_s + cost.model_bits / seen.edge_up[:, None]) * per_hz,
        down_s=cost.down_bits / seen.edge_down[:, None] * per_hz * (sampled.num_receivers / sampled.num_active),
    )


def _width(links: Ofdma, num_active: float) -> float:
    """The subchannels that a client has, where all cells are alike."""
    return links.num_subchannels / max(num_active / links.num_cells, 1.0)


def _mean_efficiency(world: World, num_active: float) -> _Efficiency:
    """The mean over a few draws: cuts that follow one draw alone are worse in every other round."""
    draws = sample_draws(world, AVERAGED_DRAWS)
    drawn = [
        _efficiency(world, draws.sample(index), num_active) for index in range(min(AVERAGED_DRAWS, len(draws.cpu_hz)))
    ]
    return _Efficiency(
        *(np.mean([getattr(one, name) for one in drawn], axis=0) for name in _Efficiency.__dataclass_fields__)
    )


def _efficiency(world: World, draw: RoundDraw, num_active: float) -> _Efficiency:
    """Mean over the subchannels of one draw, each client with an even part of its cell's band and of the servers' power."""
    links, servers = world.links, world.servers
    assert isinstance(links, Ofdma), "crowds share a radio"
    in_cell, width = max(num_active / links.num_cells, 1.0), _width(links, num_active)

    def bits(gain: Array | None, power_w: Array | float) -> Array:
        assert gain is not None, "a radio draws gains"
        density = np.reshape(np.asarray(power_w, float) / (width * links.noise_w), (-1, 1))
        return np.log1p(gain * density).mean(axis=1) / LN2

    main_w, edge_w = servers.main_power_w / in_cell, servers.edge_power_w / in_cell
    up_w = world.fleet.max_power_w
    return _Efficiency(
        bits(draw.main_gain, up_w),
        bits(draw.main_gain, main_w),
        bits(draw.edge_gain, up_w),
        bits(draw.edge_gain, edge_w),
    )
