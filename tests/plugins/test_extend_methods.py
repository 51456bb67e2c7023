"""The methods of docs/extend.md against their formulas over whole models in plain PyTorch, and on every engine."""

import copy
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hsfl as package
from hsfl import plugins
from hsfl.allocation.scenario import Scenario
from hsfl.config import RunConfig, read_config
from hsfl.errors import InputError
from hsfl.framework_table import register_framework
from hsfl.frameworks import find_framework
from hsfl.frameworks.copy_per_client import HSFL, Shard, SplitFedV1
from hsfl.frameworks.framework import State, Task
from hsfl.frameworks.hooks import HOOKS, ClientTurn, ServerTurn
from hsfl.models.state import UnitState, load_state
from hsfl.network.history import write_history
from hsfl.planning.cuts import choose_cuts
from hsfl.planning.rounds.participation import CutTask
from hsfl.planning.world import sample_draws
from hsfl.runs.loop import make_clock, train_run
from hsfl.runs.prepare import Bench, prepare
from hsfl.runs.run_folder.checkpoint import load_tensors
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.training.step import Part
from tests.engines.test_process_engine import Killer
from tests.laws.bench import make_task, train
from tests.naming import raises
from tests.plugins.files import DOC
from tests.small_runs import assert_same_run

METHODS = ("fedadam", "scaffold", "fednova", "ditto")
CUTS, COUNTS = [2, 3, 5, 0, 1], [9, 3, 16, 5, 2]  # of 5 units, so that each server holds all of them for somebody
SCHEDULE = [[0, 1, 2, 3, 4], [0, 2, 3], [1, 2, 4], [0, 1, 2, 3, 4]]
Adjust = Callable[[dict[str, nn.Parameter]], None]
Tensors = dict[str, Tensor]


@pytest.fixture(autouse=True)
def _loaded(here: Path) -> None:
    for name in METHODS:
        plugins.load_plugin(f"{name}.py")


# --- the formulas


def named(model: nn.Module) -> Tensors:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def local(task: Task, model: nn.Module, k: int, round_index: int, adjust: Adjust = lambda _: None) -> nn.Module:
    """A copy of a whole model after a client's round of plain SGD."""
    model = copy.deepcopy(model).train()
    for planned in task.batches(k, round_index):
        x, y = task.feed.batch(planned)
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            adjust(dict(model.named_parameters()))
            for parameter in model.parameters():
                parameter -= task.lr(round_index) * parameter.grad
    return model


def mean_of(models: list[nn.Module], kept: list[int]) -> nn.Module:
    """The mean by samples of parameters and of BatchNorm's buffers."""
    weights = torch.tensor([COUNTS[k] for k in kept], dtype=torch.float64)
    mean = copy.deepcopy(models[0])
    for name, tensor in mean.state_dict().items():
        stack = torch.stack([model.state_dict()[name].double() for model in models])
        value = torch.tensordot(weights / weights.sum(), stack, 1)
        tensor.copy_(value if tensor.is_floating_point() else value.round())
    return mean


def plain_fedadam(task: Task, model: nn.Module, options: dict[str, float]) -> nn.Module:
    m, v = ({name: torch.zeros_like(w) for name, w in named(model).items()} for _ in range(2))
    for index, kept in enumerate(SCHEDULE):
        old = named(model)
        model = mean_of([local(task, model, k, index) for k in kept], kept)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                step = weight - old[name]
                m[name] = options["beta1"] * m[name] + (1 - options["beta1"]) * step
                v[name] = options["beta2"] * v[name] + (1 - options["beta2"]) * step**2
                weight.copy_(old[name] + options["lr"] * m[name] / (v[name].sqrt() + options["tau"]))
    return model


def plain_scaffold(task: Task, model: nn.Module, options: dict[str, float]) -> nn.Module:
    """Option II: c_k becomes c_k - c + (x - y) / (K lr); c gains the clients' changes, each by its part of all samples."""
    control = {name: torch.zeros_like(w) for name, w in named(model).items()}
    own = [dict(control) for _ in COUNTS]
    for index, kept in enumerate(SCHEDULE):
        old, trained, changes = named(model), [], []
        for k in kept:

            def corrected(parameters: dict[str, nn.Parameter], mine: Tensors = own[k], c: Tensors = control) -> None:
                for name, parameter in parameters.items():
                    parameter.grad += c[name] - mine[name]

            trained.append(local(task, model, k, index, corrected))
            steps, after = len(task.batches(k, index)), named(trained[-1])
            new = {n: own[k][n] - control[n] + (old[n] - after[n]) / (steps * task.lr(index)) for n in old}
            changes.append({n: COUNTS[k] / sum(COUNTS) * (new[n] - own[k][n]) for n in old})
            own[k] = new
        control = {name: control[name] + sum(change[name] for change in changes) for name in control}
        model = mean_of(trained, kept)
    total = {name: sum(n / sum(COUNTS) * c[name] for n, c in zip(COUNTS, own)) for name in control}
    for name, tensor in total.items():  # the servers' control is the mean of the clients'
        torch.testing.assert_close(tensor, control[name])
    return model


def plain_fednova(task: Task, model: nn.Module, options: dict[str, float]) -> nn.Module:
    """x - tau sum p_k d_k, where d_k = (x - y_k) / tau_k and tau = sum p_k tau_k."""
    for index, kept in enumerate(SCHEDULE):
        old, trained = named(model), [local(task, model, k, index) for k in kept]
        part = [COUNTS[k] / sum(COUNTS[j] for j in kept) for k in kept]
        steps = [len(task.batches(k, index)) for k in kept]
        assert len(set(steps)) > 1
        directions = [{n: (old[n] - w) / tau for n, w in named(y).items()} for y, tau in zip(trained, steps)]
        model = mean_of(trained, kept)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                mean = sum(p * d[name] for p, d in zip(part, directions))
                weight.copy_(old[name] - sum(p * tau for p, tau in zip(part, steps)) * mean)
    return model


def plain_ditto(task: Task, model: nn.Module, options: dict[str, float]) -> tuple[nn.Module, list[nn.Module]]:
    own = [copy.deepcopy(model) for _ in COUNTS]
    for index, kept in enumerate(SCHEDULE):
        old = named(model)

        def pulled(parameters: dict[str, nn.Parameter], old: Tensors = old) -> None:
            for name, parameter in parameters.items():
                parameter.grad += options["pull"] * (parameter - old[name])

        for k in kept:
            own[k] = local(task, own[k], k, index, pulled)
        model = mean_of([local(task, model, k, index) for k in kept], kept)
    return model, own


FORMULAS = {"fedadam": plain_fedadam, "scaffold": plain_scaffold, "fednova": plain_fednova, "ditto": plain_ditto}
OPTIONS = {"fedadam": {"lr": 0.05, "beta1": 0.8, "beta2": 0.9, "tau": 0.01}, "ditto": {"pull": 0.7}}


def assert_close(left: Tensors, right: Tensors) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(
            tensor, right[name], rtol=1e-9, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_its_formula(name: str) -> None:
    """Mixed cuts, unequal samples, BatchNorm, a schedule of the learning rate, and clients that are away for a round."""
    options = {name: OPTIONS[name]} if name in OPTIONS else {}
    settings = {"schedule": "step", "step_rounds": 2, "step_factor": 0.5, "rounds": 4}
    task = make_task(CUTS, COUNTS, options=options, **settings)
    task = dataclasses.replace(task, config=task.config.model_copy(update={"framework": name}))
    whole, _, state = train(task, name, SCHEDULE)
    start = copy.deepcopy(task.model)
    load_state(task.initial, start)
    expected = FORMULAS[name](task, start, OPTIONS.get(name, {}))
    if isinstance(expected, tuple):
        expected, own = expected
        for k, model in enumerate(own):
            assert_close(dict(state.memory[k]), dict(model.state_dict()))
    assert_close(whole.named(), dict(expected.state_dict()))
    plain, _, _ = train(task, "hsfl", SCHEDULE)
    changed = name != "ditto"  # whose common model is HSFL's
    assert torch.equal(plain.floats, whole.floats) != changed


# --- engines and resume


def config(name: str, *changes: str) -> RunConfig:
    words = [f"framework={name}", "train.optimizer=sgd", "train.lr=0.05", "train.rounds=3", "model.norm=batch"]
    return read_config("my.toml", [*words, "data.partition=quantity_skew", "train.clients_per_round=3", *changes])


def state_of(folder: Path) -> dict[str, Tensor]:
    return load_tensors(RunFolder(folder).checkpoint_path)[0]


def assert_same_state(left: Path, right: Path) -> None:
    """The same numbers, models, and memories to the bit."""
    assert_same_run(left, right)
    first, second = state_of(left), state_of(right)
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


WORKERS = ("engine.name=workers", "engine.workers=2", "engine.threads=1")


@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_goes_on_remembers_everything(name: str, here: Path) -> None:
    train_run(config(name), here / "whole")
    train_run(config(name, "train.rounds=1"), here / "parts")
    train_run(config(name, "train.rounds=2"), here / "parts", resume=True)
    train_run(config(name), here / "parts", resume=True)
    assert_same_state(here / "whole", here / "parts")
    memory = {key.split("/")[1] for key in state_of(here / "whole") if key.startswith("memory/")}
    assert len(memory) == (4 if name in ("scaffold", "ditto") else 0)


@pytest.mark.slow  # processes take seconds to start
@pytest.mark.parametrize("name", METHODS)
def test_workers_train_the_same_bits(name: str, here: Path) -> None:
    """From the beginning, and after a resume, when a worker's first order has memory."""
    torch.set_num_threads(1)
    train_run(config(name), here / "inline")
    train_run(config(name, "train.rounds=2", *WORKERS), here / "workers")
    train_run(config(name, *WORKERS), here / "workers", resume=True)
    assert_same_state(here / "inline", here / "workers")


@pytest.mark.slow
def test_what_clients_remember_survives_a_worker_that_dies(here: Path) -> None:
    torch.set_num_threads(1)
    long, killer = ("data.limit=800", "train.local_epochs=2", "train.clients_per_round=null"), Killer()
    train_run(config("ditto", *long), here / "inline")
    train_run(config("ditto", *long, *WORKERS), here / "killed", observer=killer)
    assert any("exit code -9" in text for text in killer.warnings)
    assert_same_state(here / "inline", here / "killed")


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_cluster_trains_the_same_bits(name: str, here: Path) -> None:
    pytest.importorskip("ray")
    torch.set_num_threads(1)
    train_run(config(name), here / "inline")
    train_run(config(name, "engine.name=ray", "engine.workers=2", "engine.threads=1"), here / "ray")
    assert_same_state(here / "inline", here / "ray")


# --- bytes and seconds


def head_bytes(task: Task, cut: int) -> int:
    weights = {name for name, _ in task.model.named_parameters()}
    return sum(tensor.nbytes for name, tensor in task.initial[0:cut].named().items() if name in weights)


def round_bytes(task: Task, name: str, kept: list[int]) -> dict[str, int]:
    task = dataclasses.replace(task, config=task.config.model_copy(update={"framework": name}))
    algorithm = find_framework(name)(task)
    return vars(algorithm.round(algorithm.init(), kept, 0)[1].bytes)


def test_bytes_are_those_of_a_round_and_what_the_method_sends() -> None:
    task, kept, everyone = make_task(CUTS[:3], COUNTS[:3], dtype=torch.float32), [0, 2], [0, 1, 2]
    plain = round_bytes(task, "hsfl", kept)
    assert round_bytes(task, "fedadam", kept) == plain
    assert round_bytes(task, "fednova", kept) == plain | {
        "client_edge_up": plain["client_edge_up"] + 8 * 2,
        "edge_main": plain["edge_main"] + 8,
    }
    up, down = (sum(head_bytes(task, CUTS[k]) for k in clients) for clients in (kept, everyone))
    common = head_bytes(task, 5) - head_bytes(task, 2)
    assert round_bytes(task, "scaffold", kept) == plain | {
        "client_edge_up": plain["client_edge_up"] + up,
        "client_edge_down": plain["client_edge_down"] + down,
        "edge_main": plain["edge_main"] + 2 * common,
    }
    twice = {name: 2 * plain[name] for name in ("client_main_up", "client_main_down")}
    assert round_bytes(task, "ditto", kept) == plain | twice


MEASURED = [
    "network.kind=measured",
    "network.server=shares",
    "network.main_up_bps=2e6",
    "network.main_down_bps=3e6",
    "train.clients_per_round=null",
]
MEASURED += ["network.edge_up_bps=[1e5,2e5,3e5,4e5]", "network.edge_down_bps=[7e5,6e5,5e5,4e5]"]


def by_hand_s(name: str) -> float:
    """A round over measured links: N batches of all phases and the head up, then the head down."""
    bench = prepare(config("hsfl", *MEASURED))
    cost, world, draw = bench.world.cost, bench.world, bench.world.draw(0)
    uploads, downloads = [], []
    for k, cut in enumerate(bench.task.cuts):
        batches = len(bench.task.feed.indices[k]) / 8 * (2 if name == "ditto" else 1)
        head_up = head_down = float(cost.model_bits[cut])
        if name == "scaffold":
            head_up = head_down = head_up + 8 * head_bytes(bench.task, cut)
        if name == "fednova":
            head_up += 64
        batch_s = cost.client_flops[cut] / (draw.cpu_hz[k] * world.fleet.flops_per_cycle[k])
        batch_s += cost.server_flops[cut] / (world.servers.main_hz / 4 * world.servers.flops_per_cycle)
        batch_s += cost.smashed_bits[cut] / 2e6 + cost.gradient_bits[cut] / 3e6
        uploads.append(batches * 8 * batch_s + head_up / draw.rates.edge_up_bps[k])
        downloads.append(head_down / draw.rates.edge_down_bps[k])
    return max(uploads) + max(downloads)


@pytest.mark.parametrize("name", ["hsfl", *METHODS])
def test_seconds_are_those_of_a_round_and_what_the_method_adds(name: str) -> None:
    bench = prepare(config(name, *MEASURED))
    clock = make_clock(bench, find_framework(name)(bench.task))
    assert clock.round(0, (0, 1, 2, 3))[0].round_s == pytest.approx(by_hand_s(name), rel=1e-9)


@pytest.mark.parametrize("policy", ["even", "proposed"])
def test_what_travels_one_way_is_charged_one_way(policy: str) -> None:
    """A radio: a megabyte more down lengthens the download alone, a megabyte more up the upload."""
    taken_s = {}
    for way, both in (("none", (0, 0)), ("down", (1_000_000, 0)), ("up", (0, 1_000_000))):
        register_framework(f"more_{way}", type("More", (HSFL,), {"extra_bytes": lambda self, cut, both=both: both}))
        bench = prepare(config(f"more_{way}", f"allocation.policy={policy}", "train.clients_per_round=null"))
        clock = make_clock(bench, find_framework(f"more_{way}")(bench.task))
        taken_s[way] = clock.dealt(0, (0, 1, 2, 3)).allotted.phases
    assert (taken_s["down"].model_down_s > 5 * taken_s["none"].model_down_s).all()
    assert (taken_s["up"].model_up_s > 5 * taken_s["none"].model_up_s).all()
    np.testing.assert_array_equal(taken_s["up"].model_down_s, taken_s["none"].model_down_s)
    np.testing.assert_array_equal(taken_s["down"].model_up_s, taken_s["none"].model_up_s)


# --- what a method refuses, and what the document lists


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("name", ["scaffold", "fednova"])
def test_other_optimisers_are_refused(name: str, optimizer: str, here: Path) -> None:
    with raises(InputError, "plain SGD", "set train.optimizer=sgd"):
        train_run(config(name, f"train.optimizer={optimizer}"), here / "run")


def listed() -> dict[str, set[str]]:
    """The names that the tables of the document list, by record."""
    fields: dict[str, set[str]] = {}
    record = ""
    for first, names in re.findall(r"^\| (`\w+` )?\| (`.*?`) \| .*\|$", DOC.read_text(), re.M):
        record = first.strip("` ") or record
        fields.setdefault(record, set()).update(re.findall(r"`(\w+)(?:\(\))?`", names))
    return fields


def test_the_document_lists_the_fields_that_there_are() -> None:
    fields = listed()
    for record in (ClientTurn, ServerTurn, State, UnitState, Shard, Scenario):
        assert fields[record.__name__] == {field.name for field in dataclasses.fields(record)}, record.__name__
    part = prepare(config("hsfl")).task.part(0, 2)
    public = {name for name in {*vars(part), *vars(Part)} if not name.startswith("_")}
    assert fields["Part"] <= public
    assert public - fields["Part"] <= {"twin", "optimizer_bytes", "optimizer_state", "load_optimizer_state"}
    hooks = set(re.findall(r"^\| `(\w+)[^`]*` \| ", DOC.read_text(), re.M))
    assert set(HOOKS) <= hooks


# --- cuts and plans count what a method adds

SLOW_EDGE = ["network.num_subchannels=4", "fleet.cuts=planned", "fleet.max_cut=5", "allocation.samples=2"]
SLOW_EDGE += [
    "train.clients_per_round=null",
    "fleet.cpu_hz=[1e8,1e10]",
    "network.main_hz=1e10",
    "network.sample_scale=5",
]


def charged_by_hand(bench: Bench, name: str, policy: str) -> tuple[int, ...]:
    """The cuts of HSFL in a world whose heads are so much larger, for so many more batches."""
    extras = find_framework(name)(bench.task).extras()
    cost = dataclasses.replace(
        bench.world.cost,
        model_bits=bench.world.cost.model_bits + np.array(extras.up_bits or 0.0),
        model_down_bits=bench.world.cost.down_bits + np.array(extras.down_bits or 0.0),
    )
    task = CutTask.of_run(
        config("hsfl", *SLOW_EDGE, f"allocation.policy={policy}"),
        dataclasses.replace(bench.world, cost=cost),
        extras.passes * bench.num_samples,
    )
    return choose_cuts(task)[0]


@pytest.mark.parametrize("policy", ["even", "proposed"])
@pytest.mark.parametrize("name", ["scaffold", "ditto"])
def test_cuts_of_a_run_count_what_the_method_adds(name: str, policy: str) -> None:
    bench = prepare(config(name, *SLOW_EDGE, f"allocation.policy={policy}"))
    assert bench.task.cuts == charged_by_hand(bench, name, policy)
    assert bench.task.cuts != prepare(config("hsfl", *SLOW_EDGE, f"allocation.policy={policy}")).task.cuts


@pytest.mark.parametrize("base", [HSFL, SplitFedV1])
def test_a_megabyte_for_each_unit_makes_the_cut_shallow(base: type[HSFL]) -> None:
    """Up and down; frameworks with one cut for all search theirs with it, too."""
    register_framework("heavy", type("Heavy", (base,), {"extra_bytes": lambda self, cut: (10**6 * cut,) * 2}))
    for policy in ("even", "proposed"):
        bench = prepare(config("heavy", *SLOW_EDGE, f"allocation.policy={policy}"))
        assert set(find_framework("heavy")(bench.task).cuts) == {1}


@pytest.mark.parametrize("policy", ["even", "proposed"])
@pytest.mark.parametrize("name", ["fedadam", "scaffold", "fednova", "ditto"])
def test_a_plan_has_the_cuts_and_the_rounds_of_the_run(name: str, policy: str, tmp_path: Path) -> None:
    """On recorded rounds both see the same."""
    plain = prepare(config("hsfl", *SLOW_EDGE, f"allocation.policy={policy}"))
    write_history(sample_draws(plain.world, 2), tmp_path / "rounds.csv")
    words = [word for word in SLOW_EDGE if not word.startswith("fleet.cpu_hz")]
    planned = config(name, *words, f"allocation.policy={policy}", f"network.history={tmp_path / 'rounds.csv'}")
    plan, bench = package.plan(planned), prepare(planned)
    clock = make_clock(bench, find_framework(name)(bench.task))
    assert tuple(plan.cuts) == bench.task.cuts
    assert plan.round_s == pytest.approx(np.mean(clock.rounds_s(2)), rel=3e-3)
    told = [note for note in plan.notes if "count it" in note]
    assert len(told) == (name != "fedadam")


def test_a_plan_says_what_it_does_not_know() -> None:
    cost = package.cost("cnn", (1, 8, 8))
    for name, known in (("scaffold", False), ("ditto", True), ("hsfl", True)):
        plan = package.plan(config(name, *SLOW_EDGE, "allocation.policy=even"), cost=cost, samples_per_client=30)
        assert any("extra_bytes" in note for note in plan.notes) is not known
