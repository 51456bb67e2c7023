"""The even allocation: a policy that any other must beat.

Legend: K clients, I subchannels. Clients that work at the same time form a group, and a group has everything: its
members get equal cycles of the main server, subchannels in turn (subchannel i is the (i mod size)-th member's), or
an equal share of every subchannel when members outnumber subchannels, and equal downlink power; uplink is at the
maximum. A client's power is spread equally over its band. One group is a parallel framework; a group per client is
SL; CPSL's clusters are the groups between.
"""

from dataclasses import dataclass

import numpy as np

from hsfl.network.channel import Links, Measured, Ofdma, RoundDraw
from hsfl.network.devices import Fleet, Servers
from hsfl.network.latency import Rates, sum_last

Array = np.ndarray
BLOCK = 256  # clients at a time


@dataclass(frozen=True)
class Resources:
    """What a policy gives each client in a round, [..., K]."""

    rates: Rates
    server_hz: Array


def even(
    links: Links,
    fleet: Fleet,
    servers: Servers,
    draw: RoundDraw,
    group: Array | None = None,
    started: Array | None = None,
) -> Resources:
    """Rates and server cycles under the even allocation.

    `group` [K] numbers each client's group (default: all in one). Clients that do not start this round get no cycles
    and no band except for the model's distribution, which reaches everyone.
    """
    everyone = np.arange(fleet.num_clients)
    group = np.zeros(fleet.num_clients, int) if group is None else np.asarray(group)
    members = everyone if started is None else np.flatnonzero(started)
    size, rank = _size_and_rank(group[members])
    server_hz = np.zeros(fleet.num_clients)
    server_hz[members] = servers.main_hz / size
    if isinstance(links, Measured):
        assert draw.rates is not None, "measured links draw rates"
        return Resources(draw.rates, server_hz)
    assert draw.main_gain is not None, "OFDMA links draw gains"
    assert draw.edge_gain is not None, "OFDMA links draw gains"
    working = Bands(links, fleet.num_clients, members, size, rank)
    main_gain, edge_gain = working.owned(draw.main_gain), working.owned(draw.edge_gain)
    receiving, edge_down_gain = working, edge_gain
    if len(members) < fleet.num_clients:
        receiving = Bands(links, fleet.num_clients, everyone, *_size_and_rank(group))
        edge_down_gain = receiving.owned(draw.edge_gain)
    rates = Rates(
        main_up_bps=working.rate_bps(main_gain, fleet.max_power_w[members]),
        main_down_bps=working.rate_bps(main_gain, servers.main_power_w / size),
        edge_up_bps=working.rate_bps(edge_gain, fleet.max_power_w[members]),
        edge_down_bps=receiving.rate_bps(edge_down_gain, servers.edge_power_w / receiving.size),
    )
    return Resources(rates, server_hz)


class Bands:
    """Who owns what of the band, evenly in each group. Clients that are not members own nothing.

    `size` and `rank` [members] are the members of each one's group and its place among them.
    """

    def __init__(self, links: Ofdma, num_clients: int, members: Array, size: Array, rank: Array) -> None:
        self.links, self.members, self.num_clients, self.size = links, members, num_clients, size
        num_subchannels = links.num_subchannels
        crowded = size > num_subchannels
        self.share = np.where(crowded, 1 / size, 1.0)  # [members] of each subchannel that it owns
        self.num_owned = np.where(crowded, num_subchannels, (num_subchannels - 1 - rank) // size + 1)  # [members]
        self.everything = len(members) == self.num_clients and bool((self.num_owned == num_subchannels).all())
        if self.everything:
            return
        # Owned pairs (client, subchannel), a client's own ones side by side.
        row = np.arange(len(members)).repeat(self.num_owned)
        self.first = np.cumsum(self.num_owned) - self.num_owned
        turn = np.arange(len(row)) - self.first[row]
        column = np.where(crowded[row], turn, rank[row] + turn * size[row])
        self.pairs = members[row] * num_subchannels + column

    def owned(self, gain: Array) -> Array:
        """The gains that matter, [..., K, I] -> [..., pairs] (or as it is, when all own all).

        NumPy lays the result out in column order, and so runs along the samples when there are many of few clients:
        several times faster than along the clients.
        """
        if self.everything:
            return gain
        return gain.reshape(*gain.shape[:-2], -1)[..., self.pairs]

    def rate_bps(self, owned_gain: Array, power_w: Array) -> Array:
        """Eq. (7) over each client's band, its power [members] spread equally: [..., K]."""
        snr_per_gain = power_w / (self.num_owned * self.share * self.links.noise_w)
        if self.everything:
            bits = _sum_log2(owned_gain, snr_per_gain)
        else:
            snr = owned_gain * snr_per_gain.repeat(self.num_owned)
            snr += 1
            bits = self._per_client(np.log2(snr, out=snr))
        bits *= self.links.subchannel_hz * self.share
        if len(self.members) == self.num_clients:
            return bits
        rates = np.zeros((*bits.shape[:-1], self.num_clients))
        rates[..., self.members] = bits
        return rates

    def _per_client(self, logs: Array) -> Array:
        if len(self.pairs) == len(self.members):  # one subchannel each
            return logs
        return np.add.reduceat(logs, self.first, axis=-1) if len(self.members) else logs


def _sum_log2(gain: Array, snr_per_gain: Array) -> Array:
    """sum_i log2(1 + snr_per_gain_k g_ki), [..., K, I] -> [..., K], in blocks that stay in the processor's cache."""
    bits = np.empty(gain.shape[:-1])
    for low in range(0, gain.shape[-2], BLOCK):
        block = slice(low, low + BLOCK)
        snr = gain[..., block, :] * snr_per_gain[block, None]
        snr += 1
        bits[..., block] = sum_last(np.log2(snr, out=snr))
    return bits


def _size_and_rank(group: Array) -> tuple[Array, Array]:
    """How many are in each one's group, and its place there in order of the clients."""
    if len(group) and (group == group[0]).all():
        return np.full(len(group), len(group)), np.arange(len(group))
    _, index, count = np.unique(group, return_inverse=True, return_counts=True)
    order = np.argsort(index, kind="stable")
    rank = np.empty(len(group), int)
    rank[order] = np.arange(len(group)) - np.repeat(np.cumsum(count) - count, count)
    return count[index], rank
