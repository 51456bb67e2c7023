"""Heads as differences: buffers to the bit, parameters within the codec's bound, and error feedback that loses nothing for ever."""

import pytest
import torch

from hsfl.codec_table import CODECS, CodecChoice
from hsfl.training.codecs.head_codec import HeadCodec
from hsfl.training.codecs.link_codecs import make_codec
from tests.laws.bench import make_task

CUT = 3


def head_codec(name: str) -> HeadCodec:
    task, codec = make_task([CUT], [4], dtype=torch.float32), make_codec(CodecChoice(CODECS[name]))
    assert codec is not None
    return HeadCodec.of(codec, task.model, task.layout)


def test_buffers_travel_as_they_are_and_parameters_as_differences() -> None:
    task, codec = make_task([CUT], [4], dtype=torch.float32), head_codec("int8")
    sent, trained = task.initial[0:CUT], task.initial[0:CUT].clone()
    trained.floats.add_(torch.randn(len(trained.floats)) * 1e-3)
    trained.ints.add_(7)
    before = trained.clone()
    num_bytes, lost = codec.carry(sent, trained, None)
    assert torch.equal(trained.ints, before.ints)
    names = {name for name, _ in task.model.named_parameters()}
    sizes = []
    for name, arrived in trained.named().items():
        original = before.named()[name]
        if name in names:
            assert 0 < float((arrived - original).abs().max()) < 1e-3 * 6 / 127 / 2  # of a difference, not of a weight
            sizes.append(original.numel() + 4)
        else:
            assert torch.equal(arrived, original)
            sizes.append(original.nbytes)
    assert num_bytes == sum(sizes)
    assert len(lost) == sum(t.numel() for name, t in before.named().items() if name in names)


@pytest.mark.parametrize("name", ["int8", "float16"])
def test_what_is_lost_comes_later(name: str) -> None:
    """The sum of what arrived over many rounds is the sum of what was meant, but for what the client still remembers: d stays below the bound of one round. Without memory
    a number far below a scale would never arrive."""
    codec, lost = head_codec(name), None
    large, small = torch.ones(40), torch.full((40,), 1e-3)  # a scale of int8 is 1/127
    part, total = torch.cat([large, small]), torch.zeros(80, dtype=torch.float64)
    for _ in range(50):
        update = codec.code([part], lost)
        lost = update.lost
        total += update.arrived[0].double()
    assert lost is not None
    torch.testing.assert_close(total + lost.double(), 50 * part.double(), rtol=1e-5, atol=1e-5)
    assert float(lost.abs().max()) <= 1 / 127
    assert float((total[40:] - 0.05).abs().max()) < 1 / 127


def test_a_memory_of_another_head_is_begun_anew() -> None:
    codec, part = head_codec("int8"), torch.randn(30)
    first, other = codec.code([part], None), codec.code([part], torch.ones(29))
    assert torch.equal(first.lost, other.lost)
    assert codec.code([], None).num_bytes == 0
