"""Shared bandwidth: a client may have a part of a subchannel; then the stage is convex, for any number of clients.

Legend: K clients, I subchannels, share s [K, I]; the shares of a subchannel sum to at most 1. T is the seconds of the stage, f [K] are
cycles and q [K] powers, t_k the seconds of client k. A point is (s, f, q), in planes as fractions of their budgets.

*Descent.* The least T(s) for fixed shares is convex in s, with gradient -G, G_ki = mu_k (rents of `prices.rents` per second of the
deadline of client k), where mu are the multipliers of the deadlines. Mirror descent in its multiplicative form moves the shares of
every subchannel towards the clients that gain most by it (`_step`). The linearisation at any point proves, for all shares,

    T* >= sum_k mu_k t_k + alpha (sum f - hz) + beta (sum q - power) + sum_ki G_ki s_ki - sum_i max_k G_ki

(the Frank-Wolfe certificate), so the gap is known after every step. Clients that only upload a model (no cycles, no downlink)
have a deadline but no price. They get a tiny load, which smooths the maximum; the bound is for the true problem.

*Planes* take over where descent creeps. A client's seconds t_k(s_k, f_k, q_k) are convex, so that tangent planes lie below them. The
least T above all planes, for shares, cycles and powers within their budgets, is a linear programme and a lower bound on the stage.
New planes, one for every client, are laid half-way between the best point and the programme's point. T has kinks where a deadline has
no price (a client only uploads a model) or where no client can trade cycles for power. Kinks do not disturb planes: ten to forty
programmes prove 0.1 %.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, vstack

from hsfl.allocation.numba_cache import compiled
from hsfl.allocation.stage.client_prices import ROUNDING, alone_each_s, alone_s, rents, solve_shares
from hsfl.allocation.stage.local_search import smoothed
from hsfl.allocation.stage.stage import Stage, needs_subchannel
from hsfl.allocation.stage.stage_answer import StageAnswer, StopWhen, TimeLimit

Array = np.ndarray
HALF = 0.5  # of the way to the programme's point; also lam in `rents`, where any value would do
STALLED = 30  # programmes in a row without progress
STEEPEST = 1e6  # slope of a row: steeper rows are divided by a number, since the programme refuses them
TOLERANCE = 1e-10  # of the programme; the bound does not depend on it
# Steps of descent before planes take over: few in small cells and where T has kinks, many elsewhere.
FEW_STEPS, MANY_STEPS = 100, 2000
SMALL_CELL, LARGE_CELL = 400, 10_000  # shares of a cell; beyond LARGE_CELL the programmes of planes take too long
LIGHTEN = 20  # after every so many steps the tiny loads become smaller
SLOW, STUCK = 1e-6, 1e-9  # paces: below SLOW the tiny loads become smaller, below STUCK the descent ends


def solve_shared(stage: Stage, goal: StopWhen, clock: TimeLimit, share: Array | None = None) -> StageAnswer:
    """Shares to a proven gap: by descent, and by planes where descent ends or creeps before the goal.

    share: [K, I] to begin with, where good ones are known.
    """
    best = descend(stage, goal, clock, share)
    if goal.reached(best.T_s, best.lower_bound_s) or clock.over():
        return best
    share, T, bound_s = solve_planes(stage, best.share, best.T_s, best.rho, best.lower_bound_s, goal, clock)
    T, rho, lam = solve_shares(stage, share, T, 0.0)
    return StageAnswer(share, T, rho, lam, bound_s)


def bound_over_options(stage: Stage, group: Array, value_s: float) -> float:
    """A lower bound on the round, in seconds, where client k may take any of the rows group[k] to group[k + 1].

    Each client is alone in the cell, with its best row. The bound is at most value_s, a round that someone has.
    """
    alone = np.minimum.reduceat(alone_each_s(stage), group[:-1])
    return float(min(alone.max(), value_s))


# --- Descent


def descend(stage: Stage, goal: StopWhen, clock: TimeLimit, share: Array | None = None) -> StageAnswer:
    """Steps that shorten T, until the certificate meets the goal, no step helps, or planes are the better way."""
    best = _first_answer(stage) if share is None else _answer(stage, share)
    if best.T_s <= 0.0 or goal.reached(best.T_s, best.lower_bound_s):
        return best
    descent, steps, enough = _Descent(stage, best), 0, _enough_steps(stage)
    while not (goal.reached(best.T_s, best.lower_bound_s) or clock.over()):
        steps += 1
        if steps > enough and best.share.size <= LARGE_CELL:
            break
        if descent.has_loads and (steps % LIGHTEN == 0 or descent.pace < SLOW):
            descent.lighten(best)
        elif descent.pace < STUCK:
            break
        best = descent.step(best)
    return best


class _Descent:
    """Where the descent is: shares, and what is known at them. The stage is smoothed by tiny loads."""

    def __init__(self, stage: Stage, first: StageAnswer) -> None:
        self.stage = stage
        self.pace, self.moved = 1.0, True  # how far a step goes; whether the shares moved since the rents were computed
        self.share, self.new = first.share.copy(), np.zeros(first.share.shape)  # [K, I]; where the next step may lead
        self.G, self.point = np.empty(self.share.shape), np.empty((len(self.share), 6))
        self.load_s = 0.1 * first.T_s
        self.smooth = smoothed(stage, self.load_s)
        self.T, self.rho, self.lam = solve_shares(self.smooth, self.share, first.T_s, first.rho)

    @property
    def has_loads(self) -> bool:
        """Whether some client has a tiny load."""
        return bool((self.smooth.cycles != self.stage.cycles).any())

    def lighten(self, best: StageAnswer) -> None:
        """Make the tiny loads smaller than the gap that is left, since they lengthen T by about themselves."""
        self.load_s = min(self.load_s, 0.3 * (best.T_s - best.lower_bound_s))
        self.smooth = smoothed(self.stage, self.load_s)
        self.T, self.rho, self.lam = solve_shares(self.smooth, self.share, self.T, self.rho)
        self.pace, self.moved = 1.0, True

    def step(self, best: StageAnswer) -> StageAnswer:
        """Try a step, and keep it where it shortens T; returns the best answer with the best bound."""
        if self.moved:
            best = replace(best, lower_bound_s=max(best.lower_bound_s, self._bound_s()))
        elasticity = _stiffness(self.smooth, self.share, self.T, self.point)
        _step(self.share, self.G, elasticity, min(1.0, self.pace), self.pace, self.new)
        T, rho, lam = solve_shares(self.smooth, self.new, self.T, self.rho)
        self.moved = T < self.T
        self.pace = min(1.5 * self.pace, 2.0) if self.moved else 0.4 * self.pace
        if self.moved:
            self.share, self.new = self.new, self.share
            self.T, self.rho, self.lam = T, rho, lam
            best = _better(self.stage, best, self.share, T, rho)
        return best

    def _bound_s(self) -> float:
        """The certificate at these shares; leaves the rents in G, weighted by the multipliers of the deadlines."""
        weight = np.empty(len(self.share))
        rents(self.smooth, self.share, self.T, self.rho, self.lam, self.G, self.point, weight)
        bound_s = _certify(self.smooth, self.stage.cycles, self.share, self.G, self.point, weight)
        self.G *= weight[:, None]
        return bound_s


def _first_answer(stage: Stage) -> StageAnswer:
    """The answer with the first shares, or with even shares where unequal bits make the first shares far slower."""
    first = _answer(stage, first_shares(stage))
    even = np.full(first.share.shape, 1.0 / len(first.share))
    return _answer(stage, even) if solve_shares(stage, even, 0.0, 0.0)[0] < 0.1 * first.T_s else first


@compiled
def first_shares(stage: Stage) -> Array:
    """Shares [K, I] to begin with: by bits, and more of the subchannels that are good for the client and bad for others."""
    K, subs = stage.start_w.shape
    share = np.zeros((K, subs))
    for k in range(K):
        if not needs_subchannel(stage, k):
            continue
        load = stage.up_bits[k] + stage.down_bits[k] + stage.edge_bits[k] + stage.given_bits[k]
        best = stage.log_start[k].min() + stage.edge_log_start[k].min()
        for i in range(subs):
            share[k, i] = load * math.exp(-(stage.log_start[k, i] + stage.edge_log_start[k, i] - best))
    for i in range(subs):
        share[:, i] /= max(share[:, i].sum(), 1e-300)
    return share


def _answer(stage: Stage, share: Array) -> StageAnswer:
    """The answer with these shares [K, I], and a first bound."""
    return StageAnswer(share, *solve_shares(stage, share, 0.0, 0.0), lower_bound_s=alone_s(stage))


def _better(stage: Stage, best: StageAnswer, share: Array, T: float, rho: float) -> StageAnswer:
    """The answer with these shares where it beats the best answer so far, else that answer; without the tiny loads."""
    T, rho, lam = solve_shares(stage, share, T, rho)
    return StageAnswer(share.copy(), T, rho, lam, best.lower_bound_s) if best.T_s > T else best


def _enough_steps(stage: Stage) -> int:
    """The steps of descent after which planes are the better way."""
    num_shares = stage.start_w.size
    return FEW_STEPS + num_shares // 2 if _has_kinks(stage) or num_shares <= SMALL_CELL else MANY_STEPS


def _has_kinks(stage: Stage) -> bool:
    """Whether T is a maximum of parts: some deadline has no price, or no client can trade one budget for the other."""
    works, sends = stage.cycles > 0.0, stage.down_bits > 0.0
    bits = stage.up_bits + stage.edge_bits + stage.given_bits
    idle = ~works & ~sends & (bits > 0.0)
    return bool(idle.any() or (works.any() and sends.any() and not (works & sends).any()))


@compiled
def _certify(stage: Stage, true_cycles: Array, share: Array, H: Array, point: Array, weight: Array) -> float:
    """The lower bound on T, in seconds, that H [K, I], point [K, 6] and weight [K] of `prices.rents` prove.

    `stage` may hold tiny loads where true_cycles [K] is zero; the bound is for the true cycles. Every budget has the price of
    the client that would pay most for it, so that the bound holds for any weights, however rounded.
    """
    K, subs = share.shape
    total = weight.sum()
    if not (total > 0.0 and math.isfinite(total)):
        return 0.0
    seconds, cycles, power = 0.0, 0.0, 0.0
    for k in range(K):
        y = weight[k] / total
        if y == 0.0:
            continue
        t = point[k, 0] + point[k, 5] * point[k, 3]
        power = max(power, y * point[k, 5])
        if true_cycles[k] > 0.0:
            t += 2.0 * point[k, 1]
            cycles = max(cycles, y * point[k, 4])
        for i in range(subs):
            t += H[k, i] * share[k, i]
        seconds += y * t
    bound = seconds * (1.0 - ROUNDING) - cycles * stage.hz - power * stage.power_w
    for i in range(subs):
        top = 0.0
        for k in range(K):
            top = max(top, H[k, i] * (weight[k] / total))
        bound -= top
    return bound


@compiled
def _step(share: Array, G: Array, stiffness: Array, theta: float, scale: float, new: Array) -> None:
    """One step from share [K, I], written into new [K, I]; the shares of each subchannel sum to 1 again.

    G [K, I] are the rents, stiffness [K] their elasticities (`_stiffness`). Let pi_i be the mean rent of subchannel i and
    r_ki = G_ki / pi_i: the band of client k is worth m_k times what it costs. The client's mix of subchannels moves by
    (r_ki / m_k)^theta, the size of its band by m_k^(scale / stiffness_k), which would reach m_k = 1 at constant prices.
    """
    K, subs = share.shape
    pi = np.zeros(subs)
    for k in range(K):
        for i in range(subs):
            pi[i] += share[k, i] * G[k, i]
    column = np.zeros(subs)
    for k in range(K):
        value, cost = 0.0, 0.0
        for i in range(subs):
            value += share[k, i] * G[k, i]
            cost += share[k, i] * pi[i]
        if value <= 0.0 or cost <= 0.0:
            new[k] = 0.0
            continue
        m = value / cost
        size = m ** (scale / stiffness[k])
        for i in range(subs):
            ratio = G[k, i] / (pi[i] * m) if pi[i] > 0.0 else 1.0
            new[k, i] = max(share[k, i] * size * (ratio if theta == 1.0 else ratio**theta), 1e-14)
            column[i] += new[k, i]
    for i in range(subs):
        column[i] = 1.0 / (column[i] * (1.0 + 1e-15)) if column[i] > 0.0 else 0.0
    for k in range(K):
        for i in range(subs):
            new[k, i] *= column[i]


@compiled
def _stiffness(stage: Stage, share: Array, T: float, point: Array) -> Array:
    """About how steeply each client's rents fall as its band grows, [K]: -d ln G / d ln s."""
    K = share.shape[0]
    e = np.empty(K)
    for k in range(K):
        if stage.cycles[k] > 0.0:
            e[k] = 2.0 + 2.0 * (point[k, 0] - stage.fixed_s[k]) / max(T - point[k, 0], 1e-9 * T)
        else:
            nats = stage.down_bits[k] * math.log(2.0) / (T * stage.subchannel_hz)
            e[k] = 2.0 + nats / max(share[k].sum(), 1e-300)
    return e


# --- Planes


def solve_planes(
    stage: Stage, share: Array, T_s: float, rho: float, lower_bound_s: float, goal: StopWhen, clock: TimeLimit
) -> tuple[Array, float, float]:
    """Improve shares [K, I] and the lower bound until the goal, the end of the time, or no progress.

    T_s and rho belong to the shares. Returns (shares, their T in seconds, the lower bound in seconds).
    """
    K, subs = share.shape
    cost = np.zeros(K * subs + 2 * K + 1)
    cost[-1] = 1.0
    best, best_T, bound_s, stalled = share, T_s, lower_bound_s, 0
    planes, rows = Planes(T_s), _budgets(K, subs)
    while not (goal.reached(best_T, bound_s) or clock.over() or stalled == STALLED):
        planes.lay(stage, share, T_s, rho)
        rows = vstack([rows, planes.rows()], format="csr")
        if not (np.isfinite(rows.data).all() and np.isfinite(planes.base[-1]).all()):
            break
        answer = linprog(
            cost,
            A_ub=rows,
            b_ub=np.concatenate([np.ones(subs + 2), planes.limits()]),
            options={
                "primal_feasibility_tolerance": TOLERANCE,
                "dual_feasibility_tolerance": TOLERANCE,
                "time_limit": max(0.05, clock.limit_s - clock.seconds()),
            },
        )
        if answer.x is None or answer.status != 0:
            break
        stalled += 1
        proven_s = planes.bound_s(-answer.ineqlin.marginals[subs + 2 :].reshape(-1, K) / np.array(planes.unit))
        if proven_s > bound_s * (1.0 + 1e-9):
            bound_s, stalled = proven_s, 0
        share = HALF * best + HALF * np.maximum(answer.x[: K * subs].reshape(K, subs), 0.0)
        share /= np.maximum(share.sum(axis=0), 1.0) * (1.0 + 1e-15)
        T_s, rho, _ = solve_shares(stage, share, best_T, 0.0)
        if best_T > T_s:
            stalled = 0 if T_s < best_T * (1.0 - 1e-9) else stalled
            best, best_T = share, T_s
    return best, best_T, bound_s


@dataclass
class Planes:
    """The tangent planes t_k >= base - slope_s s - slope_f f - slope_q q, in units of scale_s seconds; K planes for each point."""

    scale_s: float
    base: list[Array] = field(default_factory=list)  # [K] each
    slope_s: list[Array] = field(default_factory=list)  # [K, I] each
    slope_f: list[Array] = field(default_factory=list)  # [K] each
    slope_q: list[Array] = field(default_factory=list)  # [K] each
    unit: list[Array] = field(default_factory=list)  # [K] each: the number by which a row is divided for the programme

    def lay(self, stage: Stage, share: Array, T_s: float, rho: float) -> None:
        """Lay planes at shares [K, I], with the cycles and powers that keep T_s at the price rho."""
        K = len(share)
        slope_s, point = np.empty(share.shape), np.empty((K, 6))
        rents(stage, share, T_s, rho, HALF, slope_s, point, np.empty(K))
        own_s, server_s, _, q = point[:, :4].T
        slope_f, slope_q = point[:, 4] * stage.hz, point[:, 5] * stage.power_w
        base = own_s + 2.0 * server_s + (slope_s * share).sum(axis=1) + point[:, 5] * q
        for laid, values in (
            (self.base, base),
            (self.slope_s, slope_s),
            (self.slope_f, slope_f),
            (self.slope_q, slope_q),
        ):
            laid.append(values / self.scale_s)
        steepest = np.maximum(self.slope_s[-1].max(axis=1), np.maximum(self.slope_f[-1], self.slope_q[-1]))
        self.unit.append(np.maximum(steepest / STEEPEST, 1.0))

    def rows(self) -> csr_array:
        """The last point's planes as rows over (s, f, q, T): -slopes x - T <= -base."""
        K, subs = self.slope_s[-1].shape
        k = np.arange(K)
        columns = np.concatenate([np.arange(K * subs), K * subs + k, K * subs + K + k, np.full(K, K * subs + 2 * K)])
        values = np.concatenate([-self.slope_s[-1].ravel(), -self.slope_f[-1], -self.slope_q[-1], np.full(K, -1.0)])
        rows = np.concatenate([np.repeat(k, subs), k, k, k])
        values = values / self.unit[-1][rows]
        return csr_array(coo_array((values, (rows, columns)), shape=(K, K * subs + 2 * K + 1)))

    def limits(self) -> Array:
        """The right sides of all rows so far."""
        return np.concatenate([-base / unit for base, unit in zip(self.base, self.unit)])

    def bound_s(self, weight: Array) -> float:
        """The lower bound in seconds that weights [points, K] of the planes prove.

        Every budget has the price of the client that would pay most for it.
        """
        weight = np.maximum(weight, 0.0)
        if not weight.sum() > 0.0:
            return 0.0
        weight = weight / weight.sum()
        paid = np.zeros(self.slope_s[0].shape)
        for point_weight, slopes in zip(weight, self.slope_s):
            paid += point_weight[:, None] * slopes
        cycles, power = (weight * self.slope_f).sum(axis=0), (weight * self.slope_q).sum(axis=0)
        seconds = float((weight * self.base).sum()) * (1.0 - ROUNDING)
        return self.scale_s * (seconds - float(paid.max(axis=0).sum() + cycles.max() + power.max()))


def _budgets(K: int, subs: int) -> csr_array:
    """The budgets as rows over (s, f, q, T): the shares of each subchannel, all cycles, all power."""
    k = np.arange(K)
    columns = np.concatenate([np.arange(K * subs), K * subs + k, K * subs + K + k])
    rows = np.concatenate([np.tile(np.arange(subs), K), np.full(K, subs), np.full(K, subs + 1)])
    return csr_array(coo_array((np.ones(len(columns)), (rows, columns)), shape=(subs + 2, K * subs + 2 * K + 1)))
