"""Rounds on a server that is one queue: closed forms, bounds, and a plain event simulation written another way."""

import heapq
import time
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsfl.network import server_queue
from hsfl.network.server_queue import (
    ORDERS,
    QueuedRound,
    QueuedTest,
    QueuedWork,
    least_queued_s,
    queued_beside,
    queued_round,
)

SECONDS = st.integers(0, 12).map(lambda number: number / 4)


@st.composite
def works(draw: st.DrawFn, most_clients: int = 5, fractions: bool = True) -> QueuedWork:
    size = draw(st.integers(1, most_clients))
    column = st.lists(SECONDS, min_size=size, max_size=size).map(np.array)
    halves = st.integers(1, 12).map(lambda number: number / 2) if fractions else st.integers(1, 6).map(float)
    batches = np.array(draw(st.lists(halves, min_size=size, max_size=size)))
    return QueuedWork(draw(column), draw(column), draw(column), batches, draw(column), draw(column))


def by_events(work: QueuedWork, order: str) -> QueuedRound:
    """The same round from a heap of events, with the queue of the running main server written out: push, pop, tags."""
    num_clients = len(work.num_batches)
    finish_s, waited_s = np.zeros(num_clients), np.zeros(num_clients)
    left = [float(number) for number in work.num_batches]
    events: list[
        tuple[float, int, int, int]
    ] = []  # when, 0 for an arrival and 1 for the end of a service, number, client
    numbers, waiting = count(), []
    tags, current_tag, busy = {}, 0.0, False
    for k in range(num_clients):
        if work.serve_s[k] > 0:
            heapq.heappush(events, (work.ready_s[k] + min(left[k], 1.0) * work.before_s[k], 0, next(numbers), k))
        else:
            finish_s[k] = work.ready_s[k] + work.num_batches[k] * (work.before_s[k] + work.after_s[k]) + work.up_s[k]
    while events:
        now_s = events[0][0]
        while events and events[0][0] == now_s:
            _, kind, _, k = heapq.heappop(events)
            if kind == 0:
                tag = max(current_tag, tags.get(k, 0.0)) + min(left[k], 1.0) * work.serve_s[k]
                tags[k] = tag
                way_s = left[k] * (work.before_s[k] + work.serve_s[k] + work.after_s[k]) + work.up_s[k]
                waiting.append((tag if order == "turns" else -way_s, now_s, k, tag))
            else:
                busy = False
                part = min(left[k], 1.0)
                left[k] -= part
                back_s = now_s + part * work.after_s[k]
                if left[k] > 0:
                    heapq.heappush(events, (back_s + min(left[k], 1.0) * work.before_s[k], 0, next(numbers), k))
                else:
                    finish_s[k] = back_s + work.up_s[k]
        if events and events[0][0] == now_s:
            continue
        if not busy and waiting:
            waiting.sort()
            _, came_s, k, current_tag = waiting.pop(0)
            if not waiting:
                current_tag, tags = 0.0, {}
            waited_s[k] += now_s - came_s
            busy = True
            heapq.heappush(events, (now_s + min(left[k], 1.0) * work.serve_s[k], 1, next(numbers), k))
    return QueuedRound(finish_s, waited_s)


@given(works(), st.sampled_from(sorted(ORDERS)))
def test_it_is_the_plain_event_simulation(work: QueuedWork, order: str) -> None:
    queued, plain = queued_round(work, order), by_events(work, order)
    np.testing.assert_allclose(queued.finish_s, plain.finish_s, rtol=1e-12)
    np.testing.assert_allclose(queued.waited_s, plain.waited_s, atol=1e-9)


@given(works(), st.sampled_from(sorted(ORDERS)))
def test_a_client_takes_its_own_seconds_and_those_that_it_waits(work: QueuedWork, order: str) -> None:
    queued = queued_round(work, order)
    np.testing.assert_allclose(queued.finish_s, work.alone_s + queued.waited_s, rtol=1e-9)


@given(works(), st.sampled_from(sorted(ORDERS)))
def test_the_bound_is_never_above(work: QueuedWork, order: str) -> None:
    training_s = queued_round(work, order).training_s
    assert least_queued_s(work) <= training_s * (1 + 1e-9)
    assert (
        training_s
        <= (work.before_s + work.serve_s + work.after_s) @ work.num_batches
        + work.up_s.max()
        + work.ready_s.max()
        + 1e-9
    )


@given(works())
def test_the_bound_is_the_best_over_all_sets_of_clients(work: QueuedWork) -> None:
    size, best_s = len(work.num_batches), float(work.alone_s.max())
    part = np.minimum(work.num_batches, 1.0)
    last = np.minimum(work.num_batches - np.ceil(work.num_batches) + 1.0, part)
    for bits in range(1, 2**size):
        members = [k for k in range(size) if bits >> k & 1 and work.serve_s[k] > 0]
        if members:
            first_s = min(work.ready_s[k] + part[k] * work.before_s[k] for k in members)
            rest_s = min(last[k] * work.after_s[k] + work.up_s[k] for k in members)
            best_s = max(best_s, first_s + rest_s + sum(work.num_batches[k] * work.serve_s[k] for k in members))
    assert least_queued_s(work) == pytest.approx(best_s, rel=1e-12)


@given(works(most_clients=1), st.sampled_from(sorted(ORDERS)))
def test_one_client_never_waits(work: QueuedWork, order: str) -> None:
    queued = queued_round(work, order)
    assert queued.waited_s.tolist() == [0.0]
    assert queued.training_s == pytest.approx(float(work.alone_s[0]))


def test_a_test_takes_its_turn_by_hand() -> None:
    """A client of two batches, each 1 s away, 1 s on the server and 1 s back; beside it three batches of 0.5 s, of which the last one is
    in its way."""
    ones = np.ones(1)
    work = QueuedWork(ones, ones, ones, 2 * ones, 0 * ones)
    beside = queued_beside(queued_round, QueuedTest(3, 0.5), work)
    assert (beside.finish_s.tolist(), beside.waited_s.tolist()) == ([6.5], [0.5])
    assert queued_round(work).finish_s.tolist() == [6.0]


@given(works(), st.sampled_from(sorted(ORDERS)), SECONDS, st.integers(1, 5))
def test_a_test_is_a_client_that_nobody_waits_for(work: QueuedWork, order: str, serve_s: float, batches: int) -> None:
    beside = queued_beside(lambda work: queued_round(work, order), QueuedTest(batches, serve_s), work)
    np.testing.assert_allclose(beside.finish_s, work.alone_s + beside.waited_s, rtol=1e-9)
    assert least_queued_s(work) <= beside.training_s * (1 + 1e-9), "the bound holds beside it, too"
    if not serve_s:
        np.testing.assert_array_equal(beside.finish_s, queued_round(work, order).finish_s)


def test_who_has_the_head_later_begins_later_and_nobody_waits_for_it() -> None:
    """A client of 1 s down, 2 s before, 1 s on and 3 s after the server; and one whose head takes 5 s more, so that they never meet there."""
    columns = (np.array([value] * 2) for value in (2.0, 1.0, 3.0, 1.0, 0.5))
    queued = queued_round(QueuedWork(*columns, np.array([1.0, 6.0])))
    assert (queued.finish_s.tolist(), queued.waited_s.tolist()) == ([7.5, 12.5], [0.0, 0.0])


def test_two_equal_clients_wait_for_each_other_once() -> None:
    """Both arrive together; one waits for the other's first batch, and from then on they alternate."""
    work = QueuedWork(*(np.array([value] * 2) for value in (2.0, 1.0, 3.0, 4.0, 0.5)))
    assert sorted(queued_round(work).waited_s) == [0.0, 1.0]


def test_a_server_that_does_all_the_work_is_never_idle() -> None:
    work = QueuedWork(np.zeros(3), np.array([1.0, 2.0, 3.0]), np.zeros(3), np.array([3.0, 2.0, 1.0]), np.zeros(3))
    for order in ORDERS:
        assert queued_round(work, order).training_s == 10.0 == least_queued_s(work)


def work_of(
    before: list[float], serve: list[float], after: list[float], batches: list[float], up: list[float]
) -> QueuedWork:
    return QueuedWork(*(np.array(column, float) for column in (before, serve, after, batches, up)))


def test_the_longest_way_first_gains_here_and_loses_there() -> None:
    """In the first, the client that is served second has little left. In the second, the order keeps a client waiting that still
    has a long way behind the server, for one whose way lies on the server."""
    gains = work_of([0, 0], [4, 3], [1, 0], [1, 1], [2, 0])
    assert [queued_round(gains, order).training_s for order in ("turns", "longest")] == [10.0, 7.0]
    loses = work_of([0, 0], [4, 1], [2, 3], [1, 1], [0, 2])
    assert [queued_round(loses, order).training_s for order in ("turns", "longest")] == [7.0, 10.0]


def test_a_faster_server_can_make_the_round_longer() -> None:
    """The second client comes back sooner, and takes the server just before the first client needs it."""
    slow = work_of([4, 0], [1, 3], [4, 2], [1, 2], [1, 0])
    fast = replace(slow, serve_s=slow.serve_s / 2)
    assert [queued_round(work).training_s for work in (slow, fast)] == [10.0, 10.5]


@given(works(), st.sampled_from(sorted(ORDERS)), st.integers(1, 40))
def test_batches_that_go_together_keep_the_work_and_the_bound(work: QueuedWork, order: str, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_queue, "MOST_BATCHES", most)
        queued, least_s = queued_round(work, order), least_queued_s(work)
    np.testing.assert_allclose(queued.finish_s, work.alone_s + queued.waited_s, rtol=1e-9, atol=1e-9)
    assert least_s <= queued.training_s * (1 + 1e-9)


def test_a_client_that_claims_millions_of_batches_makes_no_plan_of_minutes() -> None:
    """Ten million samples, one in a batch: as many events took 20 s in plain Python."""
    ones = np.ones(3)
    work = QueuedWork(ones, ones, ones, np.array([10.0, 10.0, 1e7]), ones)
    began_s = time.process_time()
    queued = queued_round(work)
    assert time.process_time() - began_s < 10  # 0.3 s
    assert queued.finish_s[2] == pytest.approx(3e7, rel=1e-3)
