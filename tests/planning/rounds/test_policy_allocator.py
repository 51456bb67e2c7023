"""Policies in a run: planned cuts once, an allocation with its proven gap every round."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hsfl.allocation.answer import evaluate_allocation
from hsfl.allocation.policies import policy
from hsfl.config import RunConfig, read_config
from hsfl.errors import InputError
from hsfl.frameworks import find_framework
from hsfl.planning.policy_cuts import cut_request, sampled_scenarios
from hsfl.planning.rounds.participation import CutTask, choose_clients
from hsfl.planning.rounds.policy_allocator import policy_notes
from hsfl.planning.world import scenario_of_round
from hsfl.runs.loop import make_clock, train_run
from hsfl.runs.prepare import prepare
from hsfl.runs.run_folder.folder import RunFolder
from tests.naming import names, raises
from tests.small_runs import PLAIN

WORDS = [*PLAIN, "model.name=mlp", "data.limit=120", "data.limit_test=40", "fleet.num_clients=4", "train.batch_size=8"]
WORDS += ["network.num_subchannels=6", "allocation.samples=3", "train.rounds=2"]


def config(*words: str) -> RunConfig:
    return read_config(None, [*WORDS, *words])


def rounds(settings: RunConfig, count: int = 2):  # type: ignore[no-untyped-def]
    bench = prepare(settings)
    pace = make_clock(bench, find_framework(settings.framework)(bench.task))
    return [pace.round(r, choose_clients(settings, r)) for r in range(count)]


def test_the_clock_charges_what_the_policy_allocated() -> None:
    settings = config("allocation.policy=proposed", "fleet.cuts=[1,2,3,2]")
    bench = prepare(settings)
    num_batches = bench.num_samples / 8
    for index, (line, says) in enumerate(rounds(settings)):
        here = scenario_of_round(bench.world, bench.world.draw(index), 8, num_batches, None, "auto")
        answer = policy("proposed").allocate(here, np.array(bench.task.cuts))
        assert line.round_s == pytest.approx(answer.round_s, rel=1e-9)
        assert line.round_s == pytest.approx(evaluate_allocation(here, answer)[1], rel=1e-9)
        assert says["lower_bound_s"] <= line.round_s * (1 + 1e-9)
        assert 0 <= says["gap"] <= 1e-3 + 1e-9
        assert says["status"] == "optimal"
        assert sorted(set(says["owner"]) - {-1}) == [k for k in range(4) if k in says["owner"]]


def test_optimal_is_never_slower_than_even_or_a_rule() -> None:
    cuts = "fleet.cuts=[1,2,3,2]"
    (best, _), *_ = rounds(config("allocation.policy=proposed", cuts), 1)
    for other in ("even", "ecfa", "gtra", "etra", "ecfa+gtra+etra"):
        (line, _), *_ = rounds(config(f"allocation.policy={other}", cuts), 1)
        assert best.round_s <= line.round_s * (1 + 1e-3)


def test_planned_cuts_beat_others_on_the_planned_samples() -> None:
    settings = config("allocation.policy=proposed", "fleet.cuts=planned")
    bench = prepare(settings)
    assert all(1 <= cut <= most for cut, most in zip(bench.task.cuts, bench.world.fleet.max_cut))
    planned = sampled_scenarios(CutTask(settings, bench.world, bench.num_samples / 8))

    def mean_s(cuts: tuple[int, ...]) -> float:
        return float(np.mean([policy("proposed").allocate(s, np.array(cuts)).round_s for s in planned]))

    best = mean_s(bench.task.cuts)
    for other in ((1, 1, 1, 1), (2, 2, 2, 2), tuple(bench.world.fleet.max_cut)):
        assert best <= mean_s(other) * 1.002
    assert prepare(config("allocation.policy=scls", "fleet.cuts=planned")).task.cuts == (3, 3, 3, 3)


def test_records_keep_the_gap_and_every_framework_runs_under_a_policy(tmp_path: Path) -> None:
    for framework in ("hsfl", "fl", "splitfed_v1", "sl"):
        train_run(
            config(f"framework={framework}", "allocation.policy=proposed", "train.rounds=1"), tmp_path / framework
        )
        (record,) = RunFolder(tmp_path / framework).rounds()
        if framework == "sl":  # takes turns, so each has everything
            assert record.allocation == {"policy": "even"}
        else:
            assert record.allocation["gap"] <= 1e-3 + 1e-9


def test_a_planned_drop_costs_no_waiting(tmp_path: Path) -> None:
    """tau that the slowest client cannot meet however much it gets: it sits out, and the round ends before tau."""
    slow = ["fleet.cpu_floor_hz=1e7", "fleet.cpu_hz=[1e7,1e10]", "allocation.policy=proposed", "fleet.cuts=3"]
    (line, _), *_ = rounds(config(*slow), 1)
    tau_s = 0.5 * line.round_s
    (tight, says), *_ = rounds(config(*slow, f"train.tau_s={tau_s}"), 1)
    assert says["status"] == "dropped"
    assert not tight.kept.all()
    assert not tight.dropped.any()  # planned, so nobody was cut off while working
    assert tight.finish_s.max() <= tau_s * (1 + 1e-9)


def test_more_clients_than_subchannels_share_bands() -> None:
    (line, says), *_ = rounds(config("allocation.policy=proposed", "network.num_subchannels=2", "fleet.cuts=2"), 1)
    assert sum(says["share"]) == pytest.approx(2, rel=0.02)
    assert np.isfinite(line.round_s)


def test_clients_that_are_not_chosen_get_nothing() -> None:
    settings = config("allocation.policy=proposed", "fleet.cuts=2", "train.clients_per_round=2")
    for line, says in rounds(settings):
        off = ~line.started
        assert off.sum() == 2
        assert np.array(says["server_hz"])[off].sum() == 0
        assert all(line.started[k] for k in says["owner"] if k >= 0)
        assert (line.phase_s["model_down"] > 0).all()  # but everyone gets the new model


def test_wrong_words() -> None:
    with raises(InputError, "policy 'best'", "choose one of", "allocation.policy", "auto", "own"):
        rounds(config("allocation.policy=best"))


MEASURED = [
    "network.kind=measured",
    "network.server=shares",
    "network.main_up_bps=[1e6,2e6,4e6,8e6]",
    "network.main_down_bps=1e7",
]
MEASURED += ["network.main_hz=1e7"]  # a server that matters


def test_measured_links_end_everyone_together() -> None:
    """All who need the server end at one time, with all of its cycles spent: nothing is left to move."""
    settings = config(*MEASURED, "allocation.policy=proposed", "fleet.cuts=[1,2,2,1]")
    even = rounds(config(*MEASURED, "fleet.cuts=[1,2,2,1]"))
    for (line, says), (shared_evenly, _) in zip(rounds(settings), even, strict=True):
        assert says["status"] == "optimal"
        assert says["gap"] == 0
        assert says["lower_bound_s"] == pytest.approx(line.round_s, rel=1e-9)
        assert sum(says["server_hz"]) == pytest.approx(1e7, rel=1e-12)
        np.testing.assert_allclose(line.finish_s, line.finish_s.max(), rtol=1e-9)
        assert line.round_s < 0.999 * shared_evenly.round_s


def test_rules_on_measured_links() -> None:
    cuts = "fleet.cuts=[1,2,2,1]"
    (even, _), *_ = rounds(config(*MEASURED, cuts), 1)
    (best, _), *_ = rounds(config(*MEASURED, "allocation.policy=proposed", cuts), 1)
    (ruled, says), *_ = rounds(config(*MEASURED, "allocation.policy=ecfa", cuts), 1)
    assert ruled.round_s == pytest.approx(even.round_s, rel=1e-12)
    assert says["status"] == "heuristic"
    assert says["lower_bound_s"] == pytest.approx(best.round_s, rel=1e-9)
    assert says["gap"] == pytest.approx(1 - best.round_s / even.round_s, rel=1e-9)
    (greedy, _), *_ = rounds(config(*MEASURED, "allocation.policy=gtra+etra", cuts), 1)
    assert greedy.round_s == best.round_s  # no subchannels, no power: nothing to rule


@pytest.mark.parametrize("name", ["proposed", "ecfa"])
def test_tau_on_measured_links(name: str) -> None:
    """Those kept finish in time, nobody is cut off while working, and nobody else could have joined them."""
    words = [*MEASURED, f"allocation.policy={name}", "fleet.cuts=2"]
    (free, _), *_ = rounds(config(*words), 1)
    tau_s = 0.6 * float(free.finish_s.max())
    (line, says), *_ = rounds(config(*words, f"train.tau_s={tau_s}"), 1)
    assert says["status"] == "dropped"
    assert 0 < line.kept.sum() < 4
    assert not line.dropped.any()
    assert line.finish_s.max() <= tau_s * (1 + 1e-9)
    assert np.array(says["server_hz"])[~line.kept].sum() == 0
    assert says["lower_bound_s"] <= line.round_s * (1 + 1e-9)
    assert (line.phase_s["model_down"] > 0).all()
    if name == "proposed":
        own_s = line.finish_s - line.phase_s["server_forward"] - line.phase_s["server_backward"]
        need_hz = line.phase_s["server_forward"] + line.phase_s["server_backward"]
        need_hz = need_hz * says["server_hz"] / np.where(line.kept, tau_s - own_s, 1.0)
        assert need_hz.sum() <= 1e7 * (1 + 1e-9)
    (late, says), *_ = rounds(config(*words, "train.tau_s=1e-9"), 1)
    assert not late.kept.any()
    assert late.round_s == late.phase_s["model_down"].max()


def test_planned_cuts_on_measured_links() -> None:
    bench = prepare(config(*MEASURED, "allocation.policy=proposed", "fleet.cuts=planned"))
    sampled = cut_request(CutTask(bench.task.config, bench.world, bench.num_samples / 8)).rounds
    assert sampled is not None
    mean_s = {cuts: float(sampled.mean_s(np.array([cuts]))[0]) for cuts in product((1, 2, 3), repeat=4)}
    assert mean_s[bench.task.cuts] <= min(mean_s.values()) * (1 + 1e-3)
    assert prepare(config(*MEASURED, "allocation.policy=scls", "fleet.cuts=planned")).task.cuts == (3, 3, 3, 3)


def test_measured_links_run_under_a_policy(tmp_path: Path) -> None:
    for framework in ("hsfl", "fl", "splitfed_v1"):
        words = [*MEASURED, f"framework={framework}", "allocation.policy=proposed", "train.clients_per_round=3"]
        train_run(config(*words, "fleet.cuts=2"), tmp_path / framework)
        for record in RunFolder(tmp_path / framework).rounds():
            assert record.allocation["gap"] == 0
            assert sum(hz > 0 for hz in record.allocation["server_hz"]) == (0 if framework == "fl" else 3)


def test_a_run_says_what_its_policy_does_not_do() -> None:
    assert policy_notes(config("allocation.policy=even")) == []
    assert policy_notes(config("allocation.policy=own", "framework=sl")) == []
    assert policy_notes(config("allocation.policy=proposed", "fleet.cuts=planned")) == []
    names(policy_notes(config("allocation.policy=proposed", "framework=sl"))[0], "even allocation")
    assert policy_notes(config("allocation.policy=proposed", "framework=fsl")) == []  # its own servers are what FSL is
    assert "fleet.cuts=planned" in policy_notes(config("allocation.policy=proposed", "fleet.cuts=max_cut"))[0]
