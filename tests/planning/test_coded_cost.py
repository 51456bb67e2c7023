"""A cost table under codecs: bits by hand, operations to whoever codes, and no codec charged twice."""

import numpy as np
import pytest

import hsfl
from hsfl.codec_table import LinkChoices, link_choices
from hsfl.config import read_config
from hsfl.errors import InputError
from hsfl.models.cost_table import CostTable
from hsfl.planning.coded_cost import coded_cost, coding_work
from tests.naming import names, raises
from tests.small_runs import tiny

BATCH = 8


@pytest.fixture(scope="module")
def cost() -> CostTable:
    return hsfl.cost("cnn", (1, 12, 12), 4, BATCH)


def choices(**link: str) -> LinkChoices:
    return link_choices(read_config(None, [f"link.{name}={text}" for name, text in link.items()]).link)


def test_bits_by_hand(cost: CostTable) -> None:
    """The small CNN on 1x12x12: 16x6x6 after the first unit, 64 numbers after the fourth."""
    coded = coded_cost(cost, choices(up="int8", down="topk:0.25", model="int8"), BATCH)
    assert coded.smashed_bits[1] == 8 * (16 * 36 + 4 * 16 / BATCH)  # a scale for each channel, once a batch
    assert coded.smashed_bits[4] == 8 * (64 + 4)  # a scale for each sample
    assert coded.gradient_bits[1] == 8 * (4 * 16 * 36 / 4 + 16 * 36 / 8)  # float32 and a mask
    assert coded.gradient_bits[0] == 0
    assert coded.smashed_bits[5] == 0
    weights, norm = 9 * 16 + 16, 2 * 16
    assert coded.model_bits[1] == 8 * (
        weights + norm + 4 * 4 + 4 * 2 * 16 + 8
    )  # four parameters; BatchNorm's buffers as they are
    np.testing.assert_array_equal(coded.down_bits, cost.model_bits)


def test_operations_are_of_whoever_codes(cost: CostTable) -> None:
    up_alone = coded_cost(cost, choices(up="float16"), BATCH)
    numbers = 16 * 36
    assert up_alone.client_forward_flops[1] - cost.client_forward_flops[1] == 4 * numbers
    assert up_alone.server_forward_flops[1] - cost.server_forward_flops[1] == 2 * numbers
    np.testing.assert_array_equal(up_alone.client_backward_flops, cost.client_backward_flops)
    np.testing.assert_array_equal(up_alone.gradient_bits, cost.gradient_bits)
    work = coding_work(cost, choices(down="int8"))
    assert work.server.backward[1] == 6 * numbers
    assert work.client.backward[1] == 2 * numbers
    assert work.server.backward[0] == 0


def test_none_is_the_table_itself_and_no_codec_is_charged_twice(cost: CostTable) -> None:
    assert coded_cost(cost, choices(), BATCH) is cost
    with raises(InputError, "smashed_shapes", "hsfl cost", "link.up"):
        coded_cost(coded_cost(cost, choices(up="int8"), BATCH), choices(up="int8"), BATCH)


def test_a_coded_plan_is_shorter_and_says_so() -> None:
    words = ["allocation.samples=1", "train.rounds=1", "fleet.cuts=1"]
    plain, coded = (hsfl.plan(tiny(*words, *link)) for link in ((), ("link.up=topk:0.1", "link.down=int8")))
    assert coded.round_s < plain.round_s
    assert not any("link." in note for note in plain.notes)
    names(next(note for note in coded.notes if "link." in note), "link.up=topk:0.1", "link.down=int8", "docs/codecs.md")
    assert any("depends on the data" in note for note in coded.notes)


def test_the_table_that_people_see_is_coded(cost: CostTable) -> None:
    shown = hsfl.cost("cnn", (1, 12, 12), 4, BATCH, settings=["link.up=int8"])
    assert shown.smashed_bits[4] == 8 * 68
    np.testing.assert_array_equal(shown.gradient_bits, cost.gradient_bits)
