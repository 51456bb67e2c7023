"""Eqs. (6) to (12) by hand, against plain loops, and their laws. Legend: S samples, K clients, I subchannels."""

import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.models.cost_table import CostTable
from hsfl.network import latency
from hsfl.network.latency import Phases, Rates

COST = CostTable(  # two units, three cuts
    client_forward_flops=[0, 100, 300],
    client_backward_flops=[0, 150, 550],
    server_forward_flops=[300, 200, 0],
    server_backward_flops=[550, 400, 0],
    smashed_bits=[64, 32, 0],
    gradient_bits=[0, 32, 0],
    model_bits=[0, 1000, 3000],
)


def test_rate_by_hand():
    """Eq. (7): 10 Hz x (log2(1 + 3 x 0.5 / 0.5) + log2(1 + 0)) = 10 x 2; the second subchannel has no power."""
    rate = latency.rate_bps(np.array([[3.0, 0.0]]), np.array([[0.5, 9.0]]), subchannel_hz=10.0, noise_w=0.5)
    assert rate == pytest.approx([20.0])


def test_a_shared_subchannel_has_a_share_of_the_noise():
    """Half of 10 Hz at snr 3 x 0.5 / (0.5 x 0.5) = 6, and nothing where the share is 0, whatever the power."""
    rate = latency.shared_rate_bps(np.array([[3.0, 5.0]]), np.array([[0.5, 0.0]]), np.array([[0.5, 1.0]]), 10.0, 0.5)
    assert rate == pytest.approx([5 * math.log2(7)])


def test_the_whole_share_is_the_exclusive_rate():
    rng = np.random.default_rng(0)
    power, gain = rng.random((4, 3, 5)), rng.random((4, 3, 5))
    shared = latency.shared_rate_bps(power, np.ones_like(power), gain, 1e6, 1e-3)
    np.testing.assert_allclose(shared, latency.rate_bps(power, gain, 1e6, 1e-3))


def test_phases_by_hand():
    """Cut 1, 4 samples, 200 FLOPs/s on the client and 800 on the server, rates 16, 64, 100 and 500 bits/s."""
    rates = Rates(*(np.array([r]) for r in (16.0, 64.0, 100.0, 500.0)))
    phases = latency.phases(COST, np.array([1]), 4, np.array([200.0]), np.array([800.0]), rates)
    by_hand = {
        "client_forward_s": 4 * 100 / 200,
        "smashed_s": 4 * 32 / 16,
        "server_forward_s": 4 * 200 / 800,
        "server_backward_s": 4 * 400 / 800,
        "gradient_s": 4 * 32 / 64,
        "client_backward_s": 4 * 150 / 200,
        "model_up_s": 1000 / 100,
        "model_down_s": 1000 / 500,
    }
    assert {name: getattr(phases, name)[0] for name in by_hand} == by_hand
    assert phases.client_s == [5.0]  # Eq. (6)
    assert phases.server_s == [3.0]  # Eq. (9)
    assert latency.client_round_s(phases, 2.5) == [2.5 * (5 + 8 + 3 + 2) + 10]
    assert latency.round_s(phases, 2.5) == 55 + 2  # Eq. (12)
    assert latency.round_s(phases, 2.5, tau_s=30.0) == 30 + 2


def test_nothing_to_do_takes_no_time_even_without_a_rate():
    rates = Rates(*(np.array([0.0]) for _ in range(4)))
    phases = latency.phases(COST, np.array([2]), 4, np.array([1.0]), np.array([0.0]), rates)
    assert phases.server_s == phases.smashed_s == phases.gradient_s == [0.0]
    assert np.isinf(phases.model_up_s)  # but a model without a rate never arrives


def plain_round_s(cost, cuts, batch, client_speed, server_speed, power, gain, hz, noise, num_batches):
    """Eqs. (6) to (12) as three plain loops; the same power and gain on all four links."""
    rounds = []
    for s in range(len(gain)):
        longest, download = 0.0, 0.0
        for k, cut in enumerate(cuts):
            rate = 0.0
            for i in range(gain.shape[2]):
                rate += hz * math.log2(1 + power[k, i] * gain[s, k, i] / noise)
            batch_s = batch * cost.client_flops[cut] / client_speed[s, k]
            if cut < cost.num_units:
                batch_s += batch * cost.server_flops[cut] / server_speed[k]
                batch_s += batch * (cost.smashed_bits[cut] + cost.gradient_bits[cut]) / rate
            longest = max(longest, num_batches[k] * batch_s + cost.model_bits[cut] / rate)
            download = max(download, cost.model_bits[cut] / rate)
        rounds.append(longest + download)
    return rounds


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3))
def test_vectorised_is_the_triple_loop(seed, num_samples, num_clients, num_subchannels):
    rng = np.random.default_rng(seed)
    gain = rng.random((num_samples, num_clients, num_subchannels)) + 0.01
    power = rng.random((num_clients, num_subchannels)) + 0.1
    cuts = rng.integers(0, 3, num_clients)
    client_speed, server_speed = rng.random((num_samples, num_clients)) + 0.1, rng.random(num_clients) + 0.1
    num_batches = rng.integers(1, 5, num_clients) / 2
    rate = latency.rate_bps(power, gain, 3.0, 0.2)
    phases = latency.phases(COST, cuts, 4, client_speed, server_speed, Rates(rate, rate, rate, rate))
    plain = plain_round_s(COST, cuts, 4, client_speed, server_speed, power, gain, 3.0, 0.2, num_batches)
    np.testing.assert_allclose(latency.round_s(phases, num_batches), plain, rtol=1e-12)


half = st.integers(1, 20).map(lambda n: n / 2)  # a grid, so that ties happen


@settings(max_examples=60, deadline=None)
@given(half, half, half, half, half, st.integers(0, 2), st.sampled_from(["hz", "power", "client", "server"]))
def test_more_of_anything_never_lengthens_a_phase(hz, power, gain, client, server, cut, more):
    def seconds(hz, power, client, server):
        rate = latency.rate_bps(np.array([[power]]), np.array([[gain]]), hz, 0.5)
        return latency.phases(COST, np.array([cut]), 4, np.array([client]), np.array([server]), Rates(*[rate] * 4))

    have = {"hz": hz, "power": power, "client": client, "server": server}
    before, after = seconds(**have), seconds(**(have | {more: 2 * have[more]}))
    for field in fields(Phases):
        assert (getattr(after, field.name) <= getattr(before, field.name)).all()


@settings(max_examples=60, deadline=None)
@given(half, half, half, st.integers(2, 6))
def test_more_bandwidth_in_a_shared_band_never_lowers_a_rate(power, gain, hz, parts):
    """A larger share of the same power: s log2(1 + x/s) grows with s."""
    shares = np.linspace(0, 1, parts + 1)[:, None]
    rates = latency.shared_rate_bps(np.full_like(shares, power), shares, np.full_like(shares, gain), hz, 0.5)
    assert (np.diff(rates) >= 0).all()
