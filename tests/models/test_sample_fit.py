"""Whether a model takes the data is said before a run, in words that name the cause."""

import pytest
import torch
from torch import Tensor, nn

import hsfl
from hsfl.errors import InputError
from hsfl.models.sample_fit import check_fits, check_weights


class Net(nn.Module):
    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 4), nn.Linear(4, outputs)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.first(x).relu()
        return self.last(x if mask is None else x * mask)


X, MASK = torch.zeros(2, 6), torch.ones(2, 1)


def test_samples_of_another_shape_than_the_example():
    model = hsfl.split(Net(), X)
    check_fits(model, torch.zeros(1, 6), 3)
    with pytest.raises(InputError, match=r"was split for samples of \(6,\) but the data have samples of \(5,\)"):
        check_fits(model, torch.zeros(1, 5), 3)
    with pytest.raises(InputError, match=r"its weights are float64 and samples are float32, so call \.float\(\)"):
        check_fits(model.double(), torch.zeros(1, 6), 3)


def test_several_tensors_are_packed():
    model = hsfl.split(Net(), {"x": X, "mask": MASK})
    check_fits(model, model.pack(X, MASK), 3)
    with pytest.raises(
        InputError, match=r"takes 2 tensors for a sample, packed into 7 numbers.*model\.pack\(x, mask\)"
    ):
        check_fits(model, X, 3)


def test_common_mistakes():
    flat = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))
    with pytest.raises(InputError, match=r"gives \[batch\] where \[batch, 1\] is expected.*leave out the squeeze"):
        check_fits(flat, X, 1, "numbers")
    few = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 3))
    with pytest.raises(InputError, match="the text has tokens up to 7, more than it knows; take its tokenizer"):
        check_fits(few, torch.tensor([[0, 7, 1]]), 3)
    with pytest.raises(InputError, match=r"first\.weight of the model is on the meta device"):
        check_weights(Net().to("meta"))
