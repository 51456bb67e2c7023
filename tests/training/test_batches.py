"""Batches are a function of (seed, client, round, step), and of nothing else."""

from collections import defaultdict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.small_runs import tiny

from hsfl.frameworks import find_framework
from hsfl.methods import METHODS
from hsfl.runs.prepare import prepare
from hsfl.training.batches import Feed, Images, batch_positions, resized

sizes = st.integers(1, 60)


@settings(deadline=None)
@given(num_samples=sizes, batch_size=st.integers(1, 25), epochs=st.integers(1, 3), seed=st.integers(0, 99))
def test_batch_plan(num_samples, batch_size, epochs, seed):
    plan = batch_positions(num_samples, batch_size, epochs, np.random.default_rng(seed))
    per_epoch = len(plan) // epochs
    assert len(plan) == per_epoch * epochs
    for epoch in range(epochs):
        batches = plan[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(np.concatenate(batches).tolist()) == list(range(num_samples))  # each sample once
        lengths = [len(batch) for batch in batches]
        assert all(length == batch_size for length in lengths[:-1])
        assert lengths[-1] <= batch_size + 1
        assert min(lengths) >= min(num_samples, batch_size, 2)  # one sample alone only where nothing else is asked


@pytest.mark.parametrize(
    ("num_samples", "batch_size", "lengths"),
    [(1, 4, [1]), (2, 4, [2]), (3, 4, [3]), (4, 4, [4]), (5, 4, [5]), (6, 4, [4, 2]), (9, 4, [4, 5]), (3, 1, [1, 2])],
)
def test_a_single_sample_left_over_joins_the_batch_before(num_samples, batch_size, lengths):
    plan = batch_positions(num_samples, batch_size, 1, np.random.default_rng(0))
    assert [len(batch) for batch in plan] == lengths


def test_epochs_are_shuffled_anew():
    first, second = batch_positions(40, 40, 2, np.random.default_rng(0))
    assert first.tolist() != second.tolist()


def colour_images(num_images: int = 40) -> Images:
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.integers(0, 256, (num_images, 3, 10, 12), dtype=np.uint8))
    return Images(x, torch.arange(num_images) % 5, (0.2, 0.5, 0.7), (0.1, 0.2, 0.4))


def plain(images: Images, x: torch.Tensor) -> torch.Tensor:
    """The formula, pixel by pixel in float64."""
    mean, std = (torch.tensor(numbers, dtype=torch.float64).view(3, 1, 1) for numbers in (images.mean, images.std))
    return (x.double() / 255 - mean) / std


def test_normalisation_is_the_plain_formula():
    images = colour_images()
    torch.testing.assert_close(images.floats(images.x).double(), plain(images, images.x), rtol=1e-6, atol=1e-6)
    assert images.floats(images.x).dtype == torch.float32
    assert images.shape == (3, 10, 12)


@pytest.mark.parametrize("size", [(6, 20), (10, 12), (25, 5)])
def test_images_are_resized_once_to_the_nearest_bytes(size):
    x = colour_images().x
    small = resized(x, size, chunk=7)
    want = F.interpolate(x.double(), size, mode="bilinear", antialias=True, align_corners=False)
    assert small.dtype == torch.uint8
    assert small.shape == (40, 3, *size)
    assert (small.double() - want).abs().max() <= 0.5 + 1e-4


def test_a_run_with_another_input_size_feeds_small_images():
    bench = prepare(tiny("model.input=[1, 5, 4]", "model.name=mlp", "fleet.cuts=1"))
    assert bench.task.feed.images.x.shape[1:] == bench.test.x.shape[1:] == (1, 5, 4)
    assert bench.task.feed.images.x.dtype == torch.uint8


def a_feed(seed: int = 1, augment: str = "none") -> Feed:
    shares = [np.arange(0, 12), np.arange(12, 40)]
    return Feed(colour_images(), shares, seed, augment)


def flat(plan: list[np.ndarray]) -> list[list[int]]:
    return [batch.tolist() for batch in plan]


def test_plans_are_keyed_by_seed_client_and_round():
    plan = flat(a_feed().batch_indices(1, 5, 4, 1))
    assert plan == flat(a_feed().batch_indices(1, 5, 4, 1))
    assert {index for batch in plan for index in batch} == set(range(12, 40))
    assert plan != flat(a_feed().batch_indices(1, 6, 4, 1))
    assert plan != flat(a_feed(seed=2).batch_indices(1, 5, 4, 1))


def test_what_was_drawn_before_changes_nothing():
    fresh, used = a_feed(augment="flip_crop"), a_feed(augment="flip_crop")
    for round_index in range(3):
        used.batch(used.batch_indices(0, round_index, 4, 2)[0], 0, round_index, 0)
    torch.manual_seed(99)
    np.random.default_rng().random()
    assert flat(used.batch_indices(1, 5, 4, 1)) == flat(fresh.batch_indices(1, 5, 4, 1))
    indices = fresh.batch_indices(1, 5, 4, 1)[2]
    for mine, theirs in zip(used.batch(indices, 1, 5, 2), fresh.batch(indices, 1, 5, 2)):
        assert torch.equal(mine, theirs)


def test_augmentation_is_keyed_by_seed_client_round_and_step():
    indices = np.arange(12)
    seen = {
        key: a_feed(seed, "flip_crop").batch(indices, *key)[0]
        for seed, *rest in [(1, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1)]
        for key in [tuple(rest)]
    }
    first = seen.pop((0, 0, 0))
    assert torch.equal(first, a_feed(1, "flip_crop").batch(indices, 0, 0, 0)[0])
    assert not torch.equal(first, a_feed(2, "flip_crop").batch(indices, 0, 0, 0)[0])
    for other in seen.values():
        assert not torch.equal(first, other)


def test_a_batch_has_its_images_and_labels():
    feed = a_feed()
    told = []
    feed.on_batch = lambda client, num_samples: told.append((client, num_samples))
    x, y = feed.batch(np.array([7, 3]), 0, 0, 0)
    assert y.tolist() == [7 % 5, 3 % 5]
    torch.testing.assert_close(x.double(), plain(feed.images, feed.images.x[[7, 3]]), rtol=1e-6, atol=1e-6)
    assert told == [(0, 2)]


def watched(framework: str) -> dict[tuple[int, int, int], list[tuple[list[int], torch.Tensor]]]:
    """What each client was fed in two rounds, by (client, round, step)."""
    bench = prepare(tiny(f"framework={framework}", "train.local_epochs=2", "data.partition=quantity_skew"))
    feed, seen = bench.task.feed, defaultdict(list)
    batch = feed.batch

    def spy(indices, client, round_index, step):
        x, y = batch(indices, client, round_index, step)
        seen[client, round_index, step].append((indices.tolist(), x.clone()))
        return x, y

    feed.batch = spy  # type: ignore[method-assign]
    algorithm = find_framework(framework)(bench.task)
    state = algorithm.init()
    for round_index, kept in enumerate([[0, 1, 2], [0, 2]]):
        state, _ = algorithm.round(state, kept, round_index)
    return seen


@pytest.mark.parametrize("framework", sorted(set(METHODS) - {"hsfl", "cl", "psl"}))
def test_every_framework_sees_the_same_batches(framework):
    """CL pools the data and PSL has batch sizes of its own, by definition."""
    want, got = watched("hsfl"), watched(framework)
    assert got.keys() == want.keys()
    assert {client for client, _, _ in got} == {0, 1, 2}
    assert {client for client, round_index, _ in got if round_index == 1} == {0, 2}
    for key, fed in want.items():
        assert len(fed) == len(got[key]) == 1
        assert fed[0][0] == got[key][0][0]
        assert torch.equal(fed[0][1], got[key][0][1])
