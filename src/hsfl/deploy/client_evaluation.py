"""A client's part in an evaluation: the averaged head runs on the client's own test samples, and the main server counts.

Smashed data and labels of the test samples go up as those of training samples do. Where all units are the client's, it counts itself.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import torch

from hsfl.deploy.client_messages import Batch, Ended, Enter, Evaluate, Evaluated, Tallied
from hsfl.deploy.client_round import Channels, fetch_head
from hsfl.deploy.messages import expect, pack
from hsfl.deploy.own import ClientSetup
from hsfl.deploy.serving import read
from hsfl.models.state import UnitState, load_state
from hsfl.training.batches import Images
from hsfl.training.evaluation import num_batches, tally

Compute = Callable[..., Awaitable[Any]]  # does work on the compute thread


async def evaluate(setup: ClientSetup, order: Evaluate, channels: Channels, compute: Compute) -> int:
    """Send all test samples through the averaged model; returns how many there are."""
    call = channels.main.stream("Evaluate")
    try:
        await call.write(pack(Enter(order.attempt)))
        head = await fetch_head(channels.edge, order.attempt, setup.kit.empty(0, order.cut))
        await compute(_load, setup, head)
        test, size = setup.test, setup.kit.config.train.batch_size
        steps = 0 if test is None else num_batches(test, size)
        for step in range(steps):
            await call.write(await compute(_message, setup, test, order.cut, step))
        await call.write(pack(Evaluated(steps)))
        expect(await read(call), Ended)
    finally:
        call.cancel()  # so the main server does not wait for a client that gave up; no effect after the end
    return 0 if test is None else len(test)


def _load(setup: ClientSetup, head: UnitState) -> None:
    load_state(head, setup.kit.model)
    setup.kit.model.eval()


@torch.no_grad()
def _message(setup: ClientSetup, test: Images, cut: int, step: int) -> bytes:
    """One batch of test samples, as it goes to the main server."""
    kit, size = setup.kit, setup.kit.config.train.batch_size
    if cut == kit.num_units:
        counted = tally(kit.model, test, kit.num_classes, step, size)
        sums = [int(number) for number in counted.sums]
        return pack(Tallied(step, counted.loss, sums[: kit.num_classes], sums[kit.num_classes :]))
    samples = slice(step * size, (step + 1) * size)
    return pack(Batch(step), {"smashed": kit.model.head(cut)(test.floats(test.x[samples])), "labels": test.y[samples]})
