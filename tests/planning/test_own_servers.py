"""FSL: each client's server side is on a server of its own with main_hz / K, so no policy moves cycles between them."""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hsfl.config import RunConfig, read_config
from hsfl.frameworks import find_framework
from hsfl.planning.rounds.participation import choose_clients
from hsfl.runs.loop import make_clock, train_run
from hsfl.runs.prepare import prepare
from hsfl.runs.run_folder.folder import RunFolder
from tests.small_runs import PLAIN

WORDS = [*PLAIN, "framework=fsl", "model.name=mlp", "data.limit=120", "data.limit_test=40", "fleet.num_clients=3"]
WORDS += ["train.batch_size=8", "network.num_subchannels=4", "network.main_hz=3e7", "fleet.cuts=1", "train.rounds=1"]
WORDS += ["data.partition=quantity_skew", "network.subchannel_hz=1e5"]  # a server, a radio and data that matter
MEASURED = ["network.kind=measured", "network.main_up_bps=[1e6,2e6,4e6]", "network.main_down_bps=1e7"]
OWN_HZ = 1e7


def config(*words: str) -> RunConfig:
    return read_config(None, [*WORDS, *words])


def rounds(settings: RunConfig, count: int = 2):  # type: ignore[no-untyped-def]
    bench = prepare(settings)
    pace = make_clock(bench, find_framework(settings.framework)(bench.task))
    return [pace.round(r, choose_clients(settings, r)) for r in range(count)]


def server_hz(settings: RunConfig, line) -> np.ndarray:  # type: ignore[no-untyped-def]
    """From the seconds alone: what the server side of each client must have had."""
    bench = prepare(settings)
    seconds = line.phase_s["server_forward"] + line.phase_s["server_backward"]
    return bench.num_samples * bench.world.cost.server_flops[1] / np.where(line.started, seconds, np.inf)


@pytest.mark.parametrize("policy", ["even", "proposed", "ecfa", "gtra", "etra", "etra_even", "splitfed"])
@pytest.mark.parametrize("links", [[], MEASURED, ["network.num_subchannels=2", "allocation.time_limit_s=1"]])
def test_every_server_side_has_its_own_share_whoever_is_away(policy: str, links: list[str]) -> None:
    if policy == "gtra" and len(links) == 2:
        return  # deals whole subchannels, and here there are fewer than clients
    settings = config(f"allocation.policy={policy}", "train.clients_per_round=2", *links)
    for line, says in rounds(settings):
        assert line.started.sum() == 2
        own = np.where(line.started, OWN_HZ, 0.0)
        np.testing.assert_allclose(server_hz(settings, line), own, rtol=1e-9)
        if policy != "even":
            assert says["server_hz"] == pytest.approx(own.tolist(), rel=1e-12)


def test_others_still_move_their_cycles() -> None:
    settings = config("allocation.policy=proposed", "framework=splitfed_v1")
    ((_, says),) = rounds(settings, 1)
    assert max(says["server_hz"]) > 1.2 * min(says["server_hz"])


def test_cycles_fixed_cost_seconds_and_subchannels_and_power_gain_some() -> None:
    (free, _), *_ = rounds(config("allocation.policy=proposed", "framework=splitfed_v1"), 1)
    (own, _), *_ = rounds(config("allocation.policy=proposed"), 1)
    (even, _), *_ = rounds(config(), 1)
    assert free.round_s < 0.999 * own.round_s
    assert own.round_s < 0.999 * even.round_s


def filled_bps(power_w: float, gains: list[float], width_hz: float, noise_w: float) -> float:
    """The rate of a power water-filled over a client's subchannels: the best m of them, for every m."""
    starts = sorted(noise_w / gain for gain in gains)
    best = 0.0
    for m in range(1, len(starts) + 1):
        level = (power_w + sum(starts[:m])) / m
        if level > starts[m - 1]:
            best = max(best, sum(width_hz * math.log2(level / start) for start in starts[:m]))
    return best


def least(low: float, high: float, enough) -> float:  # type: ignore[no-untyped-def]
    """The least number that is enough, by halving."""
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def least_stage_s(fixed_s: list[float], bits: list[float], rates, power_w: float, longest_s: float) -> float:  # type: ignore[no-untyped-def]
    """min over the server's power of the last one's fixed seconds plus bits over its rate."""

    def enough(limit_s: float) -> bool:
        needed_w = 0.0
        for k, own_s in enumerate(fixed_s):
            left_s = limit_s - own_s
            if left_s <= 0 or bits[k] / rates(k, power_w) > left_s:
                return False
            needed_w += least(0.0, power_w, lambda watts, k=k, left_s=left_s: rates(k, watts) * left_s >= bits[k])
        return needed_w <= power_w

    return least(0.0, longest_s, enough)


def test_the_gap_is_that_of_every_way_to_deal_subchannels_and_power() -> None:
    """All 36 ways to give 4 subchannels to 3 clients, one at least each; power by halving, in plain loops."""
    settings = config("allocation.policy=proposed", "allocation.gap=1e-4")
    bench = prepare(settings)
    world, cost, draw = bench.world, bench.world.cost, bench.world.draw(0)
    ((line, says),) = rounds(settings, 1)
    links, servers, clients, cut = world.links, world.servers, range(3), 1
    speed = draw.cpu_hz * world.fleet.flops_per_cycle
    samples = bench.num_samples
    best_training_s, best_down_s = math.inf, math.inf
    for owner in product(clients, repeat=4):
        if set(owner) != set(clients):
            continue
        mine = {k: [i for i in range(4) if owner[i] == k] for k in clients}

        def rate(gain, k: int, watts: float, mine=mine) -> float:  # type: ignore[no-untyped-def]
            return filled_bps(watts, [gain[k, i] for i in mine[k]], links.subchannel_hz, links.noise_w)

        fixed_s = [
            samples[k] * cost.client_flops[cut] / speed[k]
            + samples[k] * cost.server_flops[cut] / OWN_HZ
            + samples[k] * cost.smashed_bits[cut] / rate(draw.main_gain, k, world.fleet.max_power_w[k])
            + cost.model_bits[cut] / rate(draw.edge_gain, k, world.fleet.max_power_w[k])
            for k in clients
        ]
        down = [float(samples[k] * cost.gradient_bits[cut]) for k in clients]
        stage = (down, lambda k, w: rate(draw.main_gain, k, w), servers.main_power_w, 2 * line.round_s)
        best_training_s = min(best_training_s, least_stage_s(fixed_s, *stage))
        models = ([float(cost.model_bits[cut])] * 3, lambda k, w: rate(draw.edge_gain, k, w), servers.edge_power_w)
        best_down_s = min(best_down_s, least_stage_s([0.0] * 3, *models, 2 * line.round_s))
    best_s = best_training_s + best_down_s
    assert says["lower_bound_s"] <= best_s * (1 + 1e-9)
    assert best_s <= line.round_s * (1 + 1e-9)
    assert says["gap"] <= 1e-4 + 1e-9
    assert says["gap"] == pytest.approx(1 - says["lower_bound_s"] / line.round_s, abs=1e-9)


def test_tau_drops_whom_its_own_server_is_too_slow_for() -> None:
    words = ["allocation.policy=proposed", *MEASURED]
    (line, _), *_ = rounds(config(*words), 1)
    tau_s = 0.5 * float(np.sort(line.finish_s)[-1] + np.sort(line.finish_s)[-2])
    (tight, says), *_ = rounds(config(*words, f"train.tau_s={tau_s}"), 1)
    assert says["status"] == "dropped"
    assert tight.kept.tolist() == [k != int(line.finish_s.argmax()) for k in range(3)]
    np.testing.assert_allclose(tight.finish_s[tight.kept], line.finish_s[tight.kept], rtol=1e-9)  # nobody gains by it


def test_clients_that_keep_their_heads_send_no_model(tmp_path: Path) -> None:
    """`fsl.average = server`: no head travels, so none takes time, under a policy as under none."""
    for policy in ("even", "proposed"):
        train_run(config("options.fsl.average=server", f"allocation.policy={policy}"), tmp_path / policy)
        (record,) = RunFolder(tmp_path / policy).rounds()
        assert record.bytes["client_edge_up"] == record.bytes["client_edge_down"] == 0
        assert not {"model_up", "model_down"} & record.phases.keys()
        assert record.round_s == pytest.approx(max(record.phases["client_backward"]["end_s"]), rel=1e-6)


@pytest.mark.parametrize("framework", ["fsl", "hsfl", "fl"])
@pytest.mark.parametrize("policy", ["proposed", "gtra+etra"])
def test_the_gap_is_that_of_the_round_also_when_some_are_away(framework: str, policy: str) -> None:
    """Those who are away receive the model too, and the record's gap is about the round that it stands beside."""
    words = [f"framework={framework}", f"allocation.policy={policy}", "train.clients_per_round=1"]
    best = rounds(config(*words, "allocation.policy=proposed", "allocation.gap=1e-5", "allocation.time_limit_s=0.2"), 4)
    for (line, says), (shortest, _) in zip(rounds(config(*words), 4), best, strict=True):
        assert says["lower_bound_s"] <= shortest.round_s * (1 + 1e-9)
        assert (line.phase_s["model_down"] > 0).all()
        assert says["gap"] == pytest.approx(1 - says["lower_bound_s"] / line.round_s, abs=1e-9)
        if policy == "proposed":
            assert says["gap"] < 0.01
            assert (says["status"] == "optimal") == (says["gap"] <= 1e-3 * (1 + 1e-6) + 1e-9)
