"""A bound over all cuts where bands are shared: everything has a price, and every client buys for itself.

Legend: K clients, I subchannels; a row is a client with one of its feasible cuts; share s [I] of a row.

Cycles and power have the prices of `stage.client_prices` (phi, with lam between them), and the whole of subchannel i has the price pi_i. If
T can be kept, the shares of a subchannel sum to at most 1 and so do the phi of all clients, so that for any prices

    sum_k min over rows and shares of [phi(s; T) + pi s]  <=  1 + sum_i pi_i,

and T is excluded where the left side is larger. phi is convex in s, so its tangent at any s0 with rents g (`stage.client_prices`)
bounds what a row pays from below, by phi(s0) + g s0 - sum_i max(g_i - pi_i, 0). This is exact at the best s0. Prices begin as
the rents of shares that are optimal for some cuts. Then they rise where clients buy too much and fall where they buy too
little.

Arguments that most functions take: pi [I] prices of subchannels; share [I] of the row, changed in place; curve, spare, rent
[I] and spent [2] (cycles per second, watts), which are filled.
"""

import math

import numpy as np

from hsfl.allocation.numba_cache import compiled
from hsfl.allocation.stage.client_prices import ROUNDING, alone_each_s, linearise, rents, solve_shares
from hsfl.allocation.stage.local_search import smoothed
from hsfl.allocation.stage.stage import Stage, needs_subchannel, stage_of_clients
from hsfl.allocation.stage.stage_answer import TimeLimit
from hsfl.allocation.stage.water_filling import CURVE_ROWS

Array = np.ndarray
MIXES = 20  # steps for a row's mix of subchannels, at most
SIZES = 40  # steps for the size of the row's band within each of them, at most
CLOSE = 5e-4  # relative distance between what a row pays and its bound that is small enough
FAR = 100.0  # of a rent over its price: T is so short for so little band that steps by elasticity would creep
STEEP = 3.0  # the mix moves by this power of rents over prices
TRIALS = 40  # of prices for one T
LEAST = 1e-12  # share


@compiled
def _scale(share: Array, factor: float) -> None:
    """Multiply share [I] in place, within LEAST and 1."""
    for i in range(share.shape[0]):
        share[i] = min(1.0, max(LEAST, share[i] * factor))


@compiled
def _price_at(
    stage: Stage, row: int, pi: Array, T: float, rho: float, lam: float, share: Array, curve: Array, spare: Array,
    rent: Array, spent: Array,
) -> tuple[float, float, float, float]:  # fmt: skip
    """(lower bound on what the row pays, what it pays with this share, the highest rent over its price, its seconds).

    Where T is too short, the row pays an infinite amount.
    """
    phi, feasible, c, _, spent[0], spent[1], down_s, _ = linearise(stage, row, share, T, rho, lam, curve, spare, rent)
    top, cheapest, worth, over, costs = 0.0, math.inf, 0.0, 0.0, 0.0
    for i in range(share.shape[0]):
        top = max(top, rent[i] / pi[i])
        worth += rent[i] * share[i]
        over += max(rent[i] - pi[i], 0.0)
        costs += pi[i] * share[i]
        if rent[i] > 0.0:
            cheapest = min(cheapest, pi[i] / rent[i])
    if stage.cycles[row] > 0.0 or stage.down_bits[row] > 0.0:
        if not feasible:
            return 0.0, math.inf, math.inf, c
        return (phi + worth) * (1.0 - ROUNDING) - over, phi + costs, top, c + down_s
    spent[:] = 0.0  # the row must only end in time: c falls by at most the rents, and each rent is bought at its price
    late_s = (c + worth) * (1.0 - ROUNDING) - T
    return late_s * cheapest if late_s > 0.0 else 0.0, costs, c / T, c


@compiled
def _resize(
    stage: Stage, row: int, pi: Array, T: float, rho: float, lam: float, share: Array, curve: Array, spare: Array,
    rent: Array, spent: Array,
) -> tuple[float, float, float]:  # fmt: skip
    """Scale the share to the size that is worth its price, from below: (bound, what the row pays, highest rent over price)."""
    priced = stage.cycles[row] > 0.0 or stage.down_bits[row] > 0.0
    best, pays, top, size, low, high = 0.0, math.inf, 0.0, 1.0, 0.0, math.inf
    for _ in range(SIZES):
        bound, pays, top, seconds = _price_at(stage, row, pi, T, rho, lam, share, curve, spare, rent, spent)
        best = max(best, bound)
        if 1.0 - CLOSE < top <= 1.0:
            break
        low, high = (max(low, size), high) if top > 1.0 else (low, min(high, size))
        if top > FAR:
            step = 2.0
        elif priced:  # by the elasticity of the rents, as in `shared_bands._stiffness`
            step = (top / (1.0 - 0.5 * CLOSE)) ** (
                1.0 / (2.0 + 2.0 * (seconds - stage.fixed_s[row]) / max(T - seconds, 1e-9 * T))
            )
        else:
            step = (seconds - stage.fixed_s[row]) / (T * (1.0 - 0.5 * CLOSE) - stage.fixed_s[row])
        if not low < size * step < high:
            step = math.sqrt(low * high) / size if low > 0.0 and math.isfinite(high) else (2.0 if top > 1.0 else 0.5)
        before = share.max()
        _scale(share, step)
        size *= step
        if before >= 1.0 and step > 1.0 and share.min() >= 1.0:
            break  # all of the band
    return best, pays, top


@compiled
def buy_band(
    stage: Stage, row: int, pi: Array, T: float, rho: float, lam: float, enough: float, share: Array, curve: Array,
    spare: Array, rent: Array, spent: Array,
) -> float:  # fmt: skip
    """A lower bound on what the row pays for its best share, searched from `share`, which becomes the best share found.

    enough: a bound above this need not be exact, because another row is cheaper.
    """
    best_bound, _, _, _ = _price_at(stage, row, pi, T, rho, lam, share, curve, spare, rent, spent)
    least_pay, steep = math.inf, STEEP
    best_share, best_rent, best_spent = share.copy(), rent.copy(), np.zeros(2)
    for _ in range(MIXES):
        if best_bound > enough:
            return best_bound
        bound, pays, top = _resize(stage, row, pi, T, rho, lam, share, curve, spare, rent, spent)
        best_bound = max(best_bound, bound)
        if pays < least_pay:
            least_pay = pays
            best_share[:], best_rent[:], best_spent[:] = share, rent, spent
        else:
            steep *= 0.5  # too far: from the best mix again, by less
        if best_bound > enough or pays - best_bound < CLOSE * pays or top <= 0.0 or math.isinf(top):
            break
        highest = 0.0
        for i in range(share.shape[0]):
            highest = max(highest, best_rent[i] / pi[i])
        for i in range(share.shape[0]):
            share[i] = min(1.0, max(LEAST, best_share[i] * (best_rent[i] / (pi[i] * highest)) ** steep))
    share[:], spent[:] = best_share, best_spent
    return best_bound


@compiled
def _buy_all(
    stage: Stage, group: Array, alone_s: Array, pi: Array, T: float, lam: float, shares: Array, picks: Array,
    usage: Array,
) -> tuple[float, float]:  # fmt: skip
    """(the least that all clients pay, each with its cheapest row; sum q / power - sum f / hz of these rows).

    The rows of client k are group[k] to group[k + 1]; alone_s are the seconds of each row alone in the cell. picks [K] are
    the rows to begin with and become the cheapest rows; shares [rows, I] as `share` in `buy_band`; usage [I] is filled with what
    the clients buy of each subchannel.
    """
    subs = shares.shape[1]
    curve, spare, rent, spent = np.empty((CURVE_ROWS, subs)), np.empty((CURVE_ROWS, subs)), np.empty(subs), np.empty(2)
    rho = stage.hz / stage.power_w * lam / (1.0 - lam)
    total, pull = 0.0, 0.0
    usage[:] = 0.0
    for k in range(group.shape[0] - 1):
        least_pay, chosen, chosen_pull = math.inf, -1, 0.0
        count = group[k + 1] - group[k]
        for turn in range(count):
            row = group[k] + (picks[k] - group[k] + turn) % count
            if alone_s[row] >= T:
                continue  # not even with all of the band
            if needs_subchannel(stage, row):
                pays = buy_band(stage, row, pi, T, rho, lam, least_pay, shares[row], curve, spare, rent, spent)
            else:
                spent[0], spent[1], shares[row] = stage.cycles[row] / (T - stage.fixed_s[row]), 0.0, 0.0
                pays = (1.0 - lam) * spent[0] / stage.hz
            if pays < least_pay:
                least_pay, chosen = pays, row
                row_pull = spent[1] / stage.power_w - spent[0] / stage.hz
                chosen_pull = max(-FAR, min(FAR, row_pull)) if math.isfinite(row_pull) else 0.0
        total += least_pay
        if chosen < 0:
            return math.inf, pull
        picks[k] = chosen
        pull += chosen_pull
        usage += shares[chosen]
    return total, pull


class BandPrices:
    """Prices that exclude deadlines, kept from one deadline to the next.

    The prices start as the rents of good rows [K] with good shares [K, I], until the clock ends.
    """

    def __init__(self, stage: Stage, group: Array, rows: Array, share: Array, clock: TimeLimit) -> None:
        self.clock = clock
        self.stage, self.group, self.alone_s = stage, group, alone_each_s(stage)
        good_stage = stage_of_clients(stage, rows)
        share = np.maximum(share, LEAST)
        good_stage = smoothed(
            good_stage, 0.01 * solve_shares(good_stage, share, 0.0, 0.0)[0]
        )  # clients without a price get a small load
        T_s, rho, lam = solve_shares(good_stage, share, 0.0, 0.0)
        K, subs = share.shape
        H, point, weight = np.empty((K, subs)), np.empty((K, 6)), np.empty(K)
        rents(good_stage, share, T_s, rho, lam, H, point, weight)
        self.pi = np.maximum((H * weight[:, None]).max(axis=0), 1e-9)
        self.lam = min(max(lam, 1e-6), 1 - 1e-6)
        self.picks = np.asarray(rows, np.int64).copy()
        self.shares = np.repeat(share, np.diff(group), axis=0)  # [rows, I]

    def exclude(self, T_s: float) -> bool:
        """Whether prices were found that prove: no cuts and no shares keep T_s."""
        pi, lam, usage = self.pi.copy(), self.lam, np.empty(len(self.pi))
        best = -np.inf
        for _ in range(TRIALS):
            total, pull = _buy_all(self.stage, self.group, self.alone_s, pi, T_s, lam, self.shares, self.picks, usage)
            value = total * (1.0 - ROUNDING) - pi.sum()
            if value > best:
                best, self.pi, self.lam = value, pi.copy(), lam
            if value > 1.0 + 1e-9:
                return True
            if self.clock.over():
                break
            excess = usage - 1.0
            slope = float(pi @ excess**2) + lam * (1.0 - lam) * pull**2
            pace = min(1.0, (1.0 - value) / slope) if slope > 0 else 0.0  # Polyak's step, in the logarithms of prices
            pi = pi * np.exp(np.clip(pace * excess, -1.0, 1.0))
            odds = lam / (1.0 - lam) * np.exp(np.clip(pace * pull, -1.0, 1.0))
            lam = min(max(odds / (1.0 + odds), 1e-6), 1 - 1e-6)
        return False
