"""How long a framework's rounds take in its world: the clock of a run.

For each round the clock asks who is to take part (`participation`), draws speeds and gains (`world`), lets the allocator of the
config's policy divide the resources (`allocators`), and turns the phases of all clients into a timeline (`network.clock`).

Legend: K clients.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from hsfl.allocation.answer import with_gap
from hsfl.allocation.policy_table import policy_row
from hsfl.config import RunConfig, TrainConfig
from hsfl.errors import InputError, install_extra
from hsfl.framework_table import method
from hsfl.network.channel import RoundDraw
from hsfl.network.clock import Timeline, after_upload, raw_upload, timeline, with_end
from hsfl.network.even_allocation import even_resources, psl_batch_sizes
from hsfl.network.in_step_times import queue_order
from hsfl.network.latency import Phases
from hsfl.network.norm_estimation_times import estimation_s
from hsfl.planning.rounds.allocators import Allocator, Allotment, Even, Job, own_policy
from hsfl.planning.rounds.measured_queue import Queued, divides_server, serving
from hsfl.planning.rounds.participation import choose_clients
from hsfl.planning.world import World, count_batches, server_is_queue

Array = np.ndarray


@dataclass(frozen=True)
class Extras:
    """What only a framework knows of its rounds, and the clock must know, too."""

    decoder_flops: float = 0.0  # FLOPs of LocFedMix-SL's decoder for a sample, forward and backward
    head_bits: float = 0.0  # bits that travel with every head: the decoder, or the optimiser's state that SL hands on
    heads_travel: bool = True  # False if clients keep their heads
    clusters: tuple[int, ...] | None = None  # [K], CPSL's
    away: tuple[int, ...] = ()  # clients that never take part: in FL, those that cannot hold the model
    moment_bits: tuple[float, ...] = ()  # [num_units + 1] of BatchNorm's moments of a head, where they are estimated
    up_bits: tuple[float, ...] = ()  # [num_units + 1] by cut: what a method sends up with the head
    down_bits: tuple[float, ...] = ()  # [num_units + 1] the same, down to the client
    passes: int = 1  # over a client's batches in a round

    def charged(self, world: World) -> World:
        """The world as a search for cuts sees it, in which a head travels with what a method sends besides."""
        if not (self.up_bits or self.down_bits):
            return world
        up_bits, down_bits = _sum_of(world.cost.model_bits, self.up_bits), _sum_of(world.cost.down_bits, self.down_bits)
        both_ways = np.array_equal(up_bits, down_bits)
        cost = replace(world.cost, model_bits=up_bits, model_down_bits=None if both_ways else down_bits)
        return replace(world, cost=cost)


def _sum_of(bits: Array, method_bits: tuple[float, ...]) -> Array:
    """What travels one way, [C], with what a method sends besides."""
    return bits + np.resize(method_bits, len(bits)) if method_bits else bits  # in every block


@dataclass(frozen=True)
class Dealt:
    """A round's draw and what the allocator gave whom."""

    draw: RoundDraw
    started: Array  # [K] bool
    allotted: Allotment
    order: Array | None  # of the server's queue
    job: Job  # the work of this round


class RoundClock:
    """The timelines of a run's rounds. A timeline depends on the round alone; the last few are remembered to save time.

    cuts: [K], as the framework uses them. codecs: [K], where clients have different ones. num_samples: [K], as the clock charges them.
    """

    def __init__(
        self,
        config: RunConfig,
        world: World,
        cuts: tuple[int, ...],
        num_samples: Array,
        extras: Extras | None = None,
        codecs: tuple[str, ...] = (),
    ) -> None:
        self.num_samples, self.method, self.extras = num_samples, method(config.framework), extras or Extras()
        up_bits = self._travels(world.cost.model_bits, self.extras.up_bits)
        down_bits = self._travels(world.cost.down_bits, self.extras.down_bits)
        both_ways = np.array_equal(up_bits, down_bits)
        cost = replace(world.cost, model_bits=up_bits, model_down_bits=None if both_ways else down_bits)
        self.job = Job(
            config,
            replace(world, cost=cost),
            world.rows_of(cuts, codecs),
            *self._batches(config),
            receives=~np.isin(np.arange(len(cuts)), self.extras.away) if self.extras.away else None,
            clusters=None if self.extras.clusters is None else np.array(self.extras.clusters),
        )
        self.allocator = _find_allocator(config)
        self.round = lru_cache(maxsize=4)(self._round)
        self.dealt = lru_cache(maxsize=4)(self._dealt)
        self.estimation_s = lru_cache(maxsize=4)(self._estimation_s)

    def _travels(self, head_bits: Array, method_bits: tuple[float, ...]) -> Array:
        """What travels one way, [C]: the head with what goes along with it, and what a method sends besides."""
        return _sum_of(self.extras.heads_travel * (head_bits + self.extras.head_bits), method_bits)

    def _round(self, round_index: int, chosen: tuple[int, ...]) -> tuple[Timeline, dict[str, Any]]:
        """The timeline of a round (0, 1, ...) in which the clients `chosen` are to take part, and what its record says of the
        allocation."""
        dealt = self.dealt(round_index, chosen)
        round_timeline = self.timeline_of(dealt, dealt.allotted.phases)
        allocation_note = dealt.allotted.allocation_note
        if ending_s := self._end_of_round(round_index, dealt):
            round_timeline = with_end(round_timeline, ending_s)
            allocation_note = _bound_with_end(allocation_note, round_timeline)
        if self.method.pools_data and round_index == 0:
            round_timeline = after_upload(self._upload(dealt.draw), round_timeline)
        return round_timeline, allocation_note

    def _end_of_round(self, round_index: int, dealt: Dealt) -> dict[str, float]:
        """Seconds of each part of the round's end; none where clients have parts of the server, as in the paper, or where
        nobody takes part."""
        end, config = dealt.job.world.servers.end, dealt.job.config
        if end is None or not dealt.started.any() or not divides_server(config):
            return {}
        if round_index + 1 == config.train.rounds:
            end = replace(end, test_beside=0)  # nothing follows, beside which it could be made
        tests = float(is_tested(config.train, round_index))
        return end.parts(dealt.job.world.cost, dealt.job.cuts[dealt.started], tests)

    def _dealt(self, round_index: int, chosen: tuple[int, ...]) -> Dealt:
        started = self._started(chosen)
        job = self.job_of(round_index, started)
        draw = job.world.draw(round_index)
        allocator = self.allocator if started.any() else Even()
        order = None
        if self.method.timing.step == "queue":
            order = queue_order(job.config.seed, round_index, np.where(started, job.num_batches, 0.0))
        return Dealt(draw, started, allocator.allocate(job, draw, started), order, job)

    def job_of(self, round_index: int, started: Array) -> Job:
        """The work of a round (0, 1, ...) in which these clients start, [K] bool: with `train.receivers = "chosen"` only they get the
        model, and with a fraction of an epoch rounds differ by the last batches of passes; a test of the round before may be under way."""
        config, job = self.job.config, self.job
        if not config.train.local_epochs.is_integer():
            job = replace(job, num_batches=self._batches(config, round_index)[1])
        end, servers = job.world.servers.end, job.world.servers
        if end is not None and end.test_beside:
            after_test = round_index > 0 and is_tested(config.train, round_index - 1)
            servers = replace(servers, test=end.beside(float(after_test)))
            job = replace(job, world=replace(job.world, servers=servers))
        return replace(job, receives=started) if config.train.receivers == "chosen" else job

    def _batches(self, config: RunConfig, round_index: int | None = None) -> tuple[Array | int, Array | float]:
        """Batch size and number of batches in all passes of a round."""
        size, num_batches = _clock_batches(config, self.num_samples, round_index)
        return size, num_batches * self.extras.passes

    def timeline_of(self, dealt: Dealt, phases: Phases) -> Timeline:
        """The timeline of a round with these phases."""
        job = dealt.job
        return timeline(
            job.config.framework,
            phases,
            job.num_batches,
            job.config.train.tau_s or np.inf,
            started=dealt.allotted.kept,
            clusters=job.clusters,
            order=dealt.order,
            serve=serving(job.world.servers),
            decoder_s=job.batch_size
            * self.extras.decoder_flops
            / (dealt.draw.cpu_hz * job.world.fleet.flops_per_cycle),
        )

    def chosen(self, round_index: int) -> tuple[int, ...]:
        """The clients that are to take part in a round (0, 1, ...)."""
        config = self.job.config
        held = np.round(self.num_samples / config.network.sample_scale, 6)  # as the clients hold them, to the bit
        return choose_clients(config, round_index, held)

    def rounds_s(self, count: int) -> list[float]:
        """The seconds of the first rounds, with those of their tests."""
        train = self.job.config.train
        return [self.full_s(index) if is_tested(train, index) else self.plain_s(index) for index in range(count)]

    def plain_s(self, round_index: int) -> float:
        """The seconds of a round that is not tested."""
        return self.round(round_index, self.chosen(round_index))[0].round_s

    def full_s(self, round_index: int) -> float:
        """The seconds of a round that is tested: clients may have to estimate BatchNorm's statistics for a test."""
        return self.plain_s(round_index) + self.estimation_s(round_index, self.chosen(round_index))

    def _estimation_s(self, round_index: int, chosen: tuple[int, ...]) -> float:
        """The seconds in which the clients that a round kept estimate BatchNorm's statistics for the new model, after its distribution and
        with the round's own allocation; 0 where the statistics are averaged."""
        config, job, dealt = self.job.config, self.job, self.dealt(round_index, chosen)
        if config.train.norm_statistics == "averaged":
            return 0.0
        kept = np.flatnonzero(self.round(round_index, chosen)[0].kept)
        held = self.num_samples.sum() if self.method.pools_data else self.num_samples
        batches = held / job.batch_size
        batches = np.minimum(np.ceil(batches) if config.network.full_batches else batches, config.train.norm_batches)
        if self.method.pools_data:
            batches = batches * (self.num_samples / self.num_samples.sum())
        moments_by_cut = np.array(self.extras.moment_bits or np.zeros(job.world.cost.num_units + 1))
        moments_bits = moments_by_cut[job.world.cost.cuts_of(job.cuts)]
        head_bits = job.world.cost.model_bits[job.cuts]
        moments_fraction = np.divide(moments_bits, head_bits, out=np.zeros(len(job.cuts)), where=head_bits > 0)
        return estimation_s(self.method.timing, dealt.allotted.phases, batches, moments_fraction, kept, job.clusters)

    def _started(self, chosen: tuple[int, ...]) -> Array:
        if self.method.pools_data:
            return np.ones(len(self.job.cuts), bool)  # the data are on the server
        started = np.zeros(len(self.job.cuts), bool)
        started[list(chosen)] = True
        return started if self.job.receives is None else started & self.job.receives

    def _upload(self, draw: RoundDraw) -> Timeline:
        """The upload of all raw data, which CL makes once."""
        world = self.job.world
        rates = even_resources(world.links, world.fleet, world.servers, draw).rates
        return raw_upload(self.method.name, world.cost, self.num_samples, rates)


def _bound_with_end(allocation_note: dict[str, Any], timeline: Timeline) -> dict[str, Any]:
    """The allocation's note whose bound holds for a round with its end."""
    ending_s, bound_s = sum(timeline.ending_s.values()), allocation_note["lower_bound_s"]
    bound_s, gap = with_gap(bound_s + ending_s, timeline.round_s)
    return allocation_note | {"lower_bound_s": bound_s, "gap": gap}


def is_tested(train: TrainConfig, round_index: int) -> bool:
    """Whether the settings have the model tested after a round (0, 1, ...); the last round within a budget is tested, too."""
    return (round_index + 1) % train.eval_every == 0 or round_index + 1 == train.rounds


def _find_allocator(config: RunConfig) -> Allocator:
    """The allocator of the config's policy."""
    name = own_policy(config.allocation.policy, config.framework)
    if server_is_queue(config.network) and divides_server(config):
        return Queued(policy_row(name, config.options).name)
    if name == "even":
        return Even()
    if find_spec("numba") is None:
        raise InputError(
            f"allocation.policy={config.allocation.policy} needs the optimiser; {install_extra('plan')}, or set "
            "allocation.policy=even"
        )
    from hsfl.planning.rounds.policy_allocator import find_policy_allocator  # here, because numba takes seconds to load

    return find_policy_allocator(config)


def _clock_batches(
    config: RunConfig, num_samples: Array, round_index: int | None = None
) -> tuple[Array | int, Array | float]:
    """Batch size and number of batches, as the clock charges them. round_index: as in `count_batches`."""
    size, row, pooled = config.train.batch_size, method(config.framework), num_samples.sum()
    if row.timing.batches == "proportional":  # everybody makes equally many steps
        steps = count_batches(config, pooled, round_index, batch_size=len(num_samples) * size)
        return psl_batch_sizes(num_samples, size), float(steps)
    if row.pools_data:  # batches of everyone's samples together
        return size, count_batches(config, pooled, round_index) * (num_samples / pooled)
    return size, count_batches(config, num_samples, round_index)
