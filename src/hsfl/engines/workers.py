"""Worker processes on this machine: spawned, fed longest client first, replaced when they die.

A worker gets more clients as soon as it is free, so that all end together. Its sum of the round crosses the process border once.
If a worker dies, the clients whose sum it held are trained again by the others; sums do not depend on who trains whom,
so the numbers stay.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch.multiprocessing as mp

from hsfl import plugins
from hsfl.config import RunConfig
from hsfl.engines.base import Exam
from hsfl.engines.cores import num_cores
from hsfl.engines.worker import Assess, Batch, Done, Failed, Hand, Order, Setup, Train, work
from hsfl.errors import InputError
from hsfl.frameworks.base import Framework, State
from hsfl.frameworks.parallel import CopyPerClient, Shard
from hsfl.models.state import UnitState
from hsfl.training.aggregate import Diverged
from hsfl.training.evaluate import Quality, Tally, batch_of, num_batches, quality

MOST_DEATHS = 3  # of workers, between two rounds that were completed
END_S = 5.0  # that a worker has to end when it is told to


@dataclass
class Helper:
    """One worker process, as its parent sees it."""

    process: BaseProcess
    pipe: Connection
    items: list[int] = field(default_factory=list)  # clients or batches whose results it has not handed over yet
    busy: bool = False

    def order(self, order: Order, items: Sequence[int] = ()) -> None:
        """Send an order. That a worker is dead is noticed where answers are awaited."""
        self.items += items
        self.busy = True
        with suppress(ConnectionError):
            self.pipe.send(order)


class Workers:
    """The engine `workers`."""

    def __init__(self, num_workers: int, num_threads: int, say: Callable[[str], None]) -> None:
        self.num_threads, self.say = num_threads, say
        self.deaths = 0
        self.helpers = [self._spawn() for _ in range(num_workers)]

    @classmethod
    def start(cls, config: RunConfig, say: Callable[[str], None]) -> "Workers":
        """As many workers as the config says, else as there are cores; they divide the cores' threads."""
        cores = num_cores()
        most = config.train.clients_per_round or config.fleet.num_clients
        asked = config.engine.workers or min(cores, most)
        if asked > most:
            say(f"engine.workers is {asked} but a round has {most} clients; {most} workers are started")
        elif asked > cores:
            say(f"engine.workers is {asked} but this machine has {cores} cores; the workers wait for each other")
        num_workers = min(asked, most)
        return cls(num_workers, config.engine.threads or max(1, cores // num_workers), say)

    def _spawn(self) -> Helper:
        context = mp.get_context("spawn")  # a fork would copy the locks of torch's threads, whoever holds them
        pipe, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, list(plugins.LOADED), self.num_threads), daemon=True)
        process.start()
        theirs.close()
        return Helper(process, pipe)

    def attach(self, framework: Framework, exam: Exam) -> None:
        """Give every worker the task, and spread the framework's rounds from now on."""
        assert isinstance(framework, CopyPerClient)
        self.framework, images = framework, framework.task.feed.images
        for tensor in (images.x, images.y, exam.images.x, exam.images.y):
            tensor.share_memory_()
        task, init = framework.task.unobserved(), framework.init()
        state = State({name: _shared(units) for name, units in init.units.items()})
        self.setup = Setup(task, state, _shared(task.initial), exam.images, exam.num_classes)
        for helper in self.helpers:
            self._send_setup(helper)
        framework.spread = self.spread

    def _send_setup(self, helper: Helper) -> None:
        try:
            helper.pipe.send(self.setup)
        except ConnectionError:
            pass  # noticed where answers are awaited
        except (AttributeError, TypeError, ValueError) as error:  # how pickle refuses a class made inside a function
            raise InputError(f"the model cannot be sent to workers ({error}); define it at the top of a file") from None

    def spread(self, state: State, clients: Sequence[int], round_index: int) -> list[Shard]:
        """The shards of a round, one for each worker that trained somebody."""
        for name, units in state.units.items():
            self.setup.state.units[name].copy_(units)
        samples, round_samples = self.framework.task.feed.num_samples, self.framework.task.num_samples(clients)
        longest_first = sorted(clients, key=samples, reverse=True)
        answers = self._deal(longest_first, samples, lambda some: Train(round_index, round_samples, some), Hand())
        shards = [answer.shard for answer in answers if answer.shard is not None]
        self.deaths = 0
        return shards or [self.framework.train(state, (), round_index, 0)]

    def evaluate(self, whole: UnitState) -> Quality:
        """The quality of a model on the test images, which the workers divide among themselves."""
        self.setup.whole.copy_(whole)
        setup, tallies = self.setup, dict[int, Tally]()
        batches = range(num_batches(setup.test, batch_of(setup.test, setup.num_classes)))
        for answer in self._deal(batches, lambda _: 1, Assess, None):
            tallies |= dict(answer.tallies)
        return quality([tallies[batch] for batch in batches], setup.task.goal)

    def _deal(
        self,
        items: Sequence[int],
        size: Callable[[int], int],
        order: Callable[[tuple[int, ...]], Order],
        last: Order | None,
    ) -> Iterator[Done]:
        """Deal items to workers as they become free, and yield what they answer.

        size: how much work an item is. last: the order by which a worker hands over its results; None where each answer
        holds them.
        """
        queue = list(items)
        while True:
            for helper in (helper for helper in self.helpers if not helper.busy):
                if queue:
                    some = _take(queue, size, len(self.helpers))
                    helper.order(order(some), some)
                elif last is not None and helper.items:
                    helper.order(last)
            busy = {helper.pipe: helper for helper in self.helpers if helper.busy}
            if not busy:
                return
            for pipe in wait(list(busy)):
                helper = busy[pipe]  # type: ignore[index]
                answer = self._hear(helper)
                if answer is None:
                    queue[:0] = self._replace(helper)
                elif isinstance(answer, Done):
                    helper.busy = False
                    if answer.shard is not None or last is None:
                        helper.items.clear()
                    yield answer

    def _hear(self, helper: Helper) -> Done | Batch | None:
        """A worker's next message; None if it is dead. What went wrong there is raised here."""
        try:
            answer = helper.pipe.recv()
        except (EOFError, ConnectionError, OSError):
            return None
        if isinstance(answer, Failed):
            raise {"InputError": InputError, "Diverged": Diverged}.get(answer.kind, RuntimeError)(answer.words)
        if isinstance(answer, Batch):
            self.framework.task.feed.on_batch(answer.client, answer.num_samples)
        assert isinstance(answer, Done | Batch)
        return answer

    def _replace(self, dead: Helper) -> list[int]:
        """Put a new worker in the place of a dead one; returns what must be done again."""
        dead.process.join(END_S)
        self.deaths += 1
        how = f"exit code {dead.process.exitcode}" + (", killed" if dead.process.exitcode == -9 else "")
        if self.deaths > MOST_DEATHS:
            raise InputError(
                f"worker processes ended by themselves {self.deaths} times ({how}); if memory is short, lower engine.workers; "
                'in a script of your own, call hsfl.run under `if __name__ == "__main__":`'
            )
        self.say(f"a worker ended by itself ({how}); its clients of this round are trained again")
        dead.pipe.close()
        new = self._spawn()
        self._send_setup(new)
        self.helpers[self.helpers.index(dead)] = new
        return dead.items

    def close(self) -> None:
        """End all workers, in whatever they are doing."""
        for helper in self.helpers:
            helper.process.terminate()
        for helper in self.helpers:
            helper.process.join(END_S)
            if helper.process.is_alive():
                helper.process.kill()
                helper.process.join()
            helper.pipe.close()


def _take(queue: list[int], size: Callable[[int], int], num_workers: int) -> tuple[int, ...]:
    """The next items from the front: about half of what is left for each worker, at least one."""
    enough, some, taken = sum(map(size, queue)) / (2 * num_workers), 0, list[int]()
    while queue and (not taken or some + size(queue[0]) <= enough):
        some += size(queue[0])
        taken.append(queue.pop(0))
    return tuple(taken)


def _shared(units: UnitState) -> UnitState:
    """A copy in memory that all processes share."""
    copy = units.clone()
    copy.floats.share_memory_()
    copy.ints.share_memory_()
    return copy
