"""Policies where links are measured: there is no radio to divide, only cuts and the main server's cycles are decided.

A policy's rules for subchannels and power do nothing here. Cycles are optimal in closed form, or even.
"""

import numpy as np

from hsfl.allocation.measured_links import (
    MeasuredRounds,
    best_measured_round,
    keep_within_tau_measured,
    least_training,
    optimal_cycles,
)
from hsfl.allocation.policies import Policy
from hsfl.framework_table import method
from hsfl.network.channel import Measured, RoundDraw
from hsfl.network.latency import Phases, client_work, duration_s, phases, server_work, transfer_s
from hsfl.planning.rounds.allocators import Allotment, Job, measured_resources
from hsfl.planning.rounds.participation import CutTask

Array = np.ndarray


def measured_rounds(task: CutTask, draws: RoundDraw) -> MeasuredRounds:
    """Seconds and cycles of every client at every cut, for draws [S, ...]."""
    world = task.world
    cost, fleet = world.cost, world.fleet
    assert draws.rates is not None, "measured links draw rates"
    batches, size = task.num_batches[:, None], task.batch_size  # [K, 1]
    speed, rates = draws.cpu_hz * fleet.flops_per_cycle, draws.rates.map(lambda array: array[..., None])
    own_s = duration_s(batches * size * client_work(cost, fleet.work).both, speed[..., None])
    own_s = own_s + batches * transfer_s(size * cost.smashed_bits, rates.main_up_bps, rates.delay_s)
    own_s = own_s + batches * transfer_s(size * cost.gradient_bits, rates.main_down_bps, rates.delay_s)
    own_s = own_s + transfer_s(cost.model_bits, rates.edge_up_bps, rates.delay_s)
    down_s = transfer_s(cost.down_bits, rates.edge_down_bps, rates.delay_s)
    work = batches * size * server_work(cost, world.servers.work).both / world.servers.flops_per_cycle
    return MeasuredRounds(own_s, work, down_s, task.rows, world.servers.main_hz)


def mean_speed_cuts(task: CutTask) -> Array:
    """The best cuts [K] for one round with everyone at mean speed and, where a history was recorded, at mean rates."""
    world = task.world
    assert isinstance(world.links, Measured)
    draw, past = RoundDraw(world.fleet.cpu_hz, rates=world.links.rates), world.recorded
    cpu_hz, rates = (draw.cpu_hz, draw.rates) if past is None else (past.cpu_hz.mean(axis=0), past.rates)
    assert rates is not None, "a history over measured links has rates"
    mean_rates = rates.map(lambda array: np.atleast_2d(array).mean(axis=0)[None])
    mean = measured_rounds(task, RoundDraw(cpu_hz[None], rates=mean_rates))
    return best_measured_round(mean.own_s[0], mean.work_cycles, mean.down_s[0], mean.rows, mean.main_hz, 1e-5).cuts


def allocate_measured(chosen: Policy, job: Job, draw: RoundDraw, started: Array) -> Allotment:
    """Cycles for the clients that start. Clients that cannot finish within tau_s sit out, as `keep_within_tau_measured` chooses them.

    Where every client has a server of its own (FSL) no cycles are divided: the server's seconds count as the client's.
    """
    assert draw.rates is not None, "measured links draw rates"
    own_s, work, down_s = _at_cuts(job, draw)
    main_hz, tau_s, even = job.world.servers.main_hz, job.config.train.tau_s, chosen.cycles == "even"
    own_hz = main_hz / len(started) if method(job.config.framework).timing.server == "own" else None
    if own_hz is not None:
        own_s, work = own_s + work / own_hz, np.zeros_like(work)
    kept = started.copy()
    if tau_s is not None and _training_s(own_s[kept], work[kept], main_hz, even) > tau_s:
        num_samples = np.broadcast_to(job.num_batches * np.asarray(job.batch_size, float), started.shape)
        kept[started] = keep_within_tau_measured(
            own_s[started], work[started], num_samples[started], main_hz, tau_s, even
        )
    server_hz = np.zeros(len(started))
    if own_hz is not None:
        server_hz[kept] = own_hz
    elif kept.any():
        server_hz[kept] = main_hz / kept.sum() if even else optimal_cycles(own_s[kept], work[kept], main_hz)
    receives = np.ones(len(started), bool) if job.receives is None else job.receives
    training_s = float((own_s + duration_s(work, server_hz))[kept].max(initial=0.0))
    least_s = float(least_training(own_s[kept], work[kept], main_hz))
    last_s = float(down_s[receives].max(initial=0.0))
    status = "dropped" if (kept != started).any() else "heuristic" if even else "optimal"
    round_s, bound_s = training_s + last_s, min(least_s, training_s) + last_s
    allocation_note = {
        "policy": chosen.name,
        "status": status,
        "gap": (round_s - bound_s) / round_s if even and round_s > 0 else 0.0,
        "lower_bound_s": bound_s if even else round_s,
        "server_hz": server_hz.tolist(),
        "resources": measured_resources(draw.cpu_hz * job.world.fleet.flops_per_cycle, draw.rates),
    }
    return Allotment(_phases(job, draw, server_hz, kept, receives), kept, allocation_note)


def _training_s(own_s: Array, work: Array, main_hz: float, even: bool) -> float:
    if even:
        return float((own_s + work * len(own_s) / main_hz).max(initial=0.0))
    return float(least_training(own_s, work, main_hz))


def _at_cuts(job: Job, draw: RoundDraw) -> tuple[Array, Array, Array]:
    """Seconds apart from the server, cycles of the server, seconds of the download, [K] each."""
    world = job.world
    times = _all_phases(job, draw, np.full(len(job.cuts), np.inf))
    flops = server_work(world.cost, world.servers.work).both[job.cuts]
    work = job.num_batches * job.batch_size * flops / world.servers.flops_per_cycle
    return job.num_batches * times.batch_s + times.model_up_s, work, times.model_down_s


def _all_phases(job: Job, draw: RoundDraw, server_hz: Array) -> Phases:
    world = job.world
    assert draw.rates is not None, "measured links draw rates"
    speed = draw.cpu_hz * world.fleet.flops_per_cycle
    server_speed, work = server_hz * world.servers.flops_per_cycle, (world.fleet.work, world.servers.work)
    return phases(world.cost, job.cuts, job.batch_size, speed, server_speed, draw.rates, *work)


def _phases(job: Job, draw: RoundDraw, server_hz: Array, kept: Array, receives: Array) -> Phases:
    """The phases of the clients that take part; for other clients only the download takes time."""
    every = _all_phases(job, draw, server_hz)
    on = {name: receives if name == "model_down_s" else kept for name in Phases.__dataclass_fields__}
    return Phases(**{name: np.where(on[name], getattr(every, name), 0.0) for name in on})
