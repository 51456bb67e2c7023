"""Tensors of every shape, stride and type, for properties of codecs."""

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from hsfl.rng import stream
from hsfl.training.codecs.codec import Draws

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@st.composite
def tensors(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...] = DTYPES) -> Tensor:
    """Any shape up to four sides, empty ones too; usual, transposed, sliced and channels-last; constant, subnormal, huge and mixed numbers."""
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(st.lists(st.integers(0, 6), min_size=0, max_size=5))
    info = torch.finfo(dtype)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["normal", "constant", "subnormal", "huge", "mixed", "zero"]))
    numbers = rng.normal(size=[2 * side for side in shape] or ())
    if kind == "constant":
        numbers = np.full_like(numbers, draw(st.sampled_from([1.0, -3.7, 1e-6])))
    elif kind == "subnormal":
        numbers = numbers * info.tiny / 8
    elif kind == "huge":
        numbers = np.sign(numbers) * info.max * rng.choice([1.0, 0.999, 0.3], size=numbers.shape)
    elif kind == "mixed":
        exponents = rng.uniform(np.log10(info.tiny), np.log10(info.max) - 1, numbers.shape)
        numbers = np.sign(numbers) * 10.0**exponents
    elif kind == "zero":
        numbers = numbers * 0.0
    tensor = torch.from_numpy(np.asarray(numbers)).clamp(info.min, info.max).to(dtype)
    layout = draw(st.sampled_from(["usual", "sliced", "transposed", "channels last"]))
    for dim, side in enumerate(shape):
        tensor = tensor.narrow(dim, 0, side) if layout != "sliced" else tensor.narrow(dim, side // 2, side)
    if layout == "usual":
        tensor = tensor.contiguous()
    elif layout == "transposed" and tensor.ndim > 1:
        tensor = tensor.transpose(0, tensor.ndim - 1)
    elif layout == "channels last" and tensor.ndim == 4:
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def draws(number: int = 0) -> Draws:
    """Random numbers of a step."""
    return lambda: stream(1, "codec", number)


def exact(tensor: Tensor) -> np.ndarray:
    """The numbers in the widest type of this machine."""
    return tensor.to(torch.float64).numpy().astype(np.longdouble)


def same_order(tensor: Tensor, like: Tensor) -> bool:
    """Whether the numbers lie in the order in which torch would put those of `like`, without gaps."""
    usual = torch.empty_like(like)
    sides = [dim for dim, side in enumerate(tensor.shape) if side > 1]
    return not tensor.numel() or [tensor.stride(dim) for dim in sides] == [usual.stride(dim) for dim in sides]
