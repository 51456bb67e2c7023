"""How a round is dealt to workers: by pace, in shrinking pieces, one order ahead, and nothing lost when a worker dies."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsfl.engines import worker_engine as helper_module
from hsfl.engines.worker import Answer, CarriedOut, HandOver, Order, Train
from hsfl.engines.worker_engine import AHEAD, Helper, Ordered, WorkerEngine, _take_items
from hsfl.errors import InputError
from tests.naming import raises


class Bench(WorkerEngine[Helper]):
    """Workers without processes: each takes so many seconds for a client, and answers in the order of the clock."""

    orders_ahead = True
    always_die = ""  # the worker that dies of every order

    def __init__(self, seconds: list[float], die: dict[str, int] | None = None) -> None:
        self.now_s, self.die = 0.0, die or {}  # die: after how many orders a worker dies
        self.pace_s = {f"worker {i}": each for i, each in enumerate(seconds)}
        self.helpers = [Helper(where=name) for name in self.pace_s]
        self.framework = SimpleNamespace()
        self.last_round, self.say = [], lambda text: None
        self.queues: dict[int, list[Order]] = {id(helper): [] for helper in self.helpers}
        self.free_s: dict[int, float] = {id(helper): 0.0 for helper in self.helpers}
        self.sums: dict[int, list[int]] = {id(helper): [] for helper in self.helpers}
        self.most_orders, self.pieces = 0, list[tuple[str, int]]()
        self.answered: Counter[str] = Counter()

    def _order(self, helper: Helper, order: Order) -> None:
        queue = self.queues[id(helper)]
        if not queue:
            self.free_s[id(helper)] = max(self.free_s[id(helper)], self.now_s)
        queue.append(order)
        self.most_orders = max(self.most_orders, len(queue))
        if isinstance(order, Train):
            self.pieces.append((helper.where, len(order.clients)))

    def _answers(self, busy: Sequence[Helper]) -> Iterator[tuple[Helper, Answer | None]]:
        def ends_s(helper: Helper) -> float:
            order = self.queues[id(helper)][0]
            work = len(order.clients) if isinstance(order, Train) else 0
            return self.free_s[id(helper)] + work * self.pace_s[helper.where]

        first = min(busy, key=ends_s)
        self.now_s = ends_s(first)
        order = self.queues[id(first)].pop(0)
        self.free_s[id(first)] = self.now_s
        self.answered[first.where] += 1
        if self.always_die == first.where or self.answered[first.where] == self.die.get(first.where):
            yield first, None
            return
        if isinstance(order, Train):
            self.sums[id(first)] += order.clients
        if isinstance(order, HandOver) or (isinstance(order, Train) and order.hand):
            shard = SimpleNamespace(clients=self.sums[id(first)])
            self.sums[id(first)] = []
            yield first, CarriedOut(shard)  # type: ignore[arg-type]
        else:
            yield first, CarriedOut()

    def _replace(self, dead: Helper) -> Helper:
        new = Helper(where=dead.where)
        self.queues[id(new)], self.free_s[id(new)], self.sums[id(new)] = [], self.now_s, []
        self.kept = [*getattr(self, "kept", []), dead, new]  # so that no id is given twice
        return new

    def _cause_of_death(self, dead: Helper) -> str:
        return "test"

    def _give_setup(self, setup: object) -> None: ...
    def _give_state(self, state: object) -> None: ...
    def _give_whole(self, whole: object) -> None: ...

    def trained(self, clients: Sequence[int], size: Callable[[int], int] = lambda client: 1) -> list[int]:
        """The clients in the shards that came back."""
        answers = self._deal(clients, size, lambda some, hand: Train(0, 0, some, hand), HandOver())
        return [client for answer in answers if answer.shard is not None for client in answer.shard.clients]  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paces are measured by the bench's clock."""
    monkeypatch.setattr(helper_module.time, "monotonic", lambda: CLOCK.now_s if CLOCK is not None else 0.0)


CLOCK: Bench | None = None


def bench(seconds: list[float], die: dict[str, int] | None = None) -> Bench:
    global CLOCK
    CLOCK = Bench(seconds, die)
    return CLOCK


def test_items_are_taken_up_to_enough_and_at_least_one() -> None:
    size = {0: 9, 1: 8, 2: 7, 3: 6}
    queue = list(size)
    assert [_take_items(queue, size.__getitem__, enough) for enough in (1.0, 15.0, 99.0)] == [(0,), (1, 2), (3,)]
    assert not queue
    many = list(range(10_000))
    assert [len(_take_items(many, lambda _: 1, 1e9)) for _ in range(3)] == [4096, 4096, 1808]


def test_a_worker_gets_clients_by_its_pace() -> None:
    """Three times the pace, three times the clients at once, in the second round; the slow worker then ends with the fast one."""
    engine = bench([0.3, 0.1])
    engine.trained(range(100))
    engine.pieces.clear()
    began_s = engine.now_s
    assert sorted(engine.trained(range(100))) == list(range(100))
    assert dict(reversed(engine.pieces)) == {"worker 0": 22, "worker 1": 67}  # the first pieces: 0.9 of a share
    assert engine.now_s - began_s <= 100 / (1 / 0.3 + 1 / 0.1) + 0.3


def test_an_order_ahead_is_given_only_where_enough_is_left_to_end_together() -> None:
    engine = bench([0.1, 0.1])
    engine.trained(range(100))
    assert engine.most_orders == 2
    few = bench([0.1, 0.1])
    few.trained(range(AHEAD))
    assert [size for _, size in few.pieces] == [1] * AHEAD
    assert few.most_orders == 2  # a client, and behind it the order to hand over


def test_the_worker_that_takes_the_last_clients_hands_over_without_a_further_order() -> None:
    engine = bench([0.1])
    assert engine.trained(range(1)) == [0]
    assert engine.answered == {"worker 0": 1}
    two = bench([0.1, 0.3])
    two.trained(range(2))
    assert two.answered == {"worker 0": 2, "worker 1": 1}  # of the first, the sum is asked for


@given(
    seconds=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4),
    num_clients=st.integers(1, 80),
    deaths=st.dictionaries(st.integers(0, 3), st.integers(1, 9), max_size=2),
)
def test_every_client_comes_back_once_whoever_dies(
    seconds: list[float], num_clients: int, deaths: dict[int, int]
) -> None:
    engine = bench(seconds, {f"worker {index}": after for index, after in deaths.items()})
    assert sorted(engine.trained(range(num_clients))) == list(range(num_clients))
    assert sorted(client for place in engine.last_round for client in place.clients) == list(range(num_clients))
    assert not any(helper.undone or helper.orders for helper in engine.helpers)


def test_what_a_worker_holds_and_was_ordered_must_be_done_again() -> None:
    helper = Helper(where="here", held=[1, 2])
    helper.given(Ordered((3,), 10))
    helper.given(Ordered((4, 5), 20))
    assert helper.undone == [1, 2, 3, 4, 5]
    assert helper.open
    helper.given(Ordered(alone=True))
    assert not helper.open
    assert helper.answered().items == (3,)


def test_a_node_takes_all_its_workers_with_it_once_but_one_place_does_not_die_for_ever() -> None:
    many = bench([0.1] * 6, {f"worker {index}": 1 for index in range(6)})
    many.answered = Counter({f"worker {index}": 0 for index in range(6)})
    assert sorted(many.trained(range(30))) == list(range(30))
    cursed = bench([0.1, 0.1])
    cursed.always_die = "worker 1"
    with raises(InputError, "4 times", "one place"):
        cursed.trained(range(400))
    assert [helper.deaths for helper in many.helpers] == [1] * 6  # until the round is completed
