"""The certificate of a split: modules that do more than their graph says split right, or are refused with what differs and where."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hsfl
from hsfl.config import parse_config
from hsfl.models.split import certificate
from hsfl.models.split.graph_split import no_certificates
from hsfl.models.zoo import build
from hsfl.runs.prepare import prepare
from tests.models.split.hidden_effects import MODULES, Base, CountsItsCalls, OtherName
from tests.models.whole import distance
from tests.naming import names, raises

X = torch.zeros(2, 4)
STEP, DRAWN = "a training step", "a drawn batch"

REFUSED: dict[str, tuple[str, ...]] = {
    "BuffersExchanged": ("tensor of another one", "clone()"),
    "BufferWithGradient": ("a second training step", "backward through the graph"),
    "OtherName": ("at cut 1 (behind 'a')", "gradient of a.bias", "by 50.0%", "autograd.Function"),
    "InferenceInside": ("Inference tensors cannot be",),
    "HookOnTensor": ("at cut 1", "gradient of a.bias", "a hook"),
    "HookOnParameter": ("parameter 'b.weight' has a", "remove it"),
    "HookAfterGradient": ("parameter 'b.weight' has a", "remove it"),
    "GradientInForward": ("torch.autograd.grad", "no graph can hold"),
    "DataOfValue": (".data", "no graph can hold"),
    "ScalesDataOfWeight": (".data", "no graph can hold"),
    "TogglesGradients": ("requires_grad of the parameter b.weight", "before the split"),
    "KeepsTensorsInAList": ("a tensor in a list", "not in its state dict", "register_buffer"),
    "MakesAWeight": ("makes", "the parameter late", "before the split"),
    "LooksForGradients": ("the output differs", "in evaluation mode"),
    "CountsItsCalls": ("the output differs", DRAWN, "kept for the next step"),
    "RemembersTheBatch": ("the output differs", DRAWN),
    "SecretThenRead": ("at cut 1", "the output differs", "writes or draws in secret"),
    "an operation that draws": ("unit 'a'", "torch's generator", "does not say so"),
    "an operation that draws from NumPy": ("unit 'a'", "numpy.random", "does not say so"),
    "an operation with a generator of its own": ("the output differs",),
}


QUICK = (
    *("ScaleThenChange", "ScaleOfView", "SeveralStepsBefore", "NormReadBefore", "ReadFarBefore", "BufferIsValue"),
    *("OldViewAfterNewValue", "BufferWithGradient", "OtherName", "InferenceInside", "HookOnTensor", "HookOnParameter"),
    *("DetachBetween", "ClampsItsWeight", "CountsItsCalls", "SecretThenRead", "an operation that draws from NumPy"),
    *("an operation that draws", "TogglesGradients", "KeepsTensorsInAList", "WritesDownNumbers", "MakesAWeight"),
)
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in MODULES if name not in QUICK]


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_a_module_splits_right_or_is_refused(name):
    torch.manual_seed(0)
    module = MODULES[name]()
    if name in REFUSED:
        with raises(hsfl.InputError, "cannot be split", *REFUSED[name]) as caught:
            hsfl.split(module, X)
        assert "\n" not in str(caught.value)
        return
    model = hsfl.split(module, X)
    assert model.num_units == (2 if name == "ReadFarBefore" else 3)
    assert distance(module, model, [torch.randn(3, 4)]) < 1e-6


class Lies(Base):
    """Its graph is another one than its forward pass, in one thing alone."""

    def __init__(self, about: str) -> None:
        super().__init__()
        self.about = about
        self.idle = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        about = "" if torch.compiler.is_exporting() else self.about
        if about == "sample" and x.requires_grad:
            x.register_hook(lambda gradient: gradient * 1.002)
        h = self.a(x)
        if about == "buffer" and self.training:
            self.var[1] += 0.001
        if about == "weight" and self.training:
            with torch.no_grad():
                self.idle += 0.002
        if about == "fails":
            h = h.new_zeros(7)
        if about == "gradient":
            h = h * 1.01 - h.detach() * 0.01
        h = self.b(h)
        if about == "evaluation" and not self.training:
            h = h * 1.001
        return self.c(h.relu())


LIES = {
    "sample": ("the gradient of the sample", "by 0.2%"),
    "buffer": ("var after a step",),
    "weight": ("idle after a step", "by 0.2%"),
    "gradient": ("the gradient of a.",),
    "evaluation": ("the output differs", "in evaluation mode"),
    "fails": ("training step of the whole", "fails"),
}


@pytest.mark.parametrize("about", LIES)
def test_each_comparison_sees_what_it_compares(about):
    torch.manual_seed(0)
    with raises(hsfl.InputError, *LIES[about]):
        hsfl.split(Lies(about), X)


def everything(module: nn.Module) -> list[object]:
    tensors = {**module.state_dict(keep_vars=True)}
    return [
        {name: (id(t), t.detach().clone().tolist(), t.grad, t.requires_grad) for name, t in tensors.items()},
        [(part.training, sorted(vars(part))) for part in module.modules()],
        torch.get_rng_state().tolist(),
        random.getstate(),
        repr(np.random.get_state()),  # noqa: NPY002
    ]


@pytest.mark.parametrize(
    "name",
    [
        *("ScaleThenChange", "ClampsItsWeight", "BufferIsValue", "KeepsAList", "CountsItsCalls", "BufferWithGradient"),
        *("TogglesGradients", "MakesAWeight"),
    ],
)
def test_the_module_and_the_generators_are_left_as_they_were(name):
    module = MODULES[name]().eval()
    module.b.train()
    module.c.weight.grad = torch.ones(4, 4)
    before = everything(module)
    try:
        hsfl.split(module, X)
    except hsfl.InputError:
        assert name in REFUSED
    assert everything(module) == before
    assert getattr(module, "calls", 0) == 0


def test_the_certificate_can_be_left_out():
    module = CountsItsCalls()
    assert hsfl.split(module, X, certify=False).num_units == 3
    with no_certificates():
        assert hsfl.split(module, X).num_units == 3
    with raises(hsfl.InputError, "the output differs"):
        hsfl.split(module, X)


def test_gradients_may_be_turned_off_outside():
    module = OtherName()
    with torch.no_grad(), raises(hsfl.InputError, "gradient of a.bias"):
        hsfl.split(module, X)


class Words(nn.Module):
    def __init__(self, size: int = 5) -> None:
        super().__init__()
        self.e, self.a, self.b = nn.Embedding(size, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        h = self.a(self.e(tokens)) if mask is None else self.a(self.e(tokens)) * mask[..., None]
        return {"hidden": h, "logits": self.b(h.relu())}


def test_values_of_the_example_do_not_matter():
    """A token that no table has: the module fails on the example, and the drawn batch is compared twice."""
    assert hsfl.split(Words(), torch.full((2, 3), 99), output="logits").num_units == 3
    wrong = Words()
    wrong.register_buffer("limit", torch.tensor(0))
    wrong.e.weight.data = torch.zeros(1, 4)  # the table is smaller than it says
    with raises(hsfl.InputError, STEP, "fails on a drawn batch"):
        hsfl.split(wrong, torch.full((2, 3), 99), output="logits")


def test_inputs_by_name_and_one_of_several_outputs():
    example = {"tokens": torch.zeros(2, 3, dtype=torch.int64), "mask": torch.ones(2, 3)}
    model = hsfl.split(Words(), example, output="logits")
    assert model.num_units == 3
    drawn = certificate._drawn_batch(model.origin, list(example.values()))
    assert [x.dtype for x in drawn] == [torch.int64, torch.float32]
    assert all(len(x) == 3 for x in drawn)
    assert 0 < int(drawn[0].max()) < 5
    assert bool(((drawn[1] >= 0) & (drawn[1] < 1)).all())


def test_short_types_are_compared():
    module = OtherName().bfloat16()
    with raises(hsfl.InputError, "by 50.0%"):
        hsfl.split(module, X.bfloat16())


def test_differences_are_relative_and_see_what_is_not_finite():
    nan, inf, one = torch.tensor([float("nan"), 1.0]), torch.tensor([float("inf"), 1.0]), torch.ones(2)
    assert certificate._relative(nan, nan.clone()) == 0
    assert certificate._relative(one, inf) == float("inf")
    assert certificate._relative(one, one.double()) == float("inf")
    assert certificate._relative(one, torch.ones(3)) == float("inf")
    assert certificate._relative(one * 3, one * 2) == 0.5
    assert certificate._relative(one * 3, one * 2, least=10) == pytest.approx(0.1)
    assert certificate._relative(None, one) == 1
    assert certificate._relative(torch.zeros(2), None) == 0
    assert certificate._relative(None, None) == 0


def test_differences_are_told_as_numbers_that_are_not_zero():
    def clause(relative: float | None) -> str:
        return certificate.Mismatch("the example", "c.weight", relative).clause

    names(clause(0.25), "c.weight differs", "by 25.0%", "on the example")
    names(clause(2e-5), "by 2e-05 of the")
    names(clause(float("inf")), "another shape, type")
    assert clause(None) == "c.weight on the example"


def test_a_model_by_name_is_certified_once_in_a_process(monkeypatch):
    seen = []
    monkeypatch.setattr("hsfl.models.zoo.certify_split", lambda model: seen.append(model))
    monkeypatch.setattr(
        "hsfl.models.split.graph_split.certify_split", lambda model: pytest.fail("certified while it is built")
    )
    hsfl.register_model("certified_base", lambda input_shape, num_classes: hsfl.split(Base(), X))
    build("certified_base", (4,), 4)  # a device of a deployment, an export
    assert not seen
    for seed in range(2):
        build("certified_base", (4,), 4, seed=seed, certify=True)
    assert len(seen) == 1
    build("cnn", (1, 8, 8), 4, certify=True)  # cut by hand
    assert len(seen) == 1


class Wraps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.last = CountsItsCalls(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.net(x))


def test_a_run_certifies_unless_it_is_told_not_to(tmp_path):
    hsfl.register_model("certified_wraps", lambda input_shape, num_classes: Wraps())
    data = hsfl.dataset(np.random.default_rng(0).normal(size=(40, 4)).astype("float32"), np.arange(40) % 2)
    config = {"model": {"name": "certified_wraps"}, "fleet": {"num_clients": 2, "cuts": [1, 2]}}
    with raises(hsfl.InputError, "Wraps cannot be split", "at cut 1"):
        prepare(parse_config(config), data)
    config["model"]["certify"] = False
    assert prepare(parse_config(config), data).task.model.num_units == 4
    with raises(hsfl.InputError, "model.certify", "cnn is cut by hand", "leave it out"):
        hsfl.run(None, tmp_path / "cnn", ["model.certify=false"], model="cnn")
