"""Cuts for a server that is one queue: the compiled rounds, the bound over all cuts, and the search beside every candidate."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.allocation.compiled_queue import queued_round_compiled
from hsfl.allocation.cuts.search import CutRequest, CutSettings, search_cuts
from hsfl.allocation.queued_rounds import QueuedRounds
from hsfl.network.server_queue import ORDERS, QueuedWork, queued_round


def drawn_rounds(seed: int, num_samples: int = 2, num_clients: int = 3, num_rows: int = 4) -> QueuedRounds:
    """Deeper rows leave the server less to do and the client more."""
    rng = np.random.default_rng(seed)
    shape = (num_samples, num_clients, num_rows)
    depth = np.arange(num_rows) / (num_rows - 1)
    speed = rng.uniform(0.5, 4, (num_samples, num_clients, 1))
    rows = np.ones((num_clients, num_rows), bool)
    rows[:, 1:] = rng.random((num_clients, num_rows - 1)) < 0.8
    rows[:, 0] = True
    return QueuedRounds(
        before_s=(0.2 + depth) / speed + rng.random(shape),
        serve_s=np.tile(rng.uniform(0, 1.5) * (1 - depth), (num_clients, 1)),
        after_s=(0.4 + 2 * depth) / speed + rng.random(shape),
        up_s=depth * rng.random(shape),
        down_s=depth * rng.random(shape),
        num_batches=rng.integers(1, 9, num_clients) / 2,
        rows=rows,
        serve=partial(queued_round_compiled, order=sorted(ORDERS)[seed % 2]),
    )


def candidates(rounds: QueuedRounds) -> np.ndarray:
    return np.array(list(product(*map(np.flatnonzero, rounds.rows))))


@given(st.integers(0, 10_000), st.sampled_from(sorted(ORDERS)))
@settings(max_examples=30, deadline=None)
def test_compiled_rounds_are_the_plain_ones_to_the_bit(seed: int, order: str) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 12))
    work = QueuedWork(
        *(rng.random(count) * rng.integers(0, 2, count) for _ in range(3)),
        rng.integers(1, 20, count) / 4,
        rng.random(count),
        rng.random(count),
    )
    plain, fast = queued_round(work, order), queued_round_compiled(work, order)
    assert plain.finish_s.tobytes() == fast.finish_s.tobytes()
    assert plain.waited_s.tobytes() == fast.waited_s.tobytes()


@pytest.mark.parametrize("seed", range(12))
def test_the_bound_over_all_cuts_is_below_every_candidate(seed: int) -> None:
    rounds = drawn_rounds(seed)
    values_s = np.array([rounds.round_s(cuts) for cuts in candidates(rounds)])
    for sample in range(values_s.shape[1]):
        assert rounds.least_s(sample) <= values_s[:, sample].min() * (1 + 1e-9)


@pytest.mark.parametrize("method", ["descent", "exhaustive"])
@pytest.mark.parametrize("seed", range(6))
def test_the_search_finds_nearly_the_best_candidate(seed: int, method: str) -> None:
    rounds = drawn_rounds(seed)
    choice = search_cuts(CutRequest(rounds.rows, rounds, CutSettings(method=method, patience=3)))
    best_s = rounds.mean_s(candidates(rounds)).min()
    assert choice.mean_s == pytest.approx(rounds.mean_s(choice.cuts[None])[0])
    assert choice.mean_s <= best_s * (1.02 if method == "descent" else 1 + 1e-12)
    assert choice.lower_bound_s <= best_s * (1 + 1e-9)


def test_a_good_start_is_never_lost() -> None:
    rounds = drawn_rounds(3)
    best = candidates(rounds)[rounds.mean_s(candidates(rounds)).argmin()]
    choice = search_cuts(CutRequest(rounds.rows, rounds, CutSettings(patience=1, time_limit_s=1e-9), start=best))
    assert choice.mean_s == pytest.approx(rounds.mean_s(best[None])[0])
