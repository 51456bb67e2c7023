"""How long a framework's rounds take in its world: the clock of a run."""

from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from hsfl.config import RunConfig
from hsfl.errors import InputError
from hsfl.models.cost import measure_module
from hsfl.models.units import SplitModel
from hsfl.network.channel import RoundDraw
from hsfl.network.clock import Timeline, even_phases, psl_batches, raw_upload, timeline
from hsfl.network.clusters import gibbs_clusters, random_clusters
from hsfl.network.even import even
from hsfl.network.steps import queue_order
from hsfl.rng import stream
from hsfl.training.world import World

if TYPE_CHECKING:
    from hsfl.allocation.policies import Policy

Array = np.ndarray


class Pace:
    """The timelines of a run's rounds, each a function of the round alone: nothing is remembered but for speed."""

    def __init__(
        self, config: RunConfig, world: World, cuts: tuple[int, ...], num_samples: Array, clusters: Array
    ) -> None:
        self.config, self.world = config, world
        self.cuts, self.num_samples, self.clusters = np.array(cuts), num_samples, clusters
        self.cost, self.decoder_flops = world.cost, 0.0
        self.batch_size, self.num_batches = _batches(config, num_samples)
        self.policy = _policy(config)
        self.round = lru_cache(maxsize=4)(self._round)

    def with_decoder(self, model: SplitModel, smashed_shape: tuple[int, ...]) -> None:
        """LocFedMix-SL: the decoder's work, and its bits travel with the head."""
        self.decoder_flops, bits = measure_module(model.units[0], smashed_shape)
        self.cost = replace(self.cost, model_bits=self.cost.model_bits + bits)

    def upload_s(self) -> float:
        """Before round 1: CL's raw data; nothing in the others."""
        if self.config.framework != "cl":
            return 0.0
        world = self.world
        rates = even(world.links, world.fleet, world.servers, world.draw(0)).rates
        return raw_upload(self.cost, self.num_samples, rates).round_s

    def _round(self, round_index: int, chosen: tuple[int, ...]) -> tuple[Timeline, dict[str, Any]]:
        """The round if these clients are to take part, and what the policy says of its allocation."""
        config, world = self.config, self.world
        draw = world.draw(round_index)
        started = np.isin(np.arange(len(self.cuts)), chosen)
        if config.framework == "cl":
            started[:] = True  # the data are on the server
        elif config.framework == "fl" and config.options.fl_needs_storage:
            started &= world.fleet.can_hold(world.cost.num_units)
        clusters = self.clusters if config.framework == "cpsl" else None
        if self.policy is not None and started.any():
            return self._allocated(draw, started)
        phases = even_phases(
            config.framework, self.cost, self.cuts, self.batch_size, world.fleet, world.servers, world.links, draw,
            started=started, clusters=clusters,
        )  # fmt: skip
        order = None
        if config.framework == "splitfed_v2":
            order = queue_order(config.seed, round_index, np.where(started, self.num_batches, 0.0))
        line = timeline(
            config.framework,
            phases,
            self.num_batches,
            self.tau_s,
            started=started,
            clusters=clusters,
            order=order,
            decoder_s=self.batch_size * self.decoder_flops / (draw.cpu_hz * world.fleet.flops_per_cycle),
            cut_gradient=config.options.psl_cut_gradient,
        )
        return line, {"policy": "even"}

    @property
    def tau_s(self) -> float:
        return self.config.train.tau_s or np.inf

    def _allocated(self, draw: RoundDraw, started: Array) -> tuple[Timeline, dict[str, Any]]:
        """Under the config's policy, which may leave clients out that cannot meet tau."""
        from hsfl.training.allocating import allocate_round, scenario

        config, num_clients = self.config, len(self.cuts)
        num_batches = np.broadcast_to(np.asarray(self.num_batches, float), (num_clients,))
        deepest = replace(self.world.fleet, max_cut=np.maximum(self.world.fleet.max_cut, self.cuts))
        here = scenario(
            replace(self.world, fleet=deepest), draw, config.train.batch_size, num_batches, config.train.tau_s,
            config.allocation.sharing, min(config.fleet.min_cut, int(self.cuts.min())),
        )  # fmt: skip
        assert self.policy is not None
        plan = allocate_round(self.policy, config.allocation, here, self.cost, self.cuts, started)
        line = timeline(config.framework, plan.phases, self.num_batches, self.tau_s, started=plan.kept)
        return line, plan.says


def _policy(config: RunConfig) -> "Policy | None":
    """The policy that allocates; None for the even one, and for frameworks that take turns or go in step."""
    if config.allocation.policy == "even":
        return None
    if find_spec("numba") is None:
        raise InputError(f"allocation.policy={config.allocation.policy} needs the optimiser; pip install 'hsfl[plan]'")
    from hsfl.allocation.policies import policy  # here, because numba takes seconds to load
    from hsfl.training.allocating import FRAMEWORKS

    chosen = policy(config.allocation.policy)
    return chosen if config.framework in FRAMEWORKS else None


def _batches(config: RunConfig, num_samples: Array) -> tuple[Array | int, Array | float]:
    """Batch size and number of batches, as the clock charges them."""
    train = config.train
    if config.framework == "psl":
        return psl_batches(num_samples, train.batch_size, train.local_epochs)
    batches = num_samples / train.batch_size
    if config.network.full_batches:
        batches = np.ceil(batches)
    return train.batch_size, train.local_epochs * batches


def choose_clusters(config: RunConfig, world: World, cut: int, num_samples: Array) -> Array:
    """CPSL's cluster of each client [K]: random, or by Gibbs sampling over the first round's latency."""
    num_clients = len(num_samples)
    num_clusters = min(config.options.cpsl_clusters, num_clients)
    rng = stream(config.seed, "clusters")
    if config.options.cpsl_clustering == "random":
        return random_clusters(num_clients, num_clusters, rng)
    _, num_batches = _batches(config.model_copy(update={"framework": "cpsl"}), num_samples)
    cuts, draw = np.full(num_clients, cut), world.draw(0)

    def latency_s(clusters: Array) -> float:
        phases = even_phases(
            "cpsl", world.cost, cuts, config.train.batch_size, world.fleet, world.servers, world.links, draw,
            clusters=clusters,
        )  # fmt: skip
        return timeline("cpsl", phases, num_batches, clusters=clusters).round_s

    return gibbs_clusters(latency_s, num_clients, num_clusters, rng)[0]
