"""Which cuts and which allocation a run had, in a few words: `cuts planned (1 to 7)`, `allocation proposed`.

Terminal, tables, figures and pages all take the words from here. The row of a built-in framework says what the settings mean for
it; of any other framework the settings are told as they are.
"""

from collections.abc import Iterable

from hsfl.config import RunConfig
from hsfl.framework_table import METHODS, Method
from hsfl.planning.cuts import looks_at_cuts
from hsfl.planning.rounds.allocators import own_policy
from hsfl.planning.rounds.cpsl_policy import plans_one_cut, takes_turns

IN_TURNS = {"alone": "in turns", "clusters": "in turns of a cluster"}  # by Timing.turns


def _built_in_row(config: RunConfig) -> Method | None:
    row = METHODS.get(config.framework)
    return row if row is not None and row.built_in else None


def cuts_words(config: RunConfig, cuts: Iterable[int]) -> str:
    """`cuts planned (1 to 7)`, `one cut 4 (fastest)`, `whole model on each client`. cuts: that clients had, in any order."""
    row, distinct = _built_in_row(config), sorted(set(cuts))
    if row is not None and row.timing.cut != "any":
        return "whole model on each client" if row.timing.cut == "whole" else "data pooled on the server"
    numbers = " to ".join(map(str, dict.fromkeys(distinct[:1] + distinct[-1:])))
    if row is None or looks_at_cuts(config):
        return f"cuts {how_cuts_were_chosen(config)}{numbers and f' ({numbers})'}"
    return f"one cut{numbers and f' {numbers}'} ({how_cuts_were_chosen(config)})"


def how_cuts_were_chosen(config: RunConfig) -> str:
    """`planned`, `fastest`, `max_cut` or `given`; of one cut for all clients also `smallest max_cut`. config: as a run resolved it."""
    row, asked, one_cut = _built_in_row(config), config.fleet.cuts, config.fleet.one_cut
    if row is None or looks_at_cuts(config):
        return asked if isinstance(asked, str) else "given"
    if isinstance(one_cut, int):
        return "given"
    if plans_one_cut(config) or one_cut == "fastest":
        return "fastest"
    return "smallest max_cut"


def allocation_words(config: RunConfig, policy: str | None = None) -> str:
    """`allocation proposed`, `allocation as published (splitfed)`, `allocation even, whole band in turns`. policy: what the rounds of the
    run say of themselves, where a plugin's framework made them."""
    row, asked = _built_in_row(config), config.allocation.policy
    if row is None:
        return f"allocation {policy or asked}"
    if row.pools_data:
        return "allocation none, the server trains alone"
    if row.copy_per_client or takes_turns(config):
        used = own_policy(asked, config.framework)
        return f"allocation as published ({used})" if asked == "own" else f"allocation {used}"
    band = "whole band " if config.network.kind == "ofdma" else ""
    turns = IN_TURNS.get(row.timing.turns)
    return "allocation even" if turns is None else f"allocation even, {band}{turns}"
