"""A round in which the main server is one queue: it serves one batch at a time, whoever's batch that is.

Client k begins when its own head has come down (`ready_s`): nobody waits for the heads of others. Then it goes round a circle N_k times: forward and
upload of the smashed data (`before_s`), the server's step (`serve_s`), download of the gradient and backward (`after_s`). After its last batch it uploads its head. A batch that reaches the server while the server is
busy waits. So the round is made event by event, in `serve_batches`, which is written so that numba can compile it (`allocation.queued_rounds`); here it runs
as plain Python, since a device has no numba.

Two orders of service, `ORDERS`:

    turns    each client in its turn: the waiting batch with the smallest tag is served, where the tag of a batch is its server seconds after
             the tag of the batch that was being served when it came, or after its client's last tag if that is later
    longest  the client with the longest way to go, alone on the server, from this batch to the end of its upload

Neither order is always the better one, and a faster server can make a round longer, as in every queue of this kind.

`least_queued_s` is a lower bound on the seconds of any order of service. Let J be a set of clients. The server works for them for
sum_J N_k serve_k seconds; it cannot begin before the first of them has sent a batch, and after the last of their batches somebody still
has to receive the gradient, go backward and upload:

    T >= min_J (ready_k + before_k) + sum_J N_k serve_k + min_J (after_k + up_k)

and no client is faster than alone. The best J holds all clients who are ready and have sent a batch after a seconds at the earliest, and whose rest is at least b, for some a, b.

Legend: K clients, N batches (the last may be a part of a batch).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hsfl.network.latency import Phases

Array = np.ndarray
ORDERS = {"turns": 0, "longest": 1}
MOST_BATCHES = 50_000  # of a round that is made event by event; a client may claim millions, and a plan must not take minutes for it


@dataclass(frozen=True)
class QueuedWork:
    """What each client has to do in a round, before anybody waits for anybody: seconds of a whole batch, [K] each."""

    before_s: Array  # forward and upload
    serve_s: Array  # on the server, alone
    after_s: Array  # download and backward
    num_batches: Array
    up_s: Array  # upload of the head, once
    ready_s: Array | float = 0.0  # download of the head, once, before anything else

    @property
    def alone_s(self) -> Array:
        """When each client ends if the server serves nobody else, [K]."""
        return self.ready_s + self.num_batches * (self.before_s + self.serve_s + self.after_s) + self.up_s


@dataclass(frozen=True)
class QueuedTest:
    """A test of the round before, which takes its turn among the clients' batches."""

    num_batches: float
    serve_s: float  # of a batch


@dataclass(frozen=True)
class QueuedRound:
    """When each client's part is over, upload included, and how long its batches waited for the server, [K] each."""

    finish_s: Array
    waited_s: Array

    @property
    def training_s(self) -> float:
        return float(self.finish_s.max(initial=0.0))


Serve = Callable[[QueuedWork], QueuedRound]  # makes a round in some order of service


def queued_work(phases: Phases, num_batches: Array) -> QueuedWork:
    """The work of clients with these phases, [K]."""
    before_s, after_s = phases.client_forward_s + phases.smashed_s, phases.gradient_s + phases.client_backward_s
    return QueuedWork(before_s, phases.server_s, after_s, num_batches, phases.model_up_s, phases.model_down_s)


def queued_round(work: QueuedWork, order: str = "turns") -> QueuedRound:
    """The round, event by event, in plain Python."""
    return QueuedRound(*serve_batches(*service_arguments(work, order)))


def service_arguments(work: QueuedWork, order: str) -> tuple[Array, Array, Array, Array, Array, Array, int]:
    """What `serve_batches` takes. Where all clients together have more than MOST_BATCHES, several batches go round as one: everybody's work
    stays, and waits become a little coarser."""
    return *arguments(_with_fewer_batches(work)), ORDERS[order]


def _with_fewer_batches(work: QueuedWork) -> QueuedWork:
    """The work with MOST_BATCHES batches at most, of which each is several."""
    together = max(float(np.sum(work.num_batches)) / MOST_BATCHES, 1.0)
    if together == 1.0:
        return work
    of_several = {name: getattr(work, name) * together for name in ("before_s", "serve_s", "after_s")}
    return replace(work, **of_several, num_batches=work.num_batches / together)


def queued_beside(serve: Serve, test: QueuedTest, work: QueuedWork) -> QueuedRound:
    """The round of these clients on a server that tests the model of the round before meanwhile, from the round's beginning on."""
    columns = (work.before_s, work.serve_s, work.after_s, work.num_batches, work.up_s, work.ready_s)
    rows = zip(np.broadcast_arrays(*columns), (0.0, test.serve_s, 0.0, test.num_batches, 0.0, 0.0))
    queued = serve(QueuedWork(*(np.append(column, value) for column, value in rows)))
    return QueuedRound(queued.finish_s[:-1], queued.waited_s[:-1])


def arguments(work: QueuedWork) -> tuple[Array, Array, Array, Array, Array, Array]:
    """The arrays of the work, as floats in memory order."""
    columns = (work.before_s, work.serve_s, work.after_s, work.num_batches, work.up_s, work.ready_s)
    before_s, serve_s, after_s, num_batches, up_s, ready_s = np.array(np.broadcast_arrays(*columns), float)
    return before_s, serve_s, after_s, num_batches, up_s, ready_s


def serve_batches(
    before_s: Array, serve_s: Array, after_s: Array, num_batches: Array, up_s: Array, ready_s: Array, order: int
) -> tuple[Array, Array]:
    """When each client ends and how long it waited, [K] each. A client without work for the server never queues."""
    count = len(num_batches)
    finish_s, waited_s = np.zeros(count), np.zeros(count)
    left = num_batches.copy()  # batches that have not reached the server
    arrival_s = np.full(count, np.inf)  # when the next batch reaches the server
    tag_s, last_tag_s = np.zeros(count), np.zeros(count)
    tagged = np.zeros(count, np.bool_)  # whether the waiting batch has its tag
    num_queueing = 0
    for k in range(count):
        if num_batches[k] <= 0.0:
            continue
        if serve_s[k] <= 0.0:
            finish_s[k] = ready_s[k] + num_batches[k] * (before_s[k] + after_s[k]) + up_s[k]
            continue
        arrival_s[k] = ready_s[k] + min(left[k], 1.0) * before_s[k]
        num_queueing += 1
    free_s, serving_tag_s = 0.0, 0.0
    while num_queueing > 0:
        now_s = np.inf
        for k in range(count):
            now_s = min(now_s, arrival_s[k])
        now_s = max(now_s, free_s)
        chosen, best = -1, np.inf
        num_waiting = 0
        for k in range(count):
            if arrival_s[k] > now_s:
                continue
            num_waiting += 1
            if order == 0:
                if not tagged[k]:
                    tag_s[k] = max(serving_tag_s, last_tag_s[k]) + min(left[k], 1.0) * serve_s[k]
                    last_tag_s[k], tagged[k] = tag_s[k], True
                rank = tag_s[k]
            else:
                rank = -(left[k] * (before_s[k] + serve_s[k] + after_s[k]) + up_s[k])
            if rank < best or (rank == best and arrival_s[k] < arrival_s[chosen]):
                chosen, best = k, rank
        batch_share = min(left[chosen], 1.0)
        waited_s[chosen] += now_s - arrival_s[chosen]
        free_s = now_s + batch_share * serve_s[chosen]
        tagged[chosen] = False
        serving_tag_s = tag_s[chosen]
        if num_waiting == 1:  # nobody else waits, so that nobody has a claim from before
            serving_tag_s = 0.0
            last_tag_s[:] = 0.0
        back_s = free_s + batch_share * after_s[chosen]
        left[chosen] -= batch_share
        if left[chosen] > 1e-12:
            arrival_s[chosen] = back_s + min(left[chosen], 1.0) * before_s[chosen]
        else:
            finish_s[chosen] = back_s + up_s[chosen]
            arrival_s[chosen] = np.inf
            num_queueing -= 1
    return finish_s, waited_s


def least_queued_s(work: QueuedWork) -> float:
    """A lower bound on the training of the round under any order of service, in seconds; of very many batches as they are made, several at a
    time."""
    before_s, serve_s, after_s, num_batches, up_s, ready_s = arguments(_with_fewer_batches(work))
    alone_s = work.alone_s
    queues = (num_batches > 0) & (serve_s > 0)
    best_s = float(alone_s.max(initial=0.0))
    if not queues.any():
        return best_s
    first_batch = np.minimum(num_batches, 1.0)[queues]  # a client with less than a batch sends and receives less
    last = num_batches[queues] - np.ceil(num_batches[queues]) + 1.0  # the last batch may be a part of a batch
    first_s = ready_s[queues] + first_batch * before_s[queues]
    rest_s = np.minimum(last, first_batch) * after_s[queues] + up_s[queues]
    total_s = (num_batches * serve_s)[queues]
    for least_s in np.unique(first_s):
        inside = first_s >= least_s
        order = np.argsort(-rest_s[inside], kind="stable")
        sums_s = np.cumsum(total_s[inside][order])
        best_s = max(best_s, float((least_s + sums_s + rest_s[inside][order]).max()))
    return best_s
