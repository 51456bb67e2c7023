"""A run's rounds against the clock's formulas in plain loops, from the config's own draws."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hsfl.config import RunConfig, read_config
from hsfl.errors import InputError
from hsfl.frameworks import FRAMEWORKS
from hsfl.frameworks.local_loss import smashed_shape
from hsfl.models.cost import measure_module
from hsfl.network import history
from hsfl.network.channel import draw_rounds
from hsfl.network.clock import timeline
from hsfl.rng import stream
from hsfl.training.cuts import fastest_cuts, fastest_one_cut
from hsfl.training.pace import Pace
from hsfl.training.prepare import prepare
from hsfl.training.simulate import choose_clients, make_pace
from hsfl.training.world import count_batches

WORDS = ["model.name=mlp", "data.limit=130", "data.limit_test=20", "fleet.num_clients=5", "train.batch_size=8"]
WORDS += ["network.num_subchannels=7", "data.partition=dirichlet", "seed=3"]


def config(*words: str) -> RunConfig:
    return read_config(None, [*WORDS, *words])


def paced(settings: RunConfig):  # type: ignore[no-untyped-def]
    bench = prepare(settings)
    return bench, make_pace(bench, FRAMEWORKS[settings.framework](bench.task))


def rate(links, gain, power_w: float, mine: list[int], share: float) -> float:  # type: ignore[no-untyped-def]
    """Power spread equally over the band."""
    width = share * len(mine)
    return sum(share * links.subchannel_hz * math.log2(1 + power_w / width * gain[i] / links.noise_w) for i in mine)


def plain_phases(bench, draw, cuts, group: list[int], receivers: list[int], server_hz: float, batch: float):  # type: ignore[no-untyped-def]
    """Seconds of client k's phases for each k in the group, which has the band to itself."""
    world, out = bench.world, {}
    count = world.links.num_subchannels
    for k in sorted({*group, *receivers}):
        cost, cut = world.cost, cuts[k]
        speed = draw.cpu_hz[k] * world.fleet.flops_per_cycle[k]
        mine = [i for i in range(count) if k in group and i % len(group) == group.index(k)]
        theirs = [i for i in range(count) if k in receivers and i % len(receivers) == receivers.index(k)]
        up_w, down_w = world.fleet.max_power_w[k], world.servers.main_power_w / max(len(group), 1)
        times = dict.fromkeys(("fwd", "up", "server", "down", "bwd", "model_up", "model_down"), 0.0)
        if mine:
            main, edge = draw.main_gain[k], draw.edge_gain[k]
            times["fwd"] = batch * cost.client_forward_flops[cut] / speed
            times["bwd"] = batch * cost.client_backward_flops[cut] / speed
            times["server"] = batch * cost.server_flops[cut] / (server_hz * world.servers.flops_per_cycle)
            times["up"] = batch * cost.smashed_bits[cut] / rate(world.links, main, up_w, mine, 1.0)
            times["down"] = batch * cost.gradient_bits[cut] / rate(world.links, main, down_w, mine, 1.0)
            times["model_up"] = cost.model_bits[cut] / rate(world.links, edge, up_w, mine, 1.0)
        if theirs:
            power_w = world.servers.edge_power_w / len(receivers)
            bits = rate(world.links, draw.edge_gain[k], power_w, theirs, 1.0)
            times["model_down"] = cost.model_bits[cut] / bits
        out[k] = times
    return out


@pytest.mark.parametrize("framework", ["hsfl", "splitfed_v1", "fl", "fsl"])
@pytest.mark.parametrize("extra", [(), ("train.local_epochs=2", "network.full_batches=true", "network.sample_scale=3")])
def test_parallel_rounds_by_hand(framework: str, extra: tuple[str, ...]) -> None:
    """The second round, with two of five clients away: they receive the model but take no band and no cycles."""
    settings = config(f"framework={framework}", "train.clients_per_round=3", *extra)
    bench, pace = paced(settings)
    cuts = FRAMEWORKS[framework](bench.task).cuts
    chosen = choose_clients(settings, 1)
    line, _ = pace.round(1, chosen)
    group, everyone = list(chosen), list(range(5))
    hz = bench.world.servers.main_hz / len(group)
    times = plain_phases(bench, bench.world.draw(1), cuts, group, everyone, hz, 8)
    own = {}
    for k in group:
        samples = len(bench.task.feed.shares[k]) * settings.network.sample_scale
        batches = (math.ceil(samples / 8) if extra else samples / 8) * settings.train.local_epochs
        t = times[k]
        own[k] = batches * (t["fwd"] + t["up"] + t["server"] + t["down"] + t["bwd"]) + t["model_up"]
    expected = max(own.values()) + max(times[k]["model_down"] for k in everyone)
    assert line.round_s == pytest.approx(expected, rel=1e-9)
    assert line.straggler == max(own, key=lambda k: own[k])


def test_cpsl_by_hand() -> None:
    """Two clusters in turn, a client of one away: the others have its share of the band, downloads too."""
    settings = config("framework=cpsl", "options.cpsl_clusters=2", "train.clients_per_round=4")
    bench, pace = paced(settings)
    cuts = FRAMEWORKS["cpsl"](bench.task).cuts
    chosen = choose_clients(settings, 1)
    draw, total = bench.world.draw(1), 0.0
    for number in sorted(set(bench.task.clusters)):
        group = [k for k in chosen if bench.task.clusters[k] == number]
        if not group:
            continue
        times = plain_phases(bench, draw, cuts, group, group, bench.world.servers.main_hz, 8)
        left = {k: len(bench.task.feed.shares[k]) / 8 for k in group}
        total += max(times[k]["model_down"] for k in group)
        while any(value > 1e-12 for value in left.values()):
            part = {k: min(value, 1.0) for k, value in left.items() if value > 1e-12}
            total += max(part[k] * (times[k]["fwd"] + times[k]["up"]) for k in part)
            total += sum(part[k] * times[k]["server"] for k in part)
            total += max(part[k] * (times[k]["down"] + times[k]["bwd"]) for k in part)
            left = {k: value - 1.0 for k, value in left.items()}
        total += max(times[k]["model_up"] for k in group)
    assert pace.round(1, chosen)[0].round_s == pytest.approx(total, rel=1e-9)


def test_locfedmix_by_hand() -> None:
    """Decoders train beside the server's two passes; their bits travel with the heads. Weak clients wait for them."""
    settings = config("framework=locfedmix_sl", "fleet.cpu_hz=[1e7,1e8]", "fleet.cpu_floor_hz=1e7")
    bench, pace = paced(settings)
    algorithm = FRAMEWORKS["locfedmix_sl"](bench.task)
    shape = smashed_shape(bench.task.model, algorithm.cuts[0], bench.task.feed.images.shape)
    flops, bits = measure_module(algorithm.decoder.units[0], shape)
    cost = replace(bench.world.cost, model_bits=bench.world.cost.model_bits + bits)
    bench = replace(bench, world=replace(bench.world, cost=cost))
    everyone, draw = list(range(5)), bench.world.draw(1)
    times = plain_phases(bench, draw, algorithm.cuts, everyone, everyone, bench.world.servers.main_hz, 8)
    decoder = {k: 8 * flops / (draw.cpu_hz[k] * bench.world.fleet.flops_per_cycle[k]) for k in everyone}
    left = {k: len(bench.task.feed.shares[k]) / 8 for k in everyone}
    total = 0.0
    while any(value > 1e-12 for value in left.values()):
        part = {k: min(value, 1.0) for k, value in left.items() if value > 1e-12}
        server = (2 if len(part) > 1 else 1) * sum(part[k] * times[k]["server"] for k in part)
        total += max(part[k] * (times[k]["fwd"] + times[k]["up"]) for k in part)
        total += max(
            max(part[k] * decoder[k], server + part[k] * times[k]["down"]) + part[k] * times[k]["bwd"] for k in part
        )
        left = {k: value - 1.0 for k, value in left.items()}
    total += max(times[k]["model_up"] for k in everyone) + max(times[k]["model_down"] for k in everyone)
    assert pace.round(1, tuple(everyone))[0].round_s == pytest.approx(total, rel=1e-9)


def test_splitfed_v2_serves_in_the_rounds_own_order() -> None:
    settings = config("framework=splitfed_v2", "network.main_hz=1e9")
    bench, pace = paced(settings)
    everyone = tuple(range(5))
    for index in (0, 1):
        line, _ = pace.round(index, everyone)
        share = pace.allocator.share(pace.job, bench.world.draw(index), np.ones(5, bool))
        steps = np.ceil(pace.job.num_batches).astype(int)
        order = []
        for step in range(max(steps)):
            joins = np.flatnonzero(steps > step)
            shuffled = stream(3, "server order", index, step).permutation(joins).tolist()
            order.append([*shuffled, *np.flatnonzero(steps <= step).tolist()])
        same = timeline("splitfed_v2", share.phases, pace.job.num_batches, order=np.array(order))
        np.testing.assert_allclose(line.finish_s, same.finish_s, rtol=1e-12)
        other = timeline("splitfed_v2", share.phases, pace.job.num_batches, order=np.array(order)[:, ::-1])
        assert not np.allclose(line.finish_s, other.finish_s, rtol=1e-6)


def test_searched_cuts_are_for_the_batches_that_the_clock_charges() -> None:
    settings = config("fleet.cuts=fastest", "fleet.max_cut=3", "network.full_batches=true", "train.batch_size=64")
    bench = prepare(settings)
    charged = np.ceil(bench.num_samples / 64)
    assert (count_batches(settings, bench.num_samples) == charged).all()
    assert bench.task.cuts == fastest_cuts(bench.world, 64, charged, 1)
    pace = Pace(settings, bench.world, bench.task.cuts, bench.num_samples)
    assert (np.asarray(pace.job.num_batches) == charged).all()


def test_the_fastest_single_cut_is_the_fastest() -> None:
    settings = config("framework=splitfed_v1", "fleet.max_cut=3", "fleet.one_cut=fastest")
    bench = prepare(settings)
    num_batches = count_batches(settings, bench.num_samples)
    best = fastest_one_cut(bench.world, 8, num_batches, 1, 3)
    assert bench.task.one_cut == best

    def mean_s(cut: int) -> float:
        pace = Pace(settings, bench.world, (cut,) * 5, bench.num_samples)
        return float(np.mean([pace.round(r, (0, 1, 2, 3, 4))[0].round_s for r in range(60)]))

    means = {cut: mean_s(cut) for cut in (1, 2, 3)}
    assert means[best] <= min(means.values()) * 1.05  # other draws than the search saw
    assert max(means.values()) > 1.1 * means[best]


def test_searches_take_the_recorded_history(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """In the recorded rounds everyone computes far slower than the fleet says: the server is to work."""
    words = ["fleet.cuts=fastest", "fleet.max_cut=3", "fleet.cpu_hz=[1e11,1e12]", "network.main_hz=1e6"]
    bench = prepare(config(*words))
    assert max(bench.task.cuts) > 1
    drawn = draw_rounds(bench.world.fleet, bench.world.links, 0, range(4))
    history.write(replace(drawn, cpu_hz=drawn.cpu_hz * 1e-8), tmp_path / "slow.npz")
    assert prepare(config(*words, f"network.history={tmp_path}/slow.npz")).task.cuts == (1,) * 5


def test_own_download_counts_in_a_search() -> None:
    """A tiny edge power makes downloads dominate, and the smallest model wins."""
    settings = config("fleet.cuts=fastest", "fleet.max_cut=3", "network.edge_power_w=1e-7")
    bench = prepare(settings)
    bits = bench.world.cost.model_bits[1:4]
    assert bench.task.cuts == (1 + int(bits.argmin()),) * 5
    assert bits.max() > bits.min()


def test_memory_counts_the_optimisers_states() -> None:
    adam, sgd = (prepare(config(f"train.optimizer={name}")).world.cost for name in ("adam", "sgd"))
    assert adam.memory_bits is not None
    assert sgd.memory_bits is not None
    extra = adam.memory_bits - sgd.memory_bits
    np.testing.assert_allclose(extra[1:], 2 * adam.param_bits[1:])  # type: ignore[index]


def test_links_to_the_edge_server_are_those_to_the_main_server() -> None:
    words = ["network.kind=measured", "network.main_up_bps=1e6", "network.main_down_bps=2e6"]
    rates = prepare(config(*words)).world.links.rates  # type: ignore[union-attr]
    assert (rates.edge_up_bps == 1e6).all()
    assert (rates.edge_down_bps == 2e6).all()


def test_nobody_can_hold_fls_model() -> None:
    with pytest.raises(InputError, match=r"nobody can hold all .* units \(max_cut is at most 1\)"):
        prepare(config("framework=fl", "fleet.max_cut=1", "fleet.cuts=1", "options.fl_needs_storage=true"))
