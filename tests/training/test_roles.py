"""Roles pass only messages: who counts is agreed, what travels is counted, and a round can be trained in parts."""

import pytest
import torch

from hsfl.framework_table import copy_per_client_names
from hsfl.frameworks import find_framework
from hsfl.models.state import UnitState
from hsfl.training.aggregate import PartialSum
from hsfl.training.link import Link, LinkBytes, Losses
from hsfl.training.roles import Client, EdgeServer, MainServer, agree, swap
from tests.laws.bench import assert_same, make_task, train

CUTS, COUNTS = [1, 3, 2], [9, 3, 10]


def servers(task) -> tuple[MainServer, EdgeServer]:  # type: ignore[no-untyped-def]
    initial, low, high = task.initial, min(CUTS), max(CUTS)
    main = MainServer(
        initial[low : task.num_units],
        PartialSum.zero(initial[low : task.num_units], sum(COUNTS)),
        task.part(low, task.num_units),
    )
    return main, EdgeServer(initial[0:high], PartialSum.zero(initial[0:high], sum(COUNTS)))


def one_client(task, k: int, main: MainServer, edge: EdgeServer, losses: Losses, link: Link) -> UnitState:  # type: ignore[no-untyped-def]
    """A client's whole round; its tail is complete at the main server, its head is not yet at the edge server."""
    client = Client(task.data(k), task.part(0, max(CUTS)), task.num_units)
    client.receive(edge.head(CUTS[k]), task.lr(0))
    session = main.open(CUTS[k], task.lr(0))
    head, own = client.train(session, 0, link)
    losses.merge(own)
    main.finish(k, session.tail.state.clone(), float(COUNTS[k]))
    return head


def commit(main: MainServer, edge: EdgeServer) -> None:
    both = agree(main, edge)
    main.commit(both)
    edge.commit(both)


def test_a_client_counts_only_when_both_its_sides_are_complete() -> None:
    """Client 1 is lost between its last batch and its upload: the model is that of a round that kept 0 and 2."""
    task = make_task(CUTS, COUNTS, optimizer="adam", dropout=0.3)
    main, edge = servers(task)
    losses, link = Losses(), Link()
    heads = {k: one_client(task, k, main, edge, losses, link) for k in (2, 1, 0)}  # in any order
    for k in (0, 2):
        edge.finish(k, heads[k], float(COUNTS[k]))
    assert sorted(agree(main, edge)) == [0, 2]
    commit(main, edge)
    swap(main, edge, min(CUTS), max(CUTS), link)
    expected, _, _ = train(task, "hsfl", [[0, 2]])
    assert_same(edge.close(), expected[0 : max(CUTS)], 1e-12)
    assert_same(main.close(), expected[min(CUTS) : task.num_units], 1e-12)


def test_a_round_can_be_trained_in_parts() -> None:
    """Two shards, each with servers of its own; sums, losses and bytes merged give the round trained in one go."""
    task = make_task(CUTS, COUNTS, optimizer="adam")
    whole_main, whole_edge = servers(task)
    losses, link = Losses(), LinkBytes()
    for shard in ([2], [0, 1]):
        main, edge = servers(task)
        own, carried = Losses(), Link()
        for k in shard:
            edge.finish(
                k, carried.carry("client_edge_up", one_client(task, k, main, edge, own, carried)), float(COUNTS[k])
            )
            commit(main, edge)
        whole_main.merge(main.total)
        whole_edge.merge(edge.total)
        losses.merge(own)
        link.merge(carried.bytes)
    last = Link()
    swap(whole_main, whole_edge, min(CUTS), max(CUTS), last)
    link.merge(last.bytes)
    algorithm = find_framework("hsfl")(task)
    after, result = algorithm.round(algorithm.init(), [0, 1, 2], 0)
    assert_same(whole_edge.close(), after.units["edge"], 1e-12)
    assert_same(whole_main.close(), after.units["main"], 1e-12)
    assert losses.mean == pytest.approx(result.train_loss, rel=1e-12)
    assert losses.num_samples == result.num_samples
    result.bytes.client_edge_down = 0  # heads are handed out once, when the parts are joined
    assert link == result.bytes


def test_a_client_sees_its_own_data_only() -> None:
    task = make_task(CUTS, COUNTS)
    seen = torch.cat([y for _, y, _ in task.data(1).batches(0)])
    assert task.data(1).num_samples == len(seen) == COUNTS[1]
    own = task.feed.images.y[torch.from_numpy(task.feed.indices[1])]
    assert sorted(seen.tolist()) == sorted(own.tolist())


def test_everything_that_travels_is_counted_where_it_travels() -> None:
    """A link that changes what it carries changes the model: nothing goes past it."""

    class Noisy(Link):
        def carry(self, route, load, key=None):  # type: ignore[no-untyped-def]
            load = super().carry(route, load, key)
            if self.hears == route and isinstance(load, torch.Tensor):
                return load * 1.01
            if self.hears == route and isinstance(load, PartialSum):
                load.total.floats.add_(load.total.floats // 100)
            if self.hears == route and isinstance(load, UnitState):
                load = load.clone()
                load.floats.mul_(1.01)
            return load

    def model(hears: str | None) -> UnitState:
        task = make_task(CUTS, COUNTS)
        main, edge = servers(task)
        link = Noisy()
        link.hears = hears  # type: ignore[attr-defined]
        for k in (0, 1, 2):
            edge.finish(
                k, link.carry("client_edge_up", one_client(task, k, main, edge, Losses(), link)), float(COUNTS[k])
            )
            commit(main, edge)
        swap(main, edge, min(CUTS), max(CUTS), link)
        return edge.close()

    plain = model(None)
    for route in ("client_main_up", "client_main_down", "client_edge_up", "edge_main"):
        assert not torch.allclose(model(route).floats, plain.floats, rtol=1e-9, atol=0), route


@pytest.mark.parametrize("framework", copy_per_client_names())
def test_frameworks_keep_no_number_between_rounds(framework: str) -> None:
    """State and keys decide: a fresh object gives the same second round as the one that made the first."""
    task = make_task([2, 2, 2], COUNTS, optimizer="adam")
    used = find_framework(framework)(task)
    state, _ = used.round(used.init(), [0, 1, 2], 0)
    for algorithm in (used, find_framework(framework)(task)):
        (model,) = algorithm.models(algorithm.round(state, [0, 2], 1)[0])
        if algorithm is used:
            first = model
    assert torch.equal(first.floats, model.floats)
