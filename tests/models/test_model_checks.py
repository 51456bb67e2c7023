"""Whether a model takes the data is said before a run, in words that name the cause."""

import torch
from torch import Tensor, nn

import hsfl
from hsfl.errors import InputError
from hsfl.models.model_checks import check_fits, check_weights
from tests.naming import raises


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
    with raises(InputError, "(6,)", "(5,)"):
        check_fits(model, torch.zeros(1, 5), 3)
    with raises(InputError, "float64", "float32", ".float()"):
        check_fits(model.double(), torch.zeros(1, 6), 3)


def test_several_tensors_are_packed():
    model = hsfl.split(Net(), {"x": X, "mask": MASK})
    check_fits(model, model.pack(X, MASK), 3)
    with raises(InputError, "2 tensors", "7 numbers", "model.pack(x, mask)"):
        check_fits(model, X, 3)


def test_classes_of_pixels():
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1))
    images = torch.zeros(1, 1, 4, 6)
    check_fits(model, images, 3, "pixels", (4, 6))
    check_fits(model, images, 3, "pixels")  # a plan does not look at the targets
    with raises(InputError, "(3, 4, 6)", "(1, 4, 6)", "(3, 1, 4, 6)"):
        check_fits(model, images, 3, "pixels", (1, 4, 6))
    with raises(InputError, "(3, 4, 6)", "2 classes"):
        check_fits(model, images, 2, "pixels")
    with raises(InputError, "(72,)", "last unit"):
        check_fits(nn.Sequential(model, nn.Flatten()), images, 72, "pixels")


def test_common_mistakes():
    flat = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))
    with raises(InputError, "[batch]", "[batch, 1]", "squeeze"):
        check_fits(flat, X, 1, "numbers")
    few = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 3))
    with raises(InputError, "tokens up to 7", "tokenizer"):
        check_fits(few, torch.tensor([[0, 7, 1]]), 3)
    with raises(InputError, "first.weight", "meta"):
        check_weights(Net().to("meta"))
