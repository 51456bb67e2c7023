"""Clients that go in step: N steps, each begun by a barrier (all smashed data must have arrived).

Legend: n clients that work together, N [n] the mini-batches of each; a client joins its first N steps, the last one
with a part of a batch where N is fractional. Steps with the same members are alike, so they come in J stretches.

Clients are sorted by falling N. So the members of a stretch are the first clients: those that make whole batches, then those
that make a part of a batch. Therefore sums and maxima over the members are prefix sums and prefix maxima, and a round costs
O(n + J), not O(n J). Only SplitFed V2's queue needs a walk through its steps.
"""

from dataclasses import dataclass

import numpy as np

from hsfl.errors import InputError
from hsfl.rng import stream

Array = np.ndarray

BATCH_PHASES = ("client_forward", "smashed", "server_forward", "server_backward", "gradient", "client_backward")
STEP_PHASES = (*BATCH_PHASES, "decoder")
# LocFedMix-SL computes its loss and, with two clients or more, the loss on mixtures.
SERVER_PASSES = {"joint": 1, "local_loss": 2}


@dataclass(frozen=True)
class StepTimes:
    """All steps of a round drawn as one step, in which the block of a phase is as long as the phase in all steps together.

    A block begins when the phases before it, in all steps, are over. A client's last block ends when the client's work ends.
    """

    start_s: Array  # [7, n], in the order of STEP_PHASES
    length_s: Array  # [7, n]
    busy_s: Array  # [n] the time in which something works for the client; what overlaps counts once
    finish_s: Array  # [n] the end of the client's last backward
    total_s: float


@dataclass(frozen=True)
class Stretches:
    """Steps that are alike, [J] each, for falling N."""

    low: Array  # the first step
    times: Array  # how many
    whole: Array  # how many clients make a whole batch: the first ones
    members: Array  # how many join
    num_batches: Array  # [n]

    @classmethod
    def of(cls, num_batches: Array) -> "Stretches":
        edges = np.unique(np.concatenate([[0.0], np.floor(num_batches), np.ceil(num_batches)])).astype(int)
        low, high = edges[:-1], edges[1:]
        whole = np.searchsorted(-num_batches, -high, side="right")
        members = np.searchsorted(-num_batches, -low, side="left")
        return cls(low, high - low, whole, members, num_batches)

    @property
    def last(self) -> Array:
        """The last stretch that each client joins, [n]."""
        return np.searchsorted(self.low, self.num_batches, side="left") - 1

    @property
    def last_fraction(self) -> Array:
        """The fraction of a batch that each client makes in its last step, [n]."""
        return self.num_batches - (np.ceil(self.num_batches) - 1)

    def over_members(self, fold: np.ufunc, values: Array) -> Array:
        """The sum (np.add) or the maximum (np.maximum) over the members of each stretch, [n] -> [J].

        The value of a member counts in proportion to the fraction of a batch that the member makes there.
        """
        complete = np.concatenate([[0.0], fold.accumulate(values)])[self.whole]
        partial = np.zeros(len(self.low))
        has_partial = self.members > self.whole
        if has_partial.any():
            edges = np.stack([self.whole[has_partial], self.members[has_partial]], axis=1).ravel()
            padded = np.append(values * self.last_fraction, 0.0)
            partial[has_partial] = fold.reduceat(padded, edges)[::2]
        return fold(complete, partial)


def run_steps(kind: str, work: Array, decoder_s: Array, num_batches: Array, rank: Array | None = None) -> StepTimes:
    """The seconds of all steps that clients make together.

    kind: "joint" (PSL, CPSL: the server makes one step on the smashed data of all clients), "local_loss" (LocFedMix-SL: the
        server makes two passes, while clients train their decoders) or "queue" (SplitFed V2: the server takes one client
        after another).
    work, decoder_s: [6, n] and [n] seconds, the phases and the decoder of one mini-batch. num_batches: [n], N of each client.
    rank: each client's place in the queue, [n], or [steps, n] where every step has a queue of its own; without it, the client
        that comes first is served first.
    """
    longest_first = np.argsort(-num_batches, kind="stable")
    work, num_batches = work[:, longest_first], num_batches[longest_first]
    stretches = Stretches.of(num_batches)
    if kind == "queue":
        run = _queued(work, stretches, None if rank is None else rank[..., longest_first])
    else:
        decoder_s = decoder_s[longest_first] if kind == "local_loss" else np.zeros(len(num_batches))
        run = _jointly(work, decoder_s, stretches, SERVER_PASSES[kind])
    _end_with_work(run)
    as_given = np.argsort(longest_first)
    return StepTimes(
        run.start_s[:, as_given], run.length_s[:, as_given], run.busy_s[as_given], run.finish_s[as_given], run.total_s
    )


def _jointly(work: Array, decoder_s: Array, stretches: Stretches, passes: int) -> StepTimes:
    """In a step: max(fwd + U) + max_k [max(decoder_k, server + D_k) + bwd_k]."""
    forward, smashed, server_forward, server_backward, gradient, backward = work
    times, last, num_batches, last_fraction = (
        stretches.times,
        stretches.last,
        stretches.num_batches,
        stretches.last_fraction,
    )
    arrive_s = stretches.over_members(np.maximum, forward + smashed)  # [J], in a step
    num_passes = np.where(stretches.members > 1, passes, 1)
    forward_s, backward_s = (num_passes * stretches.over_members(np.add, w) for w in (server_forward, server_backward))
    server_s = forward_s + backward_s
    after_s = np.maximum(
        server_s + stretches.over_members(np.maximum, gradient + backward),
        stretches.over_members(np.maximum, decoder_s + backward),
    )
    step_s = arrive_s + after_s

    def joined(values: Array) -> Array:
        """The sum over all steps that each client joins, [J] -> [n]."""
        return np.cumsum(times * values)[last]

    serve_s, ahead_s, behind_s = joined(arrive_s), joined(forward_s), joined(backward_s)
    returned_s = serve_s + ahead_s + behind_s
    back_s = returned_s + num_batches * gradient + _decoder_delay_s(server_s, decoder_s - gradient, stretches)
    zero = np.zeros_like(forward)
    start = [zero, num_batches * forward, serve_s, serve_s + ahead_s, returned_s, back_s, serve_s]
    length = [num_batches * forward, num_batches * smashed, ahead_s, behind_s]
    length += [num_batches * gradient, num_batches * backward, num_batches * decoder_s]
    ended_s = np.cumsum(times * step_s)
    in_last_s = (
        np.maximum(server_s[last] + last_fraction * gradient, last_fraction * decoder_s) + last_fraction * backward
    )
    return StepTimes(
        start_s=np.stack(start),
        length_s=np.stack(length),
        busy_s=num_batches * (forward + smashed + backward) + back_s - serve_s,
        finish_s=ended_s[last] - step_s[last] + arrive_s[last] + in_last_s,
        total_s=float(ended_s[-1]),
    )


def _end_with_work(run: StepTimes) -> None:
    """Move each client's last block so that it ends when the client's work ends; some client's block then ends with the last step."""
    to_move = (run.length_s[:6] > 0).any(axis=0)  # [n] clients whose last block is not found yet
    for start_s, length_s in zip(run.start_s[5::-1], run.length_s[5::-1]):
        start_s[to_move] = (run.finish_s - length_s)[to_move]
        to_move &= length_s == 0


def _decoder_delay_s(server_s: Array, slack_s: Array, stretches: Stretches) -> Array:
    """How long each client's backward waits for its decoder after the gradient is there, over all its steps, [n].

    In a whole step that is max(slack - server, 0); the server's part falls from step to step, so the steps with a delay
    are the last ones.
    """
    times, last_fraction, last = stretches.times, stretches.last_fraction, stretches.last
    delayed = np.searchsorted(-server_s, -slack_s, side="right")  # the first stretch with a delay, [n]
    num = np.concatenate([[0], np.cumsum(times)])
    work = np.concatenate([[0.0], np.cumsum(times * server_s)])
    whole = np.where(last_fraction < 1, last, last + 1)  # stretches of whole batches
    first = np.minimum(delayed, whole)
    delay_s = (num[whole] - num[first]) * slack_s - (work[whole] - work[first])
    in_part = np.where(last_fraction < 1, np.maximum(last_fraction * slack_s - server_s[last], 0.0), 0.0)
    return np.maximum(delay_s, 0.0) + in_part


def _queued(work: Array, stretches: Stretches, rank: Array | None) -> StepTimes:
    """In a step: max(fwd + U); then the server takes one client after another, and a client's D and bwd follow when it was served."""
    forward, smashed, server_forward, server_backward, gradient, backward = work
    num_batches, served, after = stretches.num_batches, server_forward + server_backward, gradient + backward
    arrival_s = forward + smashed
    arrive_s = stretches.over_members(np.maximum, arrival_s)
    serve_s, finish_s = np.zeros((2, len(num_batches)))
    now_s = 0.0
    for j, (low, times, n) in enumerate(zip(stretches.low, stretches.times, stretches.members)):
        fraction = np.minimum(num_batches[:n] - low, 1.0)
        own_s, after_s = fraction * served[:n], fraction * after[:n]
        repeats = [(low, times)] if rank is None or rank.ndim == 1 else [(low + i, 1) for i in range(times)]
        for step, alike in repeats:
            if rank is None:
                order = np.argsort(fraction * arrival_s[:n], kind="stable")
            else:
                order = np.argsort(rank[step, :n] if rank.ndim == 2 else rank[:n], kind="stable")
            queue_s = own_s[order]
            turn_s = np.empty(n)
            turn_s[order] = np.cumsum(queue_s) - queue_s + arrive_s[j]
            serve_s[:n] += alike * turn_s
            turn_s += own_s
            turn_s += after_s  # now the end of each client's step
            step_s = float(turn_s.max())
            now_s += alike * step_s
            finish_s[:n] = now_s - step_s + turn_s
    length = num_batches * np.concatenate([work, np.zeros_like(work[:1])])
    returned_s = serve_s + length[2] + length[3]
    start = [
        np.zeros_like(forward),
        length[0],
        serve_s,
        serve_s + length[2],
        returned_s,
        returned_s + length[4],
        serve_s,
    ]
    return StepTimes(np.stack(start), length, length.sum(axis=0), finish_s, now_s)


def queue_order(seed: int, round: int, num_batches: Array) -> Array:
    """SplitFed V2's order in every step of a round, [steps, K]: the clients that join a step in random order, the others behind them.

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
