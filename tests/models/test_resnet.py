"""The convolution of ResNet's blocks is nn.Conv2d's, forward and backward, also where it is a matrix product."""

import copy

import pytest
import torch
from torch import nn

from hsfl.models.cost_table import measure_module
from hsfl.models.resnet import Conv3x3

SHAPES = [(1, 1, 1), (1, 2, 2), (1, 1, 2), (2, 1, 1), (2, 2, 2), (2, 1, 2), (2, 2, 1), (2, 2, 3), (2, 4, 4)]


@pytest.mark.parametrize(("stride", "height", "width"), SHAPES)
def test_it_is_a_convolution(stride: int, height: int, width: int) -> None:
    torch.manual_seed(0)
    ours = Conv3x3(5, 7, stride).double()
    theirs = nn.Conv2d(5, 7, 3, stride, padding=1, bias=False).double()
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    results = []
    for conv in (ours, theirs):
        x = torch.randn(4, 5, height, width, generator=torch.Generator().manual_seed(1)).double().requires_grad_()
        y = conv(x)
        (y * torch.arange(y.numel()).reshape(y.shape)).sum().backward()
        assert x.grad is not None
        assert conv.weight.grad is not None
        results.append((y, x.grad, conv.weight.grad))
    for a, b in zip(*results):
        assert a.shape == b.shape
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12)


def test_its_flops_are_counted_as_a_convolution() -> None:
    assert measure_module(Conv3x3(5, 7), (5, 1, 1)) == measure_module(
        nn.Conv2d(5, 7, 3, padding=1, bias=False), (5, 1, 1)
    )


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
def test_a_trace_serves_every_size() -> None:
    ours = Conv3x3(5, 7, 2).eval()
    traced = torch.jit.trace(ours, torch.zeros(2, 5, 1, 1))
    for side in (1, 2, 4):
        x = torch.randn(3, 5, side, side)
        torch.testing.assert_close(traced(x), ours(x))
