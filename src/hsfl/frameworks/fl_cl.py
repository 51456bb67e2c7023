"""The model is not split.

CL, centralised learning: pooled data, one model on the server.
FL: McMahan, Moore, Ramage, Hampson, Arcas, "Communication-Efficient Learning of Deep Networks from Decentralized
Data" (2016): each client trains the whole model, the server averages by samples.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from hsfl.config import RunConfig
from hsfl.errors import InputError
from hsfl.frameworks.copy_per_client import CopyPerClient
from hsfl.frameworks.framework import Arrangement, FrameworkBase, RoundResult, State, Task, copied
from hsfl.models.state import UnitState
from hsfl.planning.world import World
from hsfl.training.link import Link, LinkBytes, Losses
from hsfl.training.norm_statistics import NormShard
from hsfl.training.step import whole_step


class FL(CopyPerClient):
    """The copy-per-client round with every cut at num_units: the main server has nothing to do."""

    @classmethod
    def arrange(cls, config: RunConfig, world: World, one_cut: int, num_samples: np.ndarray) -> Arrangement:
        """With `options.fl.needs_storage`, clients that cannot hold the whole model stay away."""
        num_units, fleet = world.cost.num_units, world.fleet
        away = np.flatnonzero(~fleet.can_hold(num_units)) if config.options.fl.needs_storage else np.empty(0, int)
        if len(away) == fleet.num_clients:
            raise InputError(
                f"options.fl.needs_storage is true but nobody can hold all {num_units} units (max_cut is at most "
                f"{fleet.max_cut.max()}); leave it out, or give the clients more storage"
            )
        return Arrangement(one_cut, away=tuple(away.tolist()))

    def choose_cuts(self, task: Task) -> tuple[int, ...]:
        return (task.num_units,) * task.num_clients


class CL(FrameworkBase):
    """CL: all data are on the server from round 1 on, and the optimiser lasts through the run."""

    def __init__(self, task: Task) -> None:
        pooled = replace(task.feed, indices=[np.concatenate(task.feed.indices)])
        pooled.on_batch = lambda client, num_samples: task.feed.on_batch(client, num_samples)
        uncoded = task.config.model_copy(update={"link": type(task.config.link)()})  # raw data travel as they are
        self.task = replace(task, feed=pooled, config=uncoded)
        self.cuts = (0,) * task.num_clients
        self.model = task.part(0, task.num_units)
        self.raw_bytes = sum(task.feed.num_samples(k) for k in range(task.num_clients)) * _sample_bytes(task)

    def init(self) -> State:
        return State({"model": self.task.initial.clone()})

    @classmethod
    def why_averaged(cls, config: RunConfig) -> str | None:
        return None

    def norm_moments(self, whole: UnitState, clients: Sequence[int], round_index: int) -> NormShard:
        """The server sends batches of the pooled data forward; nothing travels."""
        return NormShard(super().norm_moments(whole, [0], round_index).moments)

    def norm_swapped(self) -> LinkBytes:
        return LinkBytes()

    def round(self, state: State, kept: Sequence[int], round_index: int) -> tuple[State, RoundResult]:
        """Train on the pooled data. Nobody can be dropped, since the data are on the server already."""
        task, losses, link = self.task, Losses(), Link()
        link.count("client_main_up", self.raw_bytes if round_index == 0 else 0)
        self.model.begin(state.units["model"], task.lr(round_index))
        self.model.load_optimizer_state(state.tensors)
        for planned in task.batches(0, round_index):
            x, y = task.feed.batch(planned)
            losses.add(whole_step(self.model, x, y, planned.key), len(y))
        after = State({"model": self.model.state.clone()}, copied(self.model.optimizer_state()))
        return after, RoundResult(losses.mean, losses.num_samples, link.bytes)

    def models(self, state: State) -> Iterable[UnitState]:
        yield state.units["model"]


def _sample_bytes(task: Task) -> int:
    """Raw data travel as the floats (or the tokens) that a cut of 0 would send."""
    images = task.feed.images
    return int(np.prod(images.shape)) * images.floats(images.x[:1]).dtype.itemsize
