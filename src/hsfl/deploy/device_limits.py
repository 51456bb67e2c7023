"""What a process takes from another one's settings: no more than its own machine can bear.

A main server tells devices and the edge server which model is trained, on which images, in batches of what size. A wrong or a
hostile one may ask for a model of terabytes; whoever is told checks that before any memory is taken.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hsfl.config import RunConfig
from hsfl.data.registry import Dataset
from hsfl.errors import InputError
from hsfl.formats import size
from hsfl.models.cost_table import CostTable
from hsfl.training.speed import machine_memory_bits

Answer = TypeVar("Answer")
MODEL_PART = 4  # training keeps a model's weights, their gradients, the optimiser's numbers, and the head of the round
UNKNOWN_MACHINE_BYTES = 1 << 36  # where the system does not say how much memory there is
BYTES_OF_A_VISIT = 32  # that a client keeps for each visit of a sample in a round: its place in a pass, twice
WAY_OUT = "ask the operator for a smaller run, or take part from a machine with more memory"


def machine_bytes() -> int:
    """The memory of this machine."""
    bits = machine_memory_bits()
    return UNKNOWN_MACHINE_BYTES if bits is None else int(bits / 8)


class _Counted(TorchDispatchMode):
    """Counts the bytes of tensors that are made, and refuses the one with which they are too many before it is made."""

    def __init__(self, limit: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.limit, self.num_bytes = limit, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        sides = args[0] if args else kwargs.get("size")
        of_numbers = isinstance(sides, list | tuple) and all(isinstance(side, int) for side in sides)
        if of_numbers and str(kwargs.get("device")) != "meta":
            itemsize = (kwargs.get("dtype") or torch.get_default_dtype()).itemsize
            self.num_bytes += prod(map(int, sides)) * itemsize
            if self.num_bytes > self.limit:
                raise InputError(
                    f"the model that the main server asks for takes {size(self.num_bytes)} or more, and this machine has room for one of "
                    f"{size(self.limit)}; {WAY_OUT}"
                )
        return func(*args, **kwargs)


def made_within_memory(make: Callable[[], Answer], limit: int | None = None) -> Answer:
    """What `make` makes, if its tensors take no more than a part of this machine's memory, so that the model can be trained.
    limit: in bytes, instead of that."""
    with _Counted(machine_bytes() // MODEL_PART if limit is None else limit):
        return make()


def check_seat(seat: int, num_seats: int) -> None:
    """Refuse a seat that the run does not have."""
    if seat >= num_seats:
        raise InputError(f"the main server gives seat {seat} of a run with {num_seats} seats; ask the operator")


def check_images(config: RunConfig, dataset: Dataset) -> None:
    """Refuse to resize this device's images to more than its memory holds."""
    if config.model.input is None:
        return
    num_samples = len(dataset.train_y) + len(dataset.test_y)
    _check(num_samples * prod(config.model.input), f"{num_samples} images of {config.model.input} (model.input)")


def check_visits(config: RunConfig, num_samples: int) -> None:
    """Refuse rounds whose list of batches alone does not fit into memory."""
    epochs = config.train.local_epochs
    _check(round(BYTES_OF_A_VISIT * num_samples * epochs), f"the batches of {epochs:g} epochs (train.local_epochs)")


def check_training(cost: CostTable) -> None:
    """Refuse a model and a batch with which this machine could not train all units, as it does when it measures itself."""
    assert cost.memory_bits is not None, "measured"
    _check(int(cost.memory_bits[-1] / 8), f"training on batches of {cost.batch_size} (train.batch_size)")


def _check(num_bytes: int, what: str) -> None:
    if num_bytes > (limit := machine_bytes()):
        raise InputError(
            f"{what}, which the main server asks for, takes {size(num_bytes)}, and this machine has {size(limit)}; {WAY_OUT}"
        )


class OneHolder(Sequence[np.ndarray]):
    """The samples of all clients as one of them sees it: its own at its seat, none at any other. It takes no memory for seats."""

    def __init__(self, seat: int, indices: np.ndarray) -> None:
        self._seat, self._indices, self._none = seat, indices, indices[:0]

    def __len__(self) -> int:
        return self._seat + 1

    @overload
    def __getitem__(self, client: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, client: slice) -> Sequence[np.ndarray]: ...
    def __getitem__(self, client: int | slice) -> Any:
        if isinstance(client, slice):
            raise TypeError("a device knows its own samples alone")
        if not 0 <= client <= self._seat:
            raise IndexError(client)
        return self._indices if client == self._seat else self._none
