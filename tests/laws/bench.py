"""Small tasks in float64 on random images, for laws that hold to rounding."""

import dataclasses

import numpy as np
import torch

from hsfl.config import parse_config
from hsfl.frameworks import find_framework
from hsfl.frameworks.framework import Arrangement, State, Task
from hsfl.models.state import Layout, UnitState, read_state
from hsfl.models.units import SplitModel
from hsfl.models.zoo import build
from hsfl.rng import stream
from hsfl.training.batches import Feed, Images

SHAPE = (1, 12, 12)
NUM_CLASSES = 4


def images(num_samples: int, dtype: torch.dtype = torch.float64) -> Images:
    rng = stream(7, "images")
    x = rng.integers(0, 256, size=(num_samples, *SHAPE), dtype=np.uint8)
    y = rng.integers(0, NUM_CLASSES, size=num_samples)
    return Images(torch.from_numpy(x), torch.from_numpy(y), (0.5,), (0.25,), dtype)


def make_task(
    cuts: list[int],
    counts: list[int],
    *,
    model: SplitModel | None = None,
    dtype: torch.dtype = torch.float64,
    dropout: float = 0.0,
    options: dict | None = None,
    **train: object,
) -> Task:
    """Clients with these cuts and numbers of samples."""
    settings = {"batch_size": 4, "optimizer": "sgd", "lr": 0.05} | train
    tree = {"seed": 3, "fleet": {"num_clients": len(cuts)}, "train": settings, "options": options or {}}
    config = parse_config(tree)
    model = model or build("cnn", SHAPE, NUM_CLASSES, seed=5, dropout=dropout)
    model = model.to(dtype).eval()
    ends = np.cumsum(counts)
    shares = [np.arange(end - count, end) for count, end in zip(counts, ends)]
    feed = Feed(images(int(ends[-1]), dtype), shares, config.seed)
    return Task(config, model, Layout.of(model), read_state(model), feed, tuple(cuts), Arrangement(min(cuts)))


def train(task: Task, framework: str, kept_by_round: list[list[int]]) -> tuple[UnitState, list[float | None], State]:
    """The joined model, the losses and the state after these rounds."""
    named = task.config.model_copy(update={"framework": framework})  # so that a number keyed by the name cannot hide
    algorithm = find_framework(framework)(dataclasses.replace(task, config=named))
    state, losses = algorithm.init(), []
    for round_index, kept in enumerate(kept_by_round):
        state, result = algorithm.round(state, kept, round_index)
        losses.append(result.train_loss)
    (whole,) = algorithm.models(state)
    return whole, losses, state


def assert_same(left: UnitState, right: UnitState, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(left.floats, right.floats, rtol=tolerance, atol=tolerance)
    assert torch.equal(left.ints, right.ints)


def with_cuts(task: Task, cuts: list[int]) -> Task:
    return dataclasses.replace(task, cuts=tuple(cuts), arranged=dataclasses.replace(task.arranged, one_cut=min(cuts)))


def in_clusters(task: Task, clusters: tuple[int, ...]) -> Task:
    """The task with CPSL's clusters given."""
    return dataclasses.replace(task, arranged=dataclasses.replace(task.arranged, clusters=clusters))
