"""Rounds after which the loss on the operator's own test samples jumps: `on_jump`.

A loss jumps where it is no number, or more than `jump` times the loss of the model with which the round began. With "warn" that is
told. With "reject" the round is made again without one client: both servers keep every kept client's side until the round ends anyway,
so each client is left out in turn, the sums are swapped anew, and the client is dropped whose leaving-out gives the smallest loss, if
that is no jump. No client trains again. Where no single client mends it, as with two who attack together, the round counts as it was.

The cost of a rejected round: a swap of sums and a test for each client, and one swap more. Memory: nothing besides the sides.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hsfl.deploy.admin.fleet_orders import fewest_clients
from hsfl.deploy.edge_server import ClientAtFault
from hsfl.deploy.main.edge_link import HeadWithdrawn
from hsfl.deploy.main.handlers import SharedState
from hsfl.deploy.main.main_round import MainRound
from hsfl.models.state import UnitState

SwapSums = Callable[[MainRound, Sequence[int]], Awaitable[UnitState]]  # the state after a round of these clients
TestLoss = Callable[[int, UnitState], Awaitable[float]]  # of the model that has seen so many rounds


def is_jump(before: float, after: float, factor: float) -> bool:
    """Whether a loss has jumped."""
    return not math.isfinite(after) or (math.isfinite(before) and after > factor * before)


class JumpWatch:
    """Tests the model after every round, before the round counts."""

    def __init__(self, shared: SharedState, swap: SwapSums, test: TestLoss) -> None:
        self.shared, self.swap, self.test = shared, swap, test
        self.last: tuple[int, float] | None = None  # rounds that a model had seen, and its loss

    async def settle(self, open_round: MainRound, before: UnitState, after: UnitState) -> UnitState:
        """The state that counts. before, after: the main server's units as the round began, and with all agreed clients."""
        settings = self.shared.settings
        if settings.on_jump is None:
            return after
        loss_before, loss = await self._loss_before(open_round, before), await self.test(open_round.round + 1, after)
        if is_jump(loss_before, loss, settings.jump):
            self._log("test loss jumped", open_round, before=_shown(loss_before), after=_shown(loss))
            if settings.on_jump == "reject":
                after, loss = await self._mended(open_round, after, loss_before, loss)
        self.last = open_round.round + 1, loss
        return after

    async def _loss_before(self, open_round: MainRound, before: UnitState) -> float:
        if self.last is None or self.last[0] != open_round.round:
            self.last = open_round.round, await self.test(open_round.round, before)
        return self.last[1]

    async def _mended(
        self, open_round: MainRound, after: UnitState, loss_before: float, loss: float
    ) -> tuple[UnitState, float]:
        """The state and its loss without the client whose leaving-out mends the round; with all clients if there is none."""
        kept, factor = list(open_round.agreed), self.shared.settings.jump
        if len(kept) <= fewest_clients(self.shared):
            self._log("round not mended", open_round, why=f"it needs all of its {len(kept)} clients (min_clients)")
            return after, loss
        losses = dict[int, float]()
        for seat in kept:
            losses[seat] = await self._loss_without(open_round, kept, seat)
        offender = min(kept, key=lambda seat: losses[seat] if math.isfinite(losses[seat]) else math.inf)
        if is_jump(loss_before, losses[offender], factor):
            self._log("round not mended", open_round, why="the loss jumps whichever client is left out")
            return await self.swap(open_round, kept), loss
        rest = _without(kept, offender)
        after = await self.swap(open_round, rest)
        open_round.agreed = rest
        sentence = f"the test loss is {_shown(loss)} with its update and {_shown(losses[offender])} without"
        self.shared.drop(offender, "jump", sentence)
        return after, losses[offender]

    async def _loss_without(self, open_round: MainRound, kept: Sequence[int], seat: int) -> float:
        """The loss of a round without one client. A round that cannot be summed is no way out, and must not end the server."""
        try:
            state = await self.swap(open_round, _without(kept, seat))
        except (ClientAtFault, HeadWithdrawn) as error:
            self._log("round cannot be summed without a client", open_round, why=str(error))
            return math.inf
        return await self.test(open_round.round + 1, state)

    def _log(self, event: str, open_round: MainRound, **fields: Any) -> None:
        self.shared.log.event(event, "warning", round=open_round.round + 1, **fields)


def _without(kept: Sequence[int], seat: int) -> list[int]:
    return [other for other in kept if other != seat]


def _shown(loss: float) -> str:
    return f"{loss:.4g}"
