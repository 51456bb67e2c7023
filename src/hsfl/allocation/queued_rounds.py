"""Cuts where the main server is one queue (`network.server_queue`): only cuts are chosen, and rounds are made event by event.

Legend: K clients, C rows of the cost table, S samples, P candidates, T the seconds of training, with the download of each client's head before it.

A search begins with the cuts that are best where each client has a share of the server, and changes one client's cut at a time. An event
simulation promises nothing about the cuts that it has not tried, so the answer is a heuristic. `lower_bound_s` holds for all cuts: at a
given T each client needs a row with which it is done by T alone, and the rows with the least work for the server must fit into T:

    min_k (ready_k + before_k) + sum_k min_row N_k serve_k(row) + min_k (after_k + up_k) <= T

Both sides move one way in T, so bisection finds the least T; the end of the round comes on top, without the swap of sums, which takes no
time where all cuts are the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hsfl.allocation.answer import with_gap
from hsfl.allocation.cuts.search import CutChoice, CutRequest, MeanJudge, SampledRounds, single_cuts
from hsfl.allocation.stage.stage_answer import TimeLimit
from hsfl.network.server_queue import QueuedWork, Serve

Array = np.ndarray
BISECTIONS = 60
BETTER = 1e-9  # relative; a change that gains less is rounding


@dataclass(frozen=True)
class QueuedRounds(SampledRounds):
    """Seconds of every client at every row. Seconds before, on and after the server are of one whole batch."""

    before_s: Array  # [S, K, C]
    serve_s: Array  # [K, C]
    after_s: Array  # [S, K, C]
    up_s: Array  # [S, K, C]
    down_s: Array  # [S, K, C]
    num_batches: Array  # [K]
    rows: Array  # [K, C] bool
    serve: Serve
    swap_s: Callable[[Array], float] | None = None  # what the servers' swap takes with cuts [K]
    rest_of_end_s: float = 0.0  # what the other parts of the round's end take, whatever the cuts

    @property
    def num_clients(self) -> int:
        return len(self.num_batches)

    def work(self, sample: int, cuts: Array) -> QueuedWork:
        """The work of one sample with cuts [K]."""
        clients = np.arange(self.num_clients)
        chosen = (sample, clients, cuts)
        return QueuedWork(
            self.before_s[chosen],
            self.serve_s[clients, cuts],
            self.after_s[chosen],
            self.num_batches,
            self.up_s[chosen],
            self.down_s[chosen],
        )

    def round_s(self, cuts: Array) -> Array:
        """The round of every sample with cuts [K], in seconds, [S]."""
        end_s = self.rest_of_end_s + (0.0 if self.swap_s is None else self.swap_s(cuts))
        return np.array(
            [self.serve(self.work(sample, cuts)).training_s + end_s for sample in range(len(self.before_s))]
        )

    def mean_s(self, cuts: Array) -> Array:
        """The mean over samples, candidates [P, K] -> [P]."""
        return np.array([self.round_s(candidate).mean() for candidate in cuts])

    def least_s(self, sample: int) -> float:
        """A lower bound on the round of a sample over all cuts and all orders of service, in seconds."""
        taken = self.rows
        batches = self.num_batches[:, None]
        first_batch = np.minimum(batches, 1.0)
        last = np.minimum(batches - np.ceil(batches) + 1.0, first_batch)
        serve_s = batches * self.serve_s
        rest_s = last * self.after_s[sample] + self.up_s[sample]
        ready_s = self.down_s[sample]
        alone_s = ready_s + batches * (self.before_s[sample] + self.after_s[sample]) + self.up_s[sample] + serve_s
        alone_s = np.where(taken, alone_s, np.inf)

        def fits(training_s: float) -> bool:
            in_time = alone_s <= training_s
            if not in_time.any(axis=1).all():
                return False
            least_serve_s = np.where(in_time, serve_s, np.inf).min(axis=1).sum()
            first_s = (ready_s + first_batch * self.before_s[sample])[in_time].min()
            return bool(first_s + least_serve_s + rest_s[in_time].min() <= training_s)

        low_s = float(alone_s.min(axis=1).max())
        high_s = low_s + float(np.where(taken, serve_s, 0.0).max(axis=1).sum())
        if fits(low_s):
            high_s = low_s
        for _ in range(BISECTIONS):
            middle_s = 0.5 * (low_s + high_s)
            low_s, high_s = (low_s, middle_s) if fits(middle_s) else (middle_s, high_s)
        return low_s + self.rest_of_end_s

    def judge(self, request: CutRequest) -> "QueuedJudge":
        return QueuedJudge(self, request)


class QueuedJudge(MeanJudge):
    """Makes the rounds of a candidate event by event, and remembers the best candidate."""

    at_a_time = 20
    most_kicked = 10
    kicks_s = 2.0
    rounds: QueuedRounds

    def __init__(self, rounds: QueuedRounds, request: CutRequest) -> None:
        super().__init__(rounds, request)
        self.lower_bound_s = float(np.mean([rounds.least_s(sample) for sample in range(len(rounds.before_s))]))
        starts = [self.best] if request.start is None else [self.best, request.start]
        self(np.array(starts))

    def first_descent(self) -> tuple[Array, float]:
        """From the best of the starts and of the single cuts."""
        if len(singles := single_cuts(self.request.rows)):
            self(singles)
        return self.descend(self.best, self.clock)

    def descend(self, cuts: Array, clock: TimeLimit) -> tuple[Array, float]:
        """Give one client after another its best row, those that end last first, until no change helps."""
        cuts, value_s, improved = cuts.copy(), self.value_s(cuts), True
        while improved and not clock.over():
            improved = False
            for k in self._by_end(cuts):
                others = np.flatnonzero(self.request.rows[k])
                trials = np.repeat(cuts[None], len(others), axis=0)
                trials[:, k] = others
                values_s = self(trials)
                if values_s.min() < value_s * (1 - BETTER):
                    cuts, value_s, improved = trials[values_s.argmin()], float(values_s.min()), True
                if clock.over():
                    break
        return cuts, value_s

    def _by_end(self, cuts: Array) -> Array:
        """The clients, from the one that ends last in the first sample."""
        finish_s = self.rounds.serve(self.rounds.work(0, cuts)).finish_s
        return np.argsort(-finish_s, kind="stable")

    def choice(self) -> CutChoice:
        round_s = self.rounds.round_s(self.best)
        mean_s = float(round_s.mean())
        bound_s, gap = with_gap(self.lower_bound_s, mean_s)
        method, seconds = self.request.settings.method, self.clock.seconds()
        return CutChoice(self.best, round_s, mean_s, bound_s, gap, method, self.tried, seconds, self.clock.over())
