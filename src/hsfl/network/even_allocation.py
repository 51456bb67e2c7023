"""The even allocation: rates, cycles and phases of a round in which everything is divided evenly. Any other policy must beat it.

Legend: K clients, I subchannels. Clients that work at the same time form a group, and a group has everything: its members get
equal cycles of the main server; subchannels in turn (subchannel i is the (i mod size)-th member's), or an equal share of every
subchannel where members outnumber subchannels; and equal downlink power. Uplinks have the maximum power. A client's power is spread
equally over its band. In a parallel framework all clients are one group, in SL every client is a group, and in CPSL every cluster
is. Where there are cells, the band and the downlink power of a cell are those of its clients in the group; cycles are divided
among the whole group.

`even_phases` puts this together for a framework: the cuts that it uses, its batch sizes and its turns.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hsfl.framework_table import method
from hsfl.models.cost_table import CostTable
from hsfl.network.channel import Links, Measured, Ofdma, RoundDraw
from hsfl.network.clusters import check_clusters
from hsfl.network.devices import Fleet, Servers
from hsfl.network.latency import LN2, Phases, Rates, phases, sum_last

Array = np.ndarray
BLOCK = 256  # clients at a time


@dataclass(frozen=True)
class Resources:
    """What a policy gives each client in a round, [..., K]."""

    rates: Rates
    server_hz: Array


def even_resources(
    links: Links,
    fleet: Fleet,
    servers: Servers,
    draw: RoundDraw,
    group: Array | None = None,
    started: Array | None = None,
    receives: Array | None = None,
) -> Resources:
    """Rates and server cycles under the even allocation.

    `group` [K] numbers each client's group (default: all in one). Clients that do not start this round get no cycles
    and no band except for the model's distribution, which reaches everyone, or those in `receives`.
    """
    num_clients = fleet.num_clients
    num_subchannels = 1 if isinstance(links, Measured) else links.num_subchannels
    working = receiving = _together(num_subchannels, num_clients)
    beside = working.size  # [n] who works at the same time
    band = _band_groups(links, group, num_clients)
    if band is not None or started is not None or receives is not None:
        band = np.zeros(num_clients, int) if band is None else band
        receivers = np.arange(num_clients) if receives is None else np.flatnonzero(receives)
        receiving = Bands(num_subchannels, band, receivers)
        working = Bands(num_subchannels, band, np.arange(num_clients) if started is None else np.flatnonzero(started))
        beside = _size_and_rank(_in_turn(group, num_clients)[working.members])[0]
    server_hz = working.of_all(servers.main_hz / beside)
    if isinstance(links, Measured):
        assert draw.rates is not None, "measured links draw rates"
        return Resources(draw.rates, server_hz)
    assert draw.main_gain is not None, "OFDMA links draw gains"
    assert draw.edge_gain is not None, "OFDMA links draw gains"
    main_gain, edge_gain = working.owned(draw.main_gain), working.owned(draw.edge_gain)
    edge_down_gain = edge_gain if receiving is working else receiving.owned(draw.edge_gain)
    up_power_w = fleet.max_power_w[working.members]
    rates = Rates(
        main_up_bps=working.rate_bps(main_gain, up_power_w, links),
        main_down_bps=working.rate_bps(main_gain, servers.main_power_w / working.size, links),
        edge_up_bps=working.rate_bps(edge_gain, up_power_w, links),
        edge_down_bps=receiving.rate_bps(edge_down_gain, servers.edge_power_w / receiving.size, links),
    )
    return Resources(rates, server_hz)


def _band_groups(links: Links, group: Array | None, num_clients: int) -> Array | None:
    """Who shares a band, as numbers [K]: a group that works at the same time, within one cell. None: everyone."""
    cell = None if isinstance(links, Measured) else links.cell
    if cell is None:
        return None if group is None else np.asarray(group)
    return _in_turn(group, num_clients) * (int(cell.max()) + 1) + cell


def _in_turn(group: Array | None, num_clients: int) -> Array:
    return np.zeros(num_clients, int) if group is None else np.asarray(group)


class Bands:
    """Who owns what of the band, evenly in each group; n members, all others own nothing."""

    def __init__(self, num_subchannels: int, group: Array, members: Array) -> None:
        self.members, self.num_clients = members, len(group)
        self.size, rank = _size_and_rank(group[members])  # [n] the size of its group, its place there
        crowded = self.size > num_subchannels
        self.share = np.where(crowded, 1 / self.size, 1.0)  # [n] of each subchannel that it owns
        self.num_owned = np.where(crowded, num_subchannels, (num_subchannels - 1 - rank) // self.size + 1)  # [n]
        self.width = self.num_owned * self.share  # [n] in subchannels
        self.everything = len(members) == self.num_clients and bool((self.num_owned == num_subchannels).all())
        # Pairs (client, subchannel) of what a client owns, sorted by client; not listed where every client owns every subchannel.
        row = np.arange(len(members)).repeat(0 if self.everything else self.num_owned)
        self.first = np.cumsum(self.num_owned) - self.num_owned
        turn = np.arange(len(row)) - self.first[row]
        column = np.where(crowded[row], turn, rank[row] + turn * self.size[row])
        self.pairs = members[row] * num_subchannels + column

    def of_all(self, values: Array) -> Array:
        """The members' values among all clients, [..., n] -> [..., K]; 0 for the others."""
        if len(self.members) == self.num_clients:
            return values
        of_clients = np.zeros((*values.shape[:-1], self.num_clients))
        of_clients[..., self.members] = values
        return of_clients

    def owned(self, gain: Array) -> Array:
        """The gains that matter, [..., K, I] -> [..., pairs]; unchanged where every client owns every subchannel.

        NumPy lays the result out in column order, and so runs along the samples when there are many of few clients:
        several times faster than along the clients.
        """
        if self.everything:
            return gain
        return gain.reshape(*gain.shape[:-2], -1)[..., self.pairs]

    def rate_bps(self, owned_gain: Array, power_w: Array, links: Ofdma) -> Array:
        """Eq. (7) over each client's band, its power [n] spread equally over it: [..., K]."""
        snr_per_gain = power_w / (self.width * links.noise_w)
        if self.everything:
            bits = _sum_log2(owned_gain, snr_per_gain)
        else:
            bits = _log2_1p(owned_gain * snr_per_gain.repeat(self.num_owned))
            if len(self.pairs) > len(self.members):  # else one subchannel each
                bits = np.add.reduceat(bits, self.first, axis=-1)
        bits *= links.subchannel_hz * self.share
        return self.of_all(bits)


@lru_cache(maxsize=8)
def _together(num_subchannels: int, num_clients: int) -> Bands:
    """All clients in one group, which is the same in every round."""
    return Bands(num_subchannels, np.zeros(num_clients, int), np.arange(num_clients))


def _sum_log2(gain: Array, snr_per_gain: Array) -> Array:
    """sum_i log2(1 + snr_per_gain_k g_ki), [..., K, I] -> [..., K], in blocks that stay in the processor's cache."""
    bits = np.empty(gain.shape[:-1])
    for low in range(0, gain.shape[-2], BLOCK):
        block = slice(low, low + BLOCK)
        bits[..., block] = sum_last(_log2_1p(gain[..., block, :] * snr_per_gain[block, None]))
    return bits


def _log2_1p(snr: Array) -> Array:
    """log2(1 + snr), in place: exact for weak signals too, and by NumPy's fast log2 where there are none."""
    if snr.min(initial=1.0) < 1e-4:
        np.log1p(snr, out=snr)
        snr *= 1 / LN2
        return snr
    snr += 1
    return np.asarray(np.log2(snr, out=snr))


def _size_and_rank(group: Array) -> tuple[Array, Array]:
    """The size of each client's group, and the client's place in its group, [K] each. A group keeps the order of the clients."""
    if len(group) and (group == group[0]).all():
        return np.full(len(group), len(group)), np.arange(len(group))
    _, index, count = np.unique(group, return_inverse=True, return_counts=True)
    order = np.argsort(index, kind="stable")
    rank = np.empty(len(group), int)
    rank[order] = np.arange(len(group)) - np.repeat(np.cumsum(count) - count, count)
    return count[index], rank


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
    resources = even_resources(links, fleet, servers, draw, group, started, receives)
    fixed_hz = {"whole": servers.main_hz, "own": servers.main_hz / fleet.num_clients}  # of each client
    if servers.service is not None:
        fixed_hz["divided"] = servers.main_hz  # one batch at a time has the whole server
    server_hz = fixed_hz.get(framework.server, resources.server_hz)
    all_phases = phases(
        cost,
        framework_cuts(name, cuts, cost.num_units),
        batch_size,
        np.asfortranarray(draw.cpu_hz) * fleet.flops_per_cycle,  # in column order, as the rates are
        server_hz * servers.flops_per_cycle,
        resources.rates,
        fleet.work,
        servers.work,
    )
    return (
        all_phases
        if receives is None
        else replace(all_phases, model_down_s=np.where(receives, all_phases.model_down_s, 0.0))
    )
