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
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from hsfl.codec_table import NONE
from hsfl.config import RunConfig
from hsfl.data.passes import RoundSteps
from hsfl.errors import InputError
from hsfl.frameworks.framework import FrameworkBase, RoundResult, State, Task, copied, join
from hsfl.frameworks.guard import Guard
from hsfl.frameworks.hooks import (
    CLIENT_HOOKS,
    ClientTurn,
    Hooks,
    Parameters,
    ServerTurn,
    check_memory_names,
    check_passes,
    check_sent,
    check_tensors,
    checked_bytes,
    hook_memory,
    names_of_head,
    overridden_hooks,
    swapped_bytes,
)
from hsfl.models.state import Packed, TensorsByClient, UnitState, joined_view
from hsfl.planning.rounds.round_clock import Extras
from hsfl.training.aggregate import PartialSum
from hsfl.training.codecs.head_codec import REMEMBERED
from hsfl.training.link import Link, LinkBytes, Losses
from hsfl.training.roles import Client, EdgeServer, MainServer, Session, count_both


@dataclass(frozen=True)
class Shard:
    """The results of some clients of a round. Shards can be trained anywhere and joined in any order.

    The two servers count into one sum: what they add is exact, so the sum is what both have once they have swapped theirs.
    """

    total: PartialSum  # of all units, or of the main server's where clients keep their heads
    heads: dict[int, UnitState]  # by client, where clients keep them
    losses: Losses
    bytes: LinkBytes
    memory: TensorsByClient = field(
        default_factory=TensorsByClient
    )  # what each client remembers, where a method has it
    sent: TensorsByClient = field(default_factory=TensorsByClient)  # what each client sent besides its weights
    updates: dict[int, UnitState] = field(default_factory=dict)  # what each client brought, where `train.average` asks

    def __reduce__(self) -> tuple[Callable[..., "Shard"], tuple[Any, ...]]:
        """How a shard crosses a process border: all heads as one."""
        packed = Packed.of(self.heads), self.losses, self.bytes, self.memory, self.sent, Packed.of(self.updates)
        return _unpacked, (self.total, *packed)

    def merge(self, other: "Shard") -> None:
        """Count in another part of the round."""
        self.total.merge(other.total)
        self.heads.update(other.heads)
        self.losses.merge(other.losses)
        self.bytes.merge(other.bytes)
        self.memory.update(other.memory)
        self.sent.update(other.sent)
        self.updates.update(other.updates)


def _unpacked(
    total: PartialSum,
    heads: Packed[int],
    losses: Losses,
    num_bytes: LinkBytes,
    memory: TensorsByClient,
    sent: TensorsByClient,
    updates: Packed[int],
) -> Shard:
    return Shard(total, heads.states(), losses, num_bytes, memory, sent, updates.states())


class CopyPerClient(Hooks, FrameworkBase):
    """The round that HSFL, SplitFed V1, FSL and FL share. A class that derives from one of them may override its hooks."""

    copy_per_client = True
    average_heads = True  # False if clients keep their heads (FSL with `average = "server"`)

    spread: Callable[[State, Sequence[int], int], Sequence[Shard]] | None = (
        None  # an engine that trains a round's shards
    )

    _round_weights: tuple[int, np.ndarray] = (-1, np.empty(0))  # the last round and its weights
    _may_train_again = False  # before a client trains: afterwards its weights lie in the working copy

    def __init__(self, task: Task) -> None:
        self.task = task
        self.cuts = self.choose_cuts(task)
        self.min_cut, self.max_cut = min(self.cuts), max(self.cuts)
        self.head_part = task.part(0, task.num_units)
        self.tail_part = (
            self.head_part.twin()
        )  # client and server hold different units of the one client that is trained
        self.hooks = overridden_hooks(type(self))
        self.hooks_clients = any(name in CLIENT_HOOKS for name in self.hooks)
        self.guard = Guard.of(task.config, task.model, task.layout)
        self.codec_of = task.codec_of() if task.codecs else {}

    def choose_cuts(self, task: Task) -> tuple[int, ...]:
        return task.cuts

    @classmethod
    def why_averaged(cls, config: RunConfig) -> str | None:
        return None

    @property
    def remembers(self) -> bool:
        """Whether clients remember something from round to round: for a hook, or what a codec lost of their heads."""
        return "first_memory" in self.hooks or self.task.config.link.model != NONE

    def extras(self) -> Extras:
        extras = Extras(heads_travel=self.average_heads, away=self.task.away, passes=self.passes)
        if "extra_bytes" not in self.hooks:
            return extras
        down, up = zip(*(self._bytes_besides(cut) for cut in range(self.task.num_units + 1)))
        return replace(extras, down_bits=tuple(8.0 * n for n in down), up_bits=tuple(8.0 * n for n in up))

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
            shards: Sequence[Shard] = [self.train(state, kept, round_index, self.task.round_samples(kept, round_index))]
        else:
            shards = spread(state, kept, round_index)
        after, result = self.finish(state, shards, self.task.receivers(round_index))
        if "server_step" in self.hooks and kept:
            after = self._serve(state, after, shards[0].sent, kept, round_index)
        return after, result

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
        task, lr, link = self.task, self.task.lr(round_index), self.task.link()
        weights = self._weights(round_index)
        shard = into or self.empty_shard(state, round_samples)
        main = MainServer(state.units["main"], shard.total[self.min_cut : task.num_units], self.tail_part)
        heads = _EdgeHeads(state, shard.total, self.max_cut) if self.average_heads else _OwnHeads(state, shard.heads)
        for k in clients:
            data, cut = task.data(k), self.cuts[k]
            if task.codecs:
                link.codecs = self.codec_of[task.codecs[k]]
            turn = self._begin_turn(state, k, round_index, link) if self.hooks_clients else None
            client = Client(data, self.head_part, task.num_units)
            client.receive(heads.give(k, cut, link), lr)
            session = main.open(cut, lr)
            head, client_losses = client.train(session, round_index, link)
            shard.losses.merge(client_losses)
            if turn is not None:
                self._end_turn(turn, shard)
            if self.guard is not None:
                self._attack(self.guard, state, k, round_index)
            head = heads.send(k, head, link, shard)
            if self.guard is not None:
                self._guard_update(self.guard, state, k, shard)
            main.finish(k, session.tail.state, float(weights[k]))
            heads.take(k, head, float(weights[k]), main)
        shard.bytes.merge(link.bytes)
        return shard

    def _sent_head(self, state: State, client: int) -> UnitState:
        """The head with which a client began."""
        return state.units["edge" if self.average_heads else f"head{client}"][0 : self.cuts[client]]

    def _attack(self, guard: Guard, state: State, client: int, round_index: int) -> None:
        """An attacker changes the head that it holds."""
        guard.attack(client, round_index, self._sent_head(state, client), self.head_part.state)

    def _guard_update(self, guard: Guard, state: State, client: int, shard: Shard) -> None:
        """What the servers get of the update is clipped, and kept for the rule by which it is averaged. Where clients keep their heads, the
        servers get the tail alone."""
        cut, main = self.cuts[client], state.units["main"]
        sides = [(main[cut : main.stop], self.tail_part.state)]
        if self.average_heads:
            sides.insert(0, (self._sent_head(state, client), self.head_part.state))
        guard.clip(sides)
        if guard.keeps_updates:
            shard.updates[client] = (self._trained() if self.average_heads else self.tail_part.state).clone()

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
            self._swap(total, link, len(whole.updates))
            units = self._means(total, state, list(whole.updates.values()))
            for cut, count in enumerate(np.bincount(np.array(self.cuts)[receivers])):
                link.count("client_edge_down", int(count) * units["edge"][0:cut].num_bytes)  # to dropped clients, too
        else:
            heads = {f"head{k}": head for k, head in whole.heads.items()}
            mean = total.mean(main)
            if self.guard is not None:
                self.guard.average(mean, list(whole.updates.values()))
            units = state.units | heads | {"main": mean}
        if self.hooks_clients:
            for cut, count in enumerate(np.bincount(np.array(self.cuts)[receivers])):
                link.count("client_edge_down", int(count) * self._bytes_besides(cut)[0])
            sent = next(iter(whole.sent.values()), {})
            link.count("edge_main", swapped_bytes(sent, self.task.layout, self.min_cut, self.max_cut))
        memory = TensorsByClient(state.memory | whole.memory)
        result = RoundResult(whole.losses.mean, whole.losses.num_samples, link.bytes)
        return State(units, state.tensors, memory), result

    def _means(self, total: PartialSum, state: State, updates: Sequence[UnitState]) -> dict[str, UnitState]:
        """What each server holds after the round. Each has memory of its own, so that a framework that derives from this one may
        write to a state; the common units are averaged once and copied."""
        low, high = self.min_cut, self.max_cut
        main, edge = total[low : self.task.num_units].mean(state.units["main"]), state.units["edge"].clone()
        total[0:low].write_mean(edge)
        if self.guard is not None:
            self.guard.average(main, updates)
            self.guard.average(edge[0:low], updates)
        if low < high:
            edge[low:high].copy_(main[low:high])
        return {"main": main, "edge": edge}

    def _swap(self, total: PartialSum, link: Link, num_updates: int) -> None:
        """Each server sends the other its sum of the common units. Here both have counted into one sum, which is exact, so that
        nothing is left to add; but what they send passes the link all the same. Where updates are not summed, each server sends the
        common units of every client that it has; the other server has the rest of them."""
        common = total[self.min_cut : self.max_cut]
        if self.guard is not None and self.guard.keeps_updates:
            link.count("edge_main", num_updates * self.task.initial[self.min_cut : self.max_cut].num_bytes)
            return
        for _ in range(2 if self.min_cut < self.max_cut else 0):
            if (arrived := link.carry("edge_main", common)) is not common:
                common.copy_(arrived)

    # --- hooks

    def _bytes_besides(self, cut: int) -> tuple[int, int]:
        """What travels besides the head of a client with this cut, down and up."""
        return checked_bytes(type(self).__name__, self.extra_bytes(cut))

    def _begin_turn(self, state: State, client: int, round_index: int, link: Link) -> ClientTurn:
        """Let the hooks know of a client that is about to train."""
        task, cut, owner = self.task, self.cuts[client], type(self).__name__
        main = state.units["main"]
        head = self._sent_head(state, client)
        memory = hook_memory(state.memory[client]) if client in state.memory else self.first_memory(client)
        check_tensors(owner, "first_memory", memory)
        train = task.config.train
        steps = RoundSteps(task.feed.num_samples(client), train.batch_size, train.local_epochs, round_index)
        turn = ClientTurn(
            client, round_index, cut, task.lr(round_index), steps.count,
            join(head, main[cut : main.stop]), state.tensors, copied(memory), link,
        )  # fmt: skip
        self._may_train_again = True
        self.before_training(turn)
        self._may_train_again = False
        check_passes(owner, turn, self.passes)
        check_memory_names(owner, turn, {*memory})
        if "adjust_gradients" in self.hooks:
            self._adjust_by(partial(self.adjust_gradients, turn))
        return turn

    def _adjust_by(self, adjust: Callable[[Parameters], None] | None) -> None:
        """Let this function change the gradients of both sides before each step."""
        self.head_part.before_step = self.tail_part.before_step = adjust

    def train_again(
        self, turn: ClientTurn, start: UnitState, adjust: Callable[[Parameters], None] | None = None
    ) -> UnitState:
        """A further pass over the client's batches of the round, which trains another model with the client's cut: its smashed data
        and gradients travel, but the model stays where it is. Call it in `before_training`. Returns the trained model.

        start: the whole model with which the pass begins. adjust: may change the gradients before each step.
        """
        if not self._may_train_again:
            raise InputError(
                f"{type(self).__name__} calls train_again when the client has trained; call it in before_training"
            )
        client = Client(self.task.data(turn.client), self.head_part, self.task.num_units)
        client.receive(start[0 : turn.cut], turn.lr)
        self.tail_part.begin(start[turn.cut : self.task.num_units], turn.lr)
        self._adjust_by(adjust)
        client.train(Session(self.tail_part), turn.round_index, turn.link)
        self._adjust_by(None)
        turn.passes += 1
        return self._trained().clone()

    def _trained(self) -> UnitState:
        """Head and tail of the client that was trained last; a view."""
        whole = joined_view(self.head_part.state, self.tail_part.state)
        assert whole is not None, "both sides lie in one working copy"
        return whole

    def _end_turn(self, turn: ClientTurn, shard: Shard) -> None:
        """Let the hooks change what a client brings, and put what it remembers and sends into the shard."""
        owner, names, num_bytes = type(self).__name__, {*turn.memory}, self._bytes_besides(turn.cut)[1]
        with torch.no_grad():
            self.before_sum(turn, self._trained())
        check_memory_names(owner, turn, names)
        check_sent(owner, turn, self.task.layout, num_bytes)
        turn.link.count("client_edge_up", num_bytes)
        for name in names_of_head(turn.sent, self.task.layout, turn.cut):
            turn.sent[name] = turn.link.arrive("client_edge_up", turn.sent[name])
        if turn.memory:
            shard.memory[turn.client] = copied(turn.memory)
        if turn.sent:
            shard.sent[turn.client] = copied(turn.sent)

    def _serve(self, state: State, after: State, sent: TensorsByClient, kept: Sequence[int], round_index: int) -> State:
        """Let `server_step` make the new model of the mean. Both servers take their units from it."""
        holders = ("edge", "main") if self.average_heads else ("main",)
        before, mean = (join(*(states.units[holder] for holder in holders)) for states in (state, after))
        start = after.units[holders[0]].start
        weights, in_order = self._weights(round_index), {client: sent[client] for client in sorted(sent)}
        turn = ServerTurn(
            round_index, before[start : before.stop], mean[start : mean.stop], copied(state.tensors), in_order,
            {client: float(weights[client]) for client in kept},
        )  # fmt: skip
        with torch.no_grad():
            self.server_step(turn)
        check_tensors(type(self).__name__, "tensors", turn.tensors)
        for holder in holders:
            units = after.units[holder]
            units.copy_(turn.mean[units.start : units.stop])
        return State(after.units, turn.tensors, after.memory)

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
        self.memory = state.memory

    def give(self, client: int, cut: int, link: Link) -> UnitState:
        return link.arrive("client_edge_down", self.edge.head(cut))  # its bytes were counted when it was made

    def send(self, client: int, head: UnitState, link: Link, shard: Shard) -> UnitState:
        """A trained head as it comes to the edge server."""
        if link.codecs.model is None:
            return link.carry("client_edge_up", head)
        memory = shard.memory.setdefault(client, {})
        if (lost := self.memory.get(client, {}).get(REMEMBERED)) is not None:
            memory[REMEMBERED] = lost
        return link.carry_head("client_edge_up", self.edge.head(head.stop), head, memory)

    def take(self, client: int, head: UnitState, weight: float, main: MainServer) -> None:
        """Take a trained head. The client counts as soon as both servers have its side."""
        self.edge.finish(client, head, weight)
        count_both(main, self.edge, self.total)


class _OwnHeads:
    """Every client keeps its head: no head travels."""

    def __init__(self, state: State, heads: dict[int, UnitState]) -> None:
        self.state, self.heads = state, heads

    def give(self, client: int, cut: int, link: Link) -> UnitState:
        return self.state.units[f"head{client}"]

    def send(self, client: int, head: UnitState, link: Link, shard: Shard) -> UnitState:
        return head

    def take(self, client: int, head: UnitState, weight: float, main: MainServer) -> None:
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
