"""Arrays, .npz and .csv of one's own: taken as they are meant, and what is wrong is one line."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, Subset, TensorDataset

from hsfl.config import read_config
from hsfl.data.arrays import client_numbers, held_out_samples, samples
from hsfl.data.from_python import dataset, dataset_digest, fit_dataset
from hsfl.data.partition import partition
from hsfl.data.readers.reader_base import FileSettings
from hsfl.data.registry import Dataset, class_counts_of, load_dataset
from hsfl.errors import InputError
from hsfl.runs.prepare import prepare
from hsfl.training.batches import Images
from tests.naming import names, raises

X = np.random.default_rng(0).normal(3.0, 2.0, (60, 5))
Y = np.arange(60) % 3
PIXELS = np.random.default_rng(1).integers(0, 256, (60, 2, 4, 4))


def floats(data: Dataset) -> np.ndarray:
    """The training samples as a model meets them."""
    images = Images(torch.from_numpy(data.train_x), torch.from_numpy(data.train_y), data.mean, data.std)
    return images.floats(images.x).numpy()


def one_line(call: Any, *words: Any, **more: Any) -> str:
    with pytest.raises(InputError) as caught:
        call(*words, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- torch data sets


class Pairs(TorchDataset):
    """Whatever it is given, as pairs."""

    def __init__(self, *pairs: Any, classes: Any = None) -> None:
        self.pairs, self.classes = pairs, classes

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, place: int) -> Any:
        return self.pairs[place]


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(zip(X, Y))


def test_a_torch_data_set_is_the_data_set_of_its_arrays() -> None:
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    arrays_alone = dataset_digest(dataset(X, Y))
    assert dataset_digest(dataset(TensorDataset(x, y))) == arrays_alone
    assert dataset_digest(dataset(Stream())) == arrays_alone
    with_test = dataset(TensorDataset(x, y), test_x=Subset(TensorDataset(x, y), range(9)))
    assert (len(with_test.train_y), len(with_test.test_y)) == (60, 9)
    numbers = dataset(TensorDataset(x, x[:, :2]), task="regression")
    assert numbers.train_y.shape == (48, 2)


def test_pillow_images_of_a_torch_data_set_are_images() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (12, 6, 4, 3)).astype(np.uint8)
    pairs = Pairs(*((Image.fromarray(image), k % 2) for k, image in enumerate(pixels)), classes=["cat", "dog"])
    data = dataset(pairs, test_x=pairs)
    assert (data.image_shape, data.classes, data.train_x.dtype) == ((3, 6, 4), ("cat", "dog"), np.uint8)
    assert np.array_equal(data.train_x, pixels.transpose(0, 3, 1, 2))
    grey = dataset(Pairs(*((Image.fromarray(image[:, :, 0]), k % 2) for k, image in enumerate(pixels))))
    assert grey.image_shape == (1, 6, 4)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"x": Pairs(X[0], X[1])}, ("x[0] is a ndarray", "pairs (x, y)")),
        ({"x": Pairs((X[0], 0), (X[1, :2], 1))}, ("x[1] has shape (2,)", "resizes or pads")),
        ({"x": Pairs((X[0], 0), (X[1], [1, 2]))}, ("y[1] has shape (2,)",)),
        ({"x": Pairs()}, ("x is empty",)),
        ({"x": Pairs((X[0], 0)), "y": Y}, ("y is given", "leave it out")),
        ({"x": X}, ("y is missing", "torch data set")),
        ({"x": X, "y": Y, "test_x": Pairs((X[0], 0)), "test_y": Y}, ("test_y is given",)),
    ],
)
def test_torch_data_sets_that_do_not_fit_are_one_line(given: dict, parts: tuple[str, ...]) -> None:
    names(one_line(dataset, **given), *parts)


def test_one_hot_floats_are_told_from_numbers() -> None:
    names(one_line(dataset, X, np.eye(3)[Y]), "y.argmax(axis=1)", "one-hot")
    names(one_line(dataset, X, Y.astype(float)), "y.astype(int)", "regression")
    assert "argmax" not in one_line(dataset, X, X[:, :3])


def test_a_data_set_shows_itself() -> None:
    data = dataset(X, np.array(["<b>", "cat", "dog"])[Y], clients=Y, name="mine")
    names(repr(data), "mine: 48 samples", "12 to test", "3 clients", "cat     16")
    names(data._repr_html_(), "&lt;b&gt;", "<td>16</td>")
    assert "<b>" not in data._repr_html_()


# --- arrays


@pytest.mark.parametrize("x", [X, X.astype(np.float32), X.astype(np.float16), torch.from_numpy(X), X.tolist()])
def test_floats_are_taken_as_they_are(x: Any) -> None:
    data = dataset(x, Y, x, Y)
    np.testing.assert_allclose(floats(data), X, rtol=1e-3)
    assert (data.train_x.dtype, data.mean, data.classes) == (np.float32, (), ("0", "1", "2"))


def test_floats_of_images_are_not_divided() -> None:
    x = np.random.default_rng(0).normal(size=(60, 1, 8, 8))
    assert np.array_equal(floats(dataset(x, Y, x, Y)), x.astype(np.float32))


def test_tensors_that_are_trained_are_taken_too() -> None:
    assert dataset(torch.from_numpy(X).requires_grad_(), torch.from_numpy(Y)).train_x.shape == (48, 5)


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int32, np.int64, np.uint64])
def test_whole_numbers_are_images_whatever_their_type(kind: Any) -> None:
    data = dataset(PIXELS.astype(kind), Y, PIXELS.astype(kind), Y)
    assert data.train_x.dtype == np.uint8
    np.testing.assert_allclose(floats(data).mean(axis=(0, 2, 3)), 0, atol=1e-4)
    np.testing.assert_allclose(floats(data).std(axis=(0, 2, 3)), 1, atol=1e-3)


def test_grey_images_need_no_axis_for_their_channel() -> None:
    assert dataset(PIXELS[:, 0], Y).image_shape == (1, 4, 4)


def test_whole_numbers_in_vectors_are_features() -> None:
    data = dataset(1000 * np.arange(120).reshape(60, 2), Y)
    assert (data.train_x.dtype, data.train_x.max() > 255) == (np.float32, True)


def test_normalise_is_over_the_training_samples() -> None:
    found = floats(dataset(X, Y, 100 * X, Y, normalise=True))
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(found.std(axis=0), 1, atol=1e-6)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_labels_of_any_whole_type(kind: Any) -> None:
    data = dataset(X, Y.astype(kind), X, Y)
    assert np.array_equal(data.train_y, Y)
    assert data.train_y.dtype == np.int64


def test_labels_may_be_names_and_two_values() -> None:
    names = np.array(["cat", "dog", "ant"])[Y]
    for labels in (names, names.tolist(), names.astype(object)):
        data = dataset(X, labels, X, labels)
        assert data.classes == ("ant", "cat", "dog")
        assert np.array_equal(data.train_y, np.array([1, 2, 0])[Y])
    assert dataset(X, Y > 0).classes == ("0", "1")
    assert dataset(X, names, X, names, classes=["dog", "cat", "ant", "bee"]).train_y[:3].tolist() == [1, 0, 2]


def test_sensors_over_time_are_no_images() -> None:
    assert dataset(np.zeros((60, 9, 128, 1)), Y).image_shape == (9, 128, 1)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"y": Y[:40]}, ("x has 60 samples", "y 40 labels", "one label for each")),
        ({"test_x": X, "test_y": Y[1:]}, ("test_x has 60 samples", "test_y 59 labels")),
        ({"x": np.where(X > 3, np.nan, X)}, ("x[0, 0] is nan", "leave the sample out", "put a number")),
        ({"x": 1e300 * X}, ("x[0, 0] is inf", "leave the sample out")),
        ({"x": X[:, 0]}, ("x has shape (60,)", "[samples, features]")),
        ({"x": X[:0]}, ("x has shape (0, 5)", "[samples, features]")),
        ({"x": [[1, 2], [3]]}, ("x is a list", "no array of numbers", "convert it")),
        ({"x": [["a", "b"]] * 60}, ("x is a list", "no array of numbers")),
        ({"x": X + 1j}, ("x is a ndarray", "(60, 5)", "no array of numbers")),
        ({"x": 2 * PIXELS}, ("4 axes", "images in 0..255", "convert the array to float")),
        ({"x": PIXELS - 9}, ("] is -", "4 axes", "images in 0..255")),
        ({"x": np.zeros((60, 8, 8, 3), int)}, ("channels last", "x.transpose(0, 3, 1, 2)")),
        ({"x": np.zeros((60, 8, 8, 3))}, ("channels last", "x.transpose(0, 3, 1, 2)")),
        ({"x": np.zeros((60, 8, 9, 3))}, ("channels last", "x.transpose(0, 3, 1, 2)")),
        ({"x": np.zeros((60, 8, 8, 1))}, ("channels last", "x.transpose(0, 3, 1, 2)")),
        ({"y": Y.astype(float)}, ("y is a ndarray", "(60,) of float64", "whole numbers", "or names")),
        ({"y": np.eye(3)[Y].astype(int)}, ("y has shape (60, 3)", "one label for each", "y.argmax")),
        ({"y": Y[:, None]}, ("y has shape (60, 1)", "one label for each", "y.ravel()")),
        ({"y": Y - 1}, ("y holds label -1", "whole numbers")),
        ({"y": Y + 1}, ("labels up to 3", "none is 0", "number the classes")),
        ({"y": 2 * Y}, ("labels up to 4", "none is 1")),
        ({"y": np.full(60, 2**63, np.uint64)}, ("y holds label 9223372036854775808", "whole numbers")),
        ({"y": 0 * Y}, ("y holds one class", "alone, 0", "needs two")),
        ({"y": Y, "classes": ["a", "b"]}, ("y holds label 2", "2 classes", "name them all")),
        ({"y": Y, "classes": ["a", "b", "a"]}, ("classes are a, b, a", "each once")),
        ({"y": Y.astype(str), "classes": "abc"}, ("y holds label '0'", "none of the classes")),
        ({"test_x": X}, ("test_y is missing", "or neither")),
        ({"test_y": Y}, ("test_x is missing", "or neither")),
        ({"test_x": X[:0], "test_y": Y[:0]}, ("test_x has shape (0, 5)",)),
        ({"test_x": X[:, 1:], "test_y": Y}, ("x holds float32 (5,)", "test_x float32 (4,)", "alike")),
        ({"test_x": X, "test_y": Y + 1}, ("test_y holds label 3", "no training sample")),
        ({"test_x": X, "test_y": Y.astype(str)}, ("y and test_y", "names and whole numbers", "one kind")),
        ({"test_x": X, "test_y": Y, "test_fraction": 0.1}, ("test_fraction is 0.1", "beside test_x", "leave one")),
        ({"test_fraction": -0.1}, ("test_fraction is -0.1", "0 or more", "below 1")),
        ({"test_fraction": 1.0}, ("test_fraction is 1.0", "0 or more", "below 1")),
        ({"x": X[:3], "y": [0, 1, 2]}, ("every class", "one sample", "held out")),
        ({"clients": Y[:9]}, ("clients has 9 entries", "60 samples", "one for each")),
        ({"clients": X[:, 0]}, ("clients is a ndarray", "(60,) of float64", "whole number or name")),
        ({"clients": [" "] * 60}, ("clients[0] is empty", "name the client")),
    ],
)  # fmt: skip
def test_wrong_arrays_are_one_line(change: dict, parts: tuple[str, ...]) -> None:
    names(one_line(dataset, **({"x": X, "y": Y} | change)), *parts)


def test_a_record_made_by_hand_is_checked_for_its_lengths() -> None:
    fine = dataset(X, Y)
    names(
        one_line(Dataset, "own", fine.train_x, fine.train_y[:20], fine.test_x, fine.test_y, fine.classes, (), ()),
        "train_x",
        "48 samples",
        "train_y",
        "20 labels",
    )


@pytest.mark.parametrize("shape", [(7,), (4, 4), (2, 3, 2)])
def test_a_class_for_each_pixel(shape: tuple) -> None:
    """Targets of any shape, whole numbers of any type, kept as bytes where they fit."""
    maps = np.random.default_rng(0).integers(0, 3, (60, *shape))
    maps.flat[:3] = 0, 1, 2
    for y in (maps, maps.astype(np.uint64), torch.from_numpy(maps), maps.tolist()):
        data = dataset(X, y, X, y, task="segmentation")
        assert np.array_equal(data.train_y, maps)
        assert (data.train_y.dtype, data.classes, data.targets) == (np.uint8, ("0", "1", "2"), "pixels")
    assert dataset(X, maps > 0, task="segmentation").num_classes == 2
    named = dataset(X, maps, task="segmentation", classes=["sea", "land", "sky", "town"])
    assert sum(row.num_train + row.num_test for row in class_counts_of(named)) == maps.size
    assert class_counts_of(named)[3] == ("pixels of town", 0, 0)
    many = dataset(X, maps, task="segmentation", classes=list(map(str, range(300))))
    assert many.train_y.dtype == np.int64
    assert len({dataset_digest(data) for data in (named, many, dataset(X, maps, task="segmentation"))}) == 3


MAPS = np.arange(60 * 6).reshape(60, 2, 3) % 4


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"y": Y}, ("y", "(60,)", "[samples, height, width]")),
        ({"y": MAPS[:40]}, ("60 samples", "y 40", "one label")),
        ({"y": MAPS.astype(float)}, ("float64", "y.astype(int)", "y.argmax(axis=1)")),
        ({"y": MAPS - 1}, ("class -1", "class of their own")),
        ({"y": np.where(MAPS == 3, 2**40, MAPS)}, (f"class {2**40}", "0, 1, ...")),
        ({"y": np.where(MAPS == 3, 255, MAPS)}, ("up to 255", "none is 3", "name them all")),
        ({"y": 0 * MAPS}, ("one class alone",)),
        ({"classes": ["a", "b"]}, ("label 3", "2 classes")),
        ({"test_x": X, "test_y": MAPS[:, :1]}, ("(2, 3)", "(1, 3)", "make them alike")),
        ({"test_x": X, "test_y": MAPS + 300}, ("label 300", "no training sample")),
        ({"task": "classification"}, ("(60, 2, 3)", "segmentation")),
        ({"task": "regression"}, ("(60, 2, 3)", "[samples, columns]")),
    ],
)
def test_wrong_maps_of_classes_are_one_line(change: dict, parts: tuple) -> None:
    names(one_line(dataset, **({"x": X, "y": MAPS, "task": "segmentation"} | change)), *parts)


def test_maps_of_classes_in_files(tmp_path: Path) -> None:
    files = FileSettings(task="segmentation")
    name = save(tmp_path / "a.npz", x=PIXELS.astype(np.uint8), y=PIXELS[:, 0] % 4)
    given = dataset(PIXELS, PIXELS[:, 0] % 4, task="segmentation")
    assert dataset_digest(load_dataset(name, files=files)) == dataset_digest(given)
    names(one_line(load_dataset, name, files=files, image_size=8), "data.image_size is 8", "each pixel", "leave it out")
    names(one_line(fit_dataset, given, 8, None, None, np.random.default_rng(0)), "data.image_size is 8", "each pixel")
    names(one_line(table, tmp_path / "a.csv", task="segmentation"), "segmentation", "npz:PATH")
    assert len(fit_dataset(given, None, 12, 6, np.random.default_rng(0)).train_y) == 12


def test_the_digest_is_of_all_that_is_held() -> None:
    base = {"x": X, "y": Y, "clients": Y}
    changes = [{"x": X + 1e-3}, {"y": 2 - Y}, {"clients": (Y + 1) % 3}, {"clients": None}, {"normalise": True}]
    changes += [{"clients": np.array(["a", "b", "c"])[Y]}, {"classes": ["a", "b", "c"]}, {"test_fraction": 0.3}]
    digests = {dataset_digest(dataset(**(base | change))) for change in changes}
    assert len(digests | {dataset_digest(dataset(**base))}) == len(changes) + 1
    assert dataset_digest(dataset(**base)) == dataset_digest(dataset(**base, name="other"))


def test_limits_and_sizes_apply_to_given_data() -> None:
    small = fit_dataset(dataset(PIXELS, Y, clients=Y), 8, 12, 6, np.random.default_rng(0))
    assert (small.train_x.shape, len(small.test_y), len(small.clients)) == ((12, 2, 8, 8), 6, 12)
    assert np.array_equal(small.clients, small.train_y)  # as each class was one client's
    names(
        one_line(fit_dataset, dataset(X, Y), 8, None, None, np.random.default_rng(0)),
        "data.image_size is 8",
        "own",
        "numbers",
    )


# --- laws of the split and of the clients' numbers


@given(
    labels=st.lists(st.integers(0, 4), min_size=2, max_size=80),
    clients=st.integers(1, 5),
    fraction=st.floats(0.05, 0.95),
)
def test_every_class_of_two_is_on_both_sides_in_proportion(labels: list, clients: int, fraction: float) -> None:
    y = np.array(labels)
    if np.bincount(y).max() < 2:
        return
    held = held_out_samples("", y, np.arange(len(y)) % clients, fraction)
    for label in np.unique(y):
        mine = held[y == label]
        assert mine.sum() == min(max(round(fraction * len(mine)), 1), len(mine) - 1)
    assert np.array_equal(held, held_out_samples("", y, np.arange(len(y)) % clients, fraction))


def test_every_client_gives_its_part_to_the_test() -> None:
    y, clients = np.zeros(1000, int), np.repeat([0, 1, 2], [100, 300, 600])
    held = held_out_samples("", y, clients, 0.2)
    np.testing.assert_allclose(np.bincount(clients[held]), [20, 60, 120], atol=1)


@given(ids=arrays.arrays(np.int64, st.integers(1, 30), elements=st.integers(0, 120)))
def test_clients_are_numbered_by_size_whether_numbers_or_words(ids: np.ndarray) -> None:
    index, names = client_numbers("clients", ids, len(ids))
    assert [int(names[k]) for k in index] == ids.tolist()
    assert [int(name) for name in names] == sorted(set(ids.tolist()))
    words, word_names = client_numbers("clients", ids.astype(str), len(ids))
    assert (words.tolist(), word_names) == (index.tolist(), names)


@given(x=arrays.arrays(np.int64, (3, 2, 2), elements=st.integers(-3, 300)))
def test_no_image_holds_what_a_byte_cannot(x: np.ndarray) -> None:
    if ((x >= 0) & (x <= 255)).all():
        assert np.array_equal(samples("x", x)[:, 0], x)
    else:
        names(one_line(samples, "x", x), "images", "0..255")


# --- the natural partition


def test_each_client_has_the_samples_that_it_holds() -> None:
    rng = np.random.default_rng(0)
    machines = rng.permutation(np.repeat(["b", "a", "c"], [20, 24, 16]))
    data = dataset(X, Y, X, Y, clients=machines)
    options = {"clients": data.clients, "client_names": data.client_names}
    parts = partition(data.train_y, 3, "given", rng, **options)
    for name, part in zip("abc", parts):
        assert np.array_equal(part, np.flatnonzero(machines == name))
    wrong = one_line(partition, data.train_y, 4, "given", rng, **options)
    names(wrong, "fleet.num_clients is 4", "3 clients", "(a, b, c)", "set fleet.num_clients=3")
    names(
        one_line(partition, data.train_y, 3, "given", rng, **options, min_samples=20),
        "client 'c'",
        "16 training samples",
    )
    names(one_line(partition, data.train_y, 3, "given", rng), "which client")


# --- .npz


def save(path: Path, **named: Any) -> str:
    np.savez(path, **named)
    return f"npz:{path}"


@pytest.mark.parametrize(
    "names", [("train_x", "train_y", "test_x", "test_y"), ("x_train", "y_train", "x_test", "y_test")]
)
def test_npz_of_both_sides(names: tuple, tmp_path: Path) -> None:
    name = save(tmp_path / "a.npz", **dict(zip(names, (X, Y, X[:9], Y[:9]))), classes=["a", "b", "c"], clients=Y)
    data = load_dataset(name)
    assert np.array_equal(data.train_x, X.astype(np.float32))
    assert (data.classes, data.client_names, len(data.test_y)) == (("a", "b", "c"), ("0", "1", "2"), 9)


def test_nothing_is_withheld_where_that_is_asked_for(tmp_path: Path) -> None:
    """Whatever the kind of file; samples to test on that stand beside stay. A run that tests says what is missing."""
    keeping = FileSettings(test_fraction=0)
    alone = save(tmp_path / "alone.npz", train_x=X, train_y=Y)
    for data in (dataset(X, Y, test_fraction=0), load_dataset(alone, files=keeping)):
        assert (len(data.train_y), len(data.test_y), data.num_classes) == (60, 0, 3)
        np.testing.assert_array_equal(data.train_x, X.astype(np.float32))
    assert len(load_dataset(alone).test_y) == 12
    both = load_dataset(save(tmp_path / "b.npz", train_x=X, train_y=Y, test_x=X[:7], test_y=Y[:7]), files=keeping)
    assert (len(both.train_y), len(both.test_y)) == (60, 7)
    (tmp_path / "a.txt").write_text("abcdefgh " * 40)
    kept, usual = (
        load_dataset(f"text:{tmp_path / 'a.txt'}", files=replace(files, block=8)) for files in (keeping, FileSettings())
    )
    assert (len(kept.train_y), len(kept.test_y)) == (len(usual.train_y) + len(usual.test_y), 0)
    with raises(InputError, "data.test_fraction=0", "test samples"):
        prepare(read_config(None, [f"data.name={alone}", "data.test_fraction=0", "model.name=mlp"]))


def test_npz_of_x_and_y_is_split_as_arrays_are(tmp_path: Path) -> None:
    name = save(tmp_path / "a.npz", x=PIXELS.astype(np.uint8), y=Y)
    read, given = load_dataset(name, files=FileSettings(test_fraction=0.3)), dataset(PIXELS, Y, test_fraction=0.3)
    assert dataset_digest(read) == dataset_digest(given)
    assert load_dataset("npz:a.npz", tmp_path).image_shape == (2, 4, 4)  # within the data directory, too
    assert load_dataset(name, image_size=8).image_shape == (2, 8, 8)


@pytest.mark.parametrize(
    ("named", "files", "parts"),
    [
        ({"a": X}, {}, ("a.npz holds a", "train_x, train_y", "x and y")),
        ({"x": X, "y": Y, "z": Y}, {}, ("a.npz holds z", "arrays x, y")),
        ({"x": X, "y": Y[1:]}, {}, ("a.npz", "x has 60 samples", "y 59 labels")),
        ({"x": X, "y": np.array([{}] * 60)}, {}, ("a.npz", "without objects")),
        ({"x": X, "y": Y, "classes": X}, {}, ("classes is of float64", "(60, 5)", "list of names")),
        ({"x": X, "y": Y}, {"target_column": "y"}, ("data.target_column is 'y'", "npz", "for csv:PATH")),
        ({"train_x": X, "train_y": Y, "test_x": X, "test_y": Y}, {"test_fraction": 0.3}, ("data.test_fraction is 0.3", "has test_x", "leave it out")),
        ({"x": X, "y": Y, "clients": Y}, {"client_file": "who.txt"}, ("data.client_file is 'who.txt'", "has clients", "leave one")),
    ],
)  # fmt: skip
def test_wrong_npz_is_one_line(named: dict, files: dict, parts: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "who.txt").write_text("a\n" * 60)
    name = save(tmp_path / "a.npz", **named)
    names(one_line(load_dataset, name, tmp_path, files=FileSettings(**files)), *parts)


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04nonsense")
    np.save(tmp_path / "b.npy", X)
    names(one_line(load_dataset, f"npz:{tmp_path / 'a.npz'}"), "a.npz", "read")
    names(one_line(load_dataset, f"npz:{tmp_path / 'b.npy'}"), "b.npy", "without a name")
    names(one_line(load_dataset, "npz:absent.npz", tmp_path), "absent.npz", "no file")
    assert "write npz:PATH" in one_line(load_dataset, "npz")


# --- .csv


TABLE = "width,height,kind,machine\n" + "".join(
    f"{i}.5,{i * i % 7},{'good' if i % 3 else 'bad'},m{i % 4}\n" for i in range(40)
)


def table(path: Path, text: str = TABLE, **files: Any) -> Dataset:
    path.write_text(text)
    return load_dataset(
        f"csv:{path}", files=FileSettings(**({"target_column": "kind", "client_column": "machine"} | files))
    )


def test_csv_has_features_classes_and_clients(tmp_path: Path) -> None:
    data = table(tmp_path / "a.csv")
    assert (data.image_shape, data.classes, data.client_names) == ((2,), ("bad", "good"), ("m0", "m1", "m2", "m3"))
    row = np.rint(data.train_x[:, 0] - 0.5).astype(int)
    assert np.array_equal(data.train_x[:, 1], row * row % 7)
    assert np.array_equal(data.clients, row % 4)
    assert np.array_equal(data.train_y, (row % 3 > 0).astype(int))
    assert len(data.train_y) + len(data.test_y) == 40


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_csv_with_other_delimiters_and_a_mark_at_its_start(delimiter: str, tmp_path: Path) -> None:
    plain, other = table(tmp_path / "a.csv"), table(tmp_path / "b.csv", "\ufeff" + TABLE.replace(",", delimiter))
    assert dataset_digest(plain) == dataset_digest(other)


def test_csv_with_a_test_file_and_chosen_columns(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("kind,height,width\ngood,3,1\nbad,4,2\n")
    data = table(tmp_path / "a.csv", test_file=str(tmp_path / "test.csv"), feature_columns=("height",), normalise=True)
    assert (len(data.train_y), data.test_x.tolist(), data.test_y.tolist()) == (40, [[3.0], [4.0]], [1, 0])
    assert data.mean == pytest.approx((data.train_x.mean(),))


def test_csv_classes_that_are_numbers_are_in_their_order(tmp_path: Path) -> None:
    text = "a,kind\n" + "".join(f"{i},{(9, 10, 2)[i % 3]}\n" for i in range(30))
    assert table(tmp_path / "a.csv", text, client_column=None).classes == ("2", "9", "10")


@pytest.mark.parametrize(
    ("text", "files", "parts"),
    [
        (TABLE, {"target_column": None}, ("needs data.target_column", "columns are width, height")),
        (TABLE, {"target_column": "knid"}, ("data.target_column 'knid'", "did you mean kind?")),
        (TABLE, {"client_column": "machin"}, ("data.client_column 'machin'", "did you mean machine?")),
        (TABLE, {"client_column": "kind"}, ("data.client_column", "data.target_column", "both 'kind'")),
        (TABLE, {"client_column": None}, ("line 2", "machine is 'm0'", "choose the columns")),
        (TABLE, {"feature_columns": ("width", "kind")}, ("data.feature_columns holds 'kind'", "another use")),
        (TABLE, {"feature_columns": ("widht",)}, ("data.feature_columns 'widht'", "did you mean width?")),
        (TABLE, {"test_file": "a.csv", "test_fraction": 0.2}, ("data.test_fraction is 0.2", "data.test_file", "leave one out")),
        (TABLE, {"client_file": "who.txt"}, ("data.client_column and data.client_file", "leave one out")),
        (TABLE.replace("3.5", "nan"), {}, ("line 5", "width is 'nan'", "put a number")),
        (TABLE.replace("3.5", ""), {}, ("line 5", "width is ''", "put a number")),
        (TABLE.replace("3.5,", "3,5,"), {}, ("line 5 has 5 cells", "header 4", "correct the line")),
        (TABLE.replace("good", "", 1), {}, ("line 3", "kind is empty", "name the class")),
        (TABLE.replace("good", "bad"), {}, ("kind holds one class", "alone, bad")),
        (TABLE.replace("height", "width"), {}, ("column", "'width' twice")),
        ("width,kind,machine\n", {}, ("a.csv", "no rows")),
        ("", {}, ("a.csv", "no rows")),
        ("kind,machine\na,1\nb,2\n", {}, ("no columns", "kind, machine")),
        ('a,kind\n"1,2\n', {}, ("cannot be read", "unexpected end of data")),
    ],
)  # fmt: skip
def test_wrong_csv_is_one_line(
    text: str, files: dict, parts: tuple[str, ...], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "who.txt").write_text("a\n" * 40)
    names(one_line(table, Path("a.csv"), text, **files), *parts)


def test_rows_of_the_test_file_with_a_class_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("kind,height,width\nfine,3,1\n")
    wrong = one_line(table, tmp_path / "a.csv", test_file=str(tmp_path / "test.csv"))
    names(wrong, "kind", "'fine'", "classes")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00")
    names(one_line(load_dataset, f"csv:{tmp_path / 'a.csv'}"), "text in UTF-8")


def test_a_client_file_goes_with_any_data_set(tmp_path: Path) -> None:
    num_samples = len(load_dataset("digits").train_y)
    (tmp_path / "who.txt").write_text("".join(f"machine {i % 7}\n" for i in range(num_samples)))
    data = load_dataset("digits", tmp_path, limit=100, files=FileSettings(client_file="who.txt"))
    assert (len(data.clients), data.client_names[6]) == (100, "machine 6")
    (tmp_path / "who.txt").write_text("a\nb\n")
    wrong = one_line(load_dataset, "digits", tmp_path, files=FileSettings(client_file="who.txt"))
    names(wrong, "data.client_file", "who.txt", "2 entries", f"{num_samples} samples")


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((400, 4), np.float32), y=np.arange(400) % 2)
    assert len(load_dataset(f"npz:{tmp_path / 'a.npz'}").train_y) > 0
    monkeypatch.setattr("hsfl.data.readers.npz.MOST_BYTES", 1000)
    with raises(InputError, "a.npz", "GB", "at most"):
        load_dataset(f"npz:{tmp_path / 'a.npz'}")
