"""CPSL's own choices: subchannels dealt greedily in each cluster's turn, and the best one cut for all."""

from pathlib import Path

import numpy as np
import pytest

from hsfl.config import RunConfig, read_config
from hsfl.errors import InputError
from hsfl.framework_table import register_framework
from hsfl.frameworks import find_framework
from hsfl.frameworks.cpsl import CPSL
from hsfl.network.clock import timeline
from hsfl.planning.rounds.allocators import Even, Job
from hsfl.planning.rounds.cpsl_policy import GreedyTurns, deal, filled_bits
from hsfl.planning.rounds.participation import choose_clients
from hsfl.runs.loop import make_clock
from hsfl.runs.prepare import Bench, prepare
from hsfl.runs.run_folder.folder import RunFolder
from tests.plugins.files import unload
from tests.small_runs import hsfl

WORDS = ["framework=cpsl", "model.name=mlp", "data.limit=120", "data.limit_test=40", "fleet.num_clients=4"]
WORDS += ["train.batch_size=8", "train.rounds=2", "network.num_subchannels=6", "allocation.samples=3"]


def config(*words: str) -> RunConfig:
    return read_config(None, [*WORDS, *words])


def job_of(bench: Bench, cut: int) -> Job:
    settings, clusters = bench.task.config, np.array(bench.task.clusters)
    return Job(settings, bench.world, np.full(4, cut), 8, bench.num_samples / 8, clusters=clusters)


def test_water_by_hand() -> None:
    """Starts 1 and 3: four watts fill both up to 4, one watt reaches 2 in the first alone."""
    assert filled_bits(np.array([3.0, 1.0]), 4.0) == pytest.approx(2 + np.log2(4 / 3))
    assert filled_bits(np.array([3.0, 1.0]), 1.0) == pytest.approx(1)


def test_dealing_by_hand() -> None:
    """Loads 4 and 1, seconds are load over subchannels: one each, then two more to the first (4, 2, then 4/3)."""
    load = np.array([4.0, 1.0])
    start_w = np.array([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    owner, each_s = deal(start_w, lambda m, owned: load[m] / owned.sum(), lambda each: float(each.max()))
    assert owner.tolist() == [0, 1, 0, 0]
    np.testing.assert_allclose(each_s, [4 / 3, 1])
    owner, _ = deal(start_w, lambda m, owned: load[m] / owned.sum(), lambda each: 7.0)
    assert owner.tolist() == [0, 1, 0, 0]  # nobody shortens it: to whom it saves most


def test_each_turn_deals_the_whole_band_to_its_members() -> None:
    bench = prepare(config("allocation.policy=cpsl", "fleet.cuts=2"))
    draw, job = bench.world.draw(0), job_of(bench, 2)
    allotted = GreedyTurns().allocate(job, draw, np.ones(4, bool))
    assert len(allotted.allocation_note["owners"]) == 2
    for number, owners in enumerate(allotted.allocation_note["owners"]):
        assert len(owners) == 6
        assert set(owners) == set(np.flatnonzero(job.clusters == number))
    even = Even().allocate(job, draw, np.ones(4, bool)).phases
    for name in ("client_forward_s", "server_forward_s", "client_backward_s"):  # the whole server in both
        np.testing.assert_allclose(getattr(allotted.phases, name), getattr(even, name), rtol=1e-12)


def test_a_turn_alone_is_never_slower_than_even() -> None:
    """With a client a turn there is nobody to deal with: all subchannels, water-filled where even spreads."""
    bench = prepare(config("allocation.policy=cpsl", "fleet.cuts=2", "options.cpsl.clusters=4"))
    job = job_of(bench, 2)
    for index in range(10):
        greedy, even = (
            a.allocate(job, bench.world.draw(index), np.ones(4, bool)).phases for a in (GreedyTurns(), Even())
        )
        for name in ("smashed_s", "gradient_s", "model_up_s", "model_down_s"):
            assert (getattr(greedy, name) <= getattr(even, name) * (1 + 1e-12)).all()


def test_nobody_ends_with_less_than_one_subchannel_of_its_best() -> None:
    """In a turn of two, a member's first subchannel is one of its best two, and what it gets later only helps."""
    bench = prepare(config("allocation.policy=cpsl", "fleet.cuts=2"))
    for index in range(5):
        draw = bench.world.draw(index)
        dealt = GreedyTurns().allocate(job_of(bench, 2), draw, np.ones(4, bool)).phases
        second = draw.main_gain.argsort(axis=1)[:, -2]
        slowest_s = [8 * bench.world.cost.smashed_bits[2] / _rate(bench, draw, k, second[k]) for k in range(4)]
        assert (dealt.smashed_s <= np.array(slowest_s) * (1 + 1e-12)).all()


def _rate(bench: Bench, draw, k: int, i: int) -> float:  # type: ignore[no-untyped-def]
    links, power_w = bench.world.links, bench.world.fleet.max_power_w[k]
    return links.subchannel_hz * np.log2(1 + power_w * draw.main_gain[k, i] / links.noise_w)


def test_the_best_cut_for_all() -> None:
    settings = config("allocation.policy=own", "fleet.max_cut=3")
    bench = prepare(settings)
    from hsfl.planning.world import sample_draws

    draws, means = sample_draws(bench.world, 3), {}
    for cut in (1, 2):  # CPSL leaves the server at least one unit
        job = job_of(bench, cut)
        lines = [
            timeline("cpsl", GreedyTurns().allocate(job, draws.sample(s), np.ones(4, bool)).phases, job.num_batches,
                     clusters=job.clusters)
            for s in range(3)
        ]  # fmt: skip
        means[cut] = np.mean([line.round_s for line in lines])
    assert bench.task.one_cut == min(means, key=lambda cut: means[cut])
    assert prepare(config("allocation.policy=own", "fleet.one_cut=1")).task.one_cut == 1  # what is given stays


def test_a_framework_that_derives_from_cpsl_chooses_as_cpsl_does() -> None:
    """Clusters that take turns and the policy decide, not the framework's name."""
    words = ("allocation.policy=own", "fleet.max_cut=3", "options.cpsl.clustering=gibbs", "network.subchannel_hz=1e4")
    try:
        register_framework("mine", type("Mine", (CPSL,), {}))
        mine, cpsl = (prepare(config(*words, f"framework={name}")) for name in ("mine", "cpsl"))
        assert mine.task.arranged == cpsl.task.arranged
        assert cpsl.task.one_cut < prepare(config(*words, "fleet.one_cut=max_cut")).task.one_cut
        lines = [make_clock(bench, find_framework("cpsl")(bench.task)).round(0, (0, 1, 2, 3)) for bench in (mine, cpsl)]
        assert lines[0][0].round_s == lines[1][0].round_s
    finally:
        unload()


def test_clients_that_stay_away_leave_their_band_to_the_others() -> None:
    settings = config("allocation.policy=own", "train.clients_per_round=2")
    bench = prepare(settings)
    pace = make_clock(bench, find_framework("cpsl")(bench.task))
    line, says = pace.round(0, choose_clients(settings, 0))
    assert line.started.sum() == 2
    assert {k for owners in says["owners"] for k in owners} == set(np.flatnonzero(line.started))


def test_too_many_for_the_band() -> None:
    settings = config("allocation.policy=cpsl", "network.num_subchannels=1", "fleet.cuts=2")
    bench = prepare(settings)
    with pytest.raises(InputError, match=r"raise options\.cpsl\.clusters"):
        make_clock(bench, find_framework("cpsl")(bench.task)).round(0, (0, 1, 2, 3))


@pytest.mark.usefixtures("undrawn")
def test_compare_with_each_framework_s_own_choices(tmp_path: Path) -> None:
    words = [word for change in (*WORDS[1:], "train.rounds=1") for word in ("--set", change)]
    labels = ["splitfed_v1,allocation.policy=splitfed", "cpsl,allocation.policy=cpsl", "cpsl,allocation.policy=own"]
    labels += ["sl,allocation.policy=own", "hsfl,allocation.policy=own"]
    chosen = [word for label in labels for word in ("-f", label)]
    words = [word for word in words if word not in ("--set", "allocation.samples=3")]
    words = [part for word in words for part in ("--set", word)]
    answer = hsfl("compare", *chosen, *words, "--set", "train.budget_s=1e9", "--out", tmp_path, "--quiet")
    assert answer.code == 0, answer
    records = {}
    for folder in sorted(path.parent for path in tmp_path.rglob("rounds.jsonl")):
        (record,) = RunFolder(folder).rounds()
        records[folder.relative_to(tmp_path).as_posix()] = record
    assert sorted(r.allocation["policy"] for r in records.values()) == ["cpsl", "cpsl", "even", "proposed", "splitfed"]
    cpsl = [record for record in records.values() if record.framework == "cpsl"]
    assert cpsl[0].round_s == cpsl[1].round_s
    (splitfed,) = (record for record in records.values() if record.framework == "splitfed_v1")
    np.testing.assert_allclose(splitfed.allocation["server_hz"], 1e12 / 4)
