"""Client, main server and edge server of the frameworks that keep a copy of the server side for each client.

They pass only messages, through a link: heads down and up between edge server and client, smashed data and labels up and
gradients down between client and main server, partial sums of the common units between the servers. A client counts only when
both its sides are complete: its tail at the main server, its head at the edge server. The servers agree on these clients
before anything is added to a sum.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from hsfl.models.state import UnitState, joined_view
from hsfl.training.aggregate import PartialSum
from hsfl.training.batches import ClientData
from hsfl.training.link import Link, Losses
from hsfl.training.step import Part, StepKey, apply_gradient_on_client, run_backward, whole_step


class Session:
    """The main server's side of one client's round: a copy of the tail, trained on the client's smashed data."""

    def __init__(self, tail: Part) -> None:
        self.tail = tail

    def step(self, smashed: Tensor, y: Tensor, key: StepKey, need_gradient: bool) -> tuple[Tensor, Tensor]:
        """Stages 1, iii and 2, i on the main server, Eqs. (2) to (4): returns the loss on the labels `y`, and the gradient of the
        smashed data, which returns to the client; it is empty where it is not needed, or where the tail detaches the smashed data."""
        smashed = smashed.detach().requires_grad_(need_gradient and smashed.is_floating_point())
        loss = self.tail.goal(self.tail.forward(smashed, key), y)
        run_backward(loss)
        self.tail.update()
        gradient = smashed.grad if smashed.grad is not None else smashed.new_zeros(0)
        return loss.detach(), gradient


@dataclass(frozen=True)
class FinishedSide:
    """A complete side of a client, which waits until the servers have agreed on the client."""

    state: UnitState
    weight: float


class Server:
    """What both servers do: hold units, collect complete sides, sum the sides of agreed clients, and average."""

    def __init__(self, state: UnitState, total: PartialSum) -> None:
        self.state, self.total = state, total
        self.finished: dict[int, FinishedSide] = {}  # by client

    def finish(self, client: int, state: UnitState, weight: float) -> None:
        """Take the complete side of a client. The state may be a view of memory that the next client overwrites."""
        self.finished[client] = FinishedSide(state, weight)

    def commit(self, clients: Iterable[int]) -> None:
        """Add the sides of these clients, which both servers have. Sides of other clients are dropped at the end of the round."""
        for client in clients:
            side = self.finished.pop(client)
            self.total.add(side.state, side.weight)

    def send(self, start: int, stop: int) -> PartialSum:
        """Our sum over the units `[start, stop)`, which both servers hold, for the other server."""
        return self.total[start:stop].clone()

    def merge(self, other: PartialSum) -> None:
        """Add the other server's sum over the common units."""
        self.total.merge(other)

    def close(self) -> UnitState:
        """The average over the clients; units that nobody trained stay as they were."""
        return self.total.mean(self.state)


class EdgeServer(Server):
    """Holds units `[0, max cut)`: hands every client its head, sums the heads that come back."""

    def head(self, cut: int) -> UnitState:
        """The units `[0, cut)`, for a client."""
        return self.state[0:cut]


class MainServer(Server):
    """Holds units `[min cut, num_units)`: trains each client's tail on its smashed data, sums the tails.

    One working copy serves one open session at a time.
    """

    def __init__(self, state: UnitState, total: PartialSum, tail: Part) -> None:
        super().__init__(state, total)
        self.tail = tail

    def open(self, cut: int, lr: float) -> Session:
        """Begin the session of the next client, with a fresh copy of the units `[cut, num_units)`."""
        self.tail.begin(self.state[cut : self.state.stop], lr)
        return Session(self.tail)


def agree(main: MainServer, edge: EdgeServer) -> list[int]:
    """The clients whose sides are complete at both servers."""
    return [client for client in main.finished if client in edge.finished]


def count_both(main: MainServer, edge: EdgeServer, total: PartialSum) -> None:
    """Count the clients whose sides are complete at both servers into one sum over the units of both: at once where a client's
    sides lie one behind the other in memory, as they do in a simulation."""
    for client in agree(main, edge):
        head, tail = edge.finished.pop(client), main.finished.pop(client)
        whole = joined_view(head.state, tail.state)
        for state in (head.state, tail.state) if whole is None else (whole,):
            total.add(state, tail.weight)


def swap(main: MainServer, edge: EdgeServer, start: int, stop: int, link: Link) -> None:
    """The servers send each other their sums of the common units `[start, stop)`.

    This is the protocol in its plain form, which tests set beside the others. A simulation counts both servers into one sum
    (`frameworks.copy_per_client.CopyPerClient._swap`), real servers send messages (`deploy.main.edge_link`).
    """
    if start < stop:
        from_edge, from_main = edge.send(start, stop), main.send(start, stop)
        main.merge(link.carry("edge_main", from_edge))
        edge.merge(link.carry("edge_main", from_main))


class Steps(Protocol):
    """What a client needs of the main server in each step; `Session` has it."""

    def step(self, smashed: Tensor, y: Tensor, key: StepKey, need_gradient: bool) -> tuple[Tensor, Tensor]: ...


class Client:
    """A client: it holds its own data and the units `[0, cut)`."""

    def __init__(self, data: ClientData, head: Part, num_units: int) -> None:
        self.data, self.head, self.num_units = data, head, num_units

    def receive(self, head: UnitState, lr: float) -> None:
        """Take the head of the round, with an optimiser that remembers nothing."""
        self.head.begin(head, lr)

    def train(self, session: Steps, round_index: int, link: Link) -> tuple[UnitState, Losses]:
        """Train on all batches of the round, stages 1 and 2 of the paper; returns the trained head and the losses."""
        losses, has_head, has_all = Losses(), self.head.stop > 0, self.head.stop == self.num_units
        for x, y, key in self.data.batches(round_index):
            if has_all:
                loss = whole_step(self.head, x, y, key)
            else:
                smashed = self.head.forward(x, key)
                arrived = link.carry("client_main_up", smashed, key)
                loss, gradient = session.step(arrived, y, key, need_gradient=has_head)
                gradient = link.carry("client_main_down", gradient, key)
                if has_head:
                    apply_gradient_on_client(self.head, smashed, gradient)
            losses.add(loss, len(y))
        return self.head.state, losses
