"""A worker process: trains the clients it is dealt, sums them, and sends one sum a round.

Orders come through a pipe and are carried out one by one. What goes back: progress, the shard of a round, tallies of test
batches, or what went wrong. A worker ends when it is told to, or when its parent is gone.
"""

import copy
import dataclasses
import signal
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from hsfl import plugins
from hsfl.engines.base import Exam
from hsfl.errors import InputError
from hsfl.frameworks import find_framework
from hsfl.frameworks.base import State, Task
from hsfl.frameworks.parallel import CopyPerClient, Shard
from hsfl.models.state import UnitState, load_state
from hsfl.training.aggregate import Diverged
from hsfl.training.batches import Images
from hsfl.training.evaluate import Tally, batch_of, tally

PROGRESS_S = 0.1  # between two messages about batches


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know once. Tensors lie in memory that all processes share."""

    task: Task
    state: State  # written by the parent before each round
    whole: UnitState  # written by the parent before each evaluation
    test: Images
    num_classes: int


@dataclass(frozen=True)
class Train:
    """Count these clients into the shard of the round; an order with another round begins a new shard."""

    round_index: int
    round_samples: int  # of all clients of the round
    clients: tuple[int, ...]


@dataclass(frozen=True)
class Hand:
    """Send the shard of the round."""


@dataclass(frozen=True)
class Assess:
    """Tally these batches of the test images; the first order after a change of the whole model loads it."""

    batches: tuple[int, ...]


Order = Train | Hand | Assess


@dataclass(frozen=True)
class Batch:
    """Progress: a client has begun to train on so many samples."""

    client: int
    num_samples: int


@dataclass(frozen=True)
class Done:
    """An order was carried out."""

    shard: Shard | None = None
    tallies: tuple[tuple[int, Tally], ...] = ()  # by number of the batch


@dataclass(frozen=True)
class Failed:
    """What went wrong: the kind of error and its words."""

    kind: str
    words: str


def work(pipe: Connection, specs: list[str], num_threads: int) -> None:
    """The life of a worker. Ctrl-C is the parent's business."""
    for number in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(num_threads)
    try:
        plugins.load_all(specs)
        setup = pipe.recv()
        worker = Worker(setup, pipe)
        while (order := pipe.recv()) is not None:
            pipe.send(worker.carry_out(order))
    except (EOFError, ConnectionError):
        pass  # the parent is gone
    except (InputError, Diverged) as error:
        pipe.send(Failed(type(error).__name__, str(error)))
    except (Exception, SystemExit) as error:
        words = plugins.explain(error)
        pipe.send(Failed("RuntimeError", traceback.format_exc()) if words is None else Failed("InputError", words))


class Worker:
    """Carries out orders on the setup that the parent has sent."""

    def __init__(self, setup: Setup, pipe: Connection) -> None:
        self.setup, self.pipe = setup, pipe
        task = dataclasses.replace(setup.task, model=copy.deepcopy(setup.task.model))
        task.feed.on_batch = self._on_batch
        self.exam = Exam(task.model, setup.test, setup.num_classes, task.goal)
        framework = find_framework(task.config.framework)(task)
        assert isinstance(framework, CopyPerClient)
        self.framework = framework
        self.round_index = -1
        self.shard: Shard | None = None
        self.told_s, self.samples = 0.0, 0

    def carry_out(self, order: Order) -> Done:
        if isinstance(order, Train):
            self.train(order)
            return Done()
        if isinstance(order, Hand):
            shard, self.shard = self.shard, None
            if shard is not None:
                shard.losses.read()
            return Done(shard)
        load_state(self.setup.whole, self.exam.model)
        exam, size = self.exam, batch_of(self.exam.images, self.exam.num_classes)
        model = exam.model.eval()
        tallies = ((b, tally(model, exam.images, exam.num_classes, b, size, exam.goal)) for b in order.batches)
        return Done(tallies=tuple(tallies))

    def train(self, order: Train) -> None:
        if order.round_index != self.round_index:
            self.round_index, self.shard = order.round_index, None
        more = self.framework.train(self.setup.state, order.clients, order.round_index, order.round_samples)
        if self.shard is None:
            self.shard = more
        else:
            self.shard.merge(more)

    def _on_batch(self, client: int, num_samples: int) -> None:
        self.samples += num_samples
        if time.monotonic() - self.told_s > PROGRESS_S:
            self.pipe.send(Batch(client, self.samples))
            self.told_s, self.samples = time.monotonic(), 0
