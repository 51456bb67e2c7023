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
from typing import Any

import numpy as np

from hsfl.config import RunConfig
from hsfl.frameworks.framework import FrameworkBase, RoundResult, State, Task, join
from hsfl.models.state import Packed, UnitState
from hsfl.planning.round_clock import Extras
from hsfl.training.aggregate import PartialSum
from hsfl.training.link import Link, LinkBytes, Losses
from hsfl.training.roles import Client, EdgeServer, MainServer, count_both


@dataclass(frozen=True)
class Shard:
    """The results of some clients of a round. Shards can be trained anywhere and joined in any order.

    The two servers count into one sum: what they add is exact, so the sum is what both have once they have swapped theirs.
    """

    total: PartialSum  # of all units, or of the main server's where clients keep their heads
    heads: dict[int, UnitState]  # by client, where clients keep them
    losses: Losses
    bytes: LinkBytes

    def __reduce__(self) -> tuple[Callable[..., "Shard"], tuple[Any, ...]]:
        """How a shard crosses a process border: all heads as one."""
        return _unpacked, (self.total, Packed.of(self.heads), self.losses, self.bytes)

    def merge(self, other: "Shard") -> None:
        """Count in another part of the round."""
        self.total.merge(other.total)
        self.heads.update(other.heads)
        self.losses.merge(other.losses)
        self.bytes.merge(other.bytes)


def _unpacked(total: PartialSum, heads: Packed[int], losses: Losses, num_bytes: LinkBytes) -> Shard:
    return Shard(total, heads.states(), losses, num_bytes)


class CopyPerClient(FrameworkBase):
    """The round that HSFL, SplitFed V1, FSL and FL share."""

    copy_per_client = True
    average_heads = True  # False if clients keep their heads (FSL with `average = "server"`)

    spread: Callable[[State, Sequence[int], int], Sequence[Shard]] | None = (
        None  # an engine that trains a round's shards
    )

    _round_weights: tuple[int, np.ndarray] = (-1, np.empty(0))  # the last round and its weights

    def __init__(self, task: Task) -> None:
        self.task = task
        self.cuts = self.choose_cuts(task)
        self.min_cut, self.max_cut = min(self.cuts), max(self.cuts)
        self.head_part = task.part(0, task.num_units)
        self.tail_part = (
            self.head_part.twin()
        )  # client and server hold different units of the one client that is trained

    def choose_cuts(self, task: Task) -> tuple[int, ...]:
        return task.cuts

    @classmethod
    def why_averaged(cls, config: RunConfig) -> str | None:
        return None

    def extras(self) -> Extras:
        return Extras(heads_travel=self.average_heads, away=self.task.away)

    def init(self) -> State:
        initial, cuts = self.task.initial, self.cuts
        main = initial[self.min_cut : self.task.num_units].clone()
        if self.average_heads:
            return State({"main": main, "edge": initial[0 : self.max_cut].clone()})
        return State({"main": main} | {f"head{k}": initial[0:cut].clone() for k, cut in enumerate(cuts)})

    def round(self, state: State, kept: Sequence[int], round_index: int) -> tuple[State, RoundResult]:
        """Every kept client trains; then the servers swap sums and average."""
        spread = self.spread
        if spread is None:
            shards: Sequence[Shard] = [self.train(state, kept, round_index, self.task.num_samples(kept))]
        else:
            shards = spread(state, kept, round_index)
        return self.finish(state, shards, self.task.receivers(round_index))

    def train(
        self,
        state: State,
        clients: Iterable[int],
        round_index: int,
        round_samples: int,
        into: Shard | None = None,
    ) -> Shard:
        """Some of the round's clients, one after another, each with a session at the main server.

        round_samples: of all clients that take part in the round, wherever they are trained.
        into: the shard that these clients are counted into; by default a new one.
        """
        task, lr, link = self.task, self.task.lr(round_index), Link()
        weights = self._weights(round_index)
        shard = into or self.empty_shard(state, round_samples)
        main = MainServer(state.units["main"], shard.total[self.min_cut : task.num_units], self.tail_part)
        heads = _EdgeHeads(state, shard.total, self.max_cut) if self.average_heads else _OwnHeads(state, shard.heads)
        for k in clients:
            data, cut = task.data(k), self.cuts[k]
            client = Client(data, self.head_part, task.num_units)
            client.receive(heads.give(k, cut, link), lr)
            session = main.open(cut, lr)
            head, client_losses = client.train(session, round_index, link)
            shard.losses.merge(client_losses)
            main.finish(k, session.tail.state, float(weights[k]))
            heads.take(k, head, float(weights[k]), main, link)
        shard.bytes.merge(link.bytes)
        return shard

    def _weights(self, round_index: int) -> np.ndarray:
        """What each client counts, [K]; remembered for a round, since an engine may train it client by client."""
        if self._round_weights[0] != round_index:
            self._round_weights = (round_index, self.task.weights(round_index))
        return self._round_weights[1]

    def empty_shard(self, state: State, round_samples: int, memory: UnitState | None = None) -> Shard:
        """The shard of nobody, for a round that starts from this state, with so many samples. memory: for the shard's sum,
        a `sum_memory` of all units; by default the sum gets memory of its own."""
        main, most = state.units["main"], self.task.most_weight(round_samples)
        if self.average_heads:
            total = PartialSum.zero(state.units["edge"][0 : self.min_cut], most, main, memory=memory)
        else:
            total = PartialSum.zero(main, most, memory=memory)
        return Shard(total, {}, Losses(), LinkBytes())

    def finish(self, state: State, shards: Sequence[Shard], receivers: np.ndarray) -> tuple[State, RoundResult]:
        """The shards of a round are joined, in whatever order they come; the servers swap sums and average.

        receivers: the clients that get the new heads.
        """
        whole, link = shards[0], Link()
        for shard in shards[1:]:
            whole.merge(shard)
        link.bytes.merge(whole.bytes)
        total, main = whole.total, state.units["main"]
        if self.average_heads:
            self._swap(total, link)
            units = self._means(total, state)
            for cut, count in enumerate(np.bincount(np.array(self.cuts)[receivers])):
                link.count("client_edge_down", int(count) * units["edge"][0:cut].num_bytes)  # to dropped clients, too
        else:
            heads = {f"head{k}": head for k, head in whole.heads.items()}
            units = state.units | heads | {"main": total.mean(main)}
        return State(units), RoundResult(whole.losses.mean, whole.losses.num_samples, link.bytes)

    def _means(self, total: PartialSum, state: State) -> dict[str, UnitState]:
        """What each server holds after the round. Each has memory of its own, so that a framework that derives from this one may
        write to a state; the common units are averaged once and copied."""
        low, high = self.min_cut, self.max_cut
        main, edge = total[low : self.task.num_units].mean(state.units["main"]), state.units["edge"].clone()
        total[0:low].write_mean(edge)
        if low < high:
            edge[low:high].copy_(main[low:high])
        return {"main": main, "edge": edge}

    def _swap(self, total: PartialSum, link: Link) -> None:
        """Each server sends the other its sum of the common units. Here both have counted into one sum, which is exact, so that
        nothing is left to add; but what they send passes the link all the same."""
        common = total[self.min_cut : self.max_cut]
        for _ in range(2 if self.min_cut < self.max_cut else 0):
            if (arrived := link.carry("edge_main", common)) is not common:
                common.copy_(arrived)

    def models(self, state: State) -> Iterable[UnitState]:
        main = state.units["main"]
        if self.average_heads:
            yield join(state.units["edge"], main)
        else:
            for k, cut in enumerate(self.cuts):
                yield join(state.units[f"head{k}"], main[cut : main.stop])


class _EdgeHeads:
    """Stage 3 of the paper: heads come back to the edge server, and are summed."""

    def __init__(self, state: State, total: PartialSum, max_cut: int) -> None:
        self.edge, self.total = EdgeServer(state.units["edge"], total[0:max_cut]), total

    def give(self, client: int, cut: int, link: Link) -> UnitState:
        return link.arrive("client_edge_down", self.edge.head(cut))  # its bytes were counted when it was made

    def take(self, client: int, head: UnitState, weight: float, main: MainServer, link: Link) -> None:
        """Take a trained head. The client counts as soon as both servers have its side."""
        self.edge.finish(client, link.carry("client_edge_up", head), weight)
        count_both(main, self.edge, self.total)


class _OwnHeads:
    """Every client keeps its head: no head travels."""

    def __init__(self, state: State, heads: dict[int, UnitState]) -> None:
        self.state, self.heads = state, heads

    def give(self, client: int, cut: int, link: Link) -> UnitState:
        return self.state.units[f"head{client}"]

    def take(self, client: int, head: UnitState, weight: float, main: MainServer, link: Link) -> None:
        self.heads[client] = head.clone()
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

    @classmethod
    def why_averaged(cls, config: RunConfig) -> str | None:
        return None if config.options.fsl.average == "both" else "options.fsl.average is server, so clients keep heads"
