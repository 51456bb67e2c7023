"""An evaluation by the clients' own test samples, as the main server holds it while it lasts."""

import asyncio
import secrets
from dataclasses import dataclass, field

from hsfl.deploy.client_messages import Evaluate
from hsfl.deploy.server_messages import Seat
from hsfl.training.evaluation import Quality, Tally, quality


@dataclass(eq=False)
class Evaluation:
    """Who takes part, and what was counted."""

    round: int  # rounds that the model has seen
    seats: dict[str, Seat]  # by name
    attempt: str = field(default_factory=lambda: secrets.token_hex(8))
    tallies: dict[int, Tally] = field(default_factory=dict)  # of clients whose test samples are all counted, by seat
    gone: set[int] = field(default_factory=set)  # seats that are not waited for any longer, done or not
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def order(self, seat: Seat) -> Evaluate:
        """The order that tells a client to send its test samples."""
        return Evaluate(self.round, self.attempt, seat.cut)

    def finish(self, seat: int, tally: Tally) -> None:
        """All test samples of a client are counted."""
        self.tallies[seat] = tally
        self._look()

    def leave(self, seat: int) -> None:
        """Stop waiting for a client. Its samples count only if it has finished."""
        self.gone.add(seat)
        self._look()

    def _look(self) -> None:
        if all(seat.seat in self.tallies or seat.seat in self.gone for seat in self.seats.values()):
            self.over.set()

    @property
    def num_samples(self) -> int:
        return sum(tally.num_samples for tally in self.tallies.values())

    def quality(self) -> Quality | None:
        """The model's quality over the samples of all clients that have finished; None where there are no samples."""
        return quality([tally for _, tally in sorted(self.tallies.items())]) if self.num_samples else None
