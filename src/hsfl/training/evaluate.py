"""How good a model is on the test images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hsfl.training.batches import Images

TEST_BATCH = 500


@dataclass(frozen=True)
class Quality:
    """What a model achieves on test samples; accuracies and recalls are fractions."""

    loss: float
    accuracy: float
    balanced_accuracy: float  # mean recall over the classes that occur
    recall: tuple[float | None, ...]  # of each class; None where the test samples have none of the class


@dataclass(frozen=True)
class Tally:
    """What a model did on some test images."""

    loss: float  # summed over the images
    hits: tuple[int, ...]  # [classes]
    counts: tuple[int, ...]  # [classes]


def num_batches(images: Images, batch_size: int = TEST_BATCH) -> int:
    """How many batches the images make."""
    return -(-len(images) // batch_size)


@torch.inference_mode()
def tally(
    model: Callable[[Tensor], Tensor], images: Images, num_classes: int, batch: int, batch_size: int = TEST_BATCH
) -> Tally:
    """Losses and hits on the batch of this number, by a model in evaluation mode."""
    here = slice(batch * batch_size, (batch + 1) * batch_size)
    y = images.y[here]
    return tally_logits(model(images.floats(images.x[here])), y, num_classes)


@torch.inference_mode()
def tally_logits(logits: Tensor, y: Tensor, num_classes: int) -> Tally:
    """Losses and hits of a model's answers to one batch."""
    loss = float(F.cross_entropy(logits, y, reduction="sum"))
    hits, counts = (torch.bincount(some.cpu(), minlength=num_classes) for some in (y[logits.argmax(dim=1) == y], y))
    return Tally(loss, tuple(hits.tolist()), tuple(counts.tolist()))


def merged(tallies: Sequence[Tally]) -> Tally:
    """One tally of several batches. A batch's loss is a float32 number and the sum a float64, which has room for all their digits."""
    hits, counts = (tuple(map(sum, zip(*rows))) for rows in zip(*((t.hits, t.counts) for t in tallies)))
    return Tally(sum(t.loss for t in tallies), hits, counts)


def quality(tallies: Sequence[Tally]) -> Quality:
    """Loss, accuracy and recall over all batches, in the order of the batches."""
    whole = merged(tallies)
    recall = tuple(h / n if n else None for h, n in zip(whole.hits, whole.counts))
    known, num_images = [r for r in recall if r is not None], sum(whole.counts)
    return Quality(whole.loss / num_images, sum(whole.hits) / num_images, sum(known) / len(known), recall)


def evaluate(
    model: Callable[[Tensor], Tensor], images: Images, num_classes: int, batch_size: int = TEST_BATCH
) -> Quality:
    """Loss, accuracy and recall of a model in evaluation mode."""
    batches = range(num_batches(images, batch_size))
    return quality([tally(model, images, num_classes, batch, batch_size) for batch in batches])


def mean_quality(qualities: list[Quality]) -> Quality:
    """The mean over several models, for frameworks where every client ends with its own."""

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    recalls = zip(*(q.recall for q in qualities))
    return Quality(
        mean([q.loss for q in qualities]),
        mean([q.accuracy for q in qualities]),
        mean([q.balanced_accuracy for q in qualities]),
        tuple(None if None in column else mean([r for r in column if r is not None]) for column in recalls),
    )
