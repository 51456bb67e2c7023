"""Each framework beside its plain twin: whole torch modules, dictionaries, deep copies, `torch.optim`.

Clients are unequal: batches of 4 from 9 samples (a lone one left over), 3 (less than a batch) and 10.
"""

import copy
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from hsfl.framework_table import METHODS
from hsfl.frameworks.framework import Task
from hsfl.frameworks.locfedmix import _make_decoder
from hsfl.models.state import UnitState, read_state
from hsfl.models.units import SplitModel
from hsfl.rng import stream
from hsfl.training.step import StepKey
from tests.laws.bench import NUM_CLASSES, SHAPE, assert_same, in_clusters, make_task, train

COUNTS = [9, 3, 10]
ROUNDS = [[0, 1, 2], [0, 2]]  # client 1 misses the second
Batch = tuple[Tensor, Tensor]


def optimizer(task: Task, module: nn.Module) -> optim.Optimizer:
    settings = task.config.train
    if settings.optimizer == "adam":
        return optim.Adam(module.parameters(), settings.lr, weight_decay=settings.weight_decay)
    momentum = settings.momentum if settings.optimizer == "momentum" else 0.0
    return optim.SGD(module.parameters(), settings.lr, momentum, weight_decay=settings.weight_decay)


def load_mean(target: nn.Module, modules: Sequence[nn.Module], weights: Sequence[float]) -> None:
    """Federated averaging of dictionaries; counters are rounded."""
    states, total = [module.state_dict() for module in modules], sum(weights)
    mean = {n: sum(w * state[n].double() for w, state in zip(weights, states)) / total for n in states[0]}
    target.load_state_dict({n: t if states[0][n].is_floating_point() else t.round() for n, t in mean.items()})


def batches_by_step(task: Task, clients: Sequence[int], round_index: int, sizes: dict[int, int]) -> list[dict]:
    """For each step the batches of the clients that still have one."""
    plans = {k: task.batches(k, round_index, sizes.get(k)) for k in clients}
    return [
        {k: task.feed.batch(plans[k][step]) for k in clients if step < len(plans[k])}
        for step in range(max(len(plan) for plan in plans.values()))
    ]


def step_of(loss: Tensor, *optimizers: optim.Optimizer) -> float:
    for each in optimizers:
        each.zero_grad()
    loss.backward()
    for each in optimizers:
        each.step()
    return float(loss.detach())


# SplitFed V2


def plain_splitfed_v2(task: Task, rounds: list[list[int]]) -> tuple[UnitState, list[float]]:
    model, losses = copy.deepcopy(task.model).train(), []
    head, tail = model.head(task.one_cut), model.tail(task.one_cut)
    for round_index, kept in enumerate(rounds):
        heads = {k: copy.deepcopy(head) for k in kept}
        clients, server = {k: optimizer(task, heads[k]) for k in kept}, optimizer(task, tail)
        total = 0.0
        for step, batches in enumerate(batches_by_step(task, kept, round_index, {})):
            order = stream(task.config.seed, "server order", round_index, step).permutation(list(batches))
            for k in order.tolist():
                x, y = batches[k]
                total += len(y) * step_of(F.cross_entropy(tail(heads[k](x)), y), server, clients[k])
        counts = [task.feed.num_samples(k) for k in kept]
        load_mean(head, list(heads.values()), counts)
        losses.append(total / (sum(counts) * task.config.train.local_epochs))
    return read_state(model), losses


@pytest.mark.parametrize(
    "settings", [{"optimizer": "momentum", "weight_decay": 0.01}, {"optimizer": "adam", "lr": 0.01}]
)
def test_splitfed_v2_updates_the_server_once_per_client_in_every_step(settings: dict) -> None:
    task = make_task([2, 2, 2], COUNTS, local_epochs=2, **settings)
    whole, losses, _ = train(task, "splitfed_v2", ROUNDS)
    expected, expected_losses = plain_splitfed_v2(task, ROUNDS)
    assert_same(whole, expected, 1e-7 if settings["optimizer"] == "adam" else 1e-9)
    assert losses == pytest.approx(expected_losses, rel=1e-7)


# CPSL


def plain_cpsl(
    task: Task, clusters: list[list[int]], cuts: list[int], num_rounds: int, own_losses: bool = False
) -> UnitState:
    """Clusters in turn, a cut for each. A head learns from the joint mean loss, N/n_k times, where n_k of a step's N samples are
    the client's; or from the mean loss of its own samples, which is the same where no unit of the tail couples samples."""
    model = copy.deepcopy(task.model).train()
    for round_index in range(num_rounds):
        server, last_cut = None, None
        for clients, cut in zip(clusters, cuts):
            head, tail = model.head(cut), model.tail(cut)
            if server is None or cut != last_cut:  # other units: an optimiser that knows them
                server, last_cut = optimizer(task, tail), cut
            heads = {k: copy.deepcopy(head) for k in clients}
            optimizers = {k: optimizer(task, heads[k]) for k in clients}
            for batches in batches_by_step(task, clients, round_index, {}):
                sizes = [len(y) for _, y in batches.values()]
                logits = tail(torch.cat([heads[k](x) for k, (x, _) in batches.items()]))
                joint_loss = F.cross_entropy(logits, torch.cat([y for _, y in batches.values()]))
                gradients = {}
                for (k, (_, y)), own_logits in zip(batches.items(), logits.split(sizes)):
                    loss = F.cross_entropy(own_logits, y) if own_losses else joint_loss * (sum(sizes) / len(y))
                    gradients[k] = torch.autograd.grad(loss, heads[k].parameters(), retain_graph=True)
                step_of(joint_loss, server)
                for k, gradient_of in gradients.items():
                    for parameter, gradient in zip(heads[k].parameters(), gradient_of):
                        parameter.grad = gradient
                    optimizers[k].step()
            load_mean(head, list(heads.values()), [task.feed.num_samples(k) for k in clients])
    return read_state(model)


@pytest.mark.parametrize("cut", [1, 2, 3, 4])  # behind cuts 1 and 2 lie units with BatchNorm
def test_a_joint_step_gives_the_joint_gradient_scaled_to_the_clients_batch(cut: int) -> None:
    """With BatchNorm in the tail that is not the gradient of the client's own loss: batch statistics couple clients."""
    task = in_clusters(make_task([cut] * 3, COUNTS), (0, 0, 0))
    whole, _, _ = train(task, "cpsl", [[0, 1, 2]])
    assert_same(whole, plain_cpsl(task, [[0, 1, 2]], [cut], num_rounds=1), 1e-9)
    from_own = plain_cpsl(task, [[0, 1, 2]], [cut], num_rounds=1, own_losses=True)
    assert torch.allclose(whole.floats, from_own.floats, rtol=1e-9, atol=1e-9) == (cut >= 3)


@pytest.mark.parametrize("optimizer_name", ["sgd", "momentum"])
@pytest.mark.parametrize("cut", [1, 3])
def test_cpsl_clusters_take_turns_and_the_server_keeps_its_optimiser(optimizer_name: str, cut: int) -> None:
    task = make_task([cut] * 5, [*COUNTS, 6, 2], optimizer=optimizer_name)
    task = in_clusters(task, (1, 0, 1, 0, 1))
    expected = plain_cpsl(task, [[1, 3], [0, 2, 4]], [cut, cut], num_rounds=2)
    assert_same(train(task, "cpsl", [[0, 1, 2, 3, 4]] * 2)[0], expected, 1e-9)


def test_cpsl_begins_a_new_optimiser_only_where_the_cut_changes() -> None:
    task = make_task([3, 4, 3, 3, 4], [*COUNTS, 6, 2], optimizer="momentum", options={"cpsl": {"cut": "cluster"}})
    task = in_clusters(task, (0, 0, 1, 1, 2))  # cuts 3 = min(3, 4), 3 and 4
    expected = plain_cpsl(task, [[0, 1], [2, 3], [4]], [3, 3, 4], num_rounds=2)
    assert_same(train(task, "cpsl", [[0, 1, 2, 3, 4]] * 2)[0], expected, 1e-9)


def test_cpsl_with_a_cluster_for_each_client_is_sl() -> None:
    task = in_clusters(make_task([2, 2, 2], COUNTS), (1, 2, 0))
    whole, losses, _ = train(task, "cpsl", [[0, 1, 2]] * 2)
    expected, expected_losses, _ = train(task, "sl", [[2, 0, 1]] * 2)
    assert_same(whole, expected, 1e-9)
    assert losses == pytest.approx(expected_losses, rel=1e-9)


# PSL

PSL_COUNTS = [10, 2, 13]
PSL_SIZES = {0: 5, 1: 2, 2: 6}  # round(3 * 4 * n / 25) = 5, 1, 6 and at least 2: batches of 5 and 5, 2, 6 and 7


def plain_psl(task: Task, rounds: list[list[int]]) -> UnitState:
    """Heads of their own that are handed the mean gradient; BatchNorm's buffers averaged at the end of the round."""
    model = copy.deepcopy(task.model).train()
    head, tail = model.head(task.one_cut), model.tail(task.one_cut)
    for round_index, kept in enumerate(rounds):
        heads = {k: copy.deepcopy(head) for k in kept}
        server, clients = optimizer(task, tail), {k: optimizer(task, heads[k]) for k in kept}
        for batches in batches_by_step(task, kept, round_index, PSL_SIZES):
            smashed = [heads[k](x) for k, (x, _) in batches.items()]
            y = torch.cat([y for _, y in batches.values()])
            loss = F.cross_entropy(tail(torch.cat(smashed)), y)
            # the mean over all samples is the mean of own means, weighted by samples: its gradients add up
            active = [list(heads[k].parameters()) for k in batches]
            flat = torch.autograd.grad(loss, [p for parameters in active for p in parameters], retain_graph=True)
            columns = zip(*(flat[i : i + len(active[0])] for i in range(0, len(flat), len(active[0]))))
            means = [sum(column) for column in columns]
            step_of(loss, server)
            for k in kept:  # those without a batch too
                for parameter, mean in zip(heads[k].parameters(), means):
                    parameter.grad = mean.clone()
                clients[k].step()
        load_mean(head, list(heads.values()), [PSL_SIZES[k] for k in kept])
    return read_state(model)


@pytest.mark.parametrize("optimizer_name", ["sgd", "momentum"])
def test_psl_averages_weight_gradients(optimizer_name: str) -> None:
    task = make_task([2, 2, 2], PSL_COUNTS, optimizer=optimizer_name, weight_decay=0.01)
    rounds = [[0, 1, 2], [1, 2]]
    assert_same(train(task, "psl", rounds)[0], plain_psl(task, rounds), 1e-9)


def test_psl_is_cl_on_the_concatenated_batches_where_the_head_has_no_batchnorm() -> None:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Flatten(), nn.Linear(SHAPE[1] * SHAPE[2], 8), nn.Tanh())
    rest = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, NUM_CLASSES))
    task = make_task([1, 1, 1], PSL_COUNTS, model=SplitModel([first, rest]), optimizer="momentum")
    whole, losses, _ = train(task, "psl", [[0, 1, 2]] * 2)
    model, expected_losses = copy.deepcopy(task.model).train(), []
    for round_index in range(2):
        one, total = optimizer(task, model), 0.0
        for batches in batches_by_step(task, [0, 1, 2], round_index, PSL_SIZES):
            x, y = (torch.cat(column) for column in zip(*batches.values()))
            total += len(y) * step_of(F.cross_entropy(model(x), y), one)
        expected_losses.append(total / sum(PSL_COUNTS))
    assert_same(whole, read_state(model), 1e-9)
    assert losses == pytest.approx(expected_losses, rel=1e-9)


# LocFedMix-SL

DROPOUT_UNIT = 3  # of the small CNN


def mixtures(task: Task, smashed: dict[int, Tensor], batches: dict[int, Batch], rng) -> list[tuple]:  # type: ignore[no-untyped-def]
    """For each client: mixed data, both labels, lambda. Draws in order: partner, the partner's rows, lambda."""
    made = []
    for k in batches:
        partner = int(rng.choice([j for j in batches if j != k]))
        theirs = batches[partner][1]
        rows = torch.from_numpy(rng.integers(len(theirs), size=len(smashed[k])))
        lam = float(rng.beta(task.config.options.locfedmix_sl.alpha, task.config.options.locfedmix_sl.alpha))
        mixed = lam * smashed[k].detach() + (1 - lam) * smashed[partner].detach()[rows]
        made.append((mixed, batches[k][1], theirs[rows], lam))
    return made


def server_loss(task: Task, tail: nn.Module, sent: dict[int, Tensor], batches: dict, at: tuple[int, int]) -> Batch:
    """The clean loss alone, and clean + mixed; each pass draws its own dropout masks."""
    first, sizes = next(iter(batches)), [len(y) for _, y in batches.values()]
    torch.manual_seed(StepKey(task.config.seed, first, *at).torch_seed(DROPOUT_UNIT))
    clean = F.cross_entropy(tail(torch.cat(list(sent.values()))), torch.cat([y for _, y in batches.values()]))
    loss = clean
    if len(batches) > 1:
        made = mixtures(task, sent, batches, stream(task.config.seed, "mix", *at))
        torch.manual_seed(StepKey(task.config.seed, first + task.num_clients, *at).torch_seed(DROPOUT_UNIT))
        logits = tail(torch.cat([mixed for mixed, *_ in made])).split(sizes)
        for own, (_, mine, theirs, lam) in zip(logits, made):
            both = lam * F.cross_entropy(own, mine) + (1 - lam) * F.cross_entropy(own, theirs)
            loss = loss + len(mine) / sum(sizes) * both
    return clean.detach(), loss


def plain_locfedmix(task: Task, rounds: list[list[int]]) -> tuple[UnitState, UnitState, list[float]]:
    """The model, the decoder and the clean losses."""
    weight = task.config.options.locfedmix_sl.reconstruction
    model, losses = copy.deepcopy(task.model).train(), []
    head, tail = model.head(task.one_cut), model.tail(task.one_cut)
    decoder = _make_decoder(task.model, task.one_cut, SHAPE, task.config.seed).double()
    head.train()  # _make_decoder looks at the head in evaluation
    for round_index, kept in enumerate(rounds):
        heads, decoders = ({k: copy.deepcopy(module) for k in kept} for module in (head, decoder))
        clients = {k: optimizer(task, nn.ModuleList([heads[k], decoders[k]])) for k in kept}
        server, total = optimizer(task, tail), 0.0
        for step, batches in enumerate(batches_by_step(task, kept, round_index, {})):
            smashed = {k: heads[k](x) for k, (x, _) in batches.items()}
            sent = {k: s.detach().requires_grad_() for k, s in smashed.items()}
            clean, loss = server_loss(task, tail, sent, batches, (round_index, step))
            step_of(loss, server)
            num_samples = sum(len(y) for _, y in batches.values())
            total += num_samples * float(clean)
            for k, (x, y) in batches.items():  # the gradient of the mean over all, made that of the mean over its own
                from_server = (smashed[k] * sent[k].grad).sum() * num_samples / len(y)
                step_of(from_server + weight * F.mse_loss(decoders[k](smashed[k]), x), clients[k])
        counts = [task.feed.num_samples(k) for k in kept]
        load_mean(head, list(heads.values()), counts)
        load_mean(decoder, list(decoders.values()), counts)
        losses.append(total / sum(counts))
    return read_state(model), read_state(decoder), losses


@pytest.mark.parametrize(
    ("counts", "rounds"),
    [([4, 3], [[0, 1]]), (COUNTS, ROUNDS)],  # one step of two clients; several, the last of client 2 alone
    ids=["one step", "two rounds"],
)
def test_locfedmix_mixes_on_the_server_and_reconstructs_on_the_clients(counts: list, rounds: list) -> None:
    options = {"locfedmix_sl": {"reconstruction": 0.5, "alpha": 0.7}}
    task = make_task([2] * len(counts), counts, dropout=0.3, optimizer="momentum", options=options)
    whole, losses, state = train(task, "locfedmix_sl", rounds)
    expected, decoder, expected_losses = plain_locfedmix(task, rounds)
    assert_same(whole, expected, 1e-9)
    assert_same(state.units["decoder"], decoder, 1e-9)
    assert losses == pytest.approx(expected_losses, rel=1e-9)  # clean cross-entropy only


# CL and SL


@pytest.mark.parametrize("framework", ["cl", "sl"])
@pytest.mark.parametrize("optimizer_name", ["momentum", "adam"])
def test_cl_and_sl_have_one_optimiser_for_the_run(framework: str, optimizer_name: str) -> None:
    options = {"sl": {"hand_optimizer": True}}
    task = make_task([2, 2, 2], COUNTS, optimizer=optimizer_name, lr=0.01, options=options)
    whole, losses, _ = train(task, framework, [[0, 1, 2]] * 2)
    shares = [range(22)] if framework == "cl" else [range(9), range(9, 12), range(12, 22)]
    model, expected_losses = copy.deepcopy(task.model).train(), []
    one = optimizer(task, model)
    for round_index in range(2):
        total = 0.0
        for k, share in enumerate(shares):
            order = stream(task.config.seed, "batches", k, round_index).permutation(len(share))
            ends = [4, 8, 12, 16, 20] if framework == "cl" else [[4], [], [4, 8]][k]  # 9 = 4 + 5, a lone one joins
            for part in torch.from_numpy(order + share.start).tensor_split(ends):
                x, y = task.feed.images.floats(task.feed.images.x[part]), task.feed.images.y[part]
                total += len(y) * step_of(F.cross_entropy(model(x), y), one)
        expected_losses.append(total / 22)
    assert_same(whole, read_state(model), 1e-7 if optimizer_name == "adam" else 1e-9)
    assert losses == pytest.approx(expected_losses, rel=1e-7)


@pytest.mark.parametrize("optimizer_name", ["momentum", "adam"])
def test_sl_starts_the_heads_optimiser_anew_with_every_client(optimizer_name: str) -> None:
    task = make_task([2, 2, 2], COUNTS, optimizer=optimizer_name, lr=0.01)
    whole, losses, state = train(task, "sl", [[0, 1, 2]] * 2)
    assert not any(name.startswith("head") for name in state.tensors)
    model, expected_losses = copy.deepcopy(task.model).train(), []
    head, tail = nn.Sequential(*model.units[:2]), nn.Sequential(*model.units[2:])
    of_tail = optimizer(task, tail)
    for round_index in range(2):
        total = 0.0
        for k in range(3):
            of_head = optimizer(task, head)
            for ((x, y),) in (step.values() for step in batches_by_step(task, [k], round_index, {})):
                total += len(y) * step_of(F.cross_entropy(tail(head(x)), y), of_head, of_tail)
        expected_losses.append(total / sum(COUNTS))
    assert_same(whole, read_state(model), 1e-7 if optimizer_name == "adam" else 1e-9)
    assert losses == pytest.approx(expected_losses, rel=1e-7)


# all


@pytest.mark.parametrize("framework", METHODS)
def test_one_client_is_a_bare_loop_with_the_rates_of_the_schedule(framework: str) -> None:
    settings = {"schedule": "step", "step_rounds": 1, "step_factor": 0.5, "rounds": 3}
    task = make_task([2], [9], lr=0.08, options={"locfedmix_sl": {"reconstruction": 0.0}}, **settings)
    whole, _, _ = train(task, framework, [[0]] * 3)
    model = copy.deepcopy(task.model).train()
    for round_index, lr in enumerate([0.08, 0.04, 0.02]):
        sgd = optim.SGD(model.parameters(), lr)
        for ((x, y),) in (step.values() for step in batches_by_step(task, [0], round_index, {})):
            step_of(F.cross_entropy(model(x), y), sgd)
    assert_same(whole, read_state(model), 1e-9)
