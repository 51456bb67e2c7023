"""What the main server does when a client calls.

`AttendHandler` serves the stream Attend, one for each connected client: the client joins, comes back in the middle of a
round, leaves. `TrainHandler` serves the stream Train, one for each client and round: every batch is stepped once and answered
with a gradient. `SharedState` is what these handlers share with the loop over rounds (`main_server`): the clients, the open
round, and how a client is dropped. The stream Evaluate is served by `remote_evaluation`.
"""

import asyncio
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from hsfl.deploy.admin.admission import Admission, new_member, tell_benched
from hsfl.deploy.admin.fleet_control import FleetControl
from hsfl.deploy.compute_queue import ComputeQueue
from hsfl.deploy.logs import MOST_LINES, LineLimit, Log
from hsfl.deploy.main.client_counts import ClientCounts
from hsfl.deploy.main.cut_planner import CutPlanner
from hsfl.deploy.main.edge_link import EdgeLink
from hsfl.deploy.main.main_round import Evaluation, MainRound, Tail
from hsfl.deploy.main.roster import Member, Roster
from hsfl.deploy.metrics import Metrics
from hsfl.deploy.model_kit import ModelKit
from hsfl.deploy.settings import MainSettings, sent_settings
from hsfl.deploy.trust.expiry import expires_soon
from hsfl.deploy.trust.identity import caller
from hsfl.deploy.wire.client_messages import (
    Alive,
    Batch,
    End,
    Ended,
    Enter,
    Entered,
    Hello,
    Leave,
    Ready,
    RoundOver,
    Welcome,
)
from hsfl.deploy.wire.coded_tensors import coded_bytes
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.message_fields import MOST_SAMPLES
from hsfl.deploy.wire.messages import expect_any_message, expect_message, pack_message
from hsfl.deploy.wire.transport import read_request, read_request_or_none
from hsfl.deploy.wire.versions import own_versions, version_differences
from hsfl.errors import InputError


@dataclass(eq=False)
class SharedState:
    """What the main server's handlers and its loop over rounds share. planner: chooses cuts. edge: the link to the edge
    server. compute: the compute thread and its queue. control: who is benched, and what the operator ordered."""

    settings: MainSettings
    kit: ModelKit
    planner: CutPlanner
    roster: Roster
    edge: EdgeLink
    compute: ComputeQueue
    log: Log
    metrics: Metrics
    control: FleetControl
    counts: ClientCounts  # of each client
    open_round: MainRound | None = None
    evaluation: Evaluation | None = None  # by the clients' samples, while one is under way
    waits_for: int | None = None  # number of clients that the next round needs, while there are fewer
    drops: dict[str, int] = field(default_factory=dict)  # number of drops since the start of this process, by client

    def drop(self, seat: int, reason: str, sentence: str) -> None:
        """Leave a client out of the open round. A client on which the servers have agreed stays in, as its update is in
        their sums, and is dropped only if the sums are not swapped. reason: of `metrics.REASONS`."""
        open_round = self.open_round
        if open_round is None or seat not in open_round.tails:
            return
        if seat in open_round.agreed:
            open_round.postponed_drops.append((seat, reason, sentence))
            return
        if not open_round.drop(seat, reason, sentence):
            return
        name = open_round.tails[seat].name
        self.log.event(
            "client dropped", "warning", client=name, round=open_round.round + 1, reason=reason, why=sentence
        )
        self.metrics.dropped(reason)
        self.counts.dropped(seat, name, reason)
        self.drops[name] = self.drops.get(name, 0) + 1
        self.roster.send(seat, pack_message(RoundOver(open_round.round, open_round.attempt, False, sentence[:1000])))


class AttendHandler:
    """The handler of the stream Attend."""

    def __init__(self, shared: SharedState) -> None:
        self.shared = shared
        self.admission = Admission(shared)
        self.lines = LineLimit(shared.log, MOST_LINES)  # a client may join and go as often as it likes

    async def attend(self, messages: Any, context: Any) -> None:
        """Serve a client's connection for as long as the client stays."""
        hello, _ = expect_message(await read_request(context), Hello)
        caller().must_be(hello.name)
        await self.admission.check(hello.name, context)
        seat = self.shared.roster.seat(hello.name)
        self.shared.roster.joining.add(hello.name)
        ready = None
        try:
            ready = await self._await_ready(hello.name, seat, context)
        finally:
            if ready is None:
                self.shared.roster.give_up(hello.name)
        if ready is not None:
            await self._serve_member(hello.name, seat, ready, context)

    async def _await_ready(self, name: str, seat: int, context: Any) -> Ready | None:
        """Welcome a client, and return what it says of itself when it can train; None if it went before that."""
        kit, evaluates = self.shared.kit, self.shared.settings.evaluate == "clients"
        self.lines.event("client joins", name, level="info", seat=seat)
        welcome = Welcome(seat, sent_settings(kit.config), list(kit.input_shape), kit.num_classes, evaluates)
        await context.write(pack_message(welcome))
        content = await read_request_or_none(context)
        answer = Leave("its connection ended") if content is None else expect_any_message(content, Ready, Leave)[0]
        if isinstance(answer, Leave):
            self.lines.event("client left before it was ready", name, level="info", why=answer.why)
            return None
        self._check_ready(name, seat, answer)
        await self.admission.check(name, context)  # another device may have become ready meanwhile
        if self.shared.roster.seat(name) != seat:  # another connection of this client was refused meanwhile
            raise InputError(f"{name}'s seat was given to another client; start this client again")
        self.shared.planner.join(seat, answer)
        return answer

    async def _serve_member(self, name: str, seat: int, ready: Ready, context: Any) -> None:
        """Serve a client that is ready, until it goes."""
        member = new_member(name, seat, ready, context)
        self.shared.roster.join(member)
        self._note_device(name, seat, ready)
        self.shared.metrics.clients.set(len(self.shared.roster.members))
        leave_watch = asyncio.create_task(self._await_leave(member, context))
        try:
            await self._resume_round(member)
            tell_benched(self.shared.control, member)
            while (message := await member.outbox.get()) is not None:
                await context.write(message)
        finally:
            leave_watch.cancel()
            member.gone.set()
            if self.shared.roster.leave(member):
                event = "client left" if member.is_leaving else "client's connection ended"
                self.lines.event(event, name, level="info")
                if self.shared.evaluation is not None:
                    self.shared.evaluation.leave(seat)
            self.shared.metrics.clients.set(len(self.shared.roster.members))

    def _note_device(self, name: str, seat: int, ready: Ready) -> None:
        """Log who has joined with which versions, and warn of other versions than this server's, and of a certificate that
        expires soon."""
        versions = ready.versions
        samples = sum(ready.class_counts)
        self.lines.event("client joined", name, level="info", seat=seat, samples=samples, **asdict(versions))
        if differences := version_differences(versions, own_versions()):
            self.lines.event("client runs other versions than this server", name, **differences)
        days = self.shared.counts.joined(seat, name, caller().valid_until).certificate_days
        if days is not None and expires_soon(days):
            self.lines.event("client's certificate expires soon", name, days=round(days, 1))

    def _check_ready(self, name: str, seat: int, ready: Ready) -> None:
        self.shared.kit.check_fingerprint(ready.fingerprint, name)
        if len(ready.class_counts) != self.shared.kit.num_classes or not sum(ready.class_counts):
            raise InputError(
                f"{name} has samples of {len(ready.class_counts)} classes, or none; {self.shared.kit.num_classes} are trained"
            )
        if sum(ready.class_counts) > MOST_SAMPLES:
            raise InputError(
                f"{name} has {sum(ready.class_counts)} samples; at most {MOST_SAMPLES} are taken of a client"
            )
        self.shared.planner.check_memory(name, seat, ready.measured.memory_bits)

    async def _await_leave(self, member: Member, context: Any) -> None:
        """Wait until a client says that it leaves, or its connection breaks; then its connection ends."""
        try:
            while (content := await read_request_or_none(context)) is not None:
                if isinstance(expect_any_message(content, Leave, Alive)[0], Leave):
                    member.is_leaving = True
                    self.shared.drop(member.seat, "disconnected", "it left")
                    return
                member.answered_s = asyncio.get_running_loop().time()
                member.answered.set()
        except WireError as error:
            self.lines.event("message refused", member.name, error.reason, why=error.sentence)
        finally:
            member.outbox.put_nowait(None)

    async def _resume_round(self, member: Member) -> None:
        """A client that comes back in the middle of a round goes on, or begins its round anew if it was restarted."""
        open_round = self.shared.open_round
        tail = None if open_round is None else open_round.tails.get(member.seat)
        if open_round is None or tail is None or tail.dropped is not None or open_round.is_complete(member.seat):
            return
        if member.ready.holds != open_round.attempt:
            async with tail.lock:
                tail.restart()
        # The round may have ended, or the client been dropped, while a step held the lock.
        if open_round is self.shared.open_round and tail.dropped is None:
            self.shared.roster.send(member.seat, pack_message(open_round.order(member.seat)))


NO_FAULT = ("stale", "replaced", "ended")  # reasons for which nobody is dropped


class TrainHandler:
    """The handler of the stream Train."""

    def __init__(self, shared: SharedState) -> None:
        self.shared = shared
        self._steps: set[asyncio.Task[bytes]] = set()  # steps that are under way

    async def train(self, messages: Any, context: Any) -> None:
        """Answer a client's batches of a round."""
        enter, _ = expect_message(await read_request(context), Enter)
        open_round, tail = self._find_tail(enter)
        stream = object()
        async with tail.lock:
            await context.write(pack_message(Entered(tail.enter(stream))))
        try:
            while (content := await read_request_or_none(context)) is not None:
                message, tensors = expect_any_message(content, Batch, End)
                if isinstance(message, End):
                    async with tail.lock:
                        self._check_open(open_round, tail)
                        tail.check_stream(stream)
                        # Not in the queue, behind somebody else's step: the client's upload waits for the answer.
                        await asyncio.to_thread(tail.finish, message)
                    open_round.changed.set()
                    await context.write(pack_message(Ended()))
                    return
                await context.write(await self._step(open_round, tail, message, tensors, stream))
        except WireError as error:
            if error.reason not in NO_FAULT:
                self.shared.drop(tail.seat, error.reason, error.sentence)
            raise

    def _find_tail(self, enter: Enter) -> tuple[MainRound, Tail]:
        """The round and the tail of the client that calls."""
        open_round, name = self.shared.open_round, caller().name
        if open_round is None or enter.attempt != open_round.attempt:
            raise WireError("stale", "that attempt at the round is over")
        tail = next((tail for tail in open_round.tails.values() if tail.name == name), None)
        if tail is None or tail.dropped is not None:
            raise WireError("stale", f"{name} has no part in this round, or not any more")
        return open_round, tail

    def _check_open(self, open_round: MainRound, tail: Tail) -> None:
        if open_round is not self.shared.open_round or tail.dropped is not None:
            raise WireError("stale", "the round is over for this client")

    async def _step(
        self, open_round: MainRound, tail: Tail, message: Batch, tensors: dict[str, Any], stream: object
    ) -> bytes:
        """The answer to a batch. A step that has begun is counted even if its stream breaks: the weights have moved.
        The client sends the batch again on the next stream and gets the same answer."""
        step = asyncio.create_task(self._step_once(open_round, tail, message, tensors, stream))
        self._steps.add(step)
        step.add_done_callback(self._forget_step)
        return await asyncio.shield(step)

    def _forget_step(self, step: "asyncio.Task[bytes]") -> None:
        self._steps.discard(step)
        if not step.cancelled():
            step.exception()  # whoever still listens has heard it

    async def _step_once(
        self, open_round: MainRound, tail: Tail, message: Batch, tensors: dict[str, Any], stream: object
    ) -> bytes:
        async with tail.lock:
            self._check_open(open_round, tail)
            if tail.is_repeated(message, stream):
                return tail.last_answer
            if not tail.takes(tensors) or tail.working_copy is None:
                raise WireError("protocol", f"a batch with tensors {sorted(tensors)}, not smashed and labels")
            cost = tensors["labels"].numel() * float(self.shared.planner.cost.server_flops[tail.cut])
            weight = open_round.plan.weight(tail.seat)
            way_s = open_round.plan.way_s(tail.seat, 1 - tail.step / tail.steps.count)
            done = await self.shared.compute.timed(
                lambda: self._compute_step(open_round, tail, tensors), tail.seat, cost, weight, way_s
            )
            loss, gradient = done.answer
            up_bytes = coded_bytes("smashed", tensors)
            self.shared.metrics.carried("client_main", "up", up_bytes)
            self.shared.metrics.carried("client_main", "down", coded_bytes("gradient", gradient))
            return tail.answer(loss, gradient, done.waited_s, done.took_s, up_bytes)

    def _compute_step(
        self, open_round: MainRound, tail: Tail, tensors: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Do the step, in its turn. The round may have ended while the step waited, and its working copy may be another client's
        by then: such a step is refused. Whatever else goes wrong in a step drops this client alone."""
        self._check_open(open_round, tail)
        try:
            return tail.compute(tensors)
        except WireError:
            raise
        except Exception as error:
            self.shared.log.event("a step failed here", "error", error=error, client=tail.name)
            raise WireError("other", "the step cannot be done; the main server's log says why") from None
