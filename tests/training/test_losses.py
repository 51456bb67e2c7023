"""Losses and metrics of every task, against sums by hand."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import hsfl
from hsfl.errors import InputError
from hsfl.tasks import LOSSES, TASKS
from hsfl.training.batches import Images
from hsfl.training.evaluation import evaluate_model, evaluation_batch_size, mean_quality
from hsfl.training.losses import FUNCTIONS, Goal
from tests.naming import raises
from tests.plugins.files import unload


@pytest.fixture(autouse=True)
def _no_plugins():
    yield
    unload()


def told(task: str, output, target, num_outputs: int, batch_size: int = 2):
    """The quality of a model that answers `output`, whatever it is asked; batches must not matter."""
    rows = torch.as_tensor(output)
    numbers = torch.arange(len(rows), dtype=torch.float32)[:, None]
    images = Images(numbers, torch.as_tensor(target), (), ())
    return evaluate_model(lambda x: rows[x[:, 0].long()], images, num_outputs, batch_size, Goal(task))


def test_every_loss_of_the_table_has_its_function():
    assert FUNCTIONS.keys() == LOSSES.keys()
    assert all(row.loss in LOSSES for row in TASKS.values())


def test_labels():
    """Sample 0: one right, one wrong. Sample 1: exactly right. Sample 2: one missed. F1 = 2*2 / (2*2 + 1 + 1)."""
    output = [[3.0, 2.0, -1.0], [-1.0, 4.0, -2.0], [-3.0, -1.0, -0.5]]
    target = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    quality = told("multi_label", output, target, 3)
    assert list(quality.metrics) == ["micro_f1", "exact_match"]
    assert quality.metrics == {"micro_f1": 4 / 6, "exact_match": 1 / 3}
    assert quality.accuracy is None
    assert quality.recall == ()
    mean = F.binary_cross_entropy_with_logits(torch.tensor(output), torch.tensor(target))
    assert quality.loss == pytest.approx(float(mean))


def test_numbers_have_errors_and_r2_by_column():
    rng = np.random.default_rng(0)
    target = rng.normal(100, 3, (7, 2)).astype(np.float32)
    output = target + rng.normal(0, 1, (7, 2)).astype(np.float32)
    error = output.astype(float) - target
    r2 = 1 - (error**2).sum(0) / ((target - target.astype(float).mean(0)) ** 2).sum(0)
    metrics = told("regression", output, target, 2).metrics
    assert metrics["mean_absolute_error"] == pytest.approx(np.abs(error).mean())
    assert metrics["mean_squared_error"] == pytest.approx((error**2).mean())
    assert metrics["r2"] == pytest.approx(r2.mean(), rel=1e-6)
    assert "r2" not in told("regression", output[:, :1], np.full((7, 1), 3, np.float32), 1).metrics


def test_tokens():
    """Uniform guesses over V tokens have a perplexity of V."""
    output, target = torch.zeros(5, 3, 8), torch.zeros(5, 3, dtype=torch.int64)
    quality = told("next_token", output, target, 8)
    assert quality.loss == pytest.approx(math.log(8))
    assert quality.metrics == {
        "perplexity": pytest.approx(8),
        "bits_per_token": pytest.approx(3),
        "token_accuracy": 1.0,
    }
    assert math.isfinite(
        told("next_token", output.index_fill(2, torch.tensor([1]), 1e6), target, 8).metrics["perplexity"]
    )


@pytest.mark.parametrize("shape", [(6,), (4, 5), (2, 3, 2)])
def test_pixels_are_judged_by_one_confusion_matrix(shape):
    """Class 4 never occurs in the targets, though it is guessed: it is left out of the mean, and its guesses are mistakes."""
    rng = np.random.default_rng(0)
    output = torch.from_numpy(rng.normal(size=(7, 5, *shape)).astype(np.float32))
    target = torch.from_numpy(rng.integers(0, 4, (7, *shape)))
    confusion = np.zeros((5, 5), int)
    for pixel, guess in zip(target.flatten(), output.argmax(1).flatten()):
        confusion[pixel, guess] += 1
    overlaps = [confusion[c, c] / (confusion[c].sum() + confusion[:, c].sum() - confusion[c, c]) for c in range(4)]
    assert confusion[:, 4].sum() > 0
    for batch_size in (2, 7):
        quality = told("segmentation", output, target, 5, batch_size)
        assert list(quality.metrics) == ["mean_iou", "pixel_accuracy"]
        assert quality.metrics["mean_iou"] == sum(overlaps) / 4
        assert quality.metrics["pixel_accuracy"] == confusion.trace() / confusion.sum()
        assert quality.loss == pytest.approx(float(F.cross_entropy(output, target)))
        assert (quality.accuracy, quality.recall) == (None, ())
    assert told("segmentation", output, target.to(torch.uint8), 5).metrics == quality.metrics  # as data sets keep them


def test_large_outputs_are_tested_in_small_batches():
    maps = Images(torch.zeros(4, 3, 512, 512), torch.zeros(4, 512, 512, dtype=torch.uint8), (), ())
    assert evaluation_batch_size(maps, 21) == 2**25 // (512 * 512 * 21)


def test_a_large_vocabulary_is_tested_in_small_batches():
    tokens = torch.zeros(4, 1024, dtype=torch.int64)
    assert evaluation_batch_size(Images(tokens, tokens, (), ()), 50_000) == 1
    assert evaluation_batch_size(Images(tokens, torch.zeros(4, dtype=torch.int64), (), ()), 10) == 500


def test_the_mean_of_models_is_the_mean_of_their_metrics():
    one, two = (told("regression", [[a], [a]], [[0.0], [2.0]], 1) for a in (0.0, 1.0))
    assert mean_quality([one, two]).metrics["mean_absolute_error"] == 1.0
    assert mean_quality([one, two]).accuracy is None


def weighted(output, target):
    return (output - target).abs().mean()


def within_one(output, target):
    return ((output - target).abs() < 1).all(dim=1)


def test_a_task_of_ones_own_has_its_loss_and_its_metrics_in_front():
    hsfl.register_task("prices", like="regression", loss=weighted, metrics={"within_one": within_one})
    quality = told("prices", [[0.5], [3.0], [9.0]], [[0.0], [1.0], [9.5]], 1)
    assert next(iter(quality.metrics)) == "within_one"
    assert quality.metrics["within_one"] == pytest.approx(2 / 3)
    assert quality.loss == pytest.approx((0.5 + 2 + 0.5) / 3)
    hsfl.register_task("fair", like="classification", metrics={"sure": lambda output, _: output.softmax(1).amax(1)})
    fair = told("fair", [[0.0, 0.0], [0.0, 0.0]], [0, 1], 2)
    assert (fair.accuracy, fair.metrics) == (0.5, {"sure": 0.5})


def test_wrong_tasks_are_one_line():
    for parts, how in [
        (("its loss", "output, target", "too many"), {"loss": lambda x: x}),
        (("its loss is 3", "give a function"), {"loss": 3}),
        (("train.loss is 'bce'", "task is regression", "mse or mae or huber"), {"loss": "bce"}),
        (("metric 'r2'", "one of regression"), {"metrics": {"r2": within_one}}),
        (("less_is_better", "'error'", "no metric"), {"less_is_better": ["error"]}),
    ]:
        with raises(InputError, *parts):
            hsfl.register_task("mine", like="regression", **how)
    with raises(InputError, "task 'regresion'", "did you mean regression"):
        hsfl.register_task("mine", like="regresion")
    hsfl.register_task("rows", like="regression", loss=lambda output, target: (output - target).abs().mean(dim=1))
    with raises(InputError, "task 'rows'", "(2,)", "loss.mean()"):
        Goal("rows")(torch.zeros(2, 1), torch.zeros(2, 1))
    hsfl.register_task("whole", like="regression", metrics={"one": lambda output, target: output.mean()})
    with raises(InputError, "task 'whole'", "2 samples", "one number each"):
        told("whole", [[0.0], [1.0]], [[0.0], [1.0]], 1)
