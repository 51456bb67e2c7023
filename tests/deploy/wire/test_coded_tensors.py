"""Coded tensors on the wire: what arrives is what a simulation gives, and a payload that nobody encoded is refused with a reason."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hsfl.codec_table import CODECS, DOWN, UP, CodecChoice, link_choices
from hsfl.config import parse_config
from hsfl.deploy.main.main_round import Tail
from hsfl.deploy.model_kit import ModelKit, make_kit
from hsfl.deploy.settings import MainSettings, received_config, run_config, sent_settings
from hsfl.deploy.wire.client_messages import Batch, Gradient
from hsfl.deploy.wire.coded_tensors import coded_bytes, pack_coded, unpack_coded
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.messages import expect_any_message, pack_message
from hsfl.errors import InputError
from hsfl.training.codecs.codec import Codec
from hsfl.training.codecs.link_codecs import LinkCodecs, make_codec
from hsfl.training.link import Link, draws_of
from hsfl.training.step import StepKey
from tests.deploy.fleet import RUN, changed
from tests.naming import raises
from tests.training.codecs.tensors import same_order, tensors

KEY = StepKey(1, 2, 3, 4)
CUT, SAMPLES = 2, 20


def codec(name: str) -> Codec:
    made = make_codec(CodecChoice(CODECS[name], 0.25))
    assert made is not None
    return made


@settings(max_examples=60, deadline=None)
@given(tensors((torch.float32, torch.float64)), st.sampled_from(sorted(CODECS)), st.sampled_from([UP, DOWN]))
def test_what_arrives_is_what_a_link_of_a_simulation_gives(tensor: Tensor, name: str, direction: str) -> None:
    route = f"client_main_{direction}"
    link = Link(LinkCodecs(up=codec(name), down=codec(name)))
    simulated = link.carry(route, tensor, KEY)
    message = pack_message(Batch(0), pack_coded("x", tensor, codec(name), direction, draws_of(KEY, direction)))
    _, arrays = expect_any_message(message, Batch)
    arrived = unpack_coded("x", arrays, codec(name), tensor.shape, tensor.dtype)
    assert torch.equal(arrived, simulated)
    assert same_order(arrived, simulated)
    assert coded_bytes("x", arrays) == getattr(link.bytes, route)


def coded_kit(**link: str) -> ModelKit:
    return make_kit(parse_config(changed(RUN, link=link)), (1, 8, 8), 10)


def tail(kit: ModelKit) -> Tail:
    state = kit.initial[CUT : kit.num_units].clone()
    return Tail(kit, 0, 0, "ada", CUT, SAMPLES, state, kit.make_part(CUT, kit.num_units), 0.01)


def batch(kit: ModelKit, size: int = 8) -> dict[str, Tensor]:
    smashed = torch.rand(size, *kit.shapes[CUT])
    return pack_coded("smashed", smashed, kit.codecs_of(None).up, UP, None) | {"labels": torch.arange(size) % 10}


def test_a_step_is_answered_with_a_coded_gradient() -> None:
    kit = coded_kit(up="int8", down="int8")
    made = tail(kit)
    loss, gradient = made.compute(batch(kit))
    assert set(gradient) == {"gradient.values", "gradient.scales"}
    _, arrived = expect_any_message(made.answer(loss, gradient, 0.0, 0.0, 0), Gradient)
    assert set(arrived) == {"loss", *gradient}
    assert made.down_bytes == sum(array.nbytes for array in gradient.values())
    assert len(pack_message(Batch(0), batch(kit))) < kit.batch_bytes


def wrong_scale(scale: float):  # type: ignore[no-untyped-def]
    def change(arrays: dict[str, Tensor]) -> None:
        arrays["smashed.scales"][1] = scale

    return change


def uncoded(arrays: dict[str, Tensor]) -> None:
    arrays["smashed"] = torch.rand(8, *coded_kit().shapes[CUT])


def not_finite(arrays: dict[str, Tensor]) -> None:
    arrays["smashed"] = torch.full((8, *coded_kit().shapes[CUT]), math.nan)


@pytest.mark.parametrize(
    ("change", "reason", "parts"),
    [
        (wrong_scale(math.nan), "codec", ("scale", "nan")),
        (wrong_scale(math.inf), "codec", ("scale", "inf")),
        (wrong_scale(0.0), "codec", ("scale", "above 0")),
        (wrong_scale(-1.0), "codec", ("scale", "-1")),
        (lambda arrays: arrays.pop("smashed.scales"), "codec", ("without scales",)),
        (lambda arrays: arrays.update({"smashed.more": torch.zeros(1000)}), "codec", ("'more'",)),
        (lambda arrays: arrays.update({"smashed.values": torch.zeros(9, 4, dtype=torch.int8)}), "codec", ("values", "(9, 4)")),
        (uncoded, "codec", ("uncoded",)),
        (not_finite, "not_finite", ("NaN",)),
    ],
)  # fmt: skip
def test_a_hostile_payload_is_refused_with_a_reason(change, reason: str, parts: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    """`TrainHandler.train` drops the client with this reason, and the others go on."""
    kit = coded_kit(up="int8")
    made, arrays = tail(kit), batch(kit)
    change(arrays)
    with raises(WireError, *parts) as caught:
        made.compute(arrays)
    assert caught.value.reason == reason
    assert made.step == 0


def test_names_of_a_batch() -> None:
    made = tail(coded_kit(up="int8"))
    assert made.takes(["smashed.values", "smashed.scales", "labels"])
    for names in (["labels"], ["smashed"], ["smashed", "labels", "more"], ["smashedvalues", "labels"], []):
        assert not made.takes(names)
    plain = tail(coded_kit())
    with raises(WireError, "without smashed"):
        plain.compute(batch(coded_kit(up="int8")))


def test_a_number_that_is_none_travels_as_it_is_and_is_refused_there() -> None:
    kit = coded_kit(up="float16")
    smashed = torch.full((8, *kit.shapes[CUT]), math.inf)
    arrays = pack_coded("smashed", smashed, kit.codecs_of(None).up, UP, None)
    assert set(arrays) == {"smashed"}
    with raises(WireError, "NaN or infinite") as caught:
        tail(kit).compute(arrays | {"labels": torch.zeros(8, dtype=torch.int64)})
    assert caught.value.reason == "not_finite"


def test_devices_get_the_codecs() -> None:
    config = parse_config(changed(RUN, link={"up": "topk:0.2", "down": "int8"}))
    assert received_config(sent_settings(config)).link == config.link
    run = changed(RUN, link={"up": "int8"})
    assert link_choices(run_config(MainSettings(run=run)).link).text() == "link.up=int8"
    mixed = changed(RUN, link={"codecs": ["int8"] * (RUN["fleet"]["num_clients"] - 1) + ["topk:0.2/none"]})
    config = run_config(MainSettings(run=mixed))
    assert received_config(sent_settings(config)).link == config.link
    kit = dataclasses.replace(coded_kit(up="int8"), config=config)
    assert kit.codecs_of("topk:0.2/none").down is None
    assert kit.codecs_of("int8") == coded_kit(up="int8", down="int8").codecs_of(None)
    with raises(WireError, "'float16'", "int8", "topk:0.2/none"):
        kit.codecs_of("float16")
    points = {"allowed": ["none", "int8"], "points": "points.csv", "max_points": 1.0}
    sent = received_config(sent_settings(parse_config(changed(RUN, fleet={"cuts": "planned"}, link=points)))).link
    assert (sent.allowed, sent.points, sent.max_points) == (("none", "int8"), None, None), (
        "no file of this machine is named"
    )
    with raises(InputError, "run.link.codecs", "1 entries"):
        run_config(MainSettings(run=changed(RUN, link={"codecs": ["int8"]})))
    longer = dataclasses.replace(coded_kit(up="topk:1.0"))
    assert longer.batch_bytes > 8 * 4 * 64
