"""With one client the frameworks with one server side are centralised learning."""

import pytest

from hsfl.frameworks.psl import PSL
from tests.laws.bench import assert_same, make_task, train

ROUNDS = [[0], [0]]


@pytest.mark.parametrize("framework", ["sl", "psl", "cpsl", "splitfed_v2", "fl", "hsfl"])
def test_one_client_is_centralised_learning(framework: str) -> None:
    task = make_task([2], [10], dropout=0.4)  # plain SGD, one local epoch
    whole, losses, _ = train(task, framework, ROUNDS)
    expected, expected_losses, _ = train(task, "cl", ROUNDS)
    assert_same(whole, expected, 1e-12)
    assert losses == pytest.approx(expected_losses, rel=1e-12)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_sl_that_hands_its_optimiser_on_is_cl(optimizer: str) -> None:
    task = make_task([2], [10], optimizer=optimizer, options={"sl": {"hand_optimizer": True}})
    assert_same(train(task, "sl", ROUNDS)[0], train(task, "cl", ROUNDS)[0], 1e-12)


def test_psl_with_the_gradient_at_the_cut_averaged_is_cl_for_one_client() -> None:
    task = make_task([2], [10], options={"psl": {"cut_gradient": True}})
    assert_same(train(task, "psl", ROUNDS)[0], train(task, "cl", ROUNDS)[0], 1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_psl_heads_stay_identical(optimizer: str) -> None:
    task = make_task([2, 2, 2], [9, 16, 4], optimizer=optimizer, dropout=0.2)
    psl = PSL(task)
    state = psl.init()
    for round_index in range(2):
        state, _ = psl.round(state, [0, 1, 2], round_index)
        first = [p.detach().clone() for p in psl.heads[0].parameters()]
        for head in psl.heads[1:]:
            assert all((p == q).all() for p, q in zip(head.parameters(), first))
    moved = (state.units["model"].floats - task.initial.floats).abs().max()
    assert moved > 1e-3


def test_psl_is_cl_on_the_joint_batches_where_the_head_has_no_batchnorm() -> None:
    """Two equal clients with one full batch each make the step of one batch of both."""
    import torch
    from torch import nn

    from hsfl.models.units import SplitModel
    from tests.laws.bench import NUM_CLASSES, SHAPE

    def model() -> SplitModel:
        torch.manual_seed(0)
        return SplitModel(
            [nn.Sequential(nn.Flatten(), nn.Linear(SHAPE[1] * SHAPE[2], 8), nn.Tanh()), nn.Linear(8, NUM_CLASSES)]
        )

    psl = make_task([1, 1], [4, 4], model=model())
    cl = make_task([1], [8], model=model(), batch_size=8)
    assert_same(train(psl, "psl", [[0, 1]])[0], train(cl, "cl", [[0]])[0], 1e-12)
