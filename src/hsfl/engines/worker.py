"""A worker trains the clients that it is dealt, sums them, and gives one sum a round. It lives in a process or in an actor of Ray.

It carries out orders one by one. It answers with progress, the shard of a round, tallies of test batches, or what went wrong.
"""

import copy
import dataclasses
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from hsfl import plugins
from hsfl.engines.engine import CodedCut, Exam
from hsfl.errors import InputError
from hsfl.frameworks import find_framework
from hsfl.frameworks.copy_per_client import CopyPerClient, Shard
from hsfl.frameworks.framework import State, Task
from hsfl.models.state import TensorsByClient, UnitState
from hsfl.training.aggregate import Diverged
from hsfl.training.batches import Images
from hsfl.training.evaluation import Tally
from hsfl.training.norm_statistics import NormShard
from hsfl.training.speed import keep_freed_memory

PROGRESS_S = 0.25  # between two messages about batches


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know once."""

    task: Task
    test: Images
    num_classes: int


@dataclass(frozen=True)
class Train:
    """Train these clients and add them to the shard of the round; an order for another round begins a new shard."""

    round_index: int
    round_samples: int  # the samples of all clients of the round
    clients: tuple[int, ...]
    hand: bool = False  # whether to give the shard of the round then
    memory: TensorsByClient = field(default_factory=TensorsByClient)  # what these clients remember


@dataclass(frozen=True)
class HandOver:
    """Give the shard of the round."""


@dataclass(frozen=True)
class Assess:
    """Tally these batches of the test images."""

    batches: tuple[int, ...]
    coded: CodedCut | None = None  # where a codec of smashed data stands; None: nowhere


@dataclass(frozen=True)
class Forward:
    """Let these clients of a round send batches forward through the model to be tested, for BatchNorm's moments."""

    round_index: int
    clients: tuple[int, ...]


Order = Train | HandOver | Assess | Forward


@dataclass(frozen=True)
class BatchBegun:
    """Progress: a client has begun a batch."""

    client: int
    num_samples: int  # of all batches that the worker began since its last message, this batch included


@dataclass(frozen=True)
class CarriedOut:
    """An order was carried out."""

    shard: Shard | None = None
    tallies: tuple[tuple[int, Tally], ...] = ()  # (number of the batch, its tally)
    norms: NormShard | None = None


@dataclass(frozen=True)
class Failed:
    """What went wrong: the kind of error and its message."""

    kind: str
    message: str

    @classmethod
    def by(cls, error: BaseException) -> "Failed":
        if isinstance(error, InputError | Diverged):
            return cls(type(error).__name__, str(error))
        message = plugins.explain_failure(error)
        if message is not None:
            return cls("InputError", message)
        return cls("RuntimeError", "".join(traceback.format_exception(error)))

    def error(self) -> Exception:
        """The error, to be raised where the run is."""
        return {"InputError": InputError, "Diverged": Diverged}.get(self.kind, RuntimeError)(self.message)


Answer = BatchBegun | CarriedOut | Failed


class Worker:
    """Carries out orders. Before an order, `state` is set, from which a round starts, or `whole`, the model to be
    tested."""

    state: State
    whole: UnitState

    def __init__(self, setup: Setup, report: Callable[[BatchBegun], None], memory: UnitState | None = None) -> None:
        keep_freed_memory()
        self.report, self.memory = report, memory  # memory: for the sums of all rounds; None: each sum gets new memory
        task = dataclasses.replace(setup.task, model=copy.deepcopy(setup.task.model))
        task.feed.on_batch = self._on_batch
        self.exam = Exam(task.model, task.initial, setup.test, setup.num_classes, task.goal)
        framework = find_framework(task.config.framework)(task)
        assert isinstance(framework, CopyPerClient)
        self.framework = framework
        self.round_index = -1
        self.shard: Shard | None = None
        self.reported_s, self.samples = 0.0, 0

    def carry_out(self, order: Order) -> CarriedOut:
        if isinstance(order, Assess):
            return CarriedOut(
                tallies=tuple(zip(order.batches, self.exam.tally(self.whole, order.batches, order.coded)))
            )
        if isinstance(order, Forward):
            return CarriedOut(norms=self.framework.norm_moments(self.whole, order.clients, order.round_index))
        if isinstance(order, Train):
            self.train(order)
            if not order.hand:
                return CarriedOut()
        shard, self.shard = self.shard, None
        if shard is not None:
            shard.losses.read()
        return CarriedOut(shard)

    def train(self, order: Train) -> None:
        first = order.round_index != self.round_index
        if first:
            self.round_index, self.shard = order.round_index, None
        if self.shard is None:  # the round's first shard may have been handed over already, and the run still needs it
            self.shard = self.framework.empty_shard(self.state, order.round_samples, self.memory if first else None)
        state = dataclasses.replace(self.state, memory=order.memory)
        self.shard = self.framework.train(state, order.clients, order.round_index, order.round_samples, into=self.shard)

    def _on_batch(self, client: int, num_samples: int) -> None:
        self.samples += num_samples
        if time.monotonic() - self.reported_s > PROGRESS_S:
            self.report(BatchBegun(client, self.samples))
            self.reported_s, self.samples = time.monotonic(), 0
