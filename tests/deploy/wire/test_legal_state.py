"""Which buffers of a model have a legal range, and that an honest step never leaves it."""

import pytest
import torch
from torch import nn

from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.legal_state import MOST_CALLS, LegalRanges
from hsfl.models.state import UnitState, read_state
from hsfl.models.units import SplitModel
from hsfl.training.aggregate import EXACT_INTEGERS, PartialSum
from tests.naming import raises


class OwnNorm(nn.Module):
    """Not torch's class, and the same buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_var", torch.ones(2))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / self.running_var


class Named(nn.Module):
    """A parameter that is called as a buffer of BatchNorm's and may be negative."""

    def __init__(self) -> None:
        super().__init__()
        self.running_var = nn.Parameter(-torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.running_var


def model() -> SplitModel:
    norms = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))
    return SplitModel([nn.Sequential(nn.Linear(2, 2), norms), OwnNorm(), Named(), nn.InstanceNorm1d(2)])


def changed(name: str, value: float) -> UnitState:
    state = read_state(model())
    state.named()[name].fill_(value)
    return state


def test_buffers_are_found_by_the_type_of_their_layer() -> None:
    ranges = LegalRanges.of(model())
    assert ranges.variances == {"0.1.0.running_var", "1.running_var"}
    assert ranges.counters == {"0.1.0.num_batches_tracked", "1.num_batches_tracked"}


def test_what_training_gives_is_legal() -> None:
    whole, before = model().train(), read_state(model())
    ranges, steps = LegalRanges.of(whole), 5
    for _ in range(steps):
        whole.units[0](torch.randn(8, 2))
    ranges.check(read_state(whole), before, steps, 100.0)
    ranges.check(before)


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("0.1.0.running_var", -1.0, ("0.1.0.running_var", "-1", "at least 0")),
        ("1.running_var", -1e-30, ("1.running_var", "-1e-30", "at least 0")),
        ("0.1.0.num_batches_tracked", -1, ("0.1.0.num_batches_tracked", "-1", f"0 to {3 * MOST_CALLS}")),
        ("1.num_batches_tracked", 3 * MOST_CALLS + 1, ("1.num_batches_tracked", f"{3 * MOST_CALLS + 1}")),
        ("1.num_batches_tracked", 2**62, (f"{2**62}", "averaged")),
        ("1.num_batches_tracked", -(2**63), (f"{-(2**63)}", "averaged")),
    ],
)
def test_an_illegal_value_is_refused_by_name(name: str, value: float, parts: tuple[str, ...]) -> None:
    with raises(WireError, *parts) as refused:
        LegalRanges.of(model()).check(changed(name, value), read_state(model()), 3, 100.0)
    assert refused.value.reason == "range"


@pytest.mark.parametrize("weight", [1.0, 7.0, 1000.0, 12_345.0])
def test_integers_that_are_let_in_can_be_summed_and_the_next_ones_need_not(weight: float) -> None:
    """For any clients of this weight in all, whatever the grid of their sum is: the check on arrival is the stricter one."""
    ranges, most = LegalRanges(frozenset(), frozenset()), int(EXACT_INTEGERS / (2 * weight))
    for value in (most, -most):
        state = changed("1.num_batches_tracked", value)
        ranges.check(state, weight=weight)
        PartialSum.zero(state, weight).add(state, weight)
    with raises(WireError, "averaged"):
        ranges.check(changed("1.num_batches_tracked", most + 1), weight=weight)
