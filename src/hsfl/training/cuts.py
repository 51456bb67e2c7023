"""Which client cuts where: given, as deep as each can hold, or searched under the even allocation."""

import numpy as np

from hsfl.config import AllocationConfig, FleetConfig
from hsfl.errors import InputError
from hsfl.network.channel import RoundDraw, draw_rounds
from hsfl.network.clock import even_phases
from hsfl.network.devices import Fleet
from hsfl.network.latency import Phases, client_round_s, round_s
from hsfl.training.world import World

Array = np.ndarray
SAMPLES = 50  # rounds that a search looks at; none of them is one that the run will draw


def choose_cuts(
    config: FleetConfig, allocation: AllocationConfig, world: World, batch_size: int, num_batches: Array
) -> tuple[int, ...]:
    """The cut of each client [K]."""
    if config.cuts == "planned":
        return planned_cuts(config, allocation, world, batch_size, num_batches)
    if config.cuts == "max_cut":
        return tuple(world.fleet.max_cut.tolist())
    if config.cuts == "fastest":
        return fastest_cuts(world, batch_size, num_batches, config.min_cut)
    cuts = one_each("fleet.cuts", config.cuts, world.fleet.num_clients, world.cost.num_units)
    for k, cut in enumerate(cuts):
        _check(f"fleet.cuts[{k}]", cut, config.min_cut, world.fleet, k)
    return cuts


def planned_cuts(
    config: FleetConfig, allocation: AllocationConfig, world: World, batch_size: int, num_batches: Array
) -> tuple[int, ...]:
    if allocation.policy == "even":
        raise InputError("fleet.cuts is 'planned' but allocation.policy is 'even', which plans none; try proposed")
    from hsfl.training.allocating import plan_cuts  # here, because compiling takes seconds

    return tuple(plan_cuts(world, allocation, batch_size, num_batches, config.min_cut).cuts.tolist())


def choose_one_cut(
    config: FleetConfig, world: World, cuts: tuple[int, ...], batch_size: int, num_batches: Array
) -> int:
    """The cut of frameworks that have one for all."""
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
    """A cut for each client from one number or a list."""
    cuts = (value,) * num_clients if isinstance(value, int) else value
    if len(cuts) != num_clients:
        raise InputError(
            f"{name} has {len(cuts)} numbers but there are {num_clients} clients; give one number or one each"
        )
    for k, cut in enumerate(cuts):
        if not 0 <= cut <= num_units:
            where = name if num_clients == 1 else f"{name}[{k}]"
            raise InputError(
                f"{where} is {cut} but the model has {num_units} units; choose up to {num_units}, or set {name}=max_cut"
            )
    return cuts


def fastest_cuts(world: World, batch_size: int, num_batches: Array, min_cut: int) -> tuple[int, ...]:
    """For each client the cut with the shortest mean time, its own download included.

    Under the even allocation a client's time does not depend on the others' cuts, so each is searched alone.
    """
    fleet, num_units = world.fleet, world.cost.num_units
    mean_s = np.full((num_units + 1, fleet.num_clients), np.inf)
    for cut in range(min_cut, num_units + 1):
        phases = _phases(world, np.full(fleet.num_clients, cut), batch_size)
        own_s = client_round_s(phases, num_batches) + phases.model_down_s  # [S, K]
        mean_s[cut] = np.where(fleet.can_hold(cut), own_s.mean(axis=0), np.inf)
    return tuple(mean_s.argmin(axis=0).tolist())


def fastest_one_cut(world: World, batch_size: int, num_batches: Array, min_cut: int, max_cut: int) -> int:
    """The one cut for all with the shortest mean round of SplitFed V1."""
    cuts = range(min_cut, max_cut + 1)
    everyone = (np.full(world.fleet.num_clients, cut) for cut in cuts)
    mean_s = [float(round_s(_phases(world, same, batch_size), num_batches).mean()) for same in everyone]
    return cuts[int(np.argmin(mean_s))]


def _phases(world: World, cuts: Array, batch_size: int) -> Phases:
    draws = sample_draws(world, SAMPLES)
    return even_phases("hsfl", world.cost, cuts, batch_size, world.fleet, world.servers, world.links, draws)


def sample_draws(world: World, count: int) -> RoundDraw:
    """Rounds to plan on [S, ...]: all recorded ones where there is a history, else `count` draws of their own."""
    if world.recorded is not None:
        return world.recorded
    rounds = range(count)
    return draw_rounds(world.fleet, world.links, world.seed, rounds, speed_std=world.speed_std, key="samples")
