"""How long a framework's rounds take in its world: the clock of a run."""

from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from hsfl.config import RunConfig
from hsfl.errors import InputError
from hsfl.network.channel import RoundDraw
from hsfl.network.clock import Timeline, after_upload, even_phases, psl_batches, raw_upload, timeline
from hsfl.network.clusters import gibbs_clusters, random_clusters
from hsfl.network.even import even
from hsfl.network.steps import queue_order
from hsfl.planning.allocators import Allocator, Even, Job
from hsfl.planning.world import World, count_batches
from hsfl.rng import stream

Array = np.ndarray


class Pace:
    """The timelines of a run's rounds, each a function of the round alone: nothing is remembered but for speed.

    `decoder` is what a head has with it: FLOPs of a sample forward and backward (LocFedMix-SL's decoder), and bits that
    travel with it (the decoder, or the optimiser's state that SL hands on).
    """

    def __init__(
        self,
        config: RunConfig,
        world: World,
        cuts: tuple[int, ...],
        num_samples: Array,
        clusters: Array | None = None,
        decoder: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.num_samples, (self.decoder_flops, bits) = num_samples, decoder
        model_bits = world.cost.model_bits + bits
        if config.framework == "fsl" and config.options.fsl_average == "server":
            model_bits = np.zeros_like(model_bits)  # clients keep their heads
        world = replace(world, cost=replace(world.cost, model_bits=model_bits))
        self.job = Job(
            config,
            world,
            np.array(cuts),
            *_batches(config, num_samples),
            receives=who_can_train(config, world),
            clusters=clusters if config.framework == "cpsl" else None,
        )
        self.allocator = _allocator(config)
        self.round = lru_cache(maxsize=4)(self._round)

    def _round(self, round_index: int, chosen: tuple[int, ...]) -> tuple[Timeline, dict[str, Any]]:
        """The round if these clients are to take part, and what is to be said of its allocation."""
        job, config = self.job, self.job.config
        draw = job.world.draw(round_index)
        started = self._started(chosen)
        allocator = self.allocator if started.any() else Even()
        share = allocator.share(job, draw, started)
        order = None
        if config.framework == "splitfed_v2":
            order = queue_order(config.seed, round_index, np.where(started, job.num_batches, 0.0))
        line = timeline(
            config.framework,
            share.phases,
            job.num_batches,
            config.train.tau_s or np.inf,
            started=share.kept,
            clusters=job.clusters,
            order=order,
            decoder_s=job.batch_size * self.decoder_flops / (draw.cpu_hz * job.world.fleet.flops_per_cycle),
            cut_gradient=config.options.psl_cut_gradient,
        )
        if config.framework == "cl" and round_index == 0:
            line = after_upload(self._upload(draw), line)
        return line, share.says

    def _started(self, chosen: tuple[int, ...]) -> Array:
        if self.job.config.framework == "cl":
            return np.ones(len(self.job.cuts), bool)  # the data are on the server
        started = np.isin(np.arange(len(self.job.cuts)), chosen)
        return started if self.job.receives is None else started & self.job.receives

    def _upload(self, draw: RoundDraw) -> Timeline:
        """CL's raw data."""
        world = self.job.world
        rates = even(world.links, world.fleet, world.servers, draw).rates
        return raw_upload(world.cost, self.num_samples, rates)


def who_can_train(config: RunConfig, world: World) -> Array | None:
    """[K] bool where FL needs storage and so clients that cannot hold the model stay away; None: everyone can."""
    needs = config.framework == "fl" and config.options.fl_needs_storage
    return world.fleet.can_hold(world.cost.num_units) if needs else None


def _allocator(config: RunConfig) -> Allocator:
    """What divides the rounds, by the config's policy."""
    if config.allocation.policy == "even":
        return Even()
    if find_spec("numba") is None:
        raise InputError(f"allocation.policy={config.allocation.policy} needs the optimiser; pip install 'hsfl[plan]'")
    from hsfl.planning.optimised import allocator  # here, because numba takes seconds to load

    return allocator(config)


def _batches(config: RunConfig, num_samples: Array) -> tuple[Array | int, Array | float]:
    """Batch size and number of batches, as the clock charges them."""
    train = config.train
    if config.framework == "psl":
        batch_size, steps = psl_batches(num_samples, train.batch_size)
        return batch_size, train.local_epochs * (float(np.ceil(steps)) if config.network.full_batches else steps)
    if config.framework == "cl":  # batches of everyone's samples together
        pooled = num_samples.sum()
        return train.batch_size, count_batches(config, pooled) * (num_samples / pooled)
    return train.batch_size, count_batches(config, num_samples)


def choose_clusters(config: RunConfig, world: World, cut: int, num_samples: Array) -> Array:
    """CPSL's cluster of each client [K]: random, or by Gibbs sampling over the first round's latency."""
    num_clients = len(num_samples)
    num_clusters = min(config.options.cpsl_clusters, num_clients)
    rng = stream(config.seed, "clusters")
    if config.options.cpsl_clustering == "random":
        return random_clusters(num_clients, num_clusters, rng)
    num_batches = count_batches(config, num_samples)
    cuts, draw = np.full(num_clients, cut), world.draw(0)

    def latency_s(clusters: Array) -> float:
        phases = even_phases(
            "cpsl", world.cost, cuts, config.train.batch_size, world.fleet, world.servers, world.links, draw,
            clusters=clusters,
        )  # fmt: skip
        return timeline("cpsl", phases, num_batches, clusters=clusters).round_s

    return gibbs_clusters(latency_s, num_clients, num_clusters, rng)[0]


def plans_one_cut(config: RunConfig) -> bool:
    """CPSL under its own policy, where no cut is given, chooses the best one for all."""
    fleet, own = config.fleet, config.framework == "cpsl" and config.allocation.policy in ("cpsl", "own")
    return own and fleet.one_cut is None and isinstance(fleet.cuts, str) and config.options.cpsl_cut == "one"


def plan_one_cut(config: RunConfig, world: World, deepest: int, num_samples: Array) -> int:
    """The best cut for all, up to `deepest`, with the clusters of the deepest."""
    from hsfl.planning.turns import best_cut

    clusters = choose_clusters(config, world, deepest, num_samples)
    return best_cut(config, world, count_batches(config, num_samples), clusters, deepest)
