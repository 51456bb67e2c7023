"""The clock in a run: who is kept, when a run ends, what a record says."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hsfl.config import RunConfig, read_config
from hsfl.errors import InputError
from hsfl.framework_table import METHODS
from hsfl.frameworks import find_framework
from hsfl.network import history
from hsfl.network.channel import draw_rounds
from hsfl.network.latency import client_round_s
from hsfl.planning.cuts import _phases
from hsfl.planning.rounds.participation import choose_clients
from hsfl.report.compared_runs import read_run
from hsfl.runs.loop import Observer, make_clock, train_run
from hsfl.runs.prepare import prepare
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.studies.compare_runs import run_contenders
from tests.naming import names, raises
from tests.small_runs import PLAIN

WORDS = [*PLAIN, "model.name=mlp", "data.limit=120", "data.limit_test=40", "fleet.num_clients=4", "train.batch_size=8"]


def config(*words: str) -> RunConfig:
    return read_config(None, [*WORDS, "train.rounds=2", *words])


class Ear(Observer):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def warns(self, message: str) -> None:
        self.heard.append(message)


def rounds(settings: RunConfig, count: int = 2):  # type: ignore[no-untyped-def]
    bench = prepare(settings)
    pace = make_clock(bench, find_framework(settings.framework)(bench.task))
    return [pace.round(r, choose_clients(settings, r))[0] for r in range(count)]


@pytest.mark.parametrize("framework", METHODS)
def test_records_carry_the_clock(framework: str, tmp_path: Path) -> None:
    settings = config(f"framework={framework}")
    summary = train_run(settings, tmp_path / "run")
    records = RunFolder(tmp_path / "run").rounds()
    lines = rounds(settings)
    if framework == "cl":  # its raw data are part of round 1
        assert ["smashed" in record.phases for record in records] == [True, False]
    assert [record.round_s for record in records] == [line.round_s for line in lines]
    assert records[1].sim_time_s == pytest.approx(sum(line.round_s for line in lines), rel=1e-12)
    assert summary.sim_time_s == records[1].sim_time_s
    for record, line in zip(records, lines):
        ends = [max(phase["end_s"]) for phase in record.phases.values()]
        assert max(ends) == pytest.approx(line.round_s, rel=1e-6)
        assert len(record.waiting_s) == 4
        idle = framework == "cl" and record.round > 1  # once the data are there, CL's clients have nothing to do
        assert record.straggler in ([None] if idle else range(4))
        assert record.dropped == []
        assert record.allocation == {"policy": "even"}
    assert "NaN" not in (tmp_path / "run" / "rounds.jsonl").read_text()


def test_same_draws_for_every_framework() -> None:
    draws = [prepare(config(f"framework={name}")).world.draw(1) for name in ("hsfl", "fl", "sl")]
    for other in draws[1:]:
        assert (draws[0].cpu_hz == other.cpu_hz).all()
        assert (draws[0].main_gain == other.main_gain).all()


def test_tau_drops_the_slow_and_the_average_leaves_them_out(tmp_path: Path) -> None:
    slow = next(line for line in rounds(config()))
    tau_s = float(np.sort(slow.finish_s)[-2]) * 1.0001  # all but the slowest finish in time
    train_run(config(f"train.tau_s={tau_s}", "train.rounds=1"), tmp_path / "tau")
    (record,) = RunFolder(tmp_path / "tau").rounds()
    assert record.dropped == [slow.straggler]
    assert read_run(tmp_path / "tau", "hsfl", 0).left_out == 0  # it started
    assert record.kept == [k for k in range(4) if k != slow.straggler]
    assert record.round_s < slow.round_s
    train_run(config("train.rounds=1", "train.tau_s=1e9"), tmp_path / "patient")
    assert RunFolder(tmp_path / "patient").rounds()[0].dropped == []


def test_tau_that_nobody_meets_warns_and_time_passes(tmp_path: Path) -> None:
    ear = Ear()
    train_run(config("train.tau_s=1e-9"), tmp_path / "run", observer=ear)
    records = RunFolder(tmp_path / "run").rounds()
    assert [record.kept for record in records] == [[], []]
    assert records[1].sim_time_s > records[0].sim_time_s > 0
    assert records[0].test_accuracy == records[1].test_accuracy
    assert "train.tau_s = 1e-09" in ear.heard[-1]
    assert not any("unit" in text for text in ear.heard)  # tau cut the round short, not a unit


def test_budget_excludes_the_round_that_would_cross_it(tmp_path: Path) -> None:
    first, second, _ = rounds(config(), 3)
    enough = first.round_s + second.round_s
    summary = train_run(
        config("train.rounds=9", f"train.budget_s={enough * 1.000001}", "train.eval_every=9"), tmp_path / "two"
    )
    assert (summary.status, summary.rounds) == ("budget", 2)
    assert summary.test_accuracy is not None  # the last round is evaluated, whatever ended the run
    summary = train_run(config("train.rounds=9", f"train.budget_s={enough * 0.999999}"), tmp_path / "one")
    assert (summary.status, summary.rounds) == ("budget", 1)
    ear = Ear()
    summary = train_run(
        config("train.rounds=9", f"train.budget_s={first.round_s / 2}"), tmp_path / "none", observer=ear
    )
    assert (summary.status, summary.rounds, summary.sim_time_s) == ("budget", 0, 0.0)
    names(ear.heard[-1], "but the budget is", "nothing is trained")


def test_budget_goes_on_after_resume(tmp_path: Path) -> None:
    lines = rounds(config(), 3)
    budget_s = sum(line.round_s for line in lines) * 1.000001
    whole = train_run(config("train.rounds=9", f"train.budget_s={budget_s}"), tmp_path / "whole")
    train_run(config("train.rounds=1", f"train.budget_s={budget_s}"), tmp_path / "parts")
    parts = train_run(config("train.rounds=9", f"train.budget_s={budget_s}"), tmp_path / "parts", resume=True)
    assert (parts.rounds, parts.sim_time_s, parts.test_accuracy) == (
        whole.rounds,
        whole.sim_time_s,
        whole.test_accuracy,
    )


def test_fl_with_and_without_storage() -> None:
    weak = ["framework=fl", "fleet.max_cut=[1,3,2,3]"]
    (without,) = rounds(config(*weak), 1)
    (needs,) = rounds(config(*weak, "options.fl.needs_storage=true"), 1)
    assert without.kept.tolist() == [True] * 4
    assert needs.kept.tolist() == [False, True, False, True]
    down_s = needs.phase_s["model_down"]
    assert (down_s > 0).tolist() == [False, True, False, True]  # what cannot be held is not sent
    assert (down_s[[1, 3]] < without.phase_s["model_down"][[1, 3]]).all()  # and the band is the others'


def test_a_model_that_does_not_fit_is_not_downloaded(tmp_path: Path) -> None:
    weak = ["framework=fl", "fleet.max_cut=[1,3,2,3]", "train.rounds=1"]
    down = []
    for word in ("false", "true"):
        train_run(config(*weak, f"options.fl.needs_storage={word}"), tmp_path / word)
        down.append(RunFolder(tmp_path / word).rounds()[0].bytes["client_edge_down"])
    assert down[0] == 2 * down[1]


def test_fastest_cuts_are_nearly_the_best_of_all() -> None:
    """Against every combination of four clients' cuts, on the samples that the search sees; a weak main server."""
    strong = ["fleet.cpu_hz=[1e7,1e9]", "fleet.cpu_floor_hz=1e7", "network.main_hz=1e7", "network.subchannel_hz=1e10"]
    settings = config("fleet.cuts=fastest", "fleet.max_cut=[3,2,3,1]", *strong)
    bench = prepare(settings)
    num_batches = bench.num_samples / 8
    times = {cut: _phases(bench.world, np.full(4, cut), 8) for cut in (1, 2, 3)}

    def mean_s(cuts: tuple[int, ...]) -> float:
        own = [client_round_s(times[cut], num_batches)[:, k] for k, cut in enumerate(cuts)]
        down = [times[cut].model_down_s[:, k] for k, cut in enumerate(cuts)]
        return float((np.max(own, axis=0) + np.max(down, axis=0)).mean())

    every = [cuts for cuts in product((1, 2, 3), repeat=4) if all(c <= m for c, m in zip(cuts, (3, 2, 3, 1)))]
    assert bench.task.cuts in every
    best = min(map(mean_s, every))
    assert mean_s(bench.task.cuts) <= best * 1.001
    assert mean_s((1, 1, 1, 1)) > best * 1.01  # so that the search has something to find


def test_one_cut_of_frameworks_with_one_cut() -> None:
    def cut(*words: str) -> int:
        return prepare(config("framework=splitfed_v1", *words)).task.one_cut

    assert cut("fleet.max_cut=[3,2,3,2]") == 2
    assert cut("fleet.max_cut=[3,2,3,2]", "fleet.cuts=fastest") in (1, 2)
    assert cut("fleet.max_cut=[3,2,3,2]", "fleet.cuts=fastest", "fleet.one_cut=max_cut") == 2
    assert cut("fleet.cuts=[3,1,2,3]") == 1
    assert cut("fleet.max_cut=[3,2,3,2]", "fleet.one_cut=1") == 1
    assert cut("fleet.max_cut=3", "fleet.one_cut=fastest") in (1, 2, 3)
    with raises(InputError, "fleet.one_cut is 3", "max_cut", "client 1 is 2"):
        cut("fleet.max_cut=[3,2,3,2]", "fleet.one_cut=3")


def test_measured_links_and_their_errors() -> None:
    links = ["network.kind=measured", "network.main_up_bps=5e6", "network.main_down_bps=[2e7,2e7,1e7,1e7]"]
    bench = prepare(config(*links, "fleet.cuts=1"))
    (line,) = rounds(config(*links, "fleet.cuts=1"), 1)
    bits = bench.world.cost.smashed_bits[1] * bench.num_samples
    assert line.phase_s["smashed"] == pytest.approx(bits / 5e6, rel=1e-12)
    with raises(InputError, "network.main_down_bps"):
        prepare(config(*links[:2]))
    with raises(InputError, "4 numbers", "3 clients"):
        prepare(config(*links, "fleet.num_clients=3"))


def test_history_is_played_back(tmp_path: Path) -> None:
    world = prepare(config()).world
    history.write_history(draw_rounds(world.fleet, world.links, 99, range(2)), tmp_path / "history.npz")
    played = config(f"network.history={tmp_path / 'history.npz'}")
    three = rounds(played, 3)
    assert three[0].round_s == three[2].round_s  # two rounds were recorded; they repeat
    assert three[0].round_s != rounds(config(), 1)[0].round_s
    with pytest.raises(InputError, match=r"network\.num_subchannels=10"):
        prepare(config(f"network.history={tmp_path / 'history.npz'}", "network.num_subchannels=5"))


def test_recorded_rates_need_no_others(tmp_path: Path) -> None:
    rates = ["network.kind=measured", "network.main_up_bps=1e6", "network.main_down_bps=2e6"]
    world = prepare(config(*rates)).world
    history.write_history(draw_rounds(world.fleet, world.links, 99, range(2)), tmp_path / "history.csv")
    played = rounds(config("network.kind=measured", f"network.history={tmp_path / 'history.csv'}"), 1)
    assert played[0].round_s > 0


def fleet_text(*cpu_hz: float) -> str:
    """A fleet file of four devices."""
    rows = zip("abcd", cpu_hz, (1, 2, 3, 3))
    return json.dumps({"device": [{"name": name, "cpu": hz, "power": 1, "max_cut": cut} for name, hz, cut in rows]})


def test_a_file_that_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(fleet_text(1e9, 2e9, 3e9, 4e9))
    train_run(config(f"fleet.file={file}", "train.rounds=1"), tmp_path / "run")
    train_run(config(f"fleet.file={file}", "train.rounds=2"), tmp_path / "run", resume=True)
    run_contenders(config(f"fleet.file={file}", "train.rounds=1", "train.budget_s=1e6"), ["hsfl"], tmp_path / "out")
    file.write_text(fleet_text(1e7, 1e7, 1e7, 1e7))
    with raises(InputError, "other contents", "fleet.file"):
        train_run(config(f"fleet.file={file}", "train.rounds=3"), tmp_path / "run", resume=True)
    with raises(InputError, "other contents", "fleet.file"):
        run_contenders(config(f"fleet.file={file}", "train.rounds=1", "train.budget_s=1e6"), ["fl"], tmp_path / "out")


def test_what_no_round_can_be_made_of_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="client 0"):
        train_run(config("network.radius_m=100", "network.path_loss_exponent=400"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_storage_gives_max_cut_and_a_client_without_a_cut_is_named() -> None:
    enough = prepare(config("fleet.storage_bits=[1e9,1e9]")).world.fleet.max_cut
    assert (enough == 3).all()
    with raises(InputError, "client 0", "feasible cut"):
        prepare(config("fleet.storage_bits=[1e3,1e3]"))
    parameters = prepare(config("fleet.storage_bits=[7e6,7e6]", "fleet.storage=parameters")).world.fleet.max_cut
    assert (parameters < 3).all()


def test_explicit_fleet(tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_text(fleet_text(1e9, 2e9, 3e9, 4e9))
    bench = prepare(config(f"fleet.file={tmp_path / 'fleet.json'}"))
    assert bench.task.cuts == (1, 2, 3, 3)
    assert bench.world.fleet.cpu_hz.tolist() == [1e9, 2e9, 3e9, 4e9]
    equal = prepare(config(f"fleet.file={tmp_path / 'fleet.json'}", "fleet.heterogeneity=0")).world.fleet
    assert equal.cpu_hz.tolist() == [2.5e9] * 4
    with pytest.raises(InputError, match=r"set fleet\.num_clients=4"):
        prepare(config(f"fleet.file={tmp_path / 'fleet.json'}", "fleet.num_clients=5"))


def test_gibbs_clusters_are_no_slower_than_random_ones() -> None:
    cpsl = ["framework=cpsl", "fleet.num_clients=6", "options.cpsl.clusters=3", "fleet.cuts=1"]
    (random,) = rounds(config(*cpsl), 1)
    (gibbs,) = rounds(config(*cpsl, "options.cpsl.clustering=gibbs"), 1)
    assert gibbs.round_s <= random.round_s * (1 + 1e-12)


def test_subset_with_the_whole_sets_clock() -> None:
    (plain,) = rounds(config("fleet.cuts=2"), 1)
    (scaled,) = rounds(config("fleet.cuts=2", "network.sample_scale=10"), 1)
    for phase in ("smashed", "client_forward"):
        assert scaled.phase_s[phase] == pytest.approx(10 * plain.phase_s[phase])
    assert scaled.phase_s["model_up"] == pytest.approx(plain.phase_s["model_up"])


def test_position_path_loss() -> None:
    near_far = ["network.positions_m=[[1,0],[1,0],[1,0],[500,0]]", "network.noise_w=1e-12", "fleet.cuts=1"]
    (line,) = rounds(config(*near_far, "network.path_loss_exponent=3"), 1)
    assert line.phase_s["smashed"][3] > 2 * line.phase_s["smashed"][:3].max()
    with raises(InputError, "2 places", "4 clients"):
        prepare(config("network.positions_m=[[1,0],[1,0]]"))


def test_fleet_seed_draws_devices_and_channel_and_nothing_else() -> None:
    same, other = prepare(config("seed=4")), prepare(config("seed=4", "fleet.seed=9"))
    assert not np.array_equal(same.world.fleet.cpu_hz, other.world.fleet.cpu_hz)
    assert not np.array_equal(same.world.draw(0).main_gain, other.world.draw(0).main_gain)
    assert all(map(np.array_equal, same.task.feed.indices, other.task.feed.indices))
    assert (same.task.initial.floats == other.task.initial.floats).all()
    again = prepare(config("seed=5", "fleet.seed=4"))
    assert np.array_equal(again.world.fleet.cpu_hz, same.world.fleet.cpu_hz)
    assert np.array_equal(again.world.draw(3).edge_gain, same.world.draw(3).edge_gain)
    assert not np.array_equal(again.task.initial.floats, same.task.initial.floats)
