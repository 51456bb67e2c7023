"""A running deployment whose plan changes cuts: the units that a server newly needs travel, and the model is the simulation's for those cuts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hsfl.config import parse_config
from hsfl.deploy.main import cut_planner
from hsfl.deploy.main.cut_planner import CutPlanner
from hsfl.deploy.main.edge_link import EdgeLink
from hsfl.frameworks import find_framework
from hsfl.models.state import UnitState
from hsfl.planning.world import World
from hsfl.runs.prepare import prepare
from hsfl.runs.replay import replay_run
from tests.deploy.fleet import RUN, changed
from tests.deploy.inside import Inside

NAMES = ("ada", "bo", "cy")
CUTS = (
    (2, 2, 3),
    (1, 4, 3),
    (5, 3, 3),
)  # of each round: both servers lack a unit in the second, the edge server one in the third
MEASURED_RUN = changed(
    RUN, data={"limit": 48}, fleet={"num_clients": 3, "cuts": "fastest"}, train={"rounds": len(CUTS)}
)


def simulated_with(run: dict, cuts: tuple[tuple[int, ...], ...]) -> UnitState:
    """The model of a simulation whose clients have these cuts, round by round."""
    config = parse_config(run)
    task = prepare(config).task
    for round_index, now in enumerate(cuts):
        framework = find_framework(config.framework)(replace(task, cuts=now))
        state, _ = framework.round(framework.init(), range(len(now)), round_index)
        (whole,) = framework.models(state)
        task = replace(task, initial=whole.clone())
    return task.initial


def test_a_plan_that_changes_cuts_brings_the_units_that_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, moved = iter(CUTS), []

    def choose(self: CutPlanner, world: World, samples: np.ndarray) -> tuple[int, ...]:
        return next(planned)

    take, give = EdgeLink.take_units, EdgeLink.give_units

    async def take_units(self: EdgeLink, round: int, units: UnitState) -> None:
        moved.append(("to the edge server", round, units.start, units.stop))
        await take(self, round, units)

    async def give_units(self: EdgeLink, round: int, like: UnitState) -> UnitState:
        moved.append(("to the main server", round, like.start, like.stop))
        return await give(self, round, like)

    monkeypatch.setattr(CutPlanner, "_choose", choose)
    monkeypatch.setattr(cut_planner, "GAIN", np.inf)  # any change of cuts is worth it
    monkeypatch.setattr(cut_planner, "WORTH", -1.0)  # and is made as a whole
    monkeypatch.setattr(EdgeLink, "take_units", take_units)
    monkeypatch.setattr(EdgeLink, "give_units", give_units)
    inside = Inside(tmp_path, MEASURED_RUN, NAMES, more={"evaluate": "none"})
    assert inside.go().status == "finished"
    assert [tuple(record["cuts"]) for record in inside.rounds()] == list(CUTS)
    assert moved == [
        ("to the edge server", 0, 0, 3),
        ("to the edge server", 1, 3, 4),
        ("to the main server", 1, 1, 2),
        ("to the edge server", 2, 4, 5),
        ("to the main server", 3, 0, 3),  # the last model, joined
    ]
    why = [line for line in inside.events("main") if line["event"].startswith("client gets another cut")]
    assert [(line["client"], line["before"], line["cut"]) for line in why] == [
        *[("ada", 2, 1), ("bo", 2, 4)],
        *[("ada", 1, 5), ("bo", 4, 3)],
    ]
    wanted = simulated_with(inside.run, CUTS).named()
    model = load_file(tmp_path / "run" / "model.safetensors")
    assert model.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(model[name], tensor), name
    report = replay_run(tmp_path / "run")
    assert report.agrees, report
    assert (report.rounds, report.unchecked) == (3, [])


ROWS = (
    (1, 2 + 6, 3),
    (1 + 6, 2 + 6, 3 + 6),
    (2 + 6, 2, 5),
)  # of each round: six cuts without a codec, then six with int8


def test_a_plan_that_changes_codecs_is_what_a_simulation_makes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orders tell each device its codec of the round; bo keeps its cut, and with it what was lost of its heads."""
    planned = iter(ROWS)
    monkeypatch.setattr(CutPlanner, "_choose", lambda self, world, samples: next(planned))
    monkeypatch.setattr(cut_planner, "GAIN", np.inf)
    monkeypatch.setattr(cut_planner, "WORTH", -1.0)
    run = changed(MEASURED_RUN, link={"allowed": ["none", "int8"], "model": "int8"})
    inside = Inside(tmp_path, run, NAMES)
    assert inside.go().status == "finished"
    records = inside.rounds()
    assert [record["cuts"] for record in records] == [[1, 2, 3], [1, 2, 3], [2, 2, 5]]
    assert [record["codecs"] for record in records] == [
        ["none", "int8", "none"],
        ["int8"] * 3,
        ["int8", "none", "none"],
    ]
    assert [record["coded"] is not None for record in records] == [True] * 3
    why = [line for line in inside.events("main") if line["event"].startswith("client gets another cut")]
    assert [(line["client"], line["codec_before"], line["codec"]) for line in why[:2]] == [
        ("ada", "none", "int8"),
        ("cy", "none", "int8"),
    ]
    report = replay_run(tmp_path / "run")
    assert report.agrees, report
    assert (report.rounds, report.unchecked) == (3, [])
