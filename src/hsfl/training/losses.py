"""The loss that is trained and the metrics that are reported, as the task has them. Every loss is chosen here.

What a model gives, and the targets: classes [b, C] and [b]; labels [b, L] and [b, L] of 0 and 1; numbers [b, D] and [b, D];
tokens [b, T, V] and [b, T]; pixels [b, C, ...] and [b, ...], where `...` is any shape, such as height and width. Legend: b samples,
C classes, L labels, D columns, T tokens in a block, V tokens of the vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hsfl.errors import InputError
from hsfl.tasks import DEFAULT, LearningTask, Metric, find_task
from hsfl.training.aggregate import device_of_doubles

MOST_NATS = 600.0  # beyond it a perplexity is no number that a record holds


def _cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """The cross-entropy of classes, the mean over the batch; of tokens, the mean over all tokens."""
    return (
        F.cross_entropy(output.flatten(0, -2), target.flatten()) if target.ndim > 1 else F.cross_entropy(output, target)
    )


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": _cross_entropy,
    "pixel_cross_entropy": F.cross_entropy,  # the mean over all pixels
    "bce": F.binary_cross_entropy_with_logits,
    "mse": F.mse_loss,
    "mae": F.l1_loss,
    "huber": F.huber_loss,
}


@dataclass(frozen=True)
class Goal:
    """What is learned: the task, and the loss where it is not the task's own. Both are names, so that a goal can be
    sent to another process."""

    task: str = DEFAULT
    loss: str | None = None

    @property
    def row(self) -> LearningTask:
        return find_task(self.task)

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of a batch: the mean over its samples."""
        loss = self.loss or self.row.loss
        if isinstance(loss, str):
            return FUNCTIONS[loss](output, target)
        return _checked_loss(self.task, loss(output, target))

    def total(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss summed over the samples of a batch."""
        if (self.loss or self.row.loss) == "cross_entropy" and target.ndim == 1:
            return F.cross_entropy(output, target, reduction="sum")
        return self(output, target) * len(target)

    def sums(self, output: Tensor, target: Tensor, num_outputs: int) -> tuple[float, ...]:
        """The sums that the metrics need of a batch; sums of several batches are added."""
        plugin_metrics = [metric for metric in self.row.metrics if metric.function is not None]
        return (
            *_SUMS[self.row.targets](output, target, num_outputs),
            *(_plugin_metric_sum(self.task, metric, output, target) for metric in plugin_metrics),
        )

    def metrics(self, sums: Sequence[float], num_samples: int) -> dict[str, float]:
        """The metrics by name, in the task's order, from sums over all batches. Classification has fields of its own (`Quality`)."""
        plugin_names = [metric.name for metric in self.row.metrics if metric.function is not None]
        num_task_sums = len(sums) - len(plugin_names)
        values = {name: value / num_samples for name, value in zip(plugin_names, sums[num_task_sums:])}
        values |= _METRICS[self.row.targets](sums[:num_task_sums], num_samples)
        return {metric.name: values[metric.name] for metric in self.row.metrics if metric.name in values}


CLASSIFY = Goal()


def _checked_loss(task: str, loss: object) -> Tensor:
    """The value of a plugin's loss; refuses what is no single float."""
    if not isinstance(loss, Tensor) or loss.ndim != 0 or not loss.is_floating_point():
        kind = (
            f"a tensor of {tuple(loss.shape)} ({loss.dtype})"
            if isinstance(loss, Tensor)
            else f"a {type(loss).__name__}"
        )
        raise InputError(
            f"the loss of task {task!r} gives {kind}; give the mean over the batch, one float: loss.mean()"
        )
    return loss


def _plugin_metric_sum(task: str, metric: Metric, output: Tensor, target: Tensor) -> float:
    assert metric.function is not None
    value = metric.function(output, target)
    if not isinstance(value, Tensor) or value.shape != (len(target),):
        shape = f"a tensor of {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise InputError(
            f"metric {metric.name} of task {task!r} gives {shape} for {len(target)} samples; give one number each"
        )
    return float(value.to(device_of_doubles(value)).double().sum())


def _class_sums(output: Tensor, target: Tensor, num_outputs: int) -> tuple[float, ...]:
    """Hits of each class, then samples of each class."""
    hits = target[output.argmax(dim=1) == target]
    counts = [torch.bincount(classes.cpu(), minlength=num_outputs).tolist() for classes in (hits, target)]
    return (*counts[0], *counts[1])


def _label_sums(output: Tensor, target: Tensor, num_outputs: int) -> tuple[float, ...]:
    """Labels rightly and wrongly given, labels missed, and samples without any mistake."""
    predicted, true = output > 0, target > 0.5
    right, wrong, missed = (predicted & true).sum(), (predicted & ~true).sum(), (~predicted & true).sum()
    counts = (right, wrong, missed, (predicted == true).all(dim=1).sum())
    return tuple(int(count) for count in counts)


def _number_sums(output: Tensor, target: Tensor, num_outputs: int) -> tuple[float, ...]:
    """For each column: absolute errors, squared errors, targets, squared targets."""
    device = device_of_doubles(output)
    y = target.to(device).double()
    error = output.to(device).double() - y
    rows = torch.stack([error.abs().sum(0), error.square().sum(0), y.sum(0), y.square().sum(0)], dim=1)
    return tuple(rows.flatten().tolist())


def _token_sums(output: Tensor, target: Tensor, num_outputs: int) -> tuple[float, ...]:
    """Nats, tokens, and tokens that were guessed."""
    flat, y = output.flatten(0, 1), target.flatten()
    nats = F.cross_entropy(flat, y, reduction="sum")
    return float(nats), len(y), int((flat.argmax(dim=1) == y).sum())


def _pixel_sums(output: Tensor, target: Tensor, num_outputs: int) -> tuple[float, ...]:
    """Pixels of each class that were guessed, then pixels of each class in the targets, then in the guesses."""
    guess = output.argmax(dim=1)
    pixels = (target[guess == target], target.flatten(), guess.flatten())
    return tuple(count for classes in pixels for count in torch.bincount(classes.cpu(), minlength=num_outputs).tolist())


def _label_metrics(sums: Sequence[float], num_samples: int) -> dict[str, float]:
    right, wrong, missed, exact = sums
    denominator = 2 * right + wrong + missed
    return {"micro_f1": 2 * right / denominator if denominator else 1.0, "exact_match": exact / num_samples}


def _number_metrics(sums: Sequence[float], num_samples: int) -> dict[str, float]:
    columns = [sums[place : place + 4] for place in range(0, len(sums), 4)]
    spreads = [squares - total**2 / num_samples for _, _, total, squares in columns]
    explained = [1 - column[1] / spread for column, spread in zip(columns, spreads) if spread > 0]
    metrics = {
        "mean_absolute_error": sum(column[0] for column in columns) / (num_samples * len(columns)),
        "mean_squared_error": sum(column[1] for column in columns) / (num_samples * len(columns)),
    }
    return metrics | ({"r2": sum(explained) / len(explained)} if explained else {})  # constant targets have no r2


def _token_metrics(sums: Sequence[float], num_samples: int) -> dict[str, float]:
    nats, num_tokens, hits = sums
    nats_per_token = nats / num_tokens
    return {
        "perplexity": math.exp(min(nats_per_token, MOST_NATS)) if math.isfinite(nats_per_token) else math.nan,
        "bits_per_token": nats_per_token / math.log(2),
        "token_accuracy": hits / num_tokens,
    }


def _pixel_metrics(sums: Sequence[float], num_samples: int) -> dict[str, float]:
    """A class that the targets do not have is left out of the mean, whatever the model guesses; so all models are judged by the
    same classes. To guess such a class is still a mistake: the pixel is missed by the class that it has."""
    num_classes = len(sums) // 3
    hits, true, guessed = (sums[place : place + num_classes] for place in range(0, len(sums), num_classes))
    overlaps = [hit / (t + g - hit) for hit, t, g in zip(hits, true, guessed) if t]
    return {"mean_iou": sum(overlaps) / len(overlaps), "pixel_accuracy": sum(hits) / sum(true)}


_SUMS = {
    "classes": _class_sums,
    "labels": _label_sums,
    "numbers": _number_sums,
    "tokens": _token_sums,
    "pixels": _pixel_sums,
}
_METRICS: dict[str, Callable[[Sequence[float], int], dict[str, float]]] = {
    "classes": lambda sums, num_samples: {},
    "labels": _label_metrics,
    "numbers": _number_metrics,
    "tokens": _token_metrics,
    "pixels": _pixel_metrics,
}
