"""A split step is the whole step, at every cut."""

import pytest
import torch
import torch.nn.functional as F

from hsfl.config import TrainConfig
from hsfl.models.state import Layout, read_state
from hsfl.models.zoo import build
from hsfl.training.roles import Session
from hsfl.training.step import Part, StepKey, apply_gradient_on_client

KEY = StepKey(seed=1, client=2, pass_index=3, step=4)
MODELS = [("cnn", (1, 12, 12)), ("resnet18", (3, 16, 16)), ("mobilenet_v2", (3, 16, 16))]


STEPS = [
    pytest.param(
        *model, optimizer, marks=pytest.mark.slow if (model[0], optimizer) == ("mobilenet_v2", "momentum") else ()
    )
    for model in MODELS
    for optimizer in ("momentum", "adam")
]


@pytest.mark.parametrize(("name", "shape", "optimizer"), STEPS)
def test_split_step_equals_whole_step_at_every_cut(name: str, shape: tuple[int, int, int], optimizer: str) -> None:
    model = build(name, shape, 5, seed=2, dropout=0.0 if name != "resnet18" else None).double()
    train = TrainConfig(optimizer=optimizer, lr=0.01, weight_decay=0.01)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, *shape, dtype=torch.float64, generator=generator)
    y = torch.tensor([0, 1, 2, 3, 4, 0])
    # a bias before BatchNorm has gradient zero, and Adam divides its rounding noise by that noise's own size
    atol = 1e-7 if optimizer == "adam" else 1e-12
    layout, start, num_units = Layout.of(model), read_state(model), model.num_units
    expected = _plain_steps(model, x, y, train)  # changes the model, so after the start was read
    for cut in range(num_units + 1) if name == "cnn" else (0, 1, num_units // 2, num_units - 1, num_units):
        head, tail = Part(model, layout, 0, cut, train), Part(model, layout, cut, num_units, train)
        head.begin(start[0:cut], train.lr)
        tail.begin(start[cut:num_units], train.lr)
        for _ in range(2):
            smashed = head.forward(x, KEY)
            _, gradient = Session(tail).step(smashed, y, KEY, need_gradient=cut > 0)
            if cut > 0:
                apply_gradient_on_client(head, smashed, gradient)
        joined = {**head.state.named(), **tail.state.named()}
        assert joined.keys() == expected.keys()
        for tensor_name, tensor in joined.items():
            torch.testing.assert_close(
                tensor, expected[tensor_name], rtol=1e-9, atol=atol, msg=f"{tensor_name}, cut {cut}"
            )


def _plain_steps(
    model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, train: TrainConfig
) -> dict[str, torch.Tensor]:
    """Two steps as everyone writes them."""
    model.train()
    if train.optimizer == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(
            model.parameters(), train.lr, weight_decay=train.weight_decay
        )
    else:
        optimizer = torch.optim.SGD(model.parameters(), train.lr, train.momentum, weight_decay=train.weight_decay)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.state_dict()
