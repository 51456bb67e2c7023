"""The main server's link to the edge server: every question that the main server asks, and the swap of sums.

The edge server's answers are made in `hsfl.deploy.edge_server`. An edge server that is away is an EdgeLost here, and
`main_server` decides what follows.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from hsfl.deploy.model_kit import ModelKit
from hsfl.deploy.settings import sent_settings
from hsfl.deploy.trust.bundle import without_folder
from hsfl.deploy.wire.link_probe import LinkSpeed, measure_link
from hsfl.deploy.wire.messages import Message, expect_message, pack_message
from hsfl.deploy.wire.model_chunks import (
    both_results,
    collect,
    most_state_bytes,
    most_sum_bytes,
    read_sum,
    send,
    state_bytes,
    sum_bytes,
    unpack_state,
)
from hsfl.deploy.wire.server_messages import (
    AskNorms,
    Await,
    Begin,
    Clipped,
    Done,
    GiveUnits,
    Have,
    Norms,
    Open,
    Seat,
    Standing,
    Swap,
    TakeUnits,
)
from hsfl.deploy.wire.transport import REPLACED, Peer, read_message
from hsfl.deploy.wire.versions import UNTOLD
from hsfl.errors import InputError
from hsfl.models.state import UnitState
from hsfl.training.aggregate import PartialSum

CALL_S = 30.0  # time limit of calls that move little
LOAD_S = 600.0  # time limit of calls that move models


class EdgeLost(Exception):
    """The edge server does not answer, or has lost the open round."""


class HeadWithdrawn(Exception):
    """The edge server cannot sum a head that it held: the clients are to be agreed on again, without its client."""


class EdgeLink:
    """Questions to the edge server. A new channel is opened after every loss, so that a renewed certificate is taken up."""

    def __init__(self, address: str, certs: Path | None, run: str) -> None:
        self._address, self._certs, self._run = address, certs, run
        self._peer: Peer | None = None
        self.instance, self.versions = "", UNTOLD

    @property
    def peer(self) -> Peer:
        if self._peer is None:
            try:
                self._peer = Peer(self._address, "edge", "main", self._certs)
            except InputError as error:
                if self._certs is None:
                    raise
                sentence = without_folder(str(error), self._certs)  # good at the start, perhaps half renewed now
                raise EdgeLost(f"the certificate cannot be used: {sentence}") from None
        return self._peer

    async def close(self) -> None:
        """Forget the channel."""
        peer, self._peer = self._peer, None
        if peer is not None:
            await peer.close()

    async def _ask(self, method: str, message: Any, answer: type[Message], timeout_s: float = CALL_S) -> Message:
        try:
            return expect_message(await self.peer.ask(method, pack_message(message), timeout_s), answer)[0]
        except aio.AioRpcError as error:
            raise _lost(error) from None

    async def begin_run(self, kit: ModelKit) -> Standing:
        """Say what is trained, and hear which rounds and units the edge server holds."""
        message = Begin(self._run, sent_settings(kit.config), list(kit.input_shape), kit.num_classes)
        standing = await self._ask("Begin", message, Standing, LOAD_S)  # a small machine builds the model first
        kit.check_fingerprint(standing.fingerprint, "the edge server")
        self.instance, self.versions = standing.instance, standing.versions
        return standing

    async def open_round(self, round: int, attempt: str, seats: list[Seat], evaluates: bool = False) -> None:
        await self._ask("Open", Open(round, attempt, seats, evaluates), Done)

    async def await_heads(self, attempt: str, known: int, wait_s: float) -> Have:
        """Whose heads are complete or refused, answered when these are more than `known`, or after `wait_s`."""
        return await self._ask("Await", Await(attempt, known, wait_s), Have, wait_s + CALL_S)

    async def ask_norms(self, attempt: str, kept: list[int]) -> list[int]:
        """The squared length of the update of each of these clients' heads."""
        norms = (await self._ask("AskNorms", AskNorms(attempt, kept), Norms, LOAD_S)).squared
        if len(norms) != len(kept):
            raise InputError(
                f"edge server: {len(norms)} lengths for {len(kept)} clients; install the same hsfl on both"
            )
        return norms

    async def give_factors(self, attempt: str, kept: list[int], factors: list[float]) -> None:
        """Tell what the updates of these clients are multiplied with."""
        await self._ask("Clip", Clipped(attempt, kept, factors), Done)

    async def measure_link(self) -> LinkSpeed:
        """How fast the link between the servers is."""
        try:
            return await measure_link(self.peer)
        except aio.AioRpcError as error:
            raise _lost(error) from None

    async def take_units(self, round: int, units: UnitState) -> None:
        """Give the edge server units that it lacks."""
        try:
            call = self.peer.stream("TakeUnits", LOAD_S)
            await call.write(pack_message(TakeUnits(round, units.start, units.stop)))
            await send(call, state_bytes(units))
            expect_message(await read_message(call), Done)
        except aio.AioRpcError as error:
            raise _lost(error) from None

    async def give_units(self, round: int, like: UnitState) -> UnitState:
        """Units of a round that the edge server holds. like: a state of the units that are wanted."""
        try:
            call = self.peer.stream("GiveUnits", LOAD_S)
            await call.write(pack_message(GiveUnits(round, like.start, like.stop)))
            await call.done_writing()
            return unpack_state(await collect(lambda: read_message(call), most_state_bytes(like)), like)
        except aio.AioRpcError as error:
            raise _lost(error) from None

    async def swap_sums(
        self, message: Swap, main_sum: PartialSum | None, finish: Callable[[PartialSum | None], Awaitable[UnitState]]
    ) -> UnitState:
        """End the round with the agreed clients: the servers swap their sums of the common units, both sums
        at the same time. When this returns, the next round is on the edge server's disk.

        main_sum: the main server's sum; None without common units. finish: makes the state after the round from the edge server's
        sum, while the edge server does so, too. Returns that state.
        """
        try:
            call = self.peer.stream("Swap", LOAD_S)
            await call.write(pack_message(message))
            edge_sum = None
            if main_sum is not None:
                limit = most_sum_bytes(main_sum.total)
                content, _ = await both_results(
                    collect(lambda: read_message(call), limit), send(call, sum_bytes(main_sum))
                )
                edge_sum = read_sum(content, main_sum)
            after = await finish(edge_sum)
            expect_message(await read_message(call), Done)
            return after
        except aio.AioRpcError as error:
            raise _lost(error) from None


def _lost(error: aio.AioRpcError) -> Exception:
    """The exception for a failed call: InputError if the edge server says what is wrong, EdgeLost if it is away, HeadWithdrawn
    if one head is at fault."""
    if error.code() == REPLACED:
        return HeadWithdrawn(error.details())
    if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
        return InputError(f"edge server: {error.details()}")
    if (
        error.code() == grpc.StatusCode.PERMISSION_DENIED
    ):  # an expired certificate is UNAUTHENTICATED: come again with a new one
        return InputError(f"the edge server refuses this main server: {error.details()}")
    return EdgeLost(f"{error.code().name.lower()}: {error.details()}")
