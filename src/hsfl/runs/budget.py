"""The budget of a run: the simulated seconds that its rounds may take together, `train.budget_s`.

The rule: a round begins only if it would end within the budget even if its model were tested afterwards, because a test may
take simulated seconds, too (`RoundClock.full_s`). So the last round that begins is always tested in time. A run whose next
round does not fit ends with the status `budget`. Training, a sweep that only times rounds, and a comparison that takes over
another run's training all ask the functions below.
"""

import math
from itertools import accumulate

from hsfl.formats import seconds
from hsfl.planning.rounds.round_clock import RoundClock, is_tested


def fits_budget(clock: RoundClock, round_index: int, start_s: float) -> bool:
    """Whether a round (0, 1, ...) that begins at `start_s`, and its test, end within the budget."""
    return start_s + clock.full_s(round_index) <= (clock.job.config.train.budget_s or math.inf)


def is_last_round(clock: RoundClock, round_index: int, start_s: float) -> bool:
    """Whether the round that begins at `start_s` is the run's last: no round is left, or the next round does not fit the budget."""
    train = clock.job.config.train
    if round_index + 1 == train.rounds:
        return True
    if train.budget_s is None:
        return False
    return not fits_budget(clock, round_index + 1, start_s + charged_s(clock, round_index))


def charged_s(clock: RoundClock, round_index: int) -> float:
    """The seconds that a round takes from the budget: with its test, where the settings have it tested."""
    tested = is_tested(clock.job.config.train, round_index)
    return clock.full_s(round_index) if tested else clock.plain_s(round_index)


def count_rounds_within_budget(clock: RoundClock) -> int:
    """How many rounds a run makes: `train.rounds`, or as many as fit the budget."""
    starts_s = accumulate(clock.rounds_s(clock.job.config.train.rounds - 1), initial=0.0)
    return sum(fits_budget(clock, round_index, start_s) for round_index, start_s in enumerate(starts_s))


def budget_for_all_rounds_s(clock: RoundClock) -> float:
    """The budget within which `train.rounds` rounds fit; a little more, so that rounding does not cost the run its last round."""
    return sum(clock.rounds_s(clock.job.config.train.rounds)) * (1 + 1e-9)


def budget_too_short_note(clock: RoundClock) -> str:
    """What to say where not even the first round fits."""
    budget_s = clock.job.config.train.budget_s
    return f"round 1 takes {seconds(clock.full_s(0), 4)} but the budget is {budget_s:g} s, so nothing is trained; train.budget_s sets another"
