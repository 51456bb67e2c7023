"""BatchNorm's statistics, estimated again, do not depend on the cuts, on the order of the clients or on who computes them, and a running
statistic goes to the estimated one at the pace of its momentum."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from hsfl.frameworks import find_framework
from hsfl.frameworks.framework import Framework, Task
from hsfl.models.state import UnitState, bind_state
from hsfl.models.units import SplitModel
from hsfl.rng import stream
from hsfl.training.norm_statistics import Moments, NormBatches, NormLayers, NormShard, num_seen
from tests.laws.bench import in_clusters, make_task, train, with_cuts

COUNTS = [9, 3, 16, 5, 2]
CUTS = ([2, 3, 5, 1, 2], [0, 5, 3, 3, 1], [4] * 5, [0] * 5, [5] * 5, [1] * 5)
ONE_CUT = ("splitfed_v2", "psl", "cpsl", "locfedmix_sl", "sl")


def estimating(cuts: list[int], counts: list[int], norm_batches: int = 2, **settings: object) -> Task:
    chosen = {"norm_statistics": "estimated", "norm_batches": norm_batches, "dtype": torch.float32} | settings
    return make_task(cuts, counts, **chosen)  # type: ignore[arg-type]


def named(task: Task, framework: str) -> Framework:
    config = task.config.model_copy(update={"framework": framework})
    return find_framework(framework)(dataclasses.replace(task, config=config))


def estimate(task: Task, framework: str, whole: UnitState, clients: list[int], round_index: int = 1) -> UnitState:
    return named(task, framework).norm_moments(whole, clients, round_index).moments.pooled(whole)


def same_bits(left: UnitState, right: UnitState) -> bool:
    return torch.equal(left.floats, right.floats) and torch.equal(left.ints, right.ints)


@pytest.mark.parametrize("augment", ["none", "flip_crop"])
def test_the_same_statistics_at_every_cut_to_the_bit(augment: str) -> None:
    task = estimating(CUTS[0], COUNTS, dropout=0.3)
    task.feed.augment = augment
    whole, _, _ = train(task, "fl", [[0, 1, 2, 3, 4]])
    clients = [0, 2, 3, 4]
    expected = estimate(task, "fl", whole, clients)
    assert not same_bits(expected, whole)
    for framework in ("hsfl", "splitfed_v1", "fsl"):
        for cuts in CUTS:
            assert same_bits(estimate(with_cuts(task, cuts), framework, whole, clients), expected), (framework, cuts)
    for framework in (*ONE_CUT[:1], *ONE_CUT[2:]):  # PSL's batches are in proportion to the samples
        for cut in (1, 2, 4):
            other = in_clusters(with_cuts(task, [cut] * 5), (0, 1, 0, 1, 2))
            assert same_bits(estimate(other, framework, whole, clients), expected), (framework, cut)
    psl = [estimate(with_cuts(task, [cut] * 5), "psl", whole, clients) for cut in (1, 2, 4)]
    assert same_bits(psl[0], psl[1])
    assert same_bits(psl[0], psl[2])


def test_no_order_and_no_division_of_the_clients_changes_a_bit() -> None:
    task = estimating(CUTS[0], COUNTS)
    whole, _, _ = train(task, "hsfl", [[0, 1, 2, 3, 4]])
    algorithm = named(task, "hsfl")
    expected = algorithm.norm_moments(whole, [0, 1, 2, 3, 4], 0)
    for parts in ([[4, 2], [0], [3, 1]], [[1], [3], [2], [0], [4]]):
        total = NormShard(Moments.zero(NormLayers.of(task.model)))
        for part in parts:
            total.merge(algorithm.norm_moments(whole, part, 0))
        assert np.array_equal(total.moments.sums, expected.moments.sums)
        assert np.array_equal(total.moments.weights, expected.moments.weights)
        assert total.bytes == expected.bytes


def test_the_servers_have_the_whole_when_they_have_swapped_the_common_units() -> None:
    """The edge server counts heads, the main server tails; merging the two sums of the common units gives both the sum of all."""
    task = estimating(CUTS[0], COUNTS)
    whole, algorithm, layers = task.initial, named(task, "hsfl"), NormLayers.of(task.model)
    edge, main = Moments.zero(layers), Moments.zero(layers)
    for k, cut in enumerate(CUTS[0]):
        one = algorithm.norm_moments(whole, [k], 0).moments
        edge.merge(one[0:cut])
        main.merge(one[cut : task.num_units])
    low, high = min(CUTS[0]), max(CUTS[0])
    sent = edge[low:high]
    main.merge(sent)
    joined = Moments.zero(layers)
    joined.merge(edge[0:low])
    joined.merge(main[low : task.num_units])
    expected = algorithm.norm_moments(whole, [0, 1, 2, 3, 4], 0).moments
    assert np.array_equal(joined.sums, expected.sums)
    assert np.array_equal(joined.weights, expected.weights)
    assert sent.num_bytes == layers.num_bytes(low, high)


def test_what_travels_is_counted_on_its_link() -> None:
    task = estimating([2, 5, 0], [9, 3, 16])
    algorithm, layers = named(task, "hsfl"), NormLayers.of(task.model)
    moments = algorithm.norm_moments(task.initial, [0, 1, 2], 0)
    smashed, x = task.model.head(2)(task.feed.images.floats(task.feed.images.x[:1])), 12 * 12 * 4
    assert moments.bytes.client_main_up == 9 * smashed.nbytes + 8 * x  # client 1 has the whole model
    assert moments.bytes.client_edge_up == layers.num_bytes(0, 2) + layers.num_bytes(0, 5)
    assert moments.bytes.client_edge_down == 0  # the round has brought the heads
    assert algorithm.norm_swapped().edge_main == 2 * layers.num_bytes(0, 5)
    sl = named(with_cuts(task, [2] * 3), "sl").norm_moments(task.initial, [0, 1], 0)
    assert sl.bytes.client_edge_down == 2 * task.initial[0:2].num_bytes  # which is handed on in turns


def test_estimating_writes_nothing_into_the_model() -> None:
    task = estimating([2, 3], [9, 6])
    whole, before = task.initial.clone(), task.initial.clone()
    estimate(task, "hsfl", whole, [0, 1])
    assert same_bits(whole, before)
    assert not task.model.training
    layers = [m for m in task.model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert all(layer.track_running_stats and not layer.training and not layer._forward_pre_hooks for layer in layers)
    x = task.feed.images.floats(task.feed.images.x[:5])
    bind_state(before, task.model)
    first = task.model(x)
    bind_state(whole, task.model)
    assert torch.equal(task.model(x), first)


def test_pooled_statistics_are_those_of_all_values_together() -> None:
    """Oracle: clients whose data fit into one batch each. A copy of the model in training mode, as torch has it, sees the two batches;
    the statistics of a layer are those of its inputs over both batches."""
    task = estimating([2, 5], [4, 3], dtype=torch.float64)
    after = estimate(task, "hsfl", task.initial, [0, 1]).named()
    model = copy.deepcopy(task.model).train()
    norms = {name: layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.BatchNorm2d)}
    inputs: dict[str, list[torch.Tensor]] = {name: [] for name in norms}
    for name, layer in norms.items():
        layer.register_forward_pre_hook(lambda _, given, name=name: inputs[name].append(given[0]))
    for samples in (slice(0, 4), slice(4, 7)):
        model(task.feed.images.floats(task.feed.images.x[samples]))
    assert len(norms) > 2
    for name, seen in inputs.items():
        values = torch.cat(seen).transpose(0, 1).flatten(1)
        torch.testing.assert_close(after[f"{name}.running_mean"], values.mean(1), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(after[f"{name}.running_var"], values.var(1), rtol=1e-9, atol=1e-10)


def test_clients_weigh_what_they_hold_however_few_batches_they_send() -> None:
    """One batch of 4 of 16 samples weighs four times as much as the one batch of a client with 4."""
    task = estimating([2, 2], [16, 4], norm_batches=1, dtype=torch.float64)
    first, second = (named(task, "hsfl").norm_moments(task.initial, [k], 0).moments for k in (0, 1))
    assert (first.weights[0] == 4 * second.weights[0]).all()
    assert (first.weights[1] == second.weights[1]).all()  # values that were seen


@pytest.mark.parametrize("num_samples", range(1, 20))
@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_num_seen_counts_the_samples_of_the_batches(num_samples: int, batch_size: int) -> None:
    task = estimating([2], [num_samples])
    for count in (1, 2, 3):
        batches = NormBatches(task.feed, 0, 5, batch_size, count)
        assert sum(len(x) for x, _ in batches) == num_seen(num_samples, batch_size, count)
        assert sum(part for _, part in batches) == pytest.approx(1)


def one_norm() -> SplitModel:
    """A model whose BatchNorm sees the data themselves."""
    norm, rest = torch.nn.BatchNorm2d(1), torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 4))
    return SplitModel({"norm": norm, "rest": rest})


@pytest.mark.parametrize("num_batches", [1, 2])
def test_a_running_statistic_goes_to_the_estimated_one_at_the_pace_of_its_momentum(num_batches: int) -> None:
    """One client, a learning rate that changes no weight, no augmentation, N equal batches of all samples in each round.

    Mean: with momentum a and the mean m_j of batch j, a step makes r' = (1 - a) r + a m_j. The estimated mean E is that of all samples, which
    is the mean of the m_j. With one batch m = E, so r' - E = (1 - a) (r - E), and after s steps r - E is (1 - a)^s of its first value. With N
    batches a round leaves (1 - a)^N (r - E) + a sum_j (1 - a)^(N - 1 - j) (m_j - E). The second term vanishes where every m_j = E,
    which two batches of equal samples have, and not in general.

    Variance: a step takes the unbiased variance of its batch, v n / (n - 1) for the biased v and n values in a channel. The estimated variance is
    the unbiased one of all values. With one batch these are one number, and the law holds as it stands. With N batches the estimate
    also holds the variance between the m_j, which no running variance sees. Where the batches have equal samples that variance is
    0 and v is the same, so the running variance goes to E [n / (n - 1)] / [N n / (N n - 1)]: the law holds for this goal.
    """
    samples = 8
    model = one_norm()
    momentum, dtype = 0.1, torch.float64
    task = make_task(
        [1], [samples], model=model, dtype=dtype, lr=1e-30, batch_size=samples // num_batches,
        norm_statistics="estimated", norm_batches=1000, local_epochs=1,
    )  # fmt: skip
    if num_batches > 1:  # every sample is the same picture, so every batch has its mean and its variance
        task.feed.images.x.copy_(task.feed.images.x[:1].expand_as(task.feed.images.x).clone())
    algorithm = named(task, "hsfl")
    state = algorithm.init()
    (first,) = algorithm.models(state)
    expected = estimate(task, "hsfl", first, [0]).named()
    for round_index in range(3):
        state, _ = algorithm.round(state, [0], round_index)
        (whole,) = algorithm.models(state)
        left = (1 - momentum) ** (num_batches * (round_index + 1))
        again = estimate(task, "hsfl", whole, [0], round_index).named()
        for name in ("norm.running_mean", "norm.running_var"):
            start, now = first.named()[name], whole.named()[name]
            unbiased = _unbiased_gap(task, num_batches) if name.endswith("var") else 1.0
            goal = expected[name] * unbiased  # what the running statistic goes to
            torch.testing.assert_close(now - goal, left * (start - goal), rtol=1e-6, atol=1e-9)
            torch.testing.assert_close(again[name], expected[name], rtol=1e-9, atol=1e-9)


def _unbiased_gap(task: Task, num_batches: int) -> float:
    """Unbiased variance of a batch over that of all values, where all batches hold the same values: 1 with one batch."""
    values = task.feed.num_samples(0) * 144
    batch = values // num_batches
    return (batch / (batch - 1)) / (values / (values - 1))


def test_values_beyond_the_limbs_are_refused() -> None:
    from hsfl.training.aggregate import Diverged

    moments = Moments.zero(NormLayers.of(one_norm()))
    for bad in (1e20, np.nan, np.inf):
        with pytest.raises(Diverged, match="BatchNorm layer 1"):
            moments.add(0, slice(0, 1), np.array([bad]), np.array([1.0]), 4.0, 7)


def test_limbs_hold_small_and_large_products_exactly_enough() -> None:
    moments = Moments.zero(NormLayers.of(one_norm()))
    rng = stream(1, "limbs")
    means, variances = rng.normal(size=50) * 10.0 ** rng.integers(-5, 5, 50), rng.random(50)
    for mean, variance in zip(means, variances):
        moments.add(0, slice(0, 1), np.array([mean]), np.array([variance]), 3.0, 10)
    total = moments.sums[0, 0] + moments.sums[1, 0] * 2.0**-41
    assert total == pytest.approx(3 * means.sum(), rel=1e-12, abs=1e-10)
