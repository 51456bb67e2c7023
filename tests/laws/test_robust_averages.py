"""Laws of clipping, of averages other than the mean, and of simulated attackers."""

import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl import dataset
from hsfl.config import parse_config
from hsfl.errors import InputError
from hsfl.frameworks import find_framework
from hsfl.frameworks.framework import Task
from hsfl.models.state import UnitState
from hsfl.runs.prepare import prepare
from hsfl.runs.studies.shared_training import round_bytes
from hsfl.training.attack import LabelFlip, attackers
from hsfl.training.clipping import parameter_stretches
from hsfl.training.order_statistics import write_average
from tests.laws.bench import NUM_CLASSES, assert_same, make_task, train, with_cuts
from tests.naming import raises
from tests.small_runs import tiny

COUNTS = [9, 3, 16, 5, 2]
CUTS = [2, 3, 5, 1, 2]
EVERYONE = [0, 1, 2, 3, 4]
ROUNDS = [EVERYONE, [0, 1, 3, 4]]


def attacked(task: Task, **attack: Any) -> Task:
    """The task with attackers among its clients."""
    changed = parse_config(task.config.model_dump(mode="json") | {"attack": attack})
    return dataclasses.replace(task, config=changed)


def updates_of(task: Task) -> list[UnitState]:
    """What each client alone makes of the first model."""
    return [train(task, "fl", [[client]])[0] for client in range(task.num_clients)]


def numbers_of(task: Task, state: UnitState, parameters: bool) -> np.ndarray:
    """The parameters of a whole state, or its buffers."""
    named, names = state.named(), {name for name, _ in task.model.named_parameters()}
    chosen = [t for name, t in named.items() if t.is_floating_point() and (name in names) == parameters]
    return torch.cat([tensor.reshape(-1) for tensor in chosen]).numpy()


@pytest.mark.parametrize("rule", [{"clip_norm": 0.05}, {"average": "median"}, {"average": "trimmed_mean", "trim": 0.3}])
def test_every_rule_is_one_algorithm_whatever_the_cuts(rule: dict[str, Any]) -> None:
    task = make_task(CUTS, COUNTS, local_epochs=2, **rule)
    expected, losses, _ = train(task, "fl", ROUNDS)
    assert not torch.equal(expected.floats, train(make_task(CUTS, COUNTS, local_epochs=2), "fl", ROUNDS)[0].floats)
    for framework, cuts in (("hsfl", CUTS), ("hsfl", [0, 5, 3, 3, 1]), ("splitfed_v1", CUTS), ("fsl", CUTS)):
        whole, framework_losses, _ = train(with_cuts(task, cuts), framework, ROUNDS)
        assert_same(whole, expected, 1e-11)
        assert framework_losses == pytest.approx(losses, rel=1e-8)


def test_clipping_by_hand() -> None:
    """One client, whose update is scaled to the norm; BatchNorm's buffers come as they are."""
    plain, clipped = (make_task([2], [16], clip_norm=norm) for norm in (None, 0.01))
    start, free, short = plain.initial, train(plain, "hsfl", [[0]])[0], train(clipped, "hsfl", [[0]])[0]
    update = numbers_of(plain, free, True) - numbers_of(plain, start, True)
    wanted = numbers_of(plain, start, True) + update * 0.01 / np.linalg.norm(update)
    np.testing.assert_allclose(numbers_of(plain, short, True), wanted, rtol=1e-12, atol=1e-15)
    assert np.array_equal(numbers_of(plain, short, False), numbers_of(plain, free, False))
    assert torch.equal(short.ints, free.ints)
    length = float(np.linalg.norm(update))
    loose = train(make_task([2], [16], clip_norm=1.001 * length), "hsfl", [[0]])[0]
    assert torch.equal(loose.floats, free.floats), "a short update keeps its bits"


@pytest.mark.parametrize(("rule", "trim"), [("median", 0.1), ("trimmed_mean", 0.2), ("trimmed_mean", 0.1)])
def test_order_statistics_by_hand(rule: str, trim: float) -> None:
    plain = make_task(CUTS, COUNTS)
    vectors = np.stack([update.floats.numpy() for update in updates_of(plain)])
    num_out = {"median": 2}.get(rule, int(5 * trim))
    wanted = np.sort(vectors, axis=0)[num_out : 5 - num_out].mean(axis=0)
    ints = torch.stack([update.ints for update in updates_of(plain)]).sort(dim=0).values[num_out : 5 - num_out]
    whole, _, _ = train(make_task(CUTS, COUNTS, average=rule, trim=trim), "hsfl", [EVERYONE])
    np.testing.assert_allclose(whole.floats.numpy(), wanted, rtol=1e-12, atol=1e-15)
    assert torch.equal(whole.ints, ints.double().mean(dim=0).round().long())


def test_a_median_of_two_is_their_unweighted_mean_and_nobody_changes_nothing() -> None:
    task = make_task([1, 4], [16, 4], average="median")
    left, right = updates_of(task)
    whole, _, _ = train(task, "hsfl", [[0, 1]])
    torch.testing.assert_close(whole.floats, (left.floats + right.floats) / 2, rtol=1e-13, atol=1e-15)
    assert torch.equal(train(task, "hsfl", [[]])[0].floats, task.initial.floats)


@pytest.mark.parametrize("rule", [{"clip_norm": 0.05}, {"average": "median"}])
def test_shards_join_in_any_order_and_cross_a_process_border(rule: dict[str, Any]) -> None:
    task = make_task(CUTS, COUNTS, dtype=torch.float32, **rule)
    kind = find_framework("hsfl")
    whole = kind(task)
    expected, result = whole.round(whole.init(), EVERYONE, 0)
    spread = kind(task)
    spread.spread = lambda state, clients, index: [  # type: ignore[attr-defined]
        pickle.loads(pickle.dumps(kind(task).train(state, part, index, sum(COUNTS)))) for part in ([4, 1], [3], [0, 2])
    ]
    state, spread_result = spread.round(spread.init(), EVERYONE, 0)
    for holder, units in expected.units.items():
        assert torch.equal(units.floats, state.units[holder].floats)
    assert spread_result == result


def test_bytes_between_the_servers_are_those_of_all_updates() -> None:
    """Units 1 to 4 are common: each client's lie in part at either server, and the other server needs them."""
    task = make_task(CUTS, COUNTS, average="median")
    framework = find_framework("hsfl")(task)
    _, result = framework.round(framework.init(), [0, 1, 3], 0)
    assert result.bytes.edge_main == 3 * task.initial[1:5].num_bytes


@pytest.mark.parametrize("average", ["mean", "median", "trimmed_mean"])
def test_bytes_are_known_from_sizes_alone(average: str) -> None:
    bench = prepare(tiny(f"train.average={average}"))
    framework = find_framework("hsfl")(bench.task)
    _, result = framework.round(framework.init(), [0, 2], 0)
    assert dataclasses.asdict(round_bytes(bench, framework.cuts, 0, [0, 2], [0, 1, 2])) == dataclasses.asdict(
        result.bytes
    )


@pytest.mark.parametrize("average", ["mean", "median"])
def test_clients_that_keep_their_heads_are_clipped_by_their_tails(average: str) -> None:
    options = {"fsl": {"average": "server"}}
    free, tight = (make_task([2, 2], [8, 8], options=options, clip_norm=norm, average=average) for norm in (None, 0.01))
    (free_state, tight_state) = (
        (f := find_framework("fsl")(task)).round(f.init(), [0, 1], 0)[0] for task in (free, tight)
    )
    for k in range(2):
        assert torch.equal(free_state.units[f"head{k}"].floats, tight_state.units[f"head{k}"].floats)
    start, moved = tight.initial[2:5], tight_state.units["main"]
    places = parameter_stretches(tight.model, tight.layout)
    way = [
        (moved[unit : unit + 1].floats - start[unit : unit + 1].floats)[first:last]
        for unit in range(2, 5)
        for first, last in places[unit]
    ]
    assert 0 < float(torch.cat(way).norm()) <= 0.01 * (1 + 1e-9)


# --- attackers


def test_a_larger_share_has_the_attackers_of_a_smaller_one() -> None:
    sets = []
    for share in (0.0, 0.2, 0.4, 1.0):
        tree = {"seed": 5, "fleet": {"num_clients": 5}, "attack": {"kind": "noise", "share": share}}
        sets.append(attackers(parse_config(tree)))
    assert list(map(len, sets)) == [0, 1, 2, 5]
    assert sets[0] < sets[1] < sets[2] < sets[3]
    assert attackers(parse_config({"attack": {"share": 1.0}})) == frozenset()


@pytest.mark.parametrize("kind", ["sign_flip", "scaled_update", "noise"])
@pytest.mark.parametrize("cut", [0, 2, 5])
def test_an_attacker_changes_the_parameters_of_its_head_alone(kind: str, cut: int) -> None:
    plain = make_task([cut], [16])
    start, free = plain.initial, train(plain, "hsfl", [[0]])[0]
    hurt, _, _ = train(attacked(plain, kind=kind, share=1.0, scale=3.0), "hsfl", [[0]])
    assert torch.equal(hurt[cut:5].floats, free[cut:5].floats)
    assert np.array_equal(numbers_of(plain, hurt, False), numbers_of(plain, free, False))
    assert torch.equal(hurt.ints, free.ints)
    if not cut:
        return
    names = {name for name, _ in plain.model.named_parameters()}
    before, honest, after = (
        torch.cat([t.reshape(-1) for name, t in state[0:cut].named().items() if name in names])
        for state in (start, free, hurt)
    )
    update, change = honest - before, after - before
    if kind == "noise":
        noise = after - honest
        size = 3.0 * float(update.square().mean().sqrt())
        assert float(noise.std()) == pytest.approx(size, rel=6 / math.sqrt(len(noise)))
    else:
        torch.testing.assert_close(change, (-3.0 if kind == "sign_flip" else 3.0) * update, rtol=1e-9, atol=1e-12)


def test_flipped_labels_are_the_same_harm_at_every_cut() -> None:
    task = make_task(CUTS, COUNTS)
    flip = LabelFlip(frozenset({1, 2}), NUM_CLASSES)
    flipped = dataclasses.replace(task, feed=dataclasses.replace(task.feed, label_flip=flip))
    whole, _, _ = train(flipped, "hsfl", ROUNDS)
    assert_same(whole, train(flipped, "fl", ROUNDS)[0], 1e-11)
    assert not torch.equal(whole.floats, train(task, "hsfl", ROUNDS)[0].floats)
    for client in (0, 1):
        pairs = zip(task.data(client).batches(0), flipped.data(client).batches(0))
        for (_, y, _), (_, other, _) in pairs:
            assert torch.equal(other, NUM_CLASSES - 1 - y if client == 1 else y)


@settings(max_examples=25)
@given(st.lists(st.sampled_from([-1e6, -1.0, 0.0, 0.5, 2.0, 1e6]), min_size=3, max_size=9), st.integers(0, 4))
def test_a_minority_moves_a_median_no_further_than_honest_numbers_lie(honest: list[float], num_wild: int) -> None:
    layout = make_task([1], [4]).layout
    num_wild = min(num_wild, (len(honest) - 1) // 2)
    values = [*honest, *[1e9] * num_wild]
    states = [UnitState.empty(layout, dtype=torch.float64) for _ in values]
    for state, value in zip(states, values):
        state.floats.fill_(value)
    for rule, trim in (("median", 0.1), ("trimmed_mean", min(0.499, num_wild / len(values) + 1e-9))):
        after = UnitState.empty(layout, dtype=torch.float64)
        write_average(after, states, rule, trim)
        assert min(honest) <= float(after.floats[0]) <= max(honest)
        assert float(after.floats.min()) == float(after.floats.max())


def test_attackers_with_flipped_labels_come_from_the_settings_and_need_classes() -> None:
    bench = prepare(tiny("attack.kind=label_flip", "attack.share=0.34"))
    flip = bench.task.feed.label_flip
    assert flip is not None
    assert (flip.clients, flip.num_classes) == (attackers(bench.task.config), 10)
    assert len(flip.clients) == 1
    assert prepare(tiny("attack.kind=sign_flip")).task.feed.label_flip is None
    data = dataset(np.zeros((12, 4), np.float32), np.linspace(0, 1, 12), task="regression")
    with raises(InputError, "attack.kind", "label_flip", "numbers", "sign_flip"):
        prepare(
            parse_config(
                {
                    "data": {"name": "own"},
                    "model": {"name": "mlp", "norm": "none"},
                    "fleet": {"num_clients": 2, "cuts": 1},
                    "attack": {"kind": "label_flip"},
                }
            ),
            data,
        )


@pytest.mark.parametrize("setting", ["train.clip_norm=1.0", "train.average=median", "attack.kind=noise"])
def test_frameworks_without_copies_refuse_each_with_the_reason(setting: str) -> None:
    name, _, value = setting.partition("=")
    with raises(InputError, name, value, "psl", "copy per client", "hsfl"):
        prepare(tiny("framework=psl", setting))
