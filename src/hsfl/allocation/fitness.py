"""The mean round of candidate cuts, remembered: what the methods of `cut_methods` ask where links are a radio.

Legend: K clients, I subchannels, S samples, P candidates.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from hsfl.allocation import samples as packed
from hsfl.allocation.draw import random_scenario
from hsfl.allocation.joint import exact
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.solving import TimeLimit

Array = np.ndarray


@cache
def _compile() -> None:
    """Compile the functions of `samples` (or load them) before any clock runs."""
    tiny = packed.pack([random_scenario(np.random.default_rng(0), 2, 2)])
    cuts, owners, none = np.ones((1, 2), np.int64), np.full((2, 1, 2), -1), np.zeros((0, 0, 0, 0))
    packed.warm_owners(tiny, cuts[0], owners)
    packed.evaluate_all(tiny, cuts, owners)
    packed.predict(tiny, cuts[0], owners, none)


class Fitness:
    """Mean rounds of candidates in seconds, [P, K] -> [P]: by local search where subchannels are exclusive, by shares to
    0.5 % where bands are shared. `limit_s`: seconds for one sample of shared bands.
    """

    def __init__(self, scenarios: Sequence[Scenario], threads: int = 1, limit_s: float = 5.0) -> None:
        self.samples = packed.pack(scenarios)
        _compile()
        self.scenarios = list(scenarios)
        self.scenario = scenarios[0]
        self.threads = threads
        self.limit_s = limit_s
        self.evaluations = 0
        self.clock = TimeLimit(np.inf)  # without time left, a candidate is not valued: its round is infinite
        self.pace_s = 0.0  # seconds that a candidate took the last time
        self.known: dict[tuple[int, ...], float] = {}
        self.rounds: dict[tuple[int, ...], Array] = {}  # [S] of each known candidate
        shape = (2, len(scenarios), self.scenario.num_subchannels)
        self.owners = np.full(shape, -1)
        if self.scenario.sharing == "exclusive":
            start = np.full(self.scenario.num_clients, self.scenario.min_cut)
            packed.warm_owners(self.samples, start, self.owners)

    def __call__(self, cuts: Array) -> Array:
        rows = [tuple(row) for row in np.asarray(cuts, np.int64).tolist()]
        new = list(dict.fromkeys(row for row in rows if row not in self.known))
        at_once = 2 * self.threads if self.scenario.sharing == "exclusive" else 1
        for first in range(0, len(new), at_once):
            if self.known and not self.has_time():
                break
            some, began_s = new[first : first + at_once], self.clock.seconds()
            round_s = self._evaluate(np.array(some, np.int64))
            self.evaluations += len(some)
            self.known.update(zip(some, round_s.mean(axis=1).tolist(), strict=True))
            self.rounds.update(zip(some, round_s, strict=True))
            self.pace_s = (self.clock.seconds() - began_s) / len(some)
        return np.array([self.known.get(row, np.inf) for row in rows])

    def has_time(self) -> bool:
        """Whether the clock leaves time for another candidate."""
        return self.clock.left_s() > self.pace_s

    def _evaluate(self, cuts: Array) -> Array:
        if self.scenario.sharing == "exclusive":
            return packed.evaluate_all(self.samples, cuts, self.owners, self.threads)
        return np.array(
            [[exact(s, c, gap=5e-3, time_limit_s=self.limit_s).round_s for s in self.scenarios] for c in cuts]
        )

    def predict(self, cuts: Array) -> Array:
        """About how many seconds another cut of one client of cuts [K] would save, [K, C], also for cuts that it may not take."""
        shares = np.zeros((0, 0, 0, 0)) if self.scenario.sharing == "exclusive" else self._shares(cuts)
        return packed.predict(self.samples, cuts, self.owners, shares)

    def _shares(self, cuts: Array) -> Array:
        """Shares of both stages for cuts [K], [2, S, K, I]."""
        answers = [exact(s, cuts, gap=5e-3, time_limit_s=self.limit_s) for s in self.scenarios]
        return np.stack([[a.share for a in answers], [a.edge_down_share for a in answers]])

    def best(self, count: int) -> list[Array]:
        """The best candidates [K] that were valued, from the best, all different."""
        ranked = sorted(self.known, key=lambda row: (self.known[row], row))
        return [np.array(row) for row in ranked[:count]]
