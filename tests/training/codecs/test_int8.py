"""int8: within half a scale to nearest, within a scale and right in the mean stochastically, and payloads that nobody encoded are refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hsfl.codec_table import CODECS, DOWN, MODEL, UP, CodecChoice, num_scales
from hsfl.training.aggregate import Diverged
from hsfl.training.codecs.codec import Payload, PayloadError, compute_dtype
from hsfl.training.codecs.int8 import Int8
from tests.naming import raises
from tests.training.codecs.tensors import draws, exact, same_order, tensors

CODEC = Int8()


def scale_of_each(payload: Payload, shape: tuple[int, ...]) -> np.ndarray:
    """The scale of each number, by the words of the docstring."""
    scales, out = payload.arrays["scales"], np.zeros(shape, np.longdouble)
    for place in np.ndindex(*shape):
        if len(shape) >= 4:
            group = place[1]
        else:
            group = int(np.ravel_multi_index(place[:-1], shape[:-1])) if len(shape) > 1 else 0
        out[place] = float(scales[group])
    return out


@settings(max_examples=150, deadline=None)
@given(tensors(), st.sampled_from([UP, DOWN, MODEL]))
def test_what_comes_back_is_within_the_bound(tensor: Tensor, direction: str) -> None:
    payload = CODEC.encode(tensor, direction, draws())
    back = CODEC.receive(payload, tensor.shape, tensor.dtype)
    assert back.shape == tensor.shape
    assert back.dtype == tensor.dtype
    if not tensor.numel():
        return
    assert payload.num_bytes == CodecChoice(CODECS["int8"]).num_bytes(tuple(tensor.shape), tensor.element_size())
    scale = scale_of_each(payload, tuple(tensor.shape))
    digits = torch.finfo(tensor.dtype).eps * np.abs(exact(tensor)) + torch.finfo(tensor.dtype).smallest_normal * (
        torch.finfo(tensor.dtype).eps
    )
    steps = 1.0 if direction == DOWN else 0.5
    computed = 2**-22 if compute_dtype(tensor.dtype) == torch.float32 else 2**-50
    error = np.abs(exact(back) - exact(tensor))
    assert (error <= (steps + 127 * computed + torch.finfo(tensor.dtype).eps) * scale + digits).all()


@settings(max_examples=60, deadline=None)
@given(tensors())
def test_the_order_in_memory_changes_no_number(tensor: Tensor) -> None:
    """Kernels give the same last bits wherever a message is computed only if strides stay as they are."""
    payload = CODEC.encode(tensor, UP, None)
    again = CODEC.encode(tensor.contiguous(), UP, None)
    assert torch.equal(payload.arrays["values"], again.arrays["values"])
    assert torch.equal(payload.arrays["scales"], again.arrays["scales"])
    back = CODEC.decode(payload, tensor.shape, tensor.dtype)
    assert same_order(back, tensor)


def test_scales_are_by_channel_token_and_sample() -> None:
    assert [num_scales(shape) for shape in ((8, 3, 4, 5), (8, 7, 64), (8, 64), (64,), ())] == [3, 56, 8, 1, 1]
    image = torch.zeros(2, 2, 3, 3)
    image[1, 0, 2, 1], image[0, 1] = -254.0, 0.01
    scales = CODEC.encode(image, UP, None).arrays["scales"]
    assert scales.tolist() == pytest.approx([2.0, 0.01 / 127])


def test_stochastic_rounding_is_right_in_the_mean_and_the_same_for_a_step() -> None:
    tensor = torch.linspace(-1, 1, 513).repeat(40, 1)
    first, again = (CODEC.encode(tensor, DOWN, draws(4)).arrays["values"] for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, CODEC.encode(tensor, DOWN, draws(5)).arrays["values"])
    total = sum(
        CODEC.decode(CODEC.encode(tensor, DOWN, draws(n)), tensor.shape, tensor.dtype).double() for n in range(25)
    )
    mean = (total / 25).mean(dim=0)
    sigma = 1 / 127 / 2 / math.sqrt(25 * 40)
    assert float((mean - tensor[0]).abs().max()) < 5 * sigma
    nearest = CODEC.decode(CODEC.encode(tensor, DOWN, None), tensor.shape, tensor.dtype)[0]
    assert float((nearest - tensor[0]).abs().max()) > 10 * sigma  # what stochastic rounding is for


def test_the_largest_number_never_wraps_around() -> None:
    """x / s may be a little more than 127, and nearly half a step is added; 128 would be -128 as int8."""
    for largest in (torch.finfo(torch.float32).max, 1.0, 0.7310586):
        tensor = torch.full((10**6,), largest)
        assert int(CODEC.encode(tensor, DOWN, draws()).arrays["values"].min()) >= 126


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_not_encoded(bad: float) -> None:
    tensor = torch.ones(2, 3, 4, 4)
    tensor[1, 2, 3, 3] = bad
    with raises(Diverged, "train.lr"):
        CODEC.encode(tensor, UP, None)


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e38, 1e-39])
def test_a_wrong_scale_is_refused(scale: float) -> None:
    payload = CODEC.encode(torch.ones(4, 8), UP, None)
    payload.arrays["scales"][2] = scale
    with raises(PayloadError, "scale", f"{scale:g}", "above 0"):
        CODEC.check(payload, (4, 8), torch.float32)


def test_more_or_less_than_the_shape_allows_is_refused() -> None:
    payload = CODEC.encode(torch.ones(4, 8), UP, None)
    values, scales = payload.arrays["values"], payload.arrays["scales"]
    for shape in ((4, 9), (5, 8), (32,), (4, 8, 1)):
        with raises(PayloadError):
            CODEC.check(payload, shape, torch.float32)
    for arrays, word in (
        ({"values": values}, "scales"),
        ({"values": values.float(), "scales": scales}, "values"),
        ({"values": values, "scales": scales.double()}, "scales"),
        ({"values": values, "scales": scales, "more": torch.zeros(10**6)}, "more"),
    ):
        with raises(PayloadError, word):
            CODEC.check(Payload(arrays), (4, 8), torch.float32)
