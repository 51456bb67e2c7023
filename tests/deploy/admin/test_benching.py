"""Who is benched, and for how long: laws over all histories of a seat."""

import math
from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from hsfl.deploy.admin.benching import (
    FORGIVEN_AFTER,
    BenchRules,
    Conduct,
    RoundOutcome,
    after_round,
    after_waiting,
    outcome_of_drop,
    without_common_faults,
)
from hsfl.deploy.metrics import REASONS
from tests.naming import names

RULES = st.builds(BenchRules, st.integers(1, 5), st.integers(1, 9), st.integers(1, 40))
OUTCOMES = st.lists(st.sampled_from(RoundOutcome), max_size=60)


def history(
    rules: BenchRules, outcomes: Sequence[RoundOutcome]
) -> Iterator[tuple[Conduct, Conduct, RoundOutcome | None]]:
    """Rounds of one seat: conduct before and after, and the outcome; None where the seat sits the round out."""
    conduct, waiting = Conduct(), list(outcomes)
    while waiting:
        before = after_waiting(conduct)
        outcome = None if conduct.is_benched else waiting.pop(0)
        conduct_before, conduct = conduct, before if outcome is None else after_round(rules, before, outcome, "NaN")
        yield conduct_before, conduct, outcome


@given(RULES, OUTCOMES)
def test_every_sentence_ends_and_none_is_longer_than_the_longest(
    rules: BenchRules, outcomes: list[RoundOutcome]
) -> None:
    sat_out = 0
    for _, after, outcome in history(rules, outcomes):
        sat_out = sat_out + 1 if outcome is None else 0
        assert 0 <= after.rounds_left <= max(rules.longest, rules.first)
        assert sat_out <= max(rules.longest, rules.first)


@given(RULES, OUTCOMES)
def test_only_a_fault_benches(rules: BenchRules, outcomes: list[RoundOutcome]) -> None:
    for before, after, outcome in history(rules, outcomes):
        if after.sentences > before.sentences:
            assert outcome in (RoundOutcome.LATE, RoundOutcome.OFFENCE)
            assert after.rounds_left > 0
            names(after.why, *(["late"] if outcome == RoundOutcome.LATE else ["refused", "NaN"]))
        if outcome == RoundOutcome.NO_FAULT:
            assert after == before


@given(RULES, OUTCOMES)
def test_sentences_grow_until_they_are_forgiven(rules: BenchRules, outcomes: list[RoundOutcome]) -> None:
    last = None
    for before, after, _ in history(rules, outcomes):
        if not after.sentences:
            last = None
        elif after.sentences > before.sentences:
            wanted = min(rules.first * 2**before.sentences, max(rules.longest, rules.first))
            assert after.rounds_left == wanted
            assert last is None or wanted >= last
            last = wanted


@given(RULES, st.integers(0, 500))
def test_a_permanent_straggler_costs_tau_ever_more_seldom(rules: BenchRules, num_rounds: int) -> None:
    """It is tried again, though: it may be mended."""
    tried, conduct, longest = 0, Conduct(), max(rules.longest, rules.first)
    for _ in range(num_rounds):
        is_tried, conduct = not conduct.is_benched, after_waiting(conduct)
        if is_tried:
            tried, conduct = tried + 1, after_round(rules, conduct, RoundOutcome.LATE)
    doublings = math.ceil(math.log2(max(longest / rules.first, 1)))
    assert tried <= rules.after + doublings + num_rounds / (longest + 1) + 1
    assert tried >= min(rules.after, num_rounds)
    assert tried >= num_rounds // (longest + 1)


@given(RULES, st.lists(st.lists(st.just(RoundOutcome.LATE), max_size=4), max_size=12))
def test_as_many_kept_rounds_in_a_row_as_late_ones_bench_forgive_lateness(
    rules: BenchRules, runs: list[list[RoundOutcome]]
) -> None:
    kept = [RoundOutcome.KEPT] * min(rules.after, FORGIVEN_AFTER)
    outcomes = [outcome for late in runs for outcome in (*late[: rules.after - 1], *kept)]
    assert all(not after.is_benched for _, after, _ in history(rules, outcomes))
    conduct = Conduct(late=7, sentences=3)
    for number in range(1, rules.after + 1):
        conduct = after_round(rules, conduct, RoundOutcome.KEPT)
        assert (conduct == Conduct()) == (number == rules.after)


@given(RULES.filter(lambda rules: rules.after > 1), st.data())
def test_a_client_that_is_kept_now_and_then_is_benched_and_ever_longer(rules: BenchRules, data: st.DataObject) -> None:
    """Fewer kept rounds between its late ones than forgive lateness do not spare it: late in two of three rounds, it is benched, too."""
    outcomes = []
    for _ in range(rules.after + 4):
        outcomes += [RoundOutcome.KEPT] * data.draw(st.integers(0, min(rules.after, FORGIVEN_AFTER) - 1)) + [
            RoundOutcome.LATE
        ]
    sentences = [after.sentences for before, after, _ in history(rules, outcomes) if after.sentences > before.sentences]
    assert sentences == [1, 2, 3, 4, 5]


def test_a_conduct_of_an_older_checkpoint_means_what_it_meant() -> None:
    """Its late rounds were in a row."""
    assert after_round(BenchRules(), Conduct(late=2), RoundOutcome.LATE).is_benched
    assert not after_round(BenchRules(), Conduct(late=1), RoundOutcome.LATE).is_benched


@given(RULES, OUTCOMES)
def test_offences_are_forgiven_after_some_kept_rounds_in_a_row(rules: BenchRules, outcomes: list[RoundOutcome]) -> None:
    last = Conduct()
    for _, after, _ in history(rules, [*outcomes, *[RoundOutcome.KEPT] * FORGIVEN_AFTER]):
        last = after
    assert last == Conduct()
    few = after_round(rules, Conduct(offences=1), RoundOutcome.KEPT)
    assert (few.offences, few.good) == (1, 1)


@given(OUTCOMES)
def test_no_rule_benches_nobody(outcomes: list[RoundOutcome]) -> None:
    assert all(after == Conduct() for _, after, _ in history(BenchRules(after=0), outcomes))


def test_reasons_of_drops() -> None:
    """Whatever a server refuses is an offence, if it is not known to be nobody's fault."""
    by_reason = {reason: outcome_of_drop(reason) for reason in (*REASONS, "limit", "stale")}
    assert by_reason["late"] == RoundOutcome.LATE
    assert {reason for reason, outcome in by_reason.items() if outcome == RoundOutcome.NO_FAULT} == {
        *("disconnected", "revoked", "stale"),
    }
    assert by_reason["limit"] == by_reason["not_finite"] == RoundOutcome.OFFENCE


def test_what_happens_to_all_is_nobodys_fault() -> None:
    """A time limit that is too short, or a learning rate that is too high, benches nobody. Other offences count all the same."""
    outcomes = {"ada": RoundOutcome.LATE, "bo": RoundOutcome.OFFENCE, "cy": RoundOutcome.OFFENCE}
    reasons = {"ada": "late", "bo": "diverged", "cy": "shape"}
    fair = without_common_faults(outcomes, reasons)
    assert fair == {"ada": RoundOutcome.NO_FAULT, "bo": RoundOutcome.NO_FAULT, "cy": RoundOutcome.OFFENCE}
    somebody = outcomes | {"di": RoundOutcome.KEPT}
    assert without_common_faults(somebody, reasons) == somebody
