"""Hooks see both sides of a cut by unit, cost nothing where nobody has one, and lose nothing in silence."""

import dataclasses
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from hsfl.deploy.settings import MainSettings, run_config
from hsfl.errors import InputError
from hsfl.framework_table import HOOK_ARGUMENTS, register_framework
from hsfl.frameworks.copy_per_client import FSL, HSFL, SplitFedV1
from hsfl.frameworks.fl_cl import FL
from hsfl.frameworks.framework import RoundResult, State, checked_round
from hsfl.frameworks.hooks import HOOKS, Hooks, overridden_hooks
from hsfl.models.state import TensorsByClient
from tests.laws.bench import make_task
from tests.naming import raises
from tests.plugins.files import unload

CUTS, COUNTS = [0, 2, 5], [5, 9, 8]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    unload()


class Watches(HSFL):
    """Overrides hooks and changes nothing."""

    def first_memory(self, client: int) -> dict[str, Tensor]:
        return {"calls": torch.zeros(2, dtype=torch.int64)}

    def adjust_gradients(self, turn: Any, parameters: dict[str, Any]) -> None:
        assert all(parameter.grad is not None for parameter in parameters.values())
        turn.memory["calls"][0] += len(parameters)

    def before_sum(self, turn: Any, trained: Any) -> None:
        assert (trained.start, trained.stop) == (0, self.task.num_units)
        assert not torch.equal(trained.floats, turn.before.floats)
        turn.memory["calls"][1] += turn.num_steps

    def server_step(self, turn: Any) -> None:
        assert list(turn.weights) == [0, 1, 2]


def test_both_sides_are_seen_in_every_step_and_what_changes_nothing_changes_no_bit() -> None:
    task = make_task(CUTS, COUNTS)
    plain, watched = HSFL(task), Watches(task)
    states = plain.init(), watched.init()
    for index in range(2):
        states = tuple(f.round(s, [0, 1, 2], index)[0] for f, s in zip((plain, watched), states))
    for holder, units in states[0].units.items():
        assert torch.equal(units.floats, states[1].units[holder].floats)
    num_parameters, steps = len(list(task.model.parameters())), [1, 2, 2]  # 5 and 9 have a single sample left over
    calls = {k: memory["calls"].tolist() for k, memory in states[1].memory.items()}
    assert calls == {k: [2 * n * num_parameters, 2 * n] for k, n in enumerate(steps)}


@pytest.mark.parametrize("kind", [HSFL, SplitFedV1, FSL, FL])
def test_a_framework_without_hooks_is_asked_for_none(kind: type[HSFL], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HOOKS[:-2]:
        if callable(getattr(Hooks, name)):
            monkeypatch.setattr(Hooks, name, None)
    framework = kind(make_task([2, 2, 2], COUNTS))
    assert (framework.hooks, framework.hooks_clients) == ((), False)
    state, _ = framework.round(framework.init(), [0, 1, 2], 0)
    assert framework.head_part.before_step is None
    assert (state.tensors, state.memory) == ({}, {})


def test_the_state_that_a_round_starts_from_is_not_changed() -> None:
    class Writes(Watches):
        def init(self) -> State:
            return State(super().init().units, {"shared": torch.zeros(1)})

        def server_step(self, turn: Any) -> None:
            turn.tensors["shared"] += 1
            turn.mean.floats.zero_()

    framework = Writes(make_task(CUTS, COUNTS))
    first, _ = framework.round(framework.init(), [0, 1, 2], 0)
    before = pickle.dumps((first.tensors, first.memory, first.units))
    second, _ = framework.round(first, [0, 1, 2], 1)
    assert pickle.dumps((first.tensors, first.memory, first.units)) == before
    assert (first.tensors["shared"].item(), second.tensors["shared"].item()) == (1, 2)
    (whole,) = framework.models(second)
    assert not whole.floats.any()  # both servers took their units from the step


def test_a_round_of_nobody_makes_no_step() -> None:
    class Zero(HSFL):
        def server_step(self, turn: Any) -> None:
            turn.mean.floats.zero_()

    framework = Zero(make_task(CUTS, COUNTS))
    (whole,) = framework.models(framework.round(framework.init(), [], 0)[0])
    assert torch.equal(whole.floats, framework.task.initial.floats)


def test_own_heads_have_hooks_too() -> None:
    """FSL whose clients keep their heads: the servers step with what they have, the tails."""

    class Halves(FSL):
        def before_sum(self, turn: Any, trained: Any) -> None:
            trained.floats.copy_((trained.floats + turn.before.floats) / 2)

        def server_step(self, turn: Any) -> None:
            assert (turn.mean.start, turn.before.start) == (2, 2)
            turn.mean.floats.mul_(2)

    task = make_task([2, 2, 2], COUNTS, options={"fsl": {"average": "server"}})
    plain, halves = FSL(task), Halves(task)
    (full, _), (half, _) = (f.round(f.init(), [0, 1, 2], 0) for f in (plain, halves))
    start = plain.init()
    for holder, units in half.units.items():
        mean = (full.units[holder].floats + start.units[holder].floats) / 2
        expected = 2 * mean if holder == "main" else mean
        torch.testing.assert_close(units.floats, expected, rtol=1e-10, atol=1e-12)


# --- mistakes


def wrong(**body: Any) -> HSFL:
    return type("Wrong", (HSFL,), body)(make_task(CUTS, COUNTS))


def again(self: HSFL, turn: Any) -> None:
    self.train_again(turn, turn.before)


def again_too_late(self: HSFL, turn: Any, trained: Any) -> None:
    self.train_again(turn, turn.before)


def forgets(self: HSFL, turn: Any, trained: Any) -> None:
    del turn.memory["a"]


def sends(self: HSFL, turn: Any, trained: Any) -> None:
    turn.sent["a"] = torch.zeros(3)


MEMORY = {"first_memory": lambda self, client: {"a": torch.zeros(1)}}


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ({"before_training": again}, ("Wrong", "2 passes", "set passes = 2")),
        ({"before_sum": again_too_late}, ("train_again", "call it in before_training")),
        ({"passes": 2}, ("1 passes", "passes is 2")),
        ({"extra_bytes": lambda self, cut: 8}, ("Wrong.extra_bytes gives 8", "two whole numbers")),
        ({"before_sum": sends}, ("12 bytes up", "extra_bytes says 0")),
        ({"before_sum": lambda s, turn, t: turn.sent.update(a=3.0)}, ("sent has 'a'", "named tensors")),
        ({"first_memory": lambda self, client: [1]}, ("first_memory is a list", "named tensors")),
        (MEMORY | {"before_sum": forgets}, ("memory of client 0", "'a'", "first_memory")),
        ({"server_step": lambda self, turn: turn.tensors.update(a=1)}, ("tensors has 'a'", "named tensors")),
    ],
)
def test_what_would_be_lost_or_not_charged_is_an_error(body: dict[str, Any], parts: tuple[str, ...]) -> None:
    framework = wrong(**body)
    with raises(InputError, *parts):
        framework.round(framework.init(), [0, 1, 2], 0)


def test_a_hook_with_other_arguments_is_not_registered() -> None:
    assert {*HOOK_ARGUMENTS, "passes"} == {*HOOKS}
    with raises(InputError, "'mine': before_sum", "self, turn, trained"):
        register_framework("mine", type("Mine", (HSFL,), {"before_sum": lambda self, turn: None}))


def test_a_round_that_forgets_what_clients_remember_is_an_error() -> None:
    class Forgets(Watches):
        def round(self, state: State, kept: Any, round_index: int) -> tuple[State, RoundResult]:
            after, result = super().round(state, kept, round_index)
            return State(after.units), result

    framework = Forgets(make_task(CUTS, COUNTS))
    first = Watches(framework.task).round(framework.init(), [0, 1, 2], 0)[0]
    with raises(InputError, "Forgets.round", "memory of client 0"):
        checked_round(framework, first, framework.round(first, [0, 1, 2], 1))
    checked_round(framework, framework.init(), framework.round(framework.init(), [0, 1, 2], 0))


def test_memory_that_is_no_number_ends_the_run() -> None:
    state = State({}, {}, TensorsByClient({3: {"a": torch.tensor([1.0, float("nan")])}}))
    assert not state.is_finite()
    assert dataclasses.replace(state, memory=TensorsByClient()).is_finite()


def test_tensors_cross_a_border_as_bytes() -> None:
    """Views, numbers without dimensions and integers, too."""
    row = torch.arange(6.0)
    tensors = TensorsByClient({0: {"a/b": row[1:3], "one": torch.tensor(7)}, 12: {"a/b": row.view(2, 3).T}})
    other = pickle.loads(pickle.dumps(tensors))
    assert isinstance(other, TensorsByClient)
    assert other.keys() == tensors.keys()
    for client, named in tensors.items():
        assert named.keys() == other[client].keys()
        assert all(torch.equal(tensor, other[client][name]) for name, tensor in named.items())


@pytest.mark.parametrize("body", [{"server_step": lambda s, t: None}, {"passes": 2}, {"round": lambda *a: None}])
def test_real_machines_refuse_a_framework_of_this_kind(body: dict[str, Any]) -> None:
    register_framework("mine", type("Mine", (HSFL,), body))
    with raises(InputError, "run.framework is 'mine'", f"whose {next(iter(body))}", "hsfl run"):
        run_config(MainSettings(run={"framework": "mine"}))
    assert overridden_hooks(HSFL) == ()
    for name in ("hsfl", "splitfed_v1", "fl", "fsl"):
        assert run_config(MainSettings(run={"framework": name})).framework == name
