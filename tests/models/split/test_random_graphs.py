"""Random small graphs with branches, skips, weights used twice and operations in place: the cuts are those of brute force.

Brute force knows no liveness: it runs the rest of the graph from every value at every place, and sees whether that works.
"""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn

import hsfl
from hsfl.models.split.cut_points import Flow
from hsfl.models.split.trace import ModuleGraph, trace
from hsfl.models.units import SplitModel
from tests.models.whole import distance

WIDTH = 4
OPERATIONS = ("linear", "again", "relu_", "add", "add_", "mul", "slice_", "view_", "sin", "cat", "drop")


class Random(nn.Module):
    """A program: each line has an operation and the numbers of the values that it takes."""

    def __init__(self, program: list[tuple[str, int, int]]) -> None:
        super().__init__()
        self.program = program
        self.layers = nn.ModuleDict(
            {str(i): nn.Linear(2 * WIDTH if op == "cat" else WIDTH, WIDTH) for i, (op, _, _) in enumerate(program)}
        )
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        values = [self.layers["0"](x) if self.program[0][0] != "cat" else x.sin()]
        for i, (op, left, right) in enumerate(self.program):
            a, b = values[-1 - left % len(values)], values[-1 - right % len(values)]
            values.append(self.apply_one(op, str(i), a, b))
        return self.last(values[-1])

    def apply_one(self, op: str, name: str, a: Tensor, b: Tensor) -> Tensor:
        if op in ("linear", "again"):
            return self.layers[name if op == "linear" else "0" if self.layers["0"].in_features == WIDTH else name](a)
        if op == "cat":
            return self.layers[name](torch.cat([a, b], dim=1))
        if op == "slice_":
            a[:, :2].mul_(0.5)
            return a.cos()
        if op == "view_":
            return a.view(-1, 2, 2).add_(1.0).view(-1, WIDTH)
        if op == "add_":
            return a.add_(b.tanh())
        if op == "drop":
            return nn.functional.dropout(a, 0.3, self.training)
        return {"relu_": a.relu_, "add": lambda: a + b, "mul": lambda: a * b, "sin": a.sin}[op]()


def run(
    graph: ModuleGraph, module: nn.Module, known: dict[fx.Node, object], calls: list[fx.Node]
) -> dict[fx.Node, object]:
    """Run operations from what is known; a KeyError says that something is missing."""
    tensors = dict(module.named_parameters())
    known = known | {node: tensors[name] for node, name in graph.state.items()}
    for call in calls:
        args, kwargs = fx.map_arg((call.args, dict(call.kwargs)), known.__getitem__)
        torch.manual_seed(hash(call.name) % 1000)  # dropout draws the same in the rest as in the whole
        known[call] = call.target(*args, **kwargs)  # type: ignore[operator]
    return known


def brute_force(graph: ModuleGraph, module: nn.Module, order: list[fx.Node]) -> set[int]:
    """The places where one tensor is enough to run the rest, to the same answer, without the sample and without changing it."""
    (sample,) = graph.inputs
    uses = [{graph.state[n] for n in call.all_input_nodes if n in graph.state} for call in order]
    x = torch.randn(3, WIDTH)
    with torch.no_grad():
        expected = run(graph, module, {sample: x.clone()}, order)[graph.output]
        legal = set()
        for place in range(len(order) - 1):
            if set().union(*uses[: place + 1]) & set().union(*uses[place + 1 :]):
                continue
            before = run(graph, module, {sample: x.clone()}, order[: place + 1])
            for value in {id(v): v for node, v in before.items() if node in order}.values():
                names = [node for node, other in before.items() if other is value]
                if sample in names or not isinstance(value, Tensor):
                    continue
                sent = value.clone()
                version = sent._version
                try:
                    answer = run(graph, module, dict.fromkeys(names, sent), order[place + 1 :])[graph.output]
                except KeyError:
                    continue
                if torch.equal(answer, expected) and sent._version == version:
                    legal.add(place)
    return legal


PROGRAMS = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3), st.integers(0, 3)), min_size=3, max_size=9
)


def split_or_none(module: nn.Module) -> SplitModel | None:
    try:
        return hsfl.split(module, torch.zeros(2, WIDTH))
    except hsfl.InputError as error:
        if "has no cut" not in str(error) and not (
            "training step of the whole module fails" in str(error) and fails(module)
        ):
            raise
        return None


def fails(module: nn.Module) -> bool:
    """Whether autograd refuses the program itself, which changes in place what its backward pass needs."""
    try:
        for mode in (False, True):  # dropout in evaluation mode is the value itself, changed in place with it
            module.train(mode)(torch.randn(3, WIDTH)).sum().backward()
    except RuntimeError:
        return True
    module.zero_grad()
    return False


def check(program: list[tuple[str, int, int]]) -> None:
    torch.manual_seed(1)
    module = Random(program)
    graph = trace(module, [torch.zeros(2, WIDTH)], training=True)
    flow = Flow(graph, dict(module.named_parameters()))
    assert {crossing.place for crossing in flow.crossings()} == brute_force(graph, module, flow.order), program
    if not (model := split_or_none(module)):
        return
    if fails(module):
        return  # there is nothing to compare
    assert distance(module, model, [torch.randn(3, WIDTH)]) < 1e-5


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(PROGRAMS)
def test_cuts_of_random_graphs(program):
    check(program)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(PROGRAMS)
def test_cuts_of_many_random_graphs(program):
    check(program)


def test_brute_force_and_the_graph_agree_on_a_graph_by_hand():
    """x -> a = linear(x); b = relu_(a); c = a + b: one tensor crosses after relu_, called a and b; then linear."""
    module = Random([("linear", 0, 0), ("relu_", 0, 0), ("add", 0, 1), ("linear", 0, 0)])
    graph = trace(module, [torch.zeros(2, WIDTH)], training=True)
    flow = Flow(graph, dict(module.named_parameters()))
    legal = {str(flow.order[crossing.place].target) for crossing in flow.crossings()}
    assert legal == {"aten.linear.default", "aten.relu_.default", "aten.add.Tensor"}
    assert 1 not in {crossing.place for crossing in flow.crossings()}  # relu_ changes what would cross there
