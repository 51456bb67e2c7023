"""The clock of a run: the order of a queue, batches as charged, cuts that a search finds."""

from dataclasses import replace

import numpy as np

from hsfl.config import RunConfig, read_config
from hsfl.errors import InputError
from hsfl.frameworks import find_framework
from hsfl.network import history
from hsfl.network.channel import draw_rounds
from hsfl.network.clock import timeline
from hsfl.planning.cuts import fastest_cuts, fastest_one_cut
from hsfl.planning.rounds.participation import CutTask
from hsfl.planning.rounds.round_clock import RoundClock
from hsfl.planning.world import count_batches
from hsfl.rng import stream
from hsfl.runs.loop import make_clock
from hsfl.runs.prepare import prepare
from tests.naming import raises

WORDS = ["model.name=mlp", "data.limit=130", "data.limit_test=20", "fleet.num_clients=5", "train.batch_size=8"]
WORDS += ["network.num_subchannels=7", "data.partition=dirichlet", "seed=3"]


def config(*words: str) -> RunConfig:
    return read_config(None, [*WORDS, *words])


def paced(settings: RunConfig):  # type: ignore[no-untyped-def]
    bench = prepare(settings)
    return bench, make_clock(bench, find_framework(settings.framework)(bench.task))


def test_splitfed_v2_serves_in_the_rounds_own_order() -> None:
    settings = config("framework=splitfed_v2", "network.main_hz=1e9")
    bench, pace = paced(settings)
    everyone = tuple(range(5))
    for index in (0, 1):
        line, _ = pace.round(index, everyone)
        allotted = pace.allocator.allocate(pace.job, bench.world.draw(index), np.ones(5, bool))
        steps = np.ceil(pace.job.num_batches).astype(int)
        order = []
        for step in range(max(steps)):
            joins = np.flatnonzero(steps > step)
            shuffled = stream(3, "server order", index, step).permutation(joins).tolist()
            order.append([*shuffled, *np.flatnonzero(steps <= step).tolist()])
        same = timeline("splitfed_v2", allotted.phases, pace.job.num_batches, order=np.array(order))
        np.testing.assert_allclose(line.finish_s, same.finish_s, rtol=1e-12)
        other = timeline("splitfed_v2", allotted.phases, pace.job.num_batches, order=np.array(order)[:, ::-1])
        assert not np.allclose(line.finish_s, other.finish_s, rtol=1e-6)


def test_searched_cuts_are_for_the_batches_that_the_clock_charges() -> None:
    settings = config("fleet.cuts=fastest", "fleet.max_cut=3", "network.full_batches=true", "train.batch_size=64")
    bench = prepare(settings)
    charged = np.ceil(bench.num_samples / 64)
    assert (count_batches(settings, bench.num_samples) == charged).all()
    assert bench.task.cuts == fastest_cuts(CutTask(settings, bench.world, charged))
    pace = RoundClock(settings, bench.world, bench.task.cuts, bench.num_samples)
    assert (np.asarray(pace.job.num_batches) == charged).all()


def test_the_fastest_single_cut_is_the_fastest() -> None:
    settings = config("framework=splitfed_v1", "fleet.max_cut=3", "fleet.one_cut=fastest")
    bench = prepare(settings)
    num_batches = count_batches(settings, bench.num_samples)
    best = fastest_one_cut(CutTask(settings, bench.world, num_batches))
    assert bench.task.one_cut == best

    def mean_s(cut: int) -> float:
        pace = RoundClock(settings, bench.world, (cut,) * 5, bench.num_samples)
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
    history.write_history(replace(drawn, cpu_hz=drawn.cpu_hz * 1e-8), tmp_path / "slow.npz")
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
    with raises(InputError, "nobody", "max_cut is at most 1"):
        prepare(config("framework=fl", "fleet.max_cut=1", "fleet.cuts=1", "options.fl.needs_storage=true"))
