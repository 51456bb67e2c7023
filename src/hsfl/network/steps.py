"""Clients that go in step: what one step looks like, and N of them.

Legend: n clients that work together, N [n] the mini-batches of each; a client joins its first N steps, the last one
with a part of a batch where N is fractional. Every step begins with a barrier: all smashed data must have arrived.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hsfl.errors import InputError
from hsfl.rng import stream

Array = np.ndarray

BATCH_PHASES = ("client_forward", "smashed", "server_forward", "server_backward", "gradient", "client_backward")
STEP_PHASES = (*BATCH_PHASES, "decoder")


@dataclass(frozen=True)
class Run:
    """Blocks of one step, or of many stretched into one: seconds from the start."""

    start_s: Array  # [7, n], in the order of STEP_PHASES
    length_s: Array  # [7, n]
    busy_s: Array  # [n] the time in which something works for the client; what overlaps counts once
    finish_s: Array  # [n] the end of the client's last backward
    total_s: float


def queue_step(work: Array, decoder_s: Array, rank: Array | None) -> Run:
    """SplitFed V2: the server takes one client after another, and returns its gradient as soon as it is served.

    `rank` is each client's place in the queue; without it, first come, first served.
    """
    arrival_s = work[:2].sum(axis=0)
    served_s = work[2:4].sum(axis=0)
    order = np.argsort(arrival_s if rank is None else rank, kind="stable")
    turn_s = np.empty_like(served_s)
    turn_s[order] = np.cumsum(served_s[order]) - served_s[order]
    return _laid(work, decoder_s, arrival_s.max() + turn_s, np.zeros_like(decoder_s))


def joint_step(work: Array, decoder_s: Array, rank: Array | None) -> Run:
    """PSL, CPSL: one server step on the smashed data of all."""
    return _laid(_jointly(work, 1), decoder_s, work[:2].sum(axis=0).max(), np.zeros_like(decoder_s))


def local_loss_step(work: Array, decoder_s: Array, rank: Array | None) -> Run:
    """LocFedMix-SL: the server computes its loss and the mixed one (twice the work); meanwhile the decoders train."""
    return _laid(_jointly(work, 2), decoder_s, work[:2].sum(axis=0).max(), decoder_s)


STEPS = {"queue": queue_step, "joint": joint_step, "local_loss": local_loss_step}


def _jointly(work: Array, passes: int) -> Array:
    """The server's phases of every client become the one joint step."""
    joint = work.copy()
    joint[2:4] = passes * work[2:4].sum(axis=1, keepdims=True)
    return joint


def _laid(work: Array, decoder_s: Array, serve_s: Array | float, beside_s: Array) -> Run:
    """Phases one after another, the server's from `serve_s` on; backward waits for the decoder, which runs beside the
    server for `beside_s`."""
    forward, smashed, server_forward, server_backward, gradient, backward = work
    zero = np.zeros_like(forward)
    serve_s = serve_s + zero
    returned_s = serve_s + server_forward + server_backward
    back_s = np.maximum(returned_s + gradient, serve_s + beside_s)
    start = [zero, forward, serve_s, serve_s + server_forward, returned_s, back_s, serve_s]
    finish_s = back_s + backward
    return Run(
        start_s=np.stack(start),
        length_s=np.concatenate([work, beside_s[None]]),
        busy_s=forward + smashed + (back_s - serve_s) + backward,
        finish_s=finish_s,
        total_s=float(finish_s.max()),
    )


def run_steps(kind: str, work: Array, decoder_s: Array, num_batches: Array, rank: Array | None = None) -> Run:
    """N steps stretched into one: each block as long as in all steps, after all that comes before it in all steps.

    work [6, n] and decoder_s [n] are of one mini-batch; rank [n], or [steps, n] where every step has its own queue.
    """
    longest_first = np.argsort(-num_batches, kind="stable")  # so that those that join a step are the first ones
    work, decoder_s, num_batches = work[:, longest_first], decoder_s[longest_first], num_batches[longest_first]
    rank = None if rank is None else rank[..., longest_first]
    each_its_own = rank is not None and rank.ndim == 2
    start, length = np.zeros((2, len(STEP_PHASES), len(num_batches)))
    busy_s, finish_s = np.zeros((2, len(num_batches)))
    total_s = 0.0
    for step, times, part in _distinct_steps(num_batches, each_its_own):
        n = len(part)
        place = None if rank is None else rank[step, :n] if each_its_own else rank[:n]
        one = STEPS[kind](work[:, :n] * part, decoder_s[:n] * part, place)
        start[:, :n] += times * one.start_s
        length[:, :n] += times * one.length_s
        busy_s[:n] += times * one.busy_s
        finish_s[:n] = total_s + (times - 1) * one.total_s + one.finish_s
        total_s += times * one.total_s
    as_given = np.argsort(longest_first)
    return Run(start[:, as_given], length[:, as_given], busy_s[as_given], finish_s[as_given], total_s)


def _distinct_steps(num_batches: Array, each: bool) -> Iterator[tuple[int, int, Array]]:
    """(first step, how many alike, the part of a batch that each client makes in it), for falling num_batches; only
    the clients that join are listed."""
    edges = np.unique(np.concatenate([[0.0], np.floor(num_batches), np.ceil(num_batches)])).astype(int).tolist()
    for low, high in pairwise(edges):
        part = np.minimum(num_batches[: np.count_nonzero(num_batches > low)] - low, 1.0)
        if each:
            yield from ((step, 1, part) for step in range(low, high))
        else:
            yield low, high - low, part


def queue_order(seed: int, round: int, num_batches: Array) -> Array:
    """SplitFed V2's order in every step of a round, [steps, K]: random among those that join, the rest behind.

    The same stream as in training, so that the clock serves whom the server serves.
    """
    steps = np.ceil(num_batches).astype(int)
    order = np.empty((steps.max(), len(steps)), int)
    for step in range(len(order)):
        joins = np.flatnonzero(steps > step)
        shuffled = stream(seed, "server order", round, step).permutation(joins)
        order[step] = np.concatenate([shuffled, np.flatnonzero(steps <= step)])
    return order


def ranks(order: Array, members: Array, num_clients: int, num_steps: int) -> Array:
    """Each member's place in a queue, from permutations of all clients: [K] or [steps, K] -> [n] or [steps, n]."""
    order = np.asarray(order)
    if order.shape[-1:] != (num_clients,) or order.ndim > 2 or (np.sort(order) != np.arange(num_clients)).any():
        raise InputError(f"order must be permutations of the {num_clients} clients; its shape is {order.shape}")
    if order.ndim == 2 and len(order) < num_steps:
        raise InputError(f"order has {len(order)} steps but the round has {num_steps}; give one permutation per step")
    return np.argsort(order, axis=-1)[..., members]
