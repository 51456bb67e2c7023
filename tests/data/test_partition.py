"""The laws of a partition, for every kind: cover, disjoint, minimum, determined by rng."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.data.partition import (
    PARTITIONS,
    Holdings,
    class_counts,
    dirichlet,
    iid,
    is_redrawn,
    partition,
    quantity_skew,
    shards,
    sizes_of,
)
from hsfl.errors import InputError
from tests.naming import raises

LABELS = np.random.default_rng(0).integers(0, 10, 2000)

DRAWN = [kind for kind in PARTITIONS if kind != "given"]  # tests/data/test_own_data.py has the other


@st.composite
def problems(draw: st.DrawFn) -> dict:
    """Few samples, many clients and rare classes, so that topping up happens."""
    num_clients = draw(st.integers(1, 12))
    min_samples = draw(st.integers(0, 4))
    num_samples = draw(st.integers(max(1, num_clients * min_samples), 120))
    num_classes = draw(st.integers(1, 7))
    classes_per_client = draw(st.integers(min(num_classes, -(-num_classes // num_clients)), num_classes))
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    labels = rng.choice(num_classes, num_samples, p=rng.dirichlet(np.full(num_classes, 0.5)))
    present = len(np.unique(labels))
    return {
        "labels": labels * 3,  # classes need not be 0..C-1
        "num_clients": num_clients,
        "min_samples": min_samples,
        "classes_per_client": min(classes_per_client, present),
        "alpha": draw(st.sampled_from([1e-3, 0.1, 1.0, 100.0])),
        "seed": seed,
    }


def divide(kind: str, problem: dict) -> list[np.ndarray]:
    settings = {key: value for key, value in problem.items() if key != "seed"}
    return partition(kind=kind, rng=np.random.default_rng(problem["seed"]), **settings)


@pytest.mark.parametrize("kind", DRAWN)
@settings(deadline=None, max_examples=150)
@given(problem=problems())
def test_every_sample_has_one_client_and_every_client_its_minimum(kind: str, problem: dict) -> None:
    parts = divide(kind, problem)
    assert len(parts) == problem["num_clients"]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(problem["labels"])))
    assert min(len(part) for part in parts) >= problem["min_samples"]
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    assert all(np.array_equal(a, b) for a, b in zip(parts, divide(kind, problem)))


@pytest.mark.parametrize("kind", DRAWN)
def test_another_rng_divides_otherwise(kind: str) -> None:
    first, second = (partition(LABELS, 10, kind, np.random.default_rng(seed)) for seed in (1, 2))
    assert any(not np.array_equal(a, b) for a, b in zip(first, second))


def label_skew(parts: list[np.ndarray]) -> float:
    """Mean distance between a client's class shares and those of the whole, 0 to 1."""
    whole = np.bincount(LABELS, minlength=10) / len(LABELS)
    shares = [np.bincount(LABELS[part], minlength=10) / len(part) for part in parts]
    return float(np.mean([np.abs(share - whole).sum() / 2 for share in shares]))


def test_small_alpha_is_more_skewed() -> None:
    rng = np.random.default_rng(0)
    skews = [label_skew(dirichlet(LABELS, 10, rng, alpha=alpha)) for alpha in (0.05, 0.5, 5.0, 500.0)]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.6
    assert skews[-1] < 0.1


@pytest.mark.parametrize("alpha", [0.1, 1.0, 100.0])
def test_sizes_vary_as_dirichlet_says(alpha: float) -> None:
    """The variance of one share of Dirichlet(alpha, ..., alpha) is (1/K)(1 - 1/K) / (K alpha + 1)."""
    rng = np.random.default_rng(0)
    sizes = [[len(part) for part in quantity_skew(LABELS, 10, rng, alpha=alpha)] for _ in range(300)]
    expected = (2000 - 10 * 2) ** 2 * 0.1 * 0.9 / (10 * alpha + 1)
    assert np.var(sizes, axis=1).mean() == pytest.approx(expected, rel=0.1)


def test_quantity_skew_leaves_classes_alone() -> None:
    parts = quantity_skew(LABELS, 10, np.random.default_rng(0), alpha=1.0)
    assert label_skew([part for part in parts if len(part) > 100]) < 0.2


def test_iid_parts_are_equal() -> None:
    assert {len(part) for part in iid(LABELS, 7, np.random.default_rng(0))} == {285, 286}


@settings(deadline=None, max_examples=100)
@given(num_clients=st.integers(5, 30), classes_per_client=st.integers(2, 10), seed=st.integers(0, 99))
def test_shards_give_each_client_its_number_of_classes(num_clients: int, classes_per_client: int, seed: int) -> None:
    parts = shards(LABELS, num_clients, np.random.default_rng(seed), classes_per_client=classes_per_client)
    assert all(len(np.unique(LABELS[part])) == classes_per_client for part in parts)


def test_shards_of_equal_classes_are_equal() -> None:
    labels = np.repeat(np.arange(10), 500)
    assert {len(part) for part in shards(labels, 10, np.random.default_rng(0))} == {500}


def test_many_clients_with_the_bare_minimum() -> None:
    for kind in DRAWN:
        parts = partition(LABELS, 1000, kind, np.random.default_rng(0), alpha=0.01, min_samples=2)
        assert {len(part) for part in parts} == {2}


@pytest.mark.parametrize(
    ("kind", "num_clients", "options", "parts"),
    [
        ("iid", 0, {}, ("fleet.num_clients is 0",)),
        ("dirichlet", 5, {"alpha": 0.0}, ("data.alpha is 0.0",)),
        ("quantity_skew", 5, {"alpha": float("nan")}, ("data.alpha is nan",)),
        ("quantity_skew", 5, {"alpha": 1e308}, ("data.alpha is 1e+308",)),
        ("shards", 3, {"classes_per_client": 3}, ("3 clients of 3 classes", "10 classes", "more clients")),
        ("shards", 3, {"classes_per_client": 11}, ("data.classes_per_client is 11", "give 1 to 10")),
        ("shards", 3, {"min_samples": -1}, ("data.min_samples is -1",)),
        ("shard", 3, {}, ("partition 'shard'", "did you mean shards")),
    ],
)
def test_impossible_wishes(kind: str, num_clients: int, options: dict, parts: tuple[str, ...]) -> None:
    with raises(InputError, *parts):
        partition(LABELS, num_clients, kind, np.random.default_rng(0), **options)


# More clients than the samples suffice for: drawn with replacement, and what a partition promises still holds.


HUNDRED_LABELS = np.repeat(np.arange(5), [10, 20, 30, 20, 20])
OPTIONS = {"alpha": 0.2, "classes_per_client": 2, "min_samples": 6}


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards", "quantity_skew"])
def test_every_client_has_samples_and_all_of_them_exist(kind: str) -> None:
    parts = partition(HUNDRED_LABELS, 400, kind, np.random.default_rng(1), **OPTIONS)
    assert len(parts) == 400
    assert parts.sizes.min() >= 6
    assert parts.sizes.sum() > len(HUNDRED_LABELS), "samples are shared"
    assert parts.indices.min() >= 0
    assert parts.indices.max() < len(HUNDRED_LABELS)
    assert all((np.diff(part) >= 0).all() for part in parts)
    again = partition(HUNDRED_LABELS, 400, kind, np.random.default_rng(1), **OPTIONS)
    np.testing.assert_array_equal(parts.indices, again.indices)


def test_classes_follow_the_kind() -> None:
    counts = {
        kind: class_counts(
            partition(HUNDRED_LABELS, 2000, kind, np.random.default_rng(2), **OPTIONS), HUNDRED_LABELS, 5
        )
        for kind in ("iid", "dirichlet", "shards")
    }
    np.testing.assert_allclose(counts["iid"].sum(axis=0) / counts["iid"].sum(), [0.1, 0.2, 0.3, 0.2, 0.2], atol=0.02)
    assert ((counts["shards"] > 0).sum(axis=1) <= 2).all()
    assert (counts["dirichlet"] > 0).sum(axis=1).mean() < 0.7 * (counts["iid"] > 0).sum(axis=1).mean()
    np.testing.assert_allclose(
        counts["dirichlet"].sum(axis=0) / counts["dirichlet"].sum(), [0.1, 0.2, 0.3, 0.2, 0.2], atol=0.06
    )


def test_a_tiny_alpha_gives_one_class_each() -> None:
    parts = partition(HUNDRED_LABELS, 300, "dirichlet", np.random.default_rng(3), alpha=1e-3, min_samples=4)
    assert ((class_counts(parts, HUNDRED_LABELS, 5) > 0).sum(axis=1) <= 2).all()


def test_where_samples_suffice_each_has_one_owner() -> None:
    assert not is_redrawn(100, 50, 2)
    assert is_redrawn(100, 51, 2)
    parts = partition(HUNDRED_LABELS, 50, "iid", np.random.default_rng(0), min_samples=2)
    assert sorted(parts.indices.tolist()) == list(range(100))


def test_given_parts_are_never_drawn() -> None:
    with raises(InputError, "51 clients", "2 samples", "102"):
        partition(HUNDRED_LABELS, 51, "given", np.random.default_rng(0), clients=np.zeros(100, int), min_samples=2)


def test_holdings_read_like_a_list() -> None:
    parts = Holdings.of_owners(np.array([2, 0, 2, 2]), 3)
    assert [part.tolist() for part in parts] == [[1], [], [0, 2, 3]]
    assert parts[-1].tolist() == [0, 2, 3]
    assert [part.tolist() for part in parts[:2]] == [[1], []]
    assert sizes_of(parts).tolist() == sizes_of(list(parts)).tolist() == [1, 0, 3]
    labels = np.array([0, 1, 1, 0])
    np.testing.assert_array_equal(class_counts(parts, labels, 2), class_counts(list(parts), labels, 2))
    with pytest.raises(IndexError):
        parts[3]
