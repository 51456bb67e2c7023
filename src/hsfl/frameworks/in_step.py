"""One server side for all clients, which go in step: in every step each sends its smashed data and gets a gradient.

SplitFed V2: Thapa, Chamikara, Camtepe, Sun, "SplitFed: When Federated Learning Meets Split Learning" (2022).

SplitFed V2, PSL, CPSL and LocFedMix-SL share this loop. They differ in how the server serves a step (one update for each client, or
one update on the concatenated batch) and in what becomes of the heads. Client k joins the first N_k steps, one for each of its
batches.

In a joint step of N samples, n_k of them a client's, the client receives the gradient of the *joint* mean loss times N/n_k, so
that its learning rate does not shrink with the number of clients. Where no unit of the server side couples samples, that
is the gradient of the mean loss over the client's own batch. With BatchNorm there it is not: the statistics are those of
the joint batch, so every client's loss depends on all smashed data, and the others' losses have a part in the gradient.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hsfl.config import RunConfig
from hsfl.frameworks.framework import FrameworkBase, RoundResult, State, Task, join, shared_cut
from hsfl.models.state import TensorsByClient, UnitState
from hsfl.rng import stream
from hsfl.training.aggregate import PartialSum
from hsfl.training.link import Link, Losses
from hsfl.training.roles import Session
from hsfl.training.step import StepKey, apply_gradient_on_client

Tensors = dict[int, Tensor]  # by client
Keys = dict[int, StepKey]  # by client


@dataclass
class Work:
    """A round under way: its losses and bytes, and what lasts from one turn to the next."""

    round_index: int
    lr: float
    losses: Losses = field(default_factory=Losses)
    link: Link = field(default_factory=Link)  # with the codecs of the settings
    tail_start: int | None = None  # the first unit of the server side whose optimiser is at work
    own_heads: dict[str, UnitState] = field(default_factory=dict)  # heads of clients that keep their own
    memory: TensorsByClient = field(default_factory=TensorsByClient)  # what clients remember, who trained in this round

    def remembered(self, client: int) -> dict[str, Tensor]:
        """What a client remembers, to be changed."""
        return self.memory.setdefault(client, {})

    def result(self) -> RoundResult:
        return RoundResult(self.losses.mean, self.losses.num_samples, self.link.bytes)


class InStep(FrameworkBase):
    """The loop over steps. Subclasses say how the server serves a step, and how heads are updated."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.cuts = self.choose_cuts(task)
        self.heads = [task.part(0, cut) for cut in self.cuts]
        self.tail = task.part(min(self.cuts), task.num_units)

    def choose_cuts(self, task: Task) -> tuple[int, ...]:
        return (shared_cut(task),) * task.num_clients

    @classmethod
    def why_averaged(cls, config: RunConfig) -> str | None:
        return None

    def init(self) -> State:
        return State({"model": self.task.initial.clone()})

    def round(self, state: State, kept: Sequence[int], round_index: int) -> tuple[State, RoundResult]:
        work = self.work(state, round_index)
        model = self.turn(work, state.units["model"], kept)
        for k in range(self.task.num_clients):  # dropped clients get the new head too
            work.link.count("client_edge_down", self.head_bytes(k, trained=k in kept))
        return State({"model": model} | work.own_heads, memory=work.memory), work.result()

    def work(self, state: State, round_index: int) -> Work:
        memory = TensorsByClient({client: dict(tensors) for client, tensors in state.memory.items()})
        return Work(round_index, self.task.lr(round_index), link=self.task.link(), memory=memory)

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
            self.heads[k].begin(self.arrived(work, "client_edge_down", model[0:cut]), work.lr)

    def finish(self, work: Work, model: UnitState, clients: Sequence[int]) -> UnitState:
        before = model[0 : self.cuts[clients[0]]]
        total = PartialSum.zero(before, sum(map(self.head_weight, clients)))
        for k in clients:
            total.add(self.head_up(work, k, before), self.head_weight(k))
        return join(total.mean(before), self.tail.state)

    def arrived(self, work: Work, route: str, head: UnitState) -> UnitState:
        """A head as it comes out of the link; its bytes are counted at the end of the round."""
        return work.link.arrive(route, head)

    def head_up(self, work: Work, client: int, sent: UnitState) -> UnitState:
        """A trained head as it comes out of the link at the edge server. sent: the head that the client was given."""
        head, num_bytes = self.heads[client].state, self.head_bytes(client, trained=True)
        if work.link.codecs.model is None:
            work.link.count("client_edge_up", num_bytes)
            return self.arrived(work, "client_edge_up", head)
        work.link.count("client_edge_up", num_bytes - head.num_bytes)  # what travels with the head is not coded
        return work.link.carry_head("client_edge_up", sent, head, work.remembered(client))

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
            arrived: Tensors = {}
            inputs: Tensors = {}
            labels: Tensors = {}
            keys: Keys = {}
            for k in (k for k in clients if step < len(batches[k])):
                inputs[k], labels[k] = self.task.feed.batch(batches[k][step])
                keys[k] = batches[k][step].key
                smashed[k] = self.heads[k].forward(inputs[k], keys[k])
                arrived[k] = work.link.carry("client_main_up", smashed[k], keys[k])
            gradients = self.serve(work, arrived, labels, keys, step)
            if self.cuts[clients[0]] > 0:
                gradients = {
                    k: work.link.carry("client_main_down", gradient, keys[k]) for k, gradient in gradients.items()
                }
                self.update_heads(work, clients, inputs, smashed, gradients)

    def serve(self, work: Work, smashed: Tensors, labels: Tensors, keys: Keys, step: int) -> Tensors:
        """One update of the server side on the concatenated batch; to each client the joint gradient times N/n_k."""
        joined = torch.cat([s.detach() for s in smashed.values()])
        joined.requires_grad_(joined.is_floating_point())  # raw tokens, at a cut of 0, have no gradient
        y = torch.cat(list(labels.values()))
        loss = self.tail.goal(self.tail.forward(joined, keys[next(iter(smashed))]), y)
        (loss + self.extra_loss(work, smashed, labels, keys, step)).backward()
        self.tail.update()
        work.losses.add(loss.detach(), len(y))
        if joined.grad is None:
            return {}
        gradients = joined.grad.split([len(s) for s in smashed.values()])
        return {k: gradient * (len(y) / len(gradient)) for k, gradient in zip(smashed, gradients)}

    def extra_loss(self, work: Work, smashed: Tensors, labels: Tensors, keys: Keys, step: int) -> Tensor | float:
        return 0.0

    def update_heads(
        self, work: Work, clients: Sequence[int], inputs: Tensors, smashed: Tensors, gradients: Tensors
    ) -> None:
        for k, gradient in gradients.items():
            apply_gradient_on_client(self.heads[k], smashed[k], gradient)

    def models(self, state: State) -> Iterable[UnitState]:
        yield state.units["model"]


class SplitFedV2(InStep):
    """SplitFed V2: in every step the server makes an update for each client, in random order."""

    def serve(self, work: Work, smashed: Tensors, labels: Tensors, keys: Keys, step: int) -> Tensors:
        order = stream(self.task.config.seed, "server order", work.round_index, step).permutation(list(smashed))
        session, gradients = Session(self.tail), {}
        for k in order.tolist():
            loss, gradients[k] = session.step(smashed[k], labels[k], keys[k], need_gradient=True)
            work.losses.add(loss, len(labels[k]))
        return gradients
