"""A round over a radio under a policy: the clients that take part get their allocation cell by cell, with one joint bound.

One cell is the case N = 1. A *small* fleet has one radio and few enough clients to name each of them: whether it shares bands is decided for
the whole fleet, and its records name the owners of subchannels. Of other fleets only the clients that take part are looked at.

Legend: K clients of the fleet, n clients that take part, N cells, I subchannels of a cell.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hsfl.allocation.answer import Allocation, SolveStatus, shares_of_answer, with_gap, within_gap
from hsfl.allocation.cells import CellsAnswer, distribute_cells, solve_cells
from hsfl.allocation.exact import distribute_model, stage_solver
from hsfl.allocation.policies import PROOF_LIMIT_S, Policy, in_time
from hsfl.allocation.scenario import Scenario
from hsfl.config import AllocationConfig
from hsfl.errors import InputError
from hsfl.framework_table import method
from hsfl.network.channel import Ofdma, RoundDraw
from hsfl.network.devices import MANY_CLIENTS
from hsfl.network.latency import Phases, Rates, phases, rate_bps, shared_rate_bps
from hsfl.planning.rounds.allocators import POWERS, Allotment, Job, radio_resources
from hsfl.planning.world import scenario_of_round

Array = np.ndarray


@dataclass(frozen=True)
class CellsRound:
    """What a round gives some clients of the fleet; in a small fleet all clients are listed, and clients that are off have 0."""

    answer: CellsAnswer
    clients: Array  # [n] of the fleet, sorted by cell
    arrays: dict[str, Array]  # [n, ...] of an Allocation, by name; shares also where subchannels have owners
    owners: dict[str, Array] = field(default_factory=dict)  # [I] of the fleet, by name, in a small fleet without shares


def allocate_cells(policy: Policy, settings: AllocationConfig, job: Job, draw: RoundDraw, started: Array) -> Allotment:
    """Divide a round among the clients that start, [K] bool, and the model's distribution among those that receive it."""
    receives = np.ones(len(started), bool) if job.receives is None else job.receives
    apart = bool((receives & ~started).any())
    gap = (0.9 if apart else 1.0) * settings.gap  # so that both parts together keep the gap
    training = _solve_training(policy, settings, job, draw, started, gap)
    left_s = _left_for_models_s(settings.time_limit_s, training.answer.seconds)
    models = _solve_distribution(policy, settings, job, draw, receives, gap, left_s) if apart else training
    round_s, bound_s = (
        _joint_round_and_bound_s(training.answer, models.answer) if apart else _round_and_bound_s(training.answer)
    )
    kept = _spread(training.arrays["kept"], training.clients, len(started))
    times = _phases_of_all(job, draw, training, models, receives)
    bound_s, reached = with_gap(bound_s, round_s)
    allocation_note = {
        "policy": policy.name,
        "status": _status_within_gap(training.answer.status, reached, settings.gap).value,
        "gap": reached,
        "lower_bound_s": bound_s,
        "seconds": training.answer.seconds + (models.answer.seconds if apart else 0.0),
    }
    if not _is_small(job):
        allocation_note["cell_hz"] = training.answer.cell_hz.tolist()  # of the cells with clients that start
    if len(started) <= MANY_CLIENTS:
        allocation_note |= _per_client(job, draw, training, models)
    return Allotment(times, kept, allocation_note)


def _is_small(job: Job) -> bool:
    """Whether the fleet has one radio and few enough clients to name each of them."""
    links = job.world.links
    assert isinstance(links, Ofdma)
    return links.cell is None and len(job.cuts) <= MANY_CLIENTS


def _round_and_bound_s(answer: CellsAnswer) -> tuple[float, float]:
    return answer.round_s, answer.lower_bound_s


def _joint_round_and_bound_s(training: CellsAnswer, models: CellsAnswer) -> tuple[float, float]:
    """(round, bound) of training as in the first answer and distribution as in the second, which has more receivers.

    The stages share nothing, so what is proven for each of them counts together.
    """
    first_s = max(float(cell.phases["model_down_s"].max()) for cell in training.cells)
    round_s = training.round_s - first_s + models.round_s
    bound_s = training.training_bound_s + models.lower_bound_s if training.lower_bound_s > 0.0 else 0.0
    return round_s, min(bound_s, round_s)


def _status_within_gap(status: SolveStatus, reached: float, gap: float) -> SolveStatus:
    late = status is SolveStatus.OPTIMAL and not within_gap(reached, gap)
    return SolveStatus.TIME_LIMIT if late else status


def _cells_of(job: Job) -> Array:
    """The cell of each client of the fleet, [K]."""
    links = job.world.links
    assert isinstance(links, Ofdma)
    return np.zeros(len(job.cuts), int) if links.cell is None else links.cell


def _solve_training(
    policy: Policy, settings: AllocationConfig, job: Job, draw: RoundDraw, on: Array, gap: float
) -> CellsRound:
    """Allocate for the clients that are on, [K] bool."""
    groups = groups_by_cell(job, on)
    own_servers = method(job.config.framework).timing.server == "own"
    own_hz = job.world.servers.main_hz / len(on)
    scenarios = scenarios_of_cells(settings, job, draw, groups)
    if own_servers:
        scenarios = [
            _with_own_servers(in_cell, job.cuts[clients], own_hz) for in_cell, clients in zip(scenarios, groups)
        ]
    answer = _allocate_by_policy(
        policy, scenarios, [job.cuts[clients] for clients in groups], gap, settings.time_limit_s
    )
    if own_servers:
        cells = [replace(cell, server_hz=np.where(cell.kept, own_hz, 0.0)) for cell in answer.cells]
        answer = replace(answer, cells=tuple(cells))
    return _cells_round(job, groups, answer)


def _with_own_servers(whole: Scenario, cuts: Array, server_hz: float) -> Scenario:
    """The round where every client has a server of `server_hz` to itself (FSL). A client and its server count as one slower
    machine, so that an allocation divides subchannels and power alone, and its bound is that of this smaller problem."""
    flops = whole.client_flops + whole.server_flops
    speed = whole.cpu_hz * whole.client_flops_per_cycle
    own_s = whole.client_flops[cuts] / speed + whole.server_flops[cuts] / (server_hz * whole.server_flops_per_cycle)
    cpu_hz = np.divide(flops[cuts], own_s * whole.client_flops_per_cycle, out=whole.cpu_hz.copy(), where=own_s > 0)
    return replace(whole, client_flops=flops, server_flops=np.zeros_like(flops), cpu_hz=cpu_hz)


def _left_for_models_s(limit_s: float, training_s: float) -> float:
    """The time that a round's distribution may take to be allocated: what training has left of the limit, and a tenth of it at least."""
    return max(limit_s - training_s, 0.1 * limit_s)


def _solve_distribution(
    policy: Policy, settings: AllocationConfig, job: Job, draw: RoundDraw, on: Array, gap: float, limit_s: float
) -> CellsRound:
    """The model's distribution to the clients that are on, [K] bool, with the bound for any allocation of it."""
    groups = groups_by_cell(job, on)
    scenarios, cuts = scenarios_of_cells(settings, job, draw, groups), [job.cuts[clients] for clients in groups]
    if _is_small(job):  # no cell waits for another
        proof_s = limit_s if policy.is_optimal else min(limit_s, PROOF_LIMIT_S)
        answer = CellsAnswer.of_one(
            distribute_model(scenarios[0], cuts[0], stage_solver(scenarios[0]), gap, proof_s), 0.0
        )
    else:
        answer = distribute_cells(scenarios, cuts, gap, limit_s)
    if not policy.is_optimal:
        cells = [
            policy.distribute(in_cell, cell_cuts, gap, limit_s / len(cuts))
            for in_cell, cell_cuts in zip(scenarios, cuts)
        ]
        seconds = answer.seconds + sum(cell.seconds for cell in cells)
        answer = replace(answer, cells=tuple(cells), round_s=max(cell.round_s for cell in cells), seconds=seconds)
    return _cells_round(job, groups, answer)


def groups_by_cell(job: Job, on: Array) -> list[Array]:
    """The clients that are on, [K] bool, of each cell that has some."""
    members, cell_of = np.flatnonzero(on), _cells_of(job)
    clients = members[np.argsort(cell_of[members], kind="stable")]
    return np.split(clients, np.flatnonzero(np.diff(cell_of[clients])) + 1)


def _cells_round(job: Job, groups: Sequence[Array], answer: CellsAnswer) -> CellsRound:
    clients, arrays = np.concatenate(groups), _client_arrays(answer.cells)
    if not _is_small(job):
        return CellsRound(answer, clients, arrays)
    num_clients, (only_cell,) = len(job.cuts), answer.cells
    owners = {
        name: getattr(only_cell, name) for name in ("owner", "edge_down_owner") if getattr(only_cell, name) is not None
    }
    return CellsRound(
        answer,
        np.arange(num_clients),
        {name: _spread(values, clients, num_clients) for name, values in arrays.items()},
        {name: np.where(owner >= 0, clients[owner], -1) for name, owner in owners.items()},
    )


def scenarios_of_cells(
    settings: AllocationConfig, job: Job, draw: RoundDraw, groups: Sequence[Array]
) -> list[Scenario]:
    """A scenario for each group; a group is the clients of one cell that take part. Bands are shared in all cells or in none."""
    config, world, links = job.config, job.world, job.world.links
    assert isinstance(links, Ofdma)
    small, everyone, sharing = _is_small(job), np.arange(world.fleet.num_clients), settings.sharing
    if sharing == "auto":
        crowded = max(map(len, [everyone] if small else groups)) > links.num_subchannels
        sharing = "bandwidth" if crowded else "exclusive"
    num_batches = np.broadcast_to(np.asarray(job.num_batches, float), everyone.shape)
    deepest = replace(world.fleet, max_cut=np.maximum(world.fleet.max_cut, job.cuts))
    min_cut = min(config.fleet.min_cut, int(job.cuts.min()))
    one_radio = replace(links, cell=None, path_loss=None)
    scenarios = [
        scenario_of_round(
            replace(world, fleet=deepest.take(clients), links=one_radio), draw.take(clients), config.train.batch_size, num_batches[clients],
            config.train.tau_s, sharing, min_cut,
        )
        for clients in ([everyone] if small else groups)
    ]  # fmt: skip
    return [_scenario_of(scenarios[0], groups[0])] if small else scenarios


def _scenario_of(whole: Scenario, clients: Array) -> Scenario:
    """The scenario of some clients."""
    names = ("cpu_hz", "client_flops_per_cycle", "max_power_w", "max_cut", "num_batches", "main_gain", "edge_gain")
    return replace(whole, **{name: getattr(whole, name)[clients] for name in names})


def _allocate_by_policy(
    policy: Policy, scenarios: Sequence[Scenario], cuts: Sequence[Array], gap: float, time_limit_s: float
) -> CellsAnswer:
    """The cells' allocations by a policy, with the joint bound for any allocation with these cuts.

    Rules apply in every cell. Where a rule divides cycles evenly, a cell gets cycles in proportion to its clients; else it gets its
    part of the joint optimum.
    """
    if len(scenarios) == 1:
        return CellsAnswer.of_one(policy.allocate(scenarios[0], cuts[0], gap, time_limit_s), scenarios[0].main_hz)
    best = solve_cells(scenarios, cuts, gap, time_limit_s)
    if policy.is_optimal:
        return best
    sizes = np.array([in_cell.num_clients for in_cell in scenarios])
    even = policy.cycles == "even" or policy.allocator is not None
    cell_hz = scenarios[0].main_hz * sizes / sizes.sum() if even else best.cell_hz
    least_hz = 1e-9 * scenarios[0].main_hz  # cycles per second of a cell that needs none
    divided = [replace(in_cell, main_hz=max(float(hz), least_hz)) for in_cell, hz in zip(scenarios, cell_hz)]
    limit_s = time_limit_s / len(divided)
    cells = [policy.rule(in_cell, cell_cuts, gap, limit_s) for in_cell, cell_cuts in zip(divided, cuts)]
    down_s = [float(cell.phases["model_down_s"].max()) for cell in cells]
    round_s = max(cell.round_s - last_s for cell, last_s in zip(cells, down_s)) + max(down_s)
    all_kept = all(cell.kept.all() for cell in cells)
    proven = all_kept and all(map(in_time, divided, cells))
    bound_s, reached = with_gap(best.lower_bound_s if proven else 0.0, round_s)
    status = SolveStatus.HEURISTIC if all_kept else SolveStatus.DROPPED
    training_s = best.training_bound_s if proven else 0.0
    return CellsAnswer(tuple(cells), cell_hz, status, round_s, bound_s, reached, best.seconds, training_s)


def _client_arrays(cells: Sequence[Allocation]) -> dict[str, Array]:
    """The arrays over the clients of all cells, one cell after another."""
    names = ("kept", "server_hz", *POWERS)
    arrays = {name: np.concatenate([getattr(cell, name) for cell in cells]) for name in names}
    shares = [shares_of_answer(cell) for cell in cells]
    return arrays | {
        "share": np.concatenate([training for training, _ in shares]),
        "edge_down_share": np.concatenate([distribution for _, distribution in shares]),
    }


def _phases_of_all(job: Job, draw: RoundDraw, training: CellsRound, models: CellsRound, receives: Array) -> Phases:
    """The phases of the clients that take part; for those that only receive the model, its download alone takes time."""
    num_clients = len(job.cuts)
    training_phases = _phases(job, draw, training)
    kept = training.arrays["kept"]
    spread = {
        name: _spread(np.where(kept, getattr(training_phases, name), 0.0), training.clients, num_clients)
        for name in Phases.__dataclass_fields__
    }
    download_phases = training_phases if models is training else _phases(job, draw, models)
    down_s = np.where(receives, _spread(download_phases.model_down_s, models.clients, num_clients), 0.0)
    return Phases(**spread | {"model_down_s": down_s})


def _phases(job: Job, draw: RoundDraw, cells_round: CellsRound) -> Phases:
    """Eqs. (6) to (11) for the clients of a part, [n]."""
    world, links, clients, resources = job.world, job.world.links, cells_round.clients, cells_round.arrays
    assert isinstance(links, Ofdma)
    assert draw.main_gain is not None
    assert draw.edge_gain is not None
    main, edge = draw.main_gain[clients], draw.edge_gain[clients]

    def rate(power: str, share: str, gain: Array) -> Array:
        if cells_round.owners:
            return rate_bps(resources[power], gain, links.subchannel_hz, links.noise_w)
        return shared_rate_bps(resources[power], resources[share], gain, links.subchannel_hz, links.noise_w)

    rates = Rates(
        main_up_bps=rate("main_up_power_w", "share", main),
        main_down_bps=rate("main_down_power_w", "share", main),
        edge_up_bps=rate("edge_up_power_w", "share", edge),
        edge_down_bps=rate("edge_down_power_w", "edge_down_share", edge),
    )
    speed = draw.cpu_hz[clients] * world.fleet.flops_per_cycle[clients]
    server = resources["server_hz"] * world.servers.flops_per_cycle
    return phases(world.cost, job.cuts[clients], job.config.train.batch_size, speed, server, rates)


def _per_client(job: Job, draw: RoundDraw, training: CellsRound, models: CellsRound) -> dict[str, Any]:
    """What the record says of every client of a fleet that is not too large, [K] each."""
    num_clients = len(job.cuts)
    full = {name: _spread(values, training.clients, num_clients) for name, values in training.arrays.items()}
    for name in ("edge_down_power_w", "edge_down_share"):
        full[name] = _spread(models.arrays[name], models.clients, num_clients)
    owners = training.owners | {name: owner for name, owner in models.owners.items() if name == "edge_down_owner"}
    band = {"owner": owners["owner"]} if owners else {"share": full["share"].sum(axis=1)}
    flops_per_s, cell = draw.cpu_hz * job.world.fleet.flops_per_cycle, None if _is_small(job) else _cells_of(job)
    return {
        "server_hz": full["server_hz"].tolist(),
        "up_power_w": full["main_up_power_w"].sum(axis=1).tolist(),  # over the client's subchannels
        "down_power_w": full["main_down_power_w"].sum(axis=1).tolist(),  # the main server's, for the client
        **{name: values.tolist() for name, values in band.items()},
        "resources": radio_resources(draw, flops_per_s, full, owners, cell),
    }


def _spread(values: Array, clients: Array, num_clients: int) -> Array:
    """Values [n, ...] of some clients, as an array of all clients [K, ...]; other clients have 0."""
    every = np.zeros((num_clients, *values.shape[1:]), values.dtype)
    every[clients] = values
    return every


def check_cells(job_cells: int, takes_turns: bool) -> None:
    """Clusters that take turns have one radio: refuse cells for them."""
    if job_cells > 1 and takes_turns:
        raise InputError(
            f"network.cells is {job_cells} but the policy deals the subchannels of one radio to clusters that take turns; set "
            "network.cells=1 or allocation.policy=even"
        )
