"""A data set of one's own from a plugin: what its reader answers, checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hsfl.data.checks import Side, checked
from hsfl.data.readers.base import Arrays, Request
from hsfl.errors import InputError
from hsfl.tasks import DEFAULT

WANTED = "give train_x, train_y, test_x, test_y and, if you like, the names of the classes"


@dataclass(frozen=True)
class OwnReader:
    """`read(request)` answers train_x, train_y, test_x, test_y and, if it likes, the names of the classes."""

    name: str
    read: Callable[[Request], Sequence[Any]]
    normalise: bool = False  # floats: each feature (or channel) to mean 0 and std 1 over the training samples
    task: str = DEFAULT

    def __call__(self, request: Request) -> Arrays:
        answer = self.read(request)
        if not isinstance(answer, Sequence) or len(answer) not in (4, 5):
            raise InputError(f"data set {self.name!r} gives a {type(answer).__name__}; {WANTED}")
        train = Side("train_x", answer[0], "train_y", answer[1])
        test = Side("test_x", answer[2], "test_y", answer[3])
        classes = answer[4] if len(answer) == 5 else None
        return checked(
            f"data set {self.name!r}: ", train, test, classes=classes, normalise=self.normalise, task=self.task
        )
