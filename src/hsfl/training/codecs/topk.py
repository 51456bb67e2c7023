"""topk: a tenth (or more) of the numbers of each sample, as they are, and which ones they are; the others arrive as 0.

    k = ceil(K d) of the d numbers of a sample,  x'_i = x_i if i is kept else 0

Which ones: in training, every number is drawn with probability 0.1 K, and the largest absolute values get the places that are left; so
about a tenth of the places go to numbers that top-k alone would never send, and whose units would stop learning. This follows RandTopk
(Zheng et al., Reducing Communication for Split Learning by Randomized Top-k Sparsification, 2023), which draws a tenth of the places from
the numbers that are not among the k largest. In an evaluation nothing is drawn: the k largest are kept.

Error bound: what is kept is exact; |x'_i - x_i| = |x_i| for the others. Without draws ||x' - x||^2 <= (1 - k/d) ||x||^2 for each sample.

Payload: `values` in the tensor's own type, [k times the samples], in the order of their places; and either `mask`, uint8, a bit for each
number of the message, or `deltas`, uint8, the steps from each place to the next (the first from -1): whichever is smaller. Steps of 256 and
more have no delta. At 12.5 % and more the mask is always smaller.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hsfl.codec_table import num_kept, num_mask_bytes
from hsfl.training.codecs.codec import (
    Codec,
    Draws,
    Payload,
    PayloadError,
    check_array,
    check_finite,
    check_names,
    random_int16,
)

DRAWN = 0.1  # the part of the places for which numbers are drawn: RandTopk's alpha
MOST_DELTA = 255


class TopK(Codec):
    """Top-k of each sample, randomised in training. fraction: the part of the numbers that is kept."""

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction

    def encode(self, tensor: Tensor, direction: str, draws: Draws | None) -> Payload:
        count, shape = tensor.numel(), tuple(tensor.shape)
        num_values = num_kept(shape, self.fraction) if count else 0
        rows = tensor.reshape(shape[0] if len(shape) > 1 and count else 1, -1)
        score = rows.abs()
        if draws is not None:
            least = round(2**16 * (1 - DRAWN * self.fraction)) - 2**15
            score.masked_fill_(random_int16(draws, rows.shape, rows.device) >= least, math.inf)
        chosen = torch.zeros(rows.shape, dtype=torch.bool, device=rows.device)
        if num_values:
            chosen.scatter_(1, score.topk(num_values // len(rows), dim=1, sorted=False).indices, True)
        values = rows[chosen]
        check_finite(values)
        return Payload({"values": values} | _places(chosen.view(-1)))

    def check(self, payload: Payload, shape: Sequence[int], dtype: torch.dtype) -> None:
        count = math.prod(shape)
        num_values = num_kept(tuple(shape), self.fraction) if count else 0
        check_names(payload, "values", "mask", "deltas")
        check_array(payload, "values", dtype, (num_values,))
        if ("mask" in payload.arrays) == ("deltas" in payload.arrays):
            raise PayloadError("a payload of top-k with mask and deltas, or with neither; send one of them")
        if "mask" in payload.arrays:
            mask = check_array(payload, "mask", torch.uint8, (num_mask_bytes(count),)).cpu().numpy()
            bits = int(np.bitwise_count(mask).sum()) if hasattr(np, "bitwise_count") else int(np.unpackbits(mask).sum())
            beyond = count % 8 and len(mask) and int(mask[-1]) & (0xFF >> count % 8)
            if bits != num_values or beyond:
                raise PayloadError(
                    f"a mask with {bits} of {count} places for {num_values} values; send one place for each value"
                )
        else:
            deltas = check_array(payload, "deltas", torch.uint8, (num_values,))
            last = int(deltas.sum(dtype=torch.int64)) - 1
            if last >= count or not bool((deltas > 0).all()):
                raise PayloadError(
                    f"deltas that lead to place {last} of {count}; send steps of 1 and more within the tensor"
                )

    def decode(self, payload: Payload, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        values, count = payload.arrays["values"], math.prod(shape)
        if "mask" in payload.arrays:
            chosen = np.unpackbits(payload.arrays["mask"].cpu().numpy(), count=count).view(bool)
            places = torch.from_numpy(chosen).to(values.device)
        else:
            places = payload.arrays["deltas"].cumsum(0, dtype=torch.int64) - 1
        tensor = torch.zeros(count, dtype=dtype, device=values.device)
        tensor[places] = values
        return tensor.view(tuple(shape))


def _places(chosen: Tensor) -> dict[str, Tensor]:
    """The smaller of mask and deltas."""
    places = chosen.nonzero().view(-1)
    if len(places) < num_mask_bytes(len(chosen)):
        deltas = torch.diff(places, prepend=places.new_full((1,), -1))
        if not len(deltas) or int(deltas.max()) <= MOST_DELTA:
            return {"deltas": deltas.to(torch.uint8)}
    return {"mask": torch.from_numpy(np.packbits(chosen.cpu().numpy())).to(chosen.device)}
