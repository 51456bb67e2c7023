"""SL: Gupta, Raskar, "Distributed learning of deep neural network over multiple agents" (2018).

One server side; clients train one after another and hand the head's weights on. The main server's optimiser lasts the
run; the head's starts anew with every client, unless `options.sl.hand_optimizer` sends its state along with the weights.
With that option and one client this is centralised learning.
"""

from collections.abc import Iterable, Sequence

from torch import Tensor

from hsfl.config import RunConfig
from hsfl.frameworks.framework import FrameworkBase, RoundResult, State, Task, copied, shared_cut
from hsfl.models.state import TensorsByClient, UnitState
from hsfl.planning.rounds.round_clock import Extras
from hsfl.training.link import Link, Losses
from hsfl.training.roles import Session
from hsfl.training.step import apply_gradient_on_client


class SL(FrameworkBase):
    """SL: one client after another trains with the one server side."""

    hands_on_heads = True

    def __init__(self, task: Task) -> None:
        self.task = task
        self.cut = shared_cut(task)
        self.cuts = (self.cut,) * task.num_clients
        self.head, self.tail = task.part(0, self.cut), task.part(self.cut, task.num_units)
        self.hands_optimizer = task.config.options.sl.hand_optimizer
        self.head.begin(task.initial[0 : self.cut], task.lr(0))
        self.handed_bytes = self.head.optimizer_bytes if self.hands_optimizer else 0  # beside the weights, each way

    @classmethod
    def why_averaged(cls, config: RunConfig) -> str | None:
        return None

    def extras(self) -> Extras:
        return Extras(head_bits=8.0 * self.handed_bytes)

    def init(self) -> State:
        return State({"model": self.task.initial.clone()})

    def round(self, state: State, kept: Sequence[int], round_index: int) -> tuple[State, RoundResult]:
        losses, link, memory = Losses(), self.task.link(), TensorsByClient(state.memory)
        self._begin(state, round_index)
        for k in kept:
            remembered = dict(memory.get(k, {}))
            self._turn(k, round_index, losses, link, remembered)
            if remembered:
                memory[k] = remembered
        after = state.units["model"].clone()
        after[0 : self.cut].copy_(self.head.state)
        after[self.cut : self.task.num_units].copy_(self.tail.state)
        handed = self.head.optimizer_state() if self.hands_optimizer else {}
        head = {f"head.{name}": tensor for name, tensor in handed.items()}
        tail = {f"tail.{name}": tensor for name, tensor in self.tail.optimizer_state().items()}
        result = RoundResult(losses.mean, losses.num_samples, link.bytes)
        return State({"model": after}, copied(head | tail), memory), result

    def _begin(self, state: State, round_index: int) -> None:
        model, lr = state.units["model"], self.task.lr(round_index)
        for side, name, units in (
            (self.head, "head.", model[0 : self.cut]),
            (self.tail, "tail.", model[self.cut : self.task.num_units]),
        ):
            side.begin(units, lr)
            optimizer_tensors = {key.removeprefix(name): t for key, t in state.tensors.items() if key.startswith(name)}
            side.load_optimizer_state(optimizer_tensors)

    def _turn(self, k: int, round_index: int, losses: Losses, link: Link, memory: dict[str, Tensor]) -> None:
        """The client takes the head over, trains on all its batches and hands it on. memory: what the client remembers."""
        if not self.hands_optimizer:
            self.head.forget()
        session = Session(self.tail)
        before = self.head.state.clone() if link.codecs.model is not None else self.head.state
        for planned in self.task.batches(k, round_index):
            (x, y), key = self.task.feed.batch(planned), planned.key
            smashed = self.head.forward(x, key)
            arrived = link.carry("client_main_up", smashed, key)
            loss, gradient = session.step(arrived, y, key, need_gradient=self.cut > 0)
            gradient = link.carry("client_main_down", gradient, key)
            if self.cut > 0:
                apply_gradient_on_client(self.head, smashed, gradient)
            losses.add(loss, len(y))
        head = self.head.state
        for route in ("client_edge_down", "client_edge_up"):
            up = route == "client_edge_up"
            carried = link.carry_head(route, before, head, memory) if up else link.carry(route, head)
            if carried is not head:
                head.copy_(carried)
            link.count(route, self.handed_bytes)

    def models(self, state: State) -> Iterable[UnitState]:
        yield state.units["model"]
