"""Who is benched, and for how many rounds: a state machine without a clock, a seat at a time.

A client whose updates or messages are refused again and again, or that is often late, sits out some rounds and is then tried
again. If it fails again before it is forgiven, the next sentence is twice as long, up to a longest one, so that a permanent straggler costs tau ever
more seldom. Lateness is forgiven after as many kept rounds in a row as late rounds bench (`BenchRules.after`): one kept round between
late ones forgives nothing. Offences are forgiven after FORGIVEN_AFTER kept rounds in a row.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

FORGIVEN_AFTER = 10  # kept rounds in a row, after which offences no longer count
MOST_DOUBLINGS = 30  # beyond any number of rounds; keeps the power of two small


class RoundOutcome(StrEnum):
    """How a round ended for a client that was in it."""

    KEPT = "kept"
    LATE = "late"
    OFFENCE = "offence"
    NO_FAULT = "no fault"  # it left in good order, or was revoked


BLAMELESS = ("disconnected", "revoked", "stale", "replaced", "ended")  # reasons of a drop that are nobody's offence


def outcome_of_drop(reason: str) -> RoundOutcome:
    """What a drop with this reason (of `metrics.REASONS`) says of a client. A reason that is not known is an offence: servers drop for
    what is wrong with a message or an update."""
    if reason == "late":
        return RoundOutcome.LATE
    return RoundOutcome.NO_FAULT if reason in BLAMELESS else RoundOutcome.OFFENCE


def without_common_faults(outcomes: dict[str, RoundOutcome], reasons: dict[str, str]) -> dict[str, RoundOutcome]:
    """The outcomes by client, where faults that all clients share are nobody's: if nobody was kept, then the time limit may be
    too short, the learning rate too high, or a server at fault (`other`). reasons: of the drops, by client."""
    if RoundOutcome.KEPT in outcomes.values():
        return outcomes
    shared = ("late", "diverged", "not_finite", "other")
    return {
        name: RoundOutcome.NO_FAULT if reasons.get(name) in shared else outcome for name, outcome in outcomes.items()
    }


@dataclass(frozen=True)
class BenchRules:
    """after: offences, or late rounds, that bench a seat, and kept rounds in a row that forgive lateness; 0 benches nobody. first: rounds of
    the first sentence; every next one is twice as long, up to `longest`."""

    after: int = 3
    first: int = 2
    longest: int = 32


@dataclass(frozen=True)
class Conduct:
    """What counts of a client's rounds so far."""

    offences: int = 0  # that are not forgiven
    late: int = 0  # late rounds that are not forgiven
    good: int = 0  # kept rounds in a row
    sentences: int = 0  # that are not forgiven
    rounds_left: int = 0  # that the client sits out
    why: str = ""  # of the last sentence

    @property
    def is_benched(self) -> bool:
        return self.rounds_left > 0


def after_waiting(conduct: Conduct) -> Conduct:
    """A round has been completed: a client that is benched has one round less to sit out."""
    return replace(conduct, rounds_left=max(conduct.rounds_left - 1, 0))


def after_round(rules: BenchRules, conduct: Conduct, outcome: RoundOutcome, reason: str = "") -> Conduct:
    """The conduct of a client that was in a round. reason: why it was dropped, in words."""
    if outcome == RoundOutcome.NO_FAULT or not rules.after:
        return conduct
    if outcome == RoundOutcome.KEPT:
        good = conduct.good + 1
        late = 0 if good >= min(rules.after, FORGIVEN_AFTER) else conduct.late
        is_forgiven = good >= FORGIVEN_AFTER if conduct.offences else not late
        return Conduct() if is_forgiven else replace(conduct, late=late, good=good)
    late, offences = conduct.late + (outcome == RoundOutcome.LATE), conduct.offences + (outcome == RoundOutcome.OFFENCE)
    failed = replace(conduct, late=late, offences=offences, good=0)
    is_over_limit = late >= rules.after or offences >= rules.after
    return _sentenced(rules, failed, outcome, reason) if is_over_limit or conduct.sentences else failed


def _sentenced(rules: BenchRules, conduct: Conduct, outcome: RoundOutcome, reason: str) -> Conduct:
    rounds = min(rules.first * 2 ** min(conduct.sentences, MOST_DOUBLINGS), max(rules.longest, rules.first))
    if outcome == RoundOutcome.LATE:
        why = "it was late in a round" if conduct.late == 1 else f"it was late in {conduct.late} rounds"
        why += f" ({rules.after} kept in a row forgive that)" if rules.after > 1 else ""
    else:
        count = conduct.offences
        why = f"an update or message of it was refused: {reason}"
        why = why if count == 1 else f"{count} updates or messages of it were refused, the last one: {reason}"
    rounds_left = max(conduct.rounds_left, rounds)
    return replace(conduct, sentences=conduct.sentences + 1, rounds_left=rounds_left, why=why)
