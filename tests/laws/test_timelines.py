"""Laws of the timelines, and every round against DESIGN's formula in plain loops."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.framework_table import METHODS
from hsfl.models.cost_table import CostTable
from hsfl.network import clock, devices
from hsfl.network.channel import Ofdma, draw_round, draw_rounds
from hsfl.network.clock import timeline
from hsfl.network.even_allocation import even_phases
from hsfl.network.latency import Phases, round_s

few = settings(max_examples=30, deadline=None)  # ten frameworks each
UNITS = 3
COST = CostTable(
    client_forward_flops=[0, 1e9, 3e9, 4e9],
    client_backward_flops=[0, 1e9, 6e9, 9e9],
    server_forward_flops=[4e9, 3e9, 1e9, 0],
    server_backward_flops=[9e9, 7e9, 2e9, 0],
    smashed_bits=[3e5, 2e6, 1e6, 0],
    gradient_bits=[0, 2e6, 1e6, 0],
    model_bits=[0, 1e6, 5e6, 9e7],
)


@st.composite
def rounds(draw):
    """Phases on a grid of halves (so that ties and zeros happen), batches, clusters and an order for K clients."""
    num_clients = draw(st.integers(1, 5))
    column = st.lists(st.integers(0, 8).map(lambda n: n / 2), min_size=num_clients, max_size=num_clients).map(np.array)
    phases = Phases(**{field.name: draw(column) for field in fields(Phases)})
    batches = draw(st.lists(st.integers(1, 14), min_size=num_clients, max_size=num_clients))
    clusters = draw(st.lists(st.integers(0, 2), min_size=num_clients, max_size=num_clients))
    order = np.array([draw(st.permutations(range(num_clients))) for _ in range(4)])
    return phases, np.array(batches) / 4, np.array(clusters), order, draw(column)


def suited(name, phases, batches):
    """What the framework can be given: no client work in CL, the whole model in FL, equal steps in PSL."""
    zero = np.zeros_like(batches)
    if name == "cl":
        phases = replace(phases, client_forward_s=zero, client_backward_s=zero)
    if name == "fl":
        phases = replace(phases, smashed_s=zero, gradient_s=zero, server_forward_s=zero, server_backward_s=zero)
    return phases, np.full_like(batches, batches[0]) if name == "psl" else batches


def make(name, a_round, tau_s=np.inf, **options):
    phases, batches, clusters, order, decoder_s = a_round
    phases, batches = suited(name, phases, batches)
    order = order if name == "splitfed_v2" else None
    return timeline(name, phases, batches, tau_s, clusters=clusters, order=order, decoder_s=decoder_s, **options)


def plain(name, a_round):
    """DESIGN's column "time of a round", step by step and client by client."""
    p, batches, clusters, order, decoder_s = a_round
    p, batches = suited(name, p, batches)
    everyone = range(len(batches))
    if name == "cl":
        return sum(batches[k] * p.server_s[k] for k in everyone)
    if name in ("fl", "splitfed_v1", "fsl", "hsfl"):
        return max(batches[k] * p.batch_s[k] + p.model_up_s[k] for k in everyone) + max(p.model_down_s)
    if name == "sl":
        return sum(batches[k] * p.batch_s[k] + p.model_up_s[k] + p.model_down_s[k] for k in everyone)

    def steps(members):
        total = 0.0
        for step in range(int(np.ceil(max(batches[k] for k in members)))):
            part = {k: min(batches[k] - step, 1.0) for k in members if batches[k] > step}
            total += max(w * (p.client_forward_s[k] + p.smashed_s[k]) for k, w in part.items())
            server = sum(w * p.server_s[k] for k, w in part.items())
            back = {k: w * (p.gradient_s[k] + p.client_backward_s[k]) for k, w in part.items()}
            if name == "splitfed_v2":
                now, ends = 0.0, []
                for k in order[step]:
                    if k in part:
                        now += part[k] * p.server_s[k]
                        ends.append(now + back[k])
                total += max(ends)
            elif name == "locfedmix_sl":
                server *= 2 if len(part) > 1 else 1  # one client alone has nobody to mix with
                total += max(
                    max(w * decoder_s[k], server + w * p.gradient_s[k]) + w * p.client_backward_s[k]
                    for k, w in part.items()
                )
            else:
                total += server + max(back.values())
            if name == "psl":
                total += max(p.model_up_s) + max(p.model_down_s)
        return total

    if name == "cpsl":
        groups = [[k for k in everyone if clusters[k] == c] for c in set(clusters.tolist())]
        return sum(steps(g) + max(p.model_up_s[g]) + max(p.model_down_s[g]) for g in groups)
    return steps(everyone) + (0 if name == "psl" else max(p.model_up_s) + max(p.model_down_s))


@pytest.mark.parametrize("name", METHODS)
@few
@given(rounds())
def test_every_round_is_the_plain_formula(name, a_round):
    assert make(name, a_round).round_s == pytest.approx(plain(name, a_round), rel=1e-12)


@pytest.mark.parametrize("name", METHODS)
@few
@given(rounds(), st.sampled_from([np.inf, 0.5, 3.0, 7.5]))
def test_the_chart_is_a_round(name, a_round, tau_s):
    """It ends with the round; phases keep their order; times make sense; no client works while it waits."""
    line = make(name, a_round, tau_s)
    assert line.end_s.max() == pytest.approx(line.round_s, rel=1e-12)
    ends = [end_s for *_, end_s in line.spans()]
    assert max(ends, default=0.0) == pytest.approx(line.round_s, rel=1e-9, abs=1e-12)
    assert (line.start_s >= -1e-9).all()
    assert (line.end_s >= line.start_s).all()
    chain = [clock.PHASES.index(phase) for phase in (*clock.BATCH_PHASES, "model_up")]
    if name != "cl":
        assert (line.start_s[chain[1:]] >= line.end_s[chain[:-1]] - 1e-9).all()
    assert (line.waiting_s >= 0).all()
    assert (line.waiting_s <= line.round_s + 1e-9).all()
    assert (line.finish_s <= line.round_s + 1e-9).all()
    alone = line.end_s - line.start_s
    if name not in ("cl", "locfedmix_sl"):  # where nothing overlaps, work and waiting fill the round
        np.testing.assert_allclose(alone.sum(axis=0) + line.waiting_s, line.round_s, atol=1e-9)


@pytest.mark.parametrize("name", METHODS)
@few
@given(rounds())
def test_without_tau_nobody_is_dropped(name, a_round):
    assert make(name, a_round).kept.all()


@few
@given(rounds(), st.sampled_from([0.5, 3.0, 7.5]))
def test_tau_is_eq_12(a_round, tau_s):
    phases, batches, *_ = a_round
    line = make("hsfl", a_round, tau_s)
    assert line.round_s == pytest.approx(float(round_s(phases, batches, tau_s)))
    if line.dropped.any():
        assert line.round_s == tau_s + phases.model_down_s.max()


@pytest.mark.parametrize("name", ["sl", "splitfed_v2", "psl", "locfedmix_sl", "cpsl", "cl"])
@few
@given(rounds())
def test_the_others_wait(name, a_round):
    assert make(name, a_round, 0.5).round_s == make(name, a_round).round_s


seeds = st.integers(0, 2**31)


def a_world(seed, num_clients, num_subchannels=4):
    fleet = devices.draw_fleet(num_clients, np.random.default_rng(seed), num_units=UNITS, max_cut=(1, 3))
    links = Ofdma(num_subchannels=num_subchannels)
    return fleet, devices.Servers(), links, draw_round(fleet, links, seed, 0)


def lines_equal(one, other):
    for field in fields(one):
        if field.name != "framework":
            np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))


@few
@given(seeds, st.integers(1, 7))
def test_hsfl_at_the_last_cut_is_fl(seed, num_clients):
    world = a_world(seed, num_clients)
    batches = 1 + np.arange(num_clients) / 2
    at_the_end, anywhere = np.full(num_clients, UNITS), np.ones(num_clients, int)
    hsfl = timeline("hsfl", even_phases("hsfl", COST, at_the_end, 8, *world), batches, 90.0)
    lines_equal(hsfl, timeline("fl", even_phases("fl", COST, anywhere, 8, *world), batches, 90.0))


@few
@given(seeds, st.integers(1, 7), st.sampled_from(["splitfed_v1", "fsl"]))
def test_with_a_server_copy_each_all_are_hsfl(seed, num_clients, name):
    world = a_world(seed, num_clients)
    cuts = np.full(num_clients, 2)
    hsfl = timeline("hsfl", even_phases("hsfl", COST, cuts, 8, *world), 2.5)
    lines_equal(hsfl, timeline(name, even_phases(name, COST, cuts, 8, *world), 2.5))


@few
@given(seeds, st.integers(0, UNITS), st.sampled_from(["sl", "splitfed_v2", "cpsl"]))
def test_one_client_is_hsfl_with_one_client(seed, cut, name):
    world = a_world(seed, 1)
    only = {"clusters": np.zeros(1, int)}
    one = timeline(name, even_phases(name, COST, np.array([cut]), 8, *world, **only), 3.5, **only)
    hsfl = timeline("hsfl", even_phases("hsfl", COST, np.array([cut]), 8, *world), 3.5)
    assert one.round_s == pytest.approx(hsfl.round_s)
    assert one.waiting_s == pytest.approx(hsfl.waiting_s, abs=1e-9) == [0.0]


@few
@given(seeds, st.integers(1, 7), st.sampled_from(list(METHODS)), st.sampled_from(["hz", "power", "cpu", "server"]))
def test_more_of_anything_never_lengthens_a_phase(seed, num_clients, name, more):
    fleet, servers, links, draw = a_world(seed, num_clients)
    cuts, clusters = fleet.max_cut, np.arange(num_clients) % 2

    def seconds(fleet, servers, links, draw):
        return even_phases(name, COST, cuts, 8, fleet, servers, links, draw, clusters=clusters)

    before = seconds(fleet, servers, links, draw)
    if more == "hz":
        links = replace(links, subchannel_hz=2 * links.subchannel_hz)
    if more == "power":
        fleet = replace(fleet, max_power_w=2 * fleet.max_power_w)
        servers = replace(servers, main_power_w=200.0, edge_power_w=200.0)
    if more == "cpu":
        draw = replace(draw, cpu_hz=2 * draw.cpu_hz)
    if more == "server":
        servers = replace(servers, main_hz=2 * servers.main_hz)
    after = seconds(fleet, servers, links, draw)
    for field in fields(Phases):
        assert (getattr(after, field.name) <= getattr(before, field.name) * (1 + 1e-12)).all()


@few
@given(seeds, st.integers(1, 9))
def test_each_turn_has_the_band_and_the_server_to_itself(seed, num_clients):
    """SL: each client as if the fleet were it alone. CPSL: each cluster so, with the server whole for one joint step.
    In step: the band is shared by all, the server is whole."""
    fleet, servers, links, draw = a_world(seed, num_clients)
    cuts, clusters = np.full(num_clients, 2), np.arange(num_clients) % 3
    split = {
        name: even_phases(name, COST, cuts, 8, fleet, servers, links, draw, clusters=clusters)
        for name in ("hsfl", "sl", "splitfed_v2", "psl", "locfedmix_sl", "cpsl")
    }
    for name, group in (("sl", np.arange(num_clients)), ("cpsl", clusters)):
        for number in set(group.tolist()):
            inside = group == number
            alone = even_phases("hsfl", COST, cuts[inside], 8, fleet.take(inside), servers, links, draw.take(inside))
            alone = replace(
                alone,
                server_forward_s=alone.server_forward_s / inside.sum(),
                server_backward_s=alone.server_backward_s / inside.sum(),
            )
            for field in fields(Phases):
                np.testing.assert_allclose(getattr(split[name], field.name)[inside], getattr(alone, field.name))
    for name in ("splitfed_v2", "psl", "locfedmix_sl"):
        np.testing.assert_allclose(split[name].server_s * num_clients, split["hsfl"].server_s)
        np.testing.assert_allclose(split[name].smashed_s, split["hsfl"].smashed_s)


@pytest.mark.parametrize("name", METHODS)
def test_phases_over_samples_are_the_phases_of_each(name):
    fleet, servers, links, _ = a_world(5, 6)
    draws = draw_rounds(fleet, links, 5, range(4))
    clusters = np.arange(6) % 2
    whole = even_phases(name, COST, fleet.max_cut, 8, fleet, servers, links, draws, clusters=clusters)
    for s in range(4):
        one = even_phases(name, COST, fleet.max_cut, 8, fleet, servers, links, draws.sample(s), clusters=clusters)
        for field in fields(Phases):
            every = np.broadcast_to(getattr(whole, field.name), (4, 6))
            np.testing.assert_allclose(every[s], getattr(one, field.name), rtol=1e-12)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "cl"])
@few
@given(rounds(), st.lists(st.booleans(), min_size=5, max_size=5))
def test_who_does_not_start_is_as_good_as_absent(name, a_round, started):
    """But for the download, which reaches everyone; here it takes no time."""
    phases, batches, clusters, order, decoder_s = a_round
    phases = replace(phases, model_down_s=np.zeros_like(batches))
    on = np.array(started[: len(batches)])
    on[0] = True
    line = make(name, (phases, batches, clusters, order, decoder_s), 7.5, started=on)
    some = Phases(**{field.name: getattr(phases, field.name)[on] for field in fields(Phases)})
    places = np.cumsum(on) - 1
    some_order = np.array([places[row[on[row]]] for row in order])
    absent = make(name, (some, batches[on], clusters[on], some_order, decoder_s[on]), 7.5)
    assert line.round_s == pytest.approx(absent.round_s, rel=1e-12)
    np.testing.assert_allclose(line.waiting_s[on], absent.waiting_s, atol=1e-9)
    assert line.kept[on].tolist() == absent.kept.tolist()
    assert not line.kept[~on].any()


@few
@given(rounds())
def test_psl_may_average_the_cut_gradient_and_move_no_model(a_round):
    line = make("psl", a_round, cut_gradient=True)
    phases, batches, *_ = a_round
    steps, models = np.ceil(batches[0]), phases.model_up_s.max() + phases.model_down_s.max()
    assert line.round_s == pytest.approx(plain("psl", a_round) - steps * models, abs=1e-9)
    assert line.end_s.max() == pytest.approx(line.round_s)
    assert not line.phase_s["model_up"].any()
