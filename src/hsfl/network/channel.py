"""The links between clients and servers, and how a round draws them.

Legend: K clients, I subchannels, S samples (rounds laid in a leading axis). Two kinds of link: `Ofdma` (subchannels,
gains, noise; gains redrawn each round) and `Measured` (bits per second given). All frameworks see the same draws,
since a draw is keyed by (seed, "channel", round) and nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hsfl.errors import InputError
from hsfl.network import given_numbers
from hsfl.network.devices import Fleet
from hsfl.network.latency import Rates
from hsfl.rng import stream

Array = np.ndarray

FADING = ("normal", "rayleigh")
SPEED_STD = 0.1  # a round's speed over the client's mean, relative standard deviation
SPEED_FLOOR = 0.1  # the least speed of a round, relative to the client's mean
RATE_NAMES = ("main_up_bps", "main_down_bps", "edge_up_bps", "edge_down_bps")


@dataclass(frozen=True)
class PathLoss:
    """Log-distance path loss: loss(d) = reference_db + 10 exponent log10(d / reference_m), positions in metres."""

    client_m: Array  # [K, 2]
    main_m: Array  # [2]
    edge_m: Array  # [2]
    exponent: float = 3.0
    reference_db: float = 30.0  # at reference_m
    reference_m: float = 1.0

    def __post_init__(self) -> None:
        for name, shape in (("client_m", (-1, 2)), ("main_m", (2,)), ("edge_m", (2,))):
            places = given_numbers.float_numbers(f"path_loss.{name}", getattr(self, name))
            if places.ndim != len(shape) or places.shape[-1] != 2 or not np.isfinite(places).all():
                raise InputError(f"path_loss.{name} must be positions (x, y) in metres; its shape is {places.shape}")
            object.__setattr__(self, name, places)
        given_numbers.positive_number("path_loss.exponent", self.exponent)
        given_numbers.positive_number("path_loss.reference_m", self.reference_m)

    def gain(self, server_m: Array) -> Array:
        """Power gain of each client to a server, [K]; nearer than reference_m counts as reference_m."""
        with np.errstate(over="ignore", under="ignore"):  # a gain of 0 or infinity is an error of the draw
            distance_m = np.maximum(np.linalg.norm(self.client_m - server_m, axis=1), self.reference_m)
            loss_db = self.reference_db + 10 * self.exponent * np.log10(distance_m / self.reference_m)
            return 10 ** (-loss_db / 10)


def random_positions(num_clients: int, radius_m: float, rng: np.random.Generator) -> Array:
    """Positions uniform in a disc around the origin, [K, 2]."""
    radius, angle = rng.random((num_clients, 2)).T
    distance_m = given_numbers.positive_number("radius_m", radius_m) * np.sqrt(radius)
    return distance_m[:, None] * np.stack([np.cos(2 * np.pi * angle), np.sin(2 * np.pi * angle)], axis=1)


def antenna_positions(num_cells: int, radius_m: float) -> Array:
    """Places of antennas that cover a disc around the origin evenly, [N, 2], in a sunflower's spiral."""
    number = np.arange(num_cells)
    distance_m, angle = radius_m * np.sqrt((number + 0.5) / num_cells), np.pi * (3 - np.sqrt(5)) * number
    return distance_m[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def nearest_cell(client_m: Array, cell_m: Array, block: int = 4096) -> Array:
    """The cell whose antenna is nearest to each client, [K]. client_m: [K, 2]. cell_m: [N, 2]."""
    blocks = [
        ((client_m[low : low + block, None] - cell_m) ** 2).sum(axis=2).argmin(axis=1)
        for low in range(0, len(client_m), block)
    ]
    return np.concatenate(blocks)


@dataclass(frozen=True)
class Ofdma:
    """Subchannels shared by the clients; the defaults are the paper's.

    `fading` gives the power gain of a subchannel: `normal` is abs(h) of h ~ N(0, 1) (the paper's "standard norm"),
    `rayleigh` is abs(h)^2 of a complex h, exponential with mean 1. `gain_floor` is the least gain that fading
    leaves; path loss then multiplies the gain. Gains are reciprocal (up = down) and independent over clients,
    subchannels and servers.
    Cells do not disturb each other, and in each of them both servers send with all their power.
    """

    num_subchannels: int = 10
    subchannel_hz: float = 1e6
    noise_w: float = 1e-3  # noise power per subchannel
    fading: str = "normal"
    gain_floor: float = 0.01
    path_loss: PathLoss | None = None  # where there are cells, places are relative to the antenna of the client's cell
    # [K] the cell of each client, from 0; clients of one cell share its subchannels. None: all are in one cell
    cell: Array | None = None

    @property
    def num_cells(self) -> int:
        """How many cells there are, up to the last cell that has a client."""
        return 1 if self.cell is None else int(self.cell.max()) + 1

    def __post_init__(self) -> None:
        if self.num_subchannels < 1:
            raise InputError(f"network.num_subchannels is {self.num_subchannels}; it must be at least 1")
        for name in ("subchannel_hz", "noise_w", "gain_floor"):
            given_numbers.positive_number(f"network.{name}", getattr(self, name))
        if self.fading not in FADING:
            raise InputError(f"network.fading is {self.fading!r}; choose {' or '.join(FADING)}")


@dataclass(frozen=True)
class Measured:
    """Each client's bits per second to and from each server, as measured; clients share no link."""

    rates: Rates  # [K]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", _checked_rates(self.rates))


Links = Ofdma | Measured


@dataclass(frozen=True)
class RoundDraw:
    """The state of the network in one round: client speeds, and gains (`Ofdma`) or rates (`Measured`).

    With a leading axis S it is S samples, for the planner or as a recorded history.
    """

    cpu_hz: Array  # [..., K]
    main_gain: Array | None = None  # [..., K, I]
    edge_gain: Array | None = None  # [..., K, I]
    rates: Rates | None = None  # [..., K]

    def __post_init__(self) -> None:
        cpu_hz = given_numbers.all_positive("cpu_hz", np.asarray(self.cpu_hz, float), client_axis=-1)
        object.__setattr__(self, "cpu_hz", cpu_hz)
        if (self.rates is None) == (self.main_gain is None) or (self.main_gain is None) != (self.edge_gain is None):
            raise InputError("a draw needs either the gains to both servers or the four rates")
        for name in ("main_gain", "edge_gain"):
            if getattr(self, name) is not None:
                gain = given_numbers.all_positive(name, np.asarray(getattr(self, name), float), client_axis=-2)
                if gain.shape[:-1] != cpu_hz.shape:
                    raise InputError(f"{name} is {gain.shape} but cpu_hz is {cpu_hz.shape}; the clients must agree")
                object.__setattr__(self, name, gain)
        if self.rates is not None:
            rates = _checked_rates(self.rates)
            if rates.main_up_bps.shape != cpu_hz.shape:
                raise InputError(f"rates are {rates.main_up_bps.shape} but cpu_hz is {cpu_hz.shape}; they must agree")
            object.__setattr__(self, "rates", rates)

    @property
    def num_clients(self) -> int:
        return self.cpu_hz.shape[-1]

    def sample(self, index: int | slice | Array) -> "RoundDraw":
        """One of S samples (or several) of a draw with a leading axis."""
        return self._map_arrays(lambda array: array[index])

    def take(self, clients: Array) -> "RoundDraw":
        """The same draw for some clients: indices or a mask."""
        return self._map_arrays(lambda array: array[..., clients], lambda gain: gain[..., clients, :])

    def _map_arrays(
        self, select: Callable[[Array], Array], select_gain: Callable[[Array], Array] | None = None
    ) -> "RoundDraw":
        """The draw with every array replaced by a selection of it."""
        select_gain = select_gain or select
        return RoundDraw(
            select(self.cpu_hz),
            None if self.main_gain is None else select_gain(self.main_gain),
            None if self.edge_gain is None else select_gain(self.edge_gain),
            None if self.rates is None else self.rates.map(select),
        )


def _checked_rates(rates: Rates) -> Rates:
    arrays = {name: np.asarray(getattr(rates, name), float) for name in RATE_NAMES}
    for name, array in arrays.items():
        if array.shape != arrays["main_up_bps"].shape:
            raise InputError(f"{name} is {array.shape} but main_up_bps is {arrays['main_up_bps'].shape}")
        given_numbers.all_positive(name, array, client_axis=-1)
    return replace(rates, **arrays)


def draw_round(
    fleet: Fleet, links: Links, seed: int, round: int, *, speed_std: float = SPEED_STD, key: str = "channel"
) -> RoundDraw:
    """The speeds and gains (or rates) of one round. Speeds, main and edge gains have a stream each, so a change of
    the number of subchannels moves no speed."""
    num_clients = fleet.num_clients
    factor = 1 + speed_std * stream(seed, key, round, "speed").standard_normal(num_clients)
    cpu_hz = fleet.cpu_hz * np.maximum(factor, SPEED_FLOOR)
    if isinstance(links, Measured):
        return RoundDraw(cpu_hz, rates=links.rates)
    main, edge = (_fading(links, num_clients, stream(seed, key, round, name)) for name in ("main", "edge"))
    if links.path_loss is not None:
        if len(links.path_loss.client_m) != num_clients:
            raise InputError(f"path_loss has {len(links.path_loss.client_m)} positions for {num_clients} clients")
        main *= links.path_loss.gain(links.path_loss.main_m)[:, None]
        edge *= links.path_loss.gain(links.path_loss.edge_m)[:, None]
    return RoundDraw(cpu_hz, main, edge)


def _fading(links: Ofdma, num_clients: int, rng: np.random.Generator) -> Array:
    shape = (num_clients, links.num_subchannels)
    gain = np.abs(rng.standard_normal(shape)) if links.fading == "normal" else rng.standard_exponential(shape)
    return np.maximum(gain, links.gain_floor)


def draw_rounds(
    fleet: Fleet, links: Links, seed: int, rounds: Sequence[int], *, speed_std: float = SPEED_STD, key: str = "channel"
) -> RoundDraw:
    """Several rounds in a leading axis. The planner samples with a `key` of its own, so that it never sees the rounds
    that the run will draw."""
    draws = [draw_round(fleet, links, seed, round, speed_std=speed_std, key=key) for round in rounds]
    if not draws:
        raise InputError("no rounds to draw; give at least one")
    if isinstance(links, Measured):
        stacked = links.rates.map(lambda array: np.broadcast_to(array, (len(draws), *array.shape)).copy())
        return RoundDraw(np.stack([draw.cpu_hz for draw in draws]), rates=stacked)
    main, edge = (np.stack([getattr(draw, name) for draw in draws]) for name in ("main_gain", "edge_gain"))
    return RoundDraw(np.stack([draw.cpu_hz for draw in draws]), main, edge)
