"""Sharing bandwidth: a client may own a fraction of a subchannel; the stage is then convex, for any number of clients.

Legend: K clients, I subchannels, share s [K, I] with columns that sum to at most 1.

The optimal T(s) of fixed shares is convex in s, with gradient -G, G_ki = mu_k (rents of `tangent` per second of client
k's deadline), mu the multipliers of the deadlines. Mirror descent in its multiplicative form moves every subchannel's
shares towards those who gain most by it (`step`). The linearisation at any point proves, for all shares,

    T* >= sum_k mu_k t_k + alpha (sum f - hz) + beta (sum q - power) + sum_ki G_ki s_ki - sum_i max_k G_ki

(the Frank-Wolfe certificate), so every step knows its gap. Clients that only upload a model (no cycles, no downlink)
have a deadline but no price; they are given a tiny load, which smooths the maximum; the bound is for the true problem.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from hsfl.allocation import planes
from hsfl.allocation.compiled import compiled
from hsfl.allocation.search import Goal, Spent, TimeLimit, alone_each_s, alone_s
from hsfl.allocation.spectrum import smoothed, solve_shares
from hsfl.allocation.stage import Stage, needs_subchannel
from hsfl.allocation.tangent import ROUNDING, rents

Array = np.ndarray
FEW_STEPS, MANY_STEPS = 100, 2000  # of descent before planes: in small cells and where T has kinks, and elsewhere
SMALL_CELL, LARGE_CELL = 400, 10_000  # shares; in larger cells than these the programmes of planes take too long


@dataclass(frozen=True)
class SharedAnswer:
    """Shares, their optimal T, the price of a watt, and a bound over all shares."""

    share: Array  # [K, I]
    T_s: float
    rho: float
    lam: float
    lower_bound_s: float = 0.0
    spent: Spent | None = None  # where cycles and powers are not the optimal ones of (T_s, rho)

    def shares(self, num_clients: int) -> Array:
        """Who has how much of each subchannel, [K, I]."""
        return self.share

    @property
    def gap(self) -> float:
        return (self.T_s - self.lower_bound_s) / self.T_s if self.T_s > 0 else 0.0


@compiled
def first_shares(stage: Stage) -> Array:
    """By load, and more of the subchannels that are good for the client and bad for others."""
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


@compiled
def certify(stage: Stage, true_cycles: Array, share: Array, H: Array, point: Array, weight: Array) -> float:
    """The certificate, in seconds, from `tangent.rents`. `stage` may hold tiny loads in place of zeros of true_cycles [K].

    Every budget is priced by who would pay most for it, so that the bound holds for any weights, however rounded.
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
def step(share: Array, G: Array, stiffness: Array, theta: float, scale: float, new: Array) -> None:
    """A step from `share` into `new`, columns renormalised.

    With pi_i the mean rent of subchannel i and r_ki = G_ki / pi_i, client k's band is worth m_k times what it costs.
    Its mix of subchannels moves by (r_ki / m_k)^theta, the size of its band by m_k^(scale / stiffness_k), where
    stiffness is the elasticity of its rents in its band: the step that would reach m_k = 1 at constant prices.
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
def stiffness(stage: Stage, share: Array, T: float, point: Array) -> Array:
    """How steeply each client's rents fall as its band grows, about: d ln G / d ln s, signs dropped, [K]."""
    K = share.shape[0]
    e = np.empty(K)
    for k in range(K):
        if stage.cycles[k] > 0.0:
            e[k] = 2.0 + 2.0 * (point[k, 0] - stage.fixed_s[k]) / max(T - point[k, 0], 1e-9 * T)
        else:
            nats = stage.down_bits[k] * math.log(2.0) / (T * stage.subchannel_hz)
            e[k] = 2.0 + nats / max(share[k].sum(), 1e-300)
    return e


def solve_stage(stage: Stage, goal: Goal, clock: TimeLimit) -> SharedAnswer:
    """Shares to a proven gap: by descent, and by planes where descent ends or creeps before the goal."""
    best = descend(stage, goal, clock)
    if goal.reached(best.T_s, best.lower_bound_s) or clock.over():
        return best
    share, T, bound_s = planes.solve(stage, best.share, best.T_s, best.rho, best.lower_bound_s, goal, clock)
    T, rho, lam = solve_shares(stage, share, T, 0.0)
    return SharedAnswer(share, T, rho, lam, bound_s)


def descend(stage: Stage, goal: Goal, clock: TimeLimit) -> SharedAnswer:
    """Steps that shorten T, until the certificate meets the goal, no step helps, or planes are the better way."""
    share = first_shares(stage)
    T, rho, lam = solve_shares(stage, share, 0.0, 0.0)
    even = np.full(share.shape, 1.0 / len(share))
    if solve_shares(stage, even, 0.0, 0.0)[0] < 0.1 * T:  # loads so unequal that they say nothing
        share = even
        T, rho, lam = solve_shares(stage, share, 0.0, 0.0)
    best = SharedAnswer(share.copy(), T, rho, lam, alone_s(stage))
    if best.T_s <= 0.0 or goal.reached(best.T_s, best.lower_bound_s):
        return best
    load_s = 0.1 * best.T_s
    smooth = smoothed(stage, load_s)
    new, G = np.zeros(share.shape), np.empty(share.shape)
    point, weight = np.empty((len(share), 6)), np.empty(len(share))
    T, rho, lam = solve_shares(smooth, share, best.T_s, best.rho)
    pace, moved, steps = 1.0, True, 0
    few = has_kinks(stage) or share.size <= SMALL_CELL
    enough = FEW_STEPS + share.size // 2 if few else MANY_STEPS
    while not (goal.reached(best.T_s, best.lower_bound_s) or clock.over()):
        steps += 1
        if steps > enough and share.size <= LARGE_CELL:
            break
        if (smooth.cycles != stage.cycles).any() and (steps % 20 == 0 or pace < 1e-6):
            load_s = min(load_s, 0.3 * (best.T_s - best.lower_bound_s))  # the load lengthens T by about itself
            smooth = smoothed(stage, load_s)
            T, rho, lam = solve_shares(smooth, share, T, rho)
            pace, moved = 1.0, True
        elif pace < 1e-9:
            break
        if moved:
            rents(smooth, share, T, rho, lam, G, point, weight)
            bound_s = certify(smooth, stage.cycles, share, G, point, weight)
            best = replace(best, lower_bound_s=max(best.lower_bound_s, bound_s))
            G *= weight[:, None]
        step(share, G, stiffness(smooth, share, T, point), min(1.0, pace), pace, new)
        new_T, new_rho, new_lam = solve_shares(smooth, new, T, rho)
        moved = new_T < T
        pace = min(1.5 * pace, 2.0) if moved else 0.4 * pace
        if moved:
            share, new = new, share
            T, rho, lam = new_T, new_rho, new_lam
            best = _better(stage, best, share, T, rho)
    return best


def has_kinks(stage: Stage) -> bool:
    """Whether T is a maximum of parts: deadlines without a price, or two budgets that no client can trade."""
    works, sends = stage.cycles > 0.0, stage.down_bits > 0.0
    bits = stage.up_bits + stage.edge_bits + stage.given_bits
    idle = ~works & ~sends & (bits > 0.0)
    return bool(idle.any() or (works.any() and sends.any() and not (works & sends).any()))


def _better(stage: Stage, best: SharedAnswer, share: Array, T: float, rho: float) -> SharedAnswer:
    """The better of the incumbent and these shares, valued without the tiny loads."""
    T, rho, lam = solve_shares(stage, share, T, rho)
    return SharedAnswer(share.copy(), T, rho, lam, best.lower_bound_s) if best.T_s > T else best


def bound_over_options(stage: Stage, group: Array, value_s: float) -> float:
    """A bound where every client may take any of its rows: each alone in the cell with its best one."""
    alone = np.minimum.reduceat(alone_each_s(stage), group[:-1])
    return float(min(alone.max(), value_s))
