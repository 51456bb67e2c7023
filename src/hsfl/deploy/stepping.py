"""The main server's door for batches: one stream for each client and round."""

import asyncio
from functools import partial
from typing import Any

from torch import Tensor

from hsfl.deploy.client_messages import Batch, End, Ended, Enter, Entered
from hsfl.deploy.desk import Desk
from hsfl.deploy.frames import WireError
from hsfl.deploy.identity import caller
from hsfl.deploy.main_round import MainRound
from hsfl.deploy.messages import expect, expect_any, pack
from hsfl.deploy.serving import hear, must_hear
from hsfl.deploy.tails import Tail

NO_FAULT = ("stale", "replaced", "ended")  # reasons for which nobody is dropped


class Stepping:
    """The handler of the stream Train."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._steps: set[asyncio.Task[bytes]] = set()  # steps that are under way

    async def train(self, messages: Any, context: Any) -> None:
        """Answer a client's batches of a round."""
        enter, _ = expect(await must_hear(context), Enter)
        open_round, tail = self._tail(enter)
        stream = object()
        async with tail.lock:
            await context.write(pack(Entered(tail.enter(stream))))
        try:
            while (content := await hear(context)) is not None:
                message, tensors = expect_any(content, Batch, End)
                if isinstance(message, End):
                    async with tail.lock:
                        self._check_open(open_round, tail)
                        tail.check_stream(stream)
                        await self.desk.compute.run(partial(tail.finish, message))
                    open_round.changed.set()
                    await context.write(pack(Ended()))
                    return
                await context.write(await self._step(open_round, tail, message, tensors, stream))
        except WireError as error:
            if error.reason not in NO_FAULT:
                self.desk.drop(tail.seat, error.reason, error.words)
            raise

    def _tail(self, enter: Enter) -> tuple[MainRound, Tail]:
        """The round and the tail of the client that calls."""
        open_round, name = self.desk.open_round, caller().name
        if open_round is None or enter.attempt != open_round.attempt:
            raise WireError("stale", "that attempt at the round is over")
        tail = next((tail for tail in open_round.tails.values() if tail.name == name), None)
        if tail is None or tail.dropped is not None:
            raise WireError("stale", f"{name} has no part in this round, or not any more")
        return open_round, tail

    def _check_open(self, open_round: MainRound, tail: Tail) -> None:
        if open_round is not self.desk.open_round or tail.dropped is not None:
            raise WireError("stale", "the round is over for this client")

    async def _step(
        self, open_round: MainRound, tail: Tail, message: Batch, tensors: dict[str, Any], stream: object
    ) -> bytes:
        """The answer to a batch. A step that has begun is counted even if its stream breaks: the weights have moved.
        The client sends the batch again on the next stream and gets the same answer."""
        step = asyncio.create_task(self._counted(open_round, tail, message, tensors, stream))
        self._steps.add(step)
        step.add_done_callback(self._ended)
        return await asyncio.shield(step)

    def _ended(self, step: "asyncio.Task[bytes]") -> None:
        self._steps.discard(step)
        if not step.cancelled():
            step.exception()  # whoever still listens has heard it

    async def _counted(
        self, open_round: MainRound, tail: Tail, message: Batch, tensors: dict[str, Any], stream: object
    ) -> bytes:
        async with tail.lock:
            self._check_open(open_round, tail)
            if tail.repeats(message, stream):
                return tail.last
            if tensors.keys() != {"smashed", "labels"} or tail.part is None:
                raise WireError("protocol", f"a batch with tensors {sorted(tensors)}, not smashed and labels")
            cost = tensors["labels"].numel() * float(self.desk.planner.cost.server_flops[tail.cut])
            weight = open_round.plan.weight(tail.seat)
            done = await self.desk.compute.timed(
                lambda: self._compute(open_round, tail, tensors), tail.seat, cost, weight
            )
            loss, gradient = done.answer
            self.desk.metrics.carried("client_main", "up", tensors["smashed"].nbytes)
            self.desk.metrics.carried("client_main", "down", gradient.nbytes)
            return tail.answer(loss, gradient, done.waited_s, done.took_s, tensors["smashed"].nbytes)

    def _compute(self, open_round: MainRound, tail: Tail, tensors: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """The step in its turn. The round may have ended while it waited, and its working copy may be another client's by now."""
        self._check_open(open_round, tail)
        return tail.compute(tensors)
