"""Who may attend as a client: nobody whom the operator has taken out, and of two devices with one bundle the one that was there first.

Where a device joins as a client that is connected already, the connection is asked for a sign of life (`Knock`). A device that
answers within ANSWER_S keeps its place, and the newcomer is refused in words. One that does not is gone, and the newcomer takes over, as after a dead link.
"""

import asyncio
from datetime import UTC, datetime
from typing import Any, NoReturn, Protocol

import grpc

from hsfl.deploy.admin.fleet_control import FleetControl
from hsfl.deploy.logs import LineLimit, Log
from hsfl.deploy.main.roster import Member, Roster
from hsfl.deploy.wire.client_messages import Benched, Knock
from hsfl.deploy.wire.messages import pack_message
from hsfl.deploy.wire.transport import TAKEN

ANSWER_S = 5.0  # for a connected device to answer


class Attended(Protocol):
    """What is needed of the main server's shared state."""

    roster: Roster
    control: FleetControl
    log: Log


class Admission:
    """The door of the stream Attend."""

    def __init__(self, shared: Attended) -> None:
        self.shared, self._seldom = shared, LineLimit(shared.log, 1)

    async def check(self, name: str, context: Any) -> None:
        """Refuse a device that may not attend under this name, in words: the call is aborted."""
        if (why := self.shared.control.state.kicked.get(name)) is not None:
            sentence = f"the operator has taken {name} out of this run: {why}"
            await self._refuse(name, context, grpc.StatusCode.PERMISSION_DENIED, "client refused", sentence)
        while (member := self._member(name)) is not None:
            if await is_alive(member):
                await self._refuse(name, context, TAKEN, "second device refused", _taken_sentence(member, context))
            elif self.shared.roster.leave(member):
                member.outbox.put_nowait(None)
                self.shared.log.event("another connection takes over from one that does not answer", client=name)

    def _member(self, name: str) -> Member | None:
        return next((member for member in self.shared.roster.members.values() if member.name == name), None)

    async def _refuse(self, name: str, context: Any, code: grpc.StatusCode, event: str, sentence: str) -> NoReturn:
        """Abort the call. The log says so once a minute, however often the device comes again."""
        self._seldom.event(event, name, why=sentence)
        await context.abort(code, sentence)
        raise AssertionError("to abort is to raise")


async def is_alive(member: Member) -> bool:
    """Whether the device at the other end of a connection answers."""
    asked_s = asyncio.get_running_loop().time()
    if asked_s - member.answered_s < ANSWER_S:
        return True  # it answered just now: a device that comes ever again does not make the other one work
    member.answered.clear()
    member.outbox.put_nowait(pack_message(Knock()))
    signs = [asyncio.ensure_future(event.wait()) for event in (member.answered, member.gone)]
    try:
        await asyncio.wait(signs, timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for sign in signs:
            sign.cancel()
    return member.answered_s >= asked_s and not member.gone.is_set()


def _taken_sentence(member: Member, context: Any) -> str:
    """Logs and refusals hold no addresses: whether it is the same one says which case it is. `hsfl status` shows the operator which."""
    place = "this address" if host_of(context) == member.host else "another address"
    return (
        f"{member.name} is connected from {place} since {member.since}; end one of the two devices, or give this one a "
        "certificate of its own (hsfl certs add)"
    )


def host_of(context: Any) -> str:
    """The address that a call comes from, without its port, as gRPC writes it (`ipv4:10.0.0.7`)."""
    return str(context.peer()).rpartition(":")[0]


def new_member(name: str, seat: int, ready: Any, context: Any) -> Member:
    """A client that has just become ready."""
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Member(name, seat, ready, host=host_of(context), since=since)


def tell_benched(control: FleetControl, member: Member) -> None:
    """Tell a client that is benched for how many rounds, and why."""
    if (bench := control.state.benched(member.name)) is not None:
        member.outbox.put_nowait(pack_message(Benched(*bench)))
