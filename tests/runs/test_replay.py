"""`hsfl replay`: a run agrees with itself, whatever its framework; a changed number or tensor is named; what is not there is told."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hsfl.config import read_config
from hsfl.runs import loop
from hsfl.runs.replay import replay_run, same_bits
from hsfl.runs.run_folder.checkpoint import save_tensors
from tests.naming import names
from tests.small_runs import hsfl, read_strictly, refused, tiny, tiny_words


@pytest.fixture(scope="module")
def dropping(tmp_path_factory):
    """A run that loses a client in some rounds and keeps the model of every round."""
    folder = tmp_path_factory.mktemp("replay") / "run"
    loop.train_run(tiny("train.drop_rate=0.4", "log.model_every=1", "seed=3"), folder)
    return folder


@pytest.fixture
def copied_run(dropping, tmp_path):
    return shutil.copytree(dropping, tmp_path / "run")


def change_line(folder, number, **fields):
    """Change a round's record. number: 1, 2, ..."""
    lines = read_strictly(folder / "rounds.jsonl")
    lines[number - 1] |= fields
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def change_tensor(path, name):
    tensors = load_file(path)
    tensors[name].view(-1)[0] += 0.5
    save_tensors(path, tensors)


def test_a_run_agrees_with_itself(dropping):
    kept = [line["kept"] for line in read_strictly(dropping / "rounds.jsonl")]
    assert min(map(len, kept)) < 3, "nobody was dropped: choose another seed"
    answer = hsfl("replay", dropping, "--json")
    report = answer.json()
    assert (answer.code, report["agrees"], report["rounds"], report["unchecked"]) == (0, True, 3, [])
    for part in ("train_loss", "test_loss", "model.safetensors after round 3", "model-best", "round-1.safetensors"):
        assert any(part in sentence for sentence in report["checked"]), part


def test_threads_are_as_before_afterwards(dropping):
    before = torch.get_num_threads()
    replay_run(dropping)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    "changes",
    [
        ("framework=splitfed_v1", "fleet.cuts=2"),
        ("framework=sl",),
        ("train.norm_statistics=estimated", "train.eval_every=2"),
        pytest.param(("framework=psl", "train.clients_per_round=2"), marks=pytest.mark.slow),
        pytest.param(("framework=fsl", "options.fsl.average=server"), marks=pytest.mark.slow),
        pytest.param(("framework=cpsl",), marks=pytest.mark.slow),
        pytest.param(
            ("train.choose=samples", "train.clients_per_round=2", "train.eval_every=3"), marks=pytest.mark.slow
        ),
    ],
)
def test_other_frameworks_and_settings_agree_too(tmp_path, changes):
    loop.train_run(tiny("train.rounds=2", *changes), tmp_path / "run")
    report = replay_run(tmp_path / "run")
    assert report.agrees, report
    assert report.unchecked == []


def test_a_changed_loss_is_named(copied_run):
    change_line(copied_run, 2, train_loss=0.25)
    answer = hsfl("replay", copied_run)
    assert answer.code == 1
    names(answer.out, "the bits differ", "round 2", "train_loss was 0.25")


def test_a_changed_client_is_named_by_the_round_and_the_tensor(copied_run):
    """A round that kept somebody else than its record says: its loss differs, and so does the model that was stored after it."""
    kept = read_strictly(copied_run / "rounds.jsonl")[1]["kept"]
    change_line(copied_run, 2, kept=[client for client in range(3) if client not in kept] or [0])
    report = replay_run(copied_run)
    assert not report.agrees
    assert report.first_round.round == report.first_tensor.round == 2
    assert report.first_tensor.file == "round-2.safetensors"


def test_a_changed_tensor_is_named(copied_run):
    change_tensor(copied_run / "models" / "round-2.safetensors", "dense.linear.bias")
    report = replay_run(copied_run)
    assert report.first_round is None
    tensor = report.first_tensor
    assert (tensor.round, tensor.file, tensor.tensor) == (2, "round-2.safetensors", "dense.linear.bias")
    assert tensor.largest == pytest.approx(0.5)
    assert hsfl("replay", copied_run).code == 1


def test_bits_are_compared_and_not_numbers():
    zero, number = torch.zeros(2), torch.tensor([float("nan"), 1.0])
    assert same_bits(number, number.clone())
    for left, right in ((zero, -zero), (zero, zero.double()), (zero, zero[:1]), (None, zero), (zero, None)):
        assert not same_bits(left, right)


def test_a_run_that_has_not_ended_is_checked_as_far_as_it_is(copied_run):
    for name in ("model.safetensors", "summary.json"):
        (copied_run / name).unlink()
    report = replay_run(copied_run)
    assert report.agrees
    names(report.unchecked[0], "final model", "when the run ends")


def test_a_run_that_was_resumed_after_its_model_was_written(copied_run):
    """The model is of the round at which the run stopped first; later rounds are in the records alone."""
    summary = json.loads((copied_run / "summary.json").read_text())
    (copied_run / "summary.json").write_text(json.dumps(summary | {"rounds": 2}))
    shutil.copy(copied_run / "models" / "round-2.safetensors", copied_run / "model.safetensors")
    assert replay_run(copied_run).agrees


def data_of_three(folder, shift=0):
    x = np.random.default_rng(0).integers(0, 255, (60, 1, 8, 8)).astype(np.uint8)
    np.savez(folder / "x.npz", x=x, y=(np.arange(60) + shift) % 10)
    return f"npz:{folder / 'x.npz'}"


def test_data_that_are_gone_leave_the_models_untested_too(tmp_path):
    name = data_of_three(tmp_path)
    loop.train_run(read_config(None, [*tiny_words(f"data.name={name}", "train.rounds=1")[1::2]]), tmp_path / "run")
    (tmp_path / "x.npz").unlink()
    answer = hsfl("replay", tmp_path / "run", "--json")
    assert (answer.code, answer.json()["agrees"], answer.json()["checked"]) == (2, None, [])
    assert len(answer.json()["unchecked"]) == 3  # the rounds, and both models


def test_devices_with_data_of_their_own_leave_the_stored_models_to_be_tested(copied_run):
    """As where each device of a real fleet holds samples of its own and the operator holds the test samples."""
    clients = json.loads((copied_run / "clients.json").read_text())
    clients["num_samples"][1] += 1
    clients["names"] = ["ada", "bo", "cy"]
    (copied_run / "clients.json").write_text(json.dumps(clients))
    report = replay_run(copied_run)
    assert report.agrees
    assert report.rounds == 0
    names(report.unchecked[0], "bo trained on", "data of their own")
    assert any("model.safetensors on the test samples" in sentence for sentence in report.checked)
    change_tensor(copied_run / "model.safetensors", "dense.linear.bias")
    report = replay_run(copied_run)
    assert not report.agrees
    assert report.first_round.quantity == "test_loss"


def test_folders_without_a_run_are_refused(tmp_path):
    names(refused("replay", tmp_path), str(tmp_path), "holds no run", "hsfl run")


def test_a_replay_counts_clients_as_the_servers_did(copied_run):
    """The weights in a record stand for the samples: the same numbers change no bit, a client that counts half changes the model."""
    samples = read_strictly(copied_run / "clients.json")[0]["num_samples"]
    for number in (1, 2, 3):
        change_line(copied_run, number, weights=samples)
    assert replay_run(copied_run).agrees
    change_line(copied_run, 2, weights=[max(1, samples[0] // 2), *samples[1:]])
    report = replay_run(copied_run)
    assert (report.agrees, report.first_tensor.round) == (False, 2)
