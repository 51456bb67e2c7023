"""The main server's door for clients: who joins, who comes back in the middle of a round, who leaves."""

import asyncio
from typing import Any

from hsfl.deploy.client_messages import Hello, Leave, Ready, Welcome
from hsfl.deploy.desk import Desk
from hsfl.deploy.fields import MOST_SAMPLES
from hsfl.deploy.frames import WireError
from hsfl.deploy.identity import caller
from hsfl.deploy.messages import expect, expect_any, pack
from hsfl.deploy.roster import Member
from hsfl.deploy.serving import hear, must_hear
from hsfl.deploy.settings import sent_settings
from hsfl.errors import InputError


class Attending:
    """The handler of the stream Attend."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def attend(self, messages: Any, context: Any) -> None:
        """Serve a client's connection for as long as the client stays."""
        hello, _ = expect(await must_hear(context), Hello)
        caller().must_be(hello.name)
        seat = self.desk.roster.seat(hello.name)
        self.desk.roster.joining.add(hello.name)
        ready = None
        try:
            ready = await self._ready(hello.name, seat, context)
        finally:
            if ready is None:
                self.desk.roster.give_up(hello.name)
        if ready is not None:
            await self._attend(hello.name, seat, ready, context)

    async def _ready(self, name: str, seat: int, context: Any) -> Ready | None:
        """What a client says of itself when it can train; None if it went before."""
        kit, evaluates = self.desk.kit, self.desk.settings.evaluate == "clients"
        self.desk.log.event("client joins", client=name, seat=seat)
        welcome = Welcome(seat, sent_settings(kit.config), list(kit.input_shape), kit.num_classes, evaluates)
        await context.write(pack(welcome))
        content = await hear(context)
        answer = Leave("its connection ended") if content is None else expect_any(content, Ready, Leave)[0]
        if isinstance(answer, Leave):
            self.desk.log.event("client left before it was ready", client=name, why=answer.why)
            return None
        self._check_ready(name, seat, answer)
        if self.desk.roster.seat(name) != seat:  # another connection of this client was refused meanwhile
            raise InputError(f"{name}'s seat was given to another client; start this client again")
        self.desk.planner.join(seat, answer)
        return answer

    async def _attend(self, name: str, seat: int, ready: Ready, context: Any) -> None:
        """Serve a client that is ready, until it goes."""
        member = Member(name, seat, ready)
        self.desk.roster.join(member)
        self.desk.log.event("client joined", client=name, seat=seat, samples=sum(ready.class_counts))
        self.desk.metrics.clients.set(len(self.desk.roster.members))
        hearing = asyncio.create_task(self._hear_member(member, context))
        try:
            await self._welcome_back(member)
            while (message := await member.outbox.get()) is not None:
                await context.write(message)
        finally:
            hearing.cancel()
            if self.desk.roster.leave(member):
                self.desk.log.event("client left" if member.goes else "client's connection ended", client=name)
                if self.desk.evaluation is not None:
                    self.desk.evaluation.leave(seat)
            self.desk.metrics.clients.set(len(self.desk.roster.members))

    def _check_ready(self, name: str, seat: int, ready: Ready) -> None:
        self.desk.kit.check_fingerprint(ready.fingerprint, name)
        if len(ready.class_counts) != self.desk.kit.num_classes or not sum(ready.class_counts):
            raise InputError(
                f"{name} has samples of {len(ready.class_counts)} classes, or none; {self.desk.kit.num_classes} are trained"
            )
        if sum(ready.class_counts) > MOST_SAMPLES:
            raise InputError(
                f"{name} has {sum(ready.class_counts)} samples; at most {MOST_SAMPLES} are taken of a client"
            )
        self.desk.planner.check_memory(name, seat, ready.measured.memory_bits)

    async def _hear_member(self, member: Member, context: Any) -> None:
        """Wait until a client says that it leaves, or its connection breaks; then its connection ends."""
        try:
            if (content := await hear(context)) is not None:
                expect(content, Leave)
                member.goes = True
                self.desk.drop(member.seat, "disconnected", "it left")
        except WireError as error:
            self.desk.log.event("message refused", "warning", client=member.name, reason=error.reason, why=error.words)
        finally:
            member.outbox.put_nowait(None)

    async def _welcome_back(self, member: Member) -> None:
        """A client that comes back in the middle of a round goes on, or begins its round anew if it was restarted."""
        open_round = self.desk.open_round
        tail = None if open_round is None else open_round.tails.get(member.seat)
        if open_round is None or tail is None or tail.dropped is not None or open_round.is_complete(member.seat):
            return
        if member.ready.holds != open_round.attempt:
            async with tail.lock:
                tail.restart()
        # The round may have ended, or the client been dropped, while a step held the lock.
        if open_round is self.desk.open_round and tail.dropped is None:
            self.desk.roster.send(member.seat, pack(open_round.order(member.seat)))
