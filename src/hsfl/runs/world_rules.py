"""Which settings of devices, links and allocation do nothing beside which others, and why."""

from hsfl.methods import method
from hsfl.network.channel import RATE_NAMES
from hsfl.network.devices import MANY_CLIENTS
from hsfl.planning.clusters import plans_one_cut, takes_turns
from hsfl.planning.cuts import looks_at_cuts
from hsfl.runs.effect_rule import (
    Rule,
    allocates,
    at_prices,
    cut_of,
    file_gives_memory,
    names,
    samples_rounds,
    searches_cuts,
)

AT_PRICES = f"cuts of several cells, and of more than {MANY_CLIENTS} clients, answer to prices"
NO_CLIENT_TRAINS = "the framework trains on the server alone; leave it out, or choose another framework"
NO_MAIN_SERVER = (
    "the framework has no main server: clients train the whole model; leave it out, or choose another framework"
)
EVEN = "the framework keeps the even allocation; leave it out, or choose another framework"
NOBODY_IS_CUT = "the framework does not cut the model; leave it out, or choose another framework"

FLEET_RULES = (
    Rule(
        names("fleet", "cpu_hz cpu_floor_hz flops_per_cycle max_power_w"),
        lambda c: c.fleet.file is None,
        "the devices are those of fleet.file; leave one of the two out",
    ),
    Rule(
        names("fleet", "cpu_floor_hz"),
        lambda c: c.fleet.cpu_hz[0] == 0,
        "fleet.cpu_hz begins above 0 and is taken at its word; leave it out",
    ),
    Rule(
        names("fleet", "cpu_hz cpu_floor_hz"),
        lambda c: c.network.history is None,
        "network.history has the speeds of every round; leave one of the two out",
    ),
    Rule(
        names("fleet", "max_power_w"),
        lambda c: c.network.kind == "ofdma",
        'measured links need no power; set network.kind="ofdma", or leave it out',
    ),
    Rule(
        names("fleet", "heterogeneity"),
        lambda c: c.network.kind == "ofdma" or c.network.history is None,
        "network.history has the speeds and rates of every round; leave one of the two out",
    ),
    Rule(
        names("fleet", "seed"),
        lambda c: c.fleet.file is None or c.network.history is None,
        "fleet.file and network.history leave nothing to draw; leave it out",
    ),
    Rule(
        names("fleet", "cpu_hz cpu_floor_hz flops_per_cycle") + names("network", "speed_std"),
        lambda c: not method(c.framework).pools_data,
        NO_CLIENT_TRAINS,
        of_runs=True,
    ),
    Rule(
        names("fleet", "storage_bits"),
        lambda c: c.fleet.max_cut is None,
        "fleet.max_cut says how much each client holds; leave one of the two out",
    ),
    Rule(
        names("fleet", "storage"),
        lambda c: c.fleet.max_cut is None and (c.fleet.storage_bits is not None or file_gives_memory(c)),
        "no storage decides how much a client holds; give fleet.storage_bits or a fleet.file with memory, or leave it out",
    ),
    Rule(names("fleet", "cuts"), lambda c: cut_of(c) == "any", NOBODY_IS_CUT, of_runs=True),
    Rule(names("fleet", "min_cut"), lambda c: cut_of(c) == "any", NOBODY_IS_CUT, of_runs=True),
    Rule(
        names("fleet", "max_cut storage_bits storage"),
        lambda c: cut_of(c) == "any" or (cut_of(c) == "whole" and c.options.fl.needs_storage),
        "the framework does not ask what a client can hold; leave it out, or choose another framework "
        "(FL asks with options.fl.needs_storage=true)",
        of_runs=True,
    ),
    Rule(
        names("fleet", "cuts"),
        lambda c: looks_at_cuts(c) or not isinstance(c.fleet.cuts, str),
        "the framework has one cut for all clients; set fleet.one_cut, or leave it out",
        of_runs=True,
    ),
    Rule(
        names("fleet", "cuts"),
        lambda c: looks_at_cuts(c) or c.fleet.one_cut is None,
        "the framework has one cut for all clients, and fleet.one_cut gives it; leave one of the two out",
        of_runs=True,
    ),
    Rule(
        names("fleet", "one_cut"),
        lambda c: cut_of(c) == "any" and not method(c.framework).own_cuts,
        "it is for frameworks with one cut for all clients; set fleet.cuts, or leave it out",
    ),
)

NETWORK_RULES = (
    Rule(
        names("network", " ".join(RATE_NAMES)),
        lambda c: c.network.kind == "measured",
        'a radio makes the rates; set network.kind="measured", or leave it out',
    ),
    Rule(
        names("network", " ".join(RATE_NAMES)),
        lambda c: c.network.history is None,
        "network.history has the rates of every round; leave one of the two out",
    ),
    Rule(
        names("network", "cells cells_m num_subchannels subchannel_hz noise_w fading gain_floor radius_m positions_m")
        + names("network", "main_power_w edge_power_w main_m edge_m path_loss_exponent path_loss_db"),
        lambda c: c.network.kind == "ofdma",
        'measured links have no radio; set network.kind="ofdma", or leave it out',
    ),
    Rule(
        names("network", "main_m edge_m path_loss_exponent path_loss_db"),
        lambda c: c.network.radius_m is not None or c.network.positions_m is not None,
        "without places there is no path loss; give network.radius_m or network.positions_m, or leave it out",
    ),
    Rule(
        names("network", "cells_m"),
        lambda c: c.network.cells > 1 and (c.network.radius_m is not None or c.network.positions_m is not None),
        "it says where several cells are, beside clients with places; give network.cells and network.radius_m, or leave it out",
    ),
    Rule(
        names("network", "main_m edge_m"),
        lambda c: c.network.cells == 1,
        "every cell has an antenna of its own (network.cells_m), from which both servers send; leave it out",
    ),
    Rule(
        names("network", "radius_m"),
        lambda c: c.network.positions_m is None,
        "network.positions_m says where the clients are; leave one of the two out",
    ),
    Rule(
        names(
            "network", "speed_std fading gain_floor radius_m positions_m main_m edge_m path_loss_exponent path_loss_db"
        ),
        lambda c: c.network.history is None,
        "network.history has the speeds and gains of every round; leave one of the two out",
    ),
    Rule(
        names("network", "main_hz flops_per_cycle main_power_w main_m"),
        lambda c: cut_of(c) != "whole",
        NO_MAIN_SERVER,
        of_runs=True,
    ),
    Rule(
        names("network", "main_up_bps"),
        lambda c: cut_of(c) != "whole" or c.network.edge_up_bps is None,
        NO_MAIN_SERVER,
        of_runs=True,
    ),
    Rule(
        names("network", "main_down_bps"),
        lambda c: cut_of(c) != "whole" or c.network.edge_down_bps is None,
        NO_MAIN_SERVER,
        of_runs=True,
    ),
    Rule(
        names("network", "main_power_w edge_power_w edge_m edge_up_bps edge_down_bps"),
        lambda c: not method(c.framework).pools_data,
        "the framework sends data up to the main server and nothing else; leave it out, or choose another framework",
        of_runs=True,
    ),
)

ALLOCATION_RULES = (
    Rule(
        names("allocation", "policy"),
        lambda c: allocates(c) or c.allocation.policy == "own",
        EVEN,
        of_runs=True,
    ),
    Rule(names("allocation", "gap time_limit_s sharing"), allocates, EVEN, of_runs=True),
    Rule(
        names("allocation", "samples"),
        lambda c: (c.fleet.cuts == "planned" and looks_at_cuts(c)) or plans_one_cut(c),
        "no cuts are searched; set fleet.cuts=planned, or leave it out",
        of_runs=True,
    ),
    Rule(
        names("allocation", "cuts plan_time_limit_s population patience"),
        lambda c: c.fleet.cuts == "planned" and looks_at_cuts(c),
        "no cuts are searched; set fleet.cuts=planned, or leave it out",
        of_runs=True,
    ),
    Rule(
        names("allocation", "samples cuts plan_time_limit_s population patience gap time_limit_s sharing"),
        lambda c: c.allocation.policy != "even",
        "the even allocation solves nothing; set allocation.policy=proposed, or leave it out",
        of_runs=True,
    ),
    Rule(
        names("allocation", "cuts plan_time_limit_s population patience"),
        searches_cuts,
        "the policy has a rule for cuts and searches none; leave it out, or take another policy",
        of_runs=True,
    ),
    Rule(
        names("allocation", "samples"),
        lambda c: samples_rounds(c) or plans_one_cut(c),
        "the policy's rule for cuts looks at no rounds; leave it out, or take another policy",
        of_runs=True,
    ),
    Rule(
        names("allocation", "gap time_limit_s sharing"),
        lambda c: not takes_turns(c),
        "CPSL deals subchannels by its rule; leave it out",
        of_runs=True,
    ),
    Rule(
        names("allocation", "population"),
        lambda c: c.allocation.cuts == "ga",
        "only the genetic algorithm has a population; set allocation.cuts=ga, or leave it out",
    ),
    Rule(
        names("allocation", "patience"),
        lambda c: c.allocation.cuts != "exhaustive",
        "an exhaustive search tries all cuts; leave it out",
    ),
    Rule(
        names("allocation", "gap time_limit_s sharing"),
        lambda c: c.network.kind == "ofdma",
        "measured links have no radio to divide; leave it out",
    ),
    Rule(
        names("allocation", "samples"),
        lambda c: not at_prices(c),
        f"{AT_PRICES}, over two sampled rounds; leave it out",
        of_runs=True,
    ),
    Rule(
        names("allocation", "cuts plan_time_limit_s population patience"),
        lambda c: not at_prices(c),
        f"{AT_PRICES} and are not searched; leave it out",
    ),
)
