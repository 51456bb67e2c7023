"""Who takes part, and how much each counts: the mean of a round's average is that of all clients, or off by a known bias."""

from itertools import product

import numpy as np
import pytest
import torch

from hsfl.config import parse_config
from hsfl.errors import InputError
from hsfl.frameworks import find_framework
from hsfl.planning.rounds import participation
from tests.laws.bench import make_task
from tests.naming import raises

SIZES = np.array([1.0, 2.0, 5.0, 12.0])
VALUES = np.array([3.0, -1.0, 4.0, 10.0])  # what each client learned: larger clients, larger values
TRUTH = float((SIZES * VALUES).sum() / SIZES.sum())


def config(**train: object):
    return parse_config({"seed": 5, "fleet": {"num_clients": len(SIZES)}, "train": train})


def average(settings, round_index: int) -> float:
    """The average of a round, as a server makes it: weights over those who came, normalised."""
    chosen = list(participation.choose_clients(settings, round_index, SIZES))
    weights = participation.update_weights(settings, round_index, SIZES)[chosen]
    return float((weights * VALUES[chosen]).sum() / weights.sum())


def test_drawn_by_samples_the_average_has_no_bias() -> None:
    """The mean over all 4^2 pairs of draws, by their probabilities, is exact; and the code draws like that."""
    p = SIZES / SIZES.sum()
    by_hand = sum(p[i] * p[j] * (VALUES[i] + VALUES[j]) / 2 for i, j in product(range(4), repeat=2))
    assert by_hand == pytest.approx(TRUTH)
    rounds = [average(config(clients_per_round=2, choose="samples"), index) for index in range(2500)]
    spread = np.std(rounds) / np.sqrt(len(rounds))
    assert np.mean(rounds) == pytest.approx(TRUTH, abs=4 * spread)
    assert spread < 0.08


def test_drawn_alike_the_average_is_a_ratio_whose_bias_is_known_and_shrinks() -> None:
    """The bias by hand, over all subsets; with more clients a round it is smaller, and with all clients nothing is left."""
    biases = []
    for count in (1, 2, 3, 4):
        subsets = [s for s in product((0, 1), repeat=4) if sum(s) == count]
        means = [(SIZES * VALUES * s).sum() / (SIZES * s).sum() for s in map(np.array, subsets)]
        biases.append(abs(np.mean(means) - TRUTH))
    rounds = [average(config(clients_per_round=2), index) for index in range(3000)]
    assert abs(np.mean(rounds) - TRUTH) == pytest.approx(biases[1], abs=0.25)
    assert biases[0] > biases[1] > biases[2] > biases[3] == pytest.approx(0.0, abs=1e-12)


def test_a_round_averages_by_draws_and_buffers_by_the_same_normalised_mean() -> None:
    """A client that was drawn twice counts twice, floats and BatchNorm's running statistics alike."""
    task = make_task([2, 3, 1], [5, 8, 13], clients_per_round=3, choose="samples")
    index = next(r for r in range(50) if sorted(task.weights(r).tolist()) == [0, 1, 2])
    times = task.weights(index)
    kept = np.flatnonzero(times).tolist()
    algorithm = find_framework("hsfl")(task)
    start = algorithm.init()
    (both,) = algorithm.models(algorithm.round(start, kept, index)[0])
    alone = [next(iter(algorithm.models(algorithm.round(start, [k], index)[0]))) for k in kept]
    by_hand = sum(times[k] * model.floats for k, model in zip(kept, alone)) / times.sum()
    torch.testing.assert_close(both.floats, by_hand, rtol=1e-9, atol=1e-9)
    by_samples = sum(task.feed.num_samples(k) * model.floats for k, model in zip(kept, alone))
    assert (both.floats - by_samples / task.num_samples(kept)).abs().max() > 1e-6, "not by samples again"
    names = [name for name in both.named() if name.endswith("running_var")]
    assert names
    assert all((both.named()[name] > 0).all() for name in names)


def test_the_weights_of_a_round_are_drawn_once_however_few_clients_are_trained_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drawing among 100,000 clients takes milliseconds, and Ray's workers train one client at a time."""
    task, drawn, whole = (
        make_task([1, 2], [4, 4], clients_per_round=2, choose="samples"),
        list[int](),
        participation.update_weights,
    )

    def counted(settings, round_index: int, num_samples):
        drawn.append(round_index)
        return whole(settings, round_index, num_samples)

    monkeypatch.setattr(participation, "update_weights", counted)
    algorithm = find_framework("hsfl")(task)
    state, shard = algorithm.init(), None
    for index in (0, 1, 0):
        for k in (0, 1):
            shard = algorithm.train(state, (k,), index, 8, into=shard)
    assert drawn == [0, 1, 0]


def test_clients_that_were_drawn_are_those_that_count() -> None:
    settings = config(clients_per_round=3, choose="samples", drop_rate=0.3)
    for index in range(50):
        weights = participation.update_weights(settings, index, SIZES)
        assert participation.choose_clients(settings, index, SIZES) == tuple(np.flatnonzero(weights))
        assert weights.sum() <= 3
    drawn = sum(participation.times_drawn(config(clients_per_round=3, choose="samples"), r, SIZES) for r in range(2000))
    np.testing.assert_allclose(drawn / drawn.sum(), SIZES / SIZES.sum(), atol=0.02)


def test_samples_that_are_not_known_are_an_error() -> None:
    with raises(InputError, "train.choose is 'samples'"):
        participation.choose_clients(config(choose="samples"), 0)


def test_only_who_was_chosen_gets_the_model() -> None:
    """Bytes of the new heads go to those that were to take part; by default to everyone."""
    for receivers, expected in (("all", [0, 1, 2]), ("chosen", None)):
        task = make_task([2, 3, 1], [4, 8, 12], clients_per_round=2, receivers=receivers)
        chosen = participation.choose_clients(task.config, 0)
        algorithm = find_framework("hsfl")(task)
        _, result = algorithm.round(algorithm.init(), list(chosen), 0)
        heads = [task.initial[0 : task.cuts[k]].num_bytes for k in (expected or chosen)]
        assert result.bytes.client_edge_down == sum(heads)
