"""What engines with several workers share: who trains which client, and what happens when a worker dies.

Clients are dealt longest first. A worker gets more clients as soon as it is free, so that all workers end together; how much it gets at
a time follows from its pace in the rounds before, as nodes of a cluster may be unequal. Each worker hands over its sum once, at the end of
the round. A worker that dies is replaced, and the clients whose sum it held are trained again by others. Sums do not depend
on who trains whom, so the numbers stay the same.

A `Helper` is one worker as the run sees it: its orders, the clients whose sum it holds, and its pace.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from hsfl.engines.engine import CodedCut, Exam, TrainedBy
from hsfl.engines.worker import Answer, Assess, BatchBegun, CarriedOut, Failed, Forward, HandOver, Order, Setup, Train
from hsfl.errors import InputError
from hsfl.frameworks.copy_per_client import CopyPerClient, Shard
from hsfl.frameworks.framework import Framework, State
from hsfl.models.state import TensorsByClient, UnitState
from hsfl.training.evaluation import Quality, Tally, quality_of_tallies
from hsfl.training.norm_statistics import NormShard, num_seen

LASTING = 0.7  # how much of what is known of a worker's pace lasts when it has trained more
MOST_DEATHS = 3  # of workers in one place, between two rounds that were completed; a node takes many with it at once
UNKNOWN = 0.5  # the fraction of a worker's share that it gets at once before all paces are known
KNOWN = 0.9  # the same when they are known: a worker that becomes a quarter slower still ends with the others
MOST_ITEMS = 4096  # of an order: a pipe holds it, though the worker does not read yet
AHEAD = 2  # clients for each worker that must be left where a worker gets an order before it has carried out the last


@dataclass(frozen=True)
class Ordered:
    """An order that a worker has not answered yet."""

    items: tuple[int, ...] = ()  # clients or batches
    samples: int = 0  # that these clients train on
    alone: bool = False  # whether nothing may be ordered behind it


@dataclass(kw_only=True)
class Helper:
    """One worker. It carries out its orders one by one."""

    where: str  # its process, and with Ray its node, for the log
    orders: deque[Ordered] = field(default_factory=deque)
    held: list[int] = field(default_factory=list)  # clients whose sum was not handed over yet
    since_s: float = 0.0  # when it began with its first order, on the monotonic clock
    samples: float = 0.0  # that it has trained, the older the less they count
    seconds: float = 0.0  # that these took
    deaths: int = 0  # of workers in its place since a round was completed, its own included

    @property
    def undone(self) -> list[int]:
        """The clients or batches that must be done again if the worker dies."""
        return [*self.held, *(item for order in self.orders for item in order.items)]

    @property
    def open(self) -> bool:
        """Whether more may be ordered behind its orders."""
        return not (self.orders and self.orders[-1].alone)

    @property
    def pace(self) -> float | None:
        """Samples per second; None before the worker has trained any."""
        return self.samples / self.seconds if self.seconds else None

    def given(self, order: Ordered) -> None:
        """The worker was given an order."""
        if not self.orders:
            self.since_s = time.monotonic()
        self.orders.append(order)

    def answered(self) -> Ordered:
        """The worker has carried out its first order, which is returned."""
        done, now_s = self.orders.popleft(), time.monotonic()
        if done.samples:
            self.samples = LASTING * self.samples + done.samples
            self.seconds = LASTING * self.seconds + now_s - self.since_s
        self.since_s = now_s
        return done


H = TypeVar("H", bound=Helper)


class WorkerEngine(ABC, Generic[H]):
    """An engine that spreads the clients of a round over its helpers."""

    num_threads: int
    helpers: list[H]
    say: Callable[[str], None]
    num_here = 0  # unless an engine knows that its workers are on this machine
    advice = "if memory is short, lower engine.workers"  # where workers die again and again

    @abstractmethod
    def _order(self, helper: H, order: Order) -> None:
        """Send an order. A worker that is dead is noticed only where answers are awaited."""

    @abstractmethod
    def _answers(self, busy: Sequence[H]) -> Iterator[tuple[H, Answer | None]]:
        """Wait for answers of the busy workers, and yield those that came; there may be none yet. None instead of an
        answer: the worker is dead."""

    @abstractmethod
    def _replace(self, dead: H) -> H:
        """A new worker in the place of a dead one."""

    @abstractmethod
    def _cause_of_death(self, dead: H) -> str:
        """How a worker ended."""

    @abstractmethod
    def _give_setup(self, setup: Setup) -> None:
        """Give every worker what it needs to know once."""

    @abstractmethod
    def _give_state(self, state: State) -> None:
        """Give every worker the state from which a round starts."""

    @abstractmethod
    def _give_whole(self, whole: UnitState) -> None:
        """Give every worker the model to be tested."""

    def attach(self, framework: Framework, exam: Exam) -> None:
        """Give every worker the task, and spread the framework's rounds from now on."""
        assert isinstance(framework, CopyPerClient)
        self.framework, self.exam, self.last_round = framework, exam, list[TrainedBy]()
        self.orders_ahead = not framework.remembers  # a pipe does not hold an order with memory
        self._give_setup(Setup(framework.task.unobserved(), exam.images, exam.num_classes))
        framework.spread = self.spread

    def placed(self) -> list[TrainedBy]:
        return self.last_round

    def spread(self, state: State, clients: Sequence[int], round_index: int) -> list[Shard]:
        """The shards of a round, one for each worker that trained somebody.

        A client's work is predicted by its samples: at every cut, its head and its tail together are the whole model, and both
        are trained here.
        """
        self.last_round = []
        if not clients:
            return [self.framework.train(state, (), round_index, 0)]
        self._give_state(replace(state, memory=TensorsByClient()))  # an order has the memory of its clients alone
        samples = {client: self.framework.task.feed.num_samples(client) for client in clients}
        longest_first, whole = sorted(clients, key=samples.__getitem__, reverse=True), sum(samples.values())

        def order(some: tuple[int, ...], hand: bool) -> Order:
            memory = TensorsByClient({client: state.memory[client] for client in some if client in state.memory})
            return Train(round_index, whole, some, hand, memory)

        answers = self._deal(longest_first, samples.__getitem__, order, HandOver())
        shards = [answer.shard for answer in answers if answer.shard is not None]
        for helper in self.helpers:
            helper.deaths = 0
        return shards

    def evaluate(self, whole: UnitState, coded: CodedCut | None = None) -> Quality:
        """The quality of a model on the test images, which the workers divide among themselves."""
        self._give_whole(whole)
        batches, tallies = range(self.exam.num_batches), dict[int, Tally]()
        for answer in self._deal(batches, lambda _: 1, lambda some, _: Assess(some, coded), None):
            tallies |= dict(answer.tallies)
        return quality_of_tallies([tallies[batch] for batch in batches], self.exam.goal)

    def norm_moments(self, whole: UnitState, clients: Sequence[int], round_index: int) -> NormShard:
        """BatchNorm's moments of these clients, whom the workers divide among themselves."""
        self._give_whole(whole)
        feed, train = self.framework.task.feed, self.framework.task.config.train
        total = self.framework.norm_moments(whole, (), round_index)

        def size(client: int) -> int:
            return num_seen(feed.num_samples(client), train.batch_size, train.norm_batches)

        longest_first = sorted(clients, key=size, reverse=True)
        for answer in self._deal(longest_first, size, lambda some, _: Forward(round_index, some), None):
            assert answer.norms is not None
            total.merge(answer.norms)
        return total

    def _deal(
        self,
        items: Sequence[int],
        size: Callable[[int], int],
        order: Callable[[tuple[int, ...], bool], Order],
        last: Order | None,
    ) -> Iterator[CarriedOut]:
        """Deal items to workers as they become free, and yield what they answer.

        size: how much work an item is. order: makes the order for some items; and whether to hand over results then, since
        none are left. last: the order by which other workers hand over; None where each answer holds its results.
        """
        queue = list(items)
        while queue or any(helper.undone for helper in self.helpers):
            for num_orders in (0, 1):  # workers that wait come first, then those that would have to wait
                self._order_more(queue, size, order, last, num_orders)
            for helper, answer in self._answers([helper for helper in self.helpers if helper.orders]):
                if answer is None:
                    queue[:0] = self._bury(helper)
                elif isinstance(answer, Failed):
                    raise answer.error()
                elif isinstance(answer, BatchBegun):
                    self.framework.task.feed.on_batch(answer.client, answer.num_samples)
                else:
                    self._take_answer(helper, answer, last is not None)
                    yield answer

    def _order_more(
        self,
        queue: list[int],
        size: Callable[[int], int],
        order: Callable[[tuple[int, ...], bool], Order],
        last: Order | None,
        num_orders: int,
    ) -> None:
        """Give one more order to the workers that have `num_orders` orders."""
        ready = [helper for helper in self.helpers if len(helper.orders) == num_orders and helper.open]
        left = sum(map(size, queue)) if ready else 0
        for helper in ready:
            if queue and (num_orders == 0 or (self.orders_ahead and len(queue) >= AHEAD * len(self.helpers))):
                items = _take_items(queue, size, self._fraction_at_once(helper) * left)
                trains, hand = last is not None, last is not None and not queue
                helper.given(Ordered(items, sum(map(size, items)) if trains else 0, alone=hand))
                self._order(helper, order(items, hand))
            elif not queue and last is not None and helper.undone:
                helper.given(Ordered(alone=True))
                self._order(helper, last)

    def _fraction_at_once(self, helper: H) -> float:
        """The fraction of the work that is left which a worker gets at once."""
        paces = [worker.pace for worker in self.helpers]
        if helper.pace is None or None in paces:
            return UNKNOWN / len(paces)
        return KNOWN * helper.pace / sum(pace for pace in paces if pace is not None)

    def _take_answer(self, helper: H, answer: CarriedOut, trains: bool) -> None:
        done = helper.answered()
        if trains:
            helper.held += done.items
        if answer.shard is not None:
            self.last_round.append(TrainedBy(helper.where, tuple(sorted(helper.held))))
            helper.held.clear()

    def _bury(self, dead: H) -> list[int]:
        """Put a new worker in the place of a dead one; returns the clients or batches that must be done again."""
        dead.deaths += 1
        cause, trained = self._cause_of_death(dead), dead.held or any(order.samples for order in dead.orders)
        if dead.deaths > MOST_DEATHS:
            raise InputError(
                f"workers ended by themselves {dead.deaths} times in one place ({cause}); {self.advice}; then go on with --resume"
            )
        redo_note = "its clients of this round are trained again" if trained else "what it was to do is done again"
        self.say(f"a worker ended by itself ({dead.where}: {cause}); {redo_note}")
        new = self._replace(dead)
        new.deaths = dead.deaths
        self.helpers[self.helpers.index(dead)] = new
        return dead.undone


def _take_items(queue: list[int], size: Callable[[int], int], enough: float) -> tuple[int, ...]:
    """Take items off the front of the queue: at least one, at most MOST_ITEMS, and not more work than enough. size: how much work
    an item is."""
    taken_size, count = 0, 0
    while count < min(len(queue), MOST_ITEMS) and (count == 0 or taken_size + size(queue[count]) <= enough):
        taken_size += size(queue[count])
        count += 1
    taken, queue[:count] = tuple(queue[:count]), []
    return taken
