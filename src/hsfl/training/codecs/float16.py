"""float16: every number as a float16 of itself times a power of two, which is one for the message.

    y = float16(2**k x),  x' = 2**-k y,  with k such that 2**14 <= 2**k max|x| < 2**15

Gradients at a cut are often so small that float16 alone would make them zero; the power of two brings the message's largest number near the
largest float16, and multiplying by it rounds nothing. k is at most 126 (1022 for float64), so that 2**k is a number.

Error bound: |x' - x| <= max(2**-11 |x|, 2**-25 2**-k), and 2**-25 2**-k <= 2**-39 max|x| where k is below its limit; besides, a result is
rounded to the tensor's own type. A tensor that is float16 or bfloat16 itself, and whose numbers are not too unequal, comes back to the bit.

Payload: `values`, float16 in the tensor's shape and order in memory, and `exponent`, int16 [1]: k.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hsfl.training.codecs.codec import (
    Codec,
    Draws,
    Payload,
    PayloadError,
    check_array,
    check_finite,
    check_names,
    compute_dtype,
)

TOP_EXPONENT = 15  # the largest number of a message lies below 2**15
BELOW_TOP = 32752.0  # the largest float16 below 2**15
MOST = {torch.float32: 126, torch.float64: 1022}  # the largest k, by the type in which is computed
EXPONENTS = {torch.float32: 128, torch.float64: 1024}  # no number is 2**this or more


class Float16(Codec):
    """float16 with a power of two for the message."""

    def encode(self, tensor: Tensor, direction: str, draws: Draws | None) -> Payload:
        if not tensor.numel():
            exponents = torch.zeros(1, dtype=torch.int16, device=tensor.device)
            return Payload({"values": tensor.to(torch.float16), "exponent": exponents})
        computed = compute_dtype(tensor.dtype)
        top = torch.maximum(tensor.amax(), tensor.amin().neg())
        check_finite(top)
        exponent = math.frexp(top.item())[1]
        k = min(TOP_EXPONENT - exponent, MOST[computed])
        scaled = tensor.to(computed) * math.ldexp(1.0, k)
        if exponent == EXPONENTS[computed]:  # rounded up to 2**15, the largest number would come back infinite
            scaled.clamp_(-BELOW_TOP, BELOW_TOP)
        exponents = torch.full((1,), k, dtype=torch.int16, device=tensor.device)
        return Payload({"values": scaled.to(torch.float16), "exponent": exponents})

    def check(self, payload: Payload, shape: Sequence[int], dtype: torch.dtype) -> None:
        check_names(payload, "values", "exponent")
        check_array(payload, "values", torch.float16, shape)
        k, computed = int(check_array(payload, "exponent", torch.int16, (1,))), compute_dtype(dtype)
        lowest = TOP_EXPONENT - EXPONENTS[computed]
        if not lowest <= k <= MOST[computed]:
            raise PayloadError(
                f"exponent of a payload is {k}, not in {lowest}..{MOST[computed]}; send the one encoded with"
            )

    def decode(self, payload: Payload, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        k = int(payload.arrays["exponent"])
        return payload.arrays["values"].to(compute_dtype(dtype)).mul_(math.ldexp(1.0, -k)).to(dtype)
