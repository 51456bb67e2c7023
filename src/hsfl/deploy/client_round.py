"""What a client does in one round, and in one evaluation.

A round: fetch the head from the edge server, train it batch by batch with the main server, upload the trained head to the
edge server. Every stream may break and is then made anew (`RoundWork._reconnect_until_done`, `RoundWork.exchange`): a batch
that was sent already is sent again, and the main server answers it as before.

An evaluation: the averaged head runs on the client's own test samples, whose smashed data and labels go to the main server,
which counts hits. A client that holds all units counts itself and sends the counts. A broken stream is not made anew: the
other clients' samples judge the model alone.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from grpc import aio
from torch import Tensor

from hsfl.codec_table import UP
from hsfl.data.passes import RoundSteps
from hsfl.deploy.client_setup import ClientSetup
from hsfl.deploy.model_kit import ModelKit
from hsfl.deploy.wire.client_messages import (
    Batch,
    End,
    Ended,
    Enter,
    Entered,
    Evaluate,
    Evaluated,
    Fetch,
    Gradient,
    Round,
    Tallied,
    Upload,
    Uploaded,
)
from hsfl.deploy.wire.coded_heads import HeadFiles, PackedHead
from hsfl.deploy.wire.coded_tensors import is_coded_as, pack_coded, unpack_coded
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.messages import expect_any_message, expect_message, pack_message
from hsfl.deploy.wire.model_chunks import collect, most_state_bytes, send, unpack_state
from hsfl.deploy.wire.transport import Backoff, Peer, is_refusal, is_too_long, read_message
from hsfl.models.state import UnitState, load_state
from hsfl.training.batches import Images
from hsfl.training.evaluation import num_batches, tally
from hsfl.training.link import Link, Losses, draws_of
from hsfl.training.roles import Client
from hsfl.training.step import Part, StepKey, learning_rate

Answer = TypeVar("Answer")


class Abandoned(Exception):
    """The round is over for this client: the main server gave another order, or a server refused the client."""


@dataclass(frozen=True)
class LostOfHead:
    """What a codec has lost of a client's head on its way up (`link.model`), in an attempt and all before it."""

    attempt: str
    cut: int
    lost: Tensor


@dataclass(eq=False)
class OpenRound:
    """What the client holds of a round. over: no more work is done on it."""

    order: Round
    over: bool = False
    lost_before: LostOfHead | None = None  # with the client's last head that was counted
    sent: UnitState | None = None  # the head as it came down
    head: UnitState | None = None  # the trained head, once all batches are done
    upload: PackedHead | None = None  # the same as it travels
    call: Any = None  # the stream of batches
    awaited: Future[Any] | None = None  # what the compute thread waits for
    exchange_s: float = 0.0
    model_down_s: float = 0.0

    @property
    def lost(self) -> LostOfHead | None:
        """What is lost with this round's head, if the head is counted."""
        if self.upload is None or self.upload.lost is None:
            return None
        return LostOfHead(self.order.attempt, self.order.cut, self.upload.lost)

    def pack(self, files: HeadFiles) -> bytes:
        """The trained head as it travels. It is coded once, however often it is sent: a head that was taken is not replaced."""
        assert self.head is not None
        if self.upload is None:
            before = self.lost_before
            same_cut = before is not None and before.cut == self.order.cut
            self.upload = files.pack(self.sent, self.head, before.lost if before is not None and same_cut else None)
            self.sent = None
        return self.upload.content

    def check(self) -> None:
        if self.over:
            raise Abandoned("the round is over for this client")

    def abandon(self) -> None:
        """Stop all work on the round. The compute thread is freed by itself: a cancelled stream may leave a reader waiting for ever, as
        after a device has slept."""
        self.over = True
        if self.call is not None:
            self.call.cancel()
        if self.awaited is not None:
            self.awaited.cancel()


@dataclass
class Channels:
    """The channels to both servers, as they are open now. long: to the main server, too, for the answers to batches; None where
    these are no longer than `main` takes."""

    main: Peer
    edge: Peer
    long: Peer | None = None

    @property
    def batches(self) -> Peer:
        """To the main server, for batches."""
        return self.main if self.long is None else self.long

    async def close(self) -> None:
        for peer in (self.main, self.edge, self.long):
            if peer is not None:
                await peer.close()


async def _fetch_head(edge: Peer, attempt: str, kit: ModelKit, cut: int) -> UnitState:
    """The head of an attempt, from the edge server, as far as the cut."""
    like = kit.empty(0, cut)
    call = edge.stream("Fetch")
    await call.write(pack_message(Fetch(attempt)))
    await call.done_writing()
    head = unpack_state(await collect(lambda: read_message(call), most_state_bytes(like)), like)
    kit.legal_ranges.check(head)
    return head


class RoundWork:
    """Does the work of a round. channels: waits for the main server and returns the channels that are open then.
    working_copy: of the head, in which it is trained."""

    def __init__(
        self, setup: ClientSetup, job: OpenRound, channels: Callable[[], Awaitable["Channels"]], working_copy: Part
    ) -> None:
        self.setup, self.job, self.channels, self.working_copy = setup, job, channels, working_copy
        self.loop = asyncio.get_running_loop()

    async def _reconnect_until_done(self, work: Callable[[], Awaitable[Answer]], refusal_ends: bool) -> Answer:
        """Do the work of a stream. After a lost link, do it again on a new stream, until it is done or the round is over.

        refusal_ends: whether a refusal ends the round for this client. A refusal by the edge server does not: after a
        restart it refuses every client until the main server has opened the round there again."""
        backoff = Backoff()
        while True:
            self.job.check()
            try:
                return await work()
            except asyncio.CancelledError:
                self._check_only_stream_broke()
            except (aio.UsageError, asyncio.InvalidStateError):
                pass  # the channel was closed meanwhile
            except aio.AioRpcError as error:
                if self.job.over or (refusal_ends and is_refusal(error)):
                    raise Abandoned(error.details()) from None
            await backoff.wait()

    def _check_only_stream_broke(self) -> None:
        """After a cancellation: return if a closed channel cancelled only the stream; raise if this task was cancelled."""
        task = asyncio.current_task()
        self.job.check()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError

    async def fetch_head(self) -> UnitState:
        """Fetch the head of the round from the edge server."""

        async def work() -> UnitState:
            began_s, order = time.perf_counter(), self.job.order
            head = self.job.sent = await _fetch_head(
                (await self.channels()).edge, order.attempt, self.setup.kit, order.cut
            )
            self.job.model_down_s = time.perf_counter() - began_s
            return head

        return await self._reconnect_until_done(work, refusal_ends=False)

    async def upload_head(self) -> None:
        """Send the trained head to the edge server."""
        content = self.job.pack(self.setup.kit.head_files)

        async def work() -> None:
            call = (await self.channels()).edge.stream("Upload")
            await call.write(pack_message(Upload(self.job.order.attempt)))
            await send(call, content)
            await call.done_writing()
            expect_message(await read_message(call), Uploaded)

        await self._reconnect_until_done(work, refusal_ends=False)

    async def enter_round(self) -> int:
        """Open the stream of batches; returns the step that the main server expects."""

        async def work() -> int:
            call = self.job.call = (await self.channels()).batches.stream("Train")
            await call.write(pack_message(Enter(self.job.order.attempt)))
            entered, _ = expect_message(await read_message(call), Entered)
            return entered.step

        return await self._reconnect_until_done(work, refusal_ends=True)

    async def exchange(self, step: int, message: bytes) -> bytes:
        """Send the message of a step and return its answer. After a lost link, both happen again on a new stream."""
        backoff = Backoff()
        while True:
            self.job.check()
            try:
                if self.job.call is None:
                    expected = await self.enter_round()
                    if expected not in (step, step + 1):
                        raise Abandoned(f"the main server is at step {expected}, this client at {step}")
                await self.job.call.write(message)
                return await read_message(self.job.call)
            except (aio.AioRpcError, asyncio.InvalidStateError, aio.UsageError) as error:
                self.job.call = None
                self.job.check()
                if isinstance(error, aio.AioRpcError) and (is_refusal(error) or is_too_long(error)):
                    raise Abandoned(error.details()) from None
            except asyncio.CancelledError:
                self.job.call = None
                self._check_only_stream_broke()
            await backoff.wait()

    def train(self, head: UnitState) -> End:
        """Train on all batches, on the client's compute thread; the trained head is kept in the job. Returns what the main server is told then."""
        setup, job = self.setup, self.job
        lr = learning_rate(setup.kit.config.train, job.order.round)
        client, began_s = Client(setup.data, self.working_copy, setup.kit.num_units), time.perf_counter()
        setup.feed.on_batch = lambda client, num_samples: job.check()
        client.receive(head, lr)
        trained, losses = client.train(_Steps(self), job.order.round, Link())
        job.head = trained.clone()
        took_s = time.perf_counter() - began_s
        return self._end(losses, took_s)

    def _end(self, losses: Losses, took_s: float) -> End:
        job, train = self.job, self.setup.kit.config.train
        steps = RoundSteps(self.setup.data.num_samples, train.batch_size, train.local_epochs, job.order.round).count
        losses.read()
        (total,) = losses.parts
        is_whole = job.order.cut == self.setup.kit.num_units  # then nobody else knows the losses
        computing_s = max(took_s - job.exchange_s, 0.0)
        return End(
            steps, losses.num_samples, float(total) if is_whole else None, computing_s, job.exchange_s, job.model_down_s
        )

    async def end(self, end: End) -> None:
        """Tell the main server that all batches are done; it looks at its side and answers."""
        done = 0 if self.job.order.cut == self.setup.kit.num_units else end.steps
        expect_message(await self.exchange(done, pack_message(end)), Ended)

    def wait(self, work: Any) -> Any:
        """The result of asynchronous work, for the compute thread."""
        awaited = self.job.awaited = asyncio.run_coroutine_threadsafe(work, self.loop)
        if self.job.over:  # it may have ended before it knew what this thread waits for
            awaited.cancel()
        try:
            return awaited.result()
        except CancelledError:
            self.job.check()
            raise


class _Steps:
    """The main server's session as the client sees it: over the wire."""

    def __init__(self, work: RoundWork) -> None:
        self.work, self.next_step = work, 0  # of the round

    def step(self, smashed: Tensor, y: Tensor, key: StepKey, need_gradient: bool) -> tuple[Tensor, Tensor]:
        """Smashed data and labels go up; the loss and the gradient come down."""
        work = self.work
        step, self.next_step = self.next_step, self.next_step + 1
        codecs = work.setup.kit.codecs_of(work.job.order.codec)
        coded = pack_coded("smashed", smashed, codecs.up, UP, draws_of(key, UP))
        began_s = time.perf_counter()  # coding is the client's own work, and packing is the link's
        message = pack_message(Batch(step), coded | {"labels": y})
        answer, tensors = expect_any_message(work.wait(work.exchange(step, message)), Gradient)
        if "loss" not in tensors or not all(name == "loss" or is_coded_as("gradient", name) for name in tensors):
            raise WireError("protocol", f"Gradient has tensors {sorted(tensors)}, not gradient and loss")
        work.job.exchange_s += time.perf_counter() - began_s
        gradient, loss = unpack_coded("gradient", tensors, codecs.down, smashed.shape, smashed.dtype), tensors["loss"]
        if (
            answer.step != step
            or loss.numel() != 1
            or (
                need_gradient
                and gradient.numel()
                and gradient.shape != smashed.shape  # empty: the tail detaches what it gets
            )
        ):
            raise WireError("order", f"an answer to step {answer.step} where {step} was asked")
        return loss, gradient


RunOnThread = Callable[..., Awaitable[Any]]  # does work on the compute thread


async def evaluate_head(setup: ClientSetup, order: Evaluate, channels: Channels, compute: RunOnThread) -> int:
    """Send all test samples through the averaged model; returns how many there are."""
    call = channels.main.stream("Evaluate")
    try:
        await call.write(pack_message(Enter(order.attempt)))
        head = await _fetch_head(channels.edge, order.attempt, setup.kit, order.cut)
        await compute(_load_head, setup, head)
        test, size = setup.test, setup.kit.config.train.batch_size
        steps = 0 if test is None else num_batches(test, size)
        for step in range(steps):
            await call.write(await compute(_test_batch, setup, test, order.cut, step))
        await call.write(pack_message(Evaluated(steps)))
        expect_message(await read_message(call), Ended)
    finally:
        call.cancel()  # so the main server does not wait for a client that gave up; no effect after the end
    return 0 if test is None else len(test)


def _load_head(setup: ClientSetup, head: UnitState) -> None:
    load_state(head, setup.kit.model)
    setup.kit.model.eval()


@torch.no_grad()
def _test_batch(setup: ClientSetup, test: Images, cut: int, step: int) -> bytes:
    """One batch of test samples, as it goes to the main server."""
    kit, size = setup.kit, setup.kit.config.train.batch_size
    if cut == kit.num_units:
        counted = tally(kit.model, test, kit.num_classes, step, size)
        sums = [int(number) for number in counted.sums]
        return pack_message(Tallied(step, counted.loss, sums[: kit.num_classes], sums[kit.num_classes :]))
    samples = slice(step * size, (step + 1) * size)
    return pack_message(
        Batch(step), {"smashed": kit.model.head(cut)(test.floats(test.x[samples])), "labels": test.y[samples]}
    )
