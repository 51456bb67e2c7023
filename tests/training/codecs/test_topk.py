"""topk: what is kept is exact, the largest are kept unless others are drawn, and masks and deltas that fit no payload are refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hsfl.codec_table import CODECS, DOWN, UP, CodecChoice, num_kept
from hsfl.training.aggregate import Diverged
from hsfl.training.codecs.codec import Payload, PayloadError
from hsfl.training.codecs.topk import TopK
from tests.naming import raises
from tests.training.codecs.tensors import draws, tensors


@settings(max_examples=200, deadline=None)
@given(tensors(), st.sampled_from([0.1, 0.12, 0.25, 1.0]), st.booleans())
def test_what_is_kept_is_exact(tensor: Tensor, fraction: float, draw: bool) -> None:
    codec, shape = TopK(fraction), tuple(tensor.shape)
    payload = codec.encode(tensor, UP, draws() if draw else None)
    back = codec.receive(payload, shape, tensor.dtype)
    assert back.shape == tensor.shape
    assert back.dtype == tensor.dtype
    kept = back != 0
    assert torch.equal(back[kept], tensor[kept])
    if not tensor.numel():
        return
    assert len(payload.arrays["values"]) == num_kept(shape, fraction)
    assert payload.num_bytes <= CodecChoice(CODECS["topk"], fraction).num_bytes(shape, tensor.element_size())
    if draw:
        return
    rows, lost = (t.double().reshape(shape[0] if len(shape) > 1 else 1, -1).abs() for t in (tensor, tensor - back))
    d = rows.shape[1]
    k = math.ceil(fraction * d - 1e-9)
    largest = rows.amax(1, keepdim=True).clamp(min=1e-300)
    assert bool((((lost / largest) ** 2).sum(1) <= (1 - k / d) * ((rows / largest) ** 2).sum(1) + 1e-6).all())


def test_the_smaller_of_mask_and_deltas_travels() -> None:
    even = torch.arange(4000.0).view(1, -1) % 10 == 0
    sparse = even.float() * (1 + torch.rand(1, 4000))
    payload = TopK(0.1).encode(sparse, UP, None)
    assert set(payload.arrays) == {"values", "deltas"}
    assert payload.num_bytes == 400 * 4 + 400
    clustered = torch.arange(4000.0).view(1, -1)  # all at the end, a step of 3600
    assert set(TopK(0.1).encode(clustered, UP, None).arrays) == {"values", "mask"}
    assert set(TopK(0.25).encode(sparse, UP, None).arrays) == {"values", "mask"}


def test_small_numbers_are_drawn_too_and_a_step_draws_the_same() -> None:
    tensor = torch.arange(1.0, 10001.0).view(1, -1)
    codec = TopK(0.2)
    first, again, other = (codec.encode(tensor, DOWN, draws(n)).arrays["values"] for n in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    small = int((first <= 8000).sum())
    assert 100 < small < 220  # a tenth of the 2000 places, of which a fifth falls among the largest: 160
    assert int((codec.encode(tensor, DOWN, None).arrays["values"] <= 8000).sum()) == 0


def test_numbers_that_are_none_are_not_encoded() -> None:
    with raises(Diverged, "train.lr"):
        TopK(0.5).encode(torch.tensor([[1.0, math.nan, 2.0, 3.0]]), UP, None)


def mask_payload() -> Payload:
    return TopK(0.25).encode(torch.randn(3, 9), UP, None)  # 9 of 27 places, in 4 bytes


def test_a_mask_that_does_not_fit_is_refused() -> None:
    codec, good = TopK(0.25), mask_payload()
    codec.check(good, (3, 9), torch.float32)
    values, mask = good.arrays["values"], good.arrays["mask"]
    more = mask.clone()
    more[0] |= 0xFF
    beyond = mask.clone()
    beyond[3] |= 1  # place 31 of 27
    for wrong in (more, beyond, mask * 0, mask[:3], torch.cat([mask, mask]), mask.to(torch.int8)):
        with raises(PayloadError, "mask"):
            codec.check(Payload({"values": values, "mask": wrong}), (3, 9), torch.float32)
    with raises(PayloadError, "values"):
        codec.check(Payload({"values": values[:-1], "mask": mask}), (3, 9), torch.float32)
    with raises(PayloadError, "mask and deltas"):
        codec.check(Payload({"values": values}), (3, 9), torch.float32)
    with raises(PayloadError, "mask and deltas"):
        codec.check(Payload(good.arrays | {"deltas": torch.ones(9, dtype=torch.uint8)}), (3, 9), torch.float32)


@pytest.mark.parametrize("deltas", [[3, 0, 3, 3, 3, 3, 3, 3, 3], [255] * 9, [28] + [1] * 8])
def test_an_index_outside_is_refused(deltas: list[int]) -> None:
    payload = Payload({"values": torch.randn(9), "deltas": torch.tensor(deltas, dtype=torch.uint8)})
    with raises(PayloadError, "deltas", "of 27"):
        TopK(0.25).check(payload, (3, 9), torch.float32)
    fine = Payload({"values": torch.randn(9), "deltas": torch.full((9,), 3, dtype=torch.uint8)})
    assert TopK(0.25).receive(fine, (3, 9), torch.float32)[2, 8] != 0
