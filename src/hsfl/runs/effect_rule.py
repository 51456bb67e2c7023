"""What a rule of settings without effect is, and the questions that rules ask of a config."""

from collections.abc import Callable
from dataclasses import dataclass

from hsfl.allocation.policy_table import policy_row
from hsfl.config import RunConfig
from hsfl.fleet import file as fleet_file
from hsfl.methods import method
from hsfl.network.devices import MANY_CLIENTS
from hsfl.planning.clusters import own_policy, takes_turns


@dataclass(frozen=True)
class Rule:
    """Settings that do nothing unless `works`; `why` says so, in words that follow "has no effect:"."""

    names: tuple[str, ...]
    works: Callable[[RunConfig], bool]
    why: str
    of_runs: bool = False  # does not hold for plans, which search cuts and allocate for HSFL whatever the config says


def names(section: str, fields: str) -> tuple[str, ...]:
    """The full names of some fields of a section."""
    return tuple(f"{section}.{field}" for field in fields.split())


def cut_of(config: RunConfig) -> str:
    """The only cut that the framework knows ("none", "whole"), or "any"."""
    return method(config.framework).timing.cut


def policy_name(config: RunConfig) -> str:
    """The name of the config's policy; `own` is replaced by the framework's policy."""
    return own_policy(config.allocation.policy, config.framework)


def allocates(config: RunConfig) -> bool:
    """Whether a policy may divide the rounds of the framework; else they keep the even allocation."""
    return method(config.framework).copy_per_client or takes_turns(config)


def searches_cuts(config: RunConfig) -> bool:
    """Whether the policy leaves the cuts to a search."""
    return not policy_row(policy_name(config), config.options).chooses_cuts


def samples_rounds(config: RunConfig) -> bool:
    """Whether the policy tries cuts on sampled rounds: in a search, or by its rule."""
    return policy_row(policy_name(config), config.options).cuts not in ("random", "smallest")


def file_gives_memory(config: RunConfig) -> bool:
    """Whether a fleet file says how much memory a device has."""
    return config.fleet.file is not None and fleet_file.read(config.fleet.file).gives_memory


def at_prices(config: RunConfig) -> bool:
    """Whether cuts answer to prices (docs/allocation.md), because there are many clients or several cells."""
    return config.network.kind == "ofdma" and (config.network.cells > 1 or config.fleet.num_clients > MANY_CLIENTS)
