"""Where the clients of a round are trained: in this process, or by worker processes. The numbers are the same.

An engine is started before the data are read, so that workers load torch meanwhile; `attach` gives it the framework, whose
rounds it then spreads. Only frameworks that keep a copy of the server side for each client can be spread: their clients do
not wait for each other within a round.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from hsfl.config import RunConfig
from hsfl.errors import InputError
from hsfl.frameworks.base import Framework
from hsfl.methods import copy_per_client_names, method
from hsfl.models.state import UnitState, load_state
from hsfl.models.units import SplitModel
from hsfl.training.batches import Images
from hsfl.training.evaluate import Quality, evaluate

Say = Callable[[str], None]


class Exam:
    """The test images and the model that is loaded for them."""

    def __init__(self, model: SplitModel, images: Images, num_classes: int) -> None:
        self.model, self.images, self.num_classes = model, images, num_classes


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
        return evaluate(self.exam.model.eval(), self.exam.images, self.exam.num_classes)

    def close(self) -> None:
        pass


def start(config: RunConfig, say: Say) -> Engine:
    """The engine that the config asks for; `say` is told where that has no effect."""
    engine = config.engine
    if engine.name == "inline":
        return Inline()
    if not method(config.framework).copy_per_client:
        say(
            f"{config.framework} trains its clients in turn or in step, so it runs in one process; engine.name="
            f"{engine.name} spreads {', '.join(copy_per_client_names())}"
        )
        return Inline()
    if config.device != "cpu":
        raise InputError(f"engine.name is {engine.name!r} but device is {config.device!r}; set engine.name=inline")
    from hsfl.engines.workers import Workers  # here, because inline runs need no multiprocessing

    return Workers.start(config, say)
