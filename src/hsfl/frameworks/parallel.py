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

from hsfl.frameworks.base import Base, RoundResult, State, Task, join
from hsfl.models.state import UnitState
from hsfl.planning.round_clock import Extras
from hsfl.training.link import Link, Losses
from hsfl.training.roles import Client, EdgeServer, MainServer, agree, swap


class CopyPerClient(Base):
    """The round that HSFL, SplitFed V1, FSL and FL share."""

    copy_per_client = True
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
        """One client after another opens a session at the main server; then the servers swap sums and average."""
        task, lr, losses, link = self.task, self.task.lr(round_index), Losses(), Link()
        main = MainServer(state.units["main"], task.zero_sum(state.units["main"]), self.tail_part)
        heads = _EdgeHeads(self, state) if self.average_heads else _OwnHeads(state)
        for k in kept:
            data, cut = task.data(k), self.cuts[k]
            client = Client(data, self.head_part, task.num_units)
            client.receive(heads.give(k, cut), lr)
            session = main.open(cut, lr)
            head, own = client.train(session, round_index, link)
            losses.merge(own)
            main.finish(k, session.part.state, float(data.num_samples))
            heads.take(k, head, float(data.num_samples), main, link)
        units = heads.close(main, link)
        units["main"] = main.close()
        return State(units), RoundResult(losses.mean, losses.num_samples, link.bytes)

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
        self.edge = EdgeServer(state.units["edge"], framework.task.zero_sum(state.units["edge"]))

    def give(self, client: int, cut: int) -> UnitState:
        return self.edge.head(cut)

    def take(self, client: int, head: UnitState, weight: float, main: MainServer, link: Link) -> None:
        """The head arrives; the client counts once both servers have its side."""
        self.edge.finish(client, link.carry("client_edge_up", head), weight)
        both = agree(main, self.edge)
        main.commit(both)
        self.edge.commit(both)

    def close(self, main: MainServer, link: Link) -> dict[str, UnitState]:
        swap(main, self.edge, *self.common, link)
        edge = self.edge.close()
        for cut in self.cuts:  # dropped clients get the new head too
            link.carry("client_edge_down", edge[0:cut])
        return {"edge": edge}


class _OwnHeads:
    """Every client keeps its head: no head travels."""

    def __init__(self, state: State) -> None:
        self.heads = {name: head for name, head in state.units.items() if name.startswith("head")}

    def give(self, client: int, cut: int) -> UnitState:
        return self.heads[f"head{client}"]

    def take(self, client: int, head: UnitState, weight: float, main: MainServer, link: Link) -> None:
        self.heads[f"head{client}"] = head.clone()
        main.commit([client])

    def close(self, main: MainServer, link: Link) -> dict[str, UnitState]:
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
        self.average_heads = task.config.options.fsl.average == "both"
        super().__init__(task)
