"""Client, main server and edge server of the frameworks that keep a copy of the server side for each client.

They pass only messages, through a link: heads down and up between edge server and client, smashed data and labels up and
gradients down between client and main server, partial sums of the common units between the servers. A client counts only when
both its sides are complete: its tail at the main server, its head at the edge server. The servers agree on who that is
before anything is added to a sum.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from hsfl.models.state import UnitState
from hsfl.training.aggregate import PartialSum
from hsfl.training.batches import ClientData
from hsfl.training.link import Link, Losses
from hsfl.training.step import Part, StepKey, client_backward, server_step, whole_step


class Session:
    """The main server's side of one client's round: a copy of the tail, trained on the client's smashed data."""

    def __init__(self, part: Part) -> None:
        self.part = part

    def step(self, smashed: Tensor, y: Tensor, key: StepKey, need_gradient: bool) -> tuple[Tensor, Tensor]:
        """Loss, and gradient of the smashed data."""
        return server_step(self.part, smashed, y, key, need_gradient)


@dataclass(frozen=True)
class Finished:
    """One side of a client that is complete, until the servers have agreed on it."""

    state: UnitState
    weight: float


class Server:
    """What both servers do: hold units, keep complete sides apart, sum those that were agreed on, average."""

    def __init__(self, state: UnitState, total: PartialSum) -> None:
        self.state, self.total = state, total
        self.finished: dict[int, Finished] = {}  # by client

    def finish(self, client: int, state: UnitState, weight: float) -> None:
        """A client's side is complete here. The state may be a view of memory that the next client needs."""
        self.finished[client] = Finished(state, weight)

    def commit(self, clients: Iterable[int]) -> None:
        """Count in the clients that both servers have; what is left is dropped with the round."""
        for client in clients:
            done = self.finished.pop(client)
            self.total.add(done.state, done.weight)

    def send(self, start: int, stop: int) -> PartialSum:
        """Our sum of the units that both servers hold, for the other one."""
        return self.total[start:stop].clone()

    def merge(self, other: PartialSum) -> None:
        """The other server's sum of those units."""
        self.total.merge(other)

    def close(self) -> UnitState:
        """The average; units that nobody trained stay as they were."""
        return self.total.mean(self.state)


class EdgeServer(Server):
    """Holds units `[0, max cut)`: hands every client its head, sums the heads that come back."""

    def head(self, cut: int) -> UnitState:
        return self.state[0:cut]


class MainServer(Server):
    """Holds units `[min cut, num_units)`: trains each client's tail on its smashed data, sums the tails.

    One working copy serves one open session at a time.
    """

    def __init__(self, state: UnitState, total: PartialSum, part: Part) -> None:
        super().__init__(state, total)
        self.part = part

    def open(self, cut: int, lr: float) -> Session:
        """A copy of the server side for the client that comes next."""
        self.part.begin(self.state[cut : self.state.stop], lr)
        return Session(self.part)


def agree(main: MainServer, edge: EdgeServer) -> list[int]:
    """The clients whose sides are complete at both servers."""
    return [client for client in main.finished if client in edge.finished]


def swap(main: MainServer, edge: EdgeServer, start: int, stop: int, link: Link) -> None:
    """The servers send each other their sums of the common units `[start, stop)`."""
    if start < stop:
        from_edge, from_main = edge.send(start, stop), main.send(start, stop)
        main.merge(link.carry("edge_main", from_edge))
        edge.merge(link.carry("edge_main", from_main))


class Steps(Protocol):
    """What a client asks of the main server in each step."""

    def step(self, smashed: Tensor, y: Tensor, key: StepKey, need_gradient: bool) -> tuple[Tensor, Tensor]: ...


class Client:
    """Holds its own data and units `[0, cut)`."""

    def __init__(self, data: ClientData, part: Part, num_units: int) -> None:
        self.data, self.part, self.num_units = data, part, num_units

    def receive(self, head: UnitState, lr: float) -> None:
        self.part.begin(head, lr)

    def train(self, session: Steps, round_index: int, link: Link) -> tuple[UnitState, Losses]:
        """All batches of the round, stages 1 and 2 of the paper; returns the trained head and the losses."""
        losses = Losses()
        for step, (x, y) in enumerate(self.data.batches(round_index)):
            losses.add(self._step(x, y, session, self.data.key(round_index, step), link), len(y))
        return self.part.state, losses

    def _step(self, x: Tensor, y: Tensor, session: Steps, key: StepKey, link: Link) -> Tensor:
        if self.part.stop == self.num_units:
            return whole_step(self.part, x, y, key)
        has_head = self.part.stop > 0
        smashed = self.part.forward(x, key)
        loss, gradient = session.step(link.carry("client_main_up", smashed), y, key, need_gradient=has_head)
        gradient = link.carry("client_main_down", gradient)
        if has_head:
            client_backward(self.part, smashed, gradient)
        return loss
