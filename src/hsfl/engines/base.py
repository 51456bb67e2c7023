"""What an engine does, and the engine that trains everything in this process."""

from dataclasses import dataclass
from typing import Protocol

import torch

from hsfl.frameworks.base import Framework
from hsfl.models.state import UnitState, load_state
from hsfl.models.units import SplitModel
from hsfl.training.batches import Images
from hsfl.training.evaluate import Quality, evaluate
from hsfl.training.goal import CLASSIFY, Goal


@dataclass(frozen=True)
class Exam:
    """The test images, and the model into which the weights to be tested are loaded."""

    model: SplitModel
    images: Images
    num_classes: int
    goal: Goal = CLASSIFY


class Engine(Protocol):
    """Trains the shards of a round and evaluates models."""

    num_threads: int  # of each process that trains

    def attach(self, framework: Framework, exam: Exam) -> None: ...

    def evaluate(self, whole: UnitState) -> Quality: ...

    def close(self) -> None:
        """End every process that the engine has started."""
        ...


class Inline:
    """Everything in this process."""

    def __init__(self) -> None:
        self.num_threads = torch.get_num_threads()

    def attach(self, framework: Framework, exam: Exam) -> None:
        self.exam = exam

    def evaluate(self, whole: UnitState) -> Quality:
        load_state(whole, self.exam.model)
        return evaluate(self.exam.model.eval(), self.exam.images, self.exam.num_classes, goal=self.exam.goal)

    def close(self) -> None:
        pass
