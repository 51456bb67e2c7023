"""How fast this machine trains a model, measured unit by unit and step after step for some seconds; and how much memory the machine has.

Half of the time whole steps are made, in one piece, as a client that holds all units makes them: they are the speed. In the other half a step goes
through the units one after another, each as a part of its own, so that the seconds of any other cut are sums over units. Each part begins anew, with
calls and cold caches, as a head does that has waited for the main server; so the units sum up to more than the whole step. Units are averaged over the steps of usual length: where a processor is taken away now and then, as by a
quota, each unit's median would leave that out, and the units would not sum up to the step.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from hsfl.config import TrainConfig
from hsfl.models.cost_table import CostTable, measure_cost
from hsfl.models.state import Layout, read_state
from hsfl.models.units import SplitModel
from hsfl.training.batches import memory_like
from hsfl.training.losses import CLASSIFY, Goal
from hsfl.training.step import Part, StepKey, run_backward

WARM_UP = 2  # steps that are not counted: memory is found, kernels are chosen
LEAST_STEPS = 5
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container


@dataclass(frozen=True)
class Speed:
    """What training reached. The median step counts, so that a moment of other work does not."""

    batch_size: int
    num_steps: int
    step_s: float  # median, in one piece
    low_s: float  # a quarter of the steps took less
    high_s: float  # a quarter took more
    unit_forward_s: tuple[
        float, ...
    ]  # for a batch, means over the middle half of the steps by units; the last has the loss
    unit_backward_s: tuple[float, ...]  # with the update of the weights
    flops_per_sample: float  # forward and backward
    memory_bits: float  # that training the whole model takes
    smashed_shapes: tuple[
        tuple[int, ...], ...
    ] = ()  # of a sample's smashed data at each cut; empty where nothing is coded

    @property
    def largest_message(self) -> tuple[int, ...] | None:
        """The shape of a batch's largest smashed data; None where no cut sends any that codecs could make smaller."""
        shapes = [shape for shape in self.smashed_shapes[1:] if shape]
        return (self.batch_size, *max(shapes, key=prod)) if shapes else None

    @property
    def flops_per_s(self) -> float:
        return self.batch_size * self.flops_per_sample / self.step_s

    @property
    def samples_per_s(self) -> float:
        return self.batch_size / self.step_s

    @property
    def spread(self) -> float:
        """How wide the middle half of the steps spreads, as a part of the median."""
        return (self.high_s - self.low_s) / self.step_s


def training_speed(
    model: SplitModel,
    input_shape: tuple[int, ...],
    num_classes: int,
    train: TrainConfig,
    seconds: float,
    clock_s: Callable[[], float] = time.perf_counter,
    check: Callable[[CostTable], None] = lambda cost: None,
    memory_format: str | None = None,
) -> Speed:
    """Train all units on random samples for about so many seconds, as a client that holds the whole model does.

    input_shape: of one sample. clock_s: gives the time in seconds. check: is told what training costs, before it begins.
    memory_format: of images, as a run of the config has them.
    """
    cost = measure_cost(model, input_shape, train.batch_size)
    check(cost)
    x, y, goal = _any_batch(model, (train.batch_size, *input_shape), num_classes)
    x = memory_like(x, x.dtype, memory_format).copy_(x)
    layout, state = Layout.of(model), read_state(model)

    def steps_through(bounds: Sequence[int]) -> list[tuple[list[float], list[float]]]:
        """Seconds forward and backward of each of the parts with these bounds, for step after step."""
        parts = [Part(model, layout, start, stop, train, goal) for start, stop in pairwise(bounds)]
        for part in parts:
            part.begin(state[part.start : part.stop], train.lr)
        return _take_steps(parts, x, y, seconds / 2, clock_s)

    steps_s = [forward_s[0] + backward_s[0] for forward_s, backward_s in steps_through((0, model.num_units))]
    low_s, median_s, high_s = statistics.quantiles(steps_s, n=4)
    by_length = sorted(steps_through(range(model.num_units + 1)), key=lambda step: sum(step[0]) + sum(step[1]))
    quarter = len(by_length) // 4
    usual = by_length[quarter : len(by_length) - quarter]
    forward_s, backward_s = (tuple(map(statistics.fmean, zip(*of_steps))) for of_steps in zip(*usual))
    assert cost.memory_bits is not None, "measured"
    flops, memory_bits = float(cost.client_flops[-1]), float(cost.memory_bits[-1])
    return Speed(
        train.batch_size,
        len(steps_s),
        median_s,
        low_s,
        high_s,
        forward_s,
        backward_s,
        flops,
        memory_bits,
        cost.smashed_shapes or (),
    )


def _take_steps(
    parts: list[Part], x: Tensor, y: Tensor, seconds: float, clock_s: Callable[[], float]
) -> list[tuple[list[float], list[float]]]:
    for number in range(WARM_UP):
        _step(parts, x, y, number, clock_s)
    took, began = [_step(parts, x, y, WARM_UP, clock_s)], clock_s()
    while len(took) < LEAST_STEPS or clock_s() - began < seconds:
        took.append(_step(parts, x, y, WARM_UP + len(took), clock_s))
    return took


def _step(
    units: list[Part], x: Tensor, y: Tensor, number: int, clock_s: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """A step through all units, cut after each of them: seconds forward and backward by unit."""
    key, passed = StepKey(0, 0, 0, number), [(x, x)]  # what each unit was given, and what the unit before made of it
    forward_s, backward_s = list[float](), list[float]()
    for unit in units:
        began_s = clock_s()
        given = passed[-1][1].detach().requires_grad_(len(passed) > 1 and passed[-1][1].is_floating_point())
        made = unit.forward(given, key)
        if unit is units[-1]:
            made = unit.goal(made, y)
        _finish(made)
        passed.append((given, made))
        forward_s.append(clock_s() - began_s)
    gradient: Tensor | None = None
    for unit, (given, made) in zip(reversed(units), reversed(passed)):
        began_s = clock_s()
        if made.requires_grad and (gradient is not None or unit is units[-1]):
            run_backward(made, gradient)
            unit.update()
        gradient = given.grad
        _finish(made)
        backward_s.append(clock_s() - began_s)
    return forward_s, backward_s[::-1]


def _finish(tensor: Tensor) -> None:
    """Wait until the device has done its work."""
    if tensor.device.type != "cpu":
        torch.accelerator.synchronize(tensor.device)


def _any_batch(model: SplitModel, shape: tuple[int, ...], num_classes: int) -> tuple[Tensor, Tensor, Goal]:
    """Samples of this shape, the batch first, and targets, which have no part in the speed, with their loss: a class for each
    sample, or for each token or pixel of a model that has an output for each."""
    device, of_floats = next(model.parameters()).device, model.input_dtype is None
    x = torch.randn(shape).to(device) if of_floats else torch.zeros(shape, dtype=model.input_dtype, device=device)
    with torch.no_grad():
        output = model.eval()(x[:1].clone())
    if of_floats:
        y = torch.randint(num_classes, (len(x), *output.shape[2:])).to(device)
        return x, y, CLASSIFY if output.ndim == 2 else Goal("segmentation")
    return x, x[:, 0] if output.ndim == 2 else x, CLASSIFY  # zeros: 0 is in every vocabulary


def keep_freed_memory() -> None:
    """Let this process keep the memory of each batch for the next batch.

    glibc gives freed memory back to the system, and takes it anew page by page, unless the process has freed a large piece before: the
    largest piece so far, up to 32 MB, decides. A process that reads its data has freed such pieces; a worker has not.
    """
    bytearray(31 << 20)


def machine_memory_bits() -> float | None:
    """All memory of this machine, or what its container may have; None where the system does not say."""
    sizes = []
    with suppress(ValueError, OSError, AttributeError):  # not on Windows
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in LIMITS:
        with suppress(ValueError, OSError):  # no such file, or the word max
            sizes.append(int(Path(limit).read_text()))
    return 8.0 * min(sizes) if sizes else None


def free_memory_bits() -> float | None:
    """The memory that a process could have now without swapping; None where the system does not say."""
    with suppress(ValueError, OSError, StopIteration):  # only Linux says it
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 8.0 * 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    return None
