"""The even allocation by hand, and against the equations with explicit powers and shares."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.network.channel import Measured, Ofdma, RoundDraw
from hsfl.network.devices import Fleet, Servers
from hsfl.network.even_allocation import even_resources
from hsfl.network.latency import Rates, rate_bps, shared_rate_bps

SERVERS = Servers(main_hz=60.0, main_power_w=6.0, edge_power_w=12.0)


def a_round(num_clients, num_subchannels, seed=0, samples=()):
    rng = np.random.default_rng(seed)
    fleet = Fleet(rng.random(num_clients) + 0.5, 1.0, rng.random(num_clients) + 0.5, 3)
    gain = rng.random((2, *samples, num_clients, num_subchannels)) + 0.1
    draw = RoundDraw(np.broadcast_to(fleet.cpu_hz, (*samples, num_clients)), gain[0], gain[1])
    return Ofdma(num_subchannels=num_subchannels, subchannel_hz=10.0, noise_w=0.5), fleet, draw


def test_subchannels_in_turn_by_hand():
    """Two clients, three subchannels: client 0 owns 0 and 2, client 1 owns 1; 30 cycles and 3 W downlink each."""
    links, fleet, draw = a_round(2, 3)
    given = even_resources(links, fleet, SERVERS, draw)
    owner = np.array([[1, 0, 1], [0, 1, 0]])
    up_w = fleet.max_power_w[:, None] * owner / np.array([[2], [1]])
    down_w = 3.0 * owner / np.array([[2], [1]])
    assert given.server_hz.tolist() == [30, 30]
    np.testing.assert_allclose(given.rates.main_up_bps, rate_bps(up_w, draw.main_gain, 10, 0.5))
    np.testing.assert_allclose(given.rates.main_down_bps, rate_bps(down_w, draw.main_gain, 10, 0.5))
    np.testing.assert_allclose(given.rates.edge_up_bps, rate_bps(up_w, draw.edge_gain, 10, 0.5))
    np.testing.assert_allclose(given.rates.edge_down_bps, rate_bps(2 * down_w, draw.edge_gain, 10, 0.5))


def test_equal_shares_when_clients_outnumber_subchannels():
    links, fleet, draw = a_round(5, 2)
    given = even_resources(links, fleet, SERVERS, draw)
    up_w = np.repeat(fleet.max_power_w[:, None] / 2, 2, axis=1)
    share = np.full((5, 2), 1 / 5)
    np.testing.assert_allclose(given.rates.main_up_bps, shared_rate_bps(up_w, share, draw.main_gain, 10, 0.5))
    down_w = np.full((5, 2), 12 / 5 / 2)
    np.testing.assert_allclose(given.rates.edge_down_bps, shared_rate_bps(down_w, share, draw.edge_gain, 10, 0.5))


def test_alone_a_client_has_everything():
    links, fleet, draw = a_round(4, 3)
    alone = even_resources(links, fleet, SERVERS, draw, group=np.arange(4))
    for k in range(4):
        only = even_resources(links, fleet.take([k]), SERVERS, draw.take([k]))
        assert alone.server_hz[k] == only.server_hz[0] == 60
        for name in ("main_up_bps", "main_down_bps", "edge_up_bps", "edge_down_bps"):
            assert getattr(alone.rates, name)[k] == pytest.approx(getattr(only.rates, name)[0])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(1, 4), st.integers(0, 99))
def test_a_group_is_a_fleet_of_its_own(group, num_subchannels, seed):
    """Also over samples, and when one group shares subchannels while another owns them."""
    links, fleet, draw = a_round(len(group), num_subchannels, seed, samples=(2,))
    group = np.array(group)
    whole = even_resources(links, fleet, SERVERS, draw, group)
    for number in set(group.tolist()):
        inside = group == number
        part = even_resources(links, fleet.take(inside), SERVERS, draw.take(inside))
        np.testing.assert_allclose(whole.server_hz[inside], part.server_hz)
        for name in ("main_up_bps", "main_down_bps", "edge_up_bps", "edge_down_bps"):
            np.testing.assert_allclose(getattr(whole.rates, name)[:, inside], getattr(part.rates, name))


def test_who_does_not_start_gets_the_model_and_nothing_else():
    links, fleet, draw = a_round(4, 3)
    started = np.array([True, False, True, False])
    some, all_of_them = (
        even_resources(links, fleet, SERVERS, draw, started=started),
        even_resources(links, fleet, SERVERS, draw),
    )
    part = even_resources(links, fleet.take(started), SERVERS, draw.take(started))
    assert some.server_hz.tolist() == [30, 0, 30, 0]
    np.testing.assert_allclose(some.rates.main_up_bps[started], part.rates.main_up_bps)
    assert some.rates.main_up_bps[1] == some.rates.edge_up_bps[3] == some.rates.main_down_bps[1] == 0
    np.testing.assert_allclose(some.rates.edge_down_bps, all_of_them.rates.edge_down_bps)
    nobody = even_resources(links, fleet, SERVERS, draw, started=np.zeros(4, bool))
    assert nobody.server_hz.tolist() == nobody.rates.main_up_bps.tolist() == [0] * 4


def test_measured_links_are_not_shared():
    rates = Rates(*(np.array([1.0, 2.0]),) * 4)
    _, fleet, _ = a_round(2, 1)
    given = even_resources(Measured(rates), fleet, SERVERS, RoundDraw(fleet.cpu_hz, rates=rates))
    assert given.rates.main_up_bps.tolist() == [1, 2]
    assert given.server_hz.tolist() == [30, 30]
