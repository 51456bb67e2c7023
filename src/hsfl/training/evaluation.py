"""How good a model is on the test samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import cast

import torch
from torch import Tensor

from hsfl.models.units import SplitModel
from hsfl.training.batches import Images
from hsfl.training.codecs.codec import Codec
from hsfl.training.codecs.link_codecs import LinkCodecs
from hsfl.training.link import Link
from hsfl.training.losses import CLASSIFY, Goal

TEST_BATCH = 500
MOST_NUMBERS = 2**25  # that a model gives for a batch of blocks of tokens, or of pixels


@dataclass(frozen=True)
class Quality:
    """What a model achieves on test samples. Accuracies and recalls are fractions; only classification has them."""

    loss: float
    accuracy: float | None
    balanced_accuracy: float | None  # mean recall over the classes that occur
    recall: tuple[float | None, ...]  # of each class; None where the test samples have none of the class
    metrics: dict[str, float] = field(default_factory=dict)  # by name: what other tasks have, and metrics of a plugin


@dataclass(frozen=True)
class Tally:
    """What a model did on some test samples."""

    loss: float  # summed over the samples
    num_samples: int
    sums: tuple[float, ...]  # what the task's metrics need


def evaluation_batch_size(images: Images, num_outputs: int) -> int:
    """How many test samples go through a model at once: fewer where the model gives a number for each token of a large
    vocabulary, or for each class and pixel. num_outputs: how many numbers the model gives for a sample (or token, or pixel)."""
    places = prod(images.y.shape[1:]) if not images.y.is_floating_point() else 1
    return max(1, min(TEST_BATCH, MOST_NUMBERS // (places * num_outputs)))


def through_codec(model: SplitModel, cut: int, codec: Codec) -> Callable[[Tensor], Tensor]:
    """The model as it judges samples when it is split: the head's smashed data go through the codec to the tail. Nothing is drawn at random."""
    head, tail = model.head(cut), model.tail(cut)
    return lambda x: cast(Tensor, tail(Link(LinkCodecs(up=codec)).carry("client_main_up", head(x))))


def num_batches(images: Images, batch_size: int = TEST_BATCH) -> int:
    """How many batches the samples make."""
    return -(-len(images) // batch_size)


@torch.inference_mode()
def tally(
    model: Callable[[Tensor], Tensor],
    images: Images,
    num_outputs: int,
    batch: int,
    batch_size: int = TEST_BATCH,
    goal: Goal = CLASSIFY,
) -> Tally:
    """Loss and sums of a model, which is in evaluation mode, on one batch. batch: its number (0, 1, ...)."""
    rows = slice(batch * batch_size, (batch + 1) * batch_size)
    y = images.targets(rows)
    return tally_output(model(images.floats(images.x[rows])), y, num_outputs, goal)


@torch.inference_mode()
def tally_output(output: Tensor, y: Tensor, num_outputs: int, goal: Goal = CLASSIFY) -> Tally:
    """Loss and sums of what a model gave for one batch."""
    return Tally(float(goal.total(output, y)), len(y), goal.sums(output, y, num_outputs))


def merge_tallies(tallies: Sequence[Tally]) -> Tally:
    """One tally of several batches. Losses of batches are float32 numbers and their sum is a float64, which has room for all digits."""
    sums = tuple(sum(column) for column in zip(*(t.sums for t in tallies)))
    return Tally(sum(t.loss for t in tallies), sum(t.num_samples for t in tallies), sums)


def quality_of_tallies(tallies: Sequence[Tally], goal: Goal = CLASSIFY) -> Quality:
    """Loss and metrics over all batches, in the order of the batches."""
    whole = merge_tallies(tallies)
    num_samples, sums = whole.num_samples, whole.sums
    loss = whole.loss / num_samples
    metrics = goal.metrics(sums, num_samples)
    if goal.row.targets != "classes":
        return Quality(loss, None, None, (), metrics)
    num_classes = (len(sums) - len(metrics)) // 2
    hits, counts = sums[:num_classes], sums[num_classes : 2 * num_classes]
    recall = tuple(h / n if n else None for h, n in zip(hits, counts))
    known = [r for r in recall if r is not None]
    return Quality(loss, sum(hits) / num_samples, sum(known) / len(known), recall, metrics)


def evaluate_model(
    model: Callable[[Tensor], Tensor],
    images: Images,
    num_outputs: int,
    batch_size: int | None = None,
    goal: Goal = CLASSIFY,
) -> Quality:
    """Loss and metrics of a model in evaluation mode."""
    size = batch_size or evaluation_batch_size(images, num_outputs)
    batches = range(num_batches(images, size))
    return quality_of_tallies([tally(model, images, num_outputs, batch, size, goal) for batch in batches], goal)


def mean_quality(qualities: list[Quality]) -> Quality:
    """The mean over several models, for frameworks where every client ends with a model of its own."""

    def mean(values: Sequence[float | None]) -> float | None:
        numbers = [value for value in values if value is not None]
        return sum(numbers) / len(numbers) if len(numbers) == len(values) else None

    loss = sum(q.loss for q in qualities) / len(qualities)
    names = [name for name in qualities[0].metrics if all(name in q.metrics for q in qualities)]
    return Quality(
        loss,
        mean([q.accuracy for q in qualities]),
        mean([q.balanced_accuracy for q in qualities]),
        tuple(mean(column) for column in zip(*(q.recall for q in qualities))),
        {name: sum(q.metrics[name] for q in qualities) / len(qualities) for name in names},
    )
