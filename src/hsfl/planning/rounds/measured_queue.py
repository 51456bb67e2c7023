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
from hsfl.network.devices import Servers
from hsfl.network.latency import Phases, client_work, duration_s, phases, server_work, transfer_s
from hsfl.network.round_end import RoundEnd
from hsfl.network.server_queue import Serve, least_queued_s, queued_beside, queued_round, queued_work
from hsfl.planning.rounds.allocators import Allotment, Job, measured_resources
from hsfl.planning.rounds.participation import CutTask
from hsfl.planning.world import tests_per_round

Array = np.ndarray


def serving(servers: Servers) -> Serve | None:
    """What makes rounds on a main server that is one queue; None where clients have parts of the server."""
    if servers.service is None:
        return None
    serve = _in_order(servers.service)
    return serve if servers.test is None else partial(queued_beside, serve, servers.test)


def _in_order(service: str) -> Serve:
    """What makes rounds in this order of service: compiled where numba is, else plain, with the same numbers."""
    if find_spec("numba") is None:
        return partial(queued_round, order=service)
    from hsfl.allocation.compiled_queue import queued_round_compiled  # here, because numba takes seconds to load

    return partial(queued_round_compiled, order=service)


def queued_rounds(task: CutTask, draws: RoundDraw) -> QueuedRounds:
    """Seconds of every client at every cut, for draws [S, ...], where the main server is one queue. Draws that are all alike count as one."""
    world = task.world
    cost, rates, servers = world.cost, draws.rates, world.servers
    assert rates is not None, "measured links draw rates"
    serve = serving(servers)
    assert serve is not None, "the server is a queue"
    rates = rates.map(lambda array: np.broadcast_to(array, draws.cpu_hz.shape))
    by_sample = [draws.cpu_hz, *(getattr(rates, name) for name in RATE_NAMES)]
    count = 1 if all((values == values[:1]).all() for values in by_sample) else len(draws.cpu_hz)
    rates, cpu_hz = rates.map(lambda array: array[:count, :, None]), draws.cpu_hz[:count, :, None]  # [S, K, 1]
    size, speed = task.batch_size, cpu_hz * world.fleet.flops_per_cycle[:, None]
    client = client_work(cost, world.fleet.work)
    end = servers.end or RoundEnd()
    serve_s = duration_s(size * server_work(cost, servers.work).both, servers.main_hz * servers.flops_per_cycle)
    smashed_s = transfer_s(size * cost.smashed_bits, rates.main_up_bps, rates.delay_s)
    gradient_s = transfer_s(size * cost.gradient_bits, rates.main_down_bps, rates.delay_s)
    return QueuedRounds(
        before_s=duration_s(size * client.forward, speed) + smashed_s,
        serve_s=np.broadcast_to(serve_s, task.rows.shape),
        after_s=duration_s(size * client.backward, speed) + gradient_s,
        up_s=transfer_s(cost.model_bits, rates.edge_up_bps, rates.delay_s),
        down_s=transfer_s(cost.down_bits, rates.edge_down_bps, rates.delay_s),
        num_batches=task.num_batches,
        rows=task.rows,
        serve=serve,
        swap_s=partial(end.swap_s, cost),
        rest_of_end_s=end.apart_from_swap_s(len(task.num_batches), tests_per_round(task.config.train)),
    )


def end_of_plan(task: CutTask, cuts: Array) -> dict[str, float]:
    """Seconds of each part of a planned round's end that takes time; nothing where the main server is no queue."""
    end = task.world.servers.end
    parts = {} if end is None else end.parts(task.world.cost, cuts, tests_per_round(task.config.train))
    return {name: part_s for name, part_s in parts.items() if part_s > 0}


def divides_server(config: RunConfig) -> bool:
    """Whether clients of the config's framework use the main server side by side, so that they wait for it where it is one queue."""
    timing = method(config.framework).timing
    return timing.server == "divided" and timing.step == "free"


class Queued:
    """Every client has the whole server, one batch at a time: nothing is divided, and nobody sits out. The bound is for these cuts."""

    def __init__(self, policy_name: str) -> None:
        self.policy_name = policy_name

    def allocate(self, job: Job, draw: RoundDraw, started: Array) -> Allotment:
        world, rates, serve = job.world, draw.rates, serving(job.world.servers)
        assert rates is not None, "measured links draw rates"
        assert serve is not None, "the server is a queue"
        speed = draw.cpu_hz * world.fleet.flops_per_cycle
        server_flops_per_s = world.servers.main_hz * world.servers.flops_per_cycle
        work_by_unit = world.fleet.work, world.servers.work
        of_all = phases(world.cost, job.cuts, job.batch_size, speed, server_flops_per_s, rates, *work_by_unit)
        takes_part = dict.fromkeys(Phases.__dataclass_fields__, started)
        takes_part["model_down_s"] = np.ones(len(started), bool) if job.receives is None else job.receives
        times = Phases(**{name: np.where(on, getattr(of_all, name), 0.0) for name, on in takes_part.items()})
        work = queued_work(times, np.where(started, job.num_batches, 0.0))
        last_s = float(times.model_down_s.max(initial=0.0))  # clients that sit out get the model meanwhile
        round_s = max(serve(work).training_s, last_s)
        bound_s, gap = with_gap(max(least_queued_s(work), last_s), round_s)
        note = {
            "policy": self.policy_name,
            "status": "heuristic",
            "gap": gap,
            "lower_bound_s": bound_s,
            "server_hz": np.where(started, world.servers.main_hz, 0.0).tolist(),
            "resources": measured_resources(speed, rates),
        }
        return Allotment(times, started, note)
