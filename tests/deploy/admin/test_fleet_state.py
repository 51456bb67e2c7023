"""The state of a fleet: laws over orders and rounds, and what is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.config import parse_config
from hsfl.deploy.admin.benching import BenchRules, Conduct, RoundOutcome
from hsfl.deploy.admin.fleet_state import (
    FleetFacts,
    FleetState,
    Hold,
    after_attempt,
    after_completed_round,
    after_event,
    check_event,
)
from hsfl.deploy.admin.operator_events import OperatorEvent
from hsfl.errors import InputError
from tests.deploy.admin.test_operator_events import EVENTS, NAME
from tests.deploy.fleet import RUN, changed
from tests.naming import raises

RULES = BenchRules(after=1, first=2, longest=8)
ROUNDS = st.dictionaries(NAME, st.sampled_from(RoundOutcome))
CLIENTS = ("ada", "bo", "ward-3")


def after_step(state: FleetState, step: OperatorEvent | dict[str, RoundOutcome]) -> FleetState:
    if isinstance(step, OperatorEvent):
        return after_event(state, step)
    return after_completed_round(state, RULES, step, {})


@st.composite
def states(draw: st.DrawFn) -> FleetState:
    state = FleetState()
    for step in draw(st.lists(EVENTS | ROUNDS, max_size=12)):
        state = after_step(state, step)
    return state


BENCHED = st.dictionaries(NAME, st.builds(Conduct, rounds_left=st.integers(0, 3)))
ORDERED_OUT = st.dictionaries(NAME, st.just("sold"), max_size=1)
HELD = st.dictionaries(NAME, st.builds(Hold, st.none() | st.integers(1, 3), st.just("")), max_size=1)


@given(
    st.builds(FleetState, kicked=ORDERED_OUT, held=HELD, conducts=BENCHED),
    st.sets(st.sampled_from(CLIENTS)),
    st.integers(0, 4),
)
def test_who_is_admitted(state: FleetState, present: set[str], fewest: int) -> None:
    """Nobody against an order. Nobody that the rules have benched, unless the round would lack clients; then not more than it lacks."""
    admitted = state.admitted(present, fewest)
    may = {name for name in present if name not in state.kicked and name not in state.held}
    benched = {name for name in may if state.benched(name) is not None}
    assert may - benched <= admitted <= may
    assert len(admitted) >= min(fewest, len(may))
    if admitted & benched:
        assert len(admitted) == min(fewest, len(may))
        left = {name: state.conducts[name].rounds_left for name in benched}
        assert all(left[early] <= left[later] for early in admitted & benched for later in benched - admitted)


@settings(max_examples=40)
@given(states(), EVENTS)
def test_an_order_given_twice_is_an_order(state: FleetState, event: OperatorEvent) -> None:
    once = after_event(state, event)
    assert after_event(once, event) == once


@settings(max_examples=40)
@given(states(), NAME)
def test_resume_undoes_kick_bench_and_sentences(state: FleetState, name: str) -> None:
    resumed = after_event(state, OperatorEvent("now", "resume", name))
    assert resumed.benched(name) is None
    assert name in resumed.admitted({name}, 0)
    everything = after_event(state, OperatorEvent("now", "resume"))
    assert not everything.paused
    assert not everything.draining
    assert (everything.kicked, everything.held, everything.conducts) == (state.kicked, state.held, state.conducts)


@settings(max_examples=40)
@given(states(), st.integers(1, 20))
def test_a_bench_of_so_many_rounds_lasts_so_many(state: FleetState, rounds: int) -> None:
    """Tries at a round do not count, completed rounds do."""
    state = after_event(state, OperatorEvent("now", "resume", "ada"))
    state = after_event(state, OperatorEvent("now", "bench", "ada", rounds))
    sat_out = 0
    while "ada" not in state.admitted(CLIENTS, 0):
        assert after_attempt(state, RULES, {}, {}).benched("ada") == state.benched("ada")
        state, sat_out = after_completed_round(state, RULES, {}, {}), sat_out + (state.benched("ada") is not None)
        if state.kicked.get("ada"):
            return
    assert sat_out == rounds


@settings(max_examples=40)
@given(states())
def test_who_does_nothing_wrong_leaves_nothing_behind(state: FleetState) -> None:
    fresh = after_completed_round(FleetState(), RULES, dict.fromkeys(CLIENTS, RoundOutcome.KEPT), {})
    assert fresh == FleetState()
    assert set(after_attempt(state, RULES, {}, {}).conducts) <= set(CLIENTS)


def facts(**run: dict[str, object]) -> FleetFacts:
    return FleetFacts(parse_config(changed(RUN, **run)), ("ada", "bo"), {"ada": 3}, 5)


def order(**values: float) -> OperatorEvent:
    return OperatorEvent("now", "set", values={name.replace("__", "."): value for name, value in values.items()})


@pytest.mark.parametrize(
    ("event", "parts"),
    [
        (OperatorEvent("now", "bench", "adda"), ("client", "'adda'", "did you mean ada", "ada, bo")),
        (OperatorEvent("now", "kick"), ("kick", "lacks a client")),
        (OperatorEvent("now", "set"), ("set", "lacks")),
        (order(tau=9), ("setting", "'tau'", "did you mean tau_s", "min_clients")),
        (order(tau_s=0), ("tau_s is 0", "above 0")),
        (order(min_clients=5), ("min_clients is 5", "1 to 4")),
        (order(min_clients=1.5), ("min_clients is 1.5", "whole number")),
        (order(cut__bob=1), ("client", "'bob'", "did you mean bo")),
        (order(cut__ada=4), ("cut.ada is 4", "1 to 3", "memory")),
        (order(cut__bo=6), ("cut.bo is 6", "1 to 5")),
        (order(tau_s=9, cut__bo=1.5), ("cut.bo is 1.5", "whole number")),
    ],
)
def test_an_order_that_cannot_be_meant_is_refused(event: OperatorEvent, parts: tuple[str, ...]) -> None:
    with raises(InputError, *parts):
        check_event(event, facts())


def test_one_cut_for_all_is_no_seats_own() -> None:
    run = FleetFacts(parse_config(changed(RUN, fleet={"cuts": 2}) | {"framework": "splitfed_v1"}), ("ada",), {})
    with raises(InputError, "cut.ada", "splitfed_v1", "leave it out"):
        check_event(order(cut__ada=1), run)
    check_event(order(tau_s=5, min_clients=2), run)
