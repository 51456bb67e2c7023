"""More clients than the samples suffice for: drawn with replacement, and what a partition promises still holds."""

import numpy as np
import pytest

from hsfl.data.partition import Holdings, class_counts, is_redrawn, partition, sizes_of
from hsfl.errors import InputError

LABELS = np.repeat(np.arange(5), [10, 20, 30, 20, 20])
OPTIONS = {"alpha": 0.2, "classes_per_client": 2, "min_samples": 6}


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards", "quantity_skew"])
def test_every_client_has_samples_and_all_of_them_exist(kind: str) -> None:
    parts = partition(LABELS, 400, kind, np.random.default_rng(1), **OPTIONS)
    assert len(parts) == 400
    assert parts.sizes.min() >= 6
    assert parts.sizes.sum() > len(LABELS), "samples are shared"
    assert parts.indices.min() >= 0
    assert parts.indices.max() < len(LABELS)
    assert all((np.diff(part) >= 0).all() for part in parts)
    again = partition(LABELS, 400, kind, np.random.default_rng(1), **OPTIONS)
    np.testing.assert_array_equal(parts.indices, again.indices)


def test_classes_follow_the_kind() -> None:
    counts = {
        kind: class_counts(partition(LABELS, 2000, kind, np.random.default_rng(2), **OPTIONS), LABELS, 5)
        for kind in ("iid", "dirichlet", "shards")
    }
    np.testing.assert_allclose(counts["iid"].sum(axis=0) / counts["iid"].sum(), [0.1, 0.2, 0.3, 0.2, 0.2], atol=0.02)
    assert ((counts["shards"] > 0).sum(axis=1) <= 2).all()
    assert (counts["dirichlet"] > 0).sum(axis=1).mean() < 0.7 * (counts["iid"] > 0).sum(axis=1).mean()
    np.testing.assert_allclose(
        counts["dirichlet"].sum(axis=0) / counts["dirichlet"].sum(), [0.1, 0.2, 0.3, 0.2, 0.2], atol=0.06
    )


def test_a_tiny_alpha_gives_one_class_each() -> None:
    parts = partition(LABELS, 300, "dirichlet", np.random.default_rng(3), alpha=1e-3, min_samples=4)
    assert ((class_counts(parts, LABELS, 5) > 0).sum(axis=1) <= 2).all()


def test_where_samples_suffice_each_has_one_owner() -> None:
    assert not is_redrawn(100, 50, 2)
    assert is_redrawn(100, 51, 2)
    parts = partition(LABELS, 50, "iid", np.random.default_rng(0), min_samples=2)
    assert sorted(parts.indices.tolist()) == list(range(100))


def test_given_parts_are_never_drawn() -> None:
    with pytest.raises(InputError, match="51 clients of at least 2 samples need 102"):
        partition(LABELS, 51, "given", np.random.default_rng(0), clients=np.zeros(100, int), min_samples=2)


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
