"""The cuts of Table 1's columns on a fleet, each chosen for the column's own allocation.

Legend: K clients.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hsfl.config import RunConfig
from hsfl.experiments.columns import COLUMNS, Column
from hsfl.methods import method
from hsfl.planning.clusters import own_policy
from hsfl.planning.cuts import choose_cuts, choose_one_cut, fastest_cuts, fastest_one_cut
from hsfl.planning.world import World, count_batches

if TYPE_CHECKING:
    from hsfl.allocation.cut_methods import CutSettings
    from hsfl.allocation.scenario import Scenario

Array = np.ndarray


def choose(
    names: Sequence[str], config: RunConfig, world: World, num_samples: Array
) -> tuple[dict[str, list[int]], float]:
    """The cuts of these columns [K], each for its own allocation, on the plan's samples; and the proven gap of HSFL's."""
    from hsfl.allocation.cuts import best_single_cut  # here, because numba takes seconds to load
    from hsfl.allocation.cuts import choose_cuts as search_cuts
    from hsfl.allocation.policies import policy
    from hsfl.planning.policy_cuts import samples, search_settings

    train, min_cut, allocation = config.train, config.fleet.min_cut, config.allocation
    num_batches = count_batches(config, num_samples)
    smallest = int(world.fleet.max_cut.min())
    planned_on = samples(world, allocation, train.batch_size, num_batches, min_cut)
    how = search_settings(allocation, world.seed)
    cuts: dict[str, list[int]] = {}
    gap = float("nan")
    for name in names:
        column = COLUMNS[name]
        if column.label:
            cuts[name] = _contender_cuts(column, config, world, num_batches, planned_on, how)
        elif (column.cuts, column.policy) == ("own", "proposed"):
            plan = search_cuts(planned_on, how)
            cuts[name], gap = plan.cuts.tolist(), plan.gap
        elif (column.cuts, column.policy) == ("single", "proposed"):
            cuts[name] = best_single_cut(planned_on).tolist()
        elif column.cuts == "random":
            cuts[name] = policy("rcls").choose(planned_on, how).tolist()
        elif column.cuts == "own":
            cuts[name] = list(fastest_cuts(world, train.batch_size, num_batches, min_cut))
        elif column.cuts == "single":
            one = fastest_one_cut(world, train.batch_size, num_batches, min_cut, smallest)
            cuts[name] = [one] * len(num_samples)
        else:
            cuts[name] = [smallest] * len(num_samples)
    return cuts, gap


def _contender_cuts(
    column: Column, base: RunConfig, world: World, num_batches: Array, planned_on: list["Scenario"], how: "CutSettings"
) -> list[int]:
    """The cuts of a contender: those that its settings ask for; else those that its policy chooses, where each client may have
    a cut of its own; else the smallest max_cut for all."""
    from hsfl.allocation.policies import policy  # here, because numba takes seconds to load

    config, row = column.config(base), method(column.framework)
    fleet, batch_size, clients = config.fleet, config.train.batch_size, world.fleet.num_clients
    if column.cuts == "asked":
        cuts = choose_cuts(fleet, config.allocation, world, batch_size, num_batches, config.options)
        one = choose_one_cut(fleet, world, cuts, batch_size, num_batches)
        return list(cuts) if row.own_cuts else [one] * clients
    if column.cuts == "smallest":
        return [int(world.fleet.max_cut.min())] * clients
    name = own_policy(config.allocation.policy, column.framework)
    if name == "even":
        return list(fastest_cuts(world, batch_size, num_batches, fleet.min_cut))
    return [int(cut) for cut in policy(name, config.options).choose(planned_on, how)]
