"""int8: every number as a whole multiple of a scale, with a scale for each channel, token or sample.

    s = max|x| / 127,  q = round(x / s) in -127..127,  x' = s q

The maximum is taken over what shares a scale: a channel of images [n, c, h, w], a token of sequences [n, t, d], a sample of vectors [n, d],
else the whole tensor. Activations and differences of weights are rounded to the nearest number. Gradients are rounded stochastically, up
with the probability of what is left: q = round(x / s + u) with u uniform in [-1/2, 1/2), so that their mean is right and small gradients do
not vanish together. u has 16 bits, so the mean is right to 2**-17 of a scale; it is drawn from a stream that is named after the step.

Error bound: |x' - x| <= s / 2 to nearest, s stochastically, plus the last digits in which x / s, x' and the tensor's type are rounded. s is
at least the smallest normal number of the type in which is computed, so that numbers below half of that become 0.

Payload: `values`, int8 in the tensor's shape and order in memory, and `scales`, float32 [number of scales] (float64 for float64).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hsfl.codec_table import DOWN, num_scales
from hsfl.training.codecs.codec import (
    Codec,
    Draws,
    Payload,
    PayloadError,
    check_array,
    check_finite,
    check_names,
    compute_dtype,
    largest,
    random_int16,
)

STEPS = 127
SMALLEST = {torch.float32: float(np.finfo(np.float32).tiny), torch.float64: float(np.finfo(np.float64).tiny)}
LARGEST = {  # 127 times this is still a number
    torch.float32: float(np.nextafter(np.finfo(np.float32).max / np.float32(STEPS), np.float32(0))),
    torch.float64: float(np.nextafter(np.finfo(np.float64).max / STEPS, 0.0)),
}


class Int8(Codec):
    """int8 with a scale for each channel, token or sample."""

    def encode(self, tensor: Tensor, direction: str, draws: Draws | None) -> Payload:
        computed = compute_dtype(tensor.dtype)
        if not tensor.numel():
            scales = torch.ones(num_scales(tuple(tensor.shape)), dtype=computed, device=tensor.device)
            return Payload({"values": tensor.to(torch.int8), "scales": scales})
        scales = _largest_by_scale(tensor).to(computed).div_(STEPS)
        check_finite(scales)
        scales.clamp_(SMALLEST[computed], LARGEST[computed])
        steps = tensor * scales.reciprocal().view(_broadcast(tensor.shape))
        if direction == DOWN and draws is not None:
            steps.add_(random_int16(draws, tensor.shape, tensor.device), alpha=2.0**-16)  # stays below 127.5
        return Payload({"values": steps.round_().to(torch.int8), "scales": scales})

    def check(self, payload: Payload, shape: Sequence[int], dtype: torch.dtype) -> None:
        check_names(payload, "values", "scales")
        check_array(payload, "values", torch.int8, shape)
        computed = compute_dtype(dtype)
        scales = check_array(payload, "scales", computed, (num_scales(tuple(shape)),))
        within = (scales >= SMALLEST[computed]) & (scales <= LARGEST[computed])  # NaN is neither
        if not bool(within.all()):
            wrong = float(scales[~within][0])
            raise PayloadError(f"a scale of a payload is {wrong:g}; send finite scales above 0")

    def decode(self, payload: Payload, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        scales = payload.arrays["scales"]
        return payload.arrays["values"].to(scales.dtype).mul_(scales.view(_broadcast(shape))).to(dtype)


def _largest_by_scale(tensor: Tensor) -> Tensor:
    """The largest absolute value of what shares a scale, [number of scales]."""
    if tensor.ndim >= 4:
        return largest(tensor, (0,)).flatten(1).amax(1)  # over samples first, along memory
    dims = (tensor.ndim - 1,) if tensor.ndim > 1 else tuple(range(tensor.ndim))
    return largest(tensor, dims).view(-1)


def _broadcast(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape in which scales multiply a tensor of this shape."""
    if len(shape) >= 4:
        return (1, shape[1], *(1 for _ in shape[2:]))
    return (*shape[:-1], 1) if len(shape) > 1 else tuple(1 for _ in shape)
