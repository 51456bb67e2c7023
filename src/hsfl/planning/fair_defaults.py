"""What `auto` becomes: the same means for every framework.

Frameworks with a copy for each client on the main server (HSFL, SplitFed V1, FSL, FL) get the proposed allocation, the others
the even one (`even`): turns at the whole band and server (SL, CPSL), or a share of the band for clients that go in step (SplitFed V2, PSL,
LocFedMix-SL). A framework whose clients have cuts of their own gets planned cuts, one with one cut for
all its fastest. With `allocation.policy = "own"` a framework is as its authors published it: one cut for all is then the deepest
that every client can hold, but CPSL, which chooses its cut by its own method, chooses it here, too.

Whatever begins a run resolves `auto` first and keeps the outcome in config.json, so that a config has one clock for ever. A field that the
framework does not look at stays `auto`.
"""

from importlib.util import find_spec

from hsfl.config import RunConfig
from hsfl.errors import InputError, install_extra
from hsfl.framework_table import method
from hsfl.models.recipes import memory_format_of
from hsfl.planning.cuts import looks_at_cuts
from hsfl.planning.rounds.allocators import own_policy
from hsfl.planning.rounds.cpsl_policy import takes_turns


def without_auto(config: RunConfig) -> RunConfig:
    """The config with the values that `auto` stands for. An error where the proposed allocation needs what is not installed."""
    fleet, allocation = config.fleet, config.allocation
    policy = own_policy("auto", config.framework) if allocation.policy == "auto" else allocation.policy
    if allocation.policy == "auto" and policy != "even" and find_spec("numba") is None:
        raise InputError(
            f"allocation.policy=auto is {policy} for {config.framework}, which needs the optimiser; "
            f"{install_extra('plan')}, or set allocation.policy=even"
        )
    changes: dict[str, object] = {}
    if fleet.cuts == "auto" and looks_at_cuts(config):
        changes["cuts"] = "planned"
    if not method(config.framework).own_cuts:
        changes["one_cut"] = one_cut_of(config)
    if policy != allocation.policy:
        allocation = allocation.model_copy(update={"policy": policy})
    if changes:
        fleet = fleet.model_copy(update=changes)
    model = config.model.model_copy(update={"memory_format": memory_format_of(config.model)})
    return config.model_copy(update={"model": model, "fleet": fleet, "allocation": allocation})


def one_cut_of(config: RunConfig) -> str | int:
    """How a framework with one cut for all clients comes to its cut: as `fleet.one_cut` says, or what `auto` stands for."""
    if config.fleet.one_cut != "auto":
        return config.fleet.one_cut
    cuts, name = config.fleet.cuts, config.allocation.policy
    if not isinstance(cuts, str):
        return cuts if isinstance(cuts, int) else min(cuts)
    is_deepest = (cuts == "max_cut" or name == "own") and not takes_turns(config)
    return "max_cut" if is_deepest else "fastest"


def alike_words(config: RunConfig, framework: str, other: str) -> str:
    """`HSFL is SplitFed V1 here`, of a framework whose cuts leave nothing else between the two: with another allocation, where the config
    would give the other one another policy."""
    policy = config.allocation.policy
    differs = own_policy(policy, framework) != own_policy(policy, other)
    words = f"{method(framework).title} is {method(other).title} here"
    return f"{words}, with another allocation" if differs else words
