"""Every framework's round in a run against its formula in plain loops, from the config's own draws."""

import math
from dataclasses import replace

import pytest

from hsfl.config import RunConfig, read_config
from hsfl.frameworks import find_framework
from hsfl.frameworks.locfedmix import _smashed_shape
from hsfl.models.cost_table import measure_module
from hsfl.planning.rounds.participation import choose_clients
from hsfl.rng import stream
from hsfl.runs.loop import make_clock
from hsfl.runs.prepare import prepare
from tests.small_runs import PLAIN

WORDS = [*PLAIN, "model.name=mlp", "data.limit=130", "data.limit_test=20", "fleet.num_clients=5", "train.batch_size=8"]
WORDS += ["network.num_subchannels=7", "data.partition=dirichlet", "seed=3"]


def config(*words: str) -> RunConfig:
    return read_config(None, [*WORDS, *words])


def paced(settings: RunConfig):  # type: ignore[no-untyped-def]
    bench = prepare(settings)
    return bench, make_clock(bench, find_framework(settings.framework)(bench.task))


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
    settings = config(f"framework={framework}", "train.clients_per_round=3", "fleet.cuts=2", *extra)
    bench, pace = paced(settings)
    cuts = find_framework(framework)(bench.task).cuts
    chosen = choose_clients(settings, 1)
    line, _ = pace.round(1, chosen)
    group, everyone = list(chosen), list(range(5))
    hz = bench.world.servers.main_hz / (5 if framework == "fsl" else len(group))  # FSL: a server for each of the five
    times = plain_phases(bench, bench.world.draw(1), cuts, group, everyone, hz, 8)
    own = {}
    for k in group:
        samples = len(bench.task.feed.indices[k]) * settings.network.sample_scale
        batches = (math.ceil(samples / 8) if extra else samples / 8) * settings.train.local_epochs
        t = times[k]
        own[k] = batches * (t["fwd"] + t["up"] + t["server"] + t["down"] + t["bwd"]) + t["model_up"]
    expected = max(own.values()) + max(times[k]["model_down"] for k in everyone)
    assert line.round_s == pytest.approx(expected, rel=1e-9)
    assert line.straggler == max(own, key=lambda k: own[k])


def steps_of(left: dict[int, float]):  # type: ignore[no-untyped-def]
    """For each step the part of a batch that every client makes which still has one."""
    for step in range(math.ceil(max(left.values()))):
        yield {k: min(value - step, 1.0) for k, value in left.items() if value > step}


@pytest.mark.parametrize("handed", ["false", "true"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_sl_by_hand(optimizer: str, handed: str) -> None:
    """One client after another with the whole band and server; the optimiser's bits travel with the head if asked."""
    words = [f"options.sl.hand_optimizer={handed}", f"train.optimizer={optimizer}", "fleet.cuts=2"]
    settings = config("framework=sl", "train.clients_per_round=4", *words)
    bench, pace = paced(settings)
    bits = 0.0
    if handed == "true":  # float32 tensors of the weights' size, and Adam's counter of steps for each
        head = bench.task.model.head(2)
        states, counters = {"sgd": (0, 0), "momentum": (1, 0), "adam": (2, 1)}[optimizer]
        bits = 32.0 * sum(states * weights.numel() + counters for weights in head.parameters())
    cost = replace(bench.world.cost, model_bits=bench.world.cost.model_bits + bits)
    bench = replace(bench, world=replace(bench.world, cost=cost))
    chosen, draw, total = choose_clients(settings, 1), bench.world.draw(1), 0.0
    for k in chosen:
        t = plain_phases(bench, draw, (2,) * 5, [k], [k], bench.world.servers.main_hz, 8)[k]
        total += len(bench.task.feed.indices[k]) / 8 * (t["fwd"] + t["up"] + t["server"] + t["down"] + t["bwd"])
        total += t["model_up"] + t["model_down"]
    assert pace.round(1, chosen)[0].round_s == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_handed_optimiser_takes_its_bits_over_the_rates(optimizer: str) -> None:
    """Measured links: the round grows by the bits that the optimiser's own memory has, up and down for each client."""
    rates = ["network.kind=measured", "network.main_up_bps=1e6", "network.main_down_bps=1e6"]
    rates += ["network.edge_up_bps=[1e6,2e6,3e6,4e6,5e6]", "network.edge_down_bps=[7e6,6e6,5e6,4e6,3e6]"]
    words = ["framework=sl", f"train.optimizer={optimizer}", "fleet.cuts=2", *rates]
    everyone = (0, 1, 2, 3, 4)
    (_, without), (bench, handed) = (paced(config(*words, f"options.sl.hand_optimizer={w}")) for w in ("false", "true"))
    sl = find_framework("sl")(bench.task)
    state, _ = sl.round(sl.init(), everyone, 0)
    bits = sum(8 * memory.nbytes for name, memory in state.tensors.items() if name.startswith("head."))
    more_s = sum(bits / up + bits / down for up, down in zip((1e6, 2e6, 3e6, 4e6, 5e6), (7e6, 6e6, 5e6, 4e6, 3e6)))
    grown_s = handed.round(0, everyone)[0].round_s - without.round(0, everyone)[0].round_s
    assert bits > 0
    assert grown_s == pytest.approx(more_s, rel=1e-9)


@pytest.mark.parametrize("full", ["false", "true"])
def test_cl_by_hand(full: str) -> None:
    """Round 1 begins when all raw data are there; then the server alone, on batches of everyone's samples together."""
    settings = config("framework=cl", f"network.full_batches={full}", "train.local_epochs=2", "train.batch_size=48")
    bench, pace = paced(settings)
    world, samples = bench.world, [len(own) for own in bench.task.feed.indices]
    batches = math.ceil(sum(samples) / 48) if full == "true" else sum(samples) / 48
    training_s = 2 * batches * 48 * world.cost.server_flops[0] / world.servers.main_hz
    draw, everyone = world.draw(0), list(range(5))
    upload_s = []
    for k in everyone:
        mine = [i for i in range(7) if i % 5 == k]
        bps = rate(world.links, draw.main_gain[k], world.fleet.max_power_w[k], mine, 1.0)
        upload_s.append(samples[k] * 32 * math.prod(bench.task.feed.images.shape) / bps)
    assert pace.round(0, (0,))[0].round_s == pytest.approx(max(upload_s) + training_s, rel=1e-9)
    assert pace.round(1, ())[0].round_s == pytest.approx(training_s, rel=1e-9)


@pytest.mark.parametrize("option", ["psl.cut_gradient=false", "psl.cut_gradient=true"])
@pytest.mark.parametrize("full", ["false", "true"])
def test_psl_by_hand(option: str, full: str) -> None:
    """Batches in proportion to samples, equal steps; heads' gradients go up and down in every step, or never."""
    settings = config("framework=psl", f"options.{option}", f"network.full_batches={full}", "train.local_epochs=2")
    bench, pace = paced(settings)
    cuts, everyone = find_framework("psl")(bench.task).cuts, list(range(5))
    samples = [len(own) for own in bench.task.feed.indices]
    steps = sum(samples) / (5 * 8)
    steps = 2 * (math.ceil(steps) if full == "true" else steps)
    of_one = plain_phases(bench, bench.world.draw(1), cuts, everyone, everyone, bench.world.servers.main_hz, 1)
    batch = {k: 5 * 8 * samples[k] / sum(samples) for k in everyone}
    total = 0.0
    for part in steps_of(dict.fromkeys(everyone, steps)):
        total += max(part[k] * batch[k] * (of_one[k]["fwd"] + of_one[k]["up"]) for k in everyone)
        total += sum(part[k] * batch[k] * of_one[k]["server"] for k in everyone)
        total += max(part[k] * batch[k] * (of_one[k]["down"] + of_one[k]["bwd"]) for k in everyone)
        if option.endswith("false"):
            total += max(of_one[k]["model_up"] for k in everyone) + max(of_one[k]["model_down"] for k in everyone)
    assert pace.round(1, tuple(everyone))[0].round_s == pytest.approx(total, rel=1e-9)


def test_splitfed_v2_by_hand() -> None:
    """In every step the server waits for all smashed data, then serves one client after another, as training does."""
    settings = config("framework=splitfed_v2", "network.main_hz=1e9", "train.clients_per_round=4")
    bench, pace = paced(settings)
    cuts, chosen, everyone = find_framework("splitfed_v2")(bench.task).cuts, choose_clients(settings, 1), list(range(5))
    times = plain_phases(bench, bench.world.draw(1), cuts, list(chosen), everyone, 1e9, 8)
    total = 0.0
    for step, part in enumerate(steps_of({k: len(bench.task.feed.indices[k]) / 8 for k in chosen})):
        now = max(part[k] * (times[k]["fwd"] + times[k]["up"]) for k in part)
        ends = []
        for k in stream(3, "server order", 1, step).permutation(list(part)).tolist():
            now += part[k] * times[k]["server"]
            ends.append(now + part[k] * (times[k]["down"] + times[k]["bwd"]))
        total += max(ends)
    total += max(times[k]["model_up"] for k in chosen) + max(times[k]["model_down"] for k in everyone)
    assert pace.round(1, chosen)[0].round_s == pytest.approx(total, rel=1e-9)


def test_cpsl_by_hand() -> None:
    """Two clusters in turn, a client of one away: the others have its share of the band, downloads too."""
    settings = config("framework=cpsl", "options.cpsl.clusters=2", "train.clients_per_round=4")
    bench, pace = paced(settings)
    cuts = find_framework("cpsl")(bench.task).cuts
    chosen = choose_clients(settings, 1)
    draw, total = bench.world.draw(1), 0.0
    for number in sorted(set(bench.task.clusters)):
        group = [k for k in chosen if bench.task.clusters[k] == number]
        if not group:
            continue
        times = plain_phases(bench, draw, cuts, group, group, bench.world.servers.main_hz, 8)
        left = {k: len(bench.task.feed.indices[k]) / 8 for k in group}
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
    algorithm = find_framework("locfedmix_sl")(bench.task)
    shape = _smashed_shape(bench.task.model, algorithm.cuts[0], bench.task.feed.images.shape)
    flops, bits = measure_module(algorithm.decoder.units[0], shape)
    cost = replace(bench.world.cost, model_bits=bench.world.cost.model_bits + bits)
    bench = replace(bench, world=replace(bench.world, cost=cost))
    everyone, draw = list(range(5)), bench.world.draw(1)
    times = plain_phases(bench, draw, algorithm.cuts, everyone, everyone, bench.world.servers.main_hz, 8)
    decoder = {k: 8 * flops / (draw.cpu_hz[k] * bench.world.fleet.flops_per_cycle[k]) for k in everyone}
    left = {k: len(bench.task.feed.indices[k]) / 8 for k in everyone}
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
