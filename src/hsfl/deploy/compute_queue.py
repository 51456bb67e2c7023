"""One compute thread, off the event loop, and the queue before it.

Steps run one at a time, so that no step's numbers or seconds depend on another. Which of the waiting steps is next is decided by
`network.service`, and changes no number of the model:

    turns    weighted fair queueing: a client's next step carries the tag max(now, the client's last tag) + cost / weight, and the smallest
             tag is served first. `now` is the tag of the step in service, so that a client that was away gains no credit.
    longest  the client with the longest way to go by the round's plan is served first

`network.server_queue` has both orders as an event simulation, with which rounds are planned.
"""

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from hsfl.training.speed import keep_freed_memory

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class FairQueue(Generic[Item]):
    """Decides whose turn it is. Costs are in FLOPs; weights are in proportion to the clients' shares of the server."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Item]] = []
        self._last: dict[Hashable, float] = {}  # each client's last tag
        self._current_tag, self._order = 0.0, itertools.count()

    def push(self, client: Hashable, cost: float, weight: float, item: Item, way_s: float = math.inf) -> None:
        tag = max(self._current_tag, self._last.get(client, 0.0)) + cost / weight
        self._last[client] = tag
        heapq.heappush(self._waiting, (tag, next(self._order), item))

    def pop(self) -> Item:
        self._current_tag, _, item = heapq.heappop(self._waiting)
        if not self._waiting:  # nobody waits, so that nobody has a claim from before
            self._current_tag, self._last = 0.0, {}
        return item

    def __len__(self) -> int:
        return len(self._waiting)


class LongestFirst(Generic[Item]):
    """Whoever has the longest way to go is next; of equal ways, who came first. way_s: seconds to the end of the client's round, if nobody
    else were served; without an end for the process's own work, which all wait for."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Item]] = []
        self._order = itertools.count()

    def push(self, client: Hashable, cost: float, weight: float, item: Item, way_s: float = math.inf) -> None:
        heapq.heappush(self._waiting, (-way_s, next(self._order), item))

    def pop(self) -> Item:
        return heapq.heappop(self._waiting)[-1]

    def __len__(self) -> int:
        return len(self._waiting)


QUEUES: dict[str, type[FairQueue[Any] | LongestFirst[Any]]] = {
    "turns": FairQueue,
    "longest": LongestFirst,
}  # by `network.service`


@dataclass(frozen=True)
class Timed:
    """What a piece of work gave, how long it waited for its turn, and how long it took."""

    answer: Any
    waited_s: float
    took_s: float


@dataclass
class _Job:
    work: Callable[[], Any]
    done: "asyncio.Future[Timed]"
    asked_s: float = field(default_factory=time.perf_counter)


class ComputeQueue:
    """The compute thread of a process. service: of QUEUES."""

    def __init__(self, num_threads: int | None = None, service: str = "turns") -> None:
        keep_freed_memory()
        self._thread = ThreadPoolExecutor(1, "hsfl-compute", self._begin, (num_threads,))
        self._queue: FairQueue[_Job] | LongestFirst[_Job] = QUEUES[service]()
        self._busy = False
        self._tasks: set[asyncio.Task[None]] = set()

    @staticmethod
    def _begin(num_threads: int | None) -> None:
        if num_threads is not None:
            torch.set_num_threads(num_threads)

    async def run(self, work: Callable[[], Answer], client: Hashable = None, cost: float = 0.0) -> Answer:
        """Do the work on the compute thread, in its turn, and return its answer. client: whose turn it takes (None: the
        process's own); cost: as of `FairQueue`."""
        return (await self.timed(work, client, cost)).answer

    async def timed(
        self,
        work: Callable[[], Any],
        client: Hashable = None,
        cost: float = 0.0,
        weight: float = 1.0,
        way_s: float = math.inf,
    ) -> Timed:
        """As `run`, and say how long the work waited and took. weight: as of `FairQueue`; way_s: as of `LongestFirst`."""
        job = _Job(work, asyncio.get_running_loop().create_future())
        self._queue.push(client, cost, weight, job, way_s)
        if not self._busy:
            self._busy = True
            task = asyncio.create_task(self._serve())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            return await job.done
        finally:
            del job.work  # a caller that is gone leaves nothing in the queue but its turn: work may hold a whole model

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while len(self._queue):
                job = self._queue.pop()
                if job.done.cancelled():  # the caller is gone
                    continue
                began_s = time.perf_counter()
                try:
                    answer = await loop.run_in_executor(self._thread, job.work)
                except Exception as error:  # raised where the work was asked for
                    if not job.done.cancelled():
                        job.done.set_exception(error)
                    continue
                if not job.done.cancelled():
                    took_s = time.perf_counter() - began_s
                    job.done.set_result(Timed(answer, began_s - job.asked_s, took_s))
        finally:
            self._busy = False

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
