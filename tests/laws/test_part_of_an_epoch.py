"""Laws of rounds that are a part of an epoch: what is trained is what is charged, whoever trains it and wherever it goes on."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from hsfl.errors import InputError
from hsfl.framework_table import METHODS
from hsfl.frameworks import find_framework
from hsfl.runs import loop
from hsfl.runs.loop import make_clock
from hsfl.runs.prepare import prepare
from hsfl.runs.studies.shared_training import round_bytes
from tests.laws.bench import assert_same, make_task, train
from tests.small_runs import read_strictly, tiny

ROUNDS = [[0, 1, 2], [0, 2], [0, 1, 2], [1], [0, 1, 2]]  # with clients that miss rounds in the middle of a pass


@pytest.mark.parametrize("epochs", [0.2, 0.4, 1.5])
def test_a_cut_changes_no_number(epochs: float) -> None:
    """HSFL = SplitFed V1 = FL, with 5, 2 and 9 batches a pass, a smaller last batch, and clients that are dropped."""
    task = make_task([1, 3, 5], [19, 6, 34], local_epochs=epochs, optimizer="adam", dropout=0.3)
    whole, losses, _ = train(task, "fl", ROUNDS)
    for other in ("hsfl", "splitfed_v1"):
        model, their_losses, _ = train(task, other, ROUNDS)
        assert_same(model, whole)
        assert their_losses == pytest.approx(losses)
    assert (whole.floats - task.initial.floats).abs().max() > 1e-3


@pytest.mark.parametrize("framework", sorted(METHODS))
def test_the_clock_charges_what_is_trained(framework: str) -> None:
    """Round by round, and the plan charges the mean over whole passes. PSL's batches are whole numbers, the clock's are not."""
    config = tiny(
        f"framework={framework}", "train.local_epochs=0.3", "data.partition=quantity_skew", "train.batch_size=4"
    )
    bench = prepare(config)
    algorithm = find_framework(framework)(bench.task)
    clock, state, trained = make_clock(bench, algorithm), algorithm.init(), []
    for round_index in range(6):
        state, result = algorithm.round(state, [0, 1, 2], round_index)
        job = clock.dealt(round_index, (0, 1, 2)).job
        charged = float(np.sum(np.asarray(job.batch_size) * job.num_batches))
        trained.append(result.num_samples)
        assert charged == pytest.approx(result.num_samples, rel=0.3 if framework == "psl" else 1e-9)
    assert sum(trained) < 0.4 * 6 * 60  # the fraction was not lost
    if framework not in ("psl", "cl"):
        assert len(set(trained)) > 1  # a smaller last batch falls into some of the rounds


def test_bytes_by_sizes_are_bytes_as_sent() -> None:
    bench = prepare(tiny("train.local_epochs=0.3", "data.partition=quantity_skew", "train.batch_size=4"))
    algorithm = find_framework("hsfl")(bench.task)
    state = algorithm.init()
    for round_index, kept in enumerate(ROUNDS):
        state, result = algorithm.round(state, kept, round_index)
        assert asdict(round_bytes(bench, algorithm.cuts, round_index, kept, kept)) == asdict(result.bytes)


@pytest.mark.parametrize("framework", ["hsfl", "splitfed_v2", "sl"])
def test_a_run_goes_on_in_the_middle_of_a_pass(framework: str, tmp_path: Path) -> None:
    """Three rounds of 0.4, then three more: the same bits as six at once."""
    config = tiny(f"framework={framework}", "train.local_epochs=0.4", "train.rounds=6", "fleet.cuts=2")
    loop.train_run(config, tmp_path / "whole")
    loop.train_run(
        config.model_copy(update={"train": config.train.model_copy(update={"rounds": 3})}), tmp_path / "halves"
    )
    loop.train_run(config, tmp_path / "halves", resume=True)
    whole, halves = (read_strictly(tmp_path / name / "rounds.jsonl") for name in ("whole", "halves"))
    assert [round["train_loss"] for round in halves] == [round["train_loss"] for round in whole]
    assert (tmp_path / "halves/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_workers_train_the_same_parts_of_passes(tmp_path: Path) -> None:
    changes = ("train.local_epochs=0.4", "train.rounds=4")
    loop.train_run(tiny(*changes), tmp_path / "inline")
    loop.train_run(tiny(*changes, "engine.name=workers", "engine.workers=2"), tmp_path / "workers")
    inline, workers = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("inline", "workers"))
    assert inline == workers


@pytest.mark.parametrize("wrong", ["0", "-0.2", "nan", "inf", "20000", "'half'"])
def test_epochs_that_make_no_sense_are_refused(wrong: str) -> None:
    with pytest.raises(InputError, match=r"train\.local_epochs"):
        tiny(f"train.local_epochs={wrong}")
