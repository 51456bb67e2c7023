"""Which settings do nothing beside which others, and why: the table that `effects` looks into."""

from collections.abc import Callable
from dataclasses import dataclass

from hsfl.config import OWN_MODEL, RunConfig
from hsfl.fleet import file as fleet_file
from hsfl.methods import method
from hsfl.models.recipes import find_recipe
from hsfl.network.channel import RATE_NAMES
from hsfl.network.devices import MANY_CLIENTS

AT_PRICES = f"cuts of several cells, and of more than {MANY_CLIENTS} clients, answer to prices"


@dataclass(frozen=True)
class Rule:
    """Settings that do nothing unless `works`; `why` says so, in words that follow "has no effect:"."""

    names: tuple[str, ...]
    works: Callable[[RunConfig], bool]
    why: str
    of_runs: bool = False  # a plan searches cuts and allocates, whatever the config says of a run


def _file_gives_memory(config: RunConfig) -> bool:
    return config.fleet.file is not None and fleet_file.read(config.fleet.file).gives_memory


def _at_prices(config: RunConfig) -> bool:
    return config.network.kind == "ofdma" and (config.network.cells > 1 or config.fleet.num_clients > MANY_CLIENTS)


def _names(section: str, fields: str) -> tuple[str, ...]:
    return tuple(f"{section}.{field}" for field in fields.split())


RULES = (
    Rule(
        _names("fleet", "cpu_hz cpu_floor_hz flops_per_cycle max_power_w"),
        lambda c: c.fleet.file is None,
        "the devices are those of fleet.file; leave one of the two out",
    ),
    Rule(
        _names("fleet", "storage_bits"),
        lambda c: c.fleet.max_cut is None,
        "fleet.max_cut says how much each client holds; leave one of the two out",
    ),
    Rule(
        _names("fleet", "storage"),
        lambda c: c.fleet.max_cut is None and (c.fleet.storage_bits is not None or _file_gives_memory(c)),
        "no storage decides how much a client holds; give fleet.storage_bits or a fleet.file with memory, or leave it out",
    ),
    Rule(
        _names("network", " ".join(RATE_NAMES)),
        lambda c: c.network.kind == "measured",
        'a radio makes the rates; set network.kind="measured", or leave it out',
    ),
    Rule(
        _names("network", " ".join(RATE_NAMES)),
        lambda c: c.network.history is None,
        "network.history has the rates of every round; leave one of the two out",
    ),
    Rule(
        _names("network", "cells cells_m num_subchannels subchannel_hz noise_w fading gain_floor radius_m positions_m")
        + _names("network", "main_power_w")
        + _names("network", "edge_power_w main_m edge_m path_loss_exponent path_loss_db"),
        lambda c: c.network.kind == "ofdma",
        'measured links have no radio; set network.kind="ofdma", or leave it out',
    ),
    Rule(
        _names("network", "main_m edge_m path_loss_exponent path_loss_db"),
        lambda c: c.network.radius_m is not None or c.network.positions_m is not None,
        "without places there is no path loss; give network.radius_m or network.positions_m, or leave it out",
    ),
    Rule(
        _names("network", "cells_m"),
        lambda c: c.network.cells > 1 and (c.network.radius_m is not None or c.network.positions_m is not None),
        "it says where several cells are, beside clients with places; give network.cells and network.radius_m, or leave it out",
    ),
    Rule(
        _names("network", "main_m edge_m"),
        lambda c: c.network.cells == 1,
        "every cell has an antenna of its own (network.cells_m), from which both servers send; leave it out",
    ),
    Rule(
        _names("network", "radius_m"),
        lambda c: c.network.positions_m is None,
        "network.positions_m says where the clients are; leave one of the two out",
    ),
    Rule(
        _names(
            "network", "speed_std fading gain_floor radius_m positions_m main_m edge_m path_loss_exponent path_loss_db"
        ),
        lambda c: c.network.history is None,
        "network.history has the speeds and gains of every round; leave one of the two out",
    ),
    Rule(
        _names("allocation", "samples cuts plan_time_limit_s population patience"),
        lambda c: c.fleet.cuts == "planned",
        "no cuts are searched; set fleet.cuts=planned, or leave it out",
        of_runs=True,
    ),
    Rule(
        _names("allocation", "samples cuts plan_time_limit_s population patience gap time_limit_s sharing"),
        lambda c: c.allocation.policy != "even",
        "the even allocation solves nothing; set allocation.policy=proposed, or leave it out",
        of_runs=True,
    ),
    Rule(
        _names("allocation", "population"),
        lambda c: c.allocation.cuts == "ga",
        "only the genetic algorithm has a population; set allocation.cuts=ga, or leave it out",
    ),
    Rule(
        _names("allocation", "patience"),
        lambda c: c.allocation.cuts != "exhaustive",
        "an exhaustive search tries all cuts; leave it out",
    ),
    Rule(
        _names("allocation", "gap sharing"),
        lambda c: c.network.kind == "ofdma",
        "measured links have no radio to divide; leave it out",
    ),
    Rule(
        _names("train", "momentum"),
        lambda c: c.train.optimizer == "momentum",
        'it is of the optimizer "momentum"; set train.optimizer=momentum, or leave it out',
    ),
    Rule(
        _names("train", "step_rounds step_factor"),
        lambda c: c.train.schedule == "step",
        'they are of the schedule "step"; set train.schedule=step, or leave it out',
    ),
    Rule(
        _names("train", "tau_s"),
        lambda c: method(c.framework).timing.tau,
        "the framework drops nobody: its clients wait for each other, or there are none; leave it out",
    ),
    Rule(
        _names("train", "clients_per_round drop_rate"),
        lambda c: not method(c.framework).pools_data,
        "the data are on the server, and no client can be away; leave it out",
    ),
    Rule(
        _names("train", "choose"),
        lambda c: c.train.clients_per_round is not None,
        "all clients take part in every round; set train.clients_per_round, or leave it out",
    ),
    Rule(
        _names("train", "receivers"),
        lambda c: c.train.clients_per_round is not None or c.train.drop_rate > 0,
        "all clients take part in every round; set train.clients_per_round, or leave it out",
    ),
    Rule(
        _names("allocation", "samples"),
        lambda c: not _at_prices(c),
        f"{AT_PRICES}, over two sampled rounds; leave it out",
        of_runs=True,
    ),
    Rule(
        _names("allocation", "cuts plan_time_limit_s population patience"),
        lambda c: not _at_prices(c),
        f"{AT_PRICES} and are not searched; leave it out",
    ),
    Rule(
        _names("fleet", "cuts"),
        lambda c: method(c.framework).timing.cut == "any",
        "the framework does not cut the model; leave it out, or choose another framework",
        of_runs=True,
    ),
    Rule(
        _names("fleet", "one_cut"),
        lambda c: method(c.framework).timing.cut == "any" and not method(c.framework).own_cuts,
        "it is for frameworks with one cut for all clients; set fleet.cuts, or leave it out",
    ),
    Rule(
        _names("data", "alpha"),
        lambda c: c.data.partition in ("dirichlet", "quantity_skew"),
        "it is for data.partition = dirichlet or quantity_skew; set one of them, or leave it out",
    ),
    Rule(
        _names("data", "classes_per_client"),
        lambda c: c.data.partition == "shards",
        "it is for data.partition = shards; set that, or leave it out",
    ),
    Rule(_names("data", "split"), lambda c: c.data.name == "ham10000", "it is for ham10000; leave it out"),
    Rule(
        _names("model", "norm stem dropout init_weights"),
        lambda c: c.model.name != OWN_MODEL,
        "the model was given itself, and is trained as it is; leave it out",
    ),
    Rule(
        _names("model", "norm"),
        lambda c: c.model.name == OWN_MODEL or find_recipe(c.model.name).has_norm,
        "this model has no BatchNorm to exchange; leave it out",
    ),
    Rule(
        _names("model", "stem"),
        lambda c: c.model.name != OWN_MODEL and find_recipe(c.model.name).stem,
        "this model has no stem that shrinks images; leave it out",
    ),
    Rule(
        _names("engine", "workers threads"),
        lambda c: c.engine.name != "inline",
        "everything is trained in one process; set engine.name=workers, or leave it out",
    ),
    Rule(
        _names("engine", "address"),
        lambda c: c.engine.name == "ray",
        "it is the address of a Ray cluster; set engine.name=ray, or leave it out",
    ),
)
