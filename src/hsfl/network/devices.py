"""Who can do what: the clients of a fleet and the two servers.

Legend: K clients, C = num_units + 1 cuts. A speed in FLOPs per second is cycles per second times FLOPs per cycle (the
paper's f kappa, Eq. (6)).
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from hsfl import fleet_file
from hsfl.errors import InputError
from hsfl.fleet_file import Device
from hsfl.formats import size
from hsfl.models.cost_table import CostTable
from hsfl.network import given_numbers
from hsfl.network.latency import UnitWork
from hsfl.network.round_end import RoundEnd
from hsfl.network.server_queue import QueuedTest

Array = np.ndarray
Range = tuple[float, float]

PAPER_CPU_HZ: Range = (0.0, 10e10)  # uniform, Section V-A; a device of 0 cycles would never finish, hence the floor
PAPER_CPU_FLOOR_HZ = 0.05e10
LEAST_HZ = 1e3  # of a device; the solvers take no slower one
PAPER_MAX_POWER_W: Range = (1.0, 10.0)
PAPER_MAX_CUT = (3, 10)  # ours: the paper does not say; ResNet-18 has 10 units
STORAGE = ("training", "parameters")
MANY_CLIENTS = 2000  # above, cuts answer to prices, and records and pages hold quantiles instead of every client


@dataclass(frozen=True)
class Servers:
    """The main server's cycles and both servers' transmit powers; the defaults are the paper's."""

    main_hz: float = 100e10
    flops_per_cycle: float = 1.0
    main_power_w: float = 100.0
    edge_power_w: float = 100.0
    service: str | None = (
        None  # the order of service where the main server is one queue (`server_queue.ORDERS`); None divides its cycles
    )

    work: UnitWork | None = None  # [C], where its units were measured
    end: RoundEnd | None = None  # of a round, where the main server is one queue; None: it takes no time
    test: QueuedTest | None = None  # what the queue serves besides the clients

    def __post_init__(self) -> None:
        for name in ("main_hz", "flops_per_cycle", "main_power_w", "edge_power_w"):
            given_numbers.positive_number(f"servers.{name}", getattr(self, name))


@dataclass(frozen=True)
class Fleet:
    """Arrays over clients, [K]. `cpu_hz` is a client's mean speed; a round's speed varies around it.

    A power that is NaN was not given: links of measured speed need none.
    """

    cpu_hz: Array
    flops_per_cycle: Array
    max_power_w: Array
    max_cut: Array  # the deepest cut that the client can hold
    names: Array | None = None  # of the devices, where a fleet file or the data name them
    drawn_max_cut: Array | None = None  # max_cut as drawn, where a deeper cut was given and raised it
    work: UnitWork | None = None  # [K, C], where units of some device were measured

    def __post_init__(self) -> None:
        num_clients = given_numbers.float_numbers("cpu_hz", self.cpu_hz).size
        if not num_clients:
            raise InputError("the fleet has no clients; give at least one cpu_hz")
        for name in ("cpu_hz", "flops_per_cycle"):
            object.__setattr__(self, name, given_numbers.per_client(name, getattr(self, name), num_clients))
        object.__setattr__(self, "max_power_w", _powers(self.max_power_w, num_clients))
        object.__setattr__(self, "max_cut", _whole_cuts(self.max_cut, num_clients))

    @property
    def num_clients(self) -> int:
        return len(self.cpu_hz)

    def take(self, clients: Array) -> "Fleet":
        """The fleet of some of the devices. clients: indices, or a mask [K]."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: values[clients] for name, values in columns.items() if values is not None})

    def name(self, client: int) -> str:
        """What to call a client: its device's name, else `client 3`."""
        return f"client {client}" if self.names is None else str(self.names[client])

    def can_hold(self, cuts: Array | int) -> Array:
        """Whether each client can hold its cut, [K]."""
        return np.asarray(cuts) <= self.max_cut

    def check_cuts(self, cuts: Array, num_units: int, min_cut: int = 1) -> None:
        """Every client has a cut that it may and can hold."""
        cuts = np.broadcast_to(np.asarray(cuts), self.max_cut.shape)
        deepest = np.minimum(self.max_cut, num_units)
        bad = (cuts < min_cut) | (cuts > deepest)
        if bad.any():
            k = int(bad.argmax())
            raise InputError(f"the cut of client {k} is {cuts[k]}; it can hold {min_cut}..{deepest[k]}")


def _powers(values: object, num_clients: int) -> Array:
    array = given_numbers.float_numbers("max_power_w", values)
    missing = np.isnan(array) & (array.shape == (num_clients,))
    return np.where(
        missing, np.nan, given_numbers.per_client("max_power_w", np.where(missing, 1.0, array), num_clients)
    )


def _whole_cuts(values: object, num_clients: int) -> Array:
    cuts = given_numbers.float_numbers("max_cut", values)
    if cuts.ndim == 0:
        cuts = np.full(num_clients, float(cuts))
    if cuts.shape != (num_clients,):
        raise InputError(f"max_cut has shape {cuts.shape} but there are {num_clients} clients; give one per client")
    bad = ~((cuts >= 0) & (cuts == np.floor(cuts)) & (cuts < 2**31))
    if bad.any():
        k = int(bad.argmax())
        raise InputError(f"max_cut of client {k} is {cuts[k]}; it must be a whole number, 0 or more")
    return cuts.astype(int)


def max_cuts(cost: CostTable, storage_bits: Array, storage: str = "training", min_cut: int = 1) -> Array:
    """The deepest cut that fits each client's storage, [K]; all cuts from `min_cut` up to it fit.

    `storage` says what must fit: "training" memory for a mini-batch, or the "parameters" alone (the paper).
    """
    if storage not in STORAGE:
        raise InputError(f"storage is {storage!r}; choose {' or '.join(STORAGE)}")
    need_bits = cost.memory_bits if storage == "training" else cost.param_bits
    if need_bits is None:
        raise InputError(
            f"the cost table does not say what storage {storage!r} needs; measure the model, or give max_cut"
        )
    storage_bits = given_numbers.float_numbers("storage_bits", storage_bits)
    storage_bits = given_numbers.per_client("storage_bits", storage_bits, storage_bits.size)
    fits = np.maximum.accumulate(need_bits[min_cut:]) <= storage_bits[:, None]  # [K, C - min_cut]
    if not fits[:, 0].all():
        k = int(fits[:, 0].argmin())
        raise InputError(
            f"client {k} has no feasible cut: its storage is {size(storage_bits[k] / 8)} and cut {min_cut} needs "
            f"{size(need_bits[min_cut] / 8)} ({storage}); give it more storage, a smaller batch, or leave it out"
        )
    return min_cut + fits.sum(axis=1) - 1


def draw_fleet(
    num_clients: int,
    rng: np.random.Generator,
    heterogeneity: float = 1.0,
    *,
    num_units: int,
    cpu_hz: Range = PAPER_CPU_HZ,
    max_power_w: Range = PAPER_MAX_POWER_W,
    cpu_floor_hz: float = PAPER_CPU_FLOOR_HZ,
    flops_per_cycle: float = 1.0,
    max_cut: tuple[int, int] = PAPER_MAX_CUT,
    min_cut: int = 1,
) -> Fleet:
    """A fleet from uniform ranges, by default the paper's.

    `heterogeneity` in 0..1 scales the spread of cpu_hz and max_power_w around the fleet's own means, which stay as
    they are: 0 makes all clients equal, 1 keeps the draws. The draws are the same at every level. `max_cut` is
    uniform over whole numbers, cut off at `num_units`; for storage in bits, use `max_cuts` and
    `dataclasses.replace`.
    """
    if num_clients < 1:
        raise InputError(f"num_clients is {num_clients}; it must be at least 1")
    if not 0 <= heterogeneity <= 1:
        raise InputError(f"heterogeneity is {heterogeneity}; choose 0 (equal) to 1 (as drawn), or widen the ranges")
    low, high = min(max_cut[0], num_units), min(max_cut[1], num_units)
    if not min_cut <= low <= high:
        raise InputError(f"max_cut range {max_cut} leaves no cut from {min_cut} to {num_units}; raise it")
    uniform = rng.random((num_clients, 3))
    speed_hz = _between(cpu_hz, "cpu_hz", uniform[:, 0])
    if cpu_hz[1] < LEAST_HZ or 0 < cpu_hz[0] < LEAST_HZ:
        raise InputError(
            f"fleet.cpu_hz is [{cpu_hz[0]:g}, {cpu_hz[1]:g}] cycles per second, slower than any device; give units, such as "
            'fleet.cpu_hz=["1GHz", "5GHz"]'
        )
    if cpu_hz[0] == 0:  # a range from 0 needs a floor; any other range is taken as it is
        if cpu_floor_hz > cpu_hz[1]:
            raise InputError(
                f"fleet.cpu_floor_hz is {cpu_floor_hz:g}, above the range of fleet.cpu_hz {cpu_hz}; lower it"
            )
        speed_hz = np.maximum(speed_hz, cpu_floor_hz)
    power_w = _between(max_power_w, "max_power_w", uniform[:, 1])
    return Fleet(
        cpu_hz=_spread(speed_hz, heterogeneity),
        flops_per_cycle=np.full(num_clients, float(flops_per_cycle)),
        max_power_w=_spread(power_w, heterogeneity),
        max_cut=low + np.floor(uniform[:, 2] * (high - low + 1)).astype(int),
    )


def _between(limits: Range, what: str, uniform: Array) -> Array:
    low, high = limits
    if not (0 <= low <= high < np.inf and high > 0):
        raise InputError(f"the range of {what} is {low}..{high}; it must rise from 0 or more to above 0")
    return low + (high - low) * uniform


def with_heterogeneity(fleet: Fleet, heterogeneity: float) -> Fleet:
    """The same devices, their speeds and powers nearer to the fleet's mean (0: all equal, 1: as they are)."""
    cpu_hz, max_power_w = (_spread(values, heterogeneity) for values in (fleet.cpu_hz, fleet.max_power_w))
    return replace(fleet, cpu_hz=cpu_hz, max_power_w=max_power_w)


def _spread(values: Array, heterogeneity: float) -> Array:
    mean = values.mean()
    return values if heterogeneity == 1 else mean + heterogeneity * (values - mean)


def fleet_of_file(path: str | Path, cost: CostTable, storage: str = "training", min_cut: int = 1) -> Fleet:
    """An explicit fleet from a file (see `hsfl.fleet_file`), for a model: memory becomes the deepest cut that fits."""
    file = fleet_file.read_fleet_file(path)
    devices = file.devices
    fleet = Fleet(
        cpu_hz=np.array([device.cpu_hz for device in devices]),
        flops_per_cycle=np.array([device.flops_per_cycle for device in devices]),
        max_power_w=np.array([np.nan if device.power_w is None else device.power_w for device in devices]),
        max_cut=np.array([_deepest(device, file.path, cost, storage, min_cut) for device in devices]),
        names=np.array([device.name for device in devices]),
    )
    _check_deepest(fleet, cost.num_units, min_cut, str(path))
    return fleet


def _deepest(device: Device, path: Path, cost: CostTable, storage: str, min_cut: int) -> int:
    if device.max_cut is not None:
        return device.max_cut
    if device.memory_bits is None:
        return cost.num_units
    try:
        return int(max_cuts(cost, np.array([device.memory_bits]), storage, min_cut)[0])
    except InputError as error:
        raise InputError(f"{path}: {str(error).replace('client 0', f'device {device.name!r}')}") from None


def _check_deepest(fleet: Fleet, num_units: int, min_cut: int, where: str) -> None:
    max_cut = fleet.max_cut
    bad = (max_cut < min_cut) | (max_cut > num_units)
    if not bad.any():
        return
    k = int(bad.argmax())
    who = fleet.name(k)
    if max_cut[k] > num_units:
        raise InputError(f"{where}: max_cut of {who} is {max_cut[k]} but the model has {num_units} units; lower it")
    raise InputError(f"{where}: {who} has no feasible cut: max_cut is {max_cut[k]} but min_cut is {min_cut}")
