"""A client process: it joins the main server, waits for rounds, takes part in each, and reconnects after a lost link.

After a lost link `run_and_reconnect` joins again, with growing pauses, until the main server has been away for `away_s`. A
round that is under way goes on meanwhile: its streams are made anew by `client_round.RoundWork._reconnect_until_done`, and
the client says in Ready which attempt it still holds.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch
from grpc import aio

from hsfl.deploy.client_round import Abandoned, Channels, LostOfHead, OpenRound, RoundWork, evaluate_head
from hsfl.deploy.client_setup import ClientSetup, prepare_setup
from hsfl.deploy.logs import MOST_ORDERS, LineLimit, Log, scrubbed
from hsfl.deploy.settings import ClientSettings
from hsfl.deploy.trust.bundle import without_folder
from hsfl.deploy.wire.client_messages import (
    Alive,
    Benched,
    Evaluate,
    Hello,
    Knock,
    Leave,
    OwnSpeeds,
    Ready,
    Round,
    RoundOver,
    Stop,
    Welcome,
)
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.link_probe import measure_link
from hsfl.deploy.wire.messages import expect_any_message, expect_message, pack_message
from hsfl.deploy.wire.transport import (
    FULL,
    LEAST_MESSAGE_BYTES,
    TAKEN,
    Backoff,
    Peer,
    is_refusal,
    is_too_long,
    read_message,
)
from hsfl.deploy.wire.versions import own_versions
from hsfl.errors import InputError
from hsfl.training.speed import keep_freed_memory, machine_memory_bits
from hsfl.training.step import Part

STEADY_S = 5.0  # a connection that lasts so long is no join that is lost at once
LEAVE_S = 2.0  # for the main server to read why a client goes


class JoinFailed(Exception):
    """The client cannot join at this moment and will try again. why: a few words for the log. is_taken: another device has
    this client's place."""

    def __init__(self, sentence: str, why: str, is_taken: bool = False) -> None:
        super().__init__(sentence)
        self.why, self.is_taken = why, is_taken


def _join_failure(error: aio.AioRpcError, server: str, name: str) -> JoinFailed:
    """Why a server is not there for this client."""
    if error.code() == TAKEN:
        return JoinFailed(f"another device is connected as {name}; trying again", error.details() or "", is_taken=True)
    if is_too_long(error):
        sentence = f"the {server} server sends a longer message than {name} takes; trying again"
        return JoinFailed(sentence, error.details() or "")
    if error.code() == FULL:
        return JoinFailed(f"the {server} server takes no more of {name}; trying again", error.details() or "")
    return JoinFailed(f"the {server} server is away; trying again", error.code().name.lower())


class ClientProcess:
    """The life of a client process."""

    def __init__(self, settings: ClientSettings, certs: Path | None, log: Log) -> None:
        self.settings, self.certs, self.log = settings, certs, log
        keep_freed_memory()
        self.thread = ThreadPoolExecutor(1, "hsfl-compute", self._begin_thread)
        self.setup: ClientSetup | None = None
        self.welcome: Welcome | None = None  # for which `setup` was prepared
        self.joined = False  # whether the client has joined before: from then on the seat is this client's
        self.measured: OwnSpeeds | None = None
        self.channels: Channels | None = None
        self.call: Any = None  # the stream to the main server
        self.main_connected = asyncio.Event()  # set while the main server is there
        self.job: OpenRound | None = None
        self.lost: LostOfHead | None = None  # of this client's heads, with the last one that was counted
        self.work: asyncio.Task[None] | None = None
        self.evaluation: asyncio.Task[None] | None = None
        self.working_copy: Part | None = None  # of the head, used again while the cut stays
        self.lines = LineLimit(log, MOST_ORDERS)  # a main server may order and refuse as often as it likes
        self.seldom, self.last_failure = LineLimit(log, 1), cast(JoinFailed | None, None)
        self.reachability_problem = ""  # what `diagnose` said of the servers before the start

    def _begin_thread(self) -> None:
        if self.settings.threads is not None:
            torch.set_num_threads(self.settings.threads)

    async def _compute(self, work: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.thread, work, *arguments)

    async def run_and_reconnect(self) -> str:
        """Take part until the main server has no more rounds, joining again after every lost link. Returns why it ended: also
        when the main server has been away for longer than `away_s`."""
        backoff, clock = Backoff(), asyncio.get_running_loop().time
        seen_s = clock()
        while True:
            try:
                return await self._attend_once(backoff)
            except aio.AioRpcError as error:
                if is_refusal(error):
                    raise InputError(f"the main server refuses {self.settings.name}: {error.details()}") from None
                self._log_seldom(_join_failure(error, "main", self.settings.name))
            except JoinFailed as failure:
                self._log_seldom(failure)
            except WireError as error:
                self.lines.event("message refused", reason=error.reason, why=error.sentence)
            finally:
                if self.call is not None:
                    seen_s = clock()
                self.call = None
                self.main_connected.clear()
                if self.channels is not None:
                    await self.channels.close()
            if clock() - seen_s > self.settings.away_s:
                return await self._give_up_reconnecting()
            await backoff.wait()

    def _log_seldom(self, failure: JoinFailed) -> None:
        """Of many attempts that fail alike, log one a minute; after a connection that lasted, log them anew."""
        self.last_failure = failure
        self.seldom.event(str(failure), why=failure.why)

    async def _give_up_reconnecting(self) -> str:
        """Stop trying: if this client was away when the last round ended, the main server will never be back."""
        await self._abandon_round()
        if self.last_failure is not None and self.last_failure.is_taken:
            raise InputError(f"{self.last_failure.why}; this device tried for {self.settings.away_s:g} s (away_s)")
        sentence = f"the main server was away for {self.settings.away_s:g} s (away_s)"
        if self.setup is None:
            advice = self.reachability_problem or "is it running, and is main in this client's file its address?"
            raise InputError(f"{sentence} and was never reached; {advice}")
        return f"{sentence}: its rounds may be over; start this client again if they are not"

    async def _attend_once(self, backoff: Backoff) -> str:
        """Join the main server and take its orders until the connection ends. Returns why the main server says Stop."""
        name = self.settings.name
        self.channels = self._open_channels()
        call = self.channels.main.stream("Attend")
        await call.write(pack_message(Hello(name)))
        welcome, _ = expect_message(await read_message(call), Welcome)
        if self.joined and self.setup is not None and self.setup.seat != welcome.seat:
            raise InputError(f"the main server gives {name} another seat than before; start this client again")
        if welcome != self.welcome:
            await self._begin_run(call, welcome)
        setup = self.setup
        assert setup is not None, "prepared for this Welcome"
        self.measured = self.measured or await self._measure(setup)
        if (gradient_bytes := setup.kit.gradient_bytes) > LEAST_MESSAGE_BYTES:
            self.channels.long = self._open_peer("main", gradient_bytes)
        holds = self.job.order.attempt if self.job is not None and not self.job.over else None
        ready = Ready(setup.kit.fingerprint, list(setup.class_counts), self.measured, holds, own_versions())
        await call.write(pack_message(ready))
        self.call, self.joined = call, True
        self.main_connected.set()
        self.lines.event("joined", level="info", seat=setup.seat, samples=sum(setup.class_counts))
        steady = asyncio.get_running_loop().call_later(STEADY_S, self._note_steady, backoff)
        try:
            return await self._follow_orders(setup, call)
        finally:
            steady.cancel()

    def _note_steady(self, backoff: Backoff) -> None:
        """The connection lasts: after its end the client tries again soon. After a join that is lost at once it does not."""
        backoff.reset()
        self.seldom.forget()

    async def _follow_orders(self, setup: ClientSetup, call: Any) -> str:
        """Do what the main server says on the stream `call`, until it says Stop; returns why it does."""
        assert self.channels is not None
        while True:
            message, _ = expect_any_message(await read_message(call), Round, RoundOver, Evaluate, Benched, Knock, Stop)
            if isinstance(message, Stop):
                await self._abandon_round()
                return message.why
            if isinstance(message, Round):
                await self._take_order(setup, message)
            elif isinstance(message, Evaluate):
                self._check_cut(setup, message.cut)
                if self.evaluation is not None:
                    self.evaluation.cancel()  # one at a time, however many are asked for
                self.evaluation = asyncio.create_task(self._evaluate(setup, message, self.channels))
            elif isinstance(message, Benched):
                self._log_benched(message)
            elif isinstance(message, Knock):
                await call.write(pack_message(Alive()))
            elif self.job is not None and message.attempt == self.job.order.attempt:
                self._end_round(message)

    def _log_benched(self, message: Benched) -> None:
        if message.rounds is None:
            self.lines.event("benched until the operator resumes this client", why=message.why)
        else:
            self.lines.event("benched", rounds=message.rounds, why=message.why)

    def _open_channels(self) -> Channels:
        """The channels for messages that are short whatever is trained."""
        return Channels(self._open_peer("main"), self._open_peer("edge"))

    def _open_peer(self, server: str, largest_bytes: int = 0) -> Peer:
        """A channel with the certificate that is in the bundle now. A bundle that was good at the start may be half
        renewed: then the client tries again. largest_bytes: of the messages that the server sends."""
        name, certs = self.settings.name, self.certs
        try:
            return Peer(getattr(self.settings, server), server, name, certs, largest_bytes)
        except InputError as error:
            if self.setup is None or certs is None:
                raise
            raise JoinFailed(
                "the certificate cannot be used; trying again", without_folder(str(error), certs)
            ) from None

    async def _begin_run(self, call: Any, welcome: Welcome) -> None:
        """Prepare for the run that the main server describes. It may be another one than before the connection was lost, and what was made
        for that one is forgotten."""
        await self._abandon_round()
        self.setup = self.measured = self.working_copy = self.welcome = self.lost = None
        self.setup, self.welcome = await self._prepare(call, welcome), welcome

    async def _prepare(self, call: Any, welcome: Welcome) -> ClientSetup:
        """The client's data and model. If they cannot be read or built, the main server is told why, for its log."""
        try:
            setup: ClientSetup = await self._compute(prepare_setup, self.settings, welcome)
        except InputError as error:
            with suppress(aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(pack_message(Leave(scrubbed(str(error)))))
                await call.done_writing()
                await asyncio.wait_for(
                    call.read(), LEAVE_S
                )  # the words have arrived when the main server ends the stream
            raise
        return setup

    async def _measure(self, setup: ClientSetup) -> OwnSpeeds:
        """Measure FLOPs per second of the real units, the memory, and the rates to both servers."""
        assert self.channels is not None
        main = await measure_link(self.channels.main)
        try:
            edge = await measure_link(self.channels.edge)
        except aio.AioRpcError as error:
            if is_refusal(error):
                raise InputError(f"the edge server refuses {self.settings.name}: {error.details()}") from None
            raise _join_failure(error, "edge", self.settings.name) from None
        speed = await self._compute(setup.speed, self.settings.measure_s)
        coding = await self._compute(setup.coding_seconds, speed, self.settings.measure_s)
        encode_s, decode_s = ([seconds[way] for seconds in coding.values()] for way in (0, 1))
        return OwnSpeeds(
            speed.flops_per_s, main.up_bps, main.down_bps, edge.up_bps, edge.down_bps, machine_memory_bits(), main.delay_s,
            list(speed.unit_forward_s), list(speed.unit_backward_s), list(coding), encode_s, decode_s,
        )  # fmt: skip

    async def _take_order(self, setup: ClientSetup, order: Round) -> None:
        """Take part in a round, or go on with the round that is open here."""
        job = self.job
        if job is not None and not job.over and job.order.attempt == order.attempt:
            if self.work is not None and self.work.done():
                self._start_work(self._upload_again(setup, job))
            return
        self._check_cut(setup, order.cut)
        setup.kit.codecs_of(order.codec)  # an error, before anything is done, where the settings have no such codec
        self.lost = self._lost_of(order.counted)
        await self._abandon_round()
        self.lines.event("round begins", level="info", round=order.round + 1, cut=order.cut)
        self.job = OpenRound(order, lost_before=self.lost)
        self._start_work(self._do_round(setup, self.job))

    def _lost_of(self, attempt: str | None) -> LostOfHead | None:
        """What was lost with the head of this attempt, if this process sent it: only the main server knows which head was counted."""
        known = (self.lost, None if self.job is None else self.job.lost)
        return next((lost for lost in known if lost is not None and lost.attempt == attempt), None)

    def _check_cut(self, setup: ClientSetup, cut: int) -> None:
        """Refuse a cut below `min_cut`: the device decides what leaves it, whatever the main server plans."""
        least, most = self.settings.min_cut, setup.kit.num_units
        if not least <= cut <= most:
            raise InputError(
                f"the main server asks for cut {cut}, and this client takes {least} to {most}; at cut 0 its inputs would leave it: "
                "set min_cut in its file only if they may"
            )

    def _start_work(self, work: Any) -> None:
        self.work = asyncio.create_task(work)

    def _end_round(self, message: RoundOver) -> None:
        assert self.job is not None
        self.job.abandon()
        if message.kept:
            self.lines.event("round complete", level="info", round=message.round + 1)
        else:
            self.lines.event("not in this round", round=message.round + 1, why=message.why)

    async def _abandon_round(self) -> None:
        """End the work on a round that is over."""
        if self.job is not None:
            self.job.abandon()
        for task in (self.work, self.evaluation):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        self.job = self.work = self.evaluation = None

    def _round_work(self, setup: ClientSetup, job: OpenRound) -> RoundWork:
        if self.working_copy is None or self.working_copy.stop != job.order.cut:
            self.working_copy = setup.kit.make_part(0, job.order.cut)
        return RoundWork(setup, job, self._channels, self.working_copy)

    async def _channels(self) -> Channels:
        """The channels, as soon as the main server is there."""
        await self.main_connected.wait()
        assert self.channels is not None
        return self.channels

    async def _do_round(self, setup: ClientSetup, job: OpenRound) -> None:
        await self._finish_or_log(job, self._fetch_train_upload(setup, job))

    async def _fetch_train_upload(self, setup: ClientSetup, job: OpenRound) -> None:
        work = self._round_work(setup, job)
        head = await work.fetch_head()
        end = await self._compute(work.train, head)
        await work.end(end)
        self.lines.event("batches complete", level="info", round=job.order.round + 1)
        await self._compute(job.pack, setup.kit.head_files)
        await work.upload_head()

    async def _upload_again(self, setup: ClientSetup, job: OpenRound) -> None:
        await self._finish_or_log(job, self._round_work(setup, job).upload_head())

    async def _finish_or_log(self, job: OpenRound, work: Any) -> None:
        """Do the work of a round. If it fails, the failure is logged, and the client waits for the next round."""
        try:
            await work
        except Abandoned as error:
            self.lines.event("left the round", level="info", round=job.order.round + 1, why=str(error))
        except WireError as error:
            job.abandon()
            self.lines.event("message refused", reason=error.reason, why=error.sentence)
        except Exception as error:
            job.abandon()
            self.lines.event("the round failed here", level="error", error=error, round=job.order.round + 1)

    async def _evaluate(self, setup: ClientSetup, order: Evaluate, channels: Channels) -> None:
        """Let the client's test samples judge the averaged model. If this fails, only the other clients' samples do."""
        try:
            num_samples = await evaluate_head(setup, order, channels, self._compute)
            self.lines.event("test samples counted", level="info", round=order.round, samples=num_samples)
        except (WireError, aio.AioRpcError, aio.UsageError, asyncio.InvalidStateError) as error:
            why = error.code().name.lower() if isinstance(error, aio.AioRpcError) else str(error)
            self.lines.event("test samples not counted", round=order.round, why=why)
        except Exception as error:
            self.lines.event("the evaluation failed here", level="error", error=error, round=order.round)

    async def leave(self) -> None:
        """Tell the main server, if it is connected, that this client goes; then close the channels."""
        await self._abandon_round()
        if self.call is not None:
            with suppress(aio.AioRpcError, asyncio.InvalidStateError):
                await self.call.write(pack_message(Leave("it was told to end")))
                await self.call.done_writing()
        if self.channels is not None:
            await self.channels.close()
