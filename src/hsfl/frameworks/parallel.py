"""A copy of the server side for every client, all clients in parallel, one weighted average a round.

HSFL: Sun, Hu, Teng, Cai, "Split Federated Learning Over Heterogeneous Edge Devices: Algorithm and Optimization".
SplitFed V1: Thapa, Chamikara, Camtepe, Sun, "SplitFed: When Federated Learning Meets Split Learning" (2022).
FSL: Turina, Zhang, Esposito, Matta, "Federated or Split? A Performance and Privacy Analysis of Hybrid Split and
Federated Learning Architectures" (2021).
FL: McMahan, Moore, Ramage, Hampson, Arcas, "Communication-Efficient Learning of Deep Networks from Decentralized
Data" (2016), which is the same round with every cut at num_units.

They differ in the cuts and in who is averaged. Three roles pass only what the protocol passes: clients send smashed
data and head weights, the main server sends gradients, the edge server sends heads, and the two servers swap partial
sums of the units that both hold. In this simulation one working copy serves all clients in turn.
"""

from collections.abc import Iterable, Sequence

from torch import Tensor

from hsfl.frameworks.base import Base, LinkBytes, Losses, RoundResult, State, Task, join
from hsfl.models.state import UnitState
from hsfl.planning.round_clock import Extras
from hsfl.training.aggregate import PartialSum, exchange
from hsfl.training.step import Part, StepKey, client_backward, server_step, whole_step


class EdgeServer:
    """Holds units `[0, max cut)`: hands every client its head, sums the heads that come back."""

    def __init__(self, state: UnitState, total: PartialSum) -> None:
        self.state, self.total = state, total

    def head(self, cut: int) -> UnitState:
        return self.state[0:cut]

    def receive(self, head: UnitState, weight: float) -> None:
        self.total.add(head, weight)


class MainServer:
    """Holds units `[min cut, num_units)`: trains each client's tail on its smashed data, sums the tails."""

    def __init__(self, state: UnitState, total: PartialSum, part: Part) -> None:
        self.state, self.total, self.part = state, total, part

    def open_copy(self, cut: int, lr: float) -> None:
        """A copy of the server side for the client that comes next."""
        self.part.begin(self.state[cut : self.state.stop], lr)

    def train(self, smashed: Tensor, y: Tensor, key: StepKey, need_gradient: bool) -> tuple[Tensor, Tensor]:
        return server_step(self.part, smashed, y, key, need_gradient)

    def close_copy(self, weight: float) -> None:
        self.total.add(self.part.state, weight)


class Client:
    """Holds its data and units `[0, cut)`."""

    def __init__(self, task: Task, index: int, part: Part) -> None:
        self.task, self.index, self.part = task, index, part

    def receive(self, head: UnitState, lr: float) -> None:
        self.part.begin(head, lr)

    def train(self, main: MainServer, round_index: int, losses: Losses, link: LinkBytes) -> None:
        """All batches of the round: stages 1 and 2 of the paper."""
        for step, indices in enumerate(self.task.batches(self.index, round_index)):
            x, y = self.task.feed.batch(indices, self.index, round_index, step)
            losses.add(self._step(x, y, main, self.task.key(self.index, round_index, step), link), len(y))

    def _step(self, x: Tensor, y: Tensor, main: MainServer, key: StepKey, link: LinkBytes) -> Tensor:
        if self.part.stop == self.task.num_units:
            return whole_step(self.part, x, y, key)
        has_head = self.part.stop > 0
        smashed = self.part.forward(x, key)
        loss, gradient = main.train(smashed, y, key, need_gradient=has_head)
        link.client_main_up += smashed.nbytes
        link.client_main_down += gradient.nbytes
        if has_head:
            client_backward(self.part, smashed, gradient)
        return loss


class CopyPerClient(Base):
    """The round that HSFL, SplitFed V1, FSL and FL share."""

    average_heads = True  # False: clients keep their heads (FSL, `server`)

    def __init__(self, task: Task) -> None:
        self.task = task
        self.cuts = self.choose_cuts(task)
        self.min_cut, self.max_cut = min(self.cuts), max(self.cuts)
        self.head_part = task.part(0, self.max_cut)
        self.tail_part = task.part(self.min_cut, task.num_units)

    def choose_cuts(self, task: Task) -> tuple[int, ...]:
        return task.cuts

    def extras(self) -> Extras:
        return Extras(heads_travel=self.average_heads, away=self.task.away)

    def init(self) -> State:
        initial, cuts = self.task.initial, self.cuts
        units = {"main": initial[self.min_cut : self.task.num_units].clone()}
        if self.average_heads:
            return State(units | {"edge": initial[0 : self.max_cut].clone()})
        return State(units | {f"head{k}": initial[0:cut].clone() for k, cut in enumerate(cuts)})

    def round(self, state: State, kept: Sequence[int], round_index: int) -> tuple[State, RoundResult]:
        task, lr = self.task, self.task.lr(round_index)
        losses, link = Losses(), LinkBytes()
        main = MainServer(state.units["main"], task.zero_sum(self.min_cut, task.num_units), self.tail_part)
        heads = _EdgeHeads(self, state) if self.average_heads else _OwnHeads(state)
        for k in kept:
            client, weight = Client(task, k, self.head_part), float(task.feed.num_samples(k))
            client.receive(heads.give(k, self.cuts[k]), lr)
            main.open_copy(self.cuts[k], lr)
            client.train(main, round_index, losses, link)
            heads.take(k, client.part.state, weight, link)
            main.close_copy(weight)
        units = heads.close(main, link)
        units["main"] = main.total.mean(main.state)
        return State(units), RoundResult(losses.mean, losses.num_samples, link)

    def models(self, state: State) -> Iterable[UnitState]:
        main = state.units["main"]
        if self.average_heads:
            yield join(state.units["edge"], main)
        else:
            for k, cut in enumerate(self.cuts):
                yield join(state.units[f"head{k}"], main[cut : main.stop])


class _EdgeHeads:
    """Stage 3 of the paper: heads come back to the edge server, are averaged and handed out again."""

    def __init__(self, framework: CopyPerClient, state: State) -> None:
        self.cuts = [cut for k, cut in enumerate(framework.cuts) if k not in framework.task.away]
        self.common = (framework.min_cut, framework.max_cut)
        self.edge = EdgeServer(state.units["edge"], framework.task.zero_sum(0, framework.max_cut))

    def give(self, client: int, cut: int) -> UnitState:
        return self.edge.head(cut)

    def take(self, client: int, head: UnitState, weight: float, link: LinkBytes) -> None:
        self.edge.receive(head, weight)
        link.client_edge_up += head.num_bytes

    def close(self, main: MainServer, link: LinkBytes) -> dict[str, UnitState]:
        link.edge_main += exchange(self.edge.total, main.total, *self.common)
        edge = self.edge.total.mean(self.edge.state)
        link.client_edge_down += sum(edge[0:cut].num_bytes for cut in self.cuts)  # dropped clients get it too
        return {"edge": edge}


class _OwnHeads:
    """Every client keeps its head: no head travels."""

    def __init__(self, state: State) -> None:
        self.heads = {name: head for name, head in state.units.items() if name.startswith("head")}

    def give(self, client: int, cut: int) -> UnitState:
        return self.heads[f"head{client}"]

    def take(self, client: int, head: UnitState, weight: float, link: LinkBytes) -> None:
        self.heads[f"head{client}"] = head.clone()

    def close(self, main: MainServer, link: LinkBytes) -> dict[str, UnitState]:
        return self.heads


class HSFL(CopyPerClient):
    """Every client has a cut of its own."""


class SplitFedV1(CopyPerClient):
    """One cut for all."""

    def choose_cuts(self, task: Task) -> tuple[int, ...]:
        return (task.one_cut,) * task.num_clients


class FSL(SplitFedV1):
    """As SplitFed V1, each client's server side on a server of its own; heads averaged or not."""

    def __init__(self, task: Task) -> None:
        self.average_heads = task.config.options.fsl_average == "both"
        super().__init__(task)
