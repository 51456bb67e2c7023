"""When a setting has no effect, and why: the table `UNUSED` at the end has a row for each setting, in the order of the config.

A row lists its reasons in the order in which they are looked at. A setting without a row has an effect in every run, or is
refused where the data, the model or the engine are made.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter

from hsfl import fleet_file
from hsfl.config import OWN_MODEL, RunConfig
from hsfl.framework_table import copy_per_client_names, method
from hsfl.models.recipes import find_recipe
from hsfl.network.devices import MANY_CLIENTS
from hsfl.planning.cuts import looks_at_cuts
from hsfl.planning.fair_defaults import one_cut_of
from hsfl.planning.rounds.allocators import policy_of
from hsfl.planning.rounds.cpsl_policy import plans_one_cut, takes_turns
from hsfl.planning.rounds.measured_queue import divides_server

Predicate = Callable[[RunConfig], bool]


@dataclass(frozen=True)
class Reason:
    """Why a setting has no effect in a config for which `holds` is true.

    sentence: follows "has no effect:". {c} is the config, {with_copies} names the frameworks that train a copy per client.
    """

    holds: Predicate
    sentence: str
    runs_only: bool = False  # not for plans, which search cuts and allocate for HSFL whatever the config says
    wherever_given: bool = False  # `prepare` refuses the setting even where a preset or a run folder gives it

    def unless(self, exempt: Predicate) -> "Reason":
        """The reason, which does not hold for a config that is exempt."""
        return replace(self, holds=lambda c: not exempt(c) and self.holds(c))

    def sentence_for(self, config: RunConfig) -> str:
        """The sentence, with names and values of the config."""
        return self.sentence.format(c=config, with_copies=", ".join(copy_per_client_names()))


def _needs(setting: str, *values: str) -> Reason:
    """The setting is used only where another setting has one of some values."""
    wanted = f"{setting}={' or '.join(values)}"
    return Reason(lambda c: attrgetter(setting)(c) not in values, f"it is for {wanted}; set that, or leave it out")


def _decided_by(setting: str) -> Reason:
    """The setting is not used where another setting is given."""
    sentence = f"{setting} decides it; leave one of the two out"
    return Reason(lambda c: attrgetter(setting)(c) is not None, sentence)


def _framework_that(trait: str, holds: Predicate) -> Reason:
    """The setting is not used in runs of frameworks with a trait; a plan is made for HSFL."""
    return Reason(holds, f"{{c.framework}} {trait}; leave it out, or choose another framework", runs_only=True)


def _pools_data(c: RunConfig) -> bool:
    return method(c.framework).pools_data


def _has_no_copies(c: RunConfig) -> bool:
    return not method(c.framework).copy_per_client


def _keeps_even(c: RunConfig) -> bool:
    return _has_no_copies(c) and not takes_turns(c)


def _is_uncut(c: RunConfig) -> bool:
    return method(c.framework).timing.cut != "any"


def _is_whole_on_clients(c: RunConfig) -> bool:
    return method(c.framework).timing.cut == "whole"


def _ignores_storage(c: RunConfig) -> bool:
    return _is_uncut(c) and not (_is_whole_on_clients(c) and c.options.fl.needs_storage)


def _keeps_heads(c: RunConfig) -> bool:
    options = c.options.of(c.framework)
    return getattr(options, "average", None) == "server" or getattr(options, "cut_gradient", False)


def _gives_no_memory(c: RunConfig) -> bool:
    in_file = c.fleet.file is not None and fleet_file.read_fleet_file(c.fleet.file).gives_memory
    return c.fleet.storage_bits is None and not in_file


def _has_one_cut(c: RunConfig) -> bool:
    """Whether one cut for all clients decides that does not follow from `fleet.cuts`."""
    follows = c.fleet.one_cut == "auto" and (c.fleet.cuts == "max_cut" or not isinstance(c.fleet.cuts, str))
    return not looks_at_cuts(c) and not follows


def _has_radio(c: RunConfig) -> bool:
    return c.network.kind == "ofdma"


def _searches_no_cuts(c: RunConfig) -> bool:
    return c.fleet.cuts not in ("auto", "planned") or not looks_at_cuts(c)


def _may_try_one_cut(c: RunConfig) -> bool:
    """Whether one cut for all clients may be chosen by its rounds under a policy."""
    row = method(c.framework)
    return row.copy_per_client and row.timing.cut == "any" and not looks_at_cuts(c)


def _tries_one_cut(c: RunConfig) -> bool:
    """Whether one cut for all clients is chosen by its rounds under the policy."""
    return plans_one_cut(c) or (_may_try_one_cut(c) and one_cut_of(c) == "fastest")


def _is_at_prices(c: RunConfig) -> bool:
    """Whether cuts answer to prices (docs/allocation.md), because there are many clients or several cells."""
    return _has_radio(c) and (c.network.cells > 1 or c.fleet.num_clients > MANY_CLIENTS)


def _is_own_model(c: RunConfig) -> bool:
    return c.model.name == OWN_MODEL


# Model and training
GIVEN_MODEL = Reason(_is_own_model, "the model was given itself, and is trained as it is; leave it out")
CUT_BY_HAND = Reason(
    lambda c: not _is_own_model(c) and not find_recipe(c.model.name).is_split,
    "{c.model.name} is cut by hand, so nothing is certified; leave it out",
)
NO_NORM = Reason(lambda c: not find_recipe(c.model.name).has_norm, "{c.model.name} has no BatchNorm; leave it out")
OTHER_NORM = Reason(lambda c: c.model.norm != "batch", "model.norm={c.model.norm} leaves no BatchNorm; leave it out")
NO_STEM = Reason(lambda c: not find_recipe(c.model.name).stem, "{c.model.name} has no stem to choose; leave it out")
NO_IMAGES = Reason(
    lambda c: not _is_own_model(c) and find_recipe(c.model.name).any_shape and not find_recipe(c.model.name).is_split,
    "{c.model.name} has no convolutions, which alone are faster in another order; leave it out",
)
WAITS_FOR_ALL = Reason(
    lambda c: not method(c.framework).timing.tau,
    "{c.framework} drops nobody: its clients wait for each other, or there are none; leave it out",
)
NOBODY_IS_AWAY = Reason(_pools_data, "the data are on the server, and no client can be away; leave it out")
COPIES = "leave it out, or choose one of {with_copies}"
NO_COPIES = Reason(_has_no_copies, f"{{c.framework}} does not train a copy per client; {COPIES}", wherever_given=True)
NO_ATTACK = Reason(lambda c: c.attack.kind is None, "nobody attacks; set attack.kind, or leave it out")
ONE_PROCESS = Reason(_has_no_copies, f"{{c.framework}} trains clients in turn or in step, in one process; {COPIES}")
ALL_TAKE_PART = Reason(
    lambda c: c.train.clients_per_round is None,
    "all clients take part in every round; set train.clients_per_round, or leave it out",
)

# Devices and links
IN_FLEET_FILE, IN_HISTORY = _decided_by("fleet.file"), _decided_by("network.history")
NEEDS_RADIO, NEEDS_MEASURED = _needs("network.kind", "ofdma"), _needs("network.kind", "measured")
NOTHING_DRAWN = Reason(
    lambda c: c.fleet.file is not None and c.network.history is not None,
    "fleet.file and network.history leave nothing to draw; leave it out",
)
CPU_ABOVE_0 = Reason(
    lambda c: c.fleet.cpu_hz[0] != 0, "fleet.cpu_hz begins above 0 and is taken at its word; leave it out"
)
NO_PLACES = Reason(
    lambda c: c.network.radius_m is None and c.network.positions_m is None,
    "there is no path loss without places; give network.radius_m or network.positions_m, or leave it out",
)
ONE_CELL = Reason(lambda c: c.network.cells == 1, "there is one cell; set network.cells, or leave it out")
CELL_ANTENNAS = Reason(
    lambda c: c.network.cells > 1,
    "both servers send from the antenna of every cell (network.cells_m); leave it out",
)
ON_SERVER_ALONE = _framework_that("trains on the server alone, to which clients send their data once", _pools_data)
NO_MAIN_SERVER = _framework_that("has no main server: clients train the whole model", _is_whole_on_clients)
NO_MAIN_LINK = replace(
    NO_MAIN_SERVER,
    sentence="{c.framework} has no main server: clients train the whole model; leave it out, or choose another framework (rates to "
    "the main server alone, main_up_bps and main_down_bps, are taken for the edge server, too)",
)
HEADS_STAY = _framework_that("has clients that keep their heads", _keeps_heads)
NO_CODECS_TO_CHOOSE = Reason(
    lambda c: tuple(c.link.allowed) == ("none",),
    "it is for codecs that the planner chooses; set link.allowed, or leave it out",
)
NOT_SIDE_BY_SIDE = _framework_that(
    "has clients that use the main server one after another, or servers of their own", lambda c: not divides_server(c)
)

# Cuts and allocation
UNCUT = _framework_that("does not cut the model", _is_uncut)
ONE_CUT = _framework_that("has one cut for all clients, and fleet.one_cut gives it", _has_one_cut)
NOT_ONE_CUT = Reason(
    lambda c: _is_uncut(c) or method(c.framework).own_cuts,
    "it is for frameworks with one cut for all clients; set fleet.cuts, or leave it out",
)
ANY_STORAGE = _framework_that(
    "does not ask what a client can hold (FL asks with options.fl.needs_storage=true)", _ignores_storage
)
NO_MEMORY = Reason(
    _gives_no_memory, "no memory is given; give fleet.storage_bits or a fleet.file with memory, or leave it out"
)
KEEPS_EVEN = _framework_that("keeps the even allocation", _keeps_even)
POLICY_IS_EVEN = Reason(
    lambda c: policy_of(c).name == "even",
    "the even allocation solves nothing; set allocation.policy=proposed, or leave it out",
    runs_only=True,
)
ONE_CUT_UNTRIED = Reason(
    lambda c: _may_try_one_cut(c) and not _tries_one_cut(c),
    "the one cut for all clients is not searched; set fleet.one_cut=fastest, or leave it out",
    runs_only=True,
)
NO_SEARCH = Reason(_searches_no_cuts, "no cuts are searched; set fleet.cuts=planned, or leave it out", runs_only=True)
CUTS_BY_RULE = Reason(
    lambda c: policy_of(c).chooses_cuts,
    "the policy has a rule for cuts and searches none; leave it out, or take another policy",
    runs_only=True,
)
CUTS_WITHOUT_ROUNDS = Reason(
    lambda c: policy_of(c).cuts in ("random", "smallest"),
    "the policy's rule for cuts looks at no rounds; leave it out, or take another policy",
    runs_only=True,
)
AT_PRICES = Reason(
    _is_at_prices,
    f"cuts of several cells, and of more than {MANY_CLIENTS} clients, answer to prices and are not searched; leave it out",
)
TAKES_TURNS = Reason(takes_turns, "CPSL deals subchannels by its rule; leave it out", runs_only=True)

# Rows that several settings share: of the solve of a round, of its end, and of the search for cuts
SOLVER = [KEEPS_EVEN, POLICY_IS_EVEN, TAKES_TURNS, NEEDS_RADIO]
ENDS_NO_ROUND = [NEEDS_MEASURED, NOT_SIDE_BY_SIDE, _needs("network.server", "auto", "queue")]
SEARCH = [NO_SEARCH, POLICY_IS_EVEN, CUTS_BY_RULE, AT_PRICES]

UNUSED: dict[str, list[Reason]] = {
    "model.norm": [GIVEN_MODEL, NO_NORM],
    "model.stem": [GIVEN_MODEL, NO_STEM],
    "model.dropout": [GIVEN_MODEL],
    "model.init_weights": [GIVEN_MODEL],
    "model.memory_format": [NO_IMAGES],
    "model.certify": [GIVEN_MODEL, CUT_BY_HAND],
    "data.alpha": [_needs("data.partition", "dirichlet", "quantity_skew")],
    "data.classes_per_client": [_needs("data.partition", "shards")],
    "data.split": [_needs("data.name", "ham10000")],
    "fleet.seed": [NOTHING_DRAWN],
    "fleet.cuts": [UNCUT, ONE_CUT],
    "fleet.one_cut": [NOT_ONE_CUT],
    "fleet.max_cut": [ANY_STORAGE],
    "fleet.min_cut": [UNCUT],
    "fleet.cpu_hz": [IN_FLEET_FILE, IN_HISTORY, ON_SERVER_ALONE],
    "fleet.cpu_floor_hz": [IN_FLEET_FILE, CPU_ABOVE_0, IN_HISTORY, ON_SERVER_ALONE],
    "fleet.flops_per_cycle": [IN_FLEET_FILE, ON_SERVER_ALONE],
    "fleet.max_power_w": [IN_FLEET_FILE, NEEDS_RADIO],
    "fleet.heterogeneity": [IN_HISTORY.unless(_has_radio)],
    "fleet.storage_bits": [_decided_by("fleet.max_cut"), ANY_STORAGE],
    "fleet.storage": [_decided_by("fleet.max_cut"), NO_MEMORY, ANY_STORAGE],
    "network.cells": [NEEDS_RADIO],
    "network.cells_m": [NEEDS_RADIO, NO_PLACES, ONE_CELL],
    "network.num_subchannels": [NEEDS_RADIO],
    "network.subchannel_hz": [NEEDS_RADIO],
    "network.noise_w": [NEEDS_RADIO],
    "network.fading": [NEEDS_RADIO, IN_HISTORY],
    "network.gain_floor": [NEEDS_RADIO, IN_HISTORY],
    "network.radius_m": [NEEDS_RADIO, _decided_by("network.positions_m"), IN_HISTORY],
    "network.positions_m": [NEEDS_RADIO, IN_HISTORY],
    "network.main_m": [NEEDS_RADIO, NO_PLACES, CELL_ANTENNAS, IN_HISTORY, NO_MAIN_SERVER],
    "network.edge_m": [NEEDS_RADIO, NO_PLACES, CELL_ANTENNAS, IN_HISTORY, ON_SERVER_ALONE],
    "network.path_loss_exponent": [NEEDS_RADIO, NO_PLACES, IN_HISTORY],
    "network.path_loss_db": [NEEDS_RADIO, NO_PLACES, IN_HISTORY],
    "network.main_up_bps": [NEEDS_MEASURED, IN_HISTORY, NO_MAIN_LINK.unless(lambda c: c.network.edge_up_bps is None)],
    "network.main_down_bps": [
        NEEDS_MEASURED,
        IN_HISTORY,
        NO_MAIN_LINK.unless(lambda c: c.network.edge_down_bps is None),
    ],
    "network.edge_up_bps": [NEEDS_MEASURED, IN_HISTORY, ON_SERVER_ALONE],
    "network.edge_down_bps": [NEEDS_MEASURED, IN_HISTORY, ON_SERVER_ALONE],
    "network.delay_s": [NEEDS_MEASURED, IN_HISTORY],
    "network.main_hz": [NO_MAIN_SERVER],
    "network.server": [NEEDS_MEASURED, NO_MAIN_SERVER, NOT_SIDE_BY_SIDE],
    "network.service": [NEEDS_MEASURED, NO_MAIN_SERVER, NOT_SIDE_BY_SIDE, _needs("network.server", "auto", "queue")],
    **{
        f"network.{field}": ENDS_NO_ROUND
        for field in ("swap_bps", "swap_delay_s", "open_s", "average_s", "test_s", "checkpoint_s", "test_beside")
    },
    "network.flops_per_cycle": [NO_MAIN_SERVER],
    "network.main_power_w": [NEEDS_RADIO, NO_MAIN_SERVER, ON_SERVER_ALONE],
    "network.edge_power_w": [NEEDS_RADIO, ON_SERVER_ALONE],
    "network.speed_std": [ON_SERVER_ALONE, IN_HISTORY],
    "train.tau_s": [WAITS_FOR_ALL],
    "train.momentum": [_needs("train.optimizer", "momentum")],
    "train.step_rounds": [_needs("train.schedule", "step")],
    "train.step_factor": [_needs("train.schedule", "step")],
    "train.proximal_mu": [NO_COPIES],
    "train.clip_norm": [NO_COPIES],
    "train.average": [NO_COPIES],
    "train.trim": [_needs("train.average", "trimmed_mean")],
    "train.clients_per_round": [NOBODY_IS_AWAY],
    "train.choose": [NO_COPIES, ALL_TAKE_PART],
    "train.receivers": [NO_COPIES, ALL_TAKE_PART.unless(lambda c: c.train.drop_rate > 0)],
    "train.drop_rate": [NOBODY_IS_AWAY],
    "train.norm_statistics": [NO_NORM.unless(_is_own_model), OTHER_NORM.unless(_is_own_model)],
    "train.norm_batches": [_needs("train.norm_statistics", "estimated")],
    "attack.kind": [NO_COPIES],
    "attack.share": [NO_ATTACK],
    "attack.scale": [NO_ATTACK, _needs("attack.kind", "sign_flip", "scaled_update", "noise")],
    "allocation.policy": [KEEPS_EVEN.unless(lambda c: c.allocation.policy in ("own", "even"))],
    "allocation.cuts": SEARCH,
    "allocation.samples": [
        ONE_CUT_UNTRIED,
        NO_SEARCH.unless(_tries_one_cut),
        POLICY_IS_EVEN,
        CUTS_WITHOUT_ROUNDS.unless(_tries_one_cut),
        replace(AT_PRICES, runs_only=True),  # a plan at prices samples rounds
    ],
    "allocation.sharing": SOLVER,
    "allocation.gap": SOLVER,
    "allocation.time_limit_s": SOLVER,
    "allocation.plan_time_limit_s": SEARCH,
    "allocation.population": [*SEARCH, _needs("allocation.cuts", "ga")],
    "allocation.patience": [*SEARCH, _needs("allocation.cuts", "descent", "ga")],
    "link.up": [ON_SERVER_ALONE, NO_MAIN_SERVER],
    "link.down": [ON_SERVER_ALONE, NO_MAIN_SERVER],
    "link.model": [ON_SERVER_ALONE, HEADS_STAY],
    "link.allowed": [ON_SERVER_ALONE, NO_MAIN_SERVER],
    "link.codecs": [ON_SERVER_ALONE, NO_MAIN_SERVER],
    "link.points": [ON_SERVER_ALONE, NO_MAIN_SERVER, NO_CODECS_TO_CHOOSE],
    "link.max_points": [ON_SERVER_ALONE, NO_MAIN_SERVER, NO_CODECS_TO_CHOOSE],
    "engine.name": [ONE_PROCESS],
    "engine.workers": [_needs("engine.name", "auto", "workers", "ray")],
    "engine.address": [_needs("engine.name", "ray")],
}
