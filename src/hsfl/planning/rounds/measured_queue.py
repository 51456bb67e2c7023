"""Measured links to a main server that is one queue: there is nothing to divide, only cuts are chosen. Needs no numba, since a
deployment's server may have none; rounds are compiled where it is there.

Legend: K clients, S samples.
"""

from functools import partial
from importlib.util import find_spec

import numpy as np

from hsfl.allocation.answer import with_gap
from hsfl.allocation.queued_rounds import QueuedRounds
from hsfl.config import RunConfig
from hsfl.framework_table import method
from hsfl.network.channel import RATE_NAMES, RoundDraw
from hsfl.network.latency import Phases, duration_s, phases
from hsfl.network.server_queue import Serve, least_queued_s, queued_round, queued_work
from hsfl.planning.rounds.allocators import Allotment, Job, measured_resources
from hsfl.planning.rounds.participation import CutTask

Array = np.ndarray


def serving(service: str | None) -> Serve | None:
    """What makes rounds on a main server that is one queue with this order of service: compiled where numba is, else plain, with the same
    numbers; None where clients have parts of the server."""
    if service is None:
        return None
    if find_spec("numba") is None:
        return partial(queued_round, order=service)
    from hsfl.allocation.compiled_queue import queued_round_compiled  # here, because numba takes seconds to load

    return partial(queued_round_compiled, order=service)


def queued_rounds(task: CutTask, draws: RoundDraw) -> QueuedRounds:
    """Seconds of every client at every cut, for draws [S, ...], where the main server is one queue. Draws that are all alike count as one."""
    world = task.world
    cost, rates, servers = world.cost, draws.rates, world.servers
    assert rates is not None, "measured links draw rates"
    serve = serving(servers.service)
    assert serve is not None, "the server is a queue"
    by_sample = (draws.cpu_hz, *(np.broadcast_to(getattr(rates, name), draws.cpu_hz.shape) for name in RATE_NAMES))
    if all((values == values[:1]).all() for values in by_sample):
        by_sample = tuple(values[:1] for values in by_sample)
    cpu_hz, up_bps, down_bps, edge_up_bps, edge_down_bps = (values[..., None] for values in by_sample)  # [S, K, 1]
    size, speed = task.batch_size, cpu_hz * world.fleet.flops_per_cycle[:, None]
    serve_s = duration_s(size * cost.server_flops, servers.main_hz * servers.flops_per_cycle)
    return QueuedRounds(
        before_s=duration_s(size * cost.client_forward_flops, speed) + duration_s(size * cost.smashed_bits, up_bps),
        serve_s=np.broadcast_to(serve_s, task.rows.shape),
        after_s=duration_s(size * cost.client_backward_flops, speed) + duration_s(size * cost.gradient_bits, down_bps),
        up_s=duration_s(cost.model_bits, edge_up_bps),
        down_s=duration_s(cost.down_bits, edge_down_bps),
        num_batches=task.num_batches,
        rows=task.rows,
        serve=serve,
    )


def divides_server(config: RunConfig) -> bool:
    """Whether clients of the config's framework use the main server side by side, so that they wait for it where it is one queue."""
    timing = method(config.framework).timing
    return timing.server == "divided" and timing.step == "free"


class Queued:
    """Every client has the whole server, one batch at a time: nothing is divided, and nobody sits out. The bound is for these cuts."""

    def __init__(self, policy_name: str) -> None:
        self.policy_name = policy_name

    def allocate(self, job: Job, draw: RoundDraw, started: Array) -> Allotment:
        world, rates, serve = job.world, draw.rates, serving(job.world.servers.service)
        assert rates is not None, "measured links draw rates"
        assert serve is not None, "the server is a queue"
        speed = draw.cpu_hz * world.fleet.flops_per_cycle
        server_flops_per_s = world.servers.main_hz * world.servers.flops_per_cycle
        of_all = phases(world.cost, job.cuts, job.batch_size, speed, server_flops_per_s, rates)
        takes_part = dict.fromkeys(Phases.__dataclass_fields__, started)
        takes_part["model_down_s"] = np.ones(len(started), bool) if job.receives is None else job.receives
        times = Phases(**{name: np.where(on, getattr(of_all, name), 0.0) for name, on in takes_part.items()})
        work = queued_work(times, np.where(started, job.num_batches, 0.0))
        last_s = float(times.model_down_s.max(initial=0.0))
        round_s = serve(work).training_s + last_s
        bound_s, gap = with_gap(least_queued_s(work) + last_s, round_s)
        note = {
            "policy": self.policy_name,
            "status": "heuristic",
            "gap": gap,
            "lower_bound_s": bound_s,
            "server_hz": np.where(started, world.servers.main_hz, 0.0).tolist(),
            "resources": measured_resources(speed, rates),
        }
        return Allotment(times, started, note)
