"""What a model learns: one row for each task, with its loss, its metrics and what its targets are. Imports no torch.

`training/losses.py` and `training/evaluation.py` compute losses and metrics. What reads run folders takes names, titles and directions from
here, or from the folder where the task is a plugin's.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hsfl import plugins
from hsfl.errors import InputError, known_name
from hsfl.formats import percent, significant

Function = Callable[[Any, Any], Any]  # of what the model gives and the targets


@dataclass(frozen=True)
class Metric:
    """A number that says how good a model is on test samples."""

    name: str
    title: str
    higher_is_better: bool = True
    percent: bool = False  # whether it is a fraction, which people read in per cent
    function: Function | None = None  # of a plugin: a number for each sample, of which the metric is the mean

    def say(self, value: float) -> str:
        return percent(value) if self.percent else significant(value, 4)

    def tell(self, value: float) -> str:
        """The value with its name."""
        return f"{self.title} {self.say(value)}"

    def is_better(self, value: float, than: float) -> bool:
        return value > than if self.higher_is_better else value < than


@dataclass(frozen=True)
class LearningTask:
    """A row: what the targets are, which loss is trained, and which metrics are told. The first metric chooses the best round."""

    name: str
    targets: str  # classes, labels, numbers, tokens or pixels
    loss: str | Function
    metrics: tuple[Metric, ...]

    @property
    def metric(self) -> Metric:
        """The metric that is shown first, by which rounds and runs are compared."""
        return self.metrics[0]


DEFAULT = "classification"
ACCURACY = Metric("test_accuracy", "test accuracy", percent=True)
BALANCED = Metric("balanced_accuracy", "balanced accuracy", percent=True)
LOSSES = {  # which targets a loss is for
    "cross_entropy": ("classes", "tokens"),
    "pixel_cross_entropy": ("pixels",),
    "bce": ("labels",),
    "mse": ("numbers",),
    "mae": ("numbers",),
    "huber": ("numbers",),
}
TASKS = {
    row.name: row
    for row in (
        LearningTask(DEFAULT, "classes", "cross_entropy", (ACCURACY, BALANCED)),
        LearningTask(
            "multi_label",
            "labels",
            "bce",
            (Metric("micro_f1", "micro F1", percent=True), Metric("exact_match", "exact match", percent=True)),
        ),
        LearningTask(
            "regression",
            "numbers",
            "mse",
            (
                Metric("mean_absolute_error", "mean absolute error", higher_is_better=False),
                Metric("mean_squared_error", "mean squared error", higher_is_better=False),
                Metric("r2", "R2"),
            ),
        ),
        LearningTask(
            "next_token",
            "tokens",
            "cross_entropy",
            (
                Metric("perplexity", "perplexity", higher_is_better=False),
                Metric("bits_per_token", "bits per token", higher_is_better=False),
                Metric("token_accuracy", "token accuracy", percent=True),
            ),
        ),
        LearningTask(
            "segmentation",
            "pixels",
            "pixel_cross_entropy",
            (Metric("mean_iou", "mean IoU", percent=True), Metric("pixel_accuracy", "pixel accuracy", percent=True)),
        ),
    )
}


def find_task(name: str | None) -> LearningTask:
    """The row of a task; of none, that of classification."""
    return TASKS[DEFAULT if name is None else known_name("task", name, TASKS, plugins.WAY_OUT)]


def check_loss(task: LearningTask, loss: str | None) -> None:
    """Refuse a `train.loss` that is unknown, or for other targets than the task's."""
    if loss is None:
        return
    if task.targets not in LOSSES[known_name("loss", loss, LOSSES)]:
        fits = [name for name, targets in LOSSES.items() if task.targets in targets]
        raise InputError(f"train.loss is {loss!r} but the task is {task.name}; choose {' or '.join(fits)}")


def register_task(
    name: str,
    *,
    like: str,
    loss: str | Function | None = None,
    metrics: Mapping[str, Function] | None = None,
    less_is_better: Collection[str] = (),
) -> None:
    """Add a task of one's own: targets as those of the built-in task `like`, with another loss or with more metrics.

    loss: `loss(output, target)` gives the mean over the batch, one number; or the name of a built-in loss.
    metrics: `metric(output, target)` by name gives a number for each sample, and their mean is told. They come before those of
    `like`, and the first chooses the best round; `less_is_better` names those of which less is better.
    """
    base, own_metrics = find_task(like), metrics or {}
    if isinstance(loss, str):
        check_loss(base, loss)
    for subject, function in (
        ("its loss", loss),
        *((f"metric {label!r}", metric) for label, metric in own_metrics.items()),
    ):
        if function is None or isinstance(function, str):
            continue
        if not callable(function):
            raise InputError(f"task {name!r}: {subject} is {function!r}; give a function of (output, target)")
        plugins.check_call(f"task {name!r}: {subject}", function, "output", "target")
    if strange := [label for label in less_is_better if label not in own_metrics]:
        raise InputError(f"task {name!r}: less_is_better names {strange[0]!r}, which is no metric of it; correct it")
    if taken := [
        label
        for label in own_metrics
        if label in {metric.name for metric in base.metrics} or not plugins.NAME.fullmatch(label)
    ]:
        raise InputError(f"task {name!r}: metric {taken[0]!r} is no name, or one of {like}; choose another name")
    added = tuple(
        Metric(
            label,
            label.replace("_", " "),
            label not in less_is_better,
            False,
            own_metrics[label],
        )
        for label in own_metrics
    )
    row = replace(base, name=name, loss=base.loss if loss is None else loss, metrics=(*added, *base.metrics))
    plugins.register_name("task", TASKS, name, row)
