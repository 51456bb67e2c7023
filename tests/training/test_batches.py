"""Batches are a function of (seed, client, pass, step), and of nothing else."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.data.passes import RoundSteps, batches_of_pass, samples_of_round
from hsfl.framework_table import METHODS
from hsfl.frameworks import find_framework
from hsfl.rng import stream
from hsfl.runs.client_data import read_data
from hsfl.runs.prepare import prepare
from hsfl.training.batches import MEMORY_FORMATS, Feed, Images, PlannedBatch, pass_positions, resized
from hsfl.training.step import StepKey
from tests.small_runs import tiny

sizes = st.integers(1, 60)


@settings(deadline=None)
@given(num_samples=sizes, batch_size=st.integers(1, 25), seed=st.integers(0, 99))
def test_a_pass_takes_each_sample_once(num_samples, batch_size, seed):
    batches = pass_positions(num_samples, batch_size, np.random.default_rng(seed))
    assert sorted(np.concatenate(batches).tolist()) == list(range(num_samples))
    lengths = [len(batch) for batch in batches]
    assert all(length == batch_size for length in lengths[:-1])
    assert lengths[-1] <= batch_size + 1
    assert min(lengths) >= min(num_samples, batch_size, 2)  # one sample alone only where nothing else is asked


@pytest.mark.parametrize(
    ("num_samples", "batch_size", "lengths"),
    [(1, 4, [1]), (2, 4, [2]), (3, 4, [3]), (4, 4, [4]), (5, 4, [5]), (6, 4, [4, 2]), (9, 4, [4, 5]), (3, 1, [1, 2])],
)
def test_a_single_sample_left_over_joins_the_batch_before(num_samples, batch_size, lengths):
    batches = pass_positions(num_samples, batch_size, np.random.default_rng(0))
    assert [len(batch) for batch in batches] == lengths


@settings(deadline=None)
@given(
    num_samples=sizes,
    batch_size=st.integers(1, 25),
    epochs=st.one_of(st.integers(1, 3), st.floats(0.01, 3.0), st.sampled_from([0.1, 0.2, 0.25, 0.5, 1.5])),
    rounds=st.integers(1, 9),
)
def test_rounds_are_the_next_batches_of_one_endless_list_of_passes(num_samples, batch_size, epochs, rounds):
    """All rounds one after another are the passes one after another, whatever part of a pass a round takes."""
    feed = Feed(numbers(num_samples), [np.arange(num_samples)], seed=4)
    per_pass = len(pass_positions(num_samples, batch_size, np.random.default_rng(0)))
    steps = max(1, round(epochs * per_pass))
    made = [planned for r in range(rounds) for planned in feed.batches_of_round(0, r, batch_size, epochs)]
    passes = range(-(-rounds * steps // per_pass))
    order = [pass_positions(num_samples, batch_size, stream(4, "batches", 0, p)) for p in passes]
    wanted = [(p, step, batch.tolist()) for p in passes for step, batch in enumerate(order[p])]
    assert [(b.key.pass_index, b.key.step, b.indices.tolist()) for b in made] == wanted[: rounds * steps]


@settings(deadline=None)
@given(num_samples=sizes, batch_size=st.integers(1, 25), epochs=st.floats(0.01, 3.0), round_index=st.integers(0, 30))
def test_a_round_is_counted_without_making_its_batches(num_samples, batch_size, epochs, round_index):
    """What a server or the clock counts is what the client makes."""
    feed = Feed(numbers(num_samples), [np.arange(num_samples)], seed=4)
    plan = feed.batches_of_round(0, round_index, batch_size, epochs)
    steps = RoundSteps(num_samples, batch_size, epochs, round_index)
    assert steps.count == len(plan)
    assert [steps.size(step) for step in range(steps.count)] == [len(planned.indices) for planned in plan]
    assert [steps.place(step) for step in range(steps.count)] == [(p.key.pass_index, p.key.step) for p in plan]
    assert steps.total_samples == sum(len(planned.indices) for planned in plan)


@pytest.mark.parametrize("epochs", [0.2, 0.3, 0.5, 1.5])
def test_over_whole_passes_rounds_train_their_mean(epochs):
    """s steps a round of N steps a pass: N rounds make s whole passes."""
    for num_samples, batch_size in [(37, 8), (33, 8), (5, 8), (100, 7)]:
        rounds = range(int(batches_of_pass(num_samples, batch_size)))
        each = [float(samples_of_round(num_samples, batch_size, epochs, r)) for r in rounds]
        assert sum(each) == pytest.approx(len(rounds) * float(samples_of_round(num_samples, batch_size, epochs)))


def test_passes_are_shuffled_anew():
    first, second = a_feed().batches_of_round(1, 0, 28, 2)
    assert first.indices.tolist() != second.indices.tolist()


def numbers(num_samples: int) -> Images:
    return Images(torch.zeros(num_samples, 2), torch.zeros(num_samples, dtype=torch.int64), (), ())


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


def test_the_class_of_a_pixel_moves_with_the_pixel():
    """Images that show their own targets still show them when both were mirrored and moved; targets kept as bytes come as numbers."""
    images = colour_images()
    feed = Feed(replace(images, y=images.x[:, 0]), [np.arange(40)], 1, "flip_crop")
    planned = feed.batches_of_round(0, 0, 40, 1)[0]
    x, y = feed.batch(planned)
    assert y.dtype == torch.int64
    assert torch.equal(x[:, 0], images.floats(y[:, None].expand(-1, 3, -1, -1).to(torch.uint8))[:, 0])
    assert not torch.equal(y, images.x[planned.indices, 0].long())


def flat(plan: list[PlannedBatch]) -> list[list[int]]:
    return [planned.indices.tolist() for planned in plan]


def test_plans_are_keyed_by_seed_client_and_round():
    plan = flat(a_feed().batches_of_round(1, 5, 4, 1))
    assert plan == flat(a_feed().batches_of_round(1, 5, 4, 1))
    assert {index for batch in plan for index in batch} == set(range(12, 40))
    assert plan != flat(a_feed().batches_of_round(1, 6, 4, 1))
    assert plan != flat(a_feed(seed=2).batches_of_round(1, 5, 4, 1))


def test_what_was_drawn_before_changes_nothing():
    fresh, used = a_feed(augment="flip_crop"), a_feed(augment="flip_crop")
    for round_index in range(3):
        used.batch(used.batches_of_round(0, round_index, 4, 2)[0])
    torch.manual_seed(99)
    np.random.default_rng().random()
    assert flat(used.batches_of_round(1, 5, 4, 1)) == flat(fresh.batches_of_round(1, 5, 4, 1))
    planned = fresh.batches_of_round(1, 5, 4, 1)[2]
    for mine, theirs in zip(used.batch(planned), fresh.batch(planned)):
        assert torch.equal(mine, theirs)


def test_augmentation_is_keyed_by_seed_client_pass_and_step():
    def images(seed: int, client: int, pass_index: int, step: int) -> torch.Tensor:
        key = StepKey(seed, client, pass_index, step)
        return a_feed(seed, "flip_crop").batch(PlannedBatch(np.arange(12), key))[0]

    first = images(1, 0, 0, 0)
    assert torch.equal(first, images(1, 0, 0, 0))
    for other in [(2, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1)]:
        assert not torch.equal(first, images(*other))


def test_a_batch_has_its_images_and_labels():
    feed = a_feed()
    told = []
    feed.on_batch = lambda client, num_samples: told.append((client, num_samples))
    x, y = feed.batch(PlannedBatch(np.array([7, 3]), StepKey(1, 0, 0, 0)))
    assert y.tolist() == [7 % 5, 3 % 5]
    torch.testing.assert_close(x.double(), plain(feed.images, feed.images.x[[7, 3]]), rtol=1e-6, atol=1e-6)
    assert told == [(0, 2)]


def watched(framework: str) -> dict[tuple[int, int, int], list[tuple[list[int], torch.Tensor]]]:
    """What each client was fed in two rounds of half a pass, by (client, round, step of the pass)."""
    bench = prepare(tiny(f"framework={framework}", "train.local_epochs=0.5", "data.partition=quantity_skew"))
    feed, seen, round_index = bench.task.feed, defaultdict(list), 0
    batch = feed.batch

    def spy(planned):
        x, y = batch(planned)
        seen[planned.key.client, round_index, planned.key.step].append((planned.indices.tolist(), x.clone()))
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


@given(
    size=st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)),
    last=st.booleans(),
    is_bytes=st.booleans(),
    mean=st.sampled_from([(), (0.5,)]),
)
def test_images_lie_as_asked_and_are_the_same_numbers(size, last, is_bytes, mean):
    x = torch.randint(256, size, dtype=torch.uint8) if is_bytes else torch.randn(size)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    images = Images(x, torch.zeros(size[0], dtype=torch.int64), mean * size[1], mean * size[1])
    made = images.floats(x)
    for name, memory_format in MEMORY_FORMATS.items():
        like = replace(images, memory_format=name).floats(x)
        assert torch.equal(like, made)
        assert like.stride() == torch.empty(size, memory_format=memory_format).stride()
        assert like.data_ptr() != x.data_ptr() or not like.numel()  # a model may change its input in place


@pytest.mark.parametrize(("name", "strides"), [("cnn", (64, 1, 8, 1)), ("resnet18", (64, 64, 8, 1))])
def test_a_model_decides_how_its_images_lie_whatever_the_files_have(name, strides):
    config = tiny(f"model.name={name}")
    dataset = read_data(config)
    n = len(dataset.train_x)
    for order in ((64, 64, 8, 1), (64, 1, 8, 1)):  # as digits have it, and as MNIST's files would
        x = np.lib.stride_tricks.as_strided(dataset.train_x, (n, 1, 8, 8), order)
        feed = prepare(config, replace(dataset, train_x=x)).task.feed
        assert feed.batch(feed.batches_of_round(0, 0, 4, 1.0)[0])[0].stride() == strides
