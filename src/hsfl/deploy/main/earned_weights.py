"""What a client counts in the average of a round: at most what it claims, what the operator allows, and what the main server sees of it.

Below the cut num_units the main server sees every sample pass: a client that does not send as many as it claims is dropped
(`Tail.finish`). At the cut num_units it sees nothing, and a client could claim any number without work. There a client counts at most
twice the median of what the other clients of the round count, unless the operator gives its seat `max_samples`. None of this proves
that a client is honest: samples can be made up, and sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

TIMES_MEDIAN = 2  # of the others, at most, where the main server sees nothing


@dataclass(frozen=True)
class Claim:
    """What a client of a round says that it has, and what is known of it."""

    name: str
    num_samples: int
    cut: int
    most: int | None = None  # the operator's `max_samples` for its seat

    @property
    def allowed(self) -> int:
        return self.num_samples if self.most is None else min(self.num_samples, self.most)


@dataclass(frozen=True)
class EarnedWeight:
    """What a client counts, and why it is less than the client claims; None where it is not."""

    weight: int
    why: str | None = None


def earned_weights(claims: Mapping[int, Claim], num_units: int) -> dict[int, EarnedWeight]:
    """What each client counts, by seat."""
    return {seat: _earned(seat, claims, num_units) for seat in claims}


def _earned(seat: int, claims: Mapping[int, Claim], num_units: int) -> EarnedWeight:
    claim = claims[seat]
    if claim.most is not None:
        return EarnedWeight(claim.allowed, "max_samples of its seat" if claim.allowed < claim.num_samples else None)
    others = [other.allowed for place, other in claims.items() if place != seat]
    if claim.cut < num_units or not others:
        return EarnedWeight(claim.num_samples)
    cap = max(1, int(TIMES_MEDIAN * median(others)))
    if claim.num_samples <= cap:
        return EarnedWeight(claim.num_samples)
    return EarnedWeight(
        cap,
        f"{TIMES_MEDIAN} times the median of the others, since it trains the whole model itself and the main server sees "
        "none of its samples; max_samples in the main server's file gives it more",
    )


def weight_note(name: str, num_samples: int, earned: EarnedWeight) -> str:
    """What the page says of a client that counts less than it claims."""
    return f"{name} claims {num_samples:,} samples and counts as {earned.weight:,}: {earned.why}"
