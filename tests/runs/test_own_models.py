"""Any list of modules trains: heads without weights, tails that begin in place, units that draw."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hsfl
from hsfl.errors import InputError
from hsfl.models.units import SplitModel
from hsfl.runs.loop import train_run
from hsfl.runs.run_folder.folder import RunFolder
from tests.naming import names, raises
from tests.small_runs import TINY, refused, tiny


class Noisy(nn.Module):
    """Draws without being an nn.Dropout."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, self.training)


def model() -> SplitModel:
    torch.manual_seed(0)
    tail = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True), Noisy(), nn.Linear(16, 10))
    return SplitModel([nn.Flatten(), nn.Sequential(nn.Linear(64, 16)), tail])


@pytest.mark.parametrize("framework", ["hsfl", "sl", "splitfed_v2", "psl", "cpsl", "locfedmix_sl"])
@pytest.mark.parametrize("cut", [1, 2])
def test_odd_units_train(framework: str, cut: int, tmp_path: Path) -> None:
    summary = train_run(
        tiny(f"framework={framework}", f"fleet.cuts={cut}", "train.rounds=1"), tmp_path / "run", model=model()
    )
    assert summary.status == "finished"


def test_same_bits_whatever_was_drawn_before(tmp_path: Path) -> None:
    files = []
    for seed in (1, 2):
        first = model()
        torch.manual_seed(seed)
        torch.rand(seed)
        train_run(tiny("fleet.cuts=2", "train.rounds=1"), tmp_path / str(seed), model=first)
        files.append((tmp_path / str(seed) / "model.safetensors").read_bytes())
    assert files[0] == files[1]


def test_the_cut_changes_nothing_for_them_either(tmp_path: Path) -> None:
    losses = [
        train_run(tiny(f"fleet.cuts={cut}", "train.rounds=2"), tmp_path / str(cut), model=model()) for cut in (1, 2, 3)
    ]
    assert len({round(summary.test_accuracy or 0, 6) for summary in losses}) == 1


def test_the_callers_model_is_left_alone(tmp_path: Path) -> None:
    mine = model()
    before = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
    train_run(tiny("fleet.cuts=2", "train.rounds=1"), tmp_path / "run", model=mine)
    assert all(torch.equal(before[name], tensor) for name, tensor in mine.state_dict().items())


def test_buffers_that_cannot_be_averaged_are_named(tmp_path: Path) -> None:
    odd = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    odd.register_buffer("mask", torch.ones(3, dtype=torch.bool))
    with pytest.raises(InputError, match=r"0\.mask is torch\.bool"):
        train_run(tiny("fleet.cuts=1"), tmp_path / "run", model=SplitModel([odd]))


def test_commands_say_that_they_do_not_know_the_model(tmp_path: Path) -> None:
    train_run(tiny("fleet.cuts=2", "train.rounds=1"), tmp_path / "run", model=model())
    names(refused("evaluate", tmp_path / "run"), "from Python")
    names(refused("run", tmp_path / "run/config.json", "--out", tmp_path / "again"), "from Python")
    assert not (tmp_path / "again").exists()
    more = train_run(tiny("fleet.cuts=2", "train.rounds=2"), tmp_path / "run", resume=True, model=model())
    assert more.rounds == 2


def test_too_few_outputs_are_refused(tmp_path: Path) -> None:
    narrow = SplitModel([nn.Sequential(nn.Flatten(), nn.Linear(64, 3))])
    with raises(InputError, "(3,)", "10 classes"):
        train_run(tiny("fleet.cuts=1"), tmp_path / "run", model=narrow)
    assert not (tmp_path / "run").exists()


def test_a_given_model_takes_a_memory_format(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    hsfl.run(
        None, folder, [*TINY, "fleet.cuts=2", "train.rounds=1", "model.memory_format=channels_last"], model=model()
    )
    assert RunFolder(folder).config().model.memory_format == "channels_last"
