"""The world of a run, from its config: what cuts cost, which devices there are, and which links they have. `scenario_of_round` gives one
round of a world in explicit numbers, as `hsfl allocate` reads them.

Legend: K clients, N cells, R recorded rounds, S sampled rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from hsfl.allocation.scenario import Scenario, rows_between
from hsfl.codec_table import NONE, allowed_links
from hsfl.config import FleetConfig, ModelConfig, NetworkConfig, RunConfig, TrainConfig
from hsfl.data.passes import batches_of_pass, samples_of_round, steps_of_round
from hsfl.errors import InputError
from hsfl.framework_table import method
from hsfl.models.cost_table import CostTable, measure_cost
from hsfl.network import devices, history
from hsfl.network.channel import (
    RATE_NAMES,
    SPEED_STD,
    Links,
    Measured,
    Ofdma,
    PathLoss,
    RoundDraw,
    antenna_positions,
    draw_round,
    draw_rounds,
    nearest_cell,
    random_positions,
)
from hsfl.network.devices import Fleet, Servers
from hsfl.network.latency import Rates
from hsfl.network.round_end import RoundEnd
from hsfl.planning.coded_cost import cost_of_rows, rows_within_points, work_of_rows
from hsfl.planning.fleet_from_file import measured_works, to_other_server, with_fleet_file
from hsfl.rng import stream

if TYPE_CHECKING:
    from hsfl.models.units import SplitModel

Array = np.ndarray
OPTIMIZER_STATES = {"sgd": 0, "momentum": 1, "adam": 2}  # tensors of the weights' size that each keeps
Shape = tuple[int, ...]  # of a sample


@dataclass(frozen=True)
class World:
    """What decides how long rounds take, apart from cuts and allocation."""

    cost: CostTable
    fleet: Fleet
    servers: Servers
    links: Links
    recorded: RoundDraw | None  # a history [R, ...] that is played back; None if rounds are drawn
    seed: int  # of devices and channel
    speed_std: float  # of a client's speed from round to round, relative
    codecs: tuple[str, ...] = (NONE,)  # of each block of the cost table, as `codec_table.read_pair` reads them
    own_codecs: bool = (
        False  # whether each client has a codec of its own, given or chosen; else everybody has the one of the settings
    )
    usable: Array | None = None  # [rows of the cost table] bool: those that any client may take at all; None: all

    def rows(self, min_cut: int) -> Array:
        """The rows of the cost table that each client may take, [K, C of every block] bool."""
        deepest = np.minimum(self.fleet.max_cut, self.cost.num_units)
        rows = np.tile(rows_between(min_cut, deepest, self.cost.num_units + 1), self.cost.num_blocks)
        if self.usable is None:
            return rows
        rows = rows & self.usable
        if not (has_row := rows.any(axis=1)).all():
            raise InputError(
                f"link.max_points leaves {self.fleet.name(int(has_row.argmin()))} without a cut; raise it, or allow {NONE} (link.allowed)"
            )
        return rows

    def codecs_of(self, rows: Array) -> tuple[str, ...]:
        """The codec of each client that has these rows [K]; nothing where clients have none of their own."""
        if not self.own_codecs:
            return ()
        blocks = np.where(self.cost.cuts_of(rows) < self.cost.num_units, self.cost.blocks_of(rows), -1)
        return tuple(NONE if block < 0 else self.codecs[block] for block in blocks)

    def rows_of(self, cuts: Sequence[int], codecs: Sequence[str]) -> Array:
        """The rows of these cuts with these codecs, [K] each; `codecs_of` gives the codecs back."""
        if not codecs:
            return np.array(cuts)
        num_cuts, blocks = self.cost.num_units + 1, {codec: block for block, codec in enumerate(self.codecs)}
        for k, (cut, codec) in enumerate(zip(cuts, codecs)):
            if codec not in blocks and cut < self.cost.num_units:
                raise InputError(
                    f"the codec of {self.fleet.name(k)} is {codec!r} but link.allowed is {list(self.codecs)}; allow the codecs with which "
                    "the cuts were chosen"
                )
        return np.array([cut + num_cuts * blocks.get(codec, 0) for cut, codec in zip(cuts, codecs)])

    def named(self, names: Sequence[str]) -> "World":
        """The world whose clients have these names [K], where a fleet file gave them none; no names change nothing."""
        if not names or self.fleet.names is not None:
            return self
        return replace(self, fleet=replace(self.fleet, names=np.array(names)))

    def draw(self, round_index: int) -> RoundDraw:
        """The speeds and gains of a round (0, 1, ...); they are the same for every framework."""
        if self.recorded is not None:
            return history.round_of_history(self.recorded, round_index)
        return draw_round(self.fleet, self.links, self.seed, round_index, speed_std=self.speed_std)


def make_world(config: RunConfig, input_shape: Shape, num_classes: int, model: "SplitModel | None" = None) -> World:
    """The world of a config. input_shape: of one sample. model: where it was given from Python, instead of the config's."""
    if model is None:
        return world_of(config, model_cost(config, input_shape, num_classes))
    states = OPTIMIZER_STATES[config.train.optimizer]
    return world_of(config, measure_cost(model, input_shape, config.train.batch_size, optimizer_states=states))


def world_of(config: RunConfig, cost: CostTable) -> World:
    """The world of a config whose model has this cost table."""
    works, allowed, usable = measured_works(config, cost), allowed_links(config.link), None
    config = with_fleet_file(config)
    fleet = _make_fleet(config.fleet, cost, config.fleet_seed)
    if not method(config.framework).pools_data:
        blocks, usable = list(allowed.values()), rows_within_points(config.link, cost)
        works = replace(
            works,
            devices=work_of_rows(cost, blocks, works.devices, "client", works.device_coding),
            main_server=work_of_rows(cost, blocks, works.main_server, "server", works.main_coding),
        )
        cost = cost_of_rows(cost, blocks, config.train.batch_size)
    fleet = replace(fleet, work=works.devices)
    network, recorded = config.network, None
    if network.history is not None:
        recorded = history.read_history(network.history, fleet.num_clients)
    links = make_links(network, fleet.num_clients, config.fleet_seed, recorded)
    if recorded is not None:
        _check_history(recorded, links, str(network.history))
    service = network.service if server_is_queue(network) else None
    end = None if service is None else round_end_of(network)
    servers = Servers(
        network.main_hz,
        network.flops_per_cycle,
        network.main_power_w,
        network.edge_power_w,
        service,
        works.main_server,
        end,
        None if end is None else end.beside(tests_per_round(config.train)),
    )
    own_codecs = not method(config.framework).pools_data and (len(allowed) > 1 or config.link.codecs is not None)
    codecs = tuple(allowed)[: cost.num_blocks]
    return World(
        cost, fleet, servers, links, recorded, config.fleet_seed, speed_std_of(network), codecs, own_codecs, usable
    )


def speed_std_of(network: NetworkConfig) -> float:
    """How much a client's speed changes from round to round: as the settings say, else as in the paper over a radio. On measured links speeds
    are measured, and a plan that drew others would be a worse prediction."""
    if network.speed_std is not None:
        return network.speed_std
    return SPEED_STD if network.kind == "ofdma" else 0.0


def server_is_queue(network: NetworkConfig) -> bool:
    """Whether the main server serves one batch at a time; an error where a radio's allocation would divide its cycles."""
    if network.server == "queue" and network.kind == "ofdma":
        raise InputError(
            "network.server is 'queue' but network.kind is 'ofdma', whose allocations divide the server; "
            "set network.kind=measured, or network.server=auto"
        )
    return network.server == "queue" or (network.server == "auto" and network.kind == "measured")


def tests_per_round(train: TrainConfig) -> float:
    """How often a round is tested, in the mean over a run."""
    return 1 / train.eval_every


def round_end_of(network: NetworkConfig) -> RoundEnd:
    """The end of a round as the settings give it."""
    return RoundEnd(**{field.name: getattr(network, field.name) for field in fields(RoundEnd)})


def model_cost(config: RunConfig, input_shape: Shape, num_classes: int, batch_size: int | None = None) -> CostTable:
    """The cost table of the model that the config names. batch_size: the batch whose memory is counted; by default the config's."""
    options, states = config.options.of(config.model.name), OPTIMIZER_STATES[config.train.optimizer]
    given = None if options is None else PluginOptions(options)
    return measured_cost(config.model, input_shape, num_classes, batch_size or config.train.batch_size, states, given)


@dataclass(frozen=True)
class PluginOptions:
    """Options of a plugin's model, as a key of a cache: equal options are equal keys."""

    options: Any

    def __hash__(self) -> int:
        return hash(type(self.options).__qualname__)


@lru_cache(maxsize=8)
def measured_cost(
    model: ModelConfig,
    input_shape: Shape,
    num_classes: int,
    batch_size: int,
    states: int,
    plugin_options: PluginOptions | None = None,
) -> CostTable:
    """The cost table of a model by name. It is remembered, because measuring ResNet-18 takes some seconds.

    states: tensors of the weights' size that the optimiser keeps. plugin_options: options of a plugin's model.
    """
    from hsfl.models.zoo import build  # here, so that a world from a saved cost table needs no torch

    options = plugin_options.options if plugin_options is not None else None
    made = build(model.name, input_shape, num_classes, model.norm, model.stem, dropout=model.dropout, options=options)
    return measure_cost(made, input_shape, batch_size, optimizer_states=states)


def count_batches(
    config: RunConfig, num_samples: np.ndarray, round_index: int | None = None, batch_size: int | None = None
) -> np.ndarray:
    """Mini-batches of each client in a round, [K], as the clock charges them: fractions for true samples, or full batches.

    num_samples: [K]. round_index: of the round (0, 1, ...), where `train.local_epochs` is a fraction, so that rounds differ by a
    pass's smaller last batch; None gives the mean over rounds, on which plans are made. batch_size: by default the config's.
    """
    size, epochs = batch_size or config.train.batch_size, config.train.local_epochs
    batches = num_samples / size
    if config.network.full_batches:
        batches = np.ceil(batches)
        return batches * (steps_of_round(num_samples, size, epochs) / batches_of_pass(num_samples, size))
    if epochs.is_integer():
        return epochs * batches
    return samples_of_round(num_samples, size, epochs, round_index) / size


def _make_fleet(config: FleetConfig, cost: CostTable, seed: int) -> Fleet:
    """The devices: from a file, or drawn from the seed; each with the deepest cut that it can hold."""
    if config.min_cut > cost.num_units:
        raise InputError(f"fleet.min_cut is {config.min_cut} but the model has {cost.num_units} units; lower it")
    if config.file is not None:
        fleet = devices.fleet_of_file(config.file, cost, config.storage, config.min_cut)
        if fleet.num_clients != config.num_clients:
            raise InputError(
                f"fleet.num_clients is {config.num_clients} but {config.file} has {fleet.num_clients} devices; "
                f"set fleet.num_clients={fleet.num_clients}"
            )
        fleet = devices.with_heterogeneity(fleet, config.heterogeneity)
    else:
        fleet = devices.draw_fleet(
            config.num_clients,
            stream(seed, "fleet"),
            config.heterogeneity,
            num_units=cost.num_units,
            cpu_hz=config.cpu_hz,
            max_power_w=config.max_power_w,
            cpu_floor_hz=config.cpu_floor_hz,
            flops_per_cycle=config.flops_per_cycle,
            max_cut=(max(3, config.min_cut), max(3, cost.num_units)),
            min_cut=config.min_cut,
        )
    max_cut = _max_cuts(config, fleet, cost, seed)
    drawn = config.max_cut is None and config.storage_bits is None
    return replace(fleet, max_cut=max_cut, drawn_max_cut=fleet.max_cut if drawn else max_cut)


def _max_cuts(config: FleetConfig, fleet: Fleet, cost: CostTable, seed: int) -> np.ndarray:
    """The deepest cut of each client, [K]: as given, else what its storage holds, else as drawn. A drawn device is taken to hold
    the cut that the config gives it."""
    if config.max_cut is not None:
        return _given_max_cuts(config.max_cut, fleet.num_clients, cost.num_units, config.min_cut)
    if config.storage_bits is not None:
        low, high = config.storage_bits
        bits = low + (high - low) * stream(seed, "storage").random(fleet.num_clients)
        return devices.max_cuts(cost, bits, config.storage, config.min_cut)
    if config.file is None and not isinstance(config.cuts, str) and np.size(config.cuts) in (1, fleet.num_clients):
        return np.maximum(fleet.max_cut, np.minimum(config.cuts, cost.num_units))
    return fleet.max_cut


def _given_max_cuts(value: int | tuple[int, ...], num_clients: int, num_units: int, min_cut: int) -> np.ndarray:
    max_cuts = np.full(num_clients, value) if isinstance(value, int) else np.array(value)
    if len(max_cuts) != num_clients:
        raise InputError(
            f"fleet.max_cut has {len(max_cuts)} numbers but there are {num_clients} clients; give one each"
        )
    if (bad := (max_cuts < 0) | (max_cuts > num_units)).any():
        k = int(bad.argmax())
        raise InputError(
            f"fleet.max_cut[{k}] is {max_cuts[k]} but the model has {num_units} units; choose 0..{num_units}"
        )
    if (bad := max_cuts < min_cut).any():
        k = int(bad.argmax())
        raise InputError(f"fleet.max_cut[{k}] is {max_cuts[k]}, below fleet.min_cut = {min_cut}; client {k} has no cut")
    return max_cuts


def make_links(network: NetworkConfig, num_clients: int, seed: int, recorded: RoundDraw | None = None) -> Links:
    """The radio, or the measured links, of a config. recorded: a history with rates, where there is one."""
    if network.kind == "measured":
        if recorded is not None and recorded.rates is not None:  # the rates of each round are known
            return Measured(Rates(*(getattr(recorded.rates, name).mean(axis=0) for name in RATE_NAMES)))
        return Measured(_measured_rates(network, num_clients))
    places = _places(network, num_clients, seed)
    cell = _cells(network, num_clients, places)
    if cell is not None and places is not None:
        places = places - _antennas(network, places)[cell]
    return Ofdma(
        network.num_subchannels,
        network.subchannel_hz,
        network.noise_w,
        network.fading,
        network.gain_floor,
        None if places is None else _path_loss(network, places),
        cell,
    )


def _places(network: NetworkConfig, num_clients: int, seed: int) -> np.ndarray | None:
    """Where the clients are, [K, 2] in metres; None where no place is known."""
    if network.positions_m is not None:
        places = np.array(network.positions_m, float).reshape(-1, 2)
        if len(places) != num_clients:
            raise InputError(f"network.positions_m has {len(places)} places for {num_clients} clients; give one each")
        return places
    return (
        None if network.radius_m is None else random_positions(num_clients, network.radius_m, stream(seed, "positions"))
    )


def _path_loss(network: NetworkConfig, places: np.ndarray) -> PathLoss:
    main_m, edge_m = np.array(network.main_m), np.array(network.edge_m)
    return PathLoss(places, main_m, edge_m, network.path_loss_exponent, network.path_loss_db)


def _cells(network: NetworkConfig, num_clients: int, places: np.ndarray | None) -> np.ndarray | None:
    """The cell of each client, [K]: that of the nearest antenna, or by turns where no places are known; None for one cell."""
    if network.cells == 1:
        return None
    if network.cells > num_clients:
        raise InputError(f"network.cells is {network.cells} but there are {num_clients} clients; lower it")
    if places is None:
        return np.arange(num_clients) % network.cells
    return nearest_cell(places, _antennas(network, places))


def _antennas(network: NetworkConfig, places: np.ndarray) -> np.ndarray:
    """Where the cells' antennas are, [N, 2]; both servers send from there."""
    if network.cells_m is None:
        radius_m = network.radius_m or float(np.linalg.norm(places, axis=1).max())
        return antenna_positions(network.cells, radius_m)
    antennas = np.array(network.cells_m, float).reshape(-1, 2)
    if len(antennas) != network.cells:
        raise InputError(f"network.cells_m has {len(antennas)} places for {network.cells} cells; give one each")
    return antennas


def _measured_rates(network: NetworkConfig, num_clients: int) -> Rates:
    """The measured rates, [K] each; a rate to one server that is not given is that to the other server."""
    rates = {}
    for name in RATE_NAMES:
        value, other_value = getattr(network, name), getattr(network, to_other_server(name))
        value = other_value if value is None else value
        if value is None:
            raise InputError(f"network.kind is 'measured' but network.{name} is not given; give bits per second")
        array = np.full(num_clients, value, float) if isinstance(value, float | int) else np.array(value, float)
        if len(array) != num_clients:
            raise InputError(f"network.{name} has {len(array)} numbers for {num_clients} clients; give one each")
        rates[name] = array
    return Rates(**rates, delay_s=_delays(network.delay_s, num_clients))


def _delays(delay_s: float | tuple[float, ...], num_clients: int) -> np.ndarray | None:
    """What each message of a client takes besides its bits, [K] in seconds; None where nothing does."""
    if not np.any(delay_s):
        return None
    if np.size(delay_s) not in (1, num_clients) or np.min(delay_s) < 0:
        raise InputError(
            f"network.delay_s is {delay_s!r}; give seconds, 0 or more, for all or for each of the {num_clients} clients"
        )
    return np.full(num_clients, np.asarray(delay_s, float))


def _check_history(recorded: RoundDraw, links: Links, path: str) -> None:
    if (recorded.rates is None) != isinstance(links, Ofdma):
        has, wants = ("gains", "measured") if recorded.rates is None else ("rates", "ofdma")
        raise InputError(f"network.history {path} has {has} but network.kind is {wants!r}; change the kind")
    if recorded.main_gain is not None and isinstance(links, Ofdma):
        columns = recorded.main_gain.shape[-1]
        if columns != links.num_subchannels:
            raise InputError(
                f"network.history {path} has {columns} subchannels but network.num_subchannels is "
                f"{links.num_subchannels}; set network.num_subchannels={columns}"
            )


def sample_draws(world: World, count: int) -> RoundDraw:
    """Rounds to plan on, [S, ...]: all recorded rounds where there is a history, else `count` draws apart from those of the run."""
    if world.recorded is not None:
        return world.recorded
    rounds = range(count)
    return draw_rounds(world.fleet, world.links, world.seed, rounds, speed_std=world.speed_std, key="samples")


def scenario_of_round(
    world: World,
    draw: RoundDraw,
    batch_size: int,
    num_batches: np.ndarray,
    tau_s: float | None,
    sharing: str,
    min_cut: int = 1,
) -> Scenario:
    """A round in explicit numbers, as `hsfl allocate` reads them. num_batches: [K]. sharing: exclusive, bandwidth or auto."""
    links, cost, fleet, servers = world.links, world.cost, world.fleet, world.servers
    if not isinstance(links, Ofdma) or draw.main_gain is None or draw.edge_gain is None:
        raise InputError("network.kind is 'measured', which has no radio; a scenario needs network.kind=ofdma")
    if sharing == "auto":
        sharing = "bandwidth" if fleet.num_clients > links.num_subchannels else "exclusive"
    return Scenario(
        batch_size=batch_size,
        tau_s=tau_s,
        sharing=sharing,
        client_flops=cost.client_flops,
        server_flops=cost.server_flops,
        smashed_bits=cost.smashed_bits,
        gradient_bits=cost.gradient_bits,
        model_bits=cost.model_bits,
        cpu_hz=draw.cpu_hz,
        client_flops_per_cycle=fleet.flops_per_cycle,
        max_power_w=fleet.max_power_w,
        max_cut=np.minimum(fleet.max_cut, cost.num_units),
        num_batches=num_batches,
        min_cut=min_cut,
        main_hz=servers.main_hz,
        server_flops_per_cycle=servers.flops_per_cycle,
        main_power_w=servers.main_power_w,
        edge_power_w=servers.edge_power_w,
        subchannel_hz=links.subchannel_hz,
        noise_w=links.noise_w,
        main_gain=draw.main_gain,
        edge_gain=draw.edge_gain,
        model_down_bits=cost.model_down_bits,
        legal_rows=None if cost.num_blocks == 1 and world.usable is None else world.rows(min_cut),
    ).checked()
