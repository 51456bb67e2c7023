"""A round at the main server: who takes part, who is complete, who was dropped, and why."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from hsfl.deploy.client_messages import Round
from hsfl.deploy.kit import Kit
from hsfl.deploy.plan import RoundPlan
from hsfl.deploy.server_messages import Have, Seat
from hsfl.deploy.tails import Tail
from hsfl.models.state import UnitState
from hsfl.training.step import Part, learning_rate


class SpareTails:
    """Working copies of tails, used again from round to round: one for each client that is active."""

    def __init__(self, kit: Kit) -> None:
        self._kit, self._free = kit, dict[int, list[Part]]()

    def take(self, cut: int) -> Part | None:
        if cut == self._kit.num_units:
            return None
        free = self._free.setdefault(cut, [])
        return free.pop() if free else self._kit.part(cut, self._kit.num_units)

    def give_back(self, cut: int, part: Part | None) -> None:
        if part is not None:
            self._free.setdefault(cut, []).append(part)

    def keep_only(self, cuts: Iterable[int]) -> None:
        """Forget copies that clients with these cuts, one cut for each client, do not need."""
        self._free = {cut: self._free.get(cut, [])[:count] for cut, count in Counter(cuts).items()}


@dataclass(eq=False)
class MainRound:
    """An open round."""

    round: int
    state: UnitState  # units [min cut, num_units)
    plan: RoundPlan
    tails: dict[int, Tail]  # by seat
    deadline_s: float  # when tau is over, by the event loop's clock
    parts: SpareTails
    attempt: str = field(default_factory=lambda: secrets.token_hex(8))
    model_up_s: dict[int, float] = field(default_factory=dict)  # of complete heads, by seat
    have: Have | None = None
    edge_stop: int = 0  # the edge server holds the units [0, edge_stop): up to the deepest cut when it opened the round
    drops: dict[int, str] = field(default_factory=dict)  # reasons, by seat
    agreed: list[int] = field(default_factory=list)  # seats whose sides are summed, even if the client goes now
    later: list[tuple[int, str, str]] = field(default_factory=list)  # drops of agreed clients, if the swap fails
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def cuts(self) -> list[int]:
        return [tail.cut for tail in self.tails.values()]

    @property
    def common(self) -> tuple[int, int]:
        """The units that both servers hold in this round: start and stop."""
        start = min(self.cuts)
        return start, max(start, self.edge_stop)

    def seats(self) -> list[Seat]:
        """The clients that are still in the round, as the edge server must know them."""
        return [Seat(t.seat, t.name, t.cut, t.num_samples) for t in self.tails.values() if t.dropped is None]

    def order(self, seat: int) -> Round:
        """The order for a client."""
        return Round(self.round, self.attempt, self.tails[seat].cut)

    def is_complete(self, seat: int) -> bool:
        """Whether both sides of the client are complete, as far as the main server knows."""
        return self.tails[seat].end is not None and seat in self.model_up_s

    def waiting(self) -> list[int]:
        """Clients that are neither complete nor dropped."""
        return [seat for seat, tail in self.tails.items() if tail.dropped is None and not self.is_complete(seat)]

    def kept(self) -> list[int]:
        return [seat for seat, tail in sorted(self.tails.items()) if tail.dropped is None and self.is_complete(seat)]

    def drop(self, seat: int, reason: str, words: str) -> bool:
        """Leave a client out of the round; returns whether it was in until now."""
        tail = self.tails[seat]
        if tail.dropped is not None:
            return False
        tail.dropped, self.drops[seat] = words, reason
        self.changed.set()
        return True


def begin_round(
    kit: Kit,
    round: int,
    state: UnitState,
    plan: RoundPlan,
    seats: dict[int, tuple[str, int]],
    parts: SpareTails,
    deadline_s: float,
) -> MainRound:
    """A round with these clients. seats: name and number of samples by seat. deadline_s: by the event loop's clock.
    Call this on the compute thread: a step of the round before may still use a working copy that this round takes."""
    lr, tails = learning_rate(kit.config.train, round), {}
    parts.keep_only(plan.cuts[seat] for seat in seats)
    for seat, (name, num_samples) in seats.items():
        cut = plan.cuts[seat]
        tail_state = state[cut : state.stop]
        tails[seat] = Tail(kit, round, seat, name, cut, num_samples, tail_state, parts.take(cut), lr)
    return MainRound(round, state, plan, tails, deadline_s, parts)
