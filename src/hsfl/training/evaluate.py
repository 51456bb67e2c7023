"""How good a model is on the test images."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hsfl.training.batches import Images


@dataclass(frozen=True)
class Quality:
    """What a model achieves on test samples; accuracies and recalls are fractions."""

    loss: float
    accuracy: float
    balanced_accuracy: float  # mean recall over the classes that occur
    recall: tuple[float | None, ...]  # of each class; None where the test samples have none of the class


@torch.inference_mode()
def evaluate(model: Callable[[Tensor], Tensor], images: Images, num_classes: int, batch_size: int = 500) -> Quality:
    """Loss, accuracy and recall of a model, which must be in evaluation mode; `batch_size` samples at a time."""
    loss = 0.0
    hits = torch.zeros(num_classes, dtype=torch.int64)
    counts = torch.zeros(num_classes, dtype=torch.int64)
    for start in range(0, len(images), batch_size):
        y = images.y[start : start + batch_size]
        logits = model(images.floats(images.x[start : start + batch_size]))
        loss += float(F.cross_entropy(logits, y, reduction="sum"))
        right = (logits.argmax(dim=1) == y).cpu()
        hits += torch.bincount(y.cpu()[right], minlength=num_classes)
        counts += torch.bincount(y.cpu(), minlength=num_classes)
    recall = tuple(h / n if n else None for h, n in zip(hits.tolist(), counts.tolist()))
    known = [r for r in recall if r is not None]
    return Quality(loss / len(images), int(hits.sum()) / len(images), sum(known) / len(known), recall)


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
