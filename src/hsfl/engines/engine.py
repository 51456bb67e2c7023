"""What an engine does, and the engine that trains everything in this process."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from hsfl.codec_table import UP, choose_codec
from hsfl.frameworks.framework import Framework
from hsfl.models.state import UnitState, bind_state
from hsfl.models.units import SplitModel
from hsfl.training.batches import Images
from hsfl.training.codecs.link_codecs import make_codec
from hsfl.training.evaluation import (
    Quality,
    Tally,
    evaluation_batch_size,
    num_batches,
    quality_of_tallies,
    tally,
    through_codec,
)
from hsfl.training.losses import CLASSIFY, Goal
from hsfl.training.norm_statistics import NormShard


class CodedCut(NamedTuple):
    """A cut, and the codec of smashed data there, by its text."""

    cut: int
    codec: str


@dataclass(frozen=True)
class Exam:
    """The test images, and the model whose tensors become views of the weights to be tested."""

    model: SplitModel
    initial: UnitState  # what the model holds between two tests
    images: Images
    num_classes: int
    goal: Goal = CLASSIFY

    def tally(self, whole: UnitState, batches: Iterable[int], coded: CodedCut | None = None) -> list[Tally]:
        """What a whole model does on each of these batches of the test images. coded: where a codec stands between head and tail; None: nowhere."""
        bind_state(whole, self.model.eval())
        model: Callable[[Tensor], Tensor] = self.model
        if coded is not None and (codec := make_codec(choose_codec("codec", coded.codec, UP))) is not None:
            model = through_codec(self.model, coded.cut, codec)
        test_set = (model, self.images, self.num_classes)
        return [tally(*test_set, batch, self.batch_size, self.goal) for batch in batches]

    @property
    def batch_size(self) -> int:
        return evaluation_batch_size(self.images, self.num_classes)

    @property
    def num_batches(self) -> int:
        return num_batches(self.images, self.batch_size)


class TrainedBy(NamedTuple):
    """Who trained which clients of a round."""

    where: str
    clients: tuple[int, ...]


class Engine(Protocol):
    """Trains the shards of a round and evaluates models."""

    num_threads: int  # of each process that trains
    num_here: int  # processes that train in the memory of this machine

    def attach(self, framework: Framework, exam: Exam) -> None: ...

    def evaluate(self, whole: UnitState, coded: CodedCut | None = None) -> Quality:
        """The quality of a model on the test images; with a coded cut, of the model that is split there by the codec."""
        ...

    def norm_moments(self, whole: UnitState, clients: Sequence[int], round_index: int) -> NormShard:
        """BatchNorm's moments, for which these clients of a round send batches forward through a model."""
        ...

    def placed(self) -> list[TrainedBy]:
        """Who trained which clients of the last round; empty where this process trained all."""
        ...

    def close(self) -> None:
        """End every process that the engine has started."""
        ...


class Inline:
    """Trains and evaluates everything in this process."""

    num_here = 1

    def __init__(self, num_threads: int | None = None) -> None:
        """num_threads: of this process while the run lasts; None leaves them as they are."""
        self.threads_before = torch.get_num_threads()
        self.num_threads = num_threads or self.threads_before
        torch.set_num_threads(self.num_threads)

    def attach(self, framework: Framework, exam: Exam) -> None:
        self.framework, self.exam = framework, exam
        bind_state(exam.initial, exam.model)  # the model needs no weights of its own

    def evaluate(self, whole: UnitState, coded: CodedCut | None = None) -> Quality:
        tallies = self.exam.tally(whole, range(self.exam.num_batches), coded)
        bind_state(self.exam.initial, self.exam.model)  # else the model would keep the memory of `whole`
        return quality_of_tallies(tallies, self.exam.goal)

    def norm_moments(self, whole: UnitState, clients: Sequence[int], round_index: int) -> NormShard:
        return self.framework.norm_moments(whole, clients, round_index)

    def placed(self) -> list[TrainedBy]:
        return []

    def close(self) -> None:
        torch.set_num_threads(self.threads_before)
