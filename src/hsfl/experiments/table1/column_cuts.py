"""The cuts of Table 1's columns on a fleet, each chosen for the column's own allocation.

Legend: K clients.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hsfl.config import RunConfig
from hsfl.experiments.table1.columns import COLUMNS, Column
from hsfl.framework_table import method
from hsfl.planning.cuts import choose_cuts, choose_one_cut, fastest_cuts, fastest_one_cut
from hsfl.planning.rounds.allocators import own_policy
from hsfl.planning.rounds.participation import CutTask
from hsfl.planning.world import World, count_batches

if TYPE_CHECKING:
    from hsfl.allocation.cuts.search import CutRequest

Array = np.ndarray


def choose_column_cuts(
    names: Sequence[str], config: RunConfig, world: World, num_samples: Array
) -> tuple[dict[str, list[int]], float]:
    """The cuts of these columns [K], each for its own allocation, on the plan's samples; and the proven gap of HSFL's."""
    from hsfl.allocation.cuts.search import best_single_cut, random_cuts, search_cuts
    from hsfl.planning.policy_cuts import cut_request  # here, because numba takes seconds to load

    task = CutTask(config, world, count_batches(config, num_samples))
    smallest, request = int(world.fleet.max_cut.min()), cut_request(task)
    cuts: dict[str, list[int]] = {}
    gap = float("nan")
    for name in names:
        column = COLUMNS[name]
        if column.label:
            cuts[name] = _contender_cuts(column, task, request)
        elif (column.cuts, column.policy) == ("own", "proposed"):
            plan = search_cuts(request)
            cuts[name], gap = plan.cuts.tolist(), plan.gap
        elif (column.cuts, column.policy) == ("single", "proposed"):
            cuts[name] = best_single_cut(request).cuts.tolist()
        elif column.cuts == "random":
            cuts[name] = random_cuts(request).cuts.tolist()
        elif column.cuts == "own":
            cuts[name] = list(fastest_cuts(task))
        elif column.cuts == "single":
            cuts[name] = [fastest_one_cut(task)] * len(num_samples)
        else:
            cuts[name] = [smallest] * len(num_samples)
    return cuts, gap


def _contender_cuts(column: Column, base: CutTask, request: "CutRequest") -> list[int]:
    """The cuts of a contender: those that its settings ask for; else those that its policy chooses, where each client may have
    a cut of its own; else the smallest max_cut for all."""
    from hsfl.allocation.policies import policy  # here, because numba takes seconds to load

    config, row, clients = column.config(base.config), method(column.framework), base.world.fleet.num_clients
    task = replace(base, config=config)
    if column.cuts == "asked":
        cuts, _ = choose_cuts(task)
        return list(cuts) if row.own_cuts else [choose_one_cut(task, cuts)] * clients
    if column.cuts == "smallest":
        return [int(base.world.fleet.max_cut.min())] * clients
    name = own_policy(config.allocation.policy, column.framework)
    if name == "even":
        return list(fastest_cuts(task))
    return [int(cut) for cut in policy(name, config.options).choose(request).cuts]
