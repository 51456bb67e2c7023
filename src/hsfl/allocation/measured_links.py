"""Links whose rates are given (measured links): only the main server's cycles and the cuts can be chosen.

Legend: K clients, C cuts, S samples, P candidates, and leading axes of any kind; T the seconds of training. As rates are fixed,
client k with cut l needs own[k, l] seconds without the server, work[k, l] cycles of the server, and down[k, l] seconds to receive
its model.

*One round, exactly.* Where cuts are given, T is least when sum_k work / (T - own) = main_hz. The reciprocal of that sum is concave in T
(a harmonic mean of linear functions), so Newton's method on it from the left never passes the root. Where cuts are free and no
download may take more than M seconds, each client takes the cut that needs the fewest cycles per second at T. These cuts have a
least T of their own, which is not longer. Where they no longer save anything, T is optimal, since the least need falls in T. M is
one of the K C values of down; training only shrinks as M grows, which excludes most of these values. Where not all clients can end
training by tau_s, `keep_within_tau_measured` says who takes part.

*Cuts for many rounds*, by sample average: speeds (and rates, where they were recorded) vary. Minimise over cuts the mean over
samples of the optimal round, by the methods of `cuts.search`. `optimistic` bounds, for every client and cut at once, the mean round
after that single change: one Newton step for the training of each sample, which never passes the root. So descent tries only
changes that may help, and misses none. The bound over all cuts is the mean over samples of the best round with cuts of its own in
each (`best_measured_round`).
"""

from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from hsfl.allocation.answer import with_gap
from hsfl.allocation.cuts.search import (
    EXHAUSTIVE,
    CutChoice,
    CutRequest,
    MeanJudge,
    SampledRounds,
    with_proof,
)
from hsfl.allocation.stage.stage_answer import TimeLimit
from hsfl.errors import InputError

Array = np.ndarray
STEPS = 100  # of Newton's method; ten are enough
HALVINGS = 12  # of the interval for T, before passes that must each shorten T
ROUNDING = 1e-13  # a sum of cycles this near to the budget meets it
INSIDE = 1.0 - 4e-16  # a sum of rounded parts must not pass the budget
BOUND_GAP = 1e-5  # of each sample's best round
BLOCK = 2_000_000  # numbers at a time
PATIENCE = 10  # after so many vain changes since one that helped, what every change promises is computed anew


# --- One round


@dataclass(frozen=True)
class MeasuredAnswer:
    """Cuts and cycles of one round, and a lower bound over all cuts; the bound is `round_s` where no gap was allowed."""

    cuts: Array  # [K]
    server_hz: Array  # [K]
    round_s: float
    lower_bound_s: float


def least_training(own_s: Array, work_cycles: Array, main_hz: float) -> Array:
    """The least training time in seconds, min over cycles of max_k own + work / hz, [..., K] -> [...]; rounded down."""
    return _newton(own_s, work_cycles, main_hz)[0]


def optimal_cycles(own_s: Array, work_cycles: Array, main_hz: float) -> Array:
    """The cycles per second [K] with which all clients that need the server end together, at the least T."""
    hz = _newton(own_s, work_cycles, main_hz)[1]
    return hz * (main_hz / hz.sum() * INSIDE) if hz.any() else hz


def _newton(own_s: Array, work_cycles: Array, main_hz: float) -> tuple[Array, Array]:
    """The least T [...] and the cycles per second that T takes [..., K], from differences that keep their digits."""
    alone_s = work_cycles / main_hz
    first_s = (own_s + alone_s).max(axis=-1, initial=0.0)
    left_s = np.maximum(first_s[..., None] - own_s, alone_s)  # own + alone may round down to own
    left_s = np.where(work_cycles > 0, left_s, 1.0)
    later_s, need_hz = np.zeros(first_s.shape), work_cycles / left_s
    for _ in range(STEPS):
        total_hz = need_hz.sum(axis=-1)
        excess = np.maximum(total_hz / main_hz - 1.0, 0.0)
        if not (excess > ROUNDING).any():
            break
        slope = (need_hz / (left_s + later_s[..., None])).sum(axis=-1)
        later_s = later_s + excess * total_hz / np.where(slope > 0, slope, 1.0)
        need_hz = work_cycles / (left_s + later_s[..., None])
    return first_s + later_s, need_hz


def keep_within_tau_measured(
    own_s: Array, work_cycles: Array, num_samples: Array, main_hz: float, tau_s: float, even: bool
) -> Array:
    """Which clients take part where not all can end training by tau_s, [K] bool; the others are dropped.

    The price of a client is what it needs at tau_s in cycles per second. Clients are added, the cheapest price per sample
    first, while all that are kept end in time; a client that no longer fits is passed over. num_samples [K]: data samples
    of a round. even: the server's cycles are divided evenly among the kept clients.
    """
    left_s = tau_s - own_s
    price_hz = np.divide(work_cycles, left_s, out=np.full(len(own_s), np.inf), where=left_s > 0)
    price_hz[(work_cycles == 0) & (left_s >= 0)] = 0.0
    kept = np.zeros(len(own_s), bool)
    for k in np.argsort(price_hz / num_samples, kind="stable"):
        if np.isfinite(price_hz[k]):
            kept[k] = True
            needed_hz = price_hz[kept].max() * kept.sum() if even else price_hz[kept].sum()
            kept[k] = needed_hz <= main_hz
    return kept


def best_measured_round(
    own_s: Array, work_cycles: Array, down_s: Array, feasible: Array, main_hz: float, gap: float = 0.0
) -> MeasuredAnswer:
    """Cuts and cycles that minimise max_k (own + work / hz) + max_k down, to a relative gap; all arrays are [K, C].

    feasible: whether a client can take a cut. main_hz: the server's cycles per second.
    """
    has_cut = np.asarray(feasible.any(axis=1))
    if not has_cut.all():
        raise InputError(f"client {int(has_cut.argmin())} has no feasible cut; give it more storage, or leave it out")
    rows = np.arange(len(own_s))
    least_s = np.where(feasible, down_s, np.inf).min(axis=1).max()  # everyone must receive some model
    limits = np.unique(down_s[feasible & (down_s >= least_s)])
    best_s, best_cuts, bound_s = np.inf, np.zeros(len(rows), int), np.inf

    def training(index: int) -> float:
        """The least training time if downloads take up to limits[index]; remembers the best round."""
        nonlocal best_s, best_cuts
        cuts, training_s = _free_cuts(own_s, work_cycles, feasible & (down_s <= limits[index]), main_hz)
        round_s = training_s + float(down_s[rows, cuts].max())
        if round_s < best_s:
            best_s, best_cuts = round_s, cuts
        return training_s

    last = len(limits) - 1
    stretches = [(0, last, training(last))]  # (from, to, least training) of limits not yet excluded
    while stretches:
        start, end, least_training_s = stretches.pop()
        if start >= end:
            continue
        stretch_bound_s = float(limits[start]) + least_training_s
        if stretch_bound_s >= best_s * (1.0 - gap):
            bound_s = min(bound_s, stretch_bound_s)
            continue
        middle = (start + end - 1) // 2
        middle_s = training(middle)
        stretches += [(start, middle, middle_s), (middle + 1, end, least_training_s)]
    best_own_s, best_cycles = own_s[rows, best_cuts], work_cycles[rows, best_cuts]
    hz = optimal_cycles(best_own_s, best_cycles, main_hz)
    server_s = np.divide(best_cycles, hz, out=np.zeros(len(rows)), where=best_cycles > 0)
    round_s = float((best_own_s + server_s).max() + down_s[rows, best_cuts].max())
    return MeasuredAnswer(best_cuts, hz, round_s, with_gap(min(bound_s, best_s), round_s)[0])


def _free_cuts(own_s: Array, work_cycles: Array, feasible: Array, main_hz: float) -> tuple[Array, float]:
    """The cuts with the least training time, and that time: first by halvings, then by passes that each shorten it."""
    rows = np.arange(len(own_s))
    own_s = np.where(feasible, own_s, np.inf)
    low_s = float(own_s.min(axis=1).max())  # if the server had endless speed
    cuts = (own_s + work_cycles * len(rows) / main_hz).argmin(axis=1)
    training_s = float(least_training(own_s[rows, cuts], work_cycles[rows, cuts], main_hz))
    for step in count():
        trial_s = 0.5 * (low_s + training_s) if step < HALVINGS else training_s
        left_s = trial_s - own_s
        need_hz = np.divide(work_cycles, left_s, out=np.full(own_s.shape, np.inf), where=left_s > 0)
        cheapest = need_hz.argmin(axis=1)
        if need_hz[rows, cheapest].sum() <= main_hz:
            shorter_s = float(least_training(own_s[rows, cheapest], work_cycles[rows, cheapest], main_hz))
            if shorter_s < training_s:
                cuts, training_s = cheapest, shorter_s
                continue
        if step >= HALVINGS:
            break
        low_s = trial_s
    return cuts, training_s


# --- Cuts for many rounds


@dataclass(frozen=True)
class MeasuredRounds(SampledRounds):
    """S rounds of one fleet in explicit seconds and cycles, for every client and row of the cost table."""

    own_s: Array  # [S, K, C] the client's computation and its links, over the round
    work_cycles: Array  # [K, C] work for the main server, over the round
    down_s: Array  # [S, K, C] the download of the new model
    rows: Array  # [K, C] bool: the rows that each client may take
    main_hz: float

    @property
    def num_clients(self) -> int:
        return len(self.rows)

    def at(self, cuts: Array) -> tuple[Array, Array, Array]:
        """What cuts [..., K] take: own seconds [..., S, K], cycles [..., 1, K], download seconds [..., S, K]."""
        clients, chosen = np.arange(self.num_clients), np.asarray(cuts)[..., None, :]
        samples = np.arange(len(self.own_s))[:, None]
        return (
            self.own_s[samples, clients, chosen],
            self.work_cycles[clients, chosen],
            self.down_s[samples, clients, chosen],
        )

    def round_s(self, cuts: Array) -> Array:
        """The optimal round of every sample in seconds, cuts [..., K] -> [..., S]."""
        own_s, work, down_s = self.at(cuts)
        return least_training(own_s, work, self.main_hz) + down_s.max(axis=-1)

    def even_round_s(self, cuts: Array) -> Array:
        """The round of every sample if the server's cycles are divided evenly, in seconds, cuts [..., K] -> [..., S]."""
        own_s, work, down_s = self.at(cuts)
        return (own_s + work * self.num_clients / self.main_hz).max(axis=-1) + down_s.max(axis=-1)

    def mean_s(self, cuts: Array) -> Array:
        """The mean over samples of the optimal round, in seconds, candidates [P, K] -> [P]; in blocks, to save memory."""
        size = max(1, BLOCK // (len(self.own_s) * self.num_clients))
        blocks = [self.round_s(cuts[i : i + size]).mean(axis=-1) for i in range(0, len(cuts), size)]
        return np.concatenate(blocks)

    def judge(self, request: CutRequest) -> "MeasuredJudge":
        return MeasuredJudge(self, request)


class MeasuredJudge(MeanJudge):
    """Values candidates exactly, and remembers the best. What a change of one cut can save at most is proven.

    On the samples the best is never worse than the cuts that a request begins with, such as the cuts for mean speeds.
    """

    at_a_time = EXHAUSTIVE  # `mean_s` makes its own blocks
    most_kicked = 10
    kicks_s = 3.0  # kicks repay small fleets
    rounds: MeasuredRounds

    def __init__(self, rounds: MeasuredRounds, request: CutRequest) -> None:
        rounds = replace(rounds, rows=request.rows)
        super().__init__(rounds, request)
        answers = []
        for own_s, down_s in zip(rounds.own_s, rounds.down_s):
            answers.append(
                best_measured_round(own_s, rounds.work_cycles, down_s, rounds.rows, rounds.main_hz, BOUND_GAP)
            )
            request.on_progress("samples", len(answers), answers[-1].round_s)
        self.lower_bound_s = float(np.mean([answer.lower_bound_s for answer in answers]))
        starts = [] if request.start is None else [request.start]
        self(np.array([*starts, *(answer.cuts for answer in answers)]))

    def first_descent(self) -> tuple[Array, float]:
        return self.descend(self.best, self.clock)

    def choice(self) -> CutChoice:
        late = self.best_s * (1 - self.request.settings.gap) > self.lower_bound_s and self.clock.over()
        round_s = self.rounds.round_s(self.best)
        return with_proof(self.best, round_s, self.lower_bound_s, self.request, self, self.clock, late)

    def descend(self, cuts: Array, clock: TimeLimit) -> tuple[Array, float]:
        """Make many changes at once where they help together, else one at a time, until none can help; returns the best cuts seen."""
        value_s, improved = self.value_s(cuts), True
        while improved and not clock.over():
            saved_s = value_s - optimistic(self.rounds, cuts)
            saved_s[np.arange(len(cuts)), cuts] = 0.0
            improved = False
            for trial in _joint_changes(cuts, saved_s):
                new_s = self.value_s(trial)
                if new_s < value_s * (1 - 1e-9):
                    cuts, value_s, improved = trial, new_s, True
                    break
            if not improved:
                cuts, value_s, improved = self._one_by_one(cuts, value_s, saved_s, clock)
        return self.best, self.best_s

    def _one_by_one(self, cuts: Array, value_s: float, saved_s: Array, clock: TimeLimit) -> tuple[Array, float, bool]:
        """Change one client's cut after the other, the most promising change first: (cuts, their seconds, any better?).

        A change that cannot help is not tried, unless another change was made before it.
        """
        improved, in_vain = False, 0
        for flat in np.argsort(-saved_s, axis=None, kind="stable"):
            k, cut = divmod(int(flat), saved_s.shape[1])
            if saved_s[k, cut] <= 1e-9 * value_s or clock.over() or (improved and in_vain >= PATIENCE):
                break
            trial = cuts.copy()
            trial[k] = cut
            new_s = self.value_s(trial)
            in_vain += 1
            if new_s < value_s * (1 - 1e-9):
                cuts, value_s, improved, in_vain = trial, new_s, True, 0
        return cuts, value_s, improved


def _joint_changes(cuts: Array, saved_s: Array) -> list[Array]:
    """Candidates that change many cuts: for all clients with a promising cut, for the most promising half, and so on."""
    best = saved_s.argmax(axis=1)
    gain_s = saved_s[np.arange(len(cuts)), best]
    order = np.argsort(-gain_s, kind="stable")
    size, trials = int((gain_s > 1e-9 * gain_s.max(initial=0.0)).sum()), []
    while size > 1:
        trial = cuts.copy()
        trial[order[:size]] = best[order[:size]]
        trials.append(trial)
        size //= 2
    return trials


def optimistic(rounds: MeasuredRounds, cuts: Array) -> Array:
    """A lower bound on the mean round, in seconds, if client k of cuts [K] took another cut, [K, C].

    Infinite where the client cannot take the cut. Where a cut leaves less time than its work takes with the whole server,
    the client gets that time, which only helps.
    """
    hz, work = rounds.main_hz, rounds.work_cycles
    own_now_s, work_now, down_now_s = rounds.at(cuts)  # [S, K]
    training_s = least_training(own_now_s, work_now, hz)[:, None, None]
    left_s = np.where(work > 0, np.maximum(training_s - rounds.own_s, work / hz), 1.0)  # [S, K, C]
    need_hz = work / left_s
    slope = need_hz / left_s
    now_hz, now_slope = (np.take_along_axis(a, cuts[None, :, None], axis=2) for a in (need_hz, slope))
    total_hz = need_hz + _sum_of_others(now_hz)
    slope = slope + _sum_of_others(now_slope)
    step_s = np.divide(total_hz * (total_hz / hz - 1), slope, out=np.zeros(slope.shape), where=slope > 0)
    newton_s = np.where(slope > 0, training_s + step_s, 0.0)  # nobody needs the server: nothing to wait for
    alone_s = np.maximum(rounds.own_s + work / hz, _most_of_others(own_now_s + work_now / hz))
    down_s = np.maximum(rounds.down_s, _most_of_others(down_now_s))
    mean_s = (np.maximum(newton_s, alone_s) + down_s).mean(axis=0)
    return np.where(rounds.rows, mean_s, np.inf)


def _sum_of_others(values: Array) -> Array:
    """The sum over all other clients, [S, K, 1] -> [S, K, 1]."""
    return values.sum(axis=1, keepdims=True) - values


def _most_of_others(values: Array) -> Array:
    """The maximum over all other clients, [S, K] -> [S, K, 1]; 0 where there are no others."""
    ranked = np.sort(np.concatenate([np.zeros_like(values[:, :1]), values], axis=1), axis=1)
    return np.where(values == ranked[:, -1:], ranked[:, -2:-1], ranked[:, -1:])[..., None]
