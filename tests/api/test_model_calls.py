"""`hsfl.cost` and `hsfl.allocate` from Python agree with the commands."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hsfl as package
from hsfl.errors import InputError
from tests.naming import names, raises
from tests.small_runs import hsfl

SCENARIO = Path(__file__).parents[2] / "docs/examples/scenario.json"


def test_a_model_costs_what_the_command_says() -> None:
    table = package.cost("cnn", (1, 8, 8), batch_size=32)
    assert hsfl("cost", "cnn", "--input", "1,8,8", "--batch-size", 32, "--json").json() == table.to_dict()
    rows = table.table()
    assert [row["cut"] for row in rows] == list(range(table.num_units + 1))
    assert rows[1]["client_forward_flops"] == table.client_forward_flops[1]
    names(repr(table), "client GFLOPs", "mini-batch of 32")


def test_the_shape_of_a_sample_is_asked_for_by_its_name() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    with raises(InputError, "unit '0'", "(3, 32, 32)", "input_shape"):
        package.cost(net)
    with raises(InputError, "gpt", "(3, 32, 32)", "input_shape"):
        package.cost("gpt")
    whole = package.cost(package.split(net, torch.zeros(2, 6)))  # the example has told the shape
    assert whole.client_forward_flops.tolist()[-1] == 160.0


def test_costs_have_the_same_units_everywhere() -> None:
    shown = package.cost("cnn", (1, 8, 8)).screen()
    rows = [line.split("│")[1:-1] for line in hsfl("cost", "cnn", "--input", "1,8,8").out.splitlines() if "│" in line]
    assert [float(cell) for cell in rows[1][2:]] == [pytest.approx(value, rel=5e-3) for value in shown.rows[1][1:]]
    names(" ".join(shown.header), "smashed kB", "model MB", "memory MB")


def test_a_module_costs_what_its_layers_do() -> None:
    table = package.cost(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), (6,))
    assert table.client_forward_flops.tolist() == [0, 96, 96, 160]
    plan = package.plan(cost=table, samples_per_client=20, fleet={"num_clients": 2}, allocation={"samples": 1})
    assert len(plan.cuts) == 2


@pytest.mark.parametrize(
    ("named", "parts"),
    [
        ({"input_shape": (3, 0, 3)}, ("input_shape is (3, 0, 3)", "1..4096")),
        ({"input_shape": ()}, ("input_shape is ()",)),
        ({"num_classes": 0}, ("num_classes is 0", "choose 1..")),
        ({"batch_size": 0}, ("batch_size is 0",)),
        ({"model": "cn"}, ("did you mean cnn", "plugins=FILE")),
        ({"settings": ["train.lr=1"]}, ("settings='train.lr=1'", "no effect")),
    ],
)
def test_wrong_arguments_are_named(named: dict, parts: tuple[str, ...]) -> None:
    with raises(InputError, *parts):
        package.cost(**({"model": "cnn"} | named))


def test_a_round_is_allocated_from_a_dict_and_from_arrays() -> None:
    scenario = json.loads(SCENARIO.read_text())
    answer = package.allocate(scenario, cuts=[2, 1, 2])
    command = hsfl("allocate", SCENARIO, "--cuts", "2,1,2", "--json").json()
    assert answer.to_dict() | {"seconds": 0} == command | {"seconds": 0}
    scenario["channel"]["main_gain"] = np.array(scenario["channel"]["main_gain"])
    assert package.allocate(scenario, cuts=[2, 1, 2]).round_s == answer.round_s
    names(repr(answer), "round", "server_hz", "gap")
    assert [row["cut"] for row in answer.table()] == [2, 1, 2]
    with raises(InputError, "cost", "missing"):
        package.allocate({"batch_size": 3})
