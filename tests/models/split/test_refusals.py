"""What cannot be split is said in one line that names the module, the place and the way out."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hsfl
from tests.models.architectures import GPT
from tests.naming import raises

X = torch.zeros(2, 4)


class Net(nn.Module):
    """Two layers; what happens between them is the subclass's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def between(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)))


class Decides(Net):
    def between(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Inside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), Decides())

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class CountsTwo(Net):
    def between(self, x: Tensor) -> Tensor:
        return x.reshape(2, 4)


class AlwaysDrops(Net):
    def between(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5)  # training=True, whatever the mode


class Dice(Net):
    def between(self, x: Tensor) -> Tensor:
        return x * random.random()


class Two(Net):
    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        hidden = self.first(x)
        return {"logits": self.last(hidden), "hidden": hidden}


class Nothing(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.last.weight


class Recurs(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.first(self.last(self.first(x)))


class Raw(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x)) + x


LIST = "as a list of modules"
REFUSED = {
    "control flow": (Decides(), X, ("Decides cannot be split", "decides by values", "torch.where", LIST)),
    "and where": (Inside(), X, ("Inside cannot be split", "part 'body.1' (Decides)", "decides by values")),
    "a fixed batch": (CountsTwo(), X, ("CountsTwo cannot be split", "batches of 2 alone", "x.shape[0]")),
    "dropout in evaluation": (AlwaysDrops(), X, ("random numbers (aten.dropout.default)", "evaluation mode")),
    "python's random": (Dice(), X, ("Dice cannot be split", "Python's random")),
    "several outputs": (Two(), X, ("Two returns 2 tensors", "(logits, hidden)", "output=")),
    "no use of the input": (Nothing(), X, ("what it returns", "depend on its input")),
    "a weight at both ends": (Recurs(), X, ("Recurs has no cut", "first.weight", "from 'first' to 'first'")),
    "tied embeddings": (
        GPT(tied=True),
        torch.zeros(2, 8, dtype=torch.int64),
        ("wte.weight and lm_head.weight", "from 'wte' to 'lm_head'", "untie"),
    ),
    "the sample itself is needed": (Raw(), X, ("Raw has no cut", "the sample itself")),
    "a batch of one": (Net(), X[:1], ("shape (1, 4)", "batch of two")),
    "the wrong shape": (
        Net(),
        torch.zeros(2, 5),
        ("part 'first' (Linear)", "(2, 5) float32", "[batch, 5]", "give an example", LIST),
    ),
    "another device": (Net(), torch.zeros(2, 4, device="meta"), ("on cpu", "example_input is on meta")),
    "no tensor": (Net(), [1, 2], ("example_input holds a int", "at 0")),
    "no module": ("resnet", X, ("model to split", "a str")),
    "no weights": (nn.Sequential(nn.ReLU(), nn.Flatten()), X, ("no parameters to train",)),
    "lazy": (nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)), X, ("Sequential is lazy", "one batch first")),
}


@pytest.mark.parametrize(("module", "example", "parts"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_in_one_line(module, example, parts, capfd):
    with raises(hsfl.InputError, *parts) as caught:
        hsfl.split(module, example)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")  # torch shows graphs and warnings of its own


def test_one_of_several_outputs_is_taken_by_name():
    module = Two()
    model = hsfl.split(module, X, output="logits")
    assert torch.equal(model(X), module(X)["logits"])
    with raises(hsfl.InputError, "'loss'", "logits, hidden"):
        hsfl.split(module, X, output="loss")


def test_a_module_is_left_as_it_was():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2)).eval()
    module[2].train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    generator = torch.get_rng_state()
    hsfl.split(module, X)
    assert [part.training for part in module] == [False, False, True, False]
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_module_without_an_example_is_told_what_is_missing():
    with raises(hsfl.InputError, "Net", "order", "hsfl.split(model, example_input)"):
        hsfl.split(Net())
