"""CPSL: Wu, Li, Qu, Zhou, Shen, Zhuang, Li, Shi, "Split Learning over Wireless Networks: Parallel Design and Resource
Management" (2023).

Clusters of clients take turns; within a turn clients go in step (`in_step`).
"""

from collections.abc import Sequence

import numpy as np

from hsfl.config import RunConfig
from hsfl.frameworks.framework import Arrangement, RoundResult, State, Task, shared_cut
from hsfl.frameworks.in_step import InStep
from hsfl.network.clusters import random_clusters
from hsfl.planning.rounds.cpsl_policy import choose_clusters, plan_one_cut, plans_one_cut
from hsfl.planning.rounds.round_clock import Extras
from hsfl.planning.world import World
from hsfl.rng import stream


class CPSL(InStep):
    """CPSL: clusters take turns. In a turn the clients go in step; at its end their heads are averaged and handed on to the
    next cluster, together with the server side."""

    hands_on_heads = True

    def __init__(self, task: Task) -> None:
        self.clusters = _clusters_of(task)
        super().__init__(task)

    @classmethod
    def arrange(cls, config: RunConfig, world: World, one_cut: int, num_samples: np.ndarray) -> Arrangement:
        """Clusters, and under CPSL's own policy the best cut for all."""
        cut = min(one_cut, world.cost.num_units - 1)
        if plans_one_cut(config):
            cut = one_cut = plan_one_cut(config, world, cut, num_samples)
        return Arrangement(one_cut, tuple(choose_clusters(config, world, cut, num_samples).tolist()))

    def extras(self) -> Extras:
        members = {k: number for number, cluster in enumerate(self.clusters) for k in cluster}
        return Extras(clusters=tuple(members[k] for k in range(self.task.num_clients)))

    def choose_cuts(self, task: Task) -> tuple[int, ...]:
        cuts = [shared_cut(task)] * task.num_clients
        if task.config.options.cpsl.cut == "cluster":
            for cluster in self.clusters:
                for k in cluster:
                    cuts[k] = min(*(task.cuts[j] for j in cluster), task.num_units - 1)
        return tuple(cuts)

    def round(self, state: State, kept: Sequence[int], round_index: int) -> tuple[State, RoundResult]:
        work, model = self.work(state, round_index), state.units["model"]
        cut = self.cuts[self.clusters[-1 if round_index > 0 else 0][0]]  # where the servers' border lies now
        for cluster in self.clusters:
            clients = [k for k in cluster if k in kept]
            if clients:
                low, high = sorted((cut, self.cuts[clients[0]]))
                moved = model[low:high]  # units that change sides between clusters
                if (arrived := work.link.carry("edge_main", moved)) is not moved:
                    model = model.clone()
                    model[low:high].copy_(arrived)
                model = self.turn(work, model, clients)
                for k in clients:
                    work.link.count("client_edge_down", model[0 : self.cuts[k]].num_bytes)
                cut = self.cuts[clients[0]]
        return State({"model": model}, memory=work.memory), work.result()


def _clusters_of(task: Task) -> list[list[int]]:
    """The clients of each cluster, the same in every round; random ones where the task names none."""
    numbers = task.clusters
    if numbers is None:
        num_clusters = min(task.config.options.cpsl.clusters, task.num_clients)
        rng = stream(task.config.seed, "clusters")
        numbers = tuple(random_clusters(task.num_clients, num_clusters, rng).tolist())
    return [[k for k in range(task.num_clients) if numbers[k] == number] for number in sorted(set(numbers))]
