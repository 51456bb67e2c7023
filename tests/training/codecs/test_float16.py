"""float16 with a power of two: small gradients stay, large ones do not overflow, and the error is within its bound."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from hsfl.codec_table import CODECS, UP, CodecChoice
from hsfl.training.aggregate import Diverged
from hsfl.training.codecs.codec import Payload, PayloadError
from hsfl.training.codecs.float16 import Float16
from tests.naming import raises
from tests.training.codecs.tensors import exact, same_order, tensors

CODEC = Float16()


@settings(max_examples=200, deadline=None)
@given(tensors())
def test_what_comes_back_is_within_the_bound(tensor: Tensor) -> None:
    payload = CODEC.encode(tensor, UP, None)
    back = CODEC.receive(payload, tensor.shape, tensor.dtype)
    assert back.shape == tensor.shape
    assert back.dtype == tensor.dtype
    assert same_order(back, tensor)
    if not tensor.numel():
        return
    assert payload.num_bytes == CodecChoice(CODECS["float16"]).num_bytes(tuple(tensor.shape), tensor.element_size())
    info, k = torch.finfo(tensor.dtype), int(payload.arrays["exponent"])
    x = np.abs(exact(tensor))
    bound = np.maximum(2.0**-11 * x, np.ldexp(np.longdouble(1), -25 - k))
    digits = info.eps * x + np.longdouble(info.smallest_normal) * info.eps
    assert (np.abs(exact(back) - exact(tensor)) <= bound * (1 + 2.0**-10) + digits).all()


def test_gradients_too_small_for_float16_come_back() -> None:
    gradient = torch.randn(64, 32) * 1e-9
    assert not gradient.half().any()  # without a power of two
    back = CODEC.decode(CODEC.encode(gradient, UP, None), gradient.shape, gradient.dtype)
    assert float((back - gradient).norm() / gradient.norm()) < 2**-11


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_types_come_back_to_the_bit(dtype: torch.dtype) -> None:
    tensor = torch.randn(50, 20).to(dtype)
    assert torch.equal(CODEC.decode(CODEC.encode(tensor, UP, None), tensor.shape, dtype), tensor)


def test_numbers_that_are_none_are_not_encoded() -> None:
    for bad in (math.nan, math.inf):
        with raises(Diverged, "train.lr"):
            CODEC.encode(torch.tensor([1.0, bad]), UP, None)


def test_what_nobody_encoded_is_refused() -> None:
    payload = CODEC.encode(torch.ones(4, 8), UP, None)
    for exponent in (-114, 127, 32000, -32768):
        wrong = Payload(payload.arrays | {"exponent": torch.tensor([exponent], dtype=torch.int16)})
        with raises(PayloadError, "exponent", str(exponent), "-113..126"):
            CODEC.check(wrong, (4, 8), torch.float32)
    with raises(PayloadError, "values", "(4, 8)", "(4, 7)"):
        CODEC.check(payload, (4, 7), torch.float32)
    with raises(PayloadError, "without exponent"):
        CODEC.check(Payload({"values": payload.arrays["values"]}), (4, 8), torch.float32)
