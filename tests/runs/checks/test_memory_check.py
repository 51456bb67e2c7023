"""A batch that the machine cannot hold is refused before training; whatever fits, or may fit, is not."""

from pathlib import Path

import pytest
from torch import nn

import hsfl
from hsfl.config import read_config
from hsfl.errors import InputError
from hsfl.formats import size
from hsfl.runs.checks import memory_check
from hsfl.runs.checks.memory_check import check_memory, num_updates_kept, updates_notes
from hsfl.runs.loop import train_run
from hsfl.runs.prepare import Bench, prepare
from hsfl.training.speed import free_memory_bits
from tests.naming import names, raises
from tests.small_runs import tiny

WIDE = ("data.image_size=64", "model.norm=group", "data.limit=48", "train.batch_size=16")


def memory(monkeypatch: pytest.MonkeyPatch, bits: float | None, free_bits: float | None = None) -> None:
    monkeypatch.setattr(memory_check, "machine_memory_bits", lambda: bits)
    monkeypatch.setattr(memory_check, "free_memory_bits", lambda: free_bits)


def table_bits(bench: Bench) -> float:
    """What `hsfl cost` says that a client needs for the whole model."""
    return float(bench.world.cost.memory_bits[-1])


def test_more_than_the_machine_has_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(*WIDE)
    memory(monkeypatch, table_bits(prepare(config)) / 2)
    with raises(InputError, "batches of 16", "MB", "train.batch_size", "smaller samples"):
        train_run(config, tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


def test_the_batch_that_is_named_fits_and_the_next_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = prepare(tiny(*WIDE))
    memory(monkeypatch, table_bits(bench) / 2)
    with pytest.raises(InputError) as caught:
        check_memory(bench, 1)
    fitting = int(str(caught.value).partition("train.batch_size to ")[2].split()[0])
    assert 1 <= fitting < 16
    check_memory(prepare(tiny(*WIDE, f"train.batch_size={fitting}")), 1)
    with raises(InputError, f"batches of {fitting + 1}"):
        check_memory(prepare(tiny(*WIDE, f"train.batch_size={fitting + 1}")), 1)


def test_a_model_that_does_not_fit_gets_no_advice_on_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = prepare(tiny(*WIDE))
    memory(monkeypatch, 8.0)
    with raises(InputError, "batches of one sample", "smaller model") as caught:
        check_memory(bench, 1)
    assert "set train.batch_size" not in str(caught.value)


def test_one_sample_is_said_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = prepare(tiny(*WIDE))
    sizes = [share / 1000 * table_bits(bench) for share in range(100, 1000)]

    def way_out(memory_bits: float) -> str:
        memory(monkeypatch, memory_bits)
        with pytest.raises(InputError) as caught:
            check_memory(bench, 1)
        return str(caught.value)

    assert any("train.batch_size to 1, or take" in way_out(bits) for bits in sizes)


def test_workers_need_it_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = prepare(tiny(*WIDE))
    memory(monkeypatch, 2 * table_bits(bench))
    check_memory(bench, 1)
    with raises(InputError, "3 workers", "engine.workers"):
        check_memory(bench, 3)
    check_memory(bench, 0)  # none of them on this machine


def test_more_than_is_free_now_goes_on_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = prepare(tiny(*WIDE))
    memory(monkeypatch, 4 * table_bits(bench), table_bits(bench) / 2)
    names(check_memory(bench, 1), "batches of 16", "are free now", "train.batch_size to")
    memory(monkeypatch, 4 * table_bits(bench), 2 * table_bits(bench))
    assert check_memory(bench, 1) is None


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="only Linux says what is free")
def test_this_machine_says_what_is_free() -> None:
    assert (free_memory_bits() or 0) > 8 * 2**20


@pytest.mark.parametrize(
    "changes",
    [
        ("train.batch_size=4096",),  # no client has so many samples
        ("framework=locfedmix_sl",),  # head and tail are not in memory together
    ],
)
def test_no_false_alarm(changes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, 1.3 * table_bits(prepare(tiny(*WIDE))))
    check_memory(prepare(tiny(*WIDE, *changes)), 1)


def test_a_system_that_does_not_say_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, None)
    check_memory(prepare(tiny()), 10**6)
    memory(monkeypatch, 8.0)
    with raises(InputError, "smaller model"):
        check_memory(prepare(tiny()), 1)


def test_frozen_weights_have_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    data = hsfl.dataset([[0.0] * 8, [1.0] * 8] * 4, [0, 1] * 4)
    frozen = nn.Sequential(nn.Linear(8, 4000), nn.Linear(4000, 500), nn.Linear(500, 2))
    config = read_config(None, ["data.name=own", "fleet.num_clients=2", "fleet.cuts=1", "data.min_samples=1"])
    weights_bits = sum(32 * p.numel() for p in frozen.parameters())
    memory(monkeypatch, 5 * weights_bits)
    trained = prepare(config, data, hsfl.split(frozen))
    with raises(InputError, "memory"):
        check_memory(trained, 1)  # three copies of the weights, two states and a gradient
    for parameter in frozen[1].parameters():
        parameter.requires_grad_(False)
    check_memory(prepare(config, data, hsfl.split(frozen)), 1)


def test_updates_that_are_kept_for_a_median_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three clients' whole models, once more where workers hand them over."""
    mean, median = prepare(tiny(*WIDE)), prepare(tiny(*WIDE, "train.average=median"))
    model_bits = 8 * mean.task.initial.num_bytes
    assert (num_updates_kept(mean.task.config, 4), updates_notes(mean)) == (0, [])
    assert [num_updates_kept(median.task.config, n) for n in (1, 4)] == [3, 6]
    (note,) = updates_notes(median)
    names(note, "train.average=median", size(3 * model_bits / 8), "3 times")
    memory(monkeypatch, table_bits(mean) + 1.5 * model_bits)
    check_memory(mean, 1)
    with raises(InputError, "memory"):
        check_memory(median, 1)
