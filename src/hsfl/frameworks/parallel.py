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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hsfl.frameworks.base import Base, RoundResult, State, Task, join
from hsfl.models.state import UnitState
from hsfl.planning.round_clock import Extras
from hsfl.training.aggregate import PartialSum
from hsfl.training.link import Link, LinkBytes, Losses
from hsfl.training.roles import Client, EdgeServer, MainServer, agree, swap


@dataclass(frozen=True)
class Sums:
    """What the two servers have summed of a round; no edge sum where clients keep their heads."""

    main: PartialSum
    edge: PartialSum | None

    def merge(self, other: "Sums") -> None:
        """Count in the sums of another part of the round."""
        self.main.merge(other.main)
        if self.edge is not None and other.edge is not None:
            self.edge.merge(other.edge)


@dataclass(frozen=True)
class Shard:
    """What some clients of a round gave. Shards can be trained anywhere and joined in any order."""

    sums: Sums
    heads: dict[int, UnitState]  # by client, where clients keep them
    losses: Losses
    bytes: LinkBytes

    def merge(self, other: "Shard") -> None:
        """Count in another part of the round."""
        self.sums.merge(other.sums)
        self.heads.update(other.heads)
        self.losses.merge(other.losses)
        self.bytes.merge(other.bytes)


class CopyPerClient(Base):
    """The round that HSFL, SplitFed V1, FSL and FL share."""

    copy_per_client = True
    average_heads = True  # False if clients keep their heads (FSL with `average = "server"`)

    spread: Callable[[State, Sequence[int], int], Sequence[Shard]] | None = (
        None  # an engine that trains a round's shards
    )

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
        """Every kept client trains; then the servers swap sums and average."""
        spread = self.spread
        if spread is None:
            shards: Sequence[Shard] = [self.train(state, kept, round_index, self.task.num_samples(kept))]
        else:
            shards = spread(state, kept, round_index)
        return self.finish(state, shards, self.task.receivers(round_index))

    def train(self, state: State, clients: Iterable[int], round_index: int, round_samples: int) -> Shard:
        """Some of the round's clients, one after another, each with a session at the main server.

        round_samples: of all clients that take part in the round, wherever they are trained.
        """
        task, lr, losses, link = self.task, self.task.lr(round_index), Losses(), Link()
        weights = task.weights(round_index)
        sums = self.zero_sums(state, round_samples)
        main = MainServer(state.units["main"], sums.main, self.tail_part)
        heads = _EdgeHeads(state, sums.edge) if sums.edge is not None else _OwnHeads(state)
        for k in clients:
            data, cut = task.data(k), self.cuts[k]
            client = Client(data, self.head_part, task.num_units)
            client.receive(heads.give(k, cut, link), lr)
            session = main.open(cut, lr)
            head, own = client.train(session, round_index, link)
            losses.merge(own)
            main.finish(k, session.part.state, float(weights[k]))
            heads.take(k, head, float(weights[k]), main, link)
        return Shard(sums, heads.kept, losses, link.bytes)

    def zero_sums(self, state: State, round_samples: int) -> Sums:
        """Empty sums of both servers for a round that starts from this state, with so many samples."""
        most = self.task.most_weight(round_samples)
        edge = PartialSum.zero(state.units["edge"], most) if self.average_heads else None
        return Sums(PartialSum.zero(state.units["main"], most), edge)

    def finish(self, state: State, shards: Sequence[Shard], receivers: np.ndarray) -> tuple[State, RoundResult]:
        """The shards of a round are joined, in whatever order they come; the servers swap sums and average.

        receivers: the clients that get the new heads.
        """
        whole, link = shards[0], Link()
        for shard in shards[1:]:
            whole.merge(shard)
        link.bytes.merge(whole.bytes)
        sums, losses = whole.sums, whole.losses
        main = MainServer(state.units["main"], sums.main, self.tail_part)
        units = {name: head for name, head in state.units.items() if name.startswith("head")}
        units |= {f"head{k}": head for k, head in whole.heads.items()}
        if sums.edge is not None:
            edge = EdgeServer(state.units["edge"], sums.edge)
            swap(main, edge, self.min_cut, self.max_cut, link)
            units["edge"] = edge.close()
            for cut, count in enumerate(np.bincount(np.array(self.cuts)[receivers])):
                link.count("client_edge_down", int(count) * units["edge"][0:cut].num_bytes)  # to dropped clients, too
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
    """Stage 3 of the paper: heads come back to the edge server, which sums them."""

    def __init__(self, state: State, total: PartialSum) -> None:
        self.kept: dict[int, UnitState] = {}  # no client keeps its head
        self.edge = EdgeServer(state.units["edge"], total)

    def give(self, client: int, cut: int, link: Link) -> UnitState:
        return link.arrive("client_edge_down", self.edge.head(cut))  # its bytes were counted when it was made

    def take(self, client: int, head: UnitState, weight: float, main: MainServer, link: Link) -> None:
        """Take a trained head. The client counts as soon as both servers have its side."""
        self.edge.finish(client, link.carry("client_edge_up", head), weight)
        both = agree(main, self.edge)
        main.commit(both)
        self.edge.commit(both)


class _OwnHeads:
    """Every client keeps its head: no head travels."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.kept: dict[int, UnitState] = {}

    def give(self, client: int, cut: int, link: Link) -> UnitState:
        return self.state.units[f"head{client}"]

    def take(self, client: int, head: UnitState, weight: float, main: MainServer, link: Link) -> None:
        self.kept[client] = head.clone()
        main.commit([client])


class HSFL(CopyPerClient):
    """HSFL: every client has a cut of its own."""


class SplitFedV1(CopyPerClient):
    """SplitFed V1: one cut for all."""

    def choose_cuts(self, task: Task) -> tuple[int, ...]:
        return (task.one_cut,) * task.num_clients


class FSL(SplitFedV1):
    """FSL: as SplitFed V1, but every client's server side has a server of its own; heads are averaged or not."""

    def __init__(self, task: Task) -> None:
        self.average_heads = task.config.options.fsl.average == "both"
        super().__init__(task)
