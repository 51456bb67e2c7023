"""The grid of learning rates looks at no test image, and its choice is the best of what was tried."""

from pathlib import Path

import numpy as np

from hsfl.data.registry import Dataset
from hsfl.experiments.learning_rates import RATES, RateResult, best_rate, grid_config, rates_markdown, with_held_out
from tests.small_runs import hsfl, refused


def test_held_out_images_are_training_images_that_are_not_trained_on() -> None:
    x = np.arange(100, dtype=np.uint8).reshape(100, 1, 1, 1)
    data = Dataset("numbers", x, np.arange(100), x[:3] + 200, np.arange(3), tuple("ab"), (0.0,), (1.0,))
    apart = with_held_out(data)
    assert len(apart.test_y) == 20  # a fifth of them
    assert sorted([*apart.train_y, *apart.test_y]) == list(range(100))
    assert (apart.test_x.reshape(-1) == apart.test_y).all()
    assert with_held_out(data).test_y.tolist() == apart.test_y.tolist()


def test_the_best_accuracy_is_chosen_and_among_equals_the_smallest_loss() -> None:
    tried = [RateResult("mnist", "sl", lr, 5, 100, loss, accuracy, None) for lr, loss, accuracy in
             [(0.0001, 2.0, 0.5), (0.0003, 1.0, 0.5), (0.001, 3.0, 0.4)]]  # fmt: skip
    assert best_rate(tried, "mnist", "sl") == 0.0003
    assert "| 50.0 | 50.0 | 40.0 | 0.0003 |" in rates_markdown(tried, [], "full")


def test_the_seed_of_the_grid_is_not_one_of_the_tables() -> None:
    assert grid_config("cifar10", "full", "twins", 0.001).seed == 0
    assert grid_config("cifar10", "full", "twins", 0.001).train.lr == 0.001


def test_the_command_trains_once_and_goes_on(tmp_path: Path) -> None:
    words = ["reproduce", "rates", "--scale", "smoke", "--datasets", "digits", "--columns", "hsfl", "--out", tmp_path]
    assert hsfl(*words, "--quiet").code == 0
    folders = sorted(path.name for path in (tmp_path / "rates/runs/digits/twins").iterdir())
    assert folders == sorted(f"lr-{lr:g}" for lr in RATES)
    records = [path / "rounds.jsonl" for path in (tmp_path / "rates/runs/digits/twins").iterdir()]
    before = [path.stat().st_mtime_ns for path in records]
    assert hsfl(*words, "--quiet").code == 0
    assert [path.stat().st_mtime_ns for path in records] == before
    assert "scale" in refused(*[str(word).replace("smoke", "quick") for word in words])
