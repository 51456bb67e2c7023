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

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hsfl.config import RunConfig
from hsfl.frameworks.base import Arrangement, Base, LinkBytes, Losses, RoundResult, State, Task, join, shared_cut
from hsfl.models.state import UnitState
from hsfl.network.clusters import random_clusters
from hsfl.planning.clusters import choose_clusters, plan_one_cut, plans_one_cut
from hsfl.planning.round_clock import Extras
from hsfl.planning.world import World
from hsfl.rng import stream
from hsfl.training.step import Part, client_backward, server_step

Tensors = dict[int, Tensor]  # by client


class InStep(Base):
    """The loop over steps. Subclasses say how the server serves one, and how heads are updated."""

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
        self.losses, self.link = Losses(), LinkBytes()
        model = self.turn(state.units["model"], kept, round_index)
        everyone = range(self.task.num_clients)  # dropped clients get the new head too
        self.link.client_edge_down += sum(self.head_bytes(k, trained=k in kept) for k in everyone)
        return State({"model": model}), RoundResult(self.losses.mean, self.losses.num_samples, self.link)

    def turn(self, model: UnitState, clients: Sequence[int], round_index: int) -> UnitState:
        """These clients train the model in step; their heads are averaged by samples."""
        if not clients:
            return model
        self.begin(model, clients, round_index)
        self.steps(clients, round_index)
        return self.finish(model, clients)

    def begin(self, model: UnitState, clients: Sequence[int], round_index: int) -> None:
        cut, lr = self.cuts[clients[0]], self.task.lr(round_index)
        self.begin_tail(model[cut : self.task.num_units], lr)
        for k in clients:
            self.heads[k].begin(model[0:cut], lr)

    def begin_tail(self, tail: UnitState, lr: float) -> None:
        self.tail.begin(tail, lr)

    def finish(self, model: UnitState, clients: Sequence[int]) -> UnitState:
        total = self.task.zero_sum(0, self.cuts[clients[0]])
        for k in clients:
            total.add(self.heads[k].state, self.head_weight(k))
            self.link.client_edge_up += self.head_bytes(k, trained=True)
        head = total.mean(model[0 : self.cuts[clients[0]]])
        return join(head, self.tail.state)

    def head_weight(self, client: int) -> float:
        return self.task.feed.num_samples(client)

    def head_bytes(self, client: int, trained: bool) -> int:
        """What of a head travels at the end of the round, each way."""
        return self.heads[client].state.num_bytes

    def steps(self, clients: Sequence[int], round_index: int) -> None:
        batches = {k: self.task.batches(k, round_index, self.batch_size(k)) for k in clients}
        for step in range(max(len(plan) for plan in batches.values())):
            smashed: Tensors = {}
            inputs: Tensors = {}
            labels: Tensors = {}
            for k in (k for k in clients if step < len(batches[k])):
                inputs[k], labels[k] = self.task.feed.batch(batches[k][step], k, round_index, step)
                smashed[k] = self.heads[k].forward(inputs[k], self.task.key(k, round_index, step))
                self.link.client_main_up += smashed[k].nbytes
            gradients = self.serve(smashed, labels, round_index, step)
            if self.cuts[clients[0]] > 0:
                self.link.client_main_down += sum(gradient.nbytes for gradient in gradients.values())
                self.update_heads(clients, inputs, smashed, gradients)

    def serve(self, smashed: Tensors, labels: Tensors, round_index: int, step: int) -> Tensors:
        """One update of the server side on the concatenated batch; to each client the joint gradient times N/n_k."""
        joined = torch.cat([s.detach() for s in smashed.values()]).requires_grad_()
        y = torch.cat(list(labels.values()))
        key = self.task.key(next(iter(smashed)), round_index, step)
        loss = F.cross_entropy(self.tail.forward(joined, key), y)
        (loss + self.extra_loss(smashed, labels, round_index, step)).backward()
        self.tail.update()
        self.losses.add(loss.detach(), len(y))
        assert joined.grad is not None
        parts = joined.grad.split([len(s) for s in smashed.values()])
        return {k: part * (len(y) / len(part)) for k, part in zip(smashed, parts)}

    def extra_loss(self, smashed: Tensors, labels: Tensors, round_index: int, step: int) -> Tensor | float:
        return 0.0

    def update_heads(self, clients: Sequence[int], inputs: Tensors, smashed: Tensors, gradients: Tensors) -> None:
        for k, gradient in gradients.items():
            client_backward(self.heads[k], smashed[k], gradient)

    def models(self, state: State) -> Iterable[UnitState]:
        yield state.units["model"]


class SplitFedV2(InStep):
    """In every step the server updates once per client, in random order."""

    def serve(self, smashed: Tensors, labels: Tensors, round_index: int, step: int) -> Tensors:
        order = stream(self.task.config.seed, "server order", round_index, step).permutation(list(smashed))
        gradients: Tensors = {}
        for k in order.tolist():
            key = self.task.key(k, round_index, step)
            loss, gradients[k] = server_step(self.tail, smashed[k], labels[k], key, need_gradient=True)
            self.losses.add(loss, len(labels[k]))
        return gradients


class PSL(InStep):
    """Batch sizes in proportion to samples; the heads' weight gradients averaged in every step: heads stay identical.

    With `psl_cut_gradient` the gradient at the cut is averaged instead, position by position in the batch; clients
    then keep heads of their own.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.own_heads = task.config.options.psl_cut_gradient
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

    def round(self, state: State, kept: Sequence[int], round_index: int) -> tuple[State, RoundResult]:
        self.own = {name: head for name, head in state.units.items() if name.startswith("head")}
        after, result = super().round(state, kept, round_index)
        return State(after.units | self.own), result

    def head_bytes(self, client: int, trained: bool) -> int:
        """Gradients have brought the parameters already to those that trained; BatchNorm's buffers remain."""
        if self.own_heads:
            return 0
        whole = super().head_bytes(client, trained)
        return whole - self._parameter_bytes(client) if trained else whole

    def _parameter_bytes(self, client: int) -> int:
        return sum(parameter.nbytes for parameter in self.heads[client].parameters())

    def begin(self, model: UnitState, clients: Sequence[int], round_index: int) -> None:
        super().begin(model, clients, round_index)
        if self.own_heads:
            for k in clients:
                self.heads[k].begin(self.own[f"head{k}"], self.task.lr(round_index))

    def finish(self, model: UnitState, clients: Sequence[int]) -> UnitState:
        if self.own_heads:
            self.own |= {f"head{k}": self.heads[k].state.clone() for k in clients}
        return super().finish(model, clients)

    def update_heads(self, clients: Sequence[int], inputs: Tensors, smashed: Tensors, gradients: Tensors) -> None:
        if self.own_heads:
            gradients = _average_by_position(gradients)
            return super().update_heads(clients, inputs, smashed, gradients)
        if not all(smashed[k].requires_grad for k in gradients):
            return  # no head has a weight to train
        for k, gradient in gradients.items():
            smashed[k].backward(gradient)
        active = [self.heads[k] for k in gradients]
        _average_gradients(active, [len(g) for g in gradients.values()], [self.heads[k] for k in clients])
        self.link.client_edge_up += sum(self._parameter_bytes(k) for k in gradients)
        self.link.client_edge_down += sum(self._parameter_bytes(k) for k in clients)
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
    """Clusters take turns: in step within a cluster, heads averaged at its end and handed on with the server side."""

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
        if task.config.options.cpsl_cut == "cluster":
            for cluster in self.clusters:
                for k in cluster:
                    cuts[k] = min(*(task.cuts[j] for j in cluster), task.num_units - 1)
        return tuple(cuts)

    def round(self, state: State, kept: Sequence[int], round_index: int) -> tuple[State, RoundResult]:
        self.losses, self.link = Losses(), LinkBytes()
        self.tail_open = False
        model = state.units["model"]
        cut = self.cuts[self.clusters[-1 if round_index > 0 else 0][0]]  # where the servers' border lies now
        for cluster in self.clusters:
            clients = [k for k in cluster if k in kept]
            if clients:
                low, high = sorted((cut, self.cuts[clients[0]]))
                self.link.edge_main += model[low:high].num_bytes  # units that change sides between clusters
                model = self.turn(model, clients, round_index)
                self.link.client_edge_down += sum(model[0 : self.cuts[k]].num_bytes for k in clients)
                cut = self.cuts[clients[0]]
        return State({"model": model}), RoundResult(self.losses.mean, self.losses.num_samples, self.link)

    def begin_tail(self, tail: UnitState, lr: float) -> None:
        """The server side goes from cluster to cluster with its optimiser, unless the cut moves."""
        if not self.tail_open or self.tail.start != tail.start:
            self.tail.begin(tail, lr)
        self.tail_open = True


def clusters_of(task: Task) -> list[list[int]]:
    """The clients of each cluster, the same in every round; random ones where the task names none."""
    numbers = task.clusters
    if numbers is None:
        num_clusters = min(task.config.options.cpsl_clusters, task.num_clients)
        rng = stream(task.config.seed, "clusters")
        numbers = tuple(random_clusters(task.num_clients, num_clusters, rng).tolist())
    return [[k for k in range(task.num_clients) if numbers[k] == number] for number in sorted(set(numbers))]
