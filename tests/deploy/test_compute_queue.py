"""The fair queue before the compute thread."""

import asyncio
import gc
import math
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsfl.deploy.compute_queue import QUEUES, ComputeQueue, FairQueue, LongestFirst
from hsfl.network.server_queue import ORDERS


def served(weights: dict[str, float], turns: int, cost: float = 1.0) -> dict[str, int]:
    """Turns that each client gets who always waits with its next step."""
    queue: FairQueue[str] = FairQueue()
    for client, weight in weights.items():
        queue.push(client, cost, weight, client)
    counts = dict.fromkeys(weights, 0)
    for _ in range(turns):
        client = queue.pop()
        counts[client] += 1
        queue.push(client, cost, weights[client], client)
    return counts


def test_equal_clients_take_turns() -> None:
    assert served({"a": 1.0, "b": 1.0, "c": 1.0}, 30) == {"a": 10, "b": 10, "c": 10}


def test_turns_follow_the_weights() -> None:
    counts = served({"a": 3.0, "b": 1.0}, 400)
    assert counts["a"] / counts["b"] == pytest.approx(3.0, rel=0.02)


def test_a_client_that_was_away_gains_no_credit() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("a", 1.0, 1.0, "a")
    for _ in range(50):
        queue.push("b", 1.0, 1.0, "b")  # somebody else always waits
        assert queue.pop() in "ab"
    for name in ("a", "a", "a"):
        queue.push(name, 1.0, 1.0, name)
    assert [queue.pop() for _ in range(3)] != ["a", "a", "a"]


@given(st.lists(st.one_of(st.none(), st.floats(0, 100)), max_size=30))
def test_the_longest_way_is_served_first(ways_s: list[float | None]) -> None:
    """In any mix of coming (a way to go) and serving (None); the process's own work, for which everybody waits, before all."""
    queue, waiting = LongestFirst[int](), dict[int, float]()
    for number, way_s in enumerate([math.inf, *ways_s, *[None] * len(ways_s)]):
        if way_s is not None:
            queue.push(number, 1.0, 1.0, number, way_s)
            waiting[number] = way_s
        elif waiting:
            served_number = queue.pop()
            assert served_number == min(waiting, key=lambda number: (-waiting[number], number))
            del waiting[served_number]
        assert len(queue) == len(waiting)


def test_every_order_of_service_that_a_plan_knows_is_served() -> None:
    assert QUEUES.keys() == ORDERS.keys()


def test_work_runs_one_at_a_time_on_one_thread_and_errors_come_back() -> None:
    async def story() -> None:
        compute, threads, running = ComputeQueue(1), set(), []

        def work(number: int) -> int:
            threads.add(threading.get_ident())
            running.append(number)
            assert len(running) == 1, "one at a time"
            running.remove(number)
            if number == 3:
                raise ValueError("three")
            return number

        jobs = [compute.run(lambda n=n: work(n), n) for n in range(5)]
        answers = await asyncio.gather(*jobs, return_exceptions=True)
        assert [str(answer) for answer in answers] == ["0", "1", "2", "three", "4"]
        assert len(threads) == 1
        assert threads != {threading.get_ident()}
        done = await compute.timed(lambda: 7)
        assert done.answer == 7
        assert done.took_s >= 0
        compute.close()

    asyncio.run(story())


def test_a_caller_that_is_gone_leaves_nothing_of_its_work_in_the_queue() -> None:
    """A peer can upload a whole model, go, and come again, while another's step is under way."""

    async def go_while_waiting(compute: ComputeQueue) -> "weakref.ref[set[str]]":
        content = {"a whole model"}
        waiting = asyncio.create_task(compute.run(lambda content=content: content))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        return weakref.ref(content)

    async def story() -> None:
        compute, release = ComputeQueue(1), threading.Event()
        first = asyncio.create_task(compute.run(lambda: release.wait(30)))
        await asyncio.sleep(0.05)
        content = await go_while_waiting(compute)
        gc.collect()
        assert content() is None
        release.set()
        assert await first
        assert await compute.run(lambda: 7) == 7
        compute.close()

    asyncio.run(story())
