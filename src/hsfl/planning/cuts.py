"""The cut of each client: given, as deep as the client can hold, or searched under the even allocation or a policy."""

import numpy as np

from hsfl.config import AllocationConfig, FleetConfig, OptionsConfig, RunConfig
from hsfl.errors import InputError
from hsfl.methods import method
from hsfl.network.devices import MANY_CLIENTS, Fleet
from hsfl.network.framework_phases import even_phases
from hsfl.network.latency import Phases, client_round_s, round_s
from hsfl.planning.choice import Sampled, is_crowd, sampled_rounds_of
from hsfl.planning.crowds import own_fastest_cuts
from hsfl.planning.world import World, count_batches, sample_draws

Array = np.ndarray
SAMPLES = 50  # rounds that a search averages over; they are drawn apart from the rounds of the run


def run_cuts(config: RunConfig, world: World, num_samples: Array) -> tuple[tuple[int, ...], str | None]:
    """The cuts of a run [K], as `fleet.cuts` asks, and what to say of a search that its time limit stopped.

    num_samples: [K] training samples, as the clock charges them. Nothing is searched for a framework that would not look at it.
    """
    if isinstance(config.fleet.cuts, str) and not looks_at_cuts(config):
        return tuple(world.fleet.max_cut.tolist()), None
    num_batches = count_batches(config, num_samples)
    sampled = sampled_rounds_of(config, num_samples) if is_crowd(world) else None
    how = (config.fleet, config.allocation, world, config.train.batch_size, num_batches, config.options, sampled)
    return planned_cuts(*how) if config.fleet.cuts == "planned" else (choose_cuts(*how), None)


def looks_at_cuts(config: RunConfig) -> bool:
    """Whether clients, or CPSL's clusters, have cuts of their own; else one cut for all, or none, decides (`choose_one_cut`)."""
    row = method(config.framework)
    by_cluster = row.timing.turns == "clusters" and config.options.cpsl.cut == "cluster"
    return row.own_cuts or by_cluster or not row.built_in


def choose_cuts(
    config: FleetConfig,
    allocation: AllocationConfig,
    world: World,
    batch_size: int,
    num_batches: Array,
    options: OptionsConfig | None = None,
    sampled: Sampled | None = None,
) -> tuple[int, ...]:
    """The cut of each client, [K], as `fleet.cuts` asks.

    num_batches: [K] of a round. options: for policies that a plugin registered. sampled: as in `planned_cuts`.
    """
    if config.cuts == "planned":
        return planned_cuts(config, allocation, world, batch_size, num_batches, options, sampled)[0]
    if config.cuts == "max_cut":
        return tuple(world.fleet.max_cut.tolist())
    if config.cuts == "fastest":
        return fastest_cuts(world, batch_size, num_batches, config.min_cut, sampled)
    return check_cuts("fleet.cuts", config.cuts, config.min_cut, world)


def check_cuts(name: str, value: int | tuple[int, ...], min_cut: int, world: World) -> tuple[int, ...]:
    """The cut of each client [K], from one number or one for each; an error where a client may not or cannot hold its cut."""
    cuts = one_each(name, value, world.fleet.num_clients, world.cost.num_units)
    bad = (np.array(cuts) < min_cut) | (np.array(cuts) > world.fleet.max_cut)
    if bad.any():
        k = int(bad.argmax())
        _check(f"{name}[{k}]", cuts[k], min_cut, world.fleet, k)
    return cuts


def planned_cuts(
    config: FleetConfig,
    allocation: AllocationConfig,
    world: World,
    batch_size: int,
    num_batches: Array,
    options: OptionsConfig | None = None,
    sampled: Sampled | None = None,
) -> tuple[tuple[int, ...], str | None]:
    """The cuts [K] that the policy chooses (even: the fastest under the even allocation), and what to say of a search that its
    time limit stopped. sampled: rounds to plan a crowd on (`choice.is_crowd`); without them, everyone takes part."""
    if allocation.policy == "even":
        return fastest_cuts(world, batch_size, num_batches, config.min_cut, sampled), None
    from hsfl.planning.policy_cuts import policy_cuts  # here, because compiling takes seconds

    cuts, note = policy_cuts(world, allocation, batch_size, num_batches, config.min_cut, options, sampled)
    return tuple(cuts.tolist()), note


def choose_one_cut(
    config: FleetConfig, world: World, cuts: tuple[int, ...], batch_size: int, num_batches: Array
) -> int:
    """The cut of frameworks that have one cut for all clients: `fleet.one_cut`, else the smallest of the cuts given, else the
    deepest that every client can hold. cuts: [K]."""
    shallowest = int(world.fleet.max_cut.argmin())
    deepest = int(world.fleet.max_cut[shallowest])
    if config.one_cut == "fastest":
        return fastest_one_cut(world, batch_size, num_batches, min(config.min_cut, deepest), deepest)
    if config.one_cut is not None:
        (cut,) = one_each("fleet.one_cut", config.one_cut, 1, world.cost.num_units)
        _check("fleet.one_cut", cut, config.min_cut, world.fleet, shallowest)
        return cut
    return deepest if isinstance(config.cuts, str) else min(cuts)


def _check(name: str, cut: int, min_cut: int, fleet: Fleet, k: int) -> None:
    if cut < min_cut:
        raise InputError(f"{name} is {cut}, below fleet.min_cut = {min_cut}; raise it, or lower min_cut")
    if cut > fleet.max_cut[k]:
        raise InputError(
            f"{name} is {cut} but max_cut of client {k} is {fleet.max_cut[k]}; lower the cut, or raise fleet.max_cut"
        )


def one_each(name: str, value: int | tuple[int, ...], num_clients: int, num_units: int) -> tuple[int, ...]:
    """A cut for each client, from one number or a list. name: the setting, for the error."""
    cuts = (value,) * num_clients if isinstance(value, int) else value
    if len(cuts) != num_clients:
        raise InputError(
            f"{name} has {len(cuts)} numbers but there are {num_clients} clients; give one number or one each"
        )
    bad = (np.array(cuts) < 0) | (np.array(cuts) > num_units)
    if bad.any():
        k = int(bad.argmax())
        where = name if num_clients == 1 else f"{name}[{k}]"
        word = "fastest" if name == "fleet.one_cut" else "max_cut"
        raise InputError(
            f"{where} is {cuts[k]} but the model has {num_units} units; choose up to {num_units}, or set {name}={word}"
        )
    return cuts


def fastest_cuts(
    world: World, batch_size: int, num_batches: Array, min_cut: int, sampled: Sampled | None = None
) -> tuple[int, ...]:
    """Cuts with a short mean round, max(own work) + max(download), under the even allocation.

    Under the even allocation a client's seconds do not depend on the cuts of other clients, so they are computed once for
    every cut. The descent starts from one cut for all, and from each client's own fastest cut; one client after another takes
    its best cut until no client gains. The best of these descents counts. In a crowd each client takes its own fastest cut, among as
    many clients as a sampled round has.
    """
    if world.fleet.num_clients > MANY_CLIENTS:
        return tuple(
            own_fastest_cuts(
                world, sampled or Sampled.everyone(world.fleet.num_clients), batch_size, num_batches, min_cut
            ).tolist()
        )
    fleet, options = world.fleet, np.arange(min_cut, world.cost.num_units + 1)
    times = [_phases(world, np.full(fleet.num_clients, cut), batch_size) for cut in options]
    own_s = np.stack([client_round_s(each, num_batches) for each in times])  # [C, S, K]
    down_s = np.stack([each.model_down_s for each in times])
    holds = options[:, None] <= fleet.max_cut  # [C, K]
    own_s = np.where(holds[:, None], own_s, np.inf)
    deepest = holds.sum(axis=0) - 1
    starts = [np.minimum(place, deepest) for place in range(len(options))]
    starts.append((own_s + down_s).mean(axis=1).argmin(axis=0))
    descents = [_descend(own_s, down_s, start) for start in starts]
    best = min(descents, key=lambda places: _mean_round_s(own_s, down_s, places))
    return tuple(options[best].tolist())


def _mean_round_s(own_s: Array, down_s: Array, places: Array) -> float:
    """The mean round over S samples. own_s, down_s: [C, S, K]. places: [K], each client's place among the C cuts."""
    everyone = np.arange(len(places))
    return float((own_s[places, :, everyone].max(axis=0) + down_s[places, :, everyone].max(axis=0)).mean())


def _descend(own_s: Array, down_s: Array, start: Array) -> Array:
    """Coordinate descent. Only clients that finish last in some sample are tried: no other client can shorten a round alone."""
    places, best_s = start.copy(), np.inf
    everyone = np.arange(len(places))
    while (now_s := _mean_round_s(own_s, down_s, places)) < best_s * (1 - 1e-9):
        best_s = now_s
        work_s, load_s = own_s[places, :, everyone], down_s[places, :, everyone]  # [K, S]
        for k in np.unique([work_s.argmax(axis=0), load_s.argmax(axis=0)]):
            others = everyone != k
            busy_s, last_s = (each.max(axis=0, initial=0.0, where=others[:, None]) for each in (work_s, load_s))
            mean_s = (np.maximum(busy_s, own_s[:, :, k]) + np.maximum(last_s, down_s[:, :, k])).mean(axis=1)
            if mean_s.min() < mean_s[places[k]] * (1 - 1e-12):
                places[k] = mean_s.argmin()
                work_s[k], load_s[k] = own_s[places[k], :, k], down_s[places[k], :, k]
    return places


def fastest_one_cut(world: World, batch_size: int, num_batches: Array, min_cut: int, max_cut: int) -> int:
    """The one cut for all with the shortest mean round of SplitFed V1."""
    cuts = range(min_cut, max_cut + 1)
    everyone = (np.full(world.fleet.num_clients, cut) for cut in cuts)
    mean_s = [float(round_s(_phases(world, same, batch_size), num_batches).mean()) for same in everyone]
    return cuts[int(np.argmin(mean_s))]


def _phases(world: World, cuts: Array, batch_size: int) -> Phases:
    draws = sample_draws(world, SAMPLES)
    return even_phases("hsfl", world.cost, cuts, batch_size, world.fleet, world.servers, world.links, draws)
