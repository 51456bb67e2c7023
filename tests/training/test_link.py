"""A link with codecs: what arrives is another tensor, counted as it was sent, drawn by the name of the step."""

from dataclasses import replace

import torch
from torch import Tensor

from hsfl.codec_table import CODECS, CodecChoice
from hsfl.training.codecs.link_codecs import LinkCodecs, make_codec
from hsfl.training.link import Link
from hsfl.training.step import StepKey

KEY = StepKey(seed=1, client=2, pass_index=3, step=4)
UP, DOWN = "client_main_up", "client_main_down"


def coded_link(name: str = "int8") -> Link:
    codec = make_codec(CodecChoice(CODECS[name], 0.1))
    return Link(LinkCodecs(codec, codec))


def test_every_part_of_the_name_of_a_step_draws_otherwise() -> None:
    gradient = torch.randn(40, 30)

    def arrived(key: StepKey | None, route: str = DOWN) -> Tensor:
        return coded_link("topk").carry(route, gradient, key)

    others = [replace(KEY, **{name: 9}) for name in ("seed", "client", "pass_index", "step")]
    messages = [arrived(KEY), arrived(KEY, UP), arrived(None), *(arrived(key) for key in others)]
    assert torch.equal(messages[0], arrived(KEY))
    for place, message in enumerate(messages):
        assert not any(torch.equal(message, other) for other in messages[place + 1 :])


def test_what_was_sent_stays_and_keeps_its_gradient() -> None:
    weight = torch.ones(5, 8, requires_grad=True)
    sent = weight * torch.randn(5, 8)
    before = sent.detach().clone()
    link = coded_link()
    arrived = link.carry(UP, sent, KEY)
    assert torch.equal(sent, before)
    assert not arrived.requires_grad
    assert not torch.equal(arrived, sent)
    sent.backward(link.carry(DOWN, torch.ones(5, 8), KEY))
    assert weight.grad is not None
    assert link.bytes.client_main_up == link.bytes.client_main_down == 5 * 8 + 5 * 4


def test_whole_numbers_and_empty_tensors_travel_uncoded() -> None:
    link = coded_link()
    for load in (torch.arange(6), torch.zeros(0), torch.zeros(3, 0, 4)):
        assert link.carry(UP, load, KEY) is load
    assert link.bytes.client_main_up == 6 * 8
    assert link.carry("client_edge_down", (state := torch.randn(4))) is state
