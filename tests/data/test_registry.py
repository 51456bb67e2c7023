"""Real sets have their published counts, means and stds; options do what they say."""

import sys
from pathlib import Path

import numpy as np
import pytest

from hsfl.data.registry import (
    READERS,
    Dataset,
    channel_statistics,
    class_counts_of,
    find_data_dir,
    load_dataset,
    stratified_subset,
)
from hsfl.errors import InputError
from tests.data.data_files import write_cifar, write_mnist
from tests.naming import raises

MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
HAM_TRAIN = [262, 411, 879, 91, 890, 5364, 112]
HAM_TEST = [65, 103, 220, 24, 223, 1341, 30]


def counts(dataset: Dataset) -> tuple[list[int], list[int]]:
    rows = class_counts_of(dataset)
    return [row.num_train for row in rows], [row.num_test for row in rows]


def test_mnist_is_the_published_one(data_dir: Path) -> None:
    mnist = load_dataset("mnist", data_dir)
    assert counts(mnist) == (MNIST_TRAIN, MNIST_TEST)
    assert (mnist.train_x.dtype, mnist.train_y.dtype, mnist.image_shape) == (np.uint8, np.int64, (1, 28, 28))
    assert mnist.mean == pytest.approx([0.1307], abs=5e-5)
    assert mnist.std == pytest.approx([0.3081], abs=5e-5)


def test_cifar10_is_the_published_one(data_dir: Path) -> None:
    cifar10 = load_dataset("cifar10", data_dir)
    assert counts(cifar10) == ([5000] * 10, [1000] * 10)
    assert (cifar10.image_shape, cifar10.classes[3]) == ((3, 32, 32), "cat")
    assert cifar10.mean == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)
    assert cifar10.std == pytest.approx([0.2470, 0.2435, 0.2616], abs=5e-5)
    assert cifar10.train_y[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile: the well-known start


def test_ham10000_is_the_published_one(data_dir: Path) -> None:
    ham = load_dataset("ham10000", data_dir)
    assert counts(ham) == (HAM_TRAIN, HAM_TEST)
    assert ham.image_shape == (3, 64, 64)
    both = np.concatenate([ham.train_x, ham.test_x])  # the published statistics are over all images
    mean, std = channel_statistics(both)
    assert mean == pytest.approx([0.7637, 0.5461, 0.5708], abs=5e-5)
    assert std == pytest.approx([0.1400, 0.1512, 0.1682], abs=5e-5)


def test_digits_are_stratified_and_the_same_each_time() -> None:
    digits, again = load_dataset("digits"), load_dataset("digits", rng=np.random.default_rng(7))
    train, test = counts(digits)
    assert (sum(train) + sum(test), digits.image_shape) == (1797, (1, 32, 32))
    assert all(0.18 < held / (held + kept) < 0.22 for kept, held in zip(train, test))
    assert np.array_equal(digits.test_x, again.test_x)
    assert digits.train_x.max() == 255


def test_without_scikit_learn_digits_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with raises(InputError, "pip install scikit-learn"):
        load_dataset("digits")


def test_digits_are_those_of_scikit_learn_wherever_its_file_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = load_dataset("digits")
    monkeypatch.setattr("hsfl.data.readers.digits.FILE", "moved.csv")
    slow = load_dataset("digits")
    assert np.array_equal(quick.train_x, slow.train_x)
    assert np.array_equal(quick.train_y, slow.train_y)


def test_arrays_are_writable_and_contiguous(tmp_path: Path) -> None:
    """Or torch.from_numpy warns, and copies."""
    write_mnist(tmp_path)
    write_cifar(tmp_path)
    for name in ("mnist", "cifar10"):
        dataset = load_dataset(name, tmp_path)
        for array in (dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y):
            assert array.flags.writeable
            assert array.flags.c_contiguous


def test_statistics_equal_numpys() -> None:
    x = np.random.default_rng(0).integers(0, 256, (1500, 3, 5, 4)).astype(np.uint8)  # more than one piece
    mean, std = channel_statistics(x)
    assert mean == pytest.approx((x / 255).mean(axis=(0, 2, 3)))
    assert std == pytest.approx((x / 255).std(axis=(0, 2, 3)))
    assert channel_statistics(np.full((3, 1, 2, 2), 9, np.uint8))[1][0] > 0  # never divides by zero


def test_limit_keeps_classes_in_proportion_and_follows_rng() -> None:
    labels = np.repeat([0, 1, 2], [600, 300, 100])
    chosen = stratified_subset(labels, 50, np.random.default_rng(1))
    assert np.bincount(labels[chosen]).tolist() == [30, 15, 5]
    assert np.array_equal(chosen, np.unique(chosen))
    assert np.array_equal(chosen, stratified_subset(labels, 50, np.random.default_rng(1)))
    assert not np.array_equal(chosen, stratified_subset(labels, 50, np.random.default_rng(2)))


def test_limits_are_of_the_training_and_test_data_apart(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    whole, both = load_dataset("mnist", tmp_path), load_dataset("mnist", tmp_path, limit=20, limit_test=10)
    assert (len(whole.train_y), len(whole.test_y), len(both.train_y), len(both.test_y)) == (40, 20, 20, 10)
    assert (both.mean, both.std) == (whole.mean, whole.std)  # of the set, not of the draw
    assert np.array_equal(load_dataset("mnist", tmp_path, limit=20).train_x, both.train_x)
    assert np.array_equal(load_dataset("mnist", tmp_path, limit_test=10).test_x, both.test_x)
    assert len(load_dataset("mnist", tmp_path, limit=10**6).train_y) == 40


def test_image_size_applies_to_every_set(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    assert load_dataset("mnist", tmp_path, image_size=32).image_shape == (1, 32, 32)


def test_the_data_directory_is_the_argument_else_the_variable_else_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HSFL_DATA", "/somewhere")
    assert find_data_dir("/here") == Path("/here")
    assert find_data_dir() == Path("/somewhere")
    monkeypatch.delenv("HSFL_DATA")
    assert find_data_dir().name == "hsfl"


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("mnits", {}, ("data set 'mnits'", "did you mean mnist")),
        ("zzz", {}, ("data set 'zzz'", "choose one of mnist")),
        ("folder", {}, ("data set 'folder'", "write folder:PATH")),
        ("mnist:/x", {}, ("'mnist:/x'", "takes no path")),
        ("mnist", {"limit": 0}, ("data.limit is 0",)),
        ("mnist", {"limit_test": -1}, ("data.limit_test is -1",)),
        ("mnist", {"image_size": 0}, ("data.image_size is 0",)),
        ("mnist", {"split": "lesions"}, ("data.split is 'lesions'", "choose 'lesion'")),
    ],
)
def test_bad_words(name: str, options: dict, parts: tuple[str, ...], tmp_path: Path) -> None:
    with raises(InputError, *parts):
        load_dataset(name, tmp_path, **options)


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"digits", "idx", "folder", "npz", "csv", "text", "pydoc"}))
def test_a_missing_set_says_what_to_do_in_one_line(name: str, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError) as caught:
            load_dataset(name, place)
        message = str(caught.value)
        assert "\n" not in message
        assert all(word in message for word in (f"hsfl data fetch {name}", "--data-dir", "HSFL_DATA", str(place)))
