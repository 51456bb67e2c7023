"""Cuts for large fleets (crowds): too many clients, or too many cells, to try cuts one by one. Each client answers to prices.

Legend: K clients, C cuts, N cells, T the deadline of training, I subchannels of a cell.

One client among many moves no price. So let a cycle per second cost 1, a subchannel of a cell cost pi, and let a bit take the
band that it takes at the client's mean rate. With a band b and cycles f the client's training ends at fixed + w / b + n / f, and the
cheapest way to end at T costs

    phi = min f + pi b  =  (sqrt(n) + sqrt(pi w))^2 / (T - fixed),    f = sqrt(n phi / (T - fixed)),    b = sqrt(w phi / (pi (T - fixed))).

Every client takes the cut with the least price; a second of the model's distribution costs what a second of T is worth, the slope
of all prices. For each T the price of a band is the one at which the clients of the cell take the band that there is, and T is the
least at which all cells together take the cycles that there are: bisection in bisection, over arrays.

Distribution ends with the last cell, and a mean over cells makes it look cheap. So several costs of its second are tried, and
one cut for all.

Prices are found on sampled rounds. The clients of a sampled round are chosen as a run chooses them. The best cuts by prices and
the best single cuts are finalists: their sampled rounds are allocated by `cells`, since the model may be wrong by a tenth. One finalist takes the place of
another where it is proven to be shorter on these rounds, so that the speed of a machine hardly decides. Nothing is proven of other cuts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hsfl.allocation.cuts.search import CutChoice, CutRequest, Judge, SampledRounds
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.stage.stage_answer import TimeLimit
from hsfl.errors import InputError

Array = np.ndarray
STEPS = 200  # of a bisection, at most
CLOSE = 1e-4  # relative width at which a bisection over T, or over a price, ends
WIDEST, NEAR = 80.0, 2.0  # how far ln(price of a band) is searched: at first around 0, then around the last price
COST_MULTIPLES = (
    1.0,
    4.0,
    16.0,
)  # costs of a second of distribution that are tried, as multiples of the slope of the prices
BLOCK = 16_384  # clients at a time, where all of them choose
SINGLE_FINALISTS = 2  # single cuts, besides the best cuts by prices
FINALIST_GAP = 0.02  # to which the rounds of finalists are allocated


@dataclass(frozen=True)
class Loads:
    """What each client would have to do at each cut, [K, C]; infinite fixed_s where it cannot hold the cut."""

    fixed_s: Array  # its own computing
    cycles: Array  # n, of the main server
    band_s: Array  # w, seconds with one subchannel for all it sends and receives in training
    down_s: Array  # seconds with one subchannel for the model that it receives

    def take(self, clients: Array | slice) -> "Loads":
        """The loads of some clients."""
        return Loads(self.fixed_s[clients], self.cycles[clients], self.band_s[clients], self.down_s[clients])


@dataclass(frozen=True)
class Crowd:
    """Rows of clients in cells. A row of S sampled rounds counts 1/S."""

    loads: Loads
    cell: Array  # [K] of each row
    num_cells: int
    weight: float  # of a row
    main_hz: float
    num_subchannels: int


@dataclass(frozen=True)
class Prices:
    """What the clients of a crowd answer to."""

    T_s: float
    last_s: float  # of the model's distribution in the cell that ends last
    band: Array  # [N] cycles per second that a subchannel of a cell costs
    second: float  # cycles per second that a second of distribution, the mean over cells, costs


@dataclass(frozen=True)
class CutRule:
    """How clients choose: by prices, or one cut for all as far as each can hold it."""

    prices: Prices | None = None
    one_cut: int = 0

    def cuts(self, loads: Loads, cell: Array, num_subchannels: int) -> Array:
        """The cut of each client, [K]. cell: [K]."""
        if self.prices is None:
            able = np.isfinite(loads.fixed_s)
            deepest = able.shape[1] - 1 - able[:, ::-1].argmax(axis=1)
            return np.minimum(self.one_cut, deepest)
        blocks = (slice(low, low + BLOCK) for low in range(0, len(cell), BLOCK))
        return np.concatenate(
            [_answers(loads.take(block), self.prices, cell[block], num_subchannels) for block in blocks]
        )


@dataclass(frozen=True)
class CellsOfRound:
    """A sampled round in explicit numbers: a scenario for each cell that has clients, and who these are."""

    scenarios: Sequence[Scenario]
    clients: Sequence[Array]  # the clients of each of these cells, of the fleet
    downloads_count: (
        bool  # whether these clients are all that receive the model; else the model of prices says how long that takes
    )


@dataclass(frozen=True)
class LargeFleet(SampledRounds):
    """A fleet whose clients answer to the prices of sampled rounds."""

    crowd: Crowd  # of the sampled rounds
    loads: Loads  # of every client
    cell: Array  # [K] of every client
    rounds: Sequence[CellsOfRound] = ()  # the sampled rounds, on which finalists are allocated; none: the model decides

    def judge(self, request: CutRequest) -> Judge:
        raise InputError(f"cuts cannot be tried one by one for {len(self.cell)} clients; take those that prices choose")

    def mean_s(self, cuts: Array) -> Array:
        raise InputError(f"cuts cannot be tried one by one for {len(self.cell)} clients; take those that prices choose")


def priced_fleet_cuts(request: CutRequest) -> CutChoice:
    """A cut for every client of a large fleet. The mean round is that of the allocated finalists, or of the model of prices; nothing is proven of other
    cuts."""
    fleet, clock = request.rounds, TimeLimit(np.inf)
    assert isinstance(fleet, LargeFleet)
    crowd, subs = fleet.crowd, fleet.crowd.num_subchannels
    rules = [CutRule(_find_prices(crowd, multiple)) for multiple in COST_MULTIPLES]
    rules += [CutRule(one_cut=cut) for cut in np.flatnonzero(np.isfinite(crowd.loads.fixed_s).any(axis=0)).tolist()]
    priced = [_priced_round(crowd, rule.cuts(crowd.loads, crowd.cell, subs)) for rule in rules]
    seconds = [prices.T_s + prices.last_s for prices in priced]
    ranked = sorted(range(len(rules)), key=lambda index: seconds[index])
    best, mean_s, finalists = ranked[0], seconds[ranked[0]], _finalists(rules, ranked)
    if fleet.rounds and len(finalists) > 1:
        limit_s = request.settings.time_limit_s / (len(finalists) * len(fleet.rounds))
        best_bound_s, seen = math.inf, set[bytes]()
        for index in finalists:
            cuts, last_s = rules[index].cuts(fleet.loads, fleet.cell, subs), priced[index].last_s
            if cuts.tobytes() in seen:  # rules may give the same
                continue
            seen.add(cuts.tobytes())
            rounds = np.mean([_allocated(cells, cuts, last_s, limit_s) for cells in fleet.rounds], axis=0)
            if rounds[0] < best_bound_s:
                best, mean_s, best_bound_s = index, float(rounds[0]), float(rounds[1])
    cuts = rules[best].cuts(fleet.loads, fleet.cell, subs)
    return CutChoice(cuts, np.array([mean_s]), mean_s, 0.0, 1.0, "prices", len(finalists), clock.seconds())


def _finalists(rules: Sequence[CutRule], ranked: Sequence[int]) -> list[int]:
    """The best rule by prices and the best single cuts, the shortest round of the model first. ranked: all rules in this order."""
    by_prices = [index for index in ranked if rules[index].prices is not None]
    singles = [index for index in ranked if rules[index].prices is None]
    chosen = {*by_prices[:1], *singles[:SINGLE_FINALISTS]}
    return [index for index in ranked if index in chosen]


def _allocated(cells: CellsOfRound, cuts: Array, last_s: float, limit_s: float) -> tuple[float, float]:
    """The seconds of a sampled round with these cuts [K], and their bound. last_s: of the model's distribution, as the model of prices has it."""
    from hsfl.allocation.cells import solve_cells  # here, because numba takes seconds to load

    answer = solve_cells(cells.scenarios, [cuts[clients] for clients in cells.clients], FINALIST_GAP, limit_s)
    if cells.downloads_count:
        return answer.round_s, answer.lower_bound_s
    down_s = max(float(cell.phases["model_down_s"].max()) for cell in answer.cells)
    return answer.round_s - down_s + last_s, answer.training_bound_s + last_s


def _priced_round(crowd: Crowd, cuts: Array) -> Prices:
    """The prices of a round in this model, where each row has its cut of cuts [rows]: with the seconds of training, and of distribution."""
    rows = np.arange(len(cuts))
    columns = (getattr(crowd.loads, name)[rows, cuts][:, None] for name in Loads.__dataclass_fields__)
    return _find_prices(replace(crowd, loads=Loads(*columns)), 0.0)


def _find_prices(crowd: Crowd, cost_multiple: float) -> Prices:
    """The prices at which the rows take all cycles and bands that there are.

    cost_multiple: how many times the slope of the prices a second of distribution costs.
    """
    rows, second = _Rows(crowd), 0.0
    low_s = float(crowd.loads.fixed_s.min(axis=1).max())
    high_s = max(low_s, 1e-12)
    for _ in range(STEPS):
        high_s *= 2.0
        if rows.at(high_s, second).hz <= crowd.main_hz:
            break
    for _ in range(STEPS):
        if high_s - low_s <= CLOSE * high_s:
            break
        middle_s = 0.5 * (low_s + high_s)
        taken = rows.at(middle_s, second)
        if taken.hz <= crowd.main_hz:
            high_s, second = (
                middle_s,
                cost_multiple * taken.slope,
            )  # what a second is worth is known better with every step
        else:
            low_s = middle_s
    taken = rows.at(high_s, second)
    return Prices(high_s, taken.last_s, rows.band, second)


def _answers(loads: Loads, prices: Prices, cell: Array, num_subchannels: int) -> Array:
    """The cut of each client with the least price, [K]. cell: [K]."""
    root_price = np.sqrt(prices.band[cell])[:, None]
    phi = _phi(loads, np.sqrt(loads.cycles), np.sqrt(loads.band_s), prices.T_s, root_price)
    total = phi + prices.second * loads.down_s / (len(prices.band) * num_subchannels)
    late = np.isinf(phi).all(axis=1)  # no cut of the client ends at T: it takes its quickest cut
    return np.where(late, loads.fixed_s.argmin(axis=1), total.argmin(axis=1))


def _phi(loads: Loads, root_cycles: Array, root_band: Array, T_s: float, root_price: Array) -> Array:
    """What every cut costs, [K, C]; infinite where T is too short."""
    left_s = T_s - loads.fixed_s
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(left_s > 0.0, (root_cycles + root_price * root_band) ** 2 / left_s, np.inf)


@dataclass(frozen=True)
class _Taken:
    """What a crowd takes at a deadline."""

    hz: float
    last_s: float  # of distribution, in the cell that ends last
    slope: float  # by how much all prices fall with a second more


class _Rows:
    """A crowd's rows, with the prices of bands that were found last."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd, self.loads = crowd, crowd.loads
        self.root_cycles, self.root_band = np.sqrt(self.loads.cycles), np.sqrt(self.loads.band_s)
        self.band, self.reach = np.ones(crowd.num_cells), WIDEST  # the last prices; how far around them to look
        self.rows = np.arange(len(crowd.cell))

    def at(self, T_s: float, second: float) -> _Taken:
        """Find the bands' prices at T_s, and what the rows take then. second: what a second of distribution costs."""
        crowd = self.crowd
        extra = second * self.loads.down_s / (crowd.num_cells * crowd.num_subchannels)
        middle = np.log(self.band)
        low, high = np.maximum(middle - self.reach, -WIDEST), np.minimum(middle + self.reach, WIDEST)
        if self.reach < WIDEST:  # the narrow range serves only where it holds the new prices
            low = np.where(self._overbought_cells(T_s, np.exp(low), extra)[0], low, -WIDEST)
            high = np.where(self._overbought_cells(T_s, np.exp(high), extra)[0], WIDEST, high)
        while (high - low).max() > CLOSE:
            middle = 0.5 * (low + high)
            overbought = self._overbought_cells(T_s, np.exp(middle), extra)[0]
            low, high = np.where(overbought, middle, low), np.where(overbought, high, middle)
        self.band, self.reach = np.exp(high), NEAR
        _, cut, phi, left_s = self._overbought_cells(T_s, self.band, extra)
        with np.errstate(invalid="ignore", divide="ignore"):
            hz = crowd.weight * float((self.root_cycles[self.rows, cut] * np.sqrt(phi / left_s)).sum())
            slope = crowd.weight * float((phi / left_s).sum())
        down_s = np.bincount(crowd.cell, self.loads.down_s[self.rows, cut], crowd.num_cells)
        last_s = crowd.weight * float(down_s.max()) / crowd.num_subchannels
        return _Taken(hz if np.isfinite(hz) else np.inf, last_s, slope)

    def _overbought_cells(self, T_s: float, price: Array, extra: Array) -> tuple[Array, Array, Array, Array]:
        """(the cells [N] in which too much band is taken at these prices [N]; of each row its cheapest cut, what it costs, and the
        seconds that are left after its own computing)."""
        crowd = self.crowd
        phi = _phi(self.loads, self.root_cycles, self.root_band, T_s, np.sqrt(price)[crowd.cell][:, None])
        cut = np.argmin(phi + extra, axis=1)
        least_price, left_s = phi[self.rows, cut], T_s - self.loads.fixed_s[self.rows, cut]
        with np.errstate(invalid="ignore", divide="ignore"):
            band = self.root_band[self.rows, cut] * np.sqrt(least_price / (price[crowd.cell] * left_s))
        taken = crowd.weight * np.bincount(crowd.cell, band, crowd.num_cells)
        return ~(taken <= crowd.num_subchannels), cut, least_price, left_s
