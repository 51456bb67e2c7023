"""HSFL with any cuts, SplitFed V1, FSL (`both`) and FL are one algorithm per round."""

import copy
import dataclasses
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.framework_table import METHODS
from hsfl.frameworks import find_framework
from hsfl.models.state import UnitState, load_state, read_state
from hsfl.rng import stream
from hsfl.training.aggregate import PartialSum
from hsfl.training.link import Link
from hsfl.training.roles import EdgeServer, MainServer, agree, swap
from tests.laws.bench import assert_same, in_clusters, make_task, train, with_cuts

COUNTS = [9, 3, 16, 5, 2]  # batches of 4: unequal numbers, a single sample left over (9, 5), less than a batch (3, 2)
EVERYONE = [0, 1, 2, 3, 4]
SCHEDULES = {
    "everyone": [EVERYONE, EVERYONE],
    "deepest dropped": [[0, 1, 3, 4], EVERYONE],  # client 2 has the deepest cut
    "shallowest dropped": [EVERYONE, [0, 1, 2, 4]],  # client 3 has the shallowest
    "one left": [[4], [1]],
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_one_algorithm_whatever_the_cuts(schedule: list[list[int]], optimizer: str) -> None:
    # BatchNorm, dropout and two local epochs too
    task = make_task([2, 3, 5, 1, 2], COUNTS, dropout=0.3, optimizer=optimizer, lr=0.01, local_epochs=2)
    # Adam divides the rounding noise of a bias before BatchNorm, whose gradient is zero, by its own size
    tolerance = 1e-7 if optimizer == "adam" else 1e-11
    expected, losses, _ = train(task, "fl", schedule)
    for framework in ("hsfl", "splitfed_v1", "fsl"):
        whole, framework_losses, _ = train(task, framework, schedule)
        assert_same(whole, expected, tolerance)
        assert framework_losses == pytest.approx(losses, rel=1e-8)
    for cuts in ([0, 5, 3, 3, 1], [4, 4, 4, 4, 4], [0, 0, 0, 0, 0]):
        assert_same(train(with_cuts(task, cuts), "hsfl", schedule)[0], expected, tolerance)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_fl_is_federated_averaging_as_everyone_writes_it(optimizer: str) -> None:
    task = make_task([5] * 5, COUNTS, optimizer=optimizer, lr=0.01)
    schedule = SCHEDULES["deepest dropped"]
    assert_same(train(task, "fl", schedule)[0], _plain_fedavg(task, schedule), 1e-7)


def _plain_fedavg(task, schedule) -> UnitState:  # type: ignore[no-untyped-def]
    """The oracle: whole models, deep copies, a dictionary of averages."""
    start = copy.deepcopy(task.model)
    load_state(task.initial, start)
    for round_index, kept in enumerate(schedule):
        trained = []
        for k in kept:
            model = copy.deepcopy(start).train()
            settings = task.config.train
            if settings.optimizer == "adam":
                optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), settings.lr)
            else:
                optimizer = torch.optim.SGD(model.parameters(), settings.lr, settings.momentum)
            for x, y, _ in task.data(k).batches(round_index):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            trained.append((task.feed.num_samples(k), model.state_dict()))
        total = sum(n for n, _ in trained)
        mean = {name: sum(n * state[name].double() for n, state in trained) / total for name in trained[0][1]}
        types = start.state_dict()
        start.load_state_dict({n: t.round() if types[n].dtype == torch.int64 else t for n, t in mean.items()})
    return read_state(start)


def test_proximal_term_is_the_same_at_every_cut_and_pulls_back() -> None:
    plain = make_task([2, 3, 5], [8, 8, 8], local_epochs=3)
    pulled = make_task([2, 3, 5], [8, 8, 8], local_epochs=3, proximal_mu=5.0)
    schedule = [[0, 1, 2]]
    fl, hsfl = train(pulled, "fl", schedule)[0], train(pulled, "hsfl", schedule)[0]
    assert_same(hsfl, fl)
    way = (train(plain, "fl", schedule)[0][4:5].floats - plain.initial[4:5].floats).norm()
    way_pulled = (fl[4:5].floats - plain.initial[4:5].floats).norm()
    assert way_pulled < 0.9 * way  # of the classifier, which has no buffers


def test_proximal_step_by_hand() -> None:
    """One client, plain SGD, two batches: w1 = w0 - lr g0, w2 = w1 - lr (g1 + mu (w1 - w0))."""
    mu, lr = 2.0, 0.05
    task = make_task([5], [8], proximal_mu=mu, lr=lr)
    model = copy.deepcopy(task.model).train()
    first = [p.detach().clone() for p in model.parameters()]
    for x, y, _ in task.data(0).batches(0):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p, p0 in zip(model.parameters(), first):
                p -= lr * (p.grad + mu * (p - p0))
    assert_same(train(task, "hsfl", [[0]])[0], read_state(model))


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    num_clients = draw(st.integers(1, 6))
    cuts = draw(st.lists(st.integers(0, 5), min_size=num_clients, max_size=num_clients))
    weights = draw(st.lists(st.integers(1, 50), min_size=num_clients, max_size=num_clients))
    kept = draw(st.lists(st.integers(0, num_clients - 1), unique=True))
    return cuts, weights, kept


def _commit(main: MainServer, edge: EdgeServer) -> None:
    both = agree(main, edge)
    main.commit(both)
    edge.commit(both)


@settings(max_examples=60, deadline=None)
@given(fleets())
def test_partial_sums_are_fedavg_of_the_joined_models(fleet: tuple[list[int], list[int], list[int]]) -> None:
    cuts, weights, kept = fleet
    task = make_task([1], [2])
    layout, num_units = task.layout, task.num_units
    clients = {}
    for k in kept:  # joined models with random weights and counters
        whole = UnitState.empty(layout, dtype=torch.float64)
        rng = stream(k, "weights")
        whole.floats.copy_(torch.from_numpy(rng.normal(size=len(whole.floats))))
        whole.ints.copy_(torch.from_numpy(rng.integers(0, 9, size=len(whole.ints))))
        clients[k] = whole
    low, high = min(cuts), max(cuts)  # over all clients, the dropped ones too
    before, link = task.initial, Link()
    edge = EdgeServer(before[0:high], PartialSum.zero(before[0:high], sum(weights[k] for k in kept)))
    main = MainServer(
        before[low:num_units],
        PartialSum.zero(before[low:num_units], sum(weights[k] for k in kept)),
        task.part(low, num_units),
    )
    for k, whole in clients.items():
        edge.finish(k, whole[0 : cuts[k]], weights[k])
        main.finish(k, whole[cuts[k] : num_units], weights[k])
    _commit(main, edge)
    swap(main, edge, low, high, link)
    new_edge, new_main = edge.close(), main.close()
    total = sum(weights[k] for k in kept)
    if kept:
        floats = sum(weights[k] * clients[k].floats for k in kept) / total
        ints = (sum(weights[k] * clients[k].ints.double() for k in kept) / total).round().long()
        expected = UnitState(layout, 0, num_units, floats, ints)
    else:
        expected = before
    assert_same(new_edge, expected[0:high], 1e-12)
    assert_same(new_main, expected[low:num_units], 1e-12)
    common = before[low:high] if low < high else before[0:0]
    assert link.bytes.edge_main == 2 * 8 * (len(common.floats) + len(common.ints) + (high - low))


def test_nobody_kept_leaves_the_model() -> None:
    for framework in METHODS:
        if framework != "cl":
            task = make_task([2, 3], [4, 4])
            whole, losses, _ = train(task, framework, [[]])
            assert_same(whole, task.initial, 0)
            assert losses == [None]


def test_servers_hold_only_their_sides() -> None:
    task = make_task([2, 3, 4], [4, 4, 4])
    _, _, state = train(task, "hsfl", [[0, 1, 2]])
    assert (state.units["edge"].start, state.units["edge"].stop) == (0, 4)
    assert (state.units["main"].start, state.units["main"].stop) == (2, 5)


STATES = [*((name, "both") for name in METHODS), ("fsl", "server")]  # (framework, what FSL averages)


@pytest.mark.parametrize(("framework", "average"), STATES)
def test_holders_share_no_memory(framework: str, average: str) -> None:
    """A framework that derives from ours may write to a state: the write reaches one holder, and neither the state before nor the
    initial model."""
    task = in_clusters(make_task([2, 3, 4], [4, 4, 4], options={"fsl": {"average": average}}), (0, 0, 1))
    named = task.config.model_copy(update={"framework": framework})
    algorithm = find_framework(framework)(dataclasses.replace(task, config=named))
    first = algorithm.init()
    after, _ = algorithm.round(first, [0, 1, 2], 0)
    vectors = [units.floats for units in (task.initial, *first.units.values(), *after.units.values())]
    spans = sorted((floats.data_ptr(), floats.data_ptr() + floats.nbytes) for floats in vectors if len(floats))
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
