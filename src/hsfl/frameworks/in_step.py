"""One server side for all clients, which go in step: in every step each sends its smashed data and gets a gradient.

SplitFed V2: Thapa, Chamikara, Camtepe, Sun, "SplitFed: When Federated Learning Meets Split Learning" (2022).
PSL: Jeon, Kim, "Privacy-sensitive parallel split learning" (2020).
CPSL: Wu, Li, Qu, Zhou, Shen, Zhuang, Li, Shi, "Split Learning over Wireless Networks: Parallel Design and Resource
Management" (2023).

They differ in how the server serves a step (one update per client, or one on the concatenated batch) and in what
becomes of the heads. A client joins its first N_k steps.

In a joint step of N samples, n_k of them a client's, the client receives the gradient of the *joint* mean loss times N/n_k, so
that its learning rate does not shrink with the number of clients. Where no unit of the server side couples samples, that
is the gradient of the mean loss over the client's own batch. With BatchNorm there it is not: the statistics are those of
the joint batch, so every client's loss depends on all smashed data, and the others' losses have a part in the gradient.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hsfl.config import RunConfig
from hsfl.frameworks.base import Arrangement, Base, RoundResult, State, Task, join, shared_cut
from hsfl.models.state import UnitState
from hsfl.network.clusters import random_clusters
from hsfl.planning.clusters import choose_clusters, plans_one_cut
from hsfl.planning.round_clock import Extras
from hsfl.planning.turns import plan_one_cut
from hsfl.planning.world import World
from hsfl.rng import stream
from hsfl.training.aggregate import PartialSum
from hsfl.training.link import Link, Losses
from hsfl.training.roles import Session
from hsfl.training.step import Part, client_backward

Tensors = dict[int, Tensor]  # by client


@dataclass
class Work:
    """A round under way: its losses and bytes, and what lasts from one turn to the next."""

    round_index: int
    lr: float
    losses: Losses = field(default_factory=Losses)
    link: Link = field(default_factory=Link)
    tail_start: int | None = None  # the first unit of the server side whose optimiser is at work
    own_heads: dict[str, UnitState] = field(default_factory=dict)  # heads of clients that keep their own

    def result(self) -> RoundResult:
        return RoundResult(self.losses.mean, self.losses.num_samples, self.link.bytes)


class InStep(Base):
    """The loop over steps. Subclasses say how the server serves a step, and how heads are updated."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.cuts = self.choose_cuts(task)
        self.heads = [task.part(0, cut) for cut in self.cuts]
        self.tail = task.part(min(self.cuts), task.num_units)

    def choose_cuts(self, task: Task) -> tuple[int, ...]:
        return (shared_cut(task),) * task.num_clients

    def batch_size(self, client: int) -> int:
        return self.task.config.train.batch_size

    def init(self) -> State:
        return State({"model": self.task.initial.clone()})

    def round(self, state: State, kept: Sequence[int], round_index: int) -> tuple[State, RoundResult]:
        work = self.work(state, round_index)
        model = self.turn(work, state.units["model"], kept)
        for k in range(self.task.num_clients):  # dropped clients get the new head too
            work.link.count("client_edge_down", self.head_bytes(k, trained=k in kept))
        return State({"model": model} | work.own_heads), work.result()

    def work(self, state: State, round_index: int) -> Work:
        return Work(round_index, self.task.lr(round_index))

    def turn(self, work: Work, model: UnitState, clients: Sequence[int]) -> UnitState:
        """These clients train the model in step; their heads are averaged by samples."""
        if not clients:
            return model
        self.begin(work, model, clients)
        self.steps(work, clients)
        return self.finish(work, model, clients)

    def begin(self, work: Work, model: UnitState, clients: Sequence[int]) -> None:
        cut = self.cuts[clients[0]]
        if work.tail_start != cut:  # the server side and its optimiser last through the round, unless the cut moves
            self.tail.begin(model[cut : self.task.num_units], work.lr)
            work.tail_start = cut
        for k in clients:
            self.heads[k].begin(model[0:cut], work.lr)

    def finish(self, work: Work, model: UnitState, clients: Sequence[int]) -> UnitState:
        before = model[0 : self.cuts[clients[0]]]
        total = PartialSum.zero(before, sum(map(self.head_weight, clients)))
        for k in clients:
            total.add(self.heads[k].state, self.head_weight(k))
            work.link.count("client_edge_up", self.head_bytes(k, trained=True))
        return join(total.mean(before), self.tail.state)

    def head_weight(self, client: int) -> float:
        return self.task.feed.num_samples(client)

    def head_bytes(self, client: int, trained: bool) -> int:
        """The bytes of a head that travel at the end of the round, up and again down. trained: whether the client trained."""
        return self.heads[client].state.num_bytes

    def steps(self, work: Work, clients: Sequence[int]) -> None:
        round_index = work.round_index
        batches = {k: self.task.batches(k, round_index, self.batch_size(k)) for k in clients}
        for step in range(max(len(plan) for plan in batches.values())):
            smashed: Tensors = {}
            inputs: Tensors = {}
            labels: Tensors = {}
            for k in (k for k in clients if step < len(batches[k])):
                inputs[k], labels[k] = self.task.feed.batch(batches[k][step], k, round_index, step)
                forward = self.heads[k].forward(inputs[k], self.task.key(k, round_index, step))
                smashed[k] = work.link.carry("client_main_up", forward)
            gradients = self.serve(work, smashed, labels, step)
            if self.cuts[clients[0]] > 0:
                gradients = {k: work.link.carry("client_main_down", gradient) for k, gradient in gradients.items()}
                self.update_heads(work, clients, inputs, smashed, gradients)

    def serve(self, work: Work, smashed: Tensors, labels: Tensors, step: int) -> Tensors:
        """One update of the server side on the concatenated batch; to each client the joint gradient times N/n_k."""
        joined = torch.cat([s.detach() for s in smashed.values()]).requires_grad_()
        y = torch.cat(list(labels.values()))
        key = self.task.key(next(iter(smashed)), work.round_index, step)
        loss = F.cross_entropy(self.tail.forward(joined, key), y)
        (loss + self.extra_loss(smashed, labels, work.round_index, step)).backward()
        self.tail.update()
        work.losses.add(loss.detach(), len(y))
        assert joined.grad is not None
        parts = joined.grad.split([len(s) for s in smashed.values()])
        return {k: part * (len(y) / len(part)) for k, part in zip(smashed, parts)}

    def extra_loss(self, smashed: Tensors, labels: Tensors, round_index: int, step: int) -> Tensor | float:
        return 0.0

    def update_heads(
        self, work: Work, clients: Sequence[int], inputs: Tensors, smashed: Tensors, gradients: Tensors
    ) -> None:
        for k, gradient in gradients.items():
            client_backward(self.heads[k], smashed[k], gradient)

    def models(self, state: State) -> Iterable[UnitState]:
        yield state.units["model"]


class SplitFedV2(InStep):
    """SplitFed V2: in every step the server makes an update for each client, in random order."""

    def serve(self, work: Work, smashed: Tensors, labels: Tensors, step: int) -> Tensors:
        order = stream(self.task.config.seed, "server order", work.round_index, step).permutation(list(smashed))
        session, gradients = Session(self.tail), {}
        for k in order.tolist():
            key = self.task.key(k, work.round_index, step)
            loss, gradients[k] = session.step(smashed[k], labels[k], key, need_gradient=True)
            work.losses.add(loss, len(labels[k]))
        return gradients


class PSL(InStep):
    """Batch sizes in proportion to samples; the heads' weight gradients averaged in every step: heads stay identical.

    With `options.psl.cut_gradient` the gradient at the cut is averaged instead, position by position in the batch; clients
    then keep heads of their own.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.own_heads = task.config.options.psl.cut_gradient
        counts = [task.feed.num_samples(k) for k in range(task.num_clients)]
        whole = task.num_clients * task.config.train.batch_size / sum(counts)
        self.batch_sizes = [max(2, round(whole * n)) for n in counts]  # BatchNorm needs two

    def extras(self) -> Extras:
        return Extras(heads_travel=not self.own_heads)

    def batch_size(self, client: int) -> int:
        return self.batch_sizes[client]

    def head_weight(self, client: int) -> float:
        return self.batch_sizes[client]

    def init(self) -> State:
        initial = self.task.initial
        if not self.own_heads:
            return super().init()
        return State({"model": initial.clone()} | {f"head{k}": initial[0:c].clone() for k, c in enumerate(self.cuts)})

    def work(self, state: State, round_index: int) -> Work:
        own = {name: head for name, head in state.units.items() if name.startswith("head")}
        return Work(round_index, self.task.lr(round_index), own_heads=own)

    def head_bytes(self, client: int, trained: bool) -> int:
        """Clients that trained have the parameters already, through the gradients; only BatchNorm's buffers travel."""
        if self.own_heads:
            return 0
        whole = super().head_bytes(client, trained)
        return whole - self._parameter_bytes(client) if trained else whole

    def _parameter_bytes(self, client: int) -> int:
        return sum(parameter.nbytes for parameter in self.heads[client].parameters())

    def begin(self, work: Work, model: UnitState, clients: Sequence[int]) -> None:
        super().begin(work, model, clients)
        if self.own_heads:
            for k in clients:
                self.heads[k].begin(work.own_heads[f"head{k}"], work.lr)

    def finish(self, work: Work, model: UnitState, clients: Sequence[int]) -> UnitState:
        if self.own_heads:
            work.own_heads |= {f"head{k}": self.heads[k].state.clone() for k in clients}
        return super().finish(work, model, clients)

    def update_heads(
        self, work: Work, clients: Sequence[int], inputs: Tensors, smashed: Tensors, gradients: Tensors
    ) -> None:
        if self.own_heads:
            gradients = _average_by_position(gradients)
            return super().update_heads(work, clients, inputs, smashed, gradients)
        if not all(smashed[k].requires_grad for k in gradients):
            return  # no head has a weight to train
        for k, gradient in gradients.items():
            smashed[k].backward(gradient)
        active = [self.heads[k] for k in gradients]
        _average_gradients(active, [len(g) for g in gradients.values()], [self.heads[k] for k in clients])
        work.link.count("client_edge_up", sum(self._parameter_bytes(k) for k in gradients))
        work.link.count("client_edge_down", sum(self._parameter_bytes(k) for k in clients))
        for k in clients:
            self.heads[k].update()

    def models(self, state: State) -> Iterable[UnitState]:
        model = state.units["model"]
        if not self.own_heads:
            yield model
        else:
            for k, cut in enumerate(self.cuts):
                yield join(state.units[f"head{k}"], model[cut : model.stop])


def _average_gradients(givers: list[Part], weights: list[int], takers: list[Part]) -> None:
    """Each taker's weight gradients become the givers' mean, weighted by samples in the batch."""
    total = sum(weights)
    means = []
    for column in zip(*(part.parameters() for part in givers)):
        grads = [parameter.grad for parameter in column if parameter.grad is not None]
        means.append(sum(grad * (w / total) for grad, w in zip(grads, weights)) if grads else None)
    for part in takers:
        for parameter, mean in zip(part.parameters(), means):
            parameter.grad = mean


def _average_by_position(gradients: Tensors) -> Tensors:
    """Sample i of every batch gets the mean gradient of samples i, weighted by the batches' sizes."""
    longest = max(len(gradient) for gradient in gradients.values())
    shape = (longest, *next(iter(gradients.values())).shape[1:])
    first = next(iter(gradients.values()))
    total, weight = first.new_zeros(shape), first.new_zeros(longest, *(1 for _ in shape[1:]))
    for gradient in gradients.values():
        total[: len(gradient)] += gradient * len(gradient)
        weight[: len(gradient)] += len(gradient)
    mean = total / weight
    return {k: mean[: len(gradient)] for k, gradient in gradients.items()}


class CPSL(InStep):
    """CPSL: clusters take turns. In a turn the clients go in step; at its end their heads are averaged and handed on to the
    next cluster, together with the server side."""

    def __init__(self, task: Task) -> None:
        self.clusters = clusters_of(task)
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
                work.link.carry("edge_main", model[low:high])  # units that change sides between clusters
                model = self.turn(work, model, clients)
                for k in clients:
                    work.link.carry("client_edge_down", model[0 : self.cuts[k]])
                cut = self.cuts[clients[0]]
        return State({"model": model}), work.result()


def clusters_of(task: Task) -> list[list[int]]:
    """The clients of each cluster, the same in every round; random ones where the task names none."""
    numbers = task.clusters
    if numbers is None:
        num_clusters = min(task.config.options.cpsl.clusters, task.num_clients)
        rng = stream(task.config.seed, "clusters")
        numbers = tuple(random_clusters(task.num_clients, num_clusters, rng).tolist())
    return [[k for k in range(task.num_clients) if numbers[k] == number] for number in sorted(set(numbers))]
