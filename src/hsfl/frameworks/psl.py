"""PSL: Jeon, Kim, "Privacy-sensitive parallel split learning" (2020).

Clients go in step (`in_step`), and the weight gradients of their heads are averaged in every step, so that all heads stay the same.
"""

from collections.abc import Iterable, Sequence

import torch

from hsfl.config import RunConfig
from hsfl.frameworks.framework import State, Task, join
from hsfl.frameworks.in_step import InStep, Tensors, Work
from hsfl.models.state import UnitState
from hsfl.planning.rounds.round_clock import Extras
from hsfl.training.link import Link
from hsfl.training.step import Part


class PSL(InStep):
    """PSL: every client's batches are in proportion to its samples, so that all clients make equally many steps.

    With `options.psl.cut_gradient` the gradient at the cut is averaged instead, position by position in the batch; clients
    then keep heads of their own.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.own_heads = task.config.options.psl.cut_gradient
        counts = [task.feed.num_samples(k) for k in range(task.num_clients)]
        whole = task.num_clients * task.config.train.batch_size / sum(counts)
        self.batch_sizes = [max(2, round(whole * n)) for n in counts]  # BatchNorm needs two

    @classmethod
    def why_averaged(cls, config: RunConfig) -> str | None:
        return "options.psl.cut_gradient is true, so clients keep heads" if config.options.psl.cut_gradient else None

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
        work = super().work(state, round_index)
        work.own_heads |= {name: head for name, head in state.units.items() if name.startswith("head")}
        return work

    def head_bytes(self, client: int, trained: bool) -> int:
        """Clients that trained have the parameters already, through the gradients; only BatchNorm's buffers travel."""
        if self.own_heads:
            return 0
        whole = super().head_bytes(client, trained)
        return whole - self._parameter_bytes(client) if trained else whole

    def arrived(self, work: Work, route: str, head: UnitState) -> UnitState:
        """Heads that clients keep do not travel."""
        return head if self.own_heads else super().arrived(work, route, head)

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
        active, takers = [self.heads[k] for k in gradients], [self.heads[k] for k in clients]
        self._send_gradients(work, gradients)
        _average_gradients(active, [len(g) for g in gradients.values()], takers)
        _carry_gradients(work.link, "client_edge_down", takers)
        work.link.count("client_edge_down", sum(self._parameter_bytes(k) for k in clients))
        for k in clients:
            self.heads[k].update()

    def _send_gradients(self, work: Work, clients: Iterable[int]) -> None:
        """Replace the weight gradients of these clients by what comes out of the link at the edge server."""
        if work.link.codecs.model is None:
            _carry_gradients(work.link, "client_edge_up", [self.heads[k] for k in clients])
            work.link.count("client_edge_up", sum(self._parameter_bytes(k) for k in clients))
            return
        for k in clients:
            parameters = self.heads[k].parameters()
            sent = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            arrived = work.link.carry_gradients("client_edge_up", sent, work.remembered(k))
            for parameter, gradient in zip(parameters, arrived):
                parameter.grad = None if parameter.grad is None else gradient

    def head_up(self, work: Work, client: int, sent: UnitState) -> UnitState:
        """All heads have the same parameters already, and buffers are not coded."""
        work.link.count("client_edge_up", self.head_bytes(client, trained=True))
        return self.arrived(work, "client_edge_up", self.heads[client].state)

    def models(self, state: State) -> Iterable[UnitState]:
        model = state.units["model"]
        if not self.own_heads:
            yield model
        else:
            for k, cut in enumerate(self.cuts):
                yield join(state.units[f"head{k}"], model[cut : model.stop])


def _carry_gradients(link: Link, route: str, heads: list[Part]) -> None:
    """Replace the weight gradients of these heads by what comes out of the link."""
    for head in heads:
        for parameter in head.parameters():
            if parameter.grad is not None:
                parameter.grad = link.arrive(route, parameter.grad)


def _average_gradients(givers: list[Part], weights: list[int], takers: list[Part]) -> None:
    """Each taker's weight gradients become the givers' mean, weighted by samples in the batch."""
    total = sum(weights)
    means = []
    for column in zip(*(head.parameters() for head in givers)):
        grads = [parameter.grad for parameter in column if parameter.grad is not None]
        means.append(sum(grad * (w / total) for grad, w in zip(grads, weights)) if grads else None)
    for head in takers:
        for parameter, mean in zip(head.parameters(), means):
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
