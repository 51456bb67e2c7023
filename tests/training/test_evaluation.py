import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hsfl.training.batches import Images
from hsfl.training.evaluation import Quality, evaluate_model, mean_quality


def some_images(labels: list[int]) -> Images:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (len(labels), 1, 4, 4), dtype=np.uint8))
    return Images(x, torch.tensor(labels), (0.4,), (0.3,))


def linear(num_classes: int):
    weight = torch.randn(16, num_classes, generator=torch.Generator().manual_seed(1))
    return lambda x: x.flatten(1) @ weight


LABELS = [0, 1, 2, 2, 1, 0, 0, 0, 2, 4, 4, 1, 0]


def test_evaluate_is_the_plain_formula():
    images, model = some_images(LABELS), linear(5)
    logits = model(images.floats(images.x))
    right = (logits.argmax(1) == images.y).numpy()
    quality = evaluate_model(model, images, 5)
    assert quality.accuracy == right.sum() / len(LABELS)  # the same double, not a rounded float32
    assert quality.loss == pytest.approx(float(F.cross_entropy(logits, images.y)), rel=1e-6)
    for label, recall in enumerate(quality.recall):
        members = np.array(LABELS) == label
        assert recall == (right[members].sum() / members.sum() if members.any() else None)
    assert quality.recall[3] is None  # a class that does not occur
    assert quality.balanced_accuracy == pytest.approx(np.mean([r for r in quality.recall if r is not None]))


@pytest.mark.parametrize("batch_size", [1, 4, 13, 500])
def test_the_batch_size_changes_nothing(batch_size):
    images, model = some_images(LABELS), linear(5)
    some, whole = evaluate_model(model, images, 5, batch_size), evaluate_model(model, images, 5)
    assert some.loss == pytest.approx(whole.loss, rel=1e-6)
    assert dataclasses.replace(some, loss=whole.loss) == whole


def test_a_right_model_is_perfect():
    images = some_images([0, 0, 0, 1])
    table = {tuple(row.flatten().tolist()): label for row, label in zip(images.floats(images.x), images.y)}

    def oracle(x):
        return 100 * F.one_hot(torch.stack([table[tuple(row.flatten().tolist())] for row in x]), 2).float()

    assert evaluate_model(oracle, images, 2) == Quality(0.0, 1.0, 1.0, (1.0, 1.0))


def test_balanced_accuracy_counts_classes_not_samples():
    quality = evaluate_model(lambda x: torch.tensor([[1.0, 0.0]]).repeat(len(x), 1), some_images([0, 0, 0, 1]), 2)
    assert (quality.accuracy, quality.balanced_accuracy, quality.recall) == (0.75, 0.5, (1.0, 0.0))


def test_mean_quality():
    first, second = Quality(1.0, 0.5, 0.4, (0.2, None, 1.0)), Quality(3.0, 1.0, 0.6, (0.4, None, 0.0))
    mean = mean_quality([first, second])
    assert (mean.loss, mean.accuracy, mean.balanced_accuracy) == (2.0, 0.75, 0.5)
    assert mean.recall == (pytest.approx(0.3), None, 0.5)
    assert mean_quality([first]) == first
