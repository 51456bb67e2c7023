"""Runs whose models are tested and exported with estimated BatchNorm statistics: records, files, engines, clock and refusals."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hsfl.framework_table import METHODS
from hsfl.frameworks import find_framework
from hsfl.network.latency import Phases
from hsfl.network.norm_estimation_times import estimation_s
from hsfl.runs.export import evaluate_folder
from hsfl.runs.loop import make_clock, train_run
from hsfl.runs.prepare import prepare
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.studies.shared_training import take_over
from tests.naming import names
from tests.small_runs import numbers, read_strictly, refused, tiny, tiny_words

ESTIMATED = ("train.norm_statistics=estimated", "train.norm_batches=2")
SPARE = ("averaged", "estimation_s")


@pytest.mark.parametrize("framework", [*METHODS])
def test_both_accuracies_are_recorded_and_training_is_untouched(framework: str, tmp_path: Path) -> None:
    words = (f"framework={framework}", "train.eval_every=2")
    train_run(tiny(*words), tmp_path / "plain")
    train_run(tiny(*words, *ESTIMATED), tmp_path / "estimated")
    plain, estimated = numbers(tmp_path / "plain"), numbers(tmp_path / "estimated")
    assert [record["test_loss"] is None for record in estimated] == [True, False, False]
    for before, after in zip(plain, estimated):
        assert after["train_loss"] == before["train_loss"]  # the statistics are never trained on
        assert not set(SPARE) & set(before)
        if after["test_loss"] is None:
            assert not set(SPARE) & set(after)
            assert after["round_s"] == before["round_s"]
            assert after["bytes"] == before["bytes"]
        else:
            assert after["averaged"] == {name: before[name] for name in after["averaged"]}
            assert after["test_loss"] != before["test_loss"]
            assert after["round_s"] == pytest.approx(before["round_s"] + after["estimation_s"])
            assert after["estimation_s"] > 0
            grows = framework not in ("cl", "fl")
            assert (after["bytes"]["client_main_up"] > before["bytes"]["client_main_up"]) == grows
            assert (after["bytes"]["client_edge_up"] > before["bytes"]["client_edge_up"]) == (framework != "cl")
    for one, two in pairwise(estimated):
        assert two["sim_time_s"] == pytest.approx(one["sim_time_s"] + two["round_s"])
    assert [r.averaged is None for r in RunFolder(tmp_path / "estimated").rounds()] == [True, False, False]
    for name in ("plain", "estimated"):
        header = (tmp_path / name / "rounds.csv").read_text().splitlines()[0]
        assert ("averaged_test_accuracy" in header) == (name == "estimated")
    quality, _ = evaluate_folder(tmp_path / "estimated")  # the exported model is the one that was tested
    assert quality.loss == pytest.approx(estimated[-1]["test_loss"], rel=1e-6)


def test_workers_estimate_the_same_bits(tmp_path: Path) -> None:
    train_run(tiny(*ESTIMATED), tmp_path / "inline")
    train_run(tiny(*ESTIMATED, "engine.name=workers", "engine.workers=2", "engine.threads=1"), tmp_path / "workers")
    assert numbers(tmp_path / "inline") == numbers(tmp_path / "workers")
    left, right = (load_file(tmp_path / name / "model.safetensors") for name in ("inline", "workers"))
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_run_that_goes_on_gives_the_same_records_and_models(tmp_path: Path) -> None:
    words = (*ESTIMATED, "train.eval_every=2", "train.rounds=4", "log.model_every=1")
    train_run(tiny(*words), tmp_path / "whole")
    train_run(tiny(*words, "train.rounds=2"), tmp_path / "parts")
    train_run(tiny(*words), tmp_path / "parts", resume=True)
    assert numbers(tmp_path / "whole") == numbers(tmp_path / "parts")
    for name in ("model.safetensors", "models/round-3.safetensors"):  # round 3 was not tested
        left, right = (load_file(tmp_path / folder / name) for folder in ("whole", "parts"))
        assert all(torch.equal(left[key], right[key]) for key in left)
    plain = tiny("train.eval_every=2", "train.rounds=4", "log.model_every=1")
    train_run(plain, tmp_path / "plain")
    left, right = (load_file(tmp_path / folder / "models/round-3.safetensors") for folder in ("whole", "plain"))
    differ = {name for name in left if not torch.equal(left[name], right[name])}
    assert differ == {name for name in left if name.endswith(("running_mean", "running_var"))}


def test_the_budget_counts_the_estimation(tmp_path: Path) -> None:
    config = tiny(*ESTIMATED, "train.rounds=3", "train.eval_every=100")
    bench = prepare(config)
    clock = make_clock(bench, find_framework("hsfl")(bench.task))
    ends_s = clock.plain_s(0) + clock.full_s(1)  # the second round is tested, where the budget makes it the last
    with_s = tiny(*ESTIMATED, "train.rounds=3", "train.eval_every=100", f"train.budget_s={ends_s * 1.000001}")
    without_s = tiny(*ESTIMATED, "train.rounds=3", "train.eval_every=100", f"train.budget_s={ends_s * 0.999999}")
    assert [train_run(with_s, tmp_path / "fits").rounds, train_run(without_s, tmp_path / "short").rounds] == [2, 1]
    for name in ("fits", "short"):
        records = read_strictly(tmp_path / name / "rounds.jsonl")
        assert records[-1]["test_loss"] is not None
        assert records[-1]["sim_time_s"] <= ends_s


def test_the_clock_charges_forward_passes_smashed_data_and_moments(tmp_path: Path) -> None:
    """HSFL: max over clients of N (F + U + S) + H, from the phases of the round, of which the record has N' times as much."""
    config = tiny(*ESTIMATED, "fleet.num_clients=3")
    bench = prepare(config)
    framework = find_framework("hsfl")(bench.task)
    clock = make_clock(bench, framework)
    line, _ = clock.round(0, (0, 1, 2))
    batches = bench.num_samples / config.train.batch_size
    sent = [min(2.0, n) for n in batches]
    forward = sum(line.phase_s[phase] for phase in ("client_forward", "smashed", "server_forward")) / batches
    heads = [8 * bench.task.initial[0:cut].num_bytes for cut in framework.cuts]
    moments = [clock.extras.moment_bits[cut] for cut in framework.cuts]
    uploads = [moment / head * up for moment, head, up in zip(moments, heads, line.phase_s["model_up"])]
    each_s = [n * f + up for n, f, up in zip(sent, forward, uploads)]
    assert clock.estimation_s(0, (0, 1, 2)) == pytest.approx(max(each_s), rel=1e-9)
    assert min(moments) > 0


def test_frameworks_that_learn_alike_take_over_both_accuracies(tmp_path: Path) -> None:
    words = (*ESTIMATED, "train.rounds=2", "fleet.cuts=[1, 2, 5]", "fleet.one_cut=2")
    alike = tiny(*words, "framework=splitfed_v1")
    train_run(tiny(*words), tmp_path / "trained")
    train_run(alike, tmp_path / "alone")
    take_over(tmp_path / "trained", alike, tmp_path / "taken")
    taken, alone = (read_strictly(tmp_path / name / "rounds.jsonl") for name in ("taken", "alone"))
    assert len(taken) == len(alone) == 2
    for left, right in zip(taken, alone):
        for name in ("bytes", "round_s", *SPARE):
            assert left[name] == pytest.approx(right[name], rel=1e-6), name


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("framework=fsl", "options.fsl.average=server"), "clients keep heads"),
        (("framework=psl", "options.psl.cut_gradient=true"), "clients keep heads"),
        (("model.norm=group",), "no BatchNorm"),
        (("model.name=mlp", "fleet.cuts=1"), "no BatchNorm"),
    ],
)
def test_what_cannot_estimate_is_refused(words: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    names(refused("run", *tiny_words(*words, ESTIMATED[0]), "--out", tmp_path / "run"), reason)
    assert not (tmp_path / "run").exists()


def test_a_number_of_batches_without_an_estimation_is_refused(tmp_path: Path) -> None:
    names(
        refused("run", *tiny_words("train.norm_batches=2"), "--out", tmp_path / "run"),
        "train.norm_batches = 2",
        "no effect",
    )


RATES = {"main_up": 1e6, "main_down": 2e6, "edge_up": 3e6, "edge_down": 5e6}


@pytest.mark.parametrize("label", [*METHODS, "cpsl,options.cpsl.clusters=1"])
def test_what_one_client_sends_for_an_estimation_takes_its_seconds(label: str) -> None:
    """With speeds so high that computing takes nothing, bits over rates are the seconds; training counts bytes, the clock bits."""
    framework, *options = label.split(",")
    words = ["network.kind=measured", *(f"network.{link}_bps={bps}" for link, bps in RATES.items())]
    words += ["fleet.cpu_hz=[1e29, 1e29]", "network.main_hz=1e29", "fleet.num_clients=1", "fleet.cuts=2", *options]
    bench = prepare(tiny(f"framework={framework}", *words, *ESTIMATED))
    algorithm = find_framework(framework)(bench.task)
    sent = algorithm.norm_moments(bench.task.initial, [0], 0).bytes
    sent.merge(algorithm.norm_swapped())
    assert sent.edge_main == sent.client_main_down == 0
    bits_s = [8 * getattr(sent, f"client_{link}") / bps for link, bps in RATES.items()]
    charged_s = make_clock(bench, algorithm).estimation_s(0, (0,))
    assert charged_s == pytest.approx(sum(bits_s), rel=1e-6, abs=1e-12)
    assert (charged_s > 1e-6) == (framework != "cl")


def test_turns_add_up_and_a_whole_server_serves_one_after_another() -> None:
    """Three clients, by hand: F + U = 1, 2, 3, S = 10, 20, 30, H = 0.1, 0.2, 0.3, M = 5, 6, 7, one batch each."""
    of = np.array
    none = np.zeros(3)
    forward, server, up, down = of([0.5, 1, 1.5]), of([10.0, 20, 30]), of([1.0, 2, 3]), of([5.0, 6, 7])
    phases = Phases(forward, forward, server, none, none, none, up, down)
    part, kept, one = of([0.1, 0.1, 0.1]), np.arange(3), np.ones(3)

    def seconds_of(name: str, clusters: np.ndarray | None = None, who: np.ndarray = kept) -> float:
        return estimation_s(METHODS[name].timing, phases, one, part, who, clusters)

    assert seconds_of("hsfl") == pytest.approx(33.3)
    assert seconds_of("hsfl", who=of([0, 1])) == pytest.approx(22.2)
    assert seconds_of("splitfed_v2") == pytest.approx(3 + 60 + 0.3)
    assert seconds_of("sl") == pytest.approx(18 + 6 + 60 + 0.6)
    assert seconds_of("cpsl", of([0, 1, 0])) == pytest.approx((7 + 3 + 40 + 0.3) + (6 + 2 + 20 + 0.2))
    assert seconds_of("cl") == pytest.approx(60)
    assert seconds_of("hsfl", who=np.empty(0, int)) == seconds_of("sl", who=np.empty(0, int)) == 0


def test_nobody_kept_leaves_the_averaged_statistics(tmp_path: Path) -> None:
    train_run(tiny(*ESTIMATED, "train.drop_rate=1", "train.rounds=1"), tmp_path / "nobody")
    (record,) = read_strictly(tmp_path / "nobody" / "rounds.jsonl")
    assert record["averaged"]["test_loss"] == record["test_loss"]
    assert record["estimation_s"] == 0
